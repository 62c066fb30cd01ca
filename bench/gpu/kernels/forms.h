/* SPDX-License-Identifier: Apache-2.0 */
/* forms: arguments of the benchmark's kernels, as host and device both see them. Compiles as C17, under nvcc and under
 * NVRTC. On the host, pointers are addresses of the device, not to be followed. */
#ifndef EXPAR_BENCH_GPU_KERNELS_FORMS_H
#define EXPAR_BENCH_GPU_KERNELS_FORMS_H

#include "base/portable.h"

/* Places of a row that a push with bulk copies reaches: a lane of its warp has one. */
#define COPY_PLACES 32

/* Arguments of copy_limit.cu. */
typedef struct copy_list {
    uint8_t *own;           /* [rows] row_bytes: what is pushed, or where what is pulled goes */
    uint8_t *const *places; /* [rows][most]; NULL after the last */
    int64_t rows, row_bytes;
    int32_t most, stage_bytes;
    uint32_t *dealt; /* rows that warps have come for in all launches so far */
    uint32_t before; /* of them, those of launches before this one: rows each, where it has fewer warps than rows */
    uint32_t unused;
    uint64_t *stamps; /* [GPU_MOMENTS][blocks][warps] (exec/cuda/kernels/core/moments.h), or NULL */
} copy_list;

/* Arguments of gate.cu. */
typedef struct gate_call {
    /* [ranks], pinned host memory: the turn that each rank's host has come to, ~0 when it has given up. Written by the
       host (release), read by the kernel (acquire). */
    const uint64_t *turns;
    uint64_t turn, delay_ns, timeout_ns;
    /* Pinned host memory: set to 1 by the kernel when the deadline passed; the host reads it after the stream. */
    uint32_t *expired;
    int32_t ranks, unused;
} gate_call;

/* Arguments of encode.cu. */
#define ENCODE_GROUP 128
typedef struct encode_call {
    const void *x;    /* [groups][128] BF16 */
    uint8_t *payload; /* [groups][128] e4m3 */
    float *scales;    /* [groups] */
    int64_t groups;
} encode_call;

/* Arguments of ll_limit.cu for one copy. Bytes are whole words, and its places are aligned to 16. */
typedef struct ll_copy {
    const uint8_t *source;
    uint8_t *target;
    int64_t bytes;
    uint32_t *scales; /* words after the source go there, scale_stride apart; NULL: none */
    int32_t *info;    /* gets the token; NULL: none */
    int32_t token, unused;
} ll_copy;

/* out = Σ weight · row over `count` rows from `first` on. */
typedef struct ll_sum {
    int64_t first;
    uint8_t *out;
    int32_t count, unused;
} ll_sum;

typedef struct ll_sums {
    const ll_sum *items;
    const uint8_t *const *rows;
    const float *weights; /* of each row; NULL: all 1 */
    int64_t count;
} ll_sums;

typedef struct ll_turn {
    const ll_copy *messages, *rows;
    int64_t num_messages, num_rows;
    int64_t most_message_bytes, most_row_bytes; /* of a copy */
    int64_t all_bytes;                          /* of each copy; 0: its own */
    int64_t scale_stride;
    ll_sums partial, sums;
    int64_t row_bytes; /* of a sum */
    int32_t num_scales, dtype;
    uint64_t *stamps; /* [LL_GPU_MOMENTS][blocks][warps] (exec/cuda/kernels/core/moments.h), or NULL */
} ll_turn;

typedef struct ll_trip_call {
    /* Written by the other one of ranks 0 and 1 (release), read by the owner (acquire): the round trips begun so far.
       */
    uint64_t *own, *peers;
    uint64_t first, timeout_ns;
    uint32_t *expired; /* as of gate_call */
    int32_t trips, rank;
} ll_trip_call;

/* Arguments of an empty launch, with about as many bytes as those of a call. */
typedef struct ll_nothing {
    uint64_t unused[96];
} ll_nothing;

#endif
