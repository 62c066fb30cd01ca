/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of a GEMM that is still writing the rows of a combine. The GEMM sets a word (release) after the rows that the
 * word stands for. The combine reads the words (acquire) before it reads rows; it writes none. A word counts while it
 * equals the value. Compiles as C17, under NVRTC and under nvcc. */
#ifndef EXPAR_PROTO_SIGNALS_H
#define EXPAR_PROTO_SIGNALS_H

#include "proto/normal.h"

typedef struct ll_signals {
    const uint32_t *words; /* [experts][blocks] */
    /* [experts] rows of x that are there; NULL: all words of an expert count. Read when the wait begins. */
    const int32_t *count;
    int64_t timeout_ns;
    int32_t experts, blocks, block_rows;
    uint32_t value;
} ll_signals;

/* Returns how many of the expert's words count. */
EP_FUNC int32_t ll_signals_due(const ll_signals *signals, int32_t expert)
{
    if (!signals->count) return signals->blocks;
    const int64_t rows = signals->count[expert], unit = signals->block_rows;
    const int64_t due = rows > 0 ? (rows + unit - 1) / unit : 0;
    return due < signals->blocks ? (int32_t)due : signals->blocks;
}

#endif
