/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor of normal mode: steps become kernels on the caller's stream. Private to this folder, and to
 * exec/cuda/create.c, which makes the object.
 *
 *   memory.c    its small memory, and what calls take from the pool
 *   pool.c      the pool itself, and its growth
 *   records.c   records and rings that grow
 *   programs.c  which kernels, compiled for which shape
 *   open.c      layout and notify, rows that are sent ahead, and the host's wait for the counts
 *   loose.c     kernels of calls without a buffer
 *   count.c     the layout by itself, without a buffer
 *   sums.c      sums of rows that came back by themselves, without a buffer
 *   counters.c  the counters of notify for each expert
 *   counts.c    the caller's counts of experts, copied through pinned memory
 *   rows.c      dispatch and combine
 *   expert.c    rows to expert-major order and back
 *   times.c     times that kernels take */
#ifndef EXPAR_EXEC_CUDA_NORMAL_NORMAL_GPU_H
#define EXPAR_EXEC_CUDA_NORMAL_NORMAL_GPU_H

#include "exec/cuda/core/gpu.h"
#include "exec/cuda/kernels/normal/args.h"

/* Kernels for rows of one shape, or of any shape. */
typedef struct gpu_programs {
    bool any_shape; /* row_bytes, topk and dtype are 0 */
    int64_t row_bytes;
    int32_t topk, dtype;
    /* Only the program `slots` is loaded; without by_slot only the other two. With any_shape all three are loaded. */
    bool by_slot;
    cuda_program *dispatch, *combine, *slots;
    cu_function dispatch_kernel, combine_kernel, slots_kernel;
    struct gpu_programs *next;
} gpu_programs;

/* Bytes of counters in shared memory that every GPU allows without a request. */
#define GPU_SHARED_COUNTS (40 << 10)

/* The counters of notify for each expert, and the memory by which it tells the host (counters.c). */
typedef struct gpu_counters {
    gpu_scratch *scratch;        /* device: int32 [E], zero between calls; pinned: gpu_notify_args.told */
    int32_t experts;             /* E at most */
    struct gpu_counters *before; /* smaller ones, which graphs may use */
} gpu_counters;

/* Pinned memory for the caller's counts (counts.c). */
typedef struct gpu_counts gpu_counts;

typedef struct gpu_executor {
    gpu_core core;
    ep_shape shape;
    ep_space space;
    int32_t given_slots; /* slots of a ring, from the config; 0: the library chooses */
    /* The thread that makes a call uses these. They are the report's last request for growth that it saw, the number of
       calls that still wait for it, and the number of this rank's requests in vain. */
    uint64_t request_seen;
    int32_t waits, vain;
    uint64_t start_bytes;   /* bytes that the per-GPU state keeps for this buffer's pool */
    uint64_t limit_bytes;   /* limit of the pool; 0: none */
    uint64_t notified;      /* core.begun of the last call that opened with a notify; for the stamps */
    gpu_counters *counters; /* the largest; the thread that makes a call uses it */
    gpu_counts *counts;     /* the list of all; likewise */
    cuda_program *open_program, *expert_program;
    cu_function notify_kernel, check_kernel;
    cu_function map_kernel, expand_kernel, padding_kernel, columns_kernel, sources_kernel, reduce_kernel, tell_kernel;
    /* Kept until the buffer is destroyed: unloading may wait for kernels that wait for this rank. */
    gpu_programs *programs;
    /* [num_old_records] the offsets of records that were too small. They are given back with the buffer. */
    uint64_t *old_records;
    size_t num_old_records;
} gpu_executor;

static inline gpu_executor *gpu_of(executor *base)
{
    return (gpu_executor *)base;
}

static inline gpu_world gpu_world_of(const gpu_executor *self, const exec_call *call)
{
    return (gpu_world){.place = gpu_place_of(&self->core, call), .shape = self->shape, .space = self->space};
}

