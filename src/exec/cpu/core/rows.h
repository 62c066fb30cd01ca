/* SPDX-License-Identifier: Apache-2.0 */
/* Work on rows that every executor of the CPU needs: moving them, adding them. For this folder and those in it; payload
 * formats are in encode.h. */
#ifndef EXPAR_EXEC_CPU_CORE_ROWS_H
#define EXPAR_EXEC_CPU_CORE_ROWS_H

#include <expar/tensor.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- copy.c ------------------------------------------------------------------------------------------------------ */
/* bytes: a multiple of 16; both addresses 16-byte aligned. streaming: by non-temporal stores, see cpu_copy_fence. */
void cpu_copy_row(void *dest, const void *source, size_t bytes, bool streaming);
/* Orders this thread's streaming stores before its later releases. */
void cpu_copy_fence(void);

/* ---- sum.c ------------------------------------------------------------------------------------------------------- */
/* y = Σ rows[i], i ascending: FP32 from +0, rounded once to nearest even, canonical NaN. num_rows may be 0. dtype:
 * BF16, F16, F32. */
void cpu_sum_rows(expar_dtype dtype, void *y, const void *const *rows, int32_t num_rows, int64_t elements);

/* y = Σ weights[i] · rows[i], likewise; each product is rounded before it is added. weights NULL: all 1. */
void cpu_sum_weighted(expar_dtype dtype, void *y, const void *const *rows, const float *weights, int32_t num_rows,
                      int64_t elements);

#endif
