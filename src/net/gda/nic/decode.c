/* SPDX-License-Identifier: Apache-2.0 */
/* Requests are read with the structs of rdma-core's header, and every field is checked. That header has no masked
 * atomics; their operands are read by the table of the format. */
#include "net/gda/nic/parts.h"

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <string.h>

#define OPMOD_32         8
#define OPMOD_64         9
#define SIGNAL_MASK      0x0c
#define RESERVED_LOW     0x11 /* bits of byte 11 that have no meaning */
#define MOST_BYTES       (UINT32_C(1) << 30)
#define MOST_BLOCKS      2 /* of one request */
#define SEGMENTS_A_BLOCK 4

/* A request as it lies in its blocks, put together where the queue wraps. */
typedef union image {
    uint8_t bytes[MOST_BLOCKS * NIC_BLOCK_BYTES];
    struct mlx5_wqe_ctrl_seg control;
    struct {
        struct mlx5_wqe_ctrl_seg control;
        struct mlx5_wqe_data_seg data;
    } dump;
    struct {
        struct mlx5_wqe_ctrl_seg control;
        struct mlx5_wqe_raddr_seg remote;
        struct mlx5_wqe_inl_data_seg length;
        uint8_t bytes[NIC_MOST_INLINE];
    } inlined;
    struct {
        struct mlx5_wqe_ctrl_seg control;
        struct mlx5_wqe_raddr_seg remote;
        union {
            struct mlx5_wqe_data_seg data;
            struct mlx5_wqe_atomic_seg atomic;
            __be32 words[4];
        } body;
        union {
            struct mlx5_wqe_data_seg result;
            struct mlx5_wqe_atomic_seg masks;
        } tail;
        struct mlx5_wqe_data_seg wide_result;
    } access;
} image;

_Static_assert(sizeof(image) == MOST_BLOCKS * NIC_BLOCK_BYTES, "the longest request has 5 segments");

static const nic_verdict well = {0};

static nic_verdict malformed(nic_fault fault)
{
    return (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, (uint8_t)fault};
}

bool nic_is_atomic(const nic_request *request)
{
    return request->opcode == MLX5_OPCODE_ATOMIC_CS || request->opcode == MLX5_OPCODE_ATOMIC_FA ||
           request->opcode == MLX5_OPCODE_ATOMIC_MASKED_CS || request->opcode == MLX5_OPCODE_ATOMIC_MASKED_FA;
}

bool nic_waits(const nic_request *request)
{
    return (request->flags & 0xe0) != 0;
}

bool nic_reports(const nic_request *request)
{
    return (request->flags & SIGNAL_MASK) == MLX5_WQE_CTRL_CQ_UPDATE;
}

static bool decode_gather(const nic_queue *queue, uint64_t index, uint8_t *out)
{
    const uint8_t *block = (const uint8_t *)queue->blocks + (index & (queue->depth - 1)) * NIC_BLOCK_BYTES;
    if (queue->window) return queue->window->read(queue->window, out, block, NIC_BLOCK_BYTES);
    memcpy(out, block, NIC_BLOCK_BYTES);
    return true;
}

/* ---- the control segment ----------------------------------------------------------------------------------------- */

