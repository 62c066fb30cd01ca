/* SPDX-License-Identifier: Apache-2.0 */
/* exec: how a step is carried out. An executor is a table of operations; cpu (worker threads) is the first.
 *
 * Called by ep only; calls shmem (memory of peers, waiting) and base. Executors only carry out what a step says:
 * arguments were checked, shapes, offsets and outputs were fixed by ep. Every implementation passes tests/exec and
 * tests/ep. */
#ifndef EXPAR_EXEC_EXECUTOR_H
#define EXPAR_EXEC_EXECUTOR_H

#include "exec/event.h"
#include "exec/step.h"
#include "shmem/device_heap.h"
#include "shmem/sym.h"

typedef struct executor executor;

/* All return EXPAR_OK with a verdict where a step has one: a refusal of some rank is not a failure of the executor.
   Else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED (the buffer is then unusable), EXPAR_ERR_INDEX (layout) or EXPAR_ERR_MEMORY.
 */
typedef struct executor_ops {
    const char *name;
    /* Fills the layout part of routing from idx. Local. EXPAR_ERR_INDEX names token and slot. CUDA: takes the
       caller's counts of experts only; notify makes the layout and judges indices. */
    expar_status (*layout)(executor *self, const ep_route_view *route, ep_routing *routing);
    /* Opens a fresh dispatch: exchanges hellos with counts, fills the notify part of the routing. */
    expar_status (*notify)(executor *self, ep_notify_step *step);
    /* Exchanges offers (cached: with the hellos), unless they stand (ep_room), moves the rows. */
    expar_status (*dispatch)(executor *self, ep_dispatch_step *step);
    expar_status (*combine)(executor *self, ep_combine_step *step);
    /* Each row to its places in the expert-major output; a token's expert-major rows to one. Local. */
    expar_status (*expand)(executor *self, const ep_expand_step *step);
    expar_status (*reduce)(executor *self, const ep_reduce_step *step);
    void (*destroy)(executor *self);
} executor_ops;

/* A CUDA executor puts its work on `stream` (a CUstream) and returns; notify waits for its counts, dispatch and combine
   until it is known whether all ranks go on; none of them where the step says no_wait. What goes wrong later is told by
   executor_cuda_failure and executor_cuda_finish. */
struct executor {
    const executor_ops *ops;
    /* Of the call that is being made on a GPU: */
    void *stream;   /* set by ep */
    bool untold;    /* set by ep: nobody will ask how it ended */
    bool capturing; /* set by executor_cuda_begin: the stream is being captured into a graph */
};

/* On CPU threads. buffer: offset of the EP buffer in the heap. num_threads ≥ 1 counts the calling thread. */
expar_status executor_cpu_create(sym *sym, const ep_shape *shape, uint64_t buffer, int32_t num_threads, executor **out);

/* Tests hold a rank back between any two steps of the protocols, to show that order alone makes them right. `delay` is
   called from any of the rank's threads; NULL ends it. */
typedef void (*executor_delay_fn)(void *context);
void executor_cpu_delay(executor *executor, executor_delay_fn delay, void *context);

/* What a rank has of its GPU. */
typedef struct executor_cuda_share {
    int32_t num_sms;   /* SMs of a call's kernels, ≥ 1 */
    bool with_threads; /* other ranks of this process have the rest */
} executor_cuda_share;

/* On the heap's GPU. buffer: offset of the EP buffer in the device heap. */
expar_status executor_cuda_create(device_heap *heap, sym *sym, const ep_shape *shape, uint64_t buffer,
                                  const executor_cuda_share *share, executor **out);
/* Device memory of one routing. */
uint64_t executor_cuda_routing_bytes(const ep_shape *shape, int64_t tokens);
/* A new call: nothing of the one before it counts any more. */
void executor_cuda_reset(executor *executor);
/* Before a call: learns of its stream. Nothing is put there yet. */
expar_status executor_cuda_begin(executor *executor);
/* Before a call's first work: in its stream, behind the calls of this rank before it on this GPU, on any buffer of the
   group. Those of other threads wait here until executor_cuda_end. Without effect when the call has come here before.
 */
expar_status executor_cuda_follow(executor *executor);
/* Both for a call that was refused; one that has no stream yet gets one of the executor's, which the first such call
   makes. */
expar_status executor_cuda_begin_refused(executor *executor);
/* Loads what a dispatch or combine of such rows needs, before any of its kernels is launched: the driver loads nothing
   while kernels of the process run on the GPU. Ranks that share it have loaded all with the buffer. */
