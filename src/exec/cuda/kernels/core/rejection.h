/* SPDX-License-Identifier: Apache-2.0 */
/* Rejections that kernels write themselves: only they see an index out of range. layout.cu, dispatch.cu and the
 * kernels of low-latency mode use them. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_CORE_REJECTION_H
#define EXPAR_EXEC_CUDA_KERNELS_CORE_REJECTION_H

#include "exec/cuda/kernels/core/device.h"

/* Writes a decimal number, for the few texts that kernels write. Returns the next free position. */
GPU_FUNC int32_t put_number(char *text, int32_t at, int64_t value)
{
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    int32_t digits = 1;
    if (value < 0) text[at++] = '-';
    for (uint64_t r = rest; r > 9; r /= 10)
        digits++;
    for (int32_t i = digits - 1; i >= 0; i--, rest /= 10)
        text[at + i] = (char)('0' + rest % 10);
    return at + digits;
}

/* Writes words followed by a number. */
GPU_FUNC int32_t put_words(char *text, int32_t at, const char *words, int64_t value)
{
    while (*words)
        text[at++] = *words++;
    return put_number(text, at, value);
}

/* Writes words and the terminating zero. */
GPU_FUNC void put_text(char *text, const char *words)
{
    while (*words)
        *text++ = *words++;
    *text = 0;
}

/* EXPAR_ERR_ARGUMENT, with the text of the host's check. */
GPU_FUNC void reject_count(ep_rejection *rejection, int32_t expert, int32_t count, int32_t most)
{
    rejection->status = EXPAR_STATUS_ARGUMENT;
    int32_t at = put_words(rejection->text, 0, "tokens_per_expert[", expert);
    at = put_words(rejection->text, at, "] is ", count);
    at = put_words(rejection->text, at, "; expected 0 to ", most);
    rejection->text[at] = 0;
}

/* EXPAR_ERR_INDEX, with the text of the CPU's layout. */
GPU_FUNC void reject_index(const gpu_route *route, int32_t experts, ep_rejection *rejection, uint64_t slot)
{
    int64_t token = (int64_t)(slot >> GPU_SLOT_BITS);
    int32_t k = (int32_t)(slot & ((1u << GPU_SLOT_BITS) - 1));
    rejection->status = EXPAR_STATUS_INDEX;
    int32_t at = put_words(rejection->text, 0, "topk_idx[", token);
    at = put_words(rejection->text, at, "][", k);
    at = put_words(rejection->text, at, "] is ", expert_at(route, token, k));
    at = put_words(rejection->text, at, "; expected -1 (none) or 0 to ", experts - 1);
    rejection->text[at] = 0;
}

#endif
