/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a call in normal mode goes, told from when warps of each rank came where. */
#include "bench/normal/late.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, SPANS = BENCH_SPANS - BENCH_OPEN };

/* All alike: places known at 2 µs, half of the warps through at 10, the last one at 11, ended at 15. */
static void all_alike(struct bench_moments ranks[RANKS])
{
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct bench_moments){.open_us = 2, .sent_middle_us = 10, .sent_us = 11, .ended_us = 15};
}

/* expected: open, rows, warps, ranks, close. */
static void assert_spans(const struct bench_moments ranks[RANKS], const double expected[SPANS], int late)
{
    double sorted[RANKS], sum = 0;
    const struct bench_breakdown out = normal_spans.of_call(ranks, RANKS, sorted);
    assert_int_equal(out.late_rank, late);
    for (int i = 0; i < SPANS; i++) {
        if (out.us[BENCH_OPEN + i] != expected[i])
            fail_msg("span %d: %g, not %g", BENCH_OPEN + i, out.us[BENCH_OPEN + i], expected[i]);
        sum += out.us[BENCH_OPEN + i];
    }
    assert_true(out.known && out.kernel_us == sum);
}

static void nobody_is_late(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    assert_spans(ranks, (double[]){2, 8, 1, 0, 4}, 0);
}

static void late_warps(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    for (int r = 0; r < RANKS; r++)
        ranks[r].sent_us = 14;
    assert_spans(ranks, (double[]){2, 8, 4, 0, 1}, 0);
}

static void a_late_rank(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    ranks[1].sent_us = 13;
    ranks[1].sent_middle_us = 12;
    ranks[2].ended_us = 16;
    assert_spans(ranks, (double[]){2, 8, 1, 2, 3}, 1);
}

/* A rank of its own may be through before another knows where to begin. */
static void a_late_opening(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    all_alike(ranks);
    ranks[2] = (struct bench_moments){.open_us = 12, .sent_middle_us = 13, .sent_us = 14, .ended_us = 16};
    assert_spans(ranks, (double[]){12, 0, 0, 2, 2}, 2);
}

/* The copy roofline: no warp opens anything, and each ends when it is through, at the last rank later than at others.
   */
static void copies_that_open_nothing(void **state)
{
    (void)state;
    const struct bench_moments ranks[RANKS] = {{.sent_middle_us = 8, .sent_us = 9, .ended_us = 9},
                                               {.sent_middle_us = 7, .sent_us = 10, .ended_us = 10},
                                               {.sent_middle_us = 6, .sent_us = 12, .ended_us = 12.5}};
    assert_spans(ranks, (double[]){0, 7, 3, 2, 0.5}, 2);
}

static void notify_is_the_median_ranks(void **state)
{
    (void)state;
    struct bench_moments ranks[RANKS];
    double sorted[RANKS];
    all_alike(ranks);
    for (int r = 0; r < RANKS; r++) {
        ranks[r].notified = true;
        for (int s = 0; s < BENCH_OPEN; s++)
            ranks[r].notify_us[s] = s == 2 ? (double)(9 - r) : (double)(r + s);
    }
    const struct bench_breakdown out = normal_spans.of_call(ranks, RANKS, sorted);
    assert_true(out.notified);
    for (int s = 0; s < BENCH_OPEN; s++)
        assert_true(out.us[s] == (s == 2 ? 8 : 1 + s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_is_late),
        cmocka_unit_test(late_warps),
        cmocka_unit_test(a_late_rank),
        cmocka_unit_test(a_late_opening),
        cmocka_unit_test(copies_that_open_nothing),
        cmocka_unit_test(notify_is_the_median_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
