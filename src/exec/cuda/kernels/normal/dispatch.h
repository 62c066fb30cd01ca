/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a dispatch: a warp takes a token and sends it to all of its ranks. Only dispatch.cu uses it. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_NORMAL_DISPATCH_H
#define EXPAR_EXEC_CUDA_KERNELS_NORMAL_DISPATCH_H

#include "exec/cuda/kernels/normal/records.h"
#include "link/device/bulk.h"
#include "proto/serving.h"

/* The buffer advertisement of one receiver, as addresses; in shared memory. */
typedef struct gpu_target {
    uint8_t *x, *scales, *idx;
    float *weights;
    int32_t *src;
    int32_t first_row;
    int32_t rows; /* rows from this number on are dropped */
    int32_t mode;
    int32_t unused;
} gpu_target;

/* A token on its way to 32 ranks, those of one word: lane i has number 32 · word + i in the order in which they are
   served. */
typedef struct gpu_parcel {
    int64_t token;
    int64_t row;    /* at the lane's rank */
    uint8_t *x;     /* the row's place there */
    uint32_t lanes; /* bit i: it goes directly to the rank of lane i */
    int32_t rank;   /* the lane's */
} gpu_parcel;

GPU_FUNC gpu_parcel parcel_make(const gpu_dispatch_args *a, const gpu_target *targets, int64_t token, int32_t first)
{
    int32_t ranks = GPU_RANKS(&a->world.place), number = first + threadIdx.x % 32;
    gpu_parcel p;
    p.token = token;
    p.rank = 0;
    p.row = 0;
    p.x = NULL;
    bool goes = false;
    if (number < ranks) {
        p.rank = ep_served(a->world.place.rank, ranks, number);
        gpu_hop hop = hop_of(a->routing, &a->at, ranks, token, p.rank);
        const gpu_target *target = &targets[p.rank];
        p.row = (int64_t)target->first_row + hop.index;
        goes = hop.goes && p.row < target->rows && target->mode == EP_MODE_DIRECT;
        p.x = target->x + p.row * GPU_ROW_BYTES(a);
    }
    p.lanes = __ballot_sync(GPU_ALL, goes);
    return p;
}

GPU_FUNC uint8_t *shuffle_pointer(uint8_t *value, int32_t lane)
{
    return (uint8_t *)__shfl_sync(GPU_ALL, (unsigned long long)value, lane);
}

/* ---- what goes with the row -------------------------------------------------------------------------------------- */

/* One slot of a token. */
typedef struct gpu_choice {
    int64_t expert; /* -1: none */
    float weight;
} gpu_choice;

GPU_FUNC gpu_choice choice_at(const gpu_dispatch_args *a, int64_t token, int32_t k)
{
    gpu_choice c = {expert_at(&a->route, token, k), 0.0f};
    if (c.expert >= a->form.experts) c.expert = -1;
    if (a->form.weights) c.weight = a->route.weights[token * a->route.weights_pitch + k];
    return c;
}

/* Stores entry `at` of recv_topk_idx and recv_topk_weights, as the rank sees the slot. */
GPU_FUNC void put_choice(const gpu_dispatch_args *a, const gpu_choice *c, int32_t rank, uint8_t *idx, float *weights,
                         int64_t at)
{
    int32_t local = ep_expert_seen_by(c->expert, rank, a->local_experts), seen = local;
    if (a->form.options & EP_OPTION_GLOBAL_EXPERTS && local >= 0) seen = (int32_t)c->expert;
    if (a->route.idx_bytes == 8)
        ((int64_t *)idx)[at] = seen;
    else
        ((int32_t *)idx)[at] = seen;
    if (a->form.weights) weights[at] = local < 0 ? 0.0f : c->weight;
}

/* Sends recv_topk_idx and recv_topk_weights, as each of the ranks sees them; lanes take slots. */
GPU_FUNC void send_topk(const gpu_dispatch_args *a, const gpu_target *targets, const gpu_parcel *p)
{
    int32_t topk = GPU_TOPK(a), lane = threadIdx.x % 32;
    for (int32_t first = 0; first < topk; first += 32) {
        int32_t k = first + lane;
        gpu_choice choice = {-1, 0.0f};
        if (k < topk) choice = choice_at(a, p->token, k);
        for (uint32_t left = p->lanes; left; left &= left - 1) {
            int32_t bit = __ffs(left) - 1, rank = __shfl_sync(GPU_ALL, p->rank, bit);
            int64_t at = __shfl_sync(GPU_ALL, p->row, bit) * topk + k;
            if (k < topk) put_choice(a, &choice, rank, targets[rank].idx, targets[rank].weights, at);
        }
    }
}

