/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, doorbells and completions, built by the structs and functions of rdma-core's mlx5dv.h.
 *
 * That header has no masked atomics. Their segments are declared here from the table of the format. */
#ifndef TESTS_NET_GDA_REFERENCE_H
#define TESTS_NET_GDA_REFERENCE_H

#include "net/gda/format.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <stddef.h>
#include <string.h>

#define REFERENCE_OPCODE_DUMP 0x23

typedef struct reference_masked_add_32 {
    __be32 add, boundary;
    uint8_t unused[8];
} reference_masked_add_32;
typedef struct reference_masked_swap_32 {
    __be32 swap, compare, swap_mask, compare_mask;
} reference_masked_swap_32;

/* A request of up to three blocks, as its segments. */
typedef struct reference_write {
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_raddr_seg remote;
    struct mlx5_wqe_data_seg data;
} reference_write;
typedef struct reference_inline {
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_raddr_seg remote;
    struct mlx5_wqe_inl_data_seg length;
    uint8_t bytes[GDA_MOST_INLINE];
} reference_inline;
typedef struct reference_atomic {
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_raddr_seg remote;
    union {
        struct mlx5_wqe_atomic_seg wide;
        reference_masked_add_32 add_32;
        reference_masked_swap_32 swap_32;
    } operands;
    struct mlx5_wqe_data_seg result;
} reference_atomic;
typedef struct reference_masked_swap_64 {
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_raddr_seg remote;
    struct mlx5_wqe_atomic_seg operands; /* swap, compare */
    struct mlx5_wqe_atomic_seg masks;    /* swap mask, compare mask */
    struct mlx5_wqe_data_seg result;
    uint8_t unused[48];
    struct mlx5_wqe_ctrl_seg nop;
} reference_masked_swap_64;
typedef struct reference_dump {
    struct mlx5_wqe_ctrl_seg control;
    struct mlx5_wqe_data_seg data;
} reference_dump;

typedef union reference_blocks {
    uint8_t bytes[GDA_REQUEST_BLOCKS * GDA_BLOCK_BYTES];
    struct mlx5_wqe_ctrl_seg control;
    reference_write write;
    reference_inline inlined;
    reference_atomic atomic;
    reference_masked_swap_64 swap_64;
    reference_dump dump;
} reference_blocks;

_Static_assert(offsetof(reference_write, data) == 32, "data segment of a transfer");
_Static_assert(offsetof(reference_inline, bytes) == 36, "data of an inline write");
_Static_assert(offsetof(reference_atomic, result) == 48, "data segment of an atomic");
_Static_assert(offsetof(reference_masked_swap_64, result) == 64, "data segment in the second block");
_Static_assert(offsetof(reference_masked_swap_64, nop) == 128, "NOP in the third block");
_Static_assert(sizeof(struct mlx5_cqe64) == 64 && sizeof(struct mlx5_err_cqe) == 64, "completions");

/* Keys of the request are in big-endian order; the functions of mlx5dv.h take them in the host's. */
static inline void reference_data(struct mlx5_wqe_data_seg *seg, uint32_t bytes, const gda_request *r)
{
    mlx5dv_set_data_seg(seg, bytes, be32toh(r->lkey), (uintptr_t)r->local);
}

static inline void reference_remote(struct mlx5_wqe_raddr_seg *seg, const gda_request *r)
{
    *seg = (struct mlx5_wqe_raddr_seg){.raddr = htobe64(r->remote), .rkey = r->rkey};
}

static inline void reference_control(struct mlx5_wqe_ctrl_seg *seg, const gda_request *r, uint64_t index, uint32_t qpn,
                                     uint8_t opcode, uint8_t opmod, uint8_t ds)
{
    mlx5dv_set_ctrl_seg(seg, (uint16_t)index, opcode, opmod, qpn, (uint8_t)r->flags, ds, 0, 0);
}

