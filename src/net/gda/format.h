/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that an mlx5 device and its driver exchange: requests (WQEs), doorbells and completions (CQEs).
 *
 * This is our own encoding. No header of rdma-core is included, so this one compiles as C17, under nvcc and under
 * NVRTC. A test (tests/net/gda/test_format.c) compares its bytes with those that the structs of mlx5dv.h give. All
 * fields are big-endian unless a comment says otherwise. Keys are stored in that order, so no thread swaps them.
 *
 * A send queue has a power-of-two number of blocks of 64 bytes. A request takes one block, or three
 * (GDA_SWAP_MASKED_64). A block consists of segments of 16 bytes: control, then what the opcode wants. */
#ifndef EXPAR_NET_GDA_FORMAT_H
#define EXPAR_NET_GDA_FORMAT_H

#include "base/portable.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "gda writes requests on little-endian processors only"
#endif

enum {
    GDA_BLOCK_BYTES = 64,
    GDA_BLOCK_WORDS = 16,
    GDA_MOST_BLOCKS = 32768,  /* of a queue: indices have 16 bits, and a window of them must tell old from new */
    GDA_REQUEST_BLOCKS = 3,   /* the most blocks of one request */
    GDA_MOST_INLINE = 28,     /* bytes of data inside a request of one block */
    GDA_MOST_BYTES = 1 << 30, /* of one request: log_msg_max is 30 */
    GDA_INDEX_MASK = 0xffff,
    GDA_QPN_MASK = 0xffffff
};

/* The opcode of a request, in the lowest byte of its control segment. */
typedef enum gda_opcode {
    GDA_OPCODE_NOP = 0x00,
    GDA_OPCODE_WRITE = 0x08,
    GDA_OPCODE_WRITE_IMMEDIATE = 0x09,
    GDA_OPCODE_READ = 0x10,
    GDA_OPCODE_COMPARE_SWAP = 0x11,
    GDA_OPCODE_FETCH_ADD = 0x12,
    GDA_OPCODE_MASKED_COMPARE_SWAP = 0x14,
    GDA_OPCODE_MASKED_FETCH_ADD = 0x15,
    GDA_OPCODE_DUMP = 0x23
} gda_opcode;
/* The opmod of masked atomics gives the size of the word. */
enum { GDA_OPMOD_32 = 0x08, GDA_OPMOD_64 = 0x09 };

/* Byte 11 of the control segment: a fence mode, when to report, and whether the receiver's event is solicited. */
enum {
    GDA_FENCE_SMALL = 0x20,
    GDA_FENCE = 0x40, /* waits for earlier reads and atomics of the queue */
    GDA_FENCE_STRONG = 0x60,
    GDA_FENCE_AND_SMALL = 0x80,
    GDA_REPORT = 0x08, /* write a CQE also when the request succeeds */
    GDA_SOLICITED = 0x02
};

/* Says what a request does. */
typedef enum gda_form {
    GDA_NOP,
    GDA_WRITE,
    GDA_WRITE_IMMEDIATE,
    GDA_WRITE_INLINE,
    GDA_READ,
    GDA_ADD_64,
    GDA_COMPARE_SWAP_64,
    GDA_ADD_MASKED_32,  /* compare_mask holds the boundaries: no carry leaves a bit that is set there */
    GDA_ADD_MASKED_64,  /* likewise */
    GDA_SWAP_MASKED_32, /* bits of swap_mask change if the bits of compare_mask are equal */
    GDA_SWAP_MASKED_64, /* two blocks, and a NOP after them, which reports for it */
    GDA_DUMP            /* reads one byte of the caller's memory: what arrived before it is visible afterwards */
} gda_form;

