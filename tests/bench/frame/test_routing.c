/* SPDX-License-Identifier: Apache-2.0 */
/* Routing generators: what each promises, for every token; and recorded routings. */
#include "bench/frame/routing.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int32_t *make(const char *name, const struct routing_shape *shape, uint64_t seed)
{
    char error[512] = "";
    struct routing_shape checked = *shape;
    assert_true(routing_check(name, &checked, error, sizeof error));
    int32_t *routing = routing_make(name, shape, seed, error, sizeof error);
    if (!routing) fail_msg("%s: %s", name, error);
    return routing;
}

static size_t entries(const struct routing_shape *shape)
{
    return (size_t)shape->num_ranks * (size_t)shape->tokens * (size_t)shape->topk;
}

static void assert_distinct_and_in_range(const int32_t *experts, const struct routing_shape *shape)
{
    for (int k = 0; k < shape->topk; k++) {
        assert_in_range(experts[k], 0, shape->experts - 1);
        for (int before = 0; before < k; before++)
            assert_int_not_equal(experts[k], experts[before]);
    }
}

static const struct routing_shape shapes[] = {
    {.num_ranks = 1, .tokens = 1, .topk = 1, .experts = 8},   {.num_ranks = 4, .tokens = 33, .topk = 8, .experts = 64},
    {.num_ranks = 8, .tokens = 100, .topk = 2, .experts = 8}, {.num_ranks = 2, .tokens = 50, .topk = 4, .experts = 8},
    {.num_ranks = 3, .tokens = 0, .topk = 4, .experts = 24},
};

static void experts_of_a_token_are_distinct(void **state)
{
    (void)state;
    static const char *const names[] = {"uniform", "zipf", "grouped"};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t n = 0; n < 3; n++) {
            int32_t *routing = make(names[n], &shapes[s], s + 7);
            for (size_t i = 0; i < entries(&shapes[s]); i += (size_t)shapes[s].topk)
                assert_distinct_and_in_range(routing + i, &shapes[s]);
            free(routing);
        }
}

/* Results of different versions are compared: the same seed goes on meaning the same routing. */
static void seeds_keep_their_meaning(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t experts[12];
    } kept[] = {{"uniform", {1, 13, 12, 5, 13, 8, 12, 3, 6, 0, 10, 9}},
                {"grouped", {9, 0, 8, 13, 6, 7, 9, 0, 5, 0, 1, 7}}};
    const struct routing_shape shape = {.num_ranks = 2, .tokens = 3, .topk = 4, .experts = 16};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        int32_t *routing = make(kept[i].name, &shape, 5);
        assert_memory_equal(routing, kept[i].experts, sizeof kept[i].experts);
        free(routing);
    }
}

static void all_of_the_experts_may_be_picked(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 2, .tokens = 20, .topk = 16, .experts = 16};
    int32_t *routing = make("zipf", &shape, 3);
    for (size_t i = 0; i < entries(&shape); i += 16)
        assert_distinct_and_in_range(routing + i, &shape);
    free(routing);
}

static void grouped_stays_in_four_of_eight_groups(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 4, .tokens = 200, .topk = 8, .experts = 64};
    int32_t *routing = make("grouped", &shape, 11);
    unsigned used = 0;
    for (size_t i = 0; i < entries(&shape); i += 8) {
        unsigned groups = 0;
        for (size_t k = 0; k < 8; k++)
            groups |= 1u << (routing[i + k] / 8);
        assert_true(__builtin_popcount(groups) <= 4);
        used |= groups;
    }
    assert_int_equal(used, 0xff);
    free(routing);
}

/* Counts the choices of each expert. The caller frees them. */
static int64_t *counts_of(const char *name, const struct routing_shape *shape, uint64_t seed)
{
    int64_t *counts = calloc((size_t)shape->experts, sizeof *counts);
    int32_t *routing = make(name, shape, seed);
    assert_non_null(counts);
    for (size_t i = 0; i < entries(shape); i += (size_t)shape->topk)
        assert_distinct_and_in_range(routing + i, shape);
    for (size_t i = 0; i < entries(shape); i++)
        counts[routing[i]]++;
    free(routing);
    return counts;
}

static int descending(const void *a, const void *b)
{
    const int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left < right) - (left > right);
}

