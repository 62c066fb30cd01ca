/* SPDX-License-Identifier: Apache-2.0 */
/* What the owner of some experts does with the rows that reach it. */
#ifndef EXPAR_DEMO_EXPERTS_H
#define EXPAR_DEMO_EXPERTS_H

#include "model.h"

/* Rows that enter the experts of one layer, with their routing. */
typedef struct routed_rows {
    int64_t count;
    const float *x;            /* [count][D] */
    const int32_t *topk_idx;   /* [count][top_k] */
    const float *topk_weights; /* [count][top_k] */
} routed_rows;

typedef struct experts_scratch experts_scratch;
bool experts_scratch_create(const model_sizes *sizes, experts_scratch **out, demo_error *error);
void experts_scratch_free(experts_scratch *scratch);

/* y[row] = sum over the loaded experts `first` … first + count - 1 in rising order, where topk_idx names them, of
   weight · expert(x[row]); 0 where it names none. Numbers of experts are those of the model's loaded ones, from 0. */
void experts_run(const model *m, int32_t layer, const routed_rows *rows, int32_t first, int32_t count, float *y,
                 experts_scratch *scratch);

#endif
