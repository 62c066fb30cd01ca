/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor of low-latency calls: a call is one kernel on the caller's stream, or one for each of its phases.
 * Private to this folder.
 *
 *   create.c  the object: its place on the GPU, its memory, its kernels
 *   calls.c   phases become launches; how calls went
 *   cache.c   memory of results, kept from call to call
 *   mask.c    masks: what the host has to do with them
 *   meet.c    ranks that have laid out the same shape, each by itself
 *   times.c   times that kernels take
 *
 * The kernels are kernels/low_latency/ll_dispatch.cu, ll_dispatch_scaled.cu, ll_combine.cu and ll_combine_log.cu, and
 * with masks ll_dispatch_masks.cu, ll_combine_masks.cu and ll_mask.cu;
 * kernels/low_latency/ll_args.h is what both sides know. The protocol is theirs: epochs, units, halves and read words
 * live on the GPU, so that graphs replay and mix with other calls. The host launches, and looks at what they report. */
#ifndef EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H
#define EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H

#include "exec/cuda/core/gpu.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"
#include "exec/cuda/low_latency/create.h"
#include "group/members.h"

typedef struct ll_gpu_cache ll_gpu_cache;

/* Of a buffer that gets its shape later. All of it is this rank's own, and touched by the thread that is in a call. */
typedef struct ll_early {
    bool *settled; /* [N] it has said this rank's shape, or is masked here */
    bool all_settled;
    bool *masked; /* [N] before there is a shape */
    bool cleaned; /* before there is a shape, with these epochs behind it */
    uint64_t epochs[LL_KINDS];
    bool failed; /* a lay-out has failed, and has left parts */
} ll_early;

typedef struct ll_gpu {
    /* Its place on the GPU, as an EP buffer's executor has one: heap, order, guard, report, launches. */
    gpu_core core;
    ll_counts totals;
    ll_reserved reserve; /* of a buffer that gets its shape later */
    ll_shape shape;
    ll_space space;
    int32_t copies;        /* blocks that a kernel can have */
    ll_gpu_state *state;   /* device [copies] */
    ll_gpu_tally *tally;   /* device [N] */
    uint32_t *told;        /* device */
    uint64_t *waits;       /* device */
    uint8_t *kept;         /* device */
    ll_gpu_counts *counts; /* pinned [N], as kernels see it, and as the host does */
    ll_gpu_counts *counted;
    uint64_t *dues; /* pinned, as kernels see it; for the host core.dues */
    cuda_program *dispatch_program, *scaled_program, *combine_program, *log_program;
    /* scaled: of formats with scales; log: of rows of LogFMT */
    cu_function dispatch_kernel, scaled_kernel, combine_kernel, log_kernel;
    ll_gpu_cache *cache;
    /* Of a buffer with masks. */
    ll_gpu_masks *masks; /* device, with the next two; NULL: without masks */
    ll_gpu_mask *mask_of;
    uint64_t *decided;
    gpu_loss *losses;                     /* pinned, as the host sees it (gpu_place.losses) */
    ll_gpu_answer *answer, *answer_there; /* of the errand that is under way; by whoever calls */
    uint32_t *view, *view_there;
    cuda_program *mask_program;
    cu_function mask_kernel;
    group_members *cleaner;
    uint64_t clean_words; /* offset in the host's heap, of what cleaner->words are */
    bool has_clean_words;
    ll_early *early;    /* NULL: the shape came with the buffer */
    atomic_bool shaped; /* all parts are there: set once (release), looked at by any thread (acquire) */
} ll_gpu;

static inline ll_gpu *ll_gpu_of(executor *base)
{
    return (ll_gpu *)base;
}

static inline bool ll_gpu_is_shaped(const ll_gpu *self)
{
    return atomic_load_explicit(&self->shaped, memory_order_acquire);
}

/* ---- cache.c ----------------------------------------------------------------------------------------------------- */
ll_gpu_cache *ll_gpu_cache_make(void); /* NULL: no memory */
/* Blocks that are out stay good. NULL is allowed. */
void ll_gpu_cache_close(ll_gpu_cache *cache);
/* Of the driver's memory; not between the place of a call and its end. */
expar_status ll_gpu_cache_take(ll_gpu *self, uint64_t bytes, mem_block **out);

/* ---- mask.c ------------------------------------------------------------------------------------------------------ */
/* Collective: the words of cleans; then this rank's part. Without masks neither has anything to do. */
expar_status ll_gpu_masks_take(ll_gpu *self);
expar_status ll_gpu_masks_open(ll_gpu *self);
void ll_gpu_masks_close(ll_gpu *self);
/* Collective; without effect where none were taken. */
void ll_gpu_masks_give(ll_gpu *self);
/* Tells all that this rank has left the buffer, if its calls have ended. */
void ll_gpu_part(ll_gpu *self);
/* Tells kernels who is dead. */
void ll_gpu_note_dead(ll_gpu *self);
/* Behind a clean: with its view. */
expar_status ll_gpu_begin_anew(ll_gpu *self, const uint64_t epochs[LL_KINDS]);
/* Operations. */
expar_status ll_gpu_mask_set(executor *base, int32_t rank, bool masked);
expar_status ll_gpu_mask_query(executor *base, int32_t *status, void *stream);
expar_status ll_gpu_mask_clean(executor *base, ll_clean_step *step);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */
ll_early *ll_gpu_early_make(int32_t ranks, int32_t own); /* NULL: no memory */
void ll_gpu_early_free(ll_early *early);
/* Of the words of shapes, which stand behind those of cleans; 0: there are none. */
uint64_t ll_gpu_shapes_bytes(const ll_gpu *self);
/* Says to all that this rank has its shape laid out. */
void ll_gpu_meet_say(const ll_gpu *self);
/* Before a call, of that number (boot_topic), is launched: until all that are not masked have said their shape.
   EXPAR_ERR_MISMATCH: one has another. */
expar_status ll_gpu_meet(ll_gpu *self, uint64_t number);
/* The rank has been masked, or is not any more. */
void ll_gpu_early_settle(ll_gpu *self, int32_t rank, bool masked);
/* Before there is a shape: the operations of masks, and what a clean leaves; then what kernels are told of all that. */
void ll_gpu_early_mask(ll_gpu *self, int32_t rank, bool masked);
expar_status ll_gpu_early_query(const ll_gpu *self, int32_t *status, void *stream);
void ll_gpu_early_begin(ll_gpu *self, const uint64_t epochs[LL_KINDS]);
expar_status ll_gpu_early_end(ll_gpu *self);

/* ---- calls.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_prepare(executor *base, ll_call *call);
expar_status ll_gpu_dispatch_send(executor *base, exec_call *exec, ll_dispatch_step *step);
expar_status ll_gpu_dispatch_receive(executor *base, exec_call *exec, ll_dispatch_step *step);
expar_status ll_gpu_combine_send(executor *base, exec_call *exec, ll_combine_step *step);
expar_status ll_gpu_combine_receive(executor *base, exec_call *exec, ll_combine_step *step);
const ll_counts *ll_gpu_count(executor *base);

/* ---- times.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_time(executor *base, bool on);
bool ll_gpu_times(executor *base, ll_times *out);

#endif
