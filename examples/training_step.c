/* SPDX-License-Identifier: Apache-2.0 */
/* One step of training an MoE layer, forward and backward.
 *
 *     expar run -n 4 -- training_step
 *
 * Expert e multiplies a row by its parameter, s[e]; so y[t] is the sum over slots k of w[t][k] · s[e(t,k)] · x[t].
 * Given dL/dy, the backward pass goes the opposite way. The gradient of a combine is a dispatch with the same handle.
 * The gradient of a dispatch is a combine with it, which also brings back the gradients of the weights. All numbers are
 * small and exact, so that results can be compared without a tolerance. */
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 48, HIDDEN = 64, TOPK = 2, EXPERTS_PER_RANK = 2 };

typedef struct layer {
    _Alignas(16) float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], dy[TOKENS][HIDDEN], dx[TOKENS][HIDDEN];
    int32_t topk_idx[TOKENS][TOPK];
    float weights[TOKENS][TOPK], dweights[TOKENS][TOPK];
    float s[EXPERTS_PER_RANK], ds[EXPERTS_PER_RANK]; /* of this rank's experts */
    int32_t num_experts;
} layer;

static void must(expar_status status)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", expar_status_string(status), expar_last_error());
    exit(1);
}

static float parameter_of(int32_t expert)
{
    return (float)(1 + expert % 4);
}

static void layer_fill(layer *self, int32_t rank)
{
    srand((unsigned)rank + 1);
    for (int e = 0; e < EXPERTS_PER_RANK; e++)
        self->s[e] = parameter_of(rank * EXPERTS_PER_RANK + e);
    for (int t = 0; t < TOKENS; t++) {
        int first = rand() % self->num_experts;
        for (int k = 0; k < TOPK; k++) {
            self->topk_idx[t][k] = (first + k) % self->num_experts;
            self->weights[t][k] = (float)(1 + rand() % 4) / 4;
        }
        for (int h = 0; h < HIDDEN; h++) {
            self->x[t][h] = (float)(rand() % 8);
            self->dy[t][h] = (float)(rand() % 8 - 4);
        }
    }
}

/* The forward pass. The backward pass needs *rows, with its output and handle. */
static void forward(layer *self, expar_ep *ep, expar_ep_dispatch_result *rows)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = expar_tensor_2d(self->x, EXPAR_F32, TOKENS, HIDDEN);
    dispatch.topk_idx = expar_tensor_2d(self->topk_idx, EXPAR_I32, TOKENS, TOPK);
    dispatch.topk_weights = expar_tensor_2d(self->weights, EXPAR_F32, TOKENS, TOPK);
    dispatch.num_experts = self->num_experts;
    must(expar_ep_dispatch(ep, &dispatch, rows));

    /* The experts write to memory of the pool, which combine reads in place; recv_x stays for the backward pass. */
    expar_ep_output *output;
    expar_tensor out;
    must(expar_ep_alloc(ep, (size_t)rows->num_recv_tokens * HIDDEN * sizeof(float), &output));
    must(expar_ep_output_get_tensor(output, EXPAR_EP_PART_X, &out));
    const float *in = rows->recv_x.data, *weights = rows->recv_topk_weights.data;
    const int32_t *idx = rows->recv_topk_idx.data;
    for (int64_t r = 0; r < rows->num_recv_tokens; r++) {
        float factor = 0;
        for (int64_t i = r * TOPK; i < (r + 1) * TOPK; i++)
            if (idx[i] >= 0) factor += weights[i] * self->s[idx[i]];
        for (int64_t i = r * HIDDEN; i < (r + 1) * HIDDEN; i++)
            ((float *)out.data)[i] = factor * in[i];
    }

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = expar_tensor_2d(out.data, EXPAR_F32, rows->num_recv_tokens, HIDDEN);
    combine.handle = rows->handle;
    combine.out_y = expar_tensor_2d(self->y, EXPAR_F32, TOKENS, HIDDEN);
    must(expar_ep_combine(ep, &combine, NULL));
    expar_ep_output_release(output);
}

/* The experts' backward pass. Each received row has its x and weights from the forward pass, and dy, which becomes dx.
   dw: the gradients for slots whose experts are on this rank. */
