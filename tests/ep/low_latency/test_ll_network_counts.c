/* SPDX-License-Identifier: Apache-2.0 */
/* What low-latency calls hand to a network, counted where its provider is called: of a dispatch one put for each token
 * and rank that is not mapped, of a combine one for each row back, or each sum, and besides these one for each such
 * rank's opening unit. Where all is mapped there is nothing to count. */
#include "ep/check.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "ep/ranks.h"
#include "exec/cpu/low_latency/far.h"
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

/* Puts that went to the network, and what links counted: messages with their flags, and read words. */
typedef struct sent {
    uint64_t puts, messages, flags;
} sent;

static sent look(const expar_group *group, const expar_ll *ll)
{
    const ll_cpu *cpu = (const ll_cpu *)ll->exec;
    expar_network_stats stats = EXPAR_NETWORK_STATS_INIT;
    CHECK_OK(expar_network_get_stats(group, &stats));
    return (sent){.puts = stats.puts,
                  .messages = cpu->far ? cpu->far->counts.messages : 0,
                  .flags = cpu->far ? cpu->far->counts.flags : 0};
}

/* Of the source's token: slots, or with `once` whether any, whose experts are on the rank. */
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
    uint64_t far, there, back; /* far ranks; messages to them; rows back to them */
} expected;

static expected expect(const counted *what, const expar_ll *ll, int32_t rank)
{
    const ll_cpu *cpu = (const ll_cpu *)ll->exec;
    expected sum = {0};
    for (int32_t r = 0; r < RANKS; r++) {
        if (!ll_is_far(cpu, r)) continue;
        sum.far++;
        sum.there += rows_of(&what->c, rank, r, true);
        sum.back += rows_of(&what->c, r, rank, what->sum == EXPAR_LL_REDUCED);
    }
    return sum;
}

static void compare(const char *call, sent before, sent now, uint64_t messages, uint64_t far)
{
    const uint64_t puts = now.puts - before.puts, by_links = now.messages - before.messages;
    CHECK(puts == messages + far, "%s: %llu puts; expected %llu messages and %llu units", call,
          (unsigned long long)puts, (unsigned long long)messages, (unsigned long long)far);
    CHECK(by_links == messages + far && now.flags - before.flags == far, "%s: links counted %llu messages, %llu flags",
          call, (unsigned long long)by_links, (unsigned long long)(now.flags - before.flags));
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
        compare("dispatch", begin, middle, due.there, due.far);
        round_prepare_combine(round);
        CHECK(round_combine(round, ll), "a combine");
        compare("combine", middle, look(group, ll), due.back, due.far);
        round_free(round);
    }
    CHECK_OK(expar_ll_destroy(ll));
}

/* All ranks on nodes of so many, each sum, rows short and long. */
static void count_on(int32_t ranks_per_node)
{
    for (int i = 0; i < 2; i++) {
        counted what = {.c = short_rows, .sum = i ? EXPAR_LL_REDUCED : EXPAR_LL_EXACT};
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