/* Returns the share of the `hot` most chosen experts. */
static double share_of_most(const char *name, const struct routing_shape *shape, int hot)
{
    int64_t *counts = counts_of(name, shape, 3), most = 0;
    qsort(counts, (size_t)shape->experts, sizeof *counts, descending);
    for (int i = 0; i < hot; i++)
        most += counts[i];
    free(counts);
    return (double)most / (double)entries(shape);
}

static void zipf_takes_an_exponent(void **state)
{
    (void)state;
    const struct routing_shape shape = {.num_ranks = 4, .tokens = 2000, .topk = 2, .experts = 64};
    const double flat = share_of_most("zipf:0", &shape, 8), usual = share_of_most("zipf", &shape, 8),
                 steep = share_of_most("zipf:2", &shape, 8);
    assert_true(flat > 0.11 && flat < 0.16); /* 8 of 64, and some luck */
    assert_true(usual > flat + 0.2);
    assert_true(steep > usual + 0.1);
    int32_t *named = make("zipf:1", &shape, 3), *plain = make("zipf", &shape, 3);
    assert_memory_equal(named, plain, entries(&shape) * sizeof *plain);
    free(named);
    free(plain);
}

/* The hot experts get the share that was asked for; more choices than there are hot experts go elsewhere. */
static void incast_has_hot_experts(void **state)
{
    (void)state;
    const struct routing_shape shape = {.num_ranks = 4, .tokens = 2000, .topk = 8, .experts = 256};
    const double usual = share_of_most("incast", &shape, 32), given = share_of_most("incast:64,0.5", &shape, 64);
    assert_true(usual > 0.88 && usual < 0.92);
    assert_true(given > 0.48 && given < 0.52);
    assert_true(share_of_most("incast:1,1", &shape, 1) == 1.0 / 8);
    assert_true(share_of_most("incast:256,0", &shape, 256) == 1);
}

/* Rank 3 of 4, by the seed, gets RATIO times the choices of each other rank. */
static void skew_prefers_one_rank(void **state)
{
    (void)state;
    const struct routing_shape shape = {.num_ranks = 4, .tokens = 4000, .topk = 2, .experts = 64};
    int64_t *counts = counts_of("skew:4", &shape, 3), each[4] = {0};
    for (int e = 0; e < 64; e++)
        each[e / 16] += counts[e];
    for (int rank = 0; rank < 3; rank++) {
        const double ratio = (double)each[3] / (double)each[rank];
        assert_true(ratio > 3.7 && ratio < 4.3);
    }
    free(counts);
    /* Below 1 the rank has fewer than others, and with 0 none, as long as the others have experts enough. */
    counts = counts_of("skew:0.5", &shape, 3);
    int64_t here = 0, elsewhere = 0;
    for (int e = 0; e < 64; e++)
        *(e / 16 == 3 ? &here : &elsewhere) += counts[e];
    assert_in_range(1000 * here / elsewhere, 150, 185); /* 0.5 of a third */
    free(counts);
    counts = counts_of("skew:0", &shape, 3);
    for (int e = 48; e < 64; e++)
        assert_int_equal(counts[e], 0);
    free(counts);
    /* It has no more than 2 experts for the 4 choices. */
    const struct routing_shape few = {.num_ranks = 2, .tokens = 50, .topk = 4, .experts = 4};
    counts = counts_of("skew:1000", &few, 0);
    assert_int_equal(counts[0], 100);
    assert_int_equal(counts[3], 100);
    free(counts);
}

static void numbers_after_a_name_are_checked(void **state)
{
    (void)state;
    static const char *const known[] = {"zipf:0.5",   "zipf:16", "incast:1", "incast:32,1",
                                        "incast:4,0", "skew:0",  "skew:1.5"};
    static const char *const unknown[] = {
        "zipf:",     "zipf:-1",    "zipf:17",     "zipf:1,2", "uniform:1", "incast:0",    "incast:4,2",
        "incast:4,", "skew",       "skew:",       "skew:1,2", "skew:nan",  "incast:,0.5", "zipf:0x1",
        "onehot:3",  "zipf:1e999", "grouped:8,4", "skew:inf", "zip",       "zipf2"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(routing_is_known(known[i]));
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (routing_is_known(unknown[i])) fail_msg("'%s' is known", unknown[i]);
    struct routing_shape shape = {.num_ranks = 1, .topk = 2, .experts = 8};
    char error[512];
    assert_false(routing_check("skew:2", &shape, error, sizeof error));
    assert_non_null(strstr(error, "needs 2 ranks"));
    assert_false(routing_check("incast:9", &shape, error, sizeof error));
    assert_non_null(strstr(error, "from 1 to --experts 8"));
    assert_false(routing_check("incast:1.5", &shape, error, sizeof error));
}

static void onehot_goes_to_one_expert(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 4, .tokens = 20, .topk = 3, .experts = 8};
    int32_t *routing = make("onehot", &shape, 13);
    for (size_t i = 0; i < entries(&shape); i++)
        assert_int_equal(routing[i], i % 3 ? -1 : 13 % 8);
    free(routing);
}

