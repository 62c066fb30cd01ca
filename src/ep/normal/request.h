/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that a dispatch wants to receive; shared by request.c and plan.c only. */
#ifndef EXPAR_EP_NORMAL_REQUEST_H
#define EXPAR_EP_NORMAL_REQUEST_H

#include "ep/normal/dispatch.h"

#define PART_BIT(part) (1u << (part))

typedef struct request {
    ep_block_shape shape; /* of all results; x_rows differs from rows when expert-major */
    bool expert_major;
    bool rows_known; /* the host knows how many rows come; else they are at most shape.rows */
    expar_ep_path path;
    const expar_tensor *out[EP_DISPATCH_PARTS]; /* the caller's memory for a part (expar_ep_part); NULL: ours */
    uint32_t staged; /* bits of parts that come to a block first, and are copied to the caller's memory */
} request;

/* As far as rows are known: from the handle. Nothing is staged. */
request part_request_of(const dispatch_call *call);
/* Bytes of one row of a part that rows bring along; 0: none does. */
static inline int64_t request_row_bytes(const request *w, int part)
{
    const ep_block_shape *shape = &w->shape;
    switch (part) {
    case EXPAR_EP_PART_X:
        return shape->row_bytes;
    case EXPAR_EP_PART_SCALES:
        return shape->scale_bytes;
    case EXPAR_EP_PART_TOPK_IDX:
        return (int64_t)shape->topk * shape->idx_bytes;
    case EXPAR_EP_PART_TOPK_WEIGHTS:
        return shape->weights ? (int64_t)shape->topk * (int64_t)sizeof(float) : 0;
    case EXPAR_EP_PART_SRC_TOKEN:
        return shape->src ? (int64_t)sizeof(int32_t) : 0;
    default:
        return 0;
    }
}
/* The part is made on this rank: the map, and what goes by it. */
static inline bool request_makes(const request *w, int part)
{
    const ep_block_shape *shape = &w->shape;
    return (part == EXPAR_EP_PART_ROW_MAP && shape->map) || (part == EXPAR_EP_PART_ROW_WEIGHTS && shape->row_weights) ||
           (part == EXPAR_EP_PART_SRC_METADATA && shape->metadata);
}
/* Expert-major rows and scales come to a block of their own first. */
static inline bool request_expands(const request *w, int part)
{
    return w->expert_major && (part == EXPAR_EP_PART_X || part == EXPAR_EP_PART_SCALES);
}
/* A step makes the result of what has come. */
static inline bool request_remakes(const request *w, int part)
{
    return request_expands(w, part) || (w->shape.column_bytes && part == EXPAR_EP_PART_SCALES);
}
/* Rows of the part come straight to the caller's memory, unless they are staged. */
static inline bool request_arrives_there(const request *w, int part)
{
    return w->out[part] && !request_remakes(w, part) && request_row_bytes(w, part) > 0;
}
/* The part has its place in the block of the results. */
static inline bool request_in_block(const request *w, int part)
{
    return !w->out[part] || w->staged & PART_BIT(part);
}
/* The block of the results, without what is the caller's. */
ep_block_map request_block(const request *w);
/* That of token-major rows and scales on their way to an expert-major output. */
ep_block_map request_arrival(const request *w);
/* Where a part begins in a block. */
static inline uint64_t request_begin(const ep_block_map *map, int part)
{
    static const size_t begins[EP_DISPATCH_PARTS] = {[EXPAR_EP_PART_X] = offsetof(ep_block_map, x),
                                                     [EXPAR_EP_PART_SCALES] = offsetof(ep_block_map, scales),
                                                     [EXPAR_EP_PART_TOPK_IDX] = offsetof(ep_block_map, idx),
                                                     [EXPAR_EP_PART_TOPK_WEIGHTS] = offsetof(ep_block_map, weights),
                                                     [EXPAR_EP_PART_ROW_MAP] = offsetof(ep_block_map, map),
                                                     [EXPAR_EP_PART_SRC_TOKEN] = offsetof(ep_block_map, src),
                                                     [EXPAR_EP_PART_ROW_WEIGHTS] = offsetof(ep_block_map, row_weights),
                                                     [EXPAR_EP_PART_SRC_METADATA] = offsetof(ep_block_map, metadata)};
    return *(const uint64_t *)(const void *)((const char *)map + begins[part]);
}
/* No block is empty. */
static inline uint64_t request_at_least_one(uint64_t bytes)
{
    return bytes ? bytes : 1;
}

#endif
