/* SPDX-License-Identifier: Apache-2.0 */
/* The router: it chooses the experts of a token, and their weights. */
#ifndef EXPAR_DEMO_ROUTER_H
#define EXPAR_DEMO_ROUTER_H

#include <stdint.h>

/* Chooses, from scores [rows][experts] (sigmoids), the top_k with the largest score + bias, best first; of equals, the
   lower number. It writes topk_idx [rows][top_k], and topk_weights: their scores divided by the sum of these. */
void router_choose(const float *scores, const float *bias, int64_t rows, int32_t experts, int32_t top_k,
                   int32_t *topk_idx, float *topk_weights);

#endif
