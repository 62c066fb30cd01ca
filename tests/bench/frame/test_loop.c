/* SPDX-License-Identifier: Apache-2.0 */
/* Runs loops of calls on a device whose clock is made up. It counts calls. It checks when outputs are looked at, whom
 * the caller waits for, and what a call's share is. */
#include "bench/frame/loop.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define CALLS 4

struct counted {
    int calls, lasts, turns;
    int fails_at;          /* the call that fails; 0: none */
    expar_event *previous; /* of the last call; it has not been signalled yet */
};

/* Signals the event of the call before. A caller who waits for that before it makes this call waits for ever. */
static bool count_call(void *context, bool last, expar_event **event)
{
    struct counted *self = context;
    assert_null(*event);
    if (++self->calls == self->fails_at) return false;
    assert_int_equal(last, self->calls % CALLS == 0);
    self->lasts += last;
    if (self->previous) assert_int_equal(expar_event_signal(self->previous), EXPAR_OK);
    assert_int_equal(expar_event_create(event), EXPAR_OK);
    self->previous = last ? NULL : *event;
    if (last) assert_int_equal(expar_event_signal(*event), EXPAR_OK);
    return true;
}

static bool count_turn(void *context, int turn)
{
    struct counted *self = context;
    assert_int_equal(turn, self->turns++);
    assert_int_equal(self->calls, self->turns * CALLS);
    return true;
}

/* Turns of 8, 16, 24 … µs. */
static bool made_up_turn(const struct bench_world *world, struct contender *contender, struct bench_span *span)
{
    (void)world;
    bool good = contender->run(contender->context);
    const struct bench_loop *loop = contender->context;
    *span = (struct bench_span){.start_ns = 1000, .end_ns = 1000 + 8000 * (loop->turn + 1)};
    return good;
}

static bool measure(struct counted *counted, struct bench_loop_times *times)
{
    const struct bench_device device = {.turn = made_up_turn};
    struct bench_world world = {.size = 1, .nodes = 1, .each = 1, .device = &device, .place = {.type = EXPAR_CPU}};
    struct bench_options options = {.iters = CALLS, .warmup = 9};
    struct bench_loop loop = {.call = count_call, .after = count_turn, .context = counted};
    assert_int_equal(expar_group_create_threads(1, NULL, &world.group), EXPAR_OK);
    bool good = bench_loop_measure(&world, &options, "test", &loop, times);
    assert_int_equal(expar_group_destroy(world.group), EXPAR_OK);
    for (int i = 0; i < LOOP_CALLS_AHEAD; i++)
        assert_null(loop.under_way[i]);
    assert_null(loop.host_us);
    return good;
}

static void shares_are_of_measured_loops(void **state)
{
    (void)state;
    struct counted counted = {0};
    struct bench_loop_times times;
    assert_true(measure(&counted, &times));
    assert_int_equal(counted.turns, BENCH_LOOPS + 2);
    assert_int_equal(counted.lasts, BENCH_LOOPS + 2);
    /* The measured turns take 16 to 48 µs, of 4 calls each. */
    assert_true(times.share.min_us == 4 && times.share.median_us == 8 && times.share.p99_us == 12);
    assert_true(times.host_us >= 0 && times.host_us <= times.host_p99_us);
}

/* Nobody waits for the call that is under way, and no other is made. */
static void failures_end_it(void **state)
{
    (void)state;
    struct counted counted = {.fails_at = 2 * CALLS + 2};
    struct bench_loop_times times;
    assert_false(measure(&counted, &times));
    assert_int_equal(counted.calls, 2 * CALLS + 2);
    assert_int_equal(counted.turns, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_of_measured_loops),
        cmocka_unit_test(failures_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