static void experts_backward(layer *self, const expar_ep_dispatch_result *rows, float *dy, float *dw)
{
    const float *x = rows->recv_x.data, *weights = rows->recv_topk_weights.data;
    const int32_t *idx = rows->recv_topk_idx.data;
    for (int64_t r = 0; r < rows->num_recv_tokens; r++) {
        float factor = 0, dot = 0;
        for (int64_t i = r * HIDDEN; i < (r + 1) * HIDDEN; i++)
            dot += x[i] * dy[i];
        for (int64_t i = r * TOPK; i < (r + 1) * TOPK; i++) {
            dw[i] = idx[i] < 0 ? 0 : self->s[idx[i]] * dot;
            if (idx[i] < 0) continue;
            self->ds[idx[i]] += weights[i] * dot;
            factor += weights[i] * self->s[idx[i]];
        }
        for (int64_t i = r * HIDDEN; i < (r + 1) * HIDDEN; i++)
            dy[i] *= factor;
    }
}

static void backward(layer *self, expar_ep *ep, expar_ep_dispatch_result *rows)
{
    expar_ep_dispatch_args dispatch = EXPAR_EP_DISPATCH_ARGS_INIT;
    dispatch.x = expar_tensor_2d(self->dy, EXPAR_F32, TOKENS, HIDDEN);
    dispatch.handle = rows->handle; /* the routing of the forward pass */
    expar_ep_dispatch_result gradients = EXPAR_EP_DISPATCH_RESULT_INIT;
    must(expar_ep_dispatch(ep, &dispatch, &gradients));

    float *dw = calloc((size_t)rows->num_recv_tokens * TOPK + 1, sizeof *dw);
    if (!dw) exit(1);
    experts_backward(self, rows, gradients.recv_x.data, dw);

    expar_ep_combine_args combine = EXPAR_EP_COMBINE_ARGS_INIT;
    combine.x = gradients.recv_x;
    combine.topk_weights = expar_tensor_2d(dw, EXPAR_F32, rows->num_recv_tokens, TOPK);
    combine.handle = rows->handle;
    combine.out_y = expar_tensor_2d(self->dx, EXPAR_F32, TOKENS, HIDDEN);
    combine.out_topk_weights = expar_tensor_2d(self->dweights, EXPAR_F32, TOKENS, TOPK);
    must(expar_ep_combine(ep, &combine, NULL));
    free(dw);
    expar_ep_output_release(gradients.output);
    expar_ep_output_release(rows->output);
    expar_ep_handle_release(rows->handle);
}

/* Returns the number of elements that differ from those computed without any communication. */
static int64_t layer_check(const layer *self)
{
    int64_t wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        float factor = 0, dot = 0;
        for (int k = 0; k < TOPK; k++)
            factor += self->weights[t][k] * parameter_of(self->topk_idx[t][k]);
        for (int h = 0; h < HIDDEN; h++) {
            dot += self->x[t][h] * self->dy[t][h];
            wrong += self->y[t][h] != factor * self->x[t][h];
            wrong += self->dx[t][h] != factor * self->dy[t][h];
        }
        for (int k = 0; k < TOPK; k++)
            wrong += self->dweights[t][k] != parameter_of(self->topk_idx[t][k]) * dot;
    }
    return wrong;
}

int main(void)
{
    expar_group *group;
    must(expar_group_create(NULL, &group));
    layer *self = calloc(1, sizeof *self);
    if (!self) return 1;
    const int32_t rank = expar_group_rank(group), size = expar_group_size(group);
    self->num_experts = EXPERTS_PER_RANK * size;
    layer_fill(self, rank);

    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = sizeof self->x[0];
    config.max_topk = TOPK;
    config.max_experts = self->num_experts;
    expar_ep *ep;
    expar_ep_dispatch_result rows = EXPAR_EP_DISPATCH_RESULT_INIT;
    must(expar_ep_create(group, &config, &ep));
    forward(self, ep, &rows);
    backward(self, ep, &rows);
    int64_t wrong = layer_check(self);
    printf("rank %d of %d: gradients of its experts %g %g, %s\n", rank, size, self->ds[0], self->ds[1],
           wrong ? "WRONG" : "outputs and gradients right");
    free(self);
    must(expar_ep_destroy(ep));
    must(expar_group_destroy(group));
    return wrong != 0;
}
