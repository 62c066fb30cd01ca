/* SPDX-License-Identifier: Apache-2.0 */
/* The form of a combine: how many rows it has, and whether they are sent in words. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_FORM_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_COMBINE_FORM_H

#include "exec/cuda/kernels/low_latency/call.h"

/* A value of expar_ll_sum; the host checks it. */
#define LL_GPU_REDUCED 1

/* 1: the kernel for rows in LogFMT, which handles no others. */
#ifndef LL_CODED
#define LL_CODED 0
#endif

GPU_FUNC bool ll_is_coded(const ll_combine_args *a)
{
    return LL_ALL_FORMATS ? a->coded != 0 : LL_CODED != 0;
}

/* Returns how many messages the rank has sent in the dispatch. ll_owes_words says whether rows go back to it in words:
   as sums for small batches, as rows for even smaller ones. */
GPU_FUNC int32_t ll_owed(const ll_shared *s, int32_t source)
{
    return (int32_t)((uint32_t)s->owed[source] & ~LL_HEADER_MARKS);
}
GPU_FUNC bool ll_owes_words(const ll_combine_args *a, const ll_shared *s, int32_t source)
{
    const uint32_t mark = a->call.form.sum == LL_GPU_REDUCED ? LL_HEADER_IN_WORDS : LL_HEADER_FEW;
    return !LL_MASKS && !ll_is_coded(a) && ((uint32_t)s->owed[source] & mark);
}
/* Says whether this rank's rows come back in words. */
GPU_FUNC bool ll_awaits_words(const ll_combine_args *a)
{
    const int32_t small = LL_SMALL(&a->call);
    const int32_t most = a->call.form.sum == LL_GPU_REDUCED ? small : min(small, LL_EXACT_WORD_TOKENS);
    return !LL_MASKS && !ll_is_coded(a) && most && a->routing.tokens <= most;
}

#endif
