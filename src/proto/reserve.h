/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a low-latency buffer that is made before its shape is known. This header says where the words lie that do
 * not depend on the shape, and how ranks tell each other the shape.
 *
 * A reserve of so many bytes is the same range of offsets in every PE's heap. Each rank lays out the shape by itself at
 * the start of the reserve, as proto/low_latency.h says. At the end of the reserve, wherever the shape ends, there are
 * words. Each has one writer, and is zero at first:
 *
 *     maskers       [N]           64              as in proto/low_latency.h; such a buffer always has masks
 *     cleans        [N]           clean_bytes     likewise
 *     shapes        [N]           64              the shape that each rank has laid out: LL_SHAPE_WORDS words
 *
 * A rank clears its words, and then tells its shape to all (release). A rank that has seen there (acquire) that another
 * one has the same shape may write to it, and no other rank may. So ranks may come to their first calls at any time,
 * and a rank with another shape disturbs no rank. A shape is told once and stays. */
#ifndef EXPAR_PROTO_RESERVE_H
#define EXPAR_PROTO_RESERVE_H

#include "proto/low_latency.h"

typedef struct ll_reserved {
    uint64_t bytes; /* for shapes; 0: there is no reserve */
    uint64_t maskers, cleans, shapes, total_bytes;
} ll_reserved;

/* Returns the layout of a reserve of at least so many bytes. bytes is less than 2^62. */
EP_FUNC ll_reserved ll_reserved_of(int32_t ranks, uint64_t bytes)
{
    ll_shape none = {0};
    ll_reserved reserve = {0};
    const uint64_t n = (uint64_t)ranks;
    if (bytes == 0) return reserve;
    none.ranks = ranks;
    reserve.bytes = ep_round(bytes, 4096);
    reserve.maskers = reserve.bytes;
    reserve.cleans = reserve.maskers + n * EP_LINE_BYTES;
    reserve.shapes = reserve.cleans + n * ll_space_of(&none).clean_bytes;
    reserve.total_bytes = ep_round(reserve.shapes + n * EP_LINE_BYTES, 4096);
    return reserve;
}

/* Returns the layout of a shape in the reserve, or of no shape, which has no tokens. */
EP_FUNC ll_space ll_reserved_space(const ll_reserved *reserve, const ll_shape *shape)
{
    ll_space space = ll_space_of(shape);
    space.maskers = reserve->maskers;
    space.cleans = reserve->cleans;
    space.total_bytes = reserve->total_bytes;
    return space;
}
EP_FUNC int32_t ll_reserved_holds(const ll_reserved *reserve, const ll_shape *shape)
{
    return ll_space_of(shape).total_bytes <= reserve->bytes;
}

/* A shape in words. Each word has a bit that says that it is there. */
#define LL_SHAPE_WORDS   2
#define LL_SHAPE_IS_SAID ((uint64_t)1 << 63)

typedef struct ll_shape_words {
    uint64_t words[LL_SHAPE_WORDS];
} ll_shape_words;

EP_FUNC ll_shape_words ll_shape_say(const ll_shape *shape)
{
    ll_shape_words said;
    said.words[0] = LL_SHAPE_IS_SAID | (uint64_t)shape->tokens | (uint64_t)shape->hidden << 16 |
                    (uint64_t)shape->element_bytes << 48 | (uint64_t)shape->exact << 52 |
                    (uint64_t)shape->reduced << 53;
    said.words[1] = LL_SHAPE_IS_SAID | (uint64_t)shape->topk | (uint64_t)shape->local_experts << 8;
    return said;
}
/* Returns the shape that a rank has told, for texts. It has only members that do not depend on the group. */
EP_FUNC ll_shape ll_shape_said(const ll_shape_words *said)
{
    ll_shape shape = {0};
    shape.tokens = (int32_t)(said->words[0] & 0xffff);
    shape.hidden = (int32_t)(said->words[0] >> 16 & 0x3ffffff);
    shape.element_bytes = (int32_t)(said->words[0] >> 48 & 7);
    shape.exact = (int32_t)(said->words[0] >> 52 & 1);
    shape.reduced = (int32_t)(said->words[0] >> 53 & 1);
    shape.topk = (int32_t)(said->words[1] & 0xff);
    shape.local_experts = (int32_t)(said->words[1] >> 8 & 0xffffff);
    return shape;
}
EP_FUNC int32_t ll_shapes_are_same(const ll_shape_words *a, const ll_shape_words *b)
{
    return a->words[0] == b->words[0] && a->words[1] == b->words[1];
}

#endif
