/* SPDX-License-Identifier: Apache-2.0 */
/* The late part of a call, found from when warps of each rank came where: one case for each of warps, ranks, the wire.
   */
#include "bench/low_latency/late.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3 };

/* All alike: sent at 3 µs, the last warp at 4, all seen at 6, through at 7, ended at 8. */
static void all_alike(struct bench_moments ranks[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct bench_moments){
            .started_us = 1, .sent_middle_us = 3, .sent_us = 4, .seen_us = 6, .done_us = 7, .ended_us = 8};
}

/* expected: send, warps, ranks, wire, place, close. */
static void assert_spans(const struct bench_moments ranks[RANKS], const double expected[LL_SPANS], int late)
{
    double sorted[RANKS], sum = 0;
    const struct bench_breakdown out = ll_spans.of_call(ranks, RANKS, sorted);
    assert_int_equal(out.late_rank, late);
    for (int i = 0; i < LL_SPANS; i++) {
        if (out.us[i] != expected[i]) fail_msg("span %d: %g, not %g", i, out.us[i], expected[i]);
        sum += out.us[i];
    }
    assert_true(out.kernel_us == sum && out.start_us == 1);
}

static void nobody_is_late(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    assert_spans(ranks, (double[]){3, 1, 0, 2, 1, 1}, 0);
}

static void late_warps(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    for (int r = 0; r < RANKS; r++)
        ranks[r].sent_us = 5.5;
    assert_spans(ranks, (double[]){3, 2.5, 0, 0.5, 1, 1}, 0);
}

static void a_late_rank(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    ranks[1].sent_us = 5;
    assert_spans(ranks, (double[]){3, 1, 1, 1, 1, 1}, 1);
}

static void a_slow_wire(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    ranks[2] = (struct bench_moments){
        .started_us = 1, .sent_middle_us = 3, .sent_us = 4, .seen_us = 16, .done_us = 17, .ended_us = 18};
    assert_spans(ranks, (double[]){3, 1, 0, 12, 1, 1}, 0);
}

/* Phases of a call: moments that no warp came to. */
static void halves(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    for (int r = 0; r < RANKS; r++)
        ranks[r].seen_us = 0;
    assert_spans(ranks, (double[]){3, 1, 0, 0, 3, 1}, 0);
    all_alike(ranks);
    for (int r = 0; r < RANKS; r++)
        ranks[r].sent_middle_us = ranks[r].sent_us = 0;
    assert_spans(ranks, (double[]){0, 0, 0, 6, 1, 1}, -1);
}

/* The copy roofline: nothing is seen on the wire, and warps that send go on with rows while others still send. */
static void copies_that_wait_for_nothing(void **state)
{
    (void)state;
    const struct bench_moments ranks[RANKS] = {
        {.started_us = 1, .sent_middle_us = 2, .sent_us = 3, .done_us = 5, .ended_us = 5},
        {.started_us = 0.5, .sent_middle_us = 3, .sent_us = 6, .done_us = 7, .ended_us = 7.5},
        {.started_us = 1, .sent_middle_us = 2, .sent_us = 2.5, .done_us = 4, .ended_us = 4}};
    assert_spans(ranks, (double[]){2, 1, 3, 0, 1, 0.5}, 1);
}

/* Those of a rank alone, that sends nothing to itself. */
static void copies_of_one_rank(void **state)
{
    (void)state;
    const struct bench_moments rank = {.started_us = 1, .done_us = 4, .ended_us = 4};
    double sorted[1];
    const struct bench_breakdown out = ll_spans.of_call(&rank, 1, sorted);
    assert_int_equal(out.late_rank, -1);
    assert_true(out.us[LL_PLACE] == 4 && out.us[LL_SEND] == 0 && out.us[LL_CLOSE] == 0 && out.kernel_us == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_late),
        cmocka_unit_test(late_warps),
        cmocka_unit_test(a_late_rank),
        cmocka_unit_test(a_slow_wire),
        cmocka_unit_test(halves),
        cmocka_unit_test(copies_that_wait_for_nothing),
        cmocka_unit_test(copies_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