static inline void reference_masked_32(reference_blocks *b, const gda_request *r)
{
    if (r->form == GDA_ADD_MASKED_32)
        b->atomic.operands.add_32 = (reference_masked_add_32){.add = htobe32((uint32_t)r->operand),
                                                              .boundary = htobe32((uint32_t)r->compare_mask)};
    else
        b->atomic.operands.swap_32 = (reference_masked_swap_32){.swap = htobe32((uint32_t)r->operand),
                                                                .compare = htobe32((uint32_t)r->compare),
                                                                .swap_mask = htobe32((uint32_t)r->swap_mask),
                                                                .compare_mask = htobe32((uint32_t)r->compare_mask)};
}

static inline void reference_atomic_64(reference_blocks *b, const gda_request *r)
{
    uint64_t second = r->form == GDA_ADD_MASKED_64 ? r->compare_mask : r->compare;
    b->atomic.operands.wide = (struct mlx5_wqe_atomic_seg){.swap_add = htobe64(r->operand), .compare = htobe64(second)};
}

static inline void reference_swap_64(reference_blocks *b, const gda_request *r, uint64_t index, uint32_t qpn)
{
    gda_request silent = *r, nop = *r;
    silent.flags &= ~(uint32_t)MLX5_WQE_CTRL_CQ_UPDATE;
    nop.flags &= MLX5_WQE_CTRL_CQ_UPDATE;
    reference_control(&b->control, &silent, index, qpn, MLX5_OPCODE_ATOMIC_MASKED_CS, 9, 5);
    reference_atomic_64(b, r);
    b->swap_64.masks =
        (struct mlx5_wqe_atomic_seg){.swap_add = htobe64(r->swap_mask), .compare = htobe64(r->compare_mask)};
    reference_data(&b->swap_64.result, 8, r);
    reference_control(&b->swap_64.nop, &nop, index + 2, qpn, MLX5_OPCODE_NOP, 0, 1);
}

/* Builds the request by mlx5dv.h. */
static inline void reference_build(reference_blocks *b, const gda_request *r, uint64_t index, uint32_t qpn)
{
    *b = (reference_blocks){0};
    if (r->form != GDA_NOP && r->form != GDA_DUMP) reference_remote(&b->write.remote, r);
    switch (r->form) {
    case GDA_NOP:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_NOP, 0, 1);
        return;
    case GDA_WRITE:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_RDMA_WRITE, 0, r->bytes ? 3 : 2);
        break;
    case GDA_WRITE_IMMEDIATE:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_RDMA_WRITE_IMM, 0, r->bytes ? 3 : 2);
        b->control.imm = r->immediate;
        break;
    case GDA_READ:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_RDMA_READ, 0, r->bytes ? 3 : 2);
        break;
    case GDA_WRITE_INLINE:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_RDMA_WRITE, 0, r->bytes <= 12 ? 3 : 4);
        b->inlined.length.byte_count = htobe32(r->bytes | MLX5_INLINE_SEG);
        memcpy(b->inlined.bytes, r->data, sizeof r->data);
        return;
    case GDA_ADD_64:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_ATOMIC_FA, 0, 4);
        reference_atomic_64(b, r);
        break;
    case GDA_COMPARE_SWAP_64:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_ATOMIC_CS, 0, 4);
        reference_atomic_64(b, r);
        break;
    case GDA_ADD_MASKED_32:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_ATOMIC_MASKED_FA, 8, 4);
        reference_masked_32(b, r);
        break;
    case GDA_ADD_MASKED_64:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_ATOMIC_MASKED_FA, 9, 4);
        reference_atomic_64(b, r);
        break;
    case GDA_SWAP_MASKED_32:
        reference_control(&b->control, r, index, qpn, MLX5_OPCODE_ATOMIC_MASKED_CS, 8, 4);
        reference_masked_32(b, r);
        break;
    case GDA_SWAP_MASKED_64:
        reference_swap_64(b, r, index, qpn);
        return;
    case GDA_DUMP:
        reference_control(&b->control, r, index, qpn, REFERENCE_OPCODE_DUMP, 0, 2);
        reference_data(&b->dump.data, 1, r);
        return;
    }
    if (r->form == GDA_WRITE || r->form == GDA_WRITE_IMMEDIATE || r->form == GDA_READ) {
        if (r->bytes) reference_data(&b->write.data, r->bytes, r);
    } else {
        reference_data(&b->atomic.result, gda_word_bytes(r->form), r);
    }
}

#endif
