/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding in low-latency mode, as an engine does it. Two micro-batches take turns: the rows of one are in transit
 * while the other one computes.
 *
 *     expar run -n 4 -- decode
 *
 *     batch 0   send ─▶ ┄┄┄┄┄┄┄┄┄ receive, experts, send back ─▶ ┄┄┄┄┄┄┄┄┄ receive
 *     batch 1           send ─▶ ┄┄┄┄┄┄┄┄┄ receive, experts, send back ─▶ ┄┄┄┄┄┄┄┄┄ receive
 *
 * Each call only sends, and returns a hook that receives. Expert e multiplies a row by e + 1. All numbers are small and
 * exact, so the result can be compared without a tolerance. */
#include <expar/expar.h>

#include <stdio.h>
#include <stdlib.h>

enum { MOST_TOKENS = 16, HIDDEN = 512, TOPK = 3, EXPERTS_PER_RANK = 4, BATCHES = 2, STEPS = 20 };

/* One micro-batch of a step, which is a token of each of its sequences. */
typedef struct batch {
    _Alignas(16) float x[MOST_TOKENS][HIDDEN]; /* rows are read in units of 16 bytes */
    _Alignas(16) float y[MOST_TOKENS][HIDDEN];
    int32_t topk_idx[MOST_TOKENS][TOPK];
    float topk_weights[MOST_TOKENS][TOPK];
    int64_t tokens; /* 0 to MOST_TOKENS, on each rank its own: sequences begin and end */
    expar_ll_dispatch_result rows;
    expar_ll_combine_result sums;
} batch;

typedef struct engine {
    batch batches[BATCHES];
    expar_ll *ll;
    int32_t rank, ranks;
} engine;

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    exit(1);
}

/* Fills a batch. In a model, attention and the router compute this. */
static void batch_fill(batch *b, int32_t num_experts)
{
    b->tokens = rand() % (MOST_TOKENS + 1);
    for (int64_t t = 0; t < b->tokens; t++) {
        for (int h = 0; h < HIDDEN; h++)
            b->x[t][h] = (float)(rand() % 16);
        int first = rand() % num_experts;
        for (int k = 0; k < TOPK; k++) {
            b->topk_idx[t][k] = (first + k) % num_experts; /* a token has an expert at most once */
            b->topk_weights[t][k] = (float)(1 + rand() % 8) / 8;
        }
    }
}

static expar_tensor topk_idx_of(batch *b)
{
    return expar_tensor_2d(b->topk_idx, EXPAR_I32, b->tokens, TOPK);
}

static expar_tensor topk_weights_of(batch *b)
{
    return expar_tensor_2d(b->topk_weights, EXPAR_F32, b->tokens, TOPK);
}

static void batch_send(engine *e, batch *b)
{
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d(b->x, EXPAR_F32, b->tokens, HIDDEN);
    args.topk_idx = topk_idx_of(b);
    args.topk_weights = topk_weights_of(b); /* a reduced sum with a hook needs them on the experts' ranks */
    args.hook = 1;
    b->rows = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    must(expar_ll_dispatch(e->ll, &args, &b->rows));
}

/* Receives, and runs each local expert on its rows in place. recv_x is [experts][ranks · MOST_TOKENS][HIDDEN]; each
   expert has recv_count rows, from the first one on. */
static void batch_compute(engine *e, batch *b)
{
    must(expar_ll_hook_call(b->rows.hook, NULL));
    expar_ll_hook_release(b->rows.hook);
    const int32_t *count = b->rows.recv_count.data;
    for (int32_t local = 0; local < EXPERTS_PER_RANK; local++) {
        float *x = (float *)b->rows.recv_x.data + local * b->rows.recv_x.strides[0];
        for (int64_t i = 0; i < (int64_t)count[local] * HIDDEN; i++)
            x[i] *= (float)(e->rank * EXPERTS_PER_RANK + local + 1);
    }
}

static void batch_send_back(engine *e, batch *b)
{
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = b->rows.recv_x;
    args.topk_idx = topk_idx_of(b);
    args.topk_weights = topk_weights_of(b);
    args.handle = b->rows.handle;
    args.sum = EXPAR_LL_SUM_REDUCED; /* one row comes back from each rank, not from each expert */
    args.out_y = expar_tensor_2d(b->y, EXPAR_F32, b->tokens, HIDDEN);
    args.hook = 1;
    b->sums = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    must(expar_ll_combine(e->ll, &args, &b->sums));
}

static void batch_receive(batch *b)
{
    must(expar_ll_hook_call(b->sums.hook, NULL));
    expar_ll_hook_release(b->sums.hook);
    expar_ep_output_release(b->sums.output);
    expar_ll_handle_release(b->rows.handle);
    expar_ep_output_release(b->rows.output);
}

/* Returns the number of elements of y that differ from the same sum made without any communication. */
static int64_t batch_check(const batch *b)
{
    int64_t wrong = 0;
    for (int64_t t = 0; t < b->tokens; t++) {
        float factor = 0;
        for (int k = 0; k < TOPK; k++)
            factor += b->topk_weights[t][k] * (float)(b->topk_idx[t][k] + 1);
        for (int h = 0; h < HIDDEN; h++)
            wrong += b->y[t][h] != b->x[t][h] * factor;
    }
    return wrong;
}

/* Runs one layer for both micro-batches. All ranks make the same calls in the same order; hooks may be called in any
   order. */
static int64_t engine_step(engine *e)
{
    batch *b = e->batches;
    int64_t wrong = 0;
    for (int i = 0; i < BATCHES; i++) {
        batch_fill(&b[i], EXPERTS_PER_RANK * e->ranks);
        batch_send(e, &b[i]);
    }
    for (int i = 0; i < BATCHES; i++) {
        batch_compute(e, &b[i]);
        batch_send_back(e, &b[i]);
    }
    for (int i = 0; i < BATCHES; i++) {
        batch_receive(&b[i]);
        wrong += batch_check(&b[i]);
    }
    return wrong;
}

int main(void)
{
    expar_group *group;
    must(expar_group_create(NULL, &group)); /* rank and size come from the environment */
    engine *e = calloc(1, sizeof *e);
    if (!e) return 1;
    e->rank = expar_group_rank(group);
    e->ranks = expar_group_size(group);
    srand((unsigned)e->rank + 1);

    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = MOST_TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = EXPERTS_PER_RANK * e->ranks;
    config.max_row_bytes = HIDDEN * sizeof(float);
    config.sums = 1 << EXPAR_LL_SUM_REDUCED; /* no memory for sums that are not made */
    must(expar_ll_create(group, &config, &e->ll));
    int64_t wrong = 0;
    for (int step = 0; step < STEPS; step++)
        wrong += engine_step(e);
    expar_ll_stats stats = EXPAR_LL_STATS_INIT;
    must(expar_ll_get_stats(e->ll, &stats));
    printf("rank %d of %d: %llu rows out, %llu back, a buffer of %llu bytes, %s\n", e->rank, e->ranks,
           (unsigned long long)stats.dispatch_messages, (unsigned long long)stats.combine_rows,
           (unsigned long long)stats.heap_bytes, wrong ? "WRONG" : "all sums right");

    must(expar_ll_destroy(e->ll));
    free(e);
    must(expar_group_destroy(group));
    return wrong != 0;
}
