/* SPDX-License-Identifier: Apache-2.0 */
/* The routing generators: in range, distinct where they promise it, shaped as their names say, replayable. */
#include "oracle/routings.h"
#include "oracle/unit.h"
#include <string.h>

#define TOKENS  2000
#define TOPK    8
#define EXPERTS 64

static int64_t idx[TOKENS * TOPK], again[TOKENS * TOPK];

static void count_load(const int64_t *experts, int32_t load[EXPERTS])
{
    memset(load, 0, EXPERTS * sizeof *load);
    for (int i = 0; i < TOKENS * TOPK; i++) {
        assert_in_range(experts[i], 0, EXPERTS - 1);
        load[experts[i]]++;
    }
}

static int32_t largest_load(routing_kind kind)
{
    int32_t load[EXPERTS], largest = 0;
    random_source random = random_start(7);
    routing_fill(kind, &random, TOKENS, TOPK, EXPERTS, idx);
    count_load(idx, load);
    for (int e = 0; e < EXPERTS; e++)
        largest = load[e] > largest ? load[e] : largest;
    return largest;
}

static void assert_distinct(const int64_t *experts)
{
    for (int i = 0; i < TOPK; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(experts[i], experts[j]);
}

static void test_same_seed_same_routing(void **state)
{
    (void)state;
    for (routing_kind kind = 0; kind < ROUTING_KINDS; kind++) {
        random_source first = random_start(11), second = random_start(11);
        routing_fill(kind, &first, TOKENS, TOPK, EXPERTS, idx);
        routing_disturb(&first, 10, TOKENS, TOPK, idx);
        routing_fill(kind, &second, TOKENS, TOPK, EXPERTS, again);
        routing_disturb(&second, 10, TOKENS, TOPK, again);
        assert_memory_equal(idx, again, sizeof idx);
    }
}

static void test_uniform_is_even_and_distinct(void **state)
{
    (void)state;
    assert_in_range(largest_load(ROUTING_UNIFORM), 250, 330);
    for (int t = 0; t < TOKENS; t++)
        assert_distinct(idx + (ptrdiff_t)t * TOPK);
}

static void test_zipf_is_skewed_and_distinct(void **state)
{
    (void)state;
    assert_in_range(largest_load(ROUTING_ZIPF), 1000, TOKENS);
    for (int t = 0; t < TOKENS; t++)
        assert_distinct(idx + (ptrdiff_t)t * TOPK);
}

static void test_grouped_keeps_to_four_groups(void **state)
{
    (void)state;
    assert_in_range(largest_load(ROUTING_GROUPED), 250, 350);
    for (int t = 0; t < TOKENS; t++) {
        unsigned groups = 0;
        for (int k = 0; k < TOPK; k++)
            groups |= 1u << idx[t * TOPK + k] / (EXPERTS / 8);
        assert_in_range(__builtin_popcount(groups), 1, 4);
        assert_distinct(idx + (ptrdiff_t)t * TOPK);
    }
}

static void test_one_hot_is_one_expert(void **state)
{
    (void)state;
    assert_int_equal(largest_load(ROUTING_ONE_HOT), TOKENS * TOPK);
}

static void test_recorded_is_as_recorded(void **state)
{
    (void)state;
    const int16_t *recorded = routing_recorded();
    random_source random = random_start(3), same = random_start(3);
    int64_t start = random_between(&same, 0, ROUTING_RECORDED_TOKENS - 1);
    int64_t layer = random_between(&same, 0, ROUTING_RECORDED_LAYERS - 1);
    routing_fill(ROUTING_RECORDED, &random, 1, ROUTING_RECORDED_TOPK, ROUTING_RECORDED_EXPERTS, idx);
    for (int k = 0; k < ROUTING_RECORDED_TOPK; k++)
        assert_int_equal(idx[k], recorded[(layer * ROUTING_RECORDED_TOKENS + start) * ROUTING_RECORDED_TOPK + k]);
}

static void test_more_slots_than_experts(void **state)
{
    (void)state;
    for (routing_kind kind = 0; kind < ROUTING_NOWHERE; kind++) {
        random_source random = random_start(5);
        routing_fill(kind, &random, 10, 16, 3, idx);
        for (int i = 0; i < 10 * 16; i++)
            assert_in_range(idx[i], 0, 2);
    }
}

static void test_disturb_makes_holes_and_duplicates(void **state)
{
    (void)state;
    random_source random = random_start(9);
    int holes = 0, duplicates = 0;
    routing_fill(ROUTING_UNIFORM, &random, TOKENS, TOPK, EXPERTS, idx);
    routing_disturb(&random, 10, TOKENS, TOPK, idx);
    for (int i = 0; i < TOKENS * TOPK; i++) {
        holes += idx[i] == -1;
        for (int j = i - i % TOPK; j < i; j++)
            duplicates += idx[i] >= 0 && idx[i] == idx[j];
    }
    assert_in_range(holes, TOKENS * TOPK / 15, TOKENS * TOPK / 5);
    assert_in_range(duplicates, TOKENS * TOPK / 30, TOKENS * TOPK / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_routing),      cmocka_unit_test(test_uniform_is_even_and_distinct),
        cmocka_unit_test(test_zipf_is_skewed_and_distinct), cmocka_unit_test(test_grouped_keeps_to_four_groups),
        cmocka_unit_test(test_one_hot_is_one_expert),       cmocka_unit_test(test_recorded_is_as_recorded),
        cmocka_unit_test(test_more_slots_than_experts),     cmocka_unit_test(test_disturb_makes_holes_and_duplicates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
