/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of mlx5 devices as structs for the DEVX macros of rdma-core's header: an element of an array is a bit. Only
 * what the tests read has a name. */
#ifndef TESTS_NET_GDA_FAKE_PRM_H
#define TESTS_NET_GDA_FAKE_PRM_H

#include <stdint.h>

typedef uint8_t bits;

struct mlx5_ifc_fake_cq_bits {
    bits opcode[16], uid[16], gap_20[16], op_mod[16], gap_40[64];
    /* the context */
    bits status[4], gap_84[2], record_in_umem[1], gap_87[1], cqe_size[3], collapsed[1], gap_8c[2], ignores_overrun[1];
    bits gap_8f[17], record_umem[32], gap_c0[32];
    bits gap_e0[3], log_entries[5], uar[24], moderation[32], gap_120[24], eqn[8];
    bits gap_140[3], log_page[5], gap_148[24], gap_160[32 * 7], record_offset[64];
    /* after the context */
    bits umem_offset[64], umem[32], in_umem[1], gap_2e1[31], gap_300[0x580];
};

struct mlx5_ifc_fake_path_bits {
    bits fl[1], free_ar[1], gap_2[14], pkey_index[16];
    bits gap_20[8], grh[1], mlid[7], lid[16];
    bits ack_timeout[5], gap_45[3], gid_index[8], gap_50[4], stat_rate[4], hop_limit[8];
    bits gap_60[4], traffic_class[8], flow_label[20];
    bits gid[128];
    bits gap_100[8], ecn[2], dscp[6], udp_port[16];
    bits gap_120[1], priority[3], service_level[4], port[8], mac_high[16];
    bits mac_low[32];
};

struct mlx5_ifc_fake_qp_bits {
    bits opcode[16], uid[16], gap_20[16], op_mod[16], gap_40[8], qpn[24], gap_60[32], optional[32], gap_a0[32];
    /* the context */
    bits state[4], gap_4[4], kind[8], gap_10[3], migration[2], gap_15[11];
    bits gap_20b[8], pd[24];
    bits mtu[3], log_message[5], gap_48[1], log_receives[4], log_stride[3], no_sends[1], log_blocks[4], gap_55[11];
    bits counters[8], uar[24];
    bits gap_80[8], user_index[24];
    bits gap_a0b[3], log_page[5], peer[24];
    struct mlx5_ifc_fake_path_bits path, other_path;
    bits log_ack[4], gap_384[4], log_reads[3], gap_38b[2], retries[3], rnr_retries[3], gap_393[13];
    bits gap_3a0[32];
    bits gap_3c0[8], next_psn[24];
    bits gap_3e0[8], cqn[24];
    bits gap_400[128];
    bits gap_480[8], log_served[3], gap_48b[1], atomic_mode[4], rre[1], rwe[1], rae[1], gap_493[13];
    bits gap_4a0[3], rnr_timer[5], receive_psn[24];
    bits gap_4c0[32];
    bits gap_4e0[8], receive_cqn[24];
    bits record_offset[64];
    bits q_key[32];
    bits gap_560[5], receive_kind[3], srqn[24];
    bits gap_580[32 * 8];
    bits gap_680[3], record_in_umem[1], gap_684[28], gap_6a0[32 * 4], record_umem[32];
    /* after the context, of the command that creates */
    bits umem_offset[64], umem[32], in_umem[1], gap_861[31];
};

struct mlx5_ifc_fake_out_bits {
    bits status[8], gap_8[24], syndrome[32], gap_40[8], number[24], gap_60[32];
};

_Static_assert(sizeof(struct mlx5_ifc_fake_cq_bits) == 272 * 8, "CREATE_CQ");
_Static_assert(sizeof(struct mlx5_ifc_fake_path_bits) == 44 * 8, "a path");
_Static_assert(sizeof(struct mlx5_ifc_fake_qp_bits) == 272 * 8, "CREATE_QP");

#endif
