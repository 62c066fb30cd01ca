/* SPDX-License-Identifier: Apache-2.0 */
/* Rows in LogFMT of a combine (proto/codec/logfmt.h): heads, two FP32 for each group, followed by the groups without
 * gaps.
 *
 * A warp works on up to 32 groups at a time. Lane i computes what all lanes need to know of the i-th group, so that
 * logarithms and quotients of 32 heads take as long as those of one. Then the warp codes or decodes one group after the
 * other, four elements in each lane.
 *
 * The address of a group depends on the number of earlier groups in its row that go as BF16; these have a head of
 * zeros. The sender (log_send.h) keeps a byte for each group in shared memory. The receiver (log_receive.h) looks at
 * the heads. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_LOG_H

#include "exec/cuda/kernels/core/number.h"
#include "exec/cuda/kernels/low_latency/combine_messages.h"
#include "exec/cuda/kernels/low_latency/split.h"
#include "proto/codec/codec.h"

#define LL_LOG_LANE 4 /* elements of a lane */

GPU_FUNC int32_t ll_log_groups(const ll_gpu_call *c)
{
    return LL_HIDDEN(c) / LOGFMT_GROUP;
}
/* Returns the offset of a group in bytes, from the row's place. */
GPU_FUNC int32_t ll_log_begin(const ll_gpu_call *c, int32_t group, int32_t bf16_before)
{
    return 8 * ll_log_groups(c) + group * LOGFMT_CODED_BYTES + bf16_before * (LOGFMT_BF16_BYTES - LOGFMT_CODED_BYTES);
}
/* Gives all lanes the range of a group, from the lane that has computed it. */
GPU_FUNC logfmt_range ll_log_range_of(const logfmt_range *range, int32_t lane)
{
    logfmt_range of = *range;
    of.least = __shfl_sync(GPU_ALL, range->least, lane);
    of.start.exponent = __shfl_sync(GPU_ALL, range->start.exponent, lane);
    of.start.fraction = __shfl_sync(GPU_ALL, range->start.fraction, lane);
    return of;
}

/* Returns the lane of the i-th lowest bit of the mask, i being this lane's number, or this lane if there are fewer
   bits. */
GPU_FUNC int32_t ll_log_lane_of(uint32_t mask)
{
    const int32_t lane = threadIdx.x % 32;
    int32_t from = lane;
    for (int32_t i = 0; mask; mask &= mask - 1, i++)
        if (i == lane) from = __ffs((int)mask) - 1;
    return from;
}

#endif
