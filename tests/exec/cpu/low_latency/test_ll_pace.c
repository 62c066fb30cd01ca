/* SPDX-License-Identifier: Apache-2.0 */
/* When rows bypass the cache since they have been slow to write: fed with times. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/cpu.h"
#include "oracle/unit.h"

enum { BYTES = 1 << 20, FAST_NS = BYTES / 16, SLOW_NS = BYTES / 2 };

/* One send, by whatever it has to go; true: past the cache. */
static bool pace_send(ll_pace *pace, uint64_t bytes, int64_t cached_ns)
{
    const bool streams = ll_pace_streams(pace), times = ll_pace_times(pace);
    assert_false(streams && times);
    ll_pace_note(pace, bytes, times ? cached_ns : 0);
    return streams;
}

static int count_streaming(ll_pace *pace, int sends, uint64_t bytes, int64_t cached_ns)
{
    int streaming = 0;
    for (int i = 0; i < sends; i++)
        streaming += pace_send(pace, bytes, cached_ns);
    return streaming;
}

static void test_slow_rows_go_past_the_cache(void **state)
{
    ll_pace pace = {0};
    const int probe = (int)knob(KNOB_CPU_PACE_PROBE);
    (void)state;
    assert_int_equal(count_streaming(&pace, 1000, BYTES, FAST_NS), 0);
    count_streaming(&pace, 16, BYTES, SLOW_NS);
    assert_int_equal(count_streaming(&pace, 10 * probe, BYTES, SLOW_NS), 10 * (probe - 1));
}

/* The next one that is timed finds it. */
static void test_fast_ones_come_back(void **state)
{
    ll_pace pace = {0};
    (void)state;
    count_streaming(&pace, 16, BYTES, SLOW_NS);
    assert_true(ll_pace_streams(&pace));
    count_streaming(&pace, (int)knob(KNOB_CPU_PACE_PROBE), BYTES, FAST_NS);
    assert_int_equal(count_streaming(&pace, 1000, BYTES, FAST_NS), 0);
}

/* A thread that was held up now and then; and rows too few to tell. */
static void test_single_slow_ones_count_for_nothing(void **state)
{
    ll_pace pace = {0};
    (void)state;
    for (int i = 0; i < 500; i++) {
        assert_int_equal(count_streaming(&pace, 1, BYTES, SLOW_NS), 0);
        while (!ll_pace_times(&pace))
            pace_send(&pace, BYTES, FAST_NS);
        assert_int_equal(count_streaming(&pace, 1, BYTES, FAST_NS), 0);
        while (!ll_pace_times(&pace))
            pace_send(&pace, BYTES, FAST_NS);
    }
    assert_int_equal(count_streaming(&pace, 1000, 4096, SLOW_NS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow_rows_go_past_the_cache),
                                       cmocka_unit_test(test_fast_ones_come_back),
                                       cmocka_unit_test(test_single_slow_ones_count_for_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
