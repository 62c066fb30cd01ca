/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that low-latency calls post to a network, counted where its provider is called. A dispatch has one put for
 * each piece of messages to a rank that is not mapped. A combine has one for each piece of rows back, or of sums.
 * Besides these there is one for each such rank's message header; but where there is one piece, that and the header are
 * one put. The acknowledgement of a call goes with the header of the next. Rows are counted one by one. The end of a
 * buffer sends the last acknowledgement to each of these ranks once more: earlier operations are ordered, and are
 * confirmed by nothing else. Where all is mapped there is nothing to count. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/far/links.h"
#include "oracle/unit.h"
#include <expar/info.h>

enum { RANKS = 4, ROUNDS = 3 };

/* Rank 1 has no tokens. Rows are longer than what a transport stages, and shorter. */
static const ll_case short_rows = {.ranks = RANKS,
                                   .max_tokens = 9,
                                   .hidden = 64,
                                   .topk = 5,
                                   .experts = 16,
                                   .tokens = {9, 0, 7, 4},
                                   .seed = 11,
                                   .weights = true};

typedef struct counted {
    ll_case c;
    expar_ll_sum sum;
} counted;

/* Puts and atomics that went to the network, and the counts of links: messages that end with their flags,
   acknowledgements by themselves, and rows. */
typedef struct sent {
    uint64_t puts, atomics, messages, flags, rows;
} sent;

static sent look(const expar_group *group, const expar_ll *ll)
{
    const ll_cpu *cpu = (const ll_cpu *)ll->base.exec;
    expar_network_stats stats = EXPAR_NETWORK_STATS_INIT;
    CHECK_OK(expar_network_get_stats(group, &stats));
    const link_sent by_links = link_sent_of(cpu->links ? &cpu->links->counts : NULL);
    return (sent){.puts = stats.puts,
                  .atomics = stats.atomics,
                  .messages = by_links.messages,
                  .flags = by_links.flags,
                  .rows = by_links.rows};
}

/* Counts the slots of the source's token, or with `once` whether there is any, whose experts are on the rank. */
static uint64_t slots_on(const ll_case *c, int32_t source, int32_t token, int32_t rank, bool once)
{
    uint64_t slots = 0;
    for (int32_t k = 0; k < c->topk; k++) {
        const int32_t expert = case_expert(c, source, token, k);
        slots += expert >= 0 && expert / (c->experts / c->ranks) == rank;
    }
    return once ? slots > 0 : slots;
}

/* From one rank's tokens to another's experts. */
static uint64_t rows_of(const ll_case *c, int32_t source, int32_t rank, bool once)
{
    uint64_t rows = 0;
    for (int32_t t = 0; t < c->tokens[source]; t++)
        rows += slots_on(c, source, t, rank, once);
    return rows;
}

typedef struct expected {
    uint64_t far, there, back;      /* far ranks; messages to them; rows back to them */
    uint64_t puts_there, puts_back; /* that bring these, and message headers */
} expected;

/* The header goes with the only piece. */
static uint64_t puts_for(uint64_t rows)
{
    const uint64_t pieces = (rows + 7) / 8;
    return pieces == 1 ? 1 : pieces + 1;
}

static expected expect(const counted *what, const expar_ll *ll, int32_t rank)
{
    const ll_cpu *cpu = (const ll_cpu *)ll->base.exec;
    expected sum = {0};
    for (int32_t r = 0; r < RANKS; r++) {
        if (!ll_is_far(cpu, r)) continue;
        sum.far++;
        const uint64_t there = rows_of(&what->c, rank, r, true);
        const uint64_t back = rows_of(&what->c, r, rank, what->sum == EXPAR_LL_SUM_REDUCED);
        sum.there += there;
        sum.back += back;
        sum.puts_there += puts_for(there);
        sum.puts_back += puts_for(back);
    }
    return sum;
}

/* One piece may lie on two extents of the heap. Then its header goes by itself. It is two puts, and an atomic after
   them, maybe in the next call. */
static void compare(const char *call, sent before, sent now, uint64_t least, uint64_t rows)
{
    const uint64_t puts = now.puts - before.puts, atomics = now.atomics - before.atomics;
    const uint64_t by_links = now.messages - before.messages;
    CHECK(puts >= least && puts <= least + 2 && atomics <= 2, "%s: %llu puts and %llu atomics; expected %llu puts",
          call, (unsigned long long)puts, (unsigned long long)atomics, (unsigned long long)least);
    CHECK(by_links >= least && by_links <= least + 1 && now.flags == before.flags && now.rows - before.rows == rows,
          "%s: links counted %llu messages, %llu flags, %llu rows; expected %llu messages and %llu rows", call,
          (unsigned long long)by_links, (unsigned long long)(now.flags - before.flags),
          (unsigned long long)(now.rows - before.rows), (unsigned long long)least, (unsigned long long)rows);
}

static uint64_t puts_of(const expar_group *group)
{
    expar_network_stats stats = EXPAR_NETWORK_STATS_INIT;
    CHECK_OK(expar_network_get_stats(group, &stats));
    return stats.puts;
}

static void count_end(const expar_group *group, expar_ll *ll, uint64_t far)
{
    const uint64_t before = puts_of(group);
    CHECK_OK(expar_ll_destroy(ll));
    const uint64_t puts = puts_of(group) - before;
    CHECK(puts == far, "the end: %llu puts; expected one to each of %llu ranks", (unsigned long long)puts,
          (unsigned long long)far);
}

static void count_calls(expar_group *group, void *shared)
{
    const counted *what = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&what->c);
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    const expected due = expect(what, ll, rank);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        ll_round *round = round_make(&what->c, rank, i);
        const sent begin = look(group, ll);
        CHECK(round_dispatch(round, ll), "a dispatch");
        const sent middle = look(group, ll);
        compare("dispatch", begin, middle, due.puts_there, due.there);
        round_prepare_combine(round);
        CHECK(round_combine(round, ll), "a combine");
        compare("combine", middle, look(group, ll), due.puts_back, due.back);
        round_free(round);
    }
    count_end(group, ll, due.far);
}

/* All ranks on nodes of so many, each sum, rows short and long. */
static void count_on(int32_t ranks_per_node)
{
    for (int i = 0; i < 2; i++) {
        counted what = {.c = short_rows, .sum = i ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT};
        const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = ranks_per_node};
        what.c.sum = what.sum;
        if (i) what.c.hidden = 2048;
        assert_true(ranks_run(&plan, count_calls, &what));
    }
}

static void test_one_node(void **state)
{
    (void)state;
    count_on(RANKS);
}

static void test_two_nodes(void **state)
{
    (void)state;
    count_on(2);
}

static void test_nodes_of_one_rank(void **state)
{
    (void)state;
    count_on(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node),
        cmocka_unit_test(test_two_nodes),
        cmocka_unit_test(test_nodes_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
