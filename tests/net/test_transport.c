/* SPDX-License-Identifier: Apache-2.0 */
/* The suite that every transport passes, on thread ranks, with the argument `processes` on process ranks, and with
 * `hosts` on process ranks of several hosts, without the shim. What is posted and not waited for: suite_posts.c. */
#include "netns/netns.h"
#include "stage.h"
#include "suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS       4
#define GUARD_BYTES 64
static const size_t sizes[] = {0, 1, 7, 8, 63, 64, 4096, ((size_t)1 << 20) + 1};
#define SLOT_BYTES (((size_t)1 << 20) + 4096)

static ranks_kind kind = RANKS_THREADS;
static bool several_hosts = false;

static uint8_t pattern(int32_t from, int32_t to, size_t i)
{
    return (uint8_t)(i * 7 + (size_t)from * 31 + (size_t)to * 57 + 1);
}

static void fill(uint8_t *bytes, size_t count, int32_t from, int32_t to)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = pattern(from, to, i);
}

static bool filled(const uint8_t *bytes, size_t count, int32_t from, int32_t to)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != pattern(from, to, i)) return false;
    return true;
}

static bool untouched(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != 0xee) return false;
    return true;
}

static uint64_t slot(const stage *s, int32_t r, size_t shift)
{
    return s->area + (uint64_t)r * SLOT_BYTES + GUARD_BYTES + shift;
}

/* Everybody puts into its slot at everybody, itself included; nothing beside it may change. */
static void put_round(stage *s, uint8_t *source, size_t bytes, size_t shift)
{
    expar_group *g = s->group;
    memset(own(s, s->area), 0xee, RANKS * SLOT_BYTES);
    CHECK_OK(sym_barrier(g->sym));
    for (int32_t pe = 0; pe < g->size; pe++) {
        fill(source, bytes, g->rank, pe);
        CHECK_OK(stage_put(s, pe, slot(s, g->rank, shift), source, bytes));
        memset(source, 0, bytes); /* it may be reused at once */
    }
    CHECK_OK(s->via->ops->quiet(s->via));
    CHECK_OK(sym_barrier(g->sym));
    for (int32_t from = 0; from < g->size; from++) {
        const uint8_t *at = own(s, slot(s, from, shift));
        CHECK(filled(at, bytes, from, g->rank), "put of %zu bytes from rank %d", bytes, from);
        CHECK(untouched(at - GUARD_BYTES, GUARD_BYTES), "%zu bytes from rank %d: before", bytes, from);
        CHECK(untouched(at + bytes, GUARD_BYTES), "%zu bytes from rank %d: behind", bytes, from);
    }
    CHECK_OK(sym_barrier(g->sym));
}

static void get_round(stage *s, uint8_t *dest, size_t bytes, size_t shift)
{
    expar_group *g = s->group;
    for (int32_t to = 0; to < g->size; to++)
        fill(own(s, slot(s, to, shift)), bytes, g->rank, to);
    CHECK_OK(sym_barrier(g->sym));
    for (int32_t pe = 0; pe < g->size; pe++) {
        memset(dest, 0xee, bytes + GUARD_BYTES);
        CHECK_OK(stage_get(s, pe, dest, slot(s, g->rank, shift), bytes));
        CHECK(filled(dest, bytes, pe, g->rank), "get of %zu bytes from rank %d", bytes, pe);
        CHECK(untouched(dest + bytes, GUARD_BYTES), "get of %zu bytes from rank %d: behind", bytes, pe);
    }
    CHECK_OK(sym_barrier(g->sym));
}

static void put_and_get(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, (RANKS + 1) * SLOT_BYTES)) return;
    uint8_t *local = malloc(SLOT_BYTES);
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        static const size_t shifts[] = {0, 1, 4};
        for (size_t k = several_hosts ? 1 : 0; k < ARRAY_LENGTH(shifts); k += several_hosts ? 2 : 1) {
            put_round(&s, local, sizes[i], shifts[k]);
            get_round(&s, local, sizes[i], shifts[k]);
        }
    }
    free(local);
    stage_close(&s);
}

static uint64_t one_atomic(stage *s, int32_t pe, uint64_t offset, size_t bytes, transport_atomic_op op,
                           uint64_t operand, uint64_t compare)
{
    uint64_t old64 = 0x5555555555555555;
    uint32_t old32 = 0x55555555;
    const transport_request request = {.kind = TRANSPORT_KIND_ATOMIC,
                                       .pe = pe,
                                       .offset = offset,
                                       .dest = bytes == 8 ? (void *)&old64 : (void *)&old32,
                                       .bytes = bytes,
                                       .op = op,
                                       .operand = operand,
                                       .compare = compare};
    CHECK_OK(s->via->ops->run(s->via, &request));
    return bytes == 8 ? old64 : old32;
}

