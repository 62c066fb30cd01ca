/* SPDX-License-Identifier: Apache-2.0 */
/* experts: the owner of some experts computes the rows that it received, on the CPU. */
#ifndef EXPAR_DEMO_EXPERTS_H
#define EXPAR_DEMO_EXPERTS_H

#include "compute.h"

typedef struct experts_scratch experts_scratch;
bool experts_scratch_create(const model_sizes *sizes, experts_scratch **out, demo_error *error);
void experts_scratch_free(experts_scratch *scratch);

/* y[row] = the sum of weight · expert(x[row]) over the experts of w that take part and that topk_idx names, in rising
   order. It is 0 if topk_idx names none. */
void experts_run(const model_sizes *sizes, const expert_weights *w, const routed_rows *rows, float *y,
                 experts_scratch *scratch);

#endif
