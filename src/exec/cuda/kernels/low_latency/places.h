/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of a call's data: proto/low_latency.h for this buffer's shape. Kernels that are compiled for a shape
 * have it in their code. Offsets are then constants, divisions are shifts, and loops over slots are unrolled. Kernels
 * for any shape read it from their arguments. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PLACES_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PLACES_H

/* watch.h must see it, whichever header of kernels/core is included first. */
#ifndef GPU_LOOK_ASIDE
#error "a low-latency kernel defines GPU_LOOK_ASIDE before it includes anything"
#endif
#include "exec/cuda/kernels/core/device.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"

/* ---- the shape --------------------------------------------------------------------------------------------------- */

/* exec/cuda/low_latency/create.c gives all of these macros or none. */
GPU_FUNC ll_shape ll_shape_here(const ll_gpu_call *c)
{
#ifdef EXPAR_LL_TOKENS
    ll_shape shape;
    shape.ranks = EXPAR_RANKS;
    shape.tokens = EXPAR_LL_TOKENS;
    shape.topk = EXPAR_TOPK;
    shape.local_experts = EXPAR_LL_LOCALS;
    shape.hidden = EXPAR_LL_HIDDEN;
    shape.element_bytes = EXPAR_LL_ELEMENT_BYTES;
    shape.exact = EXPAR_LL_EXACT;
    shape.reduced = EXPAR_LL_REDUCED_TOO;
    shape.masking = EXPAR_LL_MASKING;
    shape.regions = EXPAR_LL_REGION_COUNT;
    shape.word_tokens = EXPAR_LL_WORDS;
    shape.unmapped = 0; /* GPUs reach all ranks */
    return shape;
#else
    return c->shape;
#endif
}
GPU_FUNC ll_space ll_space_here(const ll_gpu_call *c)
{
#ifdef EXPAR_LL_TOKENS
    const ll_shape shape = ll_shape_here(c);
    return ll_space_of(&shape);
#else
    return c->space;
#endif
}

#define LL_RANKS(c)       GPU_RANKS(&(c)->place)
#define LL_TOKENS(c)      (ll_shape_here(c).tokens)
#define LL_LOCALS(c)      (ll_shape_here(c).local_experts)
#define LL_HIDDEN(c)      (ll_shape_here(c).hidden)
#define LL_SMALL(c)       (ll_shape_here(c).word_tokens) /* tokens of a batch that goes in words; 0: none does */
#define LL_BUFFER_TOPK(c) (ll_shape_here(c).topk)
#define LL_MOST_ROWS(c)   (LL_TOKENS(c) * LL_BUFFER_TOPK(c)) /* most rows of a source for an expert (ll_rows_at_most) */

/* Returns the number of row places of an expert: N * B. */
GPU_FUNC uint32_t ll_rows_of_expert(const ll_gpu_call *c)
{
    return (uint32_t)LL_RANKS(c) * (uint32_t)LL_TOKENS(c);
}

/* 1: the number of slots of a token is known, and small enough for a register for each. */
#if defined(EXPAR_LL_TOKENS) && EXPAR_TOPK <= 8
#define LL_FEW_SLOTS 1
#else
#define LL_FEW_SLOTS 0
#endif

/* Stands before a loop over slots. */
#if LL_FEW_SLOTS
#define LL_UNROLL_SLOTS _Pragma("unroll")
#elif defined(EXPAR_LL_TOKENS)
#define LL_UNROLL_SLOTS _Pragma("unroll 4")
#else
#define LL_UNROLL_SLOTS _Pragma("unroll 1")
#endif

/* ---- this rank's memory, and the others' ------------------------------------------------------------------------- */

GPU_FUNC uint8_t *ll_own(const ll_gpu_call *c, uint64_t offset)
{
    return c->own + offset;
}

/* ---- words ------------------------------------------------------------------------------------------------------- */

GPU_FUNC uint64_t ll_header_place(const ll_gpu_call *c, ll_kind kind, int32_t source, uint64_t epoch)
{
    const ll_space space = ll_space_here(c);
    return ll_header_at(&space, kind, source, epoch);
}
/* Returns the offset of the text from the header's begin. */
GPU_FUNC uint64_t ll_header_text_place(const ll_gpu_call *c, ll_kind kind)
{
    const ll_shape shape = ll_shape_here(c);
    return ll_header_text_at(&shape, kind);
}
GPU_FUNC uint64_t ll_read_place(const ll_gpu_call *c, ll_kind kind, int32_t receiver, uint64_t epoch)
{
    const ll_space space = ll_space_here(c);
    return ll_read_at(&space, kind, receiver, epoch);
}
GPU_FUNC uint64_t ll_message_flag_place(const ll_gpu_call *c, int32_t source, uint64_t epoch, int32_t message)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_message_flag_at(&space, &shape, source, epoch, message);
}
GPU_FUNC uint64_t ll_row_flag_place(const ll_gpu_call *c, uint64_t number)
{
    const ll_space space = ll_space_here(c);
    return ll_row_flag_at(&space, number);
}
GPU_FUNC uint64_t ll_weight_flag_place(const ll_gpu_call *c, int32_t source, uint64_t epoch, int32_t message)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_weight_flag_at(&space, &shape, source, epoch, message);
}
GPU_FUNC uint64_t ll_masker_place(const ll_gpu_call *c, int32_t source)
{
    const ll_space space = ll_space_here(c);
    return ll_masker_at(&space, source);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

GPU_FUNC uint64_t ll_message_place(const ll_gpu_call *c, int32_t source, int32_t bank, int32_t message)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_message_at(&space, &shape, source, bank, message);
}
/* Returns the offset of the payload from a message's begin. */
GPU_FUNC uint64_t ll_header_bytes(const ll_gpu_call *c)
{
    return ll_space_here(c).header_bytes;
}
/* ll_number_of returns the number of a place (ll_place_number), ll_row_place its row. */
GPU_FUNC uint64_t ll_number_of(const ll_gpu_call *c, uint64_t epoch, int32_t region, int32_t token, int32_t place)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_place_number(&space, &shape, epoch, region, token, place);
}
GPU_FUNC uint64_t ll_row_place(const ll_gpu_call *c, uint64_t number)
{
    const ll_space space = ll_space_here(c);
    return ll_row_at(&space, number);
}
GPU_FUNC uint64_t ll_weights_place(const ll_gpu_call *c, int32_t source, uint64_t epoch, int32_t message)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_weights_at(&space, &shape, source, epoch, message);
}
GPU_FUNC uint64_t ll_word_message_place(const ll_gpu_call *c, int32_t source, uint64_t epoch, int32_t message)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_word_message_at(&space, &shape, source, epoch, message);
}
GPU_FUNC uint64_t ll_word_row_place(const ll_gpu_call *c, uint64_t epoch, int32_t token, int32_t place)
{
    const ll_space space = ll_space_here(c);
    const ll_shape shape = ll_shape_here(c);
    return ll_word_row_at(&space, &shape, epoch, token, place);
}

#endif
