/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine of low-latency mode: shapes at their edges, memory of the caller's or the library's, many rounds
 * on one buffer, against what formulas say. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/reach.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

#define ROUNDS 6

static void trial_rounds(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(c);
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    expar_ll *ll = NULL;
    bool good = CHECK_OK(expar_ll_create(group, &config, &ll));
    for (uint32_t i = 0; i < ROUNDS && good; i++) {
        ll_round *round = round_make(c, rank, i);
        good = round_dispatch(round, ll);
        if (good) round_prepare_combine(round);
        /* A handle serves several combines. */
        for (uint32_t again = 0; again < 1 + i % 2 && good; again++) {
            expar_ep_output_release(round->combined.output);
            round->combined.output = NULL;
            good = round_combine(round, ll);
        }
        round_free(round);
    }
    if (good) {
        CHECK_OK(expar_ll_get_stats(ll, &stats));
        CHECK(stats.dispatches == ROUNDS && stats.combines == ROUNDS + ROUNDS / 2, "calls are counted");
    }
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void run(ll_case c, ranks_body body)
{
    const ranks_plan plan = {.kind = kind, .size = c.ranks, .ranks_per_node = reach_ranks_per_node(c.ranks)};
    assert_true(ranks_run(&plan, body, &c));
}

#define EXAMPLE                                                                                                        \
    {                                                                                                                  \
        .ranks = 3, .max_tokens = 6, .hidden = 24, .topk = 4, .experts = 12, .tokens = {6, 2, 5}, .seed = 3            \
    }

static void test_one_rank(void **state)
{
    (void)state;
    run((ll_case){.ranks = 1, .max_tokens = 5, .hidden = 8, .topk = 2, .experts = 4, .tokens = {5}}, trial_rounds);
}

static void test_uneven_tokens(void **state)
{
    (void)state;
    run((ll_case)EXAMPLE, trial_rounds);
}

static void test_no_tokens(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.tokens[0] = c.tokens[1] = c.tokens[2] = 0;
    run(c, trial_rounds);
    c.tokens[1] = 6;
    run(c, trial_rounds);
}

static void test_one_token_between_two(void **state)
{
    (void)state;
    run((ll_case){.ranks = 2, .max_tokens = 1, .hidden = 1024, .topk = 8, .experts = 16, .tokens = {1, 1}},
        trial_rounds);
}

static void test_wide_idx_weights_and_lent_memory(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.wide_idx = c.weights = c.lend = true;
    run(c, trial_rounds);
}

static void test_reduced_sums(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.sum = EXPAR_LL_SUM_REDUCED;
    c.weights = true;
    run(c, trial_rounds);
    c.topk = 2; /* fewer than ranks, so that places are too */
    run(c, trial_rounds);
}

/* The dispatch had none: they go ahead of the rows. */
static void test_reduced_sums_without_weights(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.sum = EXPAR_LL_SUM_REDUCED;
    run(c, trial_rounds);
    run((ll_case){.ranks = 1, .max_tokens = 5, .hidden = 8, .topk = 2, .experts = 4, .tokens = {5}, .sum = c.sum},
        trial_rounds);
}

/* Dispatches alone: rows as the codec makes them. */
static void trial_format(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    bool good = CHECK_OK(expar_ll_create(group, &config, &ll));
    for (uint32_t i = 0; i < 4 && good; i++) {
        ll_round *round = round_make(c, expar_group_rank(group), i);
        round->dispatch.hook = i % 2 == 1;
        good = round_dispatch(round, ll) && (!round->dispatch.hook || round_dispatch_hook(round));
        round_free(round);
    }
    if (good) CHECK_OK(expar_ll_destroy(ll));
}

static void test_formats(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.hidden = 640; /* five groups: a second word of exponents */
    for (int format = EXPAR_LL_FORMAT_FP8; format <= EXPAR_LL_FORMAT_INT8; format++) {
        c.format = (expar_ll_format)format;
        run(c, trial_format);
    }
}

static void test_logfmt(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    c.hidden = 256;
    c.logfmt = true;
    run(c, trial_rounds);
}

/* Rows of an odd number of groups. On a GPU whose blocks have several messages, or one, no warp then has a group for
   each of its lanes, or more. Also tokens whose rows are no power of two. */
static void test_logfmt_long_rows(void **state)
{
    (void)state;
    ll_case c = {.ranks = 1, .max_tokens = 3, .hidden = 128 * 71, .topk = 8, .experts = 8, .tokens = {3}};
    c.logfmt = true;
    for (c.sms = 1; c.sms < 6; c.sms += 2)
        run(c, trial_rounds);
    c = (ll_case){.ranks = 1, .max_tokens = 40, .hidden = 128, .topk = 8, .experts = 8, .tokens = {40}};
    c.logfmt = true;
    c.sms = 1; /* 320 rows of one block */
    run(c, trial_rounds);
    c = (ll_case){.ranks = 2, .max_tokens = 5, .hidden = 128 * 13, .topk = 11, .experts = 24, .tokens = {5, 2}};
    c.logfmt = true;
    c.sms = 2;
    run(c, trial_rounds);
}

static void test_top_32(void **state)
{
    (void)state;
    run((ll_case){.ranks = 4, .max_tokens = 9, .hidden = 40, .topk = 32, .experts = 64, .tokens = {9, 0, 3, 8}},
        trial_rounds);
}

/* More than there are top-k, so that a token's ranks are few of all; one has no tokens, one all that it may have. */
static void test_many_ranks(void **state)
{
    (void)state;
    ll_case c = {.ranks = 18, .max_tokens = 3, .hidden = 16, .topk = 5, .experts = 36, .seed = 8, .weights = true};
    for (int32_t r = 0; r < c.ranks; r++)
        c.tokens[r] = r % (c.max_tokens + 1);
    run(c, trial_rounds);
    c.sum = EXPAR_LL_SUM_REDUCED;
    run(c, trial_rounds);
}

/* On GPUs at most 16 tokens go in words, more by flags, and rows of exact combines of at most 4; ranks of one call may
   differ. */
static void test_small_batches_beside_others(void **state)
{
    (void)state;
    ll_case c = {.ranks = 3, .max_tokens = 18, .hidden = 128, .topk = 4, .experts = 6, .tokens = {16, 17, 3}};
    c.seed = 16;
    c.weights = true;
    run(c, trial_rounds);
    c.sum = EXPAR_LL_SUM_REDUCED;
    run(c, trial_rounds);
    const int32_t fewer[] = {4, 5, 3};
    memcpy(c.tokens, fewer, sizeof fewer);
    c.sum = EXPAR_LL_SUM_EXACT;
    run(c, trial_rounds);
}

static void test_rows_beyond_the_cache(void **state)
{
    (void)state;
    run((ll_case){.ranks = 2, .max_tokens = 40, .hidden = 4096, .topk = 4, .experts = 8, .tokens = {40, 33}},
        trial_rounds);
    /* More than 32 MiB of messages, rows and places: they go past it. */
    run((ll_case){.ranks = 4,
                  .max_tokens = 20,
                  .hidden = 32768,
                  .topk = 8,
                  .experts = 16,
                  .tokens = {20, 20, 20, 19},
                  .threads = 3},
        trial_rounds);
}

/* One message for each token and rank that has experts of it, and one row back for each slot. */
static void trial_counts(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    const int32_t rank = expar_group_rank(group), locals = c->experts / c->ranks;
    const expar_ll_config config = case_config(c);
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    expar_ll *ll = NULL;
    uint64_t messages = 0, rows = 0, bytes = 0, before = 0;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    ll_round *round = round_make(c, rank, 0);
    if (round_dispatch(round, ll)) {
        CHECK_OK(expar_ll_get_stats(ll, &stats));
        before = stats.bytes_sent;
        round_prepare_combine(round);
        round_combine(round, ll);
    }
    for (int32_t t = 0; t < c->tokens[rank]; t++)
        for (int32_t r = 0; r < c->ranks; r++) {
            bool goes = false;
            for (int32_t k = 0; k < c->topk; k++)
                goes = goes || (case_expert(c, rank, t, k) >= 0 && case_expert(c, rank, t, k) / locals == r);
            messages += goes;
        }
    for (int32_t s = 0; s < c->ranks; s++)
        for (int32_t t = 0; t < c->tokens[s]; t++)
            for (int32_t k = 0; k < c->topk; k++) {
                const int32_t expert = case_expert(c, s, t, k);
                if (expert < 0 || expert / locals != rank) continue;
                rows++;
                bytes += c->logfmt ? (uint64_t)case_coded_bytes(c, 0, s, t, expert) : 4 * (uint64_t)c->hidden;
            }
    CHECK_OK(expar_ll_get_stats(ll, &stats));
    CHECK(stats.dispatch_messages == messages, "%llu messages, not %llu", (unsigned long long)stats.dispatch_messages,
          (unsigned long long)messages);
    CHECK(stats.combine_rows == rows, "%llu rows, not %llu", (unsigned long long)stats.combine_rows,
          (unsigned long long)rows);
    CHECK(stats.bytes_sent - before == bytes, "%llu bytes, not %llu", (unsigned long long)(stats.bytes_sent - before),
          (unsigned long long)bytes);
    round_free(round);
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_counts(void **state)
{
    (void)state;
    ll_case c = EXAMPLE;
    run(c, trial_counts);
    c.hidden = 128 * 5;
    c.logfmt = true;
    run(c, trial_counts);
    c.sms = 2; /* on a GPU more messages than blocks */
    run(c, trial_counts);
}

/* By the formula: N 8, B 128, H 7168, K 8 take less than 0.1 GB. */
static void test_buffer_size(void **state)
{
    (void)state;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    size_t bytes = 0;
    config.max_tokens = 128;
    config.hidden = 7168;
    config.max_topk = 8;
    config.num_experts = 64;
    assert_int_equal(expar_ll_get_buffer_size(&config, 8, &bytes), EXPAR_OK);
    assert_true(bytes > 50000000 && bytes < 100000000);
    config.num_experts = 63;
    assert_int_equal(expar_ll_get_buffer_size(&config, 8, &bytes), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "num_experts is 63"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_uneven_tokens),
        cmocka_unit_test(test_no_tokens),
        cmocka_unit_test(test_one_token_between_two),
        cmocka_unit_test(test_wide_idx_weights_and_lent_memory),
        cmocka_unit_test(test_reduced_sums),
        cmocka_unit_test(test_reduced_sums_without_weights),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_logfmt),
        cmocka_unit_test(test_logfmt_long_rows),
        cmocka_unit_test(test_top_32),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_small_batches_beside_others),
        cmocka_unit_test(test_rows_beyond_the_cache),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_buffer_size),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
