/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the top k of a token's scores. */
#include "router.h"

/* Keeps list[0 … *count-1] ordered by key, the best first, and at most top_k long. Experts come in rising number, so
   that an equal one comes later. */
static void insert(const float *scores, const float *bias, int32_t expert, int32_t top_k, int32_t *list, int32_t *count)
{
    float key = scores[expert] + bias[expert];
    int32_t at = *count;
    while (at > 0 && scores[list[at - 1]] + bias[list[at - 1]] < key)
        at--;
    if (at == top_k) return;
    if (*count < top_k) ++*count;
    for (int32_t i = *count - 1; i > at; i--)
        list[i] = list[i - 1];
    list[at] = expert;
}

void router_choose(const float *scores, const float *bias, int64_t rows, int32_t experts, int32_t top_k,
                   int32_t *topk_idx, float *topk_weights)
{
    for (int64_t row = 0; row < rows; row++) {
        int32_t count = 0;
        for (int32_t expert = 0; expert < experts; expert++)
            insert(scores, bias, expert, top_k, topk_idx, &count);
        float sum = 0;
        for (int32_t k = 0; k < top_k; k++)
            sum += scores[topk_idx[k]];
        for (int32_t k = 0; k < top_k; k++)
            topk_weights[k] = scores[topk_idx[k]] / sum;
        scores += experts;
        topk_idx += top_k;
        topk_weights += top_k;
    }
}
