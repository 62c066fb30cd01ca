/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics and small writes as requests. It compiles as C17, under nvcc and under NVRTC. */
#ifndef EXPAR_NET_GDA_WORDS_H
#define EXPAR_NET_GDA_WORDS_H

#include "net/gda/keys.h"

/* The atomics, in the order of transport_atomic_op. */
typedef enum gda_op {
    GDA_OP_FETCH,
    GDA_OP_SET,
    GDA_OP_SWAP,
    GDA_OP_COMPARE_SWAP,
    GDA_OP_ADD,
    GDA_OP_AND,
    GDA_OP_OR,
    GDA_OP_XOR
} gda_op;

/* Fills form and operands for an atomic on a word of 4 or 8 bytes. Each one is a single masked atomic. The request was
   all zero. */
PORTABLE_FUNC void gda_fill_atomic(gda_request *r, uint32_t op, uint32_t bytes, uint64_t operand, uint64_t compare)
{
    const int wide = bytes == 8;
    const uint64_t all = wide ? ~(uint64_t)0 : 0xffffffffu;
    r->form = wide ? GDA_SWAP_MASKED_64 : GDA_SWAP_MASKED_32;
    r->operand = operand;
    r->swap_mask = all;
    r->compare_mask = 0;
    switch (op) {
    case GDA_OP_COMPARE_SWAP:
        r->compare = compare;
        r->compare_mask = all;
        if (wide) r->form = GDA_COMPARE_SWAP_64;
        break;
    case GDA_OP_AND:
        r->swap_mask = ~operand & all;
        break;
    case GDA_OP_OR:
        r->swap_mask = operand & all;
        break;
    case GDA_OP_XOR:
        r->form = wide ? GDA_ADD_MASKED_64 : GDA_ADD_MASKED_32;
        r->compare_mask = all;
        break;
    case GDA_OP_FETCH:
        r->operand = 0;
        r->form = wide ? GDA_ADD_64 : GDA_ADD_MASKED_32;
        break;
    case GDA_OP_ADD:
        r->form = wide ? GDA_ADD_64 : GDA_ADD_MASKED_32;
        break;
    default: /* set, swap */
        break;
    }
}

/* Fills a write of at most GDA_MOST_INLINE bytes, which travel inside the request. */
PORTABLE_FUNC void gda_fill_inline(gda_request *r, const void *source, uint32_t bytes)
{
    const uint8_t *from = (const uint8_t *)source;
    r->form = GDA_WRITE_INLINE;
    r->bytes = bytes;
    for (uint32_t i = 0; i < bytes; i++)
        r->data[i / 4] |= (uint32_t)from[i] << 8 * (i % 4);
}

/* Aims a request at an offset in pe's memory, of which it needs so many bytes. Returns 0 if they have no common key. */
PORTABLE_FUNC int gda_aim(const gda_keys *keys, int32_t pe, uint64_t offset, uint64_t bytes, gda_request *r)
{
    gda_piece piece;
    uint64_t there;
    if (!gda_find_remote(keys, pe, offset, &piece, &there) || there < bytes) return 0;
    r->remote = piece.remote;
    r->rkey = piece.rkey;
    return 1;
}

#endif
