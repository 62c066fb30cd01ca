/* SPDX-License-Identifier: Apache-2.0 */
/* forms: what the host hands the benchmark's kernels, as both see it. Compiles as C17, under nvcc and under NVRTC. On
 * the host, pointers are addresses of the device, not to be followed. */
#ifndef EXPAR_BENCH_GPU_KERNELS_FORMS_H
#define EXPAR_BENCH_GPU_KERNELS_FORMS_H

#include "base/portable.h"

/* Places of a row that a push with bulk copies reaches: a lane of its warp has one. */
#define COPY_PLACES 32

/* Of copy_limit.cu. */
typedef struct copy_list {
    uint8_t *own;           /* [rows] row_bytes: what is pushed, or where what is pulled goes */
    uint8_t *const *places; /* [rows][most]; NULL behind the last */
    int64_t rows, row_bytes;
    int32_t most, stage_bytes;
} copy_list;

/* Of gate.cu. */
typedef struct gate_call {
    /* [ranks], pinned host memory: the turn that each rank's host has come to, ~0 when it has given up. Written by the
       host (release), read by the kernel (acquire). */
    const uint64_t *turns;
    uint64_t turn, delay_ns, timeout_ns;
    /* Pinned host memory: set to 1 by the kernel when the deadline passed; the host reads it behind the stream. */
    uint32_t *expired;
    int32_t ranks, unused;
} gate_call;

#endif
