/* SPDX-License-Identifier: Apache-2.0 */
/* Results from the stamps of all warps: by made-up moments, in no order, with warps that have not come to all. */
#include "exec/cuda/core/stamps.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { WARPS = 4 };

/* At 1000 ns and later, as a clock shows. */
static void count_from(uint64_t *stamps, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (stamps[i]) stamps[i] += 1000;
}

static void rows_are_told(void **state)
{
    (void)state;
    uint64_t stamps[GPU_MOMENTS * WARPS] = {300,  100,  200,  400,  /* start */
                                            2100, 2300, 2000, 2200, /* opened */
                                            9100, 7100, 8100, 6100, /* sent */
                                            0,    9600, 0,    0};   /* ended, of the last block alone */
    executor_times out;
    count_from(stamps, GPU_MOMENTS * WARPS);
    assert_true(gpu_stamps_read(stamps, WARPS, &out));
    assert_true(out.open_us == 2.2 && out.sent_us == 9 && out.ended_us == 9.5);
    assert_true(out.sent_middle_us == 7);
    assert_true(stamps[0] == 1100);
    assert_false(out.notified);
}

/* The kernels of the copy roofline open nothing; there is no such span then. */
static void rows_that_open_nothing(void **state)
{
    (void)state;
    uint64_t stamps[GPU_MOMENTS * WARPS] = {100,  100,  100,  100,  0,    0,    0,    0,
                                            4100, 5100, 6100, 7100, 4200, 5200, 6200, 7200};
    executor_times out;
    assert_true(gpu_stamps_read(stamps, WARPS, &out));
    assert_true(out.open_us == 0 && out.sent_middle_us == 5 && out.sent_us == 7 && out.ended_us == 7.1);
}

/* Two of four warps send; the first of them is their median. */
static void low_latency_is_told(void **state)
{
    (void)state;
    uint64_t stamps[LL_GPU_MOMENTS * WARPS] = {100,  300,  200,  600,   /* start */
                                               0,    3100, 2100, 0,     /* sent */
                                               4100, 0,    0,    0,     /* seen */
                                               5100, 5000, 5600, 0,     /* done */
                                               0,    0,    0,    6100}; /* ended */
    ll_times out;
    count_from(stamps, LL_GPU_MOMENTS * WARPS);
    assert_true(ll_stamps_read(stamps, WARPS, &out));
    assert_true(out.started_us == 0.5 && out.sent_middle_us == 2 && out.sent_us == 3);
    assert_true(out.seen_us == 4 && out.done_us == 5.5 && out.ended_us == 6);
}

/* Nobody sends or awaits anything. */
static void low_latency_of_one_alone(void **state)
{
    (void)state;
    uint64_t stamps[LL_GPU_MOMENTS * WARPS] = {100, 100, 100,  100, 0,   0,    0,   0,   0,   0,
                                               0,   0,   2100, 700, 800, 1100, 900, 900, 900, 2200};
    ll_times out;
    assert_true(ll_stamps_read(stamps, WARPS, &out));
    assert_true(out.sent_middle_us == 0 && out.sent_us == 0 && out.seen_us == 0);
    assert_true(out.done_us == 2 && out.ended_us == 2.1);
}

/* A call whose stamps were left out, or that ended before its end. */
static void a_kernel_that_was_not_stamped(void **state)
{
    (void)state;
    uint64_t none[LL_GPU_MOMENTS * WARPS] = {0}, no_end[GPU_MOMENTS * WARPS] = {1, 1, 1, 1, 2, 2, 2, 2};
    uint64_t ll_no_end[LL_GPU_MOMENTS * WARPS] = {1, 1, 1, 1};
    uint64_t no_start[GPU_MOMENTS * WARPS] = {1, 0, 1, 1, [GPU_ENDED * WARPS] = 9};
    uint64_t ll_no_start[LL_GPU_MOMENTS * WARPS] = {1, 0, 1, 1, [LL_GPU_ENDED * WARPS] = 9};
    executor_times rows;
    ll_times out;
    assert_false(gpu_stamps_read(none, WARPS, &rows) || gpu_stamps_read(no_end, WARPS, &rows));
    assert_false(ll_stamps_read(none, WARPS, &out) || ll_stamps_read(ll_no_end, WARPS, &out));
    assert_false(gpu_stamps_read(no_start, WARPS, &rows) || ll_stamps_read(ll_no_start, WARPS, &out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_told),
        cmocka_unit_test(rows_that_open_nothing),
        cmocka_unit_test(low_latency_is_told),
        cmocka_unit_test(low_latency_of_one_alone),
        cmocka_unit_test(a_kernel_that_was_not_stamped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
