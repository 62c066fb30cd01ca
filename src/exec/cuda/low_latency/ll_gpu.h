/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA executor of low-latency calls: a call is one kernel on the caller's stream, or one for each of its phases.
 * Private to this folder.
 *
 *   create.c  the object: its place on the GPU, its memory, its kernels
 *   calls.c   phases become launches; how calls went
 *   cache.c   memory of results, kept from call to call
 *   times.c   times that kernels take
 *
 * The kernels are kernels/ll_dispatch.cu and ll_combine.cu; kernels/ll_args.h is what both sides know. The protocol is
 * theirs: epochs, units, halves and read words live on the GPU, so that graphs replay and mix with other calls. The
 * host launches, and looks at what they report. */
#ifndef EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H
#define EXPAR_EXEC_CUDA_LOW_LATENCY_LL_GPU_H

#include "exec/cuda/gpu.h"
#include "exec/cuda/kernels/ll_args.h"
#include "exec/cuda/low_latency/create.h"

typedef struct ll_gpu_cache ll_gpu_cache;

typedef struct ll_gpu {
    ll_executor base;
    /* Its place on the GPU, as an EP buffer's executor has one: heap, order, guard, report, launches. It has no
       operations and no pool. */
    gpu_executor core;
    ll_shape shape;
    ll_space space;
    ll_gpu_state *state;   /* device */
    uint64_t *waits;       /* device */
    uint8_t *kept;         /* device */
    ll_gpu_counts *counts; /* pinned, as kernels see it, and as the host does */
    ll_gpu_counts *counted;
    cuda_program *dispatch_program, *combine_program;
    cu_function dispatch_kernel, combine_kernel;
    ll_gpu_cache *cache;
    /* Calls, and those that wait for their hooks, as the host knows them as long as none was made in a capture. By
       whoever calls. */
    uint64_t made[LL_KINDS];
    bool open[LL_KINDS][LL_HALVES];
} ll_gpu;

static inline ll_gpu *ll_gpu_of(ll_executor *base)
{
    return (ll_gpu *)base;
}

/* ---- cache.c ----------------------------------------------------------------------------------------------------- */
ll_gpu_cache *ll_gpu_cache_make(void); /* NULL: no memory */
/* Blocks that are out stay good. NULL is allowed. */
void ll_gpu_cache_close(ll_gpu_cache *cache);
/* Of the driver's memory; not between the place of a call and its end. */
expar_status ll_gpu_cache_take(ll_gpu *self, uint64_t bytes, mem_block **out);

/* ---- calls.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_dispatch_send(ll_executor *base, ll_dispatch_step *step);
expar_status ll_gpu_dispatch_receive(ll_executor *base, ll_dispatch_step *step);
expar_status ll_gpu_combine_send(ll_executor *base, ll_combine_step *step);
expar_status ll_gpu_combine_receive(ll_executor *base, ll_combine_step *step);
expar_status ll_gpu_check(ll_executor *base, const char *what);
bool ll_gpu_untold(ll_executor *base, ll_verdict *verdict);
expar_status ll_gpu_tell(ll_executor *base, const ll_call *call, executor_done_fn done, void *context,
                         event_keeper *keeper);
void ll_gpu_count(ll_executor *base);

/* ---- times.c: operations ----------------------------------------------------------------------------------------- */
expar_status ll_gpu_time(ll_executor *base, bool on);
bool ll_gpu_times(ll_executor *base, ll_times *out);

#endif