typedef struct gda_request {
    gda_form form;
    /* the values of byte 11 of the control segment, above */
    uint32_t flags;
    uint64_t remote, local;
    /* big-endian, as the tables of keys have them */
    uint32_t rkey, lkey;
    /* WRITE, READ: at most GDA_MOST_BYTES. Inline: at most GDA_MOST_INLINE. Others ignore it. */
    uint32_t bytes;
    /* of GDA_WRITE_IMMEDIATE, big-endian */
    uint32_t immediate;
    /* atomics: what is added or stored, and what is compared, in the low bytes */
    uint64_t operand, compare;
    uint64_t swap_mask, compare_mask;
    /* GDA_WRITE_INLINE: the data, in the order of memory, filled up with zeros */
    uint32_t data[GDA_MOST_INLINE / 4];
} gda_request;

/* One block, in the order of memory. */
typedef struct gda_block {
    uint32_t words[GDA_BLOCK_WORDS];
} gda_block;

/* ---- byte order -------------------------------------------------------------------------------------------------- */

PORTABLE_FUNC uint32_t gda_be32(uint32_t value)
{
#ifdef __CUDACC__
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}
PORTABLE_FUNC uint32_t gda_high(uint64_t value)
{
    return (uint32_t)(value >> 32);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Stores 64 bits at a place that is aligned to 4 bytes. */
PORTABLE_FUNC void gda_put_be64(uint32_t *words, uint64_t value)
{
    words[0] = gda_be32(gda_high(value));
    words[1] = gda_be32((uint32_t)value);
}

/* `ds` is the length of the request in segments. */
PORTABLE_FUNC void gda_control_segment(uint32_t *words, uint64_t index, uint32_t opmod_opcode, uint32_t qpn,
                                       uint32_t ds, uint32_t flags, uint32_t immediate)
{
    words[0] = gda_be32(opmod_opcode | (uint32_t)(index & GDA_INDEX_MASK) << 8);
    words[1] = gda_be32(qpn << 8 | ds);
    words[2] = flags << 24;
    words[3] = immediate;
}

PORTABLE_FUNC void gda_remote_segment(uint32_t *words, uint64_t address, uint32_t rkey)
{
    gda_put_be64(words, address);
    words[2] = rkey;
    words[3] = 0;
}

PORTABLE_FUNC void gda_data_segment(uint32_t *words, uint32_t bytes, uint32_t lkey, uint64_t address)
{
    words[0] = gda_be32(bytes);
    words[1] = lkey;
    gda_put_be64(words + 2, address);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Returns the number of blocks, and so of indices, that a request of the form takes. */
PORTABLE_FUNC uint32_t gda_blocks_of(gda_form form)
{
    return form == GDA_SWAP_MASKED_64 ? GDA_REQUEST_BLOCKS : 1;
}

/* Returns opmod << 24 | opcode. */
PORTABLE_FUNC uint32_t gda_code_of(gda_form form)
{
    switch (form) {
    case GDA_WRITE:
    case GDA_WRITE_INLINE:
        return GDA_OPCODE_WRITE;
    case GDA_WRITE_IMMEDIATE:
        return GDA_OPCODE_WRITE_IMMEDIATE;
    case GDA_READ:
        return GDA_OPCODE_READ;
    case GDA_ADD_64:
        return GDA_OPCODE_FETCH_ADD;
    case GDA_COMPARE_SWAP_64:
        return GDA_OPCODE_COMPARE_SWAP;
    case GDA_ADD_MASKED_32:
        return (uint32_t)GDA_OPMOD_32 << 24 | GDA_OPCODE_MASKED_FETCH_ADD;
    case GDA_ADD_MASKED_64:
        return (uint32_t)GDA_OPMOD_64 << 24 | GDA_OPCODE_MASKED_FETCH_ADD;
    case GDA_SWAP_MASKED_32:
        return (uint32_t)GDA_OPMOD_32 << 24 | GDA_OPCODE_MASKED_COMPARE_SWAP;
    case GDA_SWAP_MASKED_64:
        return (uint32_t)GDA_OPMOD_64 << 24 | GDA_OPCODE_MASKED_COMPARE_SWAP;
    case GDA_DUMP:
        return GDA_OPCODE_DUMP;
    case GDA_NOP:
        break;
    }
    return GDA_OPCODE_NOP;
}

/* Returns the length of the request in segments. A transfer of no bytes has no data segment: a device may read a length
   of 0 as 2 GiB. */
PORTABLE_FUNC uint32_t gda_segments_of(const gda_request *request)
{
    switch (request->form) {
    case GDA_WRITE:
    case GDA_WRITE_IMMEDIATE:
    case GDA_READ:
        return request->bytes ? 3 : 2;
    case GDA_WRITE_INLINE:
        return request->bytes <= 12 ? 3 : 4;
    case GDA_ADD_64:
    case GDA_COMPARE_SWAP_64:
    case GDA_ADD_MASKED_32:
    case GDA_ADD_MASKED_64:
    case GDA_SWAP_MASKED_32:
        return 4;
    case GDA_SWAP_MASKED_64:
        return 5;
    case GDA_DUMP:
        return 2;
    case GDA_NOP:
        break;
    }
    return 1;
}

/* Fills bytes 32 to 47 of an atomic's first block. */
PORTABLE_FUNC void gda_operand_segment(uint32_t *words, const gda_request *request)
{
    switch (request->form) {
    case GDA_ADD_MASKED_32:
        words[0] = gda_be32((uint32_t)request->operand);
        words[1] = gda_be32((uint32_t)request->compare_mask);
        break;
    case GDA_SWAP_MASKED_32:
        words[0] = gda_be32((uint32_t)request->operand);
        words[1] = gda_be32((uint32_t)request->compare);
        words[2] = gda_be32((uint32_t)request->swap_mask);
        words[3] = gda_be32((uint32_t)request->compare_mask);
        break;
    case GDA_ADD_MASKED_64:
        gda_put_be64(words, request->operand);
        gda_put_be64(words + 2, request->compare_mask);
        break;
    default:
        gda_put_be64(words, request->operand);
        gda_put_be64(words + 2, request->compare);
        break;
    }
}

/* Returns the size of the word that an atomic changes, and of the old value that it stores at `local`. */
PORTABLE_FUNC uint32_t gda_word_bytes(gda_form form)
{
    return form == GDA_ADD_MASKED_32 || form == GDA_SWAP_MASKED_32 ? 4 : 8;
}

PORTABLE_FUNC void gda_clear_block(gda_block *block)
{
    for (int i = 0; i < GDA_BLOCK_WORDS; i++)
        block->words[i] = 0;
}

PORTABLE_FUNC void gda_encode_inline(gda_block *block, const gda_request *request)
{
    block->words[8] = gda_be32(request->bytes | 0x80000000u);
    for (int i = 0; i < GDA_MOST_INLINE / 4; i++)
        block->words[9 + i] = request->data[i];
}

/* Fills the masks of GDA_SWAP_MASKED_64, its second block with the data segment, and the NOP that reports for it. */
PORTABLE_FUNC void gda_encode_tail(gda_block *blocks, const gda_request *request, uint64_t index, uint32_t qpn)
{
    gda_put_be64(blocks[0].words + 12, request->swap_mask);
    gda_put_be64(blocks[0].words + 14, request->compare_mask);
    gda_clear_block(&blocks[1]);
    gda_data_segment(blocks[1].words, 8, request->lkey, request->local);
    gda_clear_block(&blocks[2]);
    gda_control_segment(blocks[2].words, index + 2, GDA_OPCODE_NOP, qpn, 1, request->flags & GDA_REPORT, 0);
}

/* Writes a request for the queue `qpn` at that index into blocks[gda_blocks_of(form)]. */
PORTABLE_FUNC void gda_encode(gda_block *blocks, const gda_request *request, uint64_t index, uint32_t qpn)
{
    const uint32_t wide = request->form == GDA_SWAP_MASKED_64;
    const uint32_t flags = wide ? request->flags & ~(uint32_t)GDA_REPORT : request->flags;
    uint32_t *words = blocks->words;
    gda_clear_block(blocks);
    gda_control_segment(words, index, gda_code_of(request->form), qpn, gda_segments_of(request), flags,
                        request->form == GDA_WRITE_IMMEDIATE ? request->immediate : 0);
    if (request->form == GDA_NOP) return;
    if (request->form == GDA_DUMP) {
        gda_data_segment(words + 4, 1, request->lkey, request->local);
        return;
    }
    gda_remote_segment(words + 4, request->remote, request->rkey);
    if (request->form == GDA_WRITE_INLINE) {
        gda_encode_inline(blocks, request);
    } else if (request->form == GDA_WRITE || request->form == GDA_WRITE_IMMEDIATE || request->form == GDA_READ) {
        if (request->bytes) gda_data_segment(words + 8, request->bytes, request->lkey, request->local);
    } else {
        gda_operand_segment(words + 8, request);
        if (wide)
            gda_encode_tail(blocks, request, index, qpn);
        else
            gda_data_segment(words + 12, gda_word_bytes(request->form), request->lkey, request->local);
    }
}

/* ---- doorbells --------------------------------------------------------------------------------------------------- */

enum { GDA_RECORD_RECEIVE = 0, GDA_RECORD_SEND = 1, GDA_RECORD_WORDS = 2 };

/* Returns the word of the doorbell record: the next free block. */
PORTABLE_FUNC uint32_t gda_record_word(uint64_t prod_idx)
{
    return gda_be32((uint32_t)(prod_idx & GDA_INDEX_MASK));
}

/* Returns the 8 bytes of the doorbell register; the word at the lower address is the low half. */
PORTABLE_FUNC uint64_t gda_register_word(uint64_t prod_idx, uint32_t qpn)
{
    return (uint64_t)gda_be32(qpn << 8) << 32 | gda_be32((uint32_t)(prod_idx & GDA_INDEX_MASK) << 8);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* Words of a CQE. */
enum {
    GDA_CQE_WORDS = 16,
    GDA_CQE_IMMEDIATE = 9,
    GDA_CQE_BYTES = 11,
    GDA_CQE_SYNDROME = 13, /* vendor's syndrome in byte 54, syndrome in byte 55 */
    GDA_CQE_QPN = 14,
    GDA_CQE_LAST = 15 /* counter, signature, opcode and owner: read it as one word, first */
};
typedef enum gda_cqe_opcode {
    GDA_CQE_REQUEST = 0,
    GDA_CQE_IMMEDIATE_CAME = 1,
    GDA_CQE_REQUEST_FAILED = 13,
    GDA_CQE_RESPONSE_FAILED = 14,
    GDA_CQE_INVALID = 15
} gda_cqe_opcode;
typedef enum gda_syndrome {
    GDA_SYNDROME_LOCAL_LENGTH = 0x01,
    GDA_SYNDROME_LOCAL_OPERATION = 0x02,
    GDA_SYNDROME_LOCAL_PROTECTION = 0x04,
    GDA_SYNDROME_FLUSHED = 0x05, /* an earlier request of the queue has failed */
    GDA_SYNDROME_REMOTE_INVALID = 0x12,
    GDA_SYNDROME_REMOTE_ACCESS = 0x13,
    GDA_SYNDROME_REMOTE_OPERATION = 0x14,
    GDA_SYNDROME_RETRIES = 0x15,  /* the peer does not answer */
    GDA_SYNDROME_RECEIVER = 0x16, /* the peer has no receive request */
    GDA_SYNDROME_ABORTED = 0x22
} gda_syndrome;

PORTABLE_FUNC uint32_t gda_cqe_opcode_of(uint32_t last)
{
    return last >> 28;
}
PORTABLE_FUNC uint32_t gda_cqe_owner_of(uint32_t last)
{
    return last >> 24 & 1;
}
/* Returns the 16 low bits of the index of the first block of the completed request. */
PORTABLE_FUNC uint32_t gda_cqe_counter_of(uint32_t last)
{
    return (last & 0xff) << 8 | (last >> 8 & 0xff);
}
PORTABLE_FUNC uint32_t gda_cqe_syndrome_of(uint32_t word)
{
    return word >> 24;
}
PORTABLE_FUNC uint32_t gda_cqe_vendor_of(uint32_t word)
{
    return word >> 16 & 0xff;
}

#endif