/* One operation after the other on a word of the next rank, which nobody else touches; its neighbours must stay. */
static void each_atomic(stage *s, size_t bytes)
{
    expar_group *g = s->group;
    int32_t pe = (g->rank + 1) % g->size;
    uint64_t offset = s->area + 64, mask = bytes == 8 ? UINT64_MAX : UINT32_MAX;
    memset(own(s, s->area), 0xee, 128);
    CHECK_OK(sym_barrier(g->sym));
    const uint64_t big = UINT64_C(0xfedcba9876543210) & mask;
    one_atomic(s, pe, offset, bytes, TRANSPORT_SET, 5, 0);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_FETCH, 0, 0) == 5, "set, fetch (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_SWAP, big, 0) == 5, "swap (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_COMPARE_SWAP, 1, 2) == big, "compare-swap, differs (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_COMPARE_SWAP, mask, big) == big, "compare-swap, equal (%zu)",
          bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_ADD, 8, 0) == mask, "add wraps (%zu)", bytes);
    CHECK_OK(s->via->ops->run(s->via, &(transport_request){.kind = TRANSPORT_KIND_ATOMIC,
                                                           .pe = pe,
                                                           .offset = offset,
                                                           .bytes = bytes,
                                                           .op = TRANSPORT_ADD,
                                                           .operand = 3}));
    CHECK_OK(s->via->ops->quiet(s->via)); /* it may still be on its way */
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_OR, 0x30, 0) == 10, "add without a result (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_AND, 0x1f, 0) == 0x3a, "or (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_XOR, mask, 0) == 0x1a, "and (%zu)", bytes);
    CHECK(one_atomic(s, pe, offset, bytes, TRANSPORT_FETCH, 0, 0) == (mask ^ 0x1a), "xor (%zu)", bytes);
    CHECK_OK(sym_barrier(g->sym));
    CHECK(untouched(own(s, s->area), 64), "atomics of %zu bytes: before", bytes);
    CHECK(untouched(own(s, offset + bytes), 64 - bytes), "atomics of %zu bytes: behind", bytes);
    CHECK_OK(sym_barrier(g->sym));
}

#define CONTENDED_ROUNDS 2000

/* All ranks add to one word of rank 0, and swap tickets through another: nothing is lost, nothing is seen twice. */
static void contended_atomics(stage *s)
{
    expar_group *g = s->group;
    memset(own(s, s->area), 0, 128);
    CHECK_OK(sym_barrier(g->sym));
    uint64_t tickets = 0, rounds = netns_rounds(CONTENDED_ROUNDS);
    for (uint64_t i = 1; i <= rounds; i++) {
        one_atomic(s, 0, s->area, 8, TRANSPORT_ADD, i, 0);
        tickets += one_atomic(s, 0, s->area + 64, 4, TRANSPORT_SWAP, (uint64_t)g->rank * rounds + i, 0);
    }
    uint64_t *sums = calloc((size_t)g->size, sizeof *sums);
    CHECK_OK(expar_group_allgather(g, &tickets, sums, sizeof tickets));
    uint64_t swapped = one_atomic(s, 0, s->area + 64, 4, TRANSPORT_FETCH, 0, 0), all = 0;
    for (int32_t r = 0; r < g->size; r++)
        swapped += sums[r];
    for (uint64_t i = 1; i <= (uint64_t)g->size * rounds; i++)
        all += i;
    CHECK(swapped == all, "tickets swapped add up to %llu, not %llu", (unsigned long long)swapped,
          (unsigned long long)all);
    uint64_t expected = (uint64_t)g->size * rounds * (rounds + 1) / 2;
    uint64_t sum = one_atomic(s, 0, s->area, 8, TRANSPORT_FETCH, 0, 0);
    CHECK(sum == expected, "sum %llu, not %llu", (unsigned long long)sum, (unsigned long long)expected);
    free(sums);
    CHECK_OK(sym_barrier(g->sym));
}

static void atomics(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, 4096)) return;
    each_atomic(&s, 4);
    each_atomic(&s, 8);
    contended_atomics(&s);
    stage_close(&s);
}

