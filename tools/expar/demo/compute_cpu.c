/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU: the calling thread runs each operation at once. */
#include "compute.h"

#include "experts.h"
#include "kernels.h"
#include "router.h"
#include <stdlib.h>
#include <string.h>

typedef struct cpu {
    compute base;
    experts_scratch *scratch;
    float *attention; /* [context] scores of one head */
    const compute_row *rows;
    int64_t count;
} cpu;

static cpu *cpu_of(compute *base)
{
    return (cpu *)base;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *cpu_alloc(compute *c, size_t bytes, demo_error *error)
{
    (void)c;
    return demo_calloc(error, 1, bytes);
}

static void cpu_release(compute *c, void *memory)
{
    (void)c;
    free(memory);
}

static bool cpu_write(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    (void)c, (void)error;
    memcpy(to, from, bytes);
    return true;
}

static bool cpu_read(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    return cpu_write(c, to, from, bytes, error);
}

static bool cpu_settle(compute *c, demo_error *error)
{
    (void)c, (void)error;
    return true;
}

static void cpu_copy(compute *c, void *to, const void *from, size_t bytes)
{
    (void)c;
    memcpy(to, from, bytes);
}

static bool cpu_reserve(compute *c, int64_t max_rows, demo_error *error)
{
    (void)c, (void)max_rows, (void)error;
    return true;
}

/* ---- the batch --------------------------------------------------------------------------------------------------- */

static void cpu_begin(compute *c, const compute_row *rows, int64_t count)
{
    cpu_of(c)->rows = rows;
    cpu_of(c)->count = count;
}

static void cpu_embed(compute *c, const float *embedding, float *x)
{
    const cpu *self = cpu_of(c);
    int64_t d = c->sizes.hidden;
    for (int64_t row = 0; row < self->count; row++)
        memcpy(x + row * d, embedding + self->rows[row].token * d, (size_t)d * sizeof(float));
}

static void cpu_file(compute *c, int32_t layer, const float *cosines, const float *sines, float *q, float *k,
                     const float *v)
{
    const cpu *self = cpu_of(c);
    const model_sizes *s = &c->sizes;
    int64_t d = s->hidden, half = d / s->heads / 2;
    for (int64_t row = 0; row < self->count; row++, q += d, k += d, v += d) {
        const compute_row *at = &self->rows[row];
        int64_t angle = at->position * half, slot = ((int64_t)layer * at->capacity + at->position) * d;
        kernel_rope(q, s->heads, half, cosines + angle, sines + angle);
        kernel_rope(k, s->heads, half, cosines + angle, sines + angle);
        memcpy(at->keys + slot, k, (size_t)d * sizeof(float));
        memcpy(at->values + slot, v, (size_t)d * sizeof(float));
    }
}

static void cpu_attend(compute *c, int32_t layer, const float *q, float *out)
{
    const cpu *self = cpu_of(c);
    int64_t d = c->sizes.hidden, head_width = d / c->sizes.heads;
    float scale = 1.0f / __builtin_sqrtf((float)head_width);
    for (int64_t row = 0; row < self->count; row++, q += d, out += d) {
        const compute_row *at = &self->rows[row];
        int64_t cache = (int64_t)layer * at->capacity * d;
        for (int64_t start = 0; start < d; start += head_width)
            kernel_attend(q + start, at->keys + cache + start, at->values + cache + start, d, at->position + 1,
                          head_width, scale, self->attention, out + start);
    }
}

/* ---- any rows ---------------------------------------------------------------------------------------------------- */

static void cpu_rmsnorm(compute *c, const float *x, int64_t rows, const float *g, float *y)
{
    kernel_rmsnorm(x, rows, c->sizes.hidden, g, c->sizes.rms_eps, y);
}

static void cpu_matmul(compute *c, const float *x, int64_t rows, int64_t inputs, const float *w, int64_t outputs,
                       float *y)
{
    (void)c;
    kernel_matmul(x, rows, inputs, w, outputs, y);
}

static void cpu_sigmoid(compute *c, float *a, int64_t n)
{
    (void)c;
    kernel_sigmoid(a, n);
}

static void cpu_add(compute *c, float *y, const float *x, int64_t n)
{
    (void)c;
    kernel_add(y, x, n);
}

static void cpu_choose(compute *c, const float *scores, const float *bias, int64_t rows, int32_t *topk_idx,
                       float *topk_weights)
{
    router_choose(scores, bias, rows, c->sizes.experts, c->sizes.top_k, topk_idx, topk_weights);
}

static void cpu_run_experts(compute *c, const expert_weights *w, const routed_rows *rows, float *y)
{
    experts_run(&c->sizes, w, rows, y, cpu_of(c)->scratch);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void cpu_free(compute *c)
{
    cpu *self = cpu_of(c);
    experts_scratch_free(self->scratch);
    free(self->attention);
    free(self);
}

static const compute_ops cpu_ops = {
    .alloc = cpu_alloc,
    .release = cpu_release,
    .write = cpu_write,
    .read = cpu_read,
    .settle = cpu_settle,
    .copy = cpu_copy,
    .reserve = cpu_reserve,
    .begin = cpu_begin,
    .embed = cpu_embed,
    .file = cpu_file,
    .attend = cpu_attend,
    .rmsnorm = cpu_rmsnorm,
    .matmul = cpu_matmul,
    .sigmoid = cpu_sigmoid,
    .add = cpu_add,
    .choose = cpu_choose,
    .run_experts = cpu_run_experts,
    .free = cpu_free,
};

static bool cpu_check(demo_error *error)
{
    (void)error;
    return true;
}

static bool cpu_create(const model_sizes *sizes, int32_t local, int32_t num_local, compute **out, demo_error *error)
{
    (void)local, (void)num_local;
    cpu *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (compute){.ops = &cpu_ops, .sizes = *sizes, .device = {.type = EXPAR_CPU}};
    self->attention = demo_calloc(error, (size_t)sizes->context, sizeof(float));
    if (!self->attention || !experts_scratch_create(sizes, &self->scratch, error)) {
        cpu_free(&self->base);
        return false;
    }
    *out = &self->base;
    return true;
}

const compute_kind compute_cpu = {.name = "cpu", .where = "on the CPU", .check = cpu_check, .create = cpu_create};

void compute_free(compute *c)
{
    if (c) c->ops->free(c);
}

expar_tensor compute_tensor(const compute *c, const void *data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)data, dtype, rows, columns);
    t.device = c->device;
    return t;
}
