/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks on two hosts whose network is slow, loses segments, or is cut: the bytes are right, or an
 * error names a rank. */
#include "netns/stage.h"
#include "shmem/kind.h"

#include <stdio.h>

#define LARGEST_BYTES ((size_t)300000)
#define HELD_ROUND    3 /* of a test that is disturbed in the middle */
#define SILENCE_MS    1500

/* In every rank's heap. */
typedef struct words {
    uint64_t signal; /* raised by the rank before this one, once a round */
    uint64_t total;  /* rank 0's: what all have added */
    uint64_t data[1024];
    uint8_t bytes[LARGEST_BYTES]; /* from the rank before this one */
} words;

static uint8_t pattern(int32_t rank, int round, size_t i)
{
    return (uint8_t)(i * 7 + (size_t)rank * 31 + (size_t)round * 57 + (i >> 8));
}

static bool is_pattern(const uint8_t *bytes, size_t count, int32_t rank, int round)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != pattern(rank, round, i)) return false;
    return true;
}

/* One round of a ring: bytes to the next rank with a signal after them, those of the rank before, bytes got back, and
 * an atomic. */
static void go_round(expar_group *group, words *w, uint8_t *local, int round)
{
    static const size_t sizes[] = {8, 4097, 70000, LARGEST_BYTES};
    int32_t next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    size_t count = sizes[(size_t)round % ARRAY_LENGTH(sizes)];
    for (size_t i = 0; i < count; i++)
        local[i] = pattern(group->rank, round, i);
    CHECK_OK(expar_put_signal(group, w->bytes, local, count, &w->signal, 1, EXPAR_SIGNAL_ADD, next));
    CHECK_OK(expar_signal_wait_until(group, &w->signal, EXPAR_CMP_GE, (uint64_t)round + 1, NULL));
    CHECK(is_pattern(w->bytes, count, before, round), "round %d: %zu bytes from rank %d", round, count, before);
    CHECK_OK(expar_quiet(group));
    memset(local, 0, count);
    CHECK_OK(expar_get(group, local, w->bytes, count, next));
    CHECK(is_pattern(local, count, group->rank, round), "round %d: %zu bytes got from rank %d", round, count, next);
    CHECK_OK(expar_atomic_add_u64(group, &w->total, (uint64_t)round + 1, 0));
    CHECK_OK(expar_barrier_all(group));
}

static void traffic(expar_group *group, void *shared)
{
    stage *s = shared;
    words *w;
    uint64_t total = 0;
    uint8_t *local = malloc(LARGEST_BYTES);
    CHECK_OK(expar_calloc(group, 1, sizeof *w, (void **)&w));
    for (int round = 0; round < s->number && check_failures() == 0; round++) {
        if (group->rank == 0 && round == HELD_ROUND) stage_hold(s);
        go_round(group, w, local, round);
        atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
    }
    CHECK_OK(expar_atomic_fetch_u64(group, &w->total, 0, &total));
    CHECK(total == (uint64_t)(group->size * s->number * (s->number + 1) / 2), "%llu were added",
          (unsigned long long)total);
    free(local);
}

static void run_traffic(stage *s, int32_t size, int rounds)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = size, .ranks_per_node = size % 2 == 0 ? 0 : 1};
    stage_ranks ranks;
    s->number = rounds;
    stage_start(s, &plan, traffic, &ranks);
    stage_finish(&ranks);
}

/* ---- a poor network ---------------------------------------------------------------------------------------------- */

static void test_as_it_is(void **state)
{
    run_traffic(*state, 2, 8);
    run_traffic(*state, 3, 8);
}

static void test_slow(void **state)
{
    stage *s = *state;
    for (int host = 0; host < 2; host++)
        assert_true(
            netns_command(&s->net, host, "tc qdisc add dev net0 root tbf rate 100mbit burst 32kb latency 20ms"));
    run_traffic(s, 4, 8);
    assert_true(netns_command(&s->net, 0, "tc -s qdisc show dev net0 | grep -q 'overlimits [1-9]'"));
}

#define LONG_BYTES ((size_t)64 << 20)

