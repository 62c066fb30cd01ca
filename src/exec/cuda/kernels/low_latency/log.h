/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of LogFMT on their way back (proto/codec/logfmt.h): heads, two FP32 a group, and behind them the groups without
 * gaps. A warp has up to 32 groups at a time. What there is to know of a group, a lane finds out for all: lane i of the
 * i-th one, so that logarithms and quotients of 32 heads take as long as those of one. Then the warp codes one after
 * the other, or decodes them, four elements a lane.
 *
 * Where a group begins follows from how many before it in its row go as BF16, which have a head of zeros: the sender
 * (log_send.h) keeps a byte for each in shared memory, the receiver (log_receive.h) looks at the heads. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H

#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/low_latency/combine_messages.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "proto/codec/codec.h"

#define LL_LOG_LANE 4 /* elements */

GPU_FUNC int32_t ll_log_groups(const ll_gpu_call *c)
{
    return LL_HIDDEN(c) / LOGFMT_GROUP;
}
/* Of a group, in bytes from the row's place. */
GPU_FUNC int32_t ll_log_begin(const ll_gpu_call *c, int32_t group, int32_t bf16_before)
{
    return 8 * ll_log_groups(c) + group * LOGFMT_CODED_BYTES + bf16_before * (LOGFMT_BF16_BYTES - LOGFMT_CODED_BYTES);
}
/* What a warp knows of a group, from the lane that has found it out. */
GPU_FUNC logfmt_range ll_log_range_of(const logfmt_range *range, int32_t lane)
{
    logfmt_range of = *range;
    of.least = __shfl_sync(GPU_ALL, range->least, lane);
    of.start.exponent = __shfl_sync(GPU_ALL, range->start.exponent, lane);
    of.start.fraction = __shfl_sync(GPU_ALL, range->start.fraction, lane);
    return of;
}

/* Of a mask: its i-th lane from below, i being this lane's number; this lane where there are not so many. */
GPU_FUNC int32_t ll_log_lane_of(uint32_t mask)
{
    const int32_t lane = threadIdx.x % 32;
    int32_t from = lane;
    for (int32_t i = 0; mask; mask &= mask - 1, i++)
        if (i == lane) from = __ffs((int)mask) - 1;
    return from;
}

#endif
