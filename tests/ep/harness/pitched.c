/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices with gaps. */
#include "ep/harness/pitched.h"
#include "ep/harness/traffic.h"
#include <stdlib.h>
#include <string.h>

#define GAP_BYTE 0xa5
/* The gap after the last row, where an overrun would go; a multiple of 16. */
#define TAIL_BYTES 64

static size_t pitch_bytes(const expar_tensor *tensor)
{
    return (size_t)tensor->strides[0] * expar_dtype_bytes(tensor->dtype);
}

static size_t row_bytes(const expar_tensor *tensor)
{
    return (size_t)tensor->shape[1] * expar_dtype_bytes(tensor->dtype);
}

expar_tensor pitched_view(void *data, expar_dtype dtype, int64_t rows, int64_t columns, int64_t gap)
{
    expar_tensor tensor = expar_tensor_2d(data, dtype, rows, columns);
    tensor.strides[0] = columns + gap;
    return tensor;
}

expar_tensor pitched_make(expar_dtype dtype, int64_t rows, int64_t columns, int64_t gap, bool null_if_empty)
{
    expar_tensor tensor = pitched_view(NULL, dtype, rows, columns, gap);
    if (rows == 0 && null_if_empty) return tensor;
    size_t bytes = (size_t)rows * pitch_bytes(&tensor) + TAIL_BYTES;
    tensor.data = traffic_alloc(bytes, 1);
    memset(tensor.data, GAP_BYTE, bytes);
    return tensor;
}

void pitched_free(expar_tensor *tensor)
{
    free(tensor->data);
    tensor->data = NULL;
}

void pitched_fill(const expar_tensor *tensor, const void *rows)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        memcpy((char *)tensor->data + (size_t)i * pitch_bytes(tensor),
               (const char *)rows + (size_t)i * row_bytes(tensor), row_bytes(tensor));
}

bool pitched_equals(const expar_tensor *tensor, const void *rows)
{
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        if (memcmp((const char *)tensor->data + (size_t)i * pitch_bytes(tensor),
                   (const char *)rows + (size_t)i * row_bytes(tensor), row_bytes(tensor)) != 0)
            return false;
    return true;
}

static bool all_gap(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != GAP_BYTE) return false;
    return true;
}

bool pitched_gaps_intact(const expar_tensor *tensor)
{
    const unsigned char *data = tensor->data;
    if (!data) return true;
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        if (!all_gap(data + (size_t)i * pitch_bytes(tensor) + row_bytes(tensor),
                     pitch_bytes(tensor) - row_bytes(tensor)))
            return false;
    return all_gap(data + (size_t)tensor->shape[0] * pitch_bytes(tensor), TAIL_BYTES);
}

expar_tensor pitched_make_filled(const void *rows, expar_dtype dtype, int64_t count, int64_t columns, int64_t gap,
                                 bool null_if_empty)
{
    expar_tensor tensor = pitched_make(dtype, count, columns, gap, null_if_empty);
    pitched_fill(&tensor, rows);
    return tensor;
}

expar_tensor pitched_make_idx(const int64_t *idx, bool wide, int64_t rows, int64_t topk, int64_t gap,
                              bool null_if_empty)
{
    expar_tensor tensor = pitched_make(wide ? EXPAR_I64 : EXPAR_I32, rows, topk, gap, null_if_empty);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < topk; k++) {
            const int64_t at = row * tensor.strides[0] + k, expert = idx[row * topk + k];
            if (wide)
                ((int64_t *)tensor.data)[at] = expert;
            else
                ((int32_t *)tensor.data)[at] = (int32_t)expert;
        }
    return tensor;
}
