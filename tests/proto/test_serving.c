/* SPDX-License-Identifier: Apache-2.0 */
/* In which order ranks are served: each of them once, a rank itself first, no two ranks the same one at a time; and how
 * many warps carry rows. */
#include "proto/serving.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>

#include <cmocka.h>

static void each_is_served_once(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t rank = 0; rank < ranks; rank++) {
            bool served[9] = {false};
            assert_int_equal(ep_served(rank, ranks, 0), rank);
            for (int32_t number = 0; number < ranks; number++) {
                const int32_t peer = ep_served(rank, ranks, number);
                assert_in_range(peer, 0, ranks - 1);
                assert_false(served[peer]);
                served[peer] = true;
            }
        }
}

static void no_two_serve_the_same_one(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 9; ranks++)
        for (int32_t number = 0; number < ranks; number++) {
            bool served[9] = {false};
            for (int32_t rank = 0; rank < ranks; rank++) {
                assert_false(served[ep_served(rank, ranks, number)]);
                served[ep_served(rank, ranks, number)] = true;
            }
        }
}

static void rows_are_bounded(void **state)
{
    (void)state;
    assert_int_equal(ep_warps_under_way(24, 15, 2), EP_ROWS_UNDER_WAY / 24);
    assert_int_equal(ep_warps_under_way(8, 15, 2), 15);
    assert_int_equal(ep_warps_under_way(1, 31, 2), 31);
    assert_int_equal(ep_warps_under_way(64, 15, 2), 3);
    assert_int_equal(ep_warps_under_way(EP_ROWS_UNDER_WAY, 15, 2), 2);
    assert_int_equal(ep_warps_under_way(1000, 15, 1), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_served_once),
        cmocka_unit_test(no_two_serve_the_same_one),
        cmocka_unit_test(rows_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
