/* SPDX-License-Identifier: Apache-2.0 */
/* loop: calls back to back, as engines make them. Nothing brings the ranks together between two calls of a loop, and
 * nobody waits for a call's end. On GPUs the host runs ahead of the stream as far as the library lets it. On the CPU
 * the caller waits for the call before the last, so that the memory of outputs stays bounded.
 *
 * A loop is one turn (frame/measure.h): its time is last end − first start over all ranks. A call's share is that time
 * divided by the number of calls. */
#ifndef EXPAR_BENCH_FRAME_LOOP_H
#define EXPAR_BENCH_FRAME_LOOP_H

#include "bench/frame/measure.h"

/* Asynchronous calls that may be under way on the CPU when the next one is made. */
#define LOOP_CALLS_AHEAD 2

struct bench_loop {
    /* Makes one call. The last call of a loop keeps its outputs for `after`; others release them at once. *event is
       NULL before; the call's event goes there, if it has one. */
    bool (*call)(void *context, bool last, expar_event **event);
    /* Runs after each loop, when all of its calls have ended. turn: 0 for the warm-up, then 1 to BENCH_LOOPS, then
       BENCH_LOOPS + 1 for the loop whose outputs are checked. */
    bool (*after)(void *context, int turn);
    void *context;

    /* Used by loop.c alone. */
    const struct bench_world *world;
    expar_event *under_way[LOOP_CALLS_AHEAD];
    double *host_us; /* [BENCH_LOOPS + 2][calls] */
    int calls, turn;
};

/* Measured loops of a case, each of --iters calls. */
#define BENCH_LOOPS 5

/* The figures of a case's loops. */
struct bench_loop_times {
    struct bench_times share;    /* of a call, over the loops */
    double host_us, host_p99_us; /* in a call and the release of its outputs: the slowest rank's */
};

/* Runs a warm-up, BENCH_LOOPS measured loops and one to be checked. False after saying why not. Collective. */
bool bench_loop_measure(const struct bench_world *world, const struct bench_options *options, const char *label,
                        struct bench_loop *loop, struct bench_loop_times *times);

#endif