static void zipf_is_skewed_and_uniform_is_not(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 8, .tokens = 500, .topk = 2, .experts = 32};
    static const char *const names[] = {"uniform", "zipf"};
    int most[2] = {0};
    for (int n = 0; n < 2; n++) {
        int count[32] = {0};
        int32_t *routing = make(names[n], &shape, 17);
        for (size_t i = 0; i < entries(&shape); i++)
            if (++count[routing[i]] > most[n]) most[n] = count[routing[i]];
        free(routing);
    }
    assert_true(most[0] < 350); /* 250 on average */
    assert_true(most[1] > 1000);
}

static void same_seed_same_routing(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 4, .tokens = 40, .topk = 4, .experts = 32}, longer = shape;
    longer.tokens = 60;
    int32_t *first = make("uniform", &shape, 5), *again = make("uniform", &shape, 5);
    int32_t *other = make("uniform", &shape, 6), *more = make("uniform", &longer, 5);
    assert_memory_equal(first, again, entries(&shape) * sizeof *first);
    assert_memory_not_equal(first, other, entries(&shape) * sizeof *first);
    assert_memory_equal(first + 3 * 40 * 4, more + 3 * 60 * 4, 40 * 4 * sizeof *first); /* rank 3 */
    free(first);
    free(again);
    free(other);
    free(more);
}

static void recorded_routing_is_used_row_by_row(void **state)
{
    (void)state;
    struct routing_shape shape = {.num_ranks = 4};
    char error[512] = "";
    if (!routing_check(RECORDED_ROUTING, &shape, error, sizeof error)) fail_msg("%s", error);
    assert_int_equal(shape.experts % 4, 0);
    shape.tokens = 70000; /* more than the file has: it starts again */
    int32_t *routing = make(RECORDED_ROUTING, &shape, 1);
    for (size_t i = 0; i < entries(&shape); i++)
        assert_in_range(routing[i], 0, shape.experts - 1);
    free(routing);
}

static void expect_rejection(const char *name, struct routing_shape shape, const char *part)
{
    char error[512] = "";
    assert_false(routing_check(name, &shape, error, sizeof error));
    if (!strstr(error, part)) fail_msg("%s: '%s' does not say '%s'", name, error, part);
}

static void impossible_routings_are_rejected(void **state)
{
    (void)state;
    expect_rejection("uniform", (struct routing_shape){.num_ranks = 1, .topk = 9, .experts = 8}, "--topk 9 is more");
    expect_rejection("grouped", (struct routing_shape){.num_ranks = 1, .topk = 1, .experts = 12}, "multiple of 8");
    expect_rejection("grouped", (struct routing_shape){.num_ranks = 1, .topk = 5, .experts = 8},
                     "--topk 5 is too many");
    expect_rejection(RECORDED_ROUTING, (struct routing_shape){.num_ranks = 1, .topk = 77}, "--topk says 77");
    expect_rejection(RECORDED_ROUTING, (struct routing_shape){.num_ranks = 1, .experts = 2}, "is no expert of 2");
    expect_rejection("absent.npy", (struct routing_shape){.num_ranks = 1}, "cannot be opened");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_a_token_are_distinct),
        cmocka_unit_test(all_of_the_experts_may_be_picked),
        cmocka_unit_test(grouped_stays_in_four_of_eight_groups),
        cmocka_unit_test(zipf_takes_an_exponent),
        cmocka_unit_test(incast_has_hot_experts),
        cmocka_unit_test(skew_prefers_one_rank),
        cmocka_unit_test(numbers_after_a_name_are_checked),
        cmocka_unit_test(onehot_goes_to_one_expert),
        cmocka_unit_test(zipf_is_skewed_and_uniform_is_not),
        cmocka_unit_test(same_seed_same_routing),
        cmocka_unit_test(seeds_keep_their_meaning),

        cmocka_unit_test(recorded_routing_is_used_row_by_row),
        cmocka_unit_test(impossible_routings_are_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
