/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor: steps become kernels on the caller's stream. Private to this folder.
 *
 *   executor.c  the object, its memory, its table of operations
 *   programs.c  which kernels, compiled for which shape
 *   open.c      layout and notify, and the host's wait for the counts
 *   count.c     the layout by itself, without a buffer
 *   counts.c    the caller's counts of experts, by pinned memory
 *   rows.c      dispatch and combine
 *   scratch.c   small memory, handed on from executor to executor
 *   expert.c    rows to expert-major order and back
 *   order.c     calls follow each other, on streams and in graphs; what a graph holds
 *   stamps.c    times that kernels take
 *   finish.c    how calls end: verdicts, failures
 *   endings.c   who is told of it, and when
 *   kernels/    the kernels; args.h is what both sides know
 *
 * A group's kernels wait for each other. Ranks that share a GPU must therefore fit on it side by side: num_sms of each,
 * added up, at most the GPU's SMs (executor's caller checks). */
#ifndef EXPAR_EXEC_CUDA_GPU_H
#define EXPAR_EXEC_CUDA_GPU_H

#include "exec/cuda/kernels/args.h"
#include "exec/cuda/scratch.h"
#include "exec/executor.h"

#include <stdatomic.h>

/* Kernels for rows of one shape, or of any. */
typedef struct gpu_programs {
    bool any_shape; /* the three below are 0 */
    int64_t row_bytes;
    int32_t topk, dtype;
    cuda_program *dispatch, *combine;
    cu_function dispatch_kernel, combine_kernel;
    struct gpu_programs *next;
} gpu_programs;

/* What kernels take of the shared memory for records of their own, at most. */
#define GPU_STATIC_SHARED_BYTES 512

/* Bytes of counters in shared memory that every GPU has without asking. */
#define GPU_SHARED_COUNTS (40 << 10)

/* Pinned memory for counts of the caller's (counts.c). */
typedef struct gpu_counts gpu_counts;

/* The order of a rank's calls on one GPU, shared by its buffers of the group (order.c). */
typedef struct gpu_order gpu_order;

typedef struct gpu_executor {
    executor base;
    device_heap *heap;
    const cuda_device *device;
    sym *sym;
    int32_t num_sms;
    bool shares_gpu;        /* with other ranks of this process: nothing is loaded once the buffer is made */
    gpu_world world;        /* as kernels get it; its ticket is that of the call that is being made */
    uint64_t tickets;       /* given out so far */
    gpu_scratch *scratch;   /* device: heaps, state, expert counts; pinned: the report */
    int32_t *expert_counts; /* [E] device; zero between calls */
    gpu_report *report;     /* the host's view */
    sym_listener listener;
    cuda_program *open_program, *expert_program;
    cu_function notify_kernel;
    cu_function map_kernel, expand_kernel, padding_kernel, reduce_kernel;
    gpu_programs *programs; /* kept as long as the buffer: unloading may wait for kernels that wait for this rank */
    uint64_t *stamps;       /* device memory that kernels write times to (stamps.c); NULL: they do not */
    gpu_scratch *stamp_memory;
    gpu_counts *counts; /* list of all; by whoever calls */
    gpu_order *order;
    /* Of the call that is being made, by its thread: */
    bool has_stream;            /* its stream is known, and whether a capture goes on there */
    bool begun;                 /* it has the order */
    bool marked;                /* and its last work on the stream is behind it */
    bool notified;              /* it opened with a notify; stays until the next call */
    unsigned long long capture; /* number of the capture */
    cu_stream own_stream;       /* of calls that are refused before their stream is known; NULL until the first */
    /* Calls whose ends are still to be told, and threads that look after such. The thread that makes a call, or looks,
       adds one (relaxed), the thread that has told it, or looked, takes one off (release), whoever destroys the
       executor waits for none (acquire). */
    atomic_int endings;
} gpu_executor;

static inline gpu_executor *gpu_of(executor *base)
{
    return (gpu_executor *)base;
}

/* ---- programs.c ---- */
/* Tests: kernels loaded from now on hold threads back at random (kernels/delay.h); 0 ends it. Needs NVRTC. */
void gpu_programs_delay(uint32_t seed);
expar_status gpu_programs_open(gpu_executor *self);
void gpu_programs_close(gpu_executor *self);
/* The kernels for rows of this shape; compiles them when they are new. */
expar_status gpu_programs_find(gpu_executor *self, int64_t row_bytes, int32_t topk, int32_t dtype,
                               const gpu_programs **out);