/* ---- programs.c -------------------------------------------------------------------------------------------------- */
expar_status gpu_programs_open(gpu_executor *self);
void gpu_programs_close(gpu_executor *self);
/* Says whether a combine takes the kernel that handles slots (combine_slots.cu), which is slower. With one rank a token
   has one row at most, and EP_SUM_BY_SLOT gives the same bytes as EP_SUM_BY_RANK. */
static inline bool gpu_by_slot(const ep_form *form, int32_t ranks)
{
    if (form->kind != EP_COMBINE) return false;
    if (form->weights_of != EP_WEIGHTS_OF_ALL) return true;
    return form->sum_order == EP_SUM_EACH_SLOT || (form->sum_order == EP_SUM_BY_SLOT && ranks > 1);
}
/* Returns the kernels for rows of this form, and compiles them at first use. */
expar_status gpu_programs_find(gpu_executor *self, int64_t row_bytes, const ep_form *form, const gpu_programs **out);

/* ---- loose.c ----------------------------------------------------------------------------------------------------- */
#define GPU_LOOSE_KERNELS 2
/* A program for calls without a buffer. Each GPU that was asked for has its kernels, until the process ends. */
typedef struct gpu_loose_program gpu_loose_program;
typedef struct gpu_loose {
    struct gpu_loose *next;
    cuda_device *device;
    cuda_program *program;
    cu_function kernels[GPU_LOOSE_KERNELS];
} gpu_loose;
extern gpu_loose_program gpu_loose_counts, gpu_loose_sums;
/* Returns the program's kernels on a GPU. The first call for it compiles them. Any thread. */
expar_status gpu_loose_find(gpu_loose_program *program, int32_t device, const gpu_loose **out);
/* Returns a number of blocks for this work: enough for all of it, but no more than the GPU has use for. */
uint32_t gpu_loose_blocks(const gpu_loose *self, int64_t wanted);

/* ---- count.c ----------------------------------------------------------------------------------------------------- */
expar_status gpu_count(const ep_count_step *step);

/* ---- sums.c ------------------------------------------------------------------------------------------------------ */
expar_status gpu_terms(const ep_terms_step *step);
expar_status gpu_sum(const ep_sum_step *step);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
/* Makes the addresses of the heaps, the kernels' state, counts and the report. The device has been entered. */
expar_status gpu_memory_open(gpu_executor *self);
/* Returns the bytes of the pool that one call needs in addition to its output (executor_kind). */
uint64_t gpu_beside_outputs(const ep_shape *shape, int64_t rows);
/* Returns the bytes of device memory of one routing. */
uint64_t gpu_routing_bytes(const ep_shape *shape, int64_t tokens);
/* Says where a routing's arrays are in its block. That follows from the routing alone, so it also serves other
   buffers. */
gpu_routing gpu_routing_at(const ep_routing *routing);

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */
/* Collective: takes the buffer's records and, where nothing grows, its pool. core.place.buffer is their offset. */
expar_status gpu_pool_take_records(gpu_executor *self, const char *what);
/* Makes the buffer's pool, over the memory that there is. */
expar_status gpu_pool_make(gpu_executor *self, uint64_t limit_bytes);
/* Collective: takes the memory that the pool begins with, where it grows. */
expar_status gpu_pool_start(gpu_executor *self);
/* Call this before the per-GPU state is left. Blocks that are out stay valid. */
void gpu_pool_close(gpu_executor *self);
/* Returns the bytes that the pool may have now without growing, including other buffers' blocks. */
uint64_t gpu_pool_bytes(const gpu_executor *self);
/* Says whether this rank's header requests that pools grow or shrink. Call it once for each call. */
bool gpu_pool_requests(const gpu_executor *self);
/* Says whether a call that need not wait for its counts does wait, given this growth. Call it once for each such
   call. */