#define LITMUS_ROUNDS 2000
#define SLOW_ROUNDS   250 /* of a transport between hosts, and behind the shim, where every round has its delays */
#define LITMUS_WORDS  32

/* Data, fence, flag, round and round a ring of ranks: a rank that sees the flag sees the data. */
static void fence_orders(expar_group *group, void *shared)
{
    stage s;
    const subject *who = shared;
    if (!stage_open(&s, group, who, 4096)) return;
    int32_t next = (group->rank + 1) % group->size;
    uint64_t rounds = netns_rounds(who->late || !who->ops->node_local ? SLOW_ROUNDS : LITMUS_ROUNDS);
    uint64_t data[LITMUS_WORDS], flag_offset = s.area + 2048, stale = 0;
    const _Atomic uint64_t *flag = (const _Atomic uint64_t *)(void *)own(&s, flag_offset);
    memset(own(&s, s.area), 0, 4096);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= rounds && check_failures() == 0; round++) {
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            data[i] = round;
        CHECK_OK(stage_put(&s, next, s.area, data, sizeof data));
        CHECK_OK(s.via->ops->fence(s.via));
        CHECK_OK(stage_put(&s, next, flag_offset, &round, sizeof round));
        sym_ring(group->sym, next);
        suite_await_word(group, flag, round);
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            stale += ((const uint64_t *)(const void *)own(&s, s.area))[i] != round;
        CHECK_OK(sym_barrier(group->sym)); /* read before the next round overwrites */
    }
    CHECK(stale == 0, "%llu words were older than their flag", (unsigned long long)stale);
    stage_close(&s);
}

static void reaches_all(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, 4096)) return;
    for (int32_t pe = 0; pe < group->size; pe++) {
        unsigned reach = s.via->ops->reach(s.via, pe, TRANSPORT_HOST);
        CHECK((reach & TRANSPORT_PUT) && (reach & TRANSPORT_GET) && (reach & TRANSPORT_ATOMIC), "reach of %d: %u", pe,
              reach);
        CHECK(!(reach & TRANSPORT_MAP) == !s.via->ops->map(s.via, pe, TRANSPORT_HOST, s.area), "map of %d", pe);
    }
    CHECK(!(s.via->ops->reach(s.via, group->rank, TRANSPORT_HOST) & TRANSPORT_MAP) ||
              s.via->ops->map(s.via, group->rank, TRANSPORT_HOST, s.area) == own(&s, s.area),
          "its own heap is where it is");
    stage_close(&s);
}

static bool maps(const subject *who)
{
    return who->ops->node_local && !who->late;
}

/* Two simulated nodes of two ranks each. */
static void keeps_nodes_apart(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, 4096)) return;
    for (int32_t pe = 0; pe < group->size; pe++) {
        bool same = pe / 2 == group->rank / 2 && maps(shared);
        CHECK(!!(s.via->ops->reach(s.via, pe, TRANSPORT_HOST) & TRANSPORT_MAP) == same, "rank %d maps rank %d",
              group->rank, pe);
        CHECK((s.via->ops->map(s.via, pe, TRANSPORT_HOST, s.area) != NULL) == same, "rank %d has an address of %d",
              group->rank, pe);
    }
    stage_close(&s);
}

#define RELAY_ROUNDS 200

static uint64_t word_at(const stage *s, int32_t pe, uint64_t offset)
{
    uint64_t word = 0;
    CHECK_OK(stage_get(s, pe, &word, offset, sizeof word));
    return word;
}

/* Quiet is about all endpoints. Rank 0 puts to rank 1, quiet, raises a flag at rank 2, by another channel where there
   are several. Rank 2, which sees the flag, finds the data at rank 1. */
static void quiet_is_over_all(expar_group *group, void *shared)
{
    stage s;
    if (!stage_open(&s, group, shared, 4096)) return;
    memset(own(&s, s.area), 0, 4096);
    CHECK_OK(sym_barrier(group->sym));
    for (uint64_t round = 1; round <= RELAY_ROUNDS && check_failures() == 0; round++) {
        uint64_t data[LITMUS_WORDS];
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            data[i] = round;
        if (group->rank == 0) {
            CHECK_OK(stage_put(&s, 1, s.area, data, sizeof data));
            CHECK_OK(s.via->ops->quiet(s.via));
            CHECK_OK(stage_put(&s, 2, s.area + 2048, &round, sizeof round));
            sym_ring(group->sym, 2);
        } else if (group->rank == 2) {
            suite_await_word(group, (const _Atomic uint64_t *)(void *)own(&s, s.area + 2048), round);
            uint64_t seen = word_at(&s, 1, s.area + (round % LITMUS_WORDS) * sizeof round);
            CHECK(seen == round, "word %llu in round %llu", (unsigned long long)seen, (unsigned long long)round);
        }
        CHECK_OK(sym_barrier(group->sym));
    }
    stage_close(&s);
}

