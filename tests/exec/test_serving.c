/* SPDX-License-Identifier: Apache-2.0 */
/* In which order ranks are served: each of them once, whatever the order; and how a serving is written. */
#include "exec/executor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int32_t served(ep_order order, int32_t rank, int32_t ranks, int64_t token, int32_t number)
{
    const ep_serving serving = {.order = (int32_t)order};
    return ep_served(&serving, rank, ranks, token, number);
}

static void each_rank_is_served_once(void **state)
{
    (void)state;
    static const int64_t tokens[] = {0, 1, 2, 4095, INT64_C(0xffffffff)};
    for (int32_t order = EP_ORDER_ASCENDING; order <= EP_ORDER_SPREAD; order++)
        for (int32_t ranks = 1; ranks <= 40; ranks++)
            for (int32_t rank = 0; rank < ranks; rank++)
                for (size_t t = 0; t < ARRAY_LENGTH(tokens); t++) {
                    uint64_t seen = 0;
                    for (int32_t number = 0; number < ranks; number++)
                        seen |= UINT64_C(1) << served((ep_order)order, rank, ranks, tokens[t], number);
                    assert_true(seen == (UINT64_C(1) << ranks) - 1);
                }
}

/* With rotated orders no two ranks serve the same one at a time. */
static void ranks_begin_with_others(void **state)
{
    (void)state;
    const int32_t rotated[] = {3, 0, 1, 2}, own_first[] = {2, 3, 0, 1};
    for (int32_t number = 0; number < 4; number++) {
        assert_int_equal(served(EP_ORDER_ASCENDING, 2, 4, 7, number), number);
        assert_int_equal(served(EP_ORDER_ROTATED, 2, 4, 7, number), rotated[number]);
        assert_int_equal(served(EP_ORDER_OWN_FIRST, 2, 4, 7, number), own_first[number]);
    }
    assert_int_equal(served(EP_ORDER_SPREAD, 2, 4, 6, 0), 3);
    assert_int_equal(served(EP_ORDER_SPREAD, 2, 4, 7, 0), 0);
    assert_int_equal(served(EP_ORDER_SPREAD, 2, 4, 7, 3), 2);
}

static void servings_are_read(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",           "rotate",       "rotated/",       "rotated/x", "rotated/-1",
                                        "rotated/1/", "rotated/1/32", "spread/1048577", "spread/ 1", "rotated/1/2/3"};
    ep_serving serving = {0};
    assert_true(exec_serving_read("ascending", &serving));
    assert_int_equal(serving.order, EP_ORDER_ASCENDING);
    assert_true(exec_serving_read("own_first", &serving));
    assert_int_equal(serving.order, EP_ORDER_OWN_FIRST);
    assert_true(exec_serving_read("rotated/120", &serving));
    assert_int_equal(serving.order, EP_ORDER_ROTATED);
    assert_int_equal(serving.rows, 120);
    assert_int_equal(serving.own_warps, 0);
    assert_true(exec_serving_read("spread/0/3", &serving));
    assert_int_equal(serving.rows, 0);
    assert_int_equal(serving.own_warps, 3);
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++)
        assert_false(exec_serving_read(wrong[i], &serving));
    assert_int_equal(serving.order, EP_ORDER_SPREAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_is_served_once),
        cmocka_unit_test(ranks_begin_with_others),
        cmocka_unit_test(servings_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