/* One put that takes longer than the time-out while its bytes flow all the time: nobody is silent. */
static void put_for_long(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *there, *here = malloc(LONG_BYTES), tail[4096];
    CHECK_OK(expar_malloc(group, LONG_BYTES, (void **)&there));
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0) {
        kind_set_timeout(group, 4000);
        for (size_t i = 0; i < LONG_BYTES; i++)
            here[i] = pattern(0, 0, i);
        CHECK_OK(expar_put(group, there, here, LONG_BYTES, 1));
        CHECK_OK(expar_quiet(group));
        CHECK_OK(expar_get(group, tail, there + LONG_BYTES - sizeof tail, sizeof tail, 1));
        CHECK(memcmp(tail, here + LONG_BYTES - sizeof tail, sizeof tail) == 0, "the end is not right");
        kind_set_timeout(group, 60000);
    }
    CHECK_OK(expar_group_barrier(group));
    CHECK(group->rank == 0 || is_pattern(there, LONG_BYTES, 0, 0), "what came is not right");
    free(here);
}

static void test_long_put(void **state)
{
    stage *s = *state;
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2, .heap_bytes = 2 * LONG_BYTES};
    stage_ranks ranks;
    assert_true(netns_command(&s->net, 0, "tc qdisc add dev net0 root tbf rate 100mbit burst 64kb latency 20ms"));
    stage_start(s, &plan, put_for_long, &ranks);
    stage_finish(&ranks);
}

/* Every 29th segment that a host would receive is lost. */
static void test_lossy(void **state)
{
    stage *s = *state;
    for (int host = 0; host < 2; host++)
        assert_true(
            netns_command(&s->net, host,
                          "nft 'add table ip t; add chain ip t in { type filter hook input priority 0; }; "
                          "add rule ip t in iifname net0 ip protocol tcp numgen inc mod 29 == 28 counter drop'"));
    run_traffic(s, 2, 8);
    for (int host = 0; host < 2; host++)
        assert_true(netns_command(&s->net, host, "nft list table ip t | grep -q 'packets [1-9]'"));
}

/* The cable is pulled and put back in the middle: no round ends meanwhile, since rank 0 begins the next one after it
   has been pulled. */
static void test_interrupted(void **state)
{
    stage *s = *state;
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2};
    stage_ranks ranks;
    s->number = 30;
    atomic_store(&s->held, true);
    stage_start(s, &plan, traffic, &ranks);
    stage_await(&s->steps, plan.size * HELD_ROUND);
    assert_true(netns_command(&s->net, 1, "ip link set net0 down"));
    atomic_store(&s->held, false);
    assert_true(netns_command(&s->net, 1, "sleep 0.3"));
    assert_int_equal(atomic_load(&s->steps), plan.size * HELD_ROUND);
    assert_true(netns_command(&s->net, 1, "ip link set net0 up"));
    stage_finish(&ranks);
}

/* ---- the cable is cut -------------------------------------------------------------------------------------------- */

typedef enum cut_in { CUT_PUT, CUT_BARRIER, CUT_WAIT, CUTS } cut_in;

/* A rank of the other host. */
static int32_t far_rank(const expar_group *group)
{
    return netns_host_of(group->rank, group->size, 0) == 0 ? group->size - 1 : 0;
}

static expar_status make_step(expar_group *group, const stage *s, words *w)
{
    expar_status status = EXPAR_OK;
    switch ((cut_in)s->number) {
    case CUT_PUT:
        status = expar_put(group, w->data, w->data, sizeof w->data, far_rank(group));
        return status == EXPAR_OK ? expar_quiet(group) : status;
    case CUT_WAIT:
        return expar_signal_wait_until(group, &w->signal, EXPAR_CMP_EQ, 1, NULL); /* it never comes */
    case CUT_BARRIER:
    case CUTS:
        break;
    }
    return expar_barrier_all(group);
}

static void arm(expar_group *group, stage *s)
{
    kind_set_timeout(group, SILENCE_MS);
    atomic_fetch_add_explicit(&s->armed, 1, memory_order_relaxed);
}

