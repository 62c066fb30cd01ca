/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor of normal mode: steps become kernels on the caller's stream. Private to this folder, and to
 * exec/cuda/create.c, which makes the object.
 *
 *   memory.c    its small memory, and what calls take of the pool
 *   pool.c      the pool itself, and its growth
 *   records.c   records and rings that grow
 *   programs.c  which kernels, compiled for which shape
 *   open.c      layout and notify, rows that are sent ahead, and the host's wait for the counts
 *   count.c     the layout by itself, without a buffer
 *   counters.c  what notify counts for each expert
 *   counts.c    the caller's counts of experts, by pinned memory
 *   rows.c      dispatch and combine
 *   expert.c    rows to expert-major order and back
 *   times.c     times that kernels take */
#ifndef EXPAR_EXEC_CUDA_NORMAL_NORMAL_GPU_H
#define EXPAR_EXEC_CUDA_NORMAL_NORMAL_GPU_H

#include "exec/cuda/core/gpu.h"
#include "exec/cuda/kernels/normal/args.h"

/* Kernels for rows of one shape, or of any. */
typedef struct gpu_programs {
    bool any_shape; /* the three below are 0 */
    int64_t row_bytes;
    int32_t topk, dtype;
    bool by_slot; /* the last program alone; of a shape: the first two. With any_shape: all three */
    cuda_program *dispatch, *combine, *slots;
    cu_function dispatch_kernel, combine_kernel, slots_kernel;
    struct gpu_programs *next;
} gpu_programs;

/* Bytes of counters in shared memory that every GPU has without asking. */
#define GPU_SHARED_COUNTS (40 << 10)

/* What notify counts for each expert, and tells the host (counters.c). */
typedef struct gpu_counters {
    gpu_scratch *scratch;        /* device: int32 [E], zero between calls; pinned: gpu_notify_args.told */
    int32_t experts;             /* E at most */
    struct gpu_counters *before; /* smaller ones, which graphs may use */
} gpu_counters;

/* Pinned memory for counts of the caller's (counts.c). */
typedef struct gpu_counts gpu_counts;

/* Pinned memory for counts of the caller's (counts.c). */
typedef struct gpu_counts gpu_counts;

