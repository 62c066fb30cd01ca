/* SPDX-License-Identifier: Apache-2.0 */
/* exec: how a step is carried out. An executor is a table of operations; cpu (worker threads) is the first.
 *
 * Called by ep only; calls shmem (memory of peers, waiting) and base. Executors only carry out what a step says:
 * arguments were checked, shapes, offsets and outputs were fixed by ep. Every implementation passes tests/exec and
 * tests/ep. */
#ifndef EXPAR_EXEC_EXECUTOR_H
#define EXPAR_EXEC_EXECUTOR_H

#include "exec/step.h"
#include "shmem/sym.h"

typedef struct executor executor;

/* All return EXPAR_OK with a verdict where a step has one: a refusal of some rank is not a failure of the executor.
   Else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED (the buffer is then unusable), EXPAR_ERR_INDEX (layout) or EXPAR_ERR_MEMORY.
 */
typedef struct executor_ops {
    const char *name;
    /* Fills the layout part of routing from idx. Local. EXPAR_ERR_INDEX names token and slot. */
    expar_status (*layout)(executor *self, const ep_route_view *route, ep_routing *routing);
    /* Opens a fresh dispatch: exchanges hellos with counts, fills the notify part of the routing. */
    expar_status (*notify)(executor *self, ep_notify_step *step);
    /* Exchanges offers (cached: with the hellos), moves the rows. */
    expar_status (*dispatch)(executor *self, ep_dispatch_step *step);
    expar_status (*combine)(executor *self, ep_combine_step *step);
    /* Each row to its places in the expert-major output; a token's expert-major rows to one. Local. */
    expar_status (*expand)(executor *self, const ep_expand_step *step);
    expar_status (*reduce)(executor *self, const ep_reduce_step *step);
    void (*destroy)(executor *self);
} executor_ops;

struct executor {
    const executor_ops *ops;
};

/* On CPU threads. buffer: offset of the EP buffer in the heap. num_threads ≥ 1 counts the calling thread. */
expar_status executor_cpu_create(sym *sym, const ep_shape *shape, uint64_t buffer, int32_t num_threads, executor **out);

/* Tests hold a rank back between any two steps of the protocols, to show that order alone makes them right. `delay` is
   called from any of the rank's threads; NULL ends it. */
typedef void (*executor_delay_fn)(void *context);
void executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);

/* The layout by itself, for callers without a buffer: see executor_ops.layout. */
expar_status executor_cpu_layout(const ep_route_view *route, ep_routing *routing);

#endif