static nic_verdict decode_control(const nic_queue *queue, uint64_t index, const image *in, nic_request *out,
                                  uint32_t *ds)
{
    const uint32_t first = be32toh(in->control.opmod_idx_opcode), second = be32toh(in->control.qpn_ds);
    *out = (nic_request){.opcode = (uint8_t)first,
                         .opmod = (uint8_t)(first >> 24),
                         .flags = in->control.fm_ce_se,
                         .immediate = in->control.imm,
                         .blocks = 1};
    *ds = second & 0x3f;
    if ((first >> 8 & 0xffff) != (index & 0xffff)) return malformed(NIC_WRONG_INDEX);
    if (second >> 8 != queue->qpn) return malformed(NIC_WRONG_QPN);
    if (second & 0xc0 || in->control.signature || in->control.dci_stream_channel_id)
        return malformed(NIC_WRONG_RESERVED);
    if (out->flags & RESERVED_LOW || (out->flags >> 5) > 4) return malformed(NIC_WRONG_FLAGS);
    if ((out->flags & SIGNAL_MASK) != 0 && !nic_reports(out)) return malformed(NIC_WRONG_FLAGS);
    if (out->immediate && out->opcode != MLX5_OPCODE_RDMA_WRITE_IMM) return malformed(NIC_WRONG_RESERVED);
    return well;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static nic_verdict decode_data(const struct mlx5_wqe_data_seg *seg, nic_request *out)
{
    out->bytes = be32toh(seg->byte_count);
    out->lkey = be32toh(seg->lkey);
    out->local = be64toh(seg->addr);
    if (out->bytes == 0 || out->bytes > MOST_BYTES)
        return (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, NIC_WRONG_BYTES};
    return well;
}

static nic_verdict decode_inline(const image *in, uint32_t ds, nic_request *out)
{
    out->inlined = true;
    out->bytes = be32toh(in->inlined.length.byte_count) & ~MLX5_INLINE_SEG;
    if (out->bytes == 0 || out->bytes > NIC_MOST_INLINE)
        return (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, NIC_WRONG_BYTES};
    if (ds != (out->bytes <= 12 ? 3u : 4u)) return malformed(NIC_WRONG_LENGTH);
    memcpy(out->data, in->inlined.bytes, out->bytes);
    return well;
}

static nic_verdict decode_transfer(const image *in, uint32_t ds, nic_request *out)
{
    if (out->opmod) return malformed(NIC_WRONG_OPCODE);
    if (ds == 2) return well; /* no bytes */
    if (out->opcode == MLX5_OPCODE_RDMA_WRITE && ds >= 3 && be32toh(in->inlined.length.byte_count) & MLX5_INLINE_SEG)
        return decode_inline(in, ds, out);
    if (ds != 3) return malformed(NIC_WRONG_LENGTH);
    return decode_data(&in->access.body.data, out);
}

static nic_verdict decode_result(const struct mlx5_wqe_data_seg *seg, nic_request *out)
{
    const nic_verdict verdict = decode_data(seg, out);
    if (verdict.syndrome) return verdict;
    if (out->bytes != out->word_bytes) return (nic_verdict){MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, NIC_WRONG_BYTES};
    if (out->remote % out->word_bytes)
        return (nic_verdict){MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, NIC_WRONG_ALIGNMENT};
    return well;
}

static nic_verdict decode_plain_atomic(const image *in, uint32_t ds, nic_request *out)
{
    if (out->opmod) return malformed(NIC_WRONG_OPCODE);
    if (ds != 4) return malformed(NIC_WRONG_LENGTH);
    out->word_bytes = 8;
    out->operand = be64toh(in->access.body.atomic.swap_add);
    out->compare = be64toh(in->access.body.atomic.compare);
    out->swap_mask = UINT64_MAX;
    out->compare_mask = out->opcode == MLX5_OPCODE_ATOMIC_CS ? UINT64_MAX : 0;
    return decode_result(&in->access.tail.result, out);
}

static nic_verdict decode_masked_32(const image *in, uint32_t ds, nic_request *out)
{
    const __be32 *words = in->access.body.words;
    if (ds != 4) return malformed(NIC_WRONG_LENGTH);
    out->word_bytes = 4;
    out->operand = be32toh(words[0]);
    if (out->opcode == MLX5_OPCODE_ATOMIC_MASKED_FA) {
        out->compare_mask = be32toh(words[1]);
    } else {
        out->compare = be32toh(words[1]);
        out->swap_mask = be32toh(words[2]);
        out->compare_mask = be32toh(words[3]);
    }
    return decode_result(&in->access.tail.result, out);
}

static nic_verdict decode_masked_64(const image *in, uint32_t ds, nic_request *out)
{
    out->word_bytes = 8;
    out->operand = be64toh(in->access.body.atomic.swap_add);
    if (out->opcode == MLX5_OPCODE_ATOMIC_MASKED_FA) {
        if (ds != 4) return malformed(NIC_WRONG_LENGTH);
        out->compare_mask = be64toh(in->access.body.atomic.compare);
        return decode_result(&in->access.tail.result, out);
    }
    if (ds != 5) return malformed(NIC_WRONG_LENGTH);
    out->blocks = 2;
    out->compare = be64toh(in->access.body.atomic.compare);
    out->swap_mask = be64toh(in->access.tail.masks.swap_add);
    out->compare_mask = be64toh(in->access.tail.masks.compare);
    return decode_result(&in->access.wide_result, out);
}

/* Requests that reach the peer have its address after the control segment. */
static nic_verdict decode_access(const image *in, uint32_t ds, nic_request *out)
{
    if (ds < 2) return malformed(NIC_WRONG_LENGTH);
    if (in->access.remote.reserved) return malformed(NIC_WRONG_RESERVED);
    out->remote = be64toh(in->access.remote.raddr);
    out->rkey = be32toh(in->access.remote.rkey);
    switch (out->opcode) {
    case MLX5_OPCODE_RDMA_WRITE:
    case MLX5_OPCODE_RDMA_WRITE_IMM:
    case MLX5_OPCODE_RDMA_READ:
        return decode_transfer(in, ds, out);
    case MLX5_OPCODE_ATOMIC_CS:
    case MLX5_OPCODE_ATOMIC_FA:
        return decode_plain_atomic(in, ds, out);
    case MLX5_OPCODE_ATOMIC_MASKED_CS:
    case MLX5_OPCODE_ATOMIC_MASKED_FA:
        if (out->opmod == OPMOD_32) return decode_masked_32(in, ds, out);
        if (out->opmod == OPMOD_64) return decode_masked_64(in, ds, out);
        break;
    default:
        break;
    }
    return malformed(NIC_WRONG_OPCODE);
}

nic_verdict nic_decode(const nic_queue *queue, uint64_t index, uint64_t end, nic_request *out)
{
    image in = {0};
    uint32_t ds;
    *out = (nic_request){.blocks = 1};
    if (!decode_gather(queue, index, in.bytes)) return malformed(NIC_OUT_OF_REACH);
    const nic_verdict verdict = decode_control(queue, index, &in, out, &ds);
    if (verdict.syndrome) return verdict;
    if (ds > SEGMENTS_A_BLOCK) {
        if (ds > MOST_BLOCKS * SEGMENTS_A_BLOCK || index + 1 == end) return malformed(NIC_WRONG_LENGTH);
        if (!decode_gather(queue, index + 1, in.bytes + NIC_BLOCK_BYTES)) return malformed(NIC_OUT_OF_REACH);
    }
    if (out->opcode == MLX5_OPCODE_NOP)
        return out->opmod ? malformed(NIC_WRONG_OPCODE) : ds == 1 || ds == 2 ? well : malformed(NIC_WRONG_LENGTH);
    if (out->opcode == NIC_OPCODE_DUMP) {
        if (out->opmod) return malformed(NIC_WRONG_OPCODE);
        return ds == 2 ? decode_data(&in.dump.data, out) : malformed(NIC_WRONG_LENGTH);
    }
    return decode_access(&in, ds, out);
}
