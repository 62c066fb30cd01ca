/* SPDX-License-Identifier: Apache-2.0 */
/* The router: which experts a token goes to, and with which weights. */
#ifndef EXPAR_DEMO_ROUTER_H
#define EXPAR_DEMO_ROUTER_H

#include <stdint.h>

/* From scores [rows][experts] (sigmoids) the top_k with the largest score + bias, best first, of equals the lower
   number: topk_idx [rows][top_k]; topk_weights: their scores divided by the scores' sum. */
void router_choose(const float *scores, const float *bias, int64_t rows, int32_t experts, int32_t top_k,
                   int32_t *topk_idx, float *topk_weights);

#endif
