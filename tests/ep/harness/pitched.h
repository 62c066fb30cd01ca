/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices whose rows stand further apart than they are long, with known bytes in the gaps. */
#ifndef TESTS_EP_HARNESS_PITCHED_H
#define TESTS_EP_HARNESS_PITCHED_H

#include <expar/expar.h>
#include <stdbool.h>

/* Memory for [rows][columns] with `gap` elements after each row, filled with the gap's byte. Freed by pitched_free.
   NULL data for an empty one when null_if_empty. */
expar_tensor pitched_make(expar_dtype dtype, int64_t rows, int64_t columns, int64_t gap, bool null_if_empty);
/* Such memory with contiguous rows in it. */
expar_tensor pitched_make_filled(const void *rows, expar_dtype dtype, int64_t count, int64_t columns, int64_t gap,
                                 bool null_if_empty);
/* Likewise, of experts' numbers: i64 when wide, else i32. */
expar_tensor pitched_make_idx(const int64_t *idx, bool wide, int64_t rows, int64_t topk, int64_t gap,
                              bool null_if_empty);
/* A view like it over given memory. */
expar_tensor pitched_view(void *data, expar_dtype dtype, int64_t rows, int64_t columns, int64_t gap);
void pitched_free(expar_tensor *tensor);
/* From and against contiguous rows. */
void pitched_fill(const expar_tensor *tensor, const void *rows);
bool pitched_equals(const expar_tensor *tensor, const void *rows);
/* Nobody wrote between the rows, nor after the last. Only for tensors from pitched_make. */
bool pitched_gaps_intact(const expar_tensor *tensor);

#endif
