/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: operations are kernels (kernels/model.cu) on a stream of their own. Only the thread that made an object uses
 * it. That thread stays in its device until it frees it.
 *
 * Ranks that share a GPU wait for each other inside the library's kernels. So nothing here may wait for a whole device
 * between the first and the last batch. Memory is allocated before and freed after. */
#include "compute.h"

#include "tool_kernels.h"
#include <expar/info.h>
#include <stdlib.h>
#include <string.h>

#define THREADS DEMO_THREADS

/* The most SMs of a rank's dispatch, so that the other ranks of its GPU can go on computing. */
#define MOST_SMS 8

enum kernel { EMBED, FILE_KEYS, ATTEND, RMSNORM, MATMUL, SIGMOID, ADD, CHOOSE, EXPERTS, NUM_KERNELS };
static const char *const kernel_names[NUM_KERNELS] = {"demo_embed",   "demo_file",   "demo_attend",
                                                      "demo_rmsnorm", "demo_matmul", "demo_sigmoid",
                                                      "demo_add",     "demo_choose", "demo_experts"};

typedef struct gpu {
    compute base;
    cuda_device *device;
    bool entered;
    cu_stream stream;
    cuda_program *program;
    cu_function kernels[NUM_KERNELS];
    cu_address rows; /* [max_rows] compute_row of the batch */
    int64_t max_rows, count;
    demo_error failure; /* of the first operation that failed */
    bool failed;
} gpu;

static gpu *gpu_of(compute *base)
{
    return (gpu *)base;
}

static cu_address address(const void *memory)
{
    return (cu_address)(uintptr_t)memory;
}

/* Keeps the first failure. */
static void check(gpu *self, const char *what, expar_status status)
{
    if (status == EXPAR_OK || self->failed) return;
    self->failed = true;
    demo_check(&self->failure, what, status);
}

