/* SPDX-License-Identifier: Apache-2.0 */
/* The experts' two-layer networks. Rows are grouped by expert and go through it in blocks, so that its weights are read
 * once for many rows and the scratch memory stays in the cache. */
#include "experts.h"

#include "kernels.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 64 };

struct experts_scratch {
    float *x;                /* [BLOCK_ROWS][D] the rows of one expert */
    float *gate, *up;        /* [BLOCK_ROWS][F] */
    float *out;              /* [BLOCK_ROWS][D] */
    int64_t row[BLOCK_ROWS]; /* the source row of each */
    float weight[BLOCK_ROWS];
    int64_t count;
};

bool experts_scratch_create(const model_sizes *sizes, experts_scratch **out, demo_error *error)
{
    experts_scratch *s = demo_calloc(error, 1, sizeof *s);
    if (!s) return false;
    s->x = demo_calloc(error, (size_t)BLOCK_ROWS * (size_t)sizes->hidden, sizeof(float));
    s->gate = demo_calloc(error, (size_t)BLOCK_ROWS * (size_t)sizes->expert_ffn, sizeof(float));
    s->up = demo_calloc(error, (size_t)BLOCK_ROWS * (size_t)sizes->expert_ffn, sizeof(float));
    s->out = demo_calloc(error, (size_t)BLOCK_ROWS * (size_t)sizes->hidden, sizeof(float));
    if (!s->x || !s->gate || !s->up || !s->out) {
        experts_scratch_free(s);
        return false;
    }
    *out = s;
    return true;
}

void experts_scratch_free(experts_scratch *s)
{
    if (!s) return;
    free(s->x);
    free(s->gate);
    free(s->up);
    free(s->out);
    free(s);
}

/* Sends the gathered block through one expert and adds its output to the rows. */
static void flush(const model_sizes *sizes, const expert_weights *w, int32_t expert, float *y, experts_scratch *s)
{
    int64_t d = sizes->hidden, f = sizes->expert_ffn, matrix = (int64_t)expert * d * f;
    kernel_matmul(s->x, s->count, d, w->w1 + matrix, f, s->gate);
    kernel_matmul(s->x, s->count, d, w->w3 + matrix, f, s->up);
    kernel_silu_multiply(s->gate, s->up, s->count * f);
    kernel_matmul(s->gate, s->count, f, w->w2 + matrix, d, s->out);
    for (int64_t i = 0; i < s->count; i++)
        kernel_add_scaled(y + s->row[i] * d, s->out + i * d, s->weight[i], d);
    s->count = 0;
}

static void run_one(const model_sizes *sizes, const expert_weights *w, const routed_rows *rows, int32_t expert,
                    float *y, experts_scratch *s)
{
    int64_t d = sizes->hidden, top_k = sizes->top_k;
    s->count = 0;
    for (int64_t i = 0; i < rows->count * top_k; i++) {
        if (rows->topk_idx[i] != expert) continue;
        memcpy(s->x + s->count * d, rows->x + i / top_k * d, (size_t)d * sizeof(float));
        s->row[s->count] = i / top_k;
        s->weight[s->count] = rows->topk_weights[i];
        if (++s->count == BLOCK_ROWS) flush(sizes, w, expert, y, s);
    }
    if (s->count > 0) flush(sizes, w, expert, y, s);
}

void experts_run(const model_sizes *sizes, const expert_weights *w, const routed_rows *rows, float *y,
                 experts_scratch *scratch)
{
    memset(y, 0, (size_t)(rows->count * sizes->hidden) * sizeof(float));
    for (int32_t expert = w->first; expert < w->first + w->count; expert++)
        run_one(sizes, w, rows, expert, y, scratch);
}