/* The short time-out counts from the fiftieth step on. A delayed rank may then be taken for lost before the cable is
   cut. The others arm as well when they hear of that, and fail with the error that the test expects. */
static expar_status fail_in(expar_group *group, stage *s, words *w)
{
    expar_status status = EXPAR_OK;
    bool armed = s->number == CUT_WAIT;
    if (armed) arm(group, s);
    while (status == EXPAR_OK) {
        status = make_step(group, s, w);
        int32_t steps = 1 + atomic_fetch_add_explicit(&s->steps, 1, memory_order_relaxed);
        if (!armed && (steps >= 50 * group->size || status != EXPAR_OK)) {
            arm(group, s);
            armed = true;
        }
    }
    return status;
}

/* The ranks of one host still reach each other. Nobody leaves before all have. */
static void reach_neighbour(expar_group *group, words *w)
{
    int32_t neighbour = -1, host = netns_host_of(group->rank, group->size, 0);
    uint64_t sent = 1000 + (uint64_t)group->rank, back = 0;
    for (int32_t r = 0; r < group->size; r++)
        if (r != group->rank && netns_host_of(r, group->size, 0) == host) neighbour = r;
    if (neighbour < 0) return;
    kind_set_timeout(group, RANKS_TIMEOUT_MS);
    CHECK_OK(expar_put(group, &w->data[group->rank], &sent, sizeof sent, neighbour));
    CHECK_OK(expar_get(group, &back, &w->data[group->rank], sizeof back, neighbour));
    CHECK(back == sent, "%llu came back from rank %d", (unsigned long long)back, neighbour);
    CHECK_OK(expar_atomic_fetch_add_u64(group, &w->total, 1, neighbour, &back));
}

static void cut(expar_group *group, void *shared)
{
    stage *s = shared;
    words *w;
    char far[24];
    CHECK_OK(expar_calloc(group, 1, sizeof *w, (void **)&w));
    CHECK_OK(expar_group_barrier(group));
    CHECK_STATUS(EXPAR_ERR_PEER, fail_in(group, s, w));
    snprintf(far, sizeof far, "rank %d", far_rank(group));
    if (s->number == CUT_PUT) CHECK_TEXT(far);
    if (s->number == CUT_BARRIER) CHECK_TEXT("rank");
    if (s->number == CUT_PUT) {
        reach_neighbour(group, w);
        CHECK(stage_part(s, group->size), "some rank does not get there");
    }
    kind_set_timeout(group, 200); /* leaving waits for those who cannot hear */
}

static void cut_while(stage *s, cut_in where, int32_t size)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = size, .heap_bytes = (size_t)4 << 20};
    plan.ranks_per_node = size % 2 == 0 ? 0 : 1;
    stage_ranks ranks;
    s->number = where;
    stage_start(s, &plan, cut, &ranks);
    stage_await(&s->armed, size);
    int64_t start_ms = ranks_clock_ms();
    assert_true(netns_command(&s->net, 1, "ip link set net0 down"));
    stage_finish(&ranks);
    print_message("cut %d with %d ranks: all had their error and had left after %lld ms\n", (int)where, (int)size,
                  (long long)(ranks_clock_ms() - start_ms));
}

static void test_cut_put(void **state)
{
    cut_while(*state, CUT_PUT, 4);
}

static void test_cut_one_alone(void **state)
{
    cut_while(*state, CUT_PUT, 3);
}

static void test_cut_barrier(void **state)
{
    cut_while(*state, CUT_BARRIER, 3);
}

static void test_cut_wait(void **state)
{
    cut_while(*state, CUT_WAIT, 2);
}

#define ON_A_NETWORK(test) cmocka_unit_test_setup_teardown(test, stage_set_up, stage_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_NETWORK(test_as_it_is),      ON_A_NETWORK(test_slow),        ON_A_NETWORK(test_long_put),
        ON_A_NETWORK(test_lossy),         ON_A_NETWORK(test_interrupted), ON_A_NETWORK(test_cut_put),
        ON_A_NETWORK(test_cut_one_alone), ON_A_NETWORK(test_cut_barrier), ON_A_NETWORK(test_cut_wait),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