GPU_FUNC void send_scales(const gpu_dispatch_args *a, const gpu_target *targets, const gpu_parcel *p)
{
    int32_t scales = a->form.scales, lane = threadIdx.x % 32;
    for (int32_t first = 0; first < scales; first += 32) {
        int32_t s = first + lane;
        uint32_t value = s < scales ? a->scales[p->token * a->scales_row_pitch + s * a->scales_column_pitch] : 0;
        for (uint32_t left = p->lanes; left; left &= left - 1) {
            int32_t bit = __ffs(left) - 1, rank = __shfl_sync(GPU_ALL, p->rank, bit);
            int64_t at = __shfl_sync(GPU_ALL, p->row, bit) * scales + s;
            if (s < scales) ((uint32_t *)targets[rank].scales)[at] = value;
        }
    }
}

/* Sends the token's number at its source; each lane takes a rank. */
GPU_FUNC void send_source(const gpu_target *targets, const gpu_parcel *p)
{
    int32_t lane = threadIdx.x % 32;
    if (p->lanes >> lane & 1) targets[p->rank].src[p->row] = (int32_t)p->token;
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

/* The most vectors that a lane loads at once. */
#define GPU_VECTORS 4

/* Sends a row by vectors: one load, n stores. */
GPU_FUNC void send_row_by_vectors(const gpu_dispatch_args *a, const gpu_parcel *p)
{
    const uint4 *from = (const uint4 *)(a->x + p->token * a->x_pitch_bytes);
    int32_t vectors = (int32_t)(GPU_ROW_BYTES(a) / 16), lane = threadIdx.x % 32;
    for (int32_t first = 0; first < vectors; first += 32 * GPU_VECTORS) {
        uint4 part[GPU_VECTORS];
#pragma unroll
        for (int32_t i = 0; i < GPU_VECTORS; i++)
            if (first + i * 32 + lane < vectors) part[i] = load_row(from + first + i * 32 + lane);
        for (uint32_t left = p->lanes; left; left &= left - 1) {
            uint4 *to = (uint4 *)shuffle_pointer(p->x, __ffs(left) - 1);
#pragma unroll
            for (int32_t i = 0; i < GPU_VECTORS; i++)
                if (first + i * 32 + lane < vectors) store_row(to + first + i * 32 + lane, part[i]);
        }
    }
}

#ifdef GPU_HAS_BULK
/* Sends a row by bulk copies. The engine brings the row, or as much of it as the stage holds, and copies it to each
   place. */
GPU_FUNC void send_row_by_bulk(const gpu_dispatch_args *a, const gpu_parcel *p, bulk_stage *stage)
{
    const uint8_t *from = a->x + p->token * a->x_pitch_bytes;
    int64_t bytes = GPU_ROW_BYTES(a);
    bool mine = p->lanes >> threadIdx.x % 32 & 1;
    for (int64_t at = 0; at < bytes; at += stage->bytes) {
        uint32_t part = (uint32_t)(bytes - at < stage->bytes ? bytes - at : stage->bytes);
        /* Each lane's earlier copies out of the stage have read it. */
        bulk_wait_read();
        __syncwarp();
        bulk_load(stage, from + at, part);
        if (mine) bulk_store(stage, p->x + at, part);
        bulk_commit();
    }
}
#endif

/* ---- all tokens -------------------------------------------------------------------------------------------------- */

GPU_FUNC void send_token(const gpu_dispatch_args *a, const gpu_target *targets, int64_t token, bulk_stage *stage)
{
    for (int32_t first = 0; first < GPU_RANKS(&a->world.place); first += 32) {
        gpu_parcel p = parcel_make(a, targets, token, first);
        if (!p.lanes) continue;
#ifdef GPU_HAS_BULK
        if (stage->bytes)
            send_row_by_bulk(a, &p, stage);
        else
#endif
            send_row_by_vectors(a, &p);
        if (a->form.idx_dtype) send_topk(a, targets, &p);
        if (a->form.scales) send_scales(a, targets, &p);
        if (a->form.options & EP_OPTION_SRC_TOKENS) send_source(targets, &p);
    }
}

/* Returns the token that the warp takes after the current one. Its first is its number among all warps. Warps take
   later ones by a counter, since SMs do not get equal shares of the links. Otherwise half of the warps of a long
   dispatch would finish after two thirds of its time. Only lane 0 gets the number, so that the others need not wait for
   it yet. */
GPU_FUNC uint32_t deal_token(const gpu_dispatch_args *a, uint32_t all)
{
    if (all >= a->tokens) return all;
    return threadIdx.x % 32 ? 0 : all + deal_next(&a->world.place);
}

/* The senders of each block call it; the other warps find no token. stages: stage_bytes of shared memory for each
   sender, followed by a barrier for each warp. */
GPU_FUNC void send_rows(const gpu_dispatch_args *a, const gpu_target *targets, uint8_t *stages)
{
    int32_t warp = threadIdx.x / 32, warps = a->senders;
    bulk_stage stage;
    bulk_stage_open(&stage, stages, warp, warps, a->stage_bytes);
    for (uint32_t t = warp < warps ? warp * gridDim.x + blockIdx.x : (uint32_t)a->tokens; t < a->tokens;) {
        send_token(a, targets, t, &stage);
        t = __shfl_sync(GPU_ALL, deal_token(a, warps * gridDim.x), 0);
    }
    bulk_stage_close(&stage);
}

#endif