/* As many endpoints as were asked for, of the transport that has several. */
static void counts_channels(expar_group *group, void *shared)
{
    stage s;
    char text[512] = "", expected[32] = "";
    const char *asked_for = getenv("EXPAR_FABRIC_CHANNELS");
    if (!stage_open(&s, group, shared, 4096)) return;
    if (s.via->ops->describe) s.via->ops->describe(s.via, text, sizeof text);
    snprintf(expected, sizeof expected, ", %s channel", asked_for ? asked_for : "1");
    const bool has_channels = strcmp(s.via->ops->name, "gda") != 0 && s.via->ops->describe;
    CHECK(!has_channels || strstr(text, expected), "'%s' without '%s'", text, expected);
    stage_close(&s);
}

/* Several endpoints disorder what goes by them as it is: they are delayed besides at night alone. */
static bool trials_late(void)
{
    return !several_hosts && (!getenv("EXPAR_FABRIC_CHANNELS") || getenv("EXPAR_TEST_ROUNDS"));
}

static void run_on_all(ranks_body body, int32_t size, int32_t ranks_per_node)
{
    for (size_t t = 0; t < num_subjects; t++) {
        if (subjects[t].late && !trials_late()) continue;
        print_message("transport %s%s\n", subjects[t].ops->name, subjects[t].late ? ", late" : "");
        ranks_plan plan = {.kind = kind, .size = size, .ranks_per_node = ranks_per_node};
        assert_true(ranks_run(&plan, body, (void *)&subjects[t]));
    }
}

static void test_reaches_all(void **state)
{
    (void)state;
    run_on_all(reaches_all, RANKS, 0);
    run_on_all(reaches_all, 1, 0);
}

static void test_keeps_nodes_apart(void **state)
{
    (void)state;
    run_on_all(keeps_nodes_apart, RANKS, 2);
}

static void test_put_and_get(void **state)
{
    (void)state;
    run_on_all(put_and_get, RANKS, 0);
}

static void test_posts(void **state)
{
    (void)state;
    run_on_all(suite_posts, RANKS, 0);
}

static void test_atomics(void **state)
{
    (void)state;
    run_on_all(atomics, RANKS, 0);
}

static void test_fence_orders(void **state)
{
    (void)state;
    run_on_all(fence_orders, RANKS, 0);
}

static void test_signalled_puts(void **state)
{
    (void)state;
    run_on_all(suite_signalled_puts, RANKS, 0);
}

static void test_flagged_puts(void **state)
{
    (void)state;
    run_on_all(suite_flagged_puts, RANKS, 0);
}

static void test_leading_puts(void **state)
{
    (void)state;
    run_on_all(suite_leading_puts, RANKS, 0);
}

static void test_joined_puts(void **state)
{
    (void)state;
    run_on_all(suite_joined_puts, 2, 0);
}

static void test_full_queue(void **state)
{
    (void)state;
    run_on_all(suite_full_queue, 2, 0);
    run_on_all(suite_full_queue, RANKS, 0);
}

static void test_segments(void **state)
{
    (void)state;
    run_on_all(suite_segments, RANKS, 0);
}

static void test_quiet_is_over_all(void **state)
{
    (void)state;
    run_on_all(quiet_is_over_all, RANKS, 0);
}

static void test_counts_channels(void **state)
{
    (void)state;
    run_on_all(counts_channels, 2, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reaches_all),       cmocka_unit_test(test_keeps_nodes_apart),
        cmocka_unit_test(test_put_and_get),       cmocka_unit_test(test_posts),
        cmocka_unit_test(test_atomics),           cmocka_unit_test(test_fence_orders),
        cmocka_unit_test(test_signalled_puts),    cmocka_unit_test(test_flagged_puts),
        cmocka_unit_test(test_leading_puts),      cmocka_unit_test(test_joined_puts),
        cmocka_unit_test(test_full_queue),        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_quiet_is_over_all), cmocka_unit_test(test_counts_channels),
    };
    several_hosts = argc > 1 && strcmp(argv[1], "hosts") == 0;
    if (several_hosts || (argc > 1 && strcmp(argv[1], "processes") == 0)) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, stage_find_subjects, NULL);
}