typedef struct gpu_executor {
    gpu_core core;
    ep_shape shape;
    ep_space space;
    int32_t given_slots; /* of a ring, by the config; 0: the library chooses */
    /* By the thread that makes a call: the report's last wish for growth that was seen; calls that wait for it still;
       wishes of this rank's in vain. */
    uint64_t wish_seen;
    int32_t waits, vain;
    uint64_t start_bytes;   /* that the home keeps for this buffer's pool */
    uint64_t limit_bytes;   /* of the pool; 0: none */
    uint64_t notified;      /* core.begun of the last call that opened with a notify; for the stamps */
    gpu_counters *counters; /* the largest; by the thread that makes a call */
    gpu_counts *counts;     /* list of all; likewise */
    cuda_program *open_program, *expert_program;
    cu_function notify_kernel, check_kernel;
    cu_function map_kernel, expand_kernel, padding_kernel, columns_kernel, sources_kernel, reduce_kernel, tell_kernel;
    gpu_programs *programs; /* kept as long as the buffer: unloading may wait for kernels that wait for this rank */
    /* [num_old_records] offsets of records that were too small; given back with the buffer */
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
/* Whether a combine takes the kernel that knows of slots (combine_slots.cu). */
static inline bool gpu_by_slot(const ep_form *form)
{
    return form->kind == EP_COMBINE && (form->sum_order != EP_SUM_BY_RANK || form->weights_of != EP_WEIGHTS_OF_ALL);
}
/* The kernels for rows of this form; compiles them when they are new. */
expar_status gpu_programs_find(gpu_executor *self, int64_t row_bytes, const ep_form *form, const gpu_programs **out);

/* ---- count.c ----------------------------------------------------------------------------------------------------- */
expar_status gpu_count(const ep_count_step *step);
/* Loads its kernel, so that no call has to while kernels of other ranks run on the GPU (count.c). */
expar_status gpu_count_open(int32_t device);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
/* Where the heaps are, the kernels' state, counts, the report. The device has been entered. */
expar_status gpu_memory_open(gpu_executor *self);
/* What one call needs of the pool beside its output (executor_kind). */
uint64_t gpu_beside_outputs(const ep_shape *shape, int64_t rows);
/* Device memory of one routing. */
uint64_t gpu_routing_bytes(const ep_shape *shape, int64_t tokens);
/* Where a routing's arrays lie in its block; that follows from the routing alone, so that it serves other buffers. */
gpu_routing gpu_routing_at(const ep_routing *routing);

/* ---- pool.c ------------------------------------------------------------------------------------------------------ */
/* Collective: the buffer's records and, where nothing grows, its pool; core.place.buffer is where. */
expar_status gpu_pool_take_records(gpu_executor *self, const char *what);
/* Makes the buffer's pool, over what there is. */
expar_status gpu_pool_make(gpu_executor *self, uint64_t limit_bytes);
/* Collective: memory that the pool begins with, where it grows. */
expar_status gpu_pool_start(gpu_executor *self);
/* Before the home is left. Blocks that are out stay good. */
void gpu_pool_close(gpu_executor *self);
/* What the pool may have now without growing, other buffers' blocks included. */
uint64_t gpu_pool_bytes(const gpu_executor *self);
/* What hellos say of this rank's pool. For each call once. */
bool gpu_pool_wishes(const gpu_executor *self);
/* Whether a call that need not wait for its counts does, with these words of its pool. For each such call once. */
bool gpu_pool_awaits_growth(gpu_executor *self, ep_growth growth);
/* It did, and wished, and not all did. */
void gpu_pool_note_vain(gpu_executor *self);
/* Whether growth would make room in the pool for such a block; 0: for none. */
bool gpu_pool_lacks(const gpu_executor *self, uint64_t bytes);
/* Operations. */
expar_status gpu_grow_pool(executor *base, const uint64_t *bytes, int32_t count);
void gpu_trim(executor *base);

/* ---- records.c --------------------------------------------------------------------------------------------------- */
/* Collective. Old records, with the buffer's. */
void gpu_records_give(gpu_executor *self, bool *quiet);
/* Operations. */
bool gpu_fits(executor *base, const ep_form *form, int64_t row_bytes);
expar_status gpu_grow(executor *base, const ep_grow_step *step, ep_verdict *verdict);

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
expar_status gpu_copy(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes);

/* ---- rows.c ------------------------------------------------------------------------------------------------------ */
gpu_route gpu_route_of(const ep_route_view *route);
/* Puts a dispatch on the stream, and waits for nothing. */
expar_status gpu_dispatch_launch(gpu_executor *self, const exec_call *call, const ep_dispatch_step *step);

/* ---- counters.c -------------------------------------------------------------------------------------------------- */
/* For calls of that shape; *out is NULL where those that are in use do. No other rank's kernels may be waiting for this
   one's. The device has been entered. */
expar_status gpu_counters_make(gpu_executor *self, const ep_shape *shape, gpu_counters **out);
/* By the next notify on. NULL is allowed. */
void gpu_counters_use(gpu_executor *self, gpu_counters *counters);
/* With all before them, when no kernel uses them. NULL is allowed. */
void gpu_counters_give(gpu_executor *self, gpu_counters *counters);

/* ---- counts.c ---------------------------------------------------------------------------------------------------- */
/* Takes what one call of so many experts needs, before other ranks' kernels may be waiting for this one. */
expar_status gpu_counts_open(gpu_executor *self, int32_t experts);
/* Counts for each expert, to where notify reads them, in the order of the call's stream. The caller's may go when this
   returns, if they lie on the host. The device has been entered, for both. */
expar_status gpu_counts_send(gpu_executor *self, const exec_call *call, const int32_t *counts, int32_t experts);
/* No copy and no graph uses them any more. */
void gpu_counts_close(gpu_executor *self);

/* ---- times.c ----------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status gpu_time(executor *base, bool on);
bool gpu_times(executor *base, executor_times *out);
/* Where a dispatch or combine of so many warps a block writes its times; NULL: nowhere. */
uint64_t *gpu_stamps_of_rows(gpu_executor *self, const exec_call *call, int32_t warps);

#endif