/* Waits for all operations, and reports the first that failed. */
static bool settle(gpu *self, demo_error *error)
{
    check(self, "the GPU", CUDA_CALL(StreamSynchronize, self->stream));
    if (self->failed) *error = self->failure;
    return !self->failed;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *gpu_alloc(compute *c, size_t bytes, demo_error *error)
{
    gpu *self = gpu_of(c);
    cu_address memory;
    if (!demo_check(error, "memory of the GPU", CUDA_CALL(MemAlloc, &memory, bytes + 1))) return NULL;
    check(self, "clearing memory", CUDA_CALL(MemsetD8Async, memory, 0, bytes + 1, self->stream));
    return (void *)(uintptr_t)memory;
}

static void gpu_release(compute *c, void *memory)
{
    (void)c;
    if (memory) cuda_driver()->MemFree(address(memory));
}

static bool gpu_write(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    gpu *self = gpu_of(c);
    check(self, "copy to the GPU", CUDA_CALL(MemcpyHtoDAsync, address(to), from, bytes, self->stream));
    return settle(self, error);
}

static bool gpu_read(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    gpu *self = gpu_of(c);
    check(self, "copy from the GPU", CUDA_CALL(MemcpyDtoHAsync, to, address(from), bytes, self->stream));
    return settle(self, error);
}

static bool gpu_settle(compute *c, demo_error *error)
{
    return settle(gpu_of(c), error);
}

static void gpu_copy(compute *c, void *to, const void *from, size_t bytes)
{
    gpu *self = gpu_of(c);
    check(self, "copy", CUDA_CALL(MemcpyAsync, address(to), address(from), bytes, self->stream));
}

static bool gpu_reserve(compute *c, int64_t max_rows, demo_error *error)
{
    gpu *self = gpu_of(c);
    if (max_rows <= self->max_rows) return true;
    gpu_release(c, (void *)(uintptr_t)self->rows);
    self->rows = address(gpu_alloc(c, (size_t)max_rows * sizeof(compute_row), error));
    self->max_rows = self->rows ? max_rows : 0;
    return self->rows != 0;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void launch(gpu *self, enum kernel kernel, int64_t blocks, uint32_t threads, size_t shared_bytes,
                   void **parameters)
{
    const cuda_launch launch = {.function = self->kernels[kernel],
                                .stream = self->stream,
                                .blocks = (uint32_t)blocks,
                                .threads = threads,
                                .shared_bytes = (uint32_t)shared_bytes};
    if (blocks > 0) check(self, kernel_names[kernel], cuda_launch_kernel(&launch, parameters));
}

static void gpu_begin(compute *c, const compute_row *rows, int64_t count)
{
    gpu *self = gpu_of(c);
    self->count = count;
    if (count == 0) return;
    check(self, "rows of a batch",
          CUDA_CALL(MemcpyHtoDAsync, self->rows, rows, (size_t)count * sizeof *rows, self->stream));
}

static void gpu_embed(compute *c, const float *embedding, float *x)
{
    gpu *self = gpu_of(c);
    launch(self, EMBED, self->count, THREADS, 0, (void *[]){&self->rows, &embedding, &c->sizes.hidden, &x});
}

static void gpu_file(compute *c, int32_t layer, const float *cosines, const float *sines, float *q, float *k,
                     const float *v)
{
    gpu *self = gpu_of(c);
    launch(self, FILE_KEYS, self->count, THREADS, 0,
           (void *[]){&self->rows, &layer, &c->sizes.hidden, &c->sizes.heads, &cosines, &sines, &q, &k, &v});
}

static void gpu_attend(compute *c, int32_t layer, const float *q, float *out)
{
    gpu *self = gpu_of(c);
    launch(self, ATTEND, self->count * c->sizes.heads, THREADS, (size_t)c->sizes.context * sizeof(float),
           (void *[]){&self->rows, &layer, &c->sizes.hidden, &c->sizes.heads, &q, &out});
}

static void gpu_rmsnorm(compute *c, const float *x, int64_t rows, const float *g, float *y)
{
    launch(gpu_of(c), RMSNORM, rows, THREADS, 0, (void *[]){&x, &c->sizes.hidden, &g, &c->sizes.rms_eps, &y});
}

static void gpu_matmul(compute *c, const float *x, int64_t rows, int64_t inputs, const float *w, int64_t outputs,
                       float *y)
{
    int32_t in = (int32_t)inputs, out = (int32_t)outputs;
    launch(gpu_of(c), MATMUL, rows * ((outputs + THREADS - 1) / THREADS), THREADS, 0,
           (void *[]){&x, &in, &w, &out, &y});
}

static void gpu_sigmoid(compute *c, float *a, int64_t n)
{
    launch(gpu_of(c), SIGMOID, (n + THREADS - 1) / THREADS, THREADS, 0, (void *[]){&a, &n});
}

static void gpu_add(compute *c, float *y, const float *x, int64_t n)
{
    launch(gpu_of(c), ADD, (n + THREADS - 1) / THREADS, THREADS, 0, (void *[]){&y, &x, &n});
}

static void gpu_choose(compute *c, const float *scores, const float *bias, int64_t rows, int32_t *topk_idx,
                       float *topk_weights)
{
    launch(gpu_of(c), CHOOSE, rows, 32, 0,
           (void *[]){&scores, &bias, &c->sizes.experts, &c->sizes.top_k, &topk_idx, &topk_weights});
}

static void gpu_run_experts(compute *c, const expert_weights *w, const routed_rows *rows, float *y)
{
    expert_weights weights = *w;
    routed_rows in = *rows;
    int32_t d = c->sizes.hidden, f = c->sizes.expert_ffn;
    launch(gpu_of(c), EXPERTS, rows->count, THREADS, (size_t)(d + f) * sizeof(float),
           (void *[]){&weights, &in.x, &in.topk_idx, &in.topk_weights, &c->sizes.top_k, &d, &f, &y});
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void gpu_free(compute *c)
{
    gpu *self = gpu_of(c);
    gpu_release(c, (void *)(uintptr_t)self->rows);
    cuda_program_release(self->program);
    if (self->stream) cuda_driver()->StreamDestroy(self->stream);
    if (self->entered) cuda_leave();
    cuda_device_close(self->device);
    free(self);
}

static const compute_ops gpu_ops = {
    .alloc = gpu_alloc,
    .release = gpu_release,
    .write = gpu_write,
    .read = gpu_read,
    .settle = gpu_settle,
    .copy = gpu_copy,
    .reserve = gpu_reserve,
    .begin = gpu_begin,
    .embed = gpu_embed,
    .file = gpu_file,
    .attend = gpu_attend,
    .rmsnorm = gpu_rmsnorm,
    .matmul = gpu_matmul,
    .sigmoid = gpu_sigmoid,
    .add = gpu_add,
    .choose = gpu_choose,
    .run_experts = gpu_run_experts,
    .free = gpu_free,
};

static expar_status open_device(gpu *self, int32_t index)
{
    expar_status status = cuda_device_open(index, &self->device);
    if (status == EXPAR_OK) status = cuda_enter(self->device);
    self->entered = status == EXPAR_OK;
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &self->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = tool_kernel_load(self->device, "demo/kernels/model.cu", &self->program);
    for (int i = 0; status == EXPAR_OK && i < NUM_KERNELS; i++)
        status = cuda_program_kernel(self->program, kernel_names[i], 0, &self->kernels[i]);
    return status;
}

/* Returns the SMs for the library's calls. Half of the GPU stays free for computing. */
static int32_t fair_sms(const gpu *self, int32_t num_local, int32_t num_gpus)
{
    int32_t sharers = (num_local + num_gpus - 1) / num_gpus, most = self->device->num_sms / (2 * sharers);
    return most > MOST_SMS ? MOST_SMS : most > 1 ? most : 1;
}

static bool gpu_check(demo_error *error)
{
    if (expar_cuda_get_driver(NULL, NULL) == EXPAR_OK) return true;
    return demo_fail(error, "--device cuda: %.400s", expar_last_error());
}

static bool gpu_create(const model_sizes *sizes, int32_t local, int32_t num_local, compute **out, demo_error *error)
{
    int32_t num_gpus;
    if (!demo_check(error, "GPUs", expar_cuda_get_driver(NULL, &num_gpus))) return false;
    gpu *self = demo_calloc(error, 1, sizeof *self);
    if (!self) return false;
    self->base = (compute){.ops = &gpu_ops, .sizes = *sizes};
    if (!demo_check(error, "open a GPU", open_device(self, local % num_gpus))) {
        gpu_free(&self->base);
        return false;
    }
    self->base.device = (expar_device){.type = EXPAR_CUDA, .index = local % num_gpus};
    self->base.stream = self->stream;
    self->base.num_sms = fair_sms(self, num_local, num_gpus);
    *out = &self->base;
    return true;
}

const compute_kind compute_cuda = {
    .name = "cuda", .where = "on GPUs", .threads = true, .check = gpu_check, .create = gpu_create};