expar_status executor_cuda_load(executor *executor, const ep_form *form, int64_t row_bytes);
/* What notify, and dispatch, wait for unless their step says no_wait: fill what these fill then. */
expar_status executor_cuda_await_counts(executor *executor, ep_notify_step *step);
expar_status executor_cuda_await_opening(executor *executor, ep_dispatch_step *step);
/* Whether the call has come there. */
bool executor_cuda_follows(executor *executor);
/* After a call's last step: later calls of this rank's follow from here. What tells of the call's end may still be put
   on its stream. */
expar_status executor_cuda_mark(executor *executor);
/* The other half of executor_cuda_follow; marks what is not. Without effect unless a call has come there. */
expar_status executor_cuda_end(executor *executor);
/* In a capture: the graph keeps these blocks as long as it lives, and all that is made of it. NULLs are skipped. */
expar_status executor_cuda_keep(executor *executor, mem_block *const *blocks, int32_t count);
/* Until this rank's last call on the GPU has ended, on any buffer; then as executor_cuda_failure, or EXPAR_ERR_CUDA
   where a kernel broke off. */
expar_status executor_cuda_await(executor *executor, const char *what);
/* EXPAR_OK while no wait of a kernel was given up; else EXPAR_ERR_PEER or EXPAR_ERR_ABORTED with who was awaited. */
expar_status executor_cuda_failure(executor *executor, const char *what);

/* Calls `done` from a thread of the driver when the stream has come here, with how the call ended: as
   executor_cuda_failure, the verdict (rank -1: none) and how many rows were dropped. `done` must not call CUDA. In a
   context that has failed the driver calls nobody: then whoever looks by *keeper calls `done`, with EXPAR_ERR_CUDA, or
   the executor when it is destroyed; likewise with the group's failure, where the stream does not come here. The keeper
   is to be dropped, after that also. */
typedef void (*executor_done_fn)(void *context, expar_status status, const ep_verdict *verdict, int32_t dropped);
expar_status executor_cuda_finish(executor *executor, executor_done_fn done, void *context, event_keeper *keeper);

/* Where the time of a call went on this rank's GPU, by clocks that its kernels read. For benchmarks. A dispatch or a
   combine: from the first block's start until all of them know the peers' places, from there until the last row is on
   its way, and from there until all ranks are through. The notify before it (a fresh dispatch): the layout, until this
   rank's hellos are on their way, until all hellos are here, until the counts are with handle and host; and the gap
   between the two kernels. */
typedef struct executor_times {
    bool notified; /* the next five count */
    double layout_us, hellos_us, wait_us, counts_us, gap_us;
    double open_us, rows_us, close_us;
} executor_times;
/* Switches it on or off for the calls from now on; on also forgets the last one's times. */
expar_status executor_cuda_stamps(executor *executor, bool on);
/* Of the last call, which must be done. False: there are none. */
bool executor_cuda_times(executor *executor, executor_times *out);

/* Of the calls that nobody asks for: the first since the last look that did not end well, as executor_done_fn is told.
   False: there is none. */
bool executor_cuda_untold(executor *executor, ep_verdict *verdict, int32_t *dropped);

/* Copies device memory in stream order. bytes may be 0. */
expar_status executor_cuda_copy(executor *executor, void *dest, const void *source, uint64_t bytes);
/* Expert-major outputs, on the device. map: [rows][K]; expert_rows: of the padded output. */
typedef struct ep_map_step {
    const ep_routing *routing;
    int32_t alignment, idx_bytes;
    int64_t rows, expert_rows;
    const void *idx;
    int32_t *map;
} ep_map_step;
expar_status executor_cuda_map(executor *executor, const ep_map_step *step);
typedef struct ep_padding_step {
    const ep_routing *routing;
    int32_t alignment;
    const int32_t *map; /* [map_rows][K] */
    int64_t map_rows;
    int64_t rows, row_bytes, scale_bytes; /* of the output */
    void *x, *scales;
} ep_padding_step;
expar_status executor_cuda_zero_padding(executor *executor, const ep_padding_step *step);

/* The layout by itself, for callers without a buffer: see executor_ops.layout. */
expar_status executor_cpu_layout(const ep_route_view *route, ep_routing *routing);
/* On a GPU: put on the stream and not waited for; indices out of range count as -1. Arrays that are NULL are not
   wanted. */
typedef struct ep_count_step {
    int32_t device; /* index */
    void *stream;   /* a CUstream; NULL: the default one */
    ep_route_view route;
    int64_t tokens;
    int32_t topk, experts, ranks, nodes;
    int32_t *tokens_per_rank, *tokens_per_node, *tokens_per_expert; /* [N], [M], [E] */
    uint8_t *token_in_rank;                                         /* [T][N] */
} ep_count_step;
expar_status executor_cuda_count(const ep_count_step *step);
/* Loads the kernel for that, so that no call has to while kernels of other ranks run on the GPU. */
expar_status executor_cuda_count_open(int32_t device);

#endif
