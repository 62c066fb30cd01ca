/* SPDX-License-Identifier: Apache-2.0 */
/* One MoE layer on any number of ranks: tokens go to their experts, each expert scales its rows, the sums come back.
 *
 *     expar run -n 4 -- moe_layer
 *
 * Expert e multiplies a row by e + 1. All numbers are small and exact, so the result can be compared without a
 * tolerance. */
#include <expar/expar.h>

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 64, HIDDEN = 1024, TOPK = 4, EXPERTS_PER_RANK = 2 };

/* This rank's share of the layer. */
typedef struct moe_layer {
    _Alignas(16) float x[TOKENS][HIDDEN]; /* rows are read in units of 16 bytes */
    float y[TOKENS][HIDDEN];
    int32_t rank, num_experts;
    int32_t topk_idx[TOKENS][TOPK];
    float topk_weights[TOKENS][TOPK];
} moe_layer;

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    exit(1);
}

static void layer_fill(moe_layer *layer)
{
    srand((unsigned)layer->rank + 1);
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HIDDEN; h++)
            layer->x[t][h] = (float)(rand() % 16);
        int first = rand() % layer->num_experts;
        for (int k = 0; k < TOPK; k++) {
            layer->topk_idx[t][k] = k < layer->num_experts ? (first + k) % layer->num_experts : -1;
            layer->topk_weights[t][k] = (float)(1 + rand() % 8) / 8;
        }
    }
}

/* Runs the experts of this rank. recv_topk_idx has their local numbers, and -1 if a slot's expert is on another
   rank. */
static void experts_apply(const moe_layer *layer, const expar_ep_dispatch_result *rows)
{
    float *x = rows->recv_x.data;
    const int32_t *idx = rows->recv_topk_idx.data;
    const float *weights = rows->recv_topk_weights.data;
    for (int64_t r = 0; r < rows->num_recv_tokens; r++) {
        float factor = 0;
        for (int k = 0; k < TOPK; k++) {
            int32_t local = idx[r * TOPK + k];
            if (local < 0) continue;
            factor += weights[r * TOPK + k] * (float)(layer->rank * rows->num_local_experts + local + 1);
        }
        for (int h = 0; h < HIDDEN; h++)
            x[r * HIDDEN + h] *= factor;
    }
}

static int64_t layer_run(moe_layer *layer, expar_ep *ep)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = expar_tensor_2d(layer->x, EXPAR_F32, TOKENS, HIDDEN);
    dispatch.topk_idx = expar_tensor_2d(layer->topk_idx, EXPAR_I32, TOKENS, TOPK);
    dispatch.topk_weights = expar_tensor_2d(layer->topk_weights, EXPAR_F32, TOKENS, TOPK);
    dispatch.num_experts = layer->num_experts;
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    must(expar_ep_dispatch(ep, &dispatch, &rows));

    experts_apply(layer, &rows);

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = rows.recv_x;
    combine.handle = rows.handle;
    combine.out_y = expar_tensor_2d(layer->y, EXPAR_F32, TOKENS, HIDDEN);
    must(expar_ep_combine(ep, &combine, NULL));

    int64_t received = rows.num_recv_tokens;
    expar_ep_output_release(rows.output);
    expar_ep_handle_release(rows.handle);
    return received;
}

/* Returns the number of elements of y that differ from the same sum made without any communication. */
static int64_t layer_check(const moe_layer *layer)
{
    int64_t wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        float factor = 0;
        for (int k = 0; k < TOPK; k++) {
            if (layer->topk_idx[t][k] >= 0) factor += layer->topk_weights[t][k] * (float)(layer->topk_idx[t][k] + 1);
        }
        for (int h = 0; h < HIDDEN; h++)
            wrong += layer->y[t][h] != layer->x[t][h] * factor;
    }
    return wrong;
}

int main(void)
{
    expar_group *group;
    must(expar_group_create(NULL, &group)); /* rank and size come from the environment */
    moe_layer *layer = calloc(1, sizeof *layer);
    if (!layer) return 1;
    layer->rank = expar_group_rank(group);
    layer->num_experts = EXPERTS_PER_RANK * expar_group_size(group);
    layer_fill(layer);

    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = sizeof layer->x[0];
    config.max_topk = TOPK;
    config.max_experts = layer->num_experts;
    expar_ep *ep;
    must(expar_ep_create(group, &config, &ep));
    int64_t received = layer_run(layer, ep);
    int64_t wrong = layer_check(layer);
    printf("rank %d of %d: sent %d tokens, received %lld rows, %s\n", layer->rank, expar_group_size(group), TOKENS,
           (long long)received, wrong ? "WRONG" : "all sums right");

    free(layer);
    must(expar_ep_destroy(ep));
    must(expar_group_destroy(group));
    return wrong != 0;
}