/* A launch on the stream of the call; arguments: the kernel's one parameter. */
expar_status gpu_launch(gpu_executor *self, cu_function function, uint32_t blocks, uint32_t threads,
                        uint32_t shared_bytes, void *arguments);

/* ---- open.c, rows.c, expert.c ---- */
expar_status gpu_layout(executor *base, const ep_route_view *route, ep_routing *routing);
expar_status gpu_notify(executor *base, ep_notify_step *step);
expar_status gpu_dispatch(executor *base, ep_dispatch_step *step);
expar_status gpu_combine(executor *base, ep_combine_step *step);
expar_status gpu_expand(executor *base, const ep_expand_step *step);
expar_status gpu_reduce(executor *base, const ep_reduce_step *step);
gpu_route gpu_route_of(const ep_route_view *route);
gpu_routing gpu_routing_at(const gpu_executor *self, const ep_routing *routing);

/* ---- counts.c ---- */
/* Takes what one call needs, before other ranks' kernels may be waiting for this one. */
expar_status gpu_counts_open(gpu_executor *self);
/* Counts for each expert, to where notify reads them, in the order of the call's stream. The caller's may go when this
   returns. The device has been entered, for all three. */
expar_status gpu_counts_send(gpu_executor *self, const int32_t *counts, int32_t experts);
/* No copy and no graph uses them any more. */
void gpu_counts_free(gpu_executor *self);

/* ---- stamps.c ---- */
/* Where a dispatch or combine writes its times; NULL: nowhere. */
uint64_t *gpu_stamps_of_rows(const gpu_executor *self);

/* ---- order.c ---- */
expar_status gpu_order_hold(gpu_executor *self);
/* Until the last call has ended on the GPU, or the driver says why not. The device has been entered, for all three. */
expar_status gpu_order_await(const gpu_executor *self);
void gpu_order_release(gpu_executor *self);
/* EXPAR_OK while the context of the last call is sound, whether it has ended or not. From any thread. */
expar_status gpu_order_look(const gpu_executor *self);
/* Who has launched a kernel that waits for other ranks says so, and again once all of them are known to run theirs; not
   by a call without a ticket, which has waited for nothing. */
void gpu_order_note_wait(gpu_executor *self, bool may_wait);
/* Before a kernel, a copy or a wait is put on the stream, outside of captures, where ranks of this process share the
   GPU: until no kernel of this rank's may be waiting, for the time-out at most, and while the group is sound. The
   device has been entered. */
void gpu_order_settle(gpu_executor *self);
/* What this thread does between the two is in no stream's order, so that captures need not be disturbed by it. */
expar_status gpu_leave_captures(int *mode);
void gpu_return_to_captures(int mode);

/* ---- finish.c ---- */
void gpu_listen(gpu_executor *self);
/* What kernels see, too, while they wait: sym_check says why. From any thread. */
bool gpu_group_failed(const gpu_executor *self);
/* Gives the call its ticket. By its first step. */
void gpu_ticket_take(gpu_executor *self);
/* Until a kernel has set the word of the report to this call's ticket; then executor_cuda_failure. A group that has
   failed ends it, too, also where the stream does not come to the kernel. */
expar_status gpu_ticket_await(gpu_executor *self, const uint64_t *word, const char *what);
/* For whoever waits for what a kernel says, or for the end of a call: the group's failure once a kernel that runs would
   have told of it. *seen_ns: when the waiting one first saw that the group has failed; 0: not yet. From any thread. */
expar_status gpu_look_at_group(const gpu_executor *self, int64_t *seen_ns, const char *what);
/* Fills the verdict from the report when the call with this ticket left one there; rows that it dropped. */
int32_t gpu_verdict_read(const gpu_executor *self, uint64_t ticket, ep_verdict *verdict);

/* ---- endings.c ---- */
/* Until no end of a call is to be told any more. The driver has the group's time-out for that, as long as its context
   is sound; what it has not told by then is told here, as lost. */
void gpu_endings_close(gpu_executor *self);

#endif