bool gpu_pool_awaits_growth(gpu_executor *self, ep_growth growth);
/* Call this after a call that waited and requested growth, if not all ranks waited. */
void gpu_pool_note_vain(gpu_executor *self);
/* Says whether growth would let the pool hold a block of that size; 0: no block is wanted. */
bool gpu_pool_lacks(const gpu_executor *self, uint64_t bytes);
/* Operations. */
expar_status gpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count);
void gpu_trim(executor *base);

/* ---- records.c --------------------------------------------------------------------------------------------------- */
/* Collective. Gives back the old records of the buffer. */
void gpu_records_give(gpu_executor *self, bool *quiet);
/* Operations. */
bool gpu_fits(executor *base, const ep_form *form, int64_t row_bytes);
expar_status gpu_grow(executor *base, exec_call *call, const ep_grow_step *step, ep_vote *vote);

/* ---- operations (memory.c, programs.c, open.c, rows.c, expert.c) ------------------------------------------------- */
exec_reach gpu_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                     exec_mapping *out);
void gpu_unmap(executor *base, exec_mapping *mapping);
expar_status gpu_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out);
expar_status gpu_routing_make(executor *base, ep_routing *routing, int32_t most_targets);
expar_status gpu_map_make(executor *base, int64_t slots, mem_block **out);
expar_status gpu_prepare(executor *base, const ep_form *form, int64_t row_bytes);
expar_status gpu_notify(executor *base, exec_call *call, ep_notify_step *step);
expar_status gpu_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status gpu_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status gpu_combine_send(executor *base, exec_call *call, ep_combine_step *step);
expar_status gpu_combine_receive(executor *base, exec_call *call, ep_combine_step *step);
expar_status gpu_map(executor *base, exec_call *call, const ep_map_step *step);
expar_status gpu_arrange(executor *base, exec_call *call, const ep_arrange_step *step);
expar_status gpu_tell_sources(executor *base, exec_call *call, const ep_sources_step *step);
expar_status gpu_reduce(executor *base, exec_call *call, const ep_reduce_step *step);
expar_status gpu_tell_counts(executor *base, exec_call *call, const ep_counts_step *step);
gpu_tell_args gpu_tell_args_of(const ep_counts_step *step);
expar_status gpu_copy(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes);

/* ---- rows.c ------------------------------------------------------------------------------------------------------ */
gpu_route gpu_route_of(const ep_route_view *route);
/* Puts a dispatch on the stream, and does not wait. */
expar_status gpu_dispatch_launch(gpu_executor *self, const exec_call *call, const ep_dispatch_step *step);

/* ---- counters.c -------------------------------------------------------------------------------------------------- */
/* Makes counters for calls of that shape; *out is NULL if the present ones suffice. No kernel of another rank may be
   waiting for this rank. The device has been entered. */
expar_status gpu_counters_make(gpu_executor *self, const ep_shape *shape, gpu_counters **out);
/* The next notify uses them. NULL is allowed. */
void gpu_counters_use(gpu_executor *self, gpu_counters *counters);
/* Gives them back with all smaller ones, when no kernel uses them. NULL is allowed. */
void gpu_counters_give(gpu_executor *self, gpu_counters *counters);

/* ---- counts.c ---------------------------------------------------------------------------------------------------- */
/* Takes the memory for one call with that many experts, before kernels of other ranks may be waiting for this rank. */
expar_status gpu_counts_open(gpu_executor *self, int32_t experts);
/* Copies the counts for each expert to where notify reads them, in the order of the call's stream. If the caller's are
   in host memory, they may be freed when this returns. The device has been entered, for both. */
expar_status gpu_counts_send(gpu_executor *self, const exec_call *call, const int32_t *counts, int32_t experts);
/* Call this when no copy and no graph uses them any more. */
void gpu_counts_close(gpu_executor *self);

/* ---- times.c ----------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status gpu_time(executor *base, bool on);
bool gpu_times(executor *base, executor_times *out);
/* Returns the address where a dispatch or combine with that many warps in a block writes its times; NULL: it writes
   none. */
uint64_t *gpu_stamps_of_rows(gpu_executor *self, const exec_call *call, int32_t warps);

#endif
