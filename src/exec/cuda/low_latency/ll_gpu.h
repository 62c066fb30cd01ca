/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor of low-latency calls. A call is one kernel on the caller's stream, or one for each of its phases.
 * Private to this folder.
 *
 *   create.c  the object: its memory on the GPU, its kernels
 *   calls.c   phases become launches; how calls ended
 *   cache.c   memory of results, kept from call to call
 *   far.c     buffers some of whose ranks are not mapped: their memory, and how kernels reach those ranks
 *   mask.c    the host's part of masks
 *   meet.c    ranks that have laid out the same shape, each by itself
 *   times.c   times that kernels take
 *   words.c   words about masks and cleans for ranks that are not mapped
 *
 * The kernels are kernels/low_latency/ll_dispatch.cu, ll_dispatch_scaled.cu, ll_combine.cu and ll_combine_log.cu. With
 * masks they are ll_dispatch_masks.cu, ll_combine_masks.cu and ll_mask.cu. With ranks that are not mapped they are
 * ll_dispatch_far.cu and ll_combine_far.cu; with both ll_dispatch_far_masks.cu, ll_combine_far_masks.cu and
 * ll_mask_far.cu. Both sides share kernels/low_latency/ll_args.h.
 *
 * Kernels carry out the protocol. Epochs, message headers, slots and acknowledgements are in GPU memory, so that graphs
 * can be replayed and mixed with other calls. The host launches kernels and reads their reports. */
#ifndef EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H
#define EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H

#include "exec/cuda/core/gpu.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"
#include "exec/cuda/low_latency/create.h"
#include "group/members.h"
#include "link/link.h"
#include "shmem/kernel_ways.h"
#include "shmem/kinds.h"
#include "shmem/rings.h"

typedef struct ll_gpu_cache ll_gpu_cache;
typedef struct ll_gpu_words ll_gpu_words;

/* For a buffer that gets its shape later. It is private to this rank; only the thread that is in a call uses it. */
typedef struct ll_early {
    bool *settled; /* [N] the rank has said this rank's shape, or is masked here */
    bool all_settled;
    bool *masked; /* [N] masks that were set before there is a shape */
    /* A clean ended before there is a shape; `epochs` are those that it agreed on. */
    bool cleaned;
    uint64_t epochs[LL_KINDS];
    bool failed; /* a lay-out has failed and has left parts */
} ll_early;

/* For a buffer some of whose ranks are not mapped on some other one. It lies in pinned memory, of which each rank also
   has its send buffers there (proto/sends.h). */
typedef struct ll_gpu_reach {
    kernel_ways ways;       /* EXPAR_DEVICE_TRANSPORTS */
    const sym_rings *rings; /* NULL: the settings leave the proxy out */
    bool by_queues;         /* kernels write requests for some rank themselves (gda) */
    uint32_t used_rings;    /* a bit for each ring that leads to some rank; the clean that changes a way raises it */
    kinds_place block;      /* the buffer and, after it, the send buffers; offset 0: there is none */
    uint64_t buffer_bytes;
    bool unmapped;   /* no other rank is reached by mapped memory */
    uint64_t *heaps; /* [N] where the pinned heap of each rank is mapped here; 0: it is not */
    /* [N] for kernels, as they are at first. A clean may change `view`: its thread stores it, the guard loads it
       (relaxed: either way ends what went by the other). */
    ll_gpu_far *ranks;
    link_counts sent;  /* base.sent, as of the last count */
    proxy_sent before; /* what the rings had sent before this buffer was made */
    uint64_t failures; /* commands of the rings that had failed before this buffer was made */
    /* With masks: words about them for ranks that are not mapped; NULL: there are none. */
    ll_gpu_words *words;
} ll_gpu_reach;

typedef struct ll_gpu {
    /* As in an EP buffer's executor: heap, order, guard, report, launches. */
    gpu_core core;
    ll_counts totals;
    ll_reserved reserve; /* for a buffer that gets its shape later */
    ll_shape shape;
    ll_space space;
    int32_t copies;        /* the most blocks of a kernel */
    ll_gpu_state *state;   /* device [copies] */
    ll_gpu_tally *tally;   /* device [N] */
    uint32_t *told;        /* device */
    uint64_t *waits;       /* device */
    uint8_t *kept;         /* device */
    uint8_t *near;         /* device; NULL: all ranks are mapped */
    ll_gpu_counts *counts; /* pinned [N], the kernels' address; `counted` is the host's */
    ll_gpu_counts *counted;
    uint64_t *progress; /* pinned, the kernels' address; core.dues is the host's */
    cuda_program *dispatch_program, *scaled_program, *combine_program, *log_program, *signals_program;
    /* scaled: for formats with scales; log: for rows in LogFMT */
    cu_function dispatch_kernel, scaled_kernel, combine_kernel, log_kernel, signals_kernel;
    ll_gpu_cache *cache;
    /* The members below, up to has_clean_words, belong to a buffer with masks. */
    ll_gpu_masks *masks; /* device, as the next two; NULL: without masks */
    ll_gpu_mask *mask_of;
    uint64_t *decided;
    /* Pinned, the host's address (gpu_place.losses). */
    gpu_loss *losses;
    /* The answer of the mask kernel that runs now. The calling thread uses it. */
    ll_gpu_answer *answer, *answer_there;
    uint32_t *view, *view_there;
    cuda_program *mask_program;
    cu_function mask_kernel;
    group_members *cleaner;
    uint64_t clean_words; /* offset of cleaner->words in the host's heap */
    bool has_clean_words;
    ll_early *early; /* NULL: the shape came with the buffer */
    bool across;     /* some rank is not mapped on some other one; then `reach` is in use */
    ll_gpu_reach reach;
    ll_gpu_far *far; /* device [N]; NULL: all ranks are mapped */
    /* [N] pinned, the kernels' address and the host's; NULL: all ranks are mapped, or there are no masks. */
    ll_gpu_masker *maskers;
    const ll_gpu_masker *maskers_told;
    /* All parts are made. Set once (release), read by any thread (acquire). */
    atomic_bool shaped;
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
ll_gpu_cache *ll_gpu_cache_make(void); /* NULL: out of memory */
/* Blocks that are out stay valid. NULL is allowed. */
void ll_gpu_cache_close(ll_gpu_cache *cache);
/* Takes driver memory or a kept block. Do not call it after a call has taken its place and before its end. */
expar_status ll_gpu_cache_take(ll_gpu *self, uint64_t bytes, mem_block **out);

/* ---- far.c ------------------------------------------------------------------------------------------------------- */
/* Collective: decides whether all ranks are reached by mapped memory, and sets `across`. All ranks get the same result.
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_MISMATCH: the settings. EXPAR_ERR_UNSUPPORTED: the buffer cannot be had so. */
expar_status ll_gpu_choose_reach(ll_gpu *self, const ll_plan *plan);
/* Collective: takes the buffer's memory, all zero, and sets core.device. OK on all ranks, or on none. */
expar_status ll_gpu_far_take(ll_gpu *self, int32_t device);
/* Makes this rank's part. */
expar_status ll_gpu_far_open(ll_gpu *self);
void ll_gpu_far_close(ll_gpu *self);
/* Call this before a launch: the threads of the rings that the kernel uses wake up, and drive the network. */
void ll_gpu_far_rouse(const ll_gpu *self);
/* Collective: gives the memory back if all ranks are quiet; else it stays until the group ends. On entry *quiet says
   whether this rank's kernels have ended, on return whether all are. Does nothing if there is no memory. */
void ll_gpu_far_give(ll_gpu *self, bool *quiet);
/* Returns the address of this rank's buffer. */
cu_address ll_gpu_own(const ll_gpu *self);

/* Returns whether requests of kernels go to that rank. */
bool ll_gpu_posts_to(const ll_gpu *self, int32_t rank);
/* A clean has brought ranks back. Commands to them are tried again, although they were silent before. A queue that has
   failed is not used again, so parcels go by the proxy, if that is there. No call is in progress. */
expar_status ll_gpu_far_forgive(ll_gpu *self, const uint32_t *view);

/* Operation. */
void ll_gpu_count_sent(executor *base);
/* Says whether the rank is not mapped here. */
static inline bool ll_gpu_is_far(const ll_gpu *self, int32_t rank)
{
    return self->across && self->reach.heaps[rank] == 0;
}

/* ---- words.c ----------------------------------------------------------------------------------------------------- */
/* Makes the parts for masks, after those of far.c and mask.c. */
expar_status ll_gpu_words_open(ll_gpu *self);
/* Lingers for words under way. Does nothing if there are no such parts, as do the next two. */
void ll_gpu_words_close(ll_gpu *self);
/* Sends what can go now. Never waits. Any thread. */
void ll_gpu_words_spread(ll_gpu *self);
/* Between the two calls (true, false) a clean goes on, and only the calling thread sends. */
void ll_gpu_words_clean(ll_gpu *self, bool begins);
/* Both wait until a rank that is not mapped has been told everything. The first waits for a short time only, since the
   rank may be stopped. The second waits until the rank is lost. EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
void ll_gpu_words_linger(ll_gpu *self, int32_t rank);
expar_status ll_gpu_words_await(ll_gpu *self, int32_t rank);

/* ---- mask.c ------------------------------------------------------------------------------------------------------ */
/* Collective: takes the words of cleans, then makes this rank's part. Without masks both do nothing. */
expar_status ll_gpu_masks_take(ll_gpu *self);
expar_status ll_gpu_masks_open(ll_gpu *self);
void ll_gpu_masks_close(ll_gpu *self);
/* Collective; does nothing if none were taken. */
void ll_gpu_masks_give(ll_gpu *self);
/* Tells all ranks that this one has left the buffer, if its calls have ended. */
void ll_gpu_part(ll_gpu *self);
/* gpu_core.lose: kernels that wait for the rank go on without it, and mask it. Any thread. */
void ll_gpu_lose(gpu_core *core, int32_t rank, const char *why);
/* Tells kernels which ranks are dead. */
void ll_gpu_note_dead(ll_gpu *self);
/* Starts anew after a clean, with the clean's view. */
expar_status ll_gpu_begin_anew(ll_gpu *self, const uint64_t epochs[LL_KINDS]);
/* Operations. */
expar_status ll_gpu_mask_set(executor *base, int32_t rank, bool masked);
expar_status ll_gpu_mask_query(executor *base, int32_t *status, void *stream);
expar_status ll_gpu_mask_clean(executor *base, ll_clean_step *step);

/* ---- meet.c ------------------------------------------------------------------------------------------------------ */
ll_early *ll_gpu_early_make(int32_t ranks, int32_t own); /* NULL: out of memory */
void ll_gpu_early_free(ll_early *early);
/* Returns the bytes of the words of shapes, which come after those of cleans; 0: there are none. */
uint64_t ll_gpu_shapes_bytes(const ll_gpu *self);
/* Tells all ranks that this one has laid its shape out. */
void ll_gpu_meet_say(const ll_gpu *self);
/* Call this before the call with that number (boot_topic) is launched. It waits until all ranks that are not masked
   have said their shape. EXPAR_ERR_MISMATCH: a rank has another shape. */
expar_status ll_gpu_meet(ll_gpu *self, uint64_t number);
/* Call this after the rank was masked, or after its mask was cleared. */
void ll_gpu_early_settle(ll_gpu *self, int32_t rank, bool masked);
/* For the time before there is a shape: the operations of masks, and the results of a clean. ll_gpu_early_end then
   passes them to kernels. */
void ll_gpu_early_mask(ll_gpu *self, int32_t rank, bool masked);
expar_status ll_gpu_early_query(const ll_gpu *self, int32_t *status, void *stream);
void ll_gpu_early_begin(ll_gpu *self, const uint64_t epochs[LL_KINDS]);
expar_status ll_gpu_early_end(ll_gpu *self);

/* ---- calls.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_prepare(executor *base, ll_call *call);
expar_status ll_gpu_send(executor *base, exec_call *exec, ll_call *call);
expar_status ll_gpu_receive(executor *base, exec_call *exec, ll_call *call);
const ll_counts *ll_gpu_count(executor *base);

/* ---- times.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_time(executor *base, bool on);
bool ll_gpu_times(executor *base, ll_times *out);

#endif
