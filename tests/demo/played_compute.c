/* SPDX-License-Identifier: Apache-2.0 */
/* An object of the CPU's with another table: memory is the driver's, and what touches what the library's kernels write,
 * or may still read, waits for the stream first. */
#include "played_compute.h"

#include "cuda/cuda.h"
#include <pthread.h>
#include <string.h>

static compute_ops played_ops; /* filled by the first one, under the lock */
static const compute_ops *cpu_ops;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cuda_device *device; /* of the object that this thread has made */

static bool played_settle(compute *c, demo_error *error)
{
    return demo_check(error, "the GPU", CUDA_CALL(StreamSynchronize, c->stream));
}

static void await_stream(const compute *c)
{
    cuda_driver()->StreamSynchronize(c->stream);
}

static void *played_alloc(compute *c, size_t bytes, demo_error *error)
{
    cu_address memory;
    (void)c;
    if (!demo_check(error, "memory of the GPU", CUDA_CALL(MemAlloc, &memory, bytes + 1))) return NULL;
    return memset((void *)(uintptr_t)memory, 0, bytes);
}

static void played_release(compute *c, void *memory)
{
    (void)c;
    if (memory) cuda_driver()->MemFree((cu_address)(uintptr_t)memory);
}

static bool played_write(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    return played_settle(c, error) && cpu_ops->write(c, to, from, bytes, error);
}

static bool played_read(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    return played_settle(c, error) && cpu_ops->read(c, to, from, bytes, error);
}

static void played_copy(compute *c, void *to, const void *from, size_t bytes)
{
    await_stream(c);
    cpu_ops->copy(c, to, from, bytes);
}

static void played_rmsnorm(compute *c, const float *x, int64_t rows, const float *g, float *y)
{
    await_stream(c);
    cpu_ops->rmsnorm(c, x, rows, g, y);
}

static void played_add(compute *c, float *y, const float *x, int64_t n)
{
    await_stream(c);
    cpu_ops->add(c, y, x, n);
}

static void played_run_experts(compute *c, const expert_weights *w, const routed_rows *rows, float *y)
{
    await_stream(c);
    cpu_ops->run_experts(c, w, rows, y);
}

static void played_free(compute *c)
{
    cuda_driver()->StreamDestroy(c->stream);
    cuda_leave();
    cuda_device_close(device);
    cpu_ops->free(c);
}

static void fill_table(const compute *cpu)
{
    pthread_mutex_lock(&lock);
    if (!cpu_ops) {
        cpu_ops = cpu->ops;
        played_ops = *cpu->ops;
        played_ops.alloc = played_alloc;
        played_ops.release = played_release;
        played_ops.write = played_write;
        played_ops.read = played_read;
        played_ops.settle = played_settle;
        played_ops.copy = played_copy;
        played_ops.rmsnorm = played_rmsnorm;
        played_ops.add = played_add;
        played_ops.run_experts = played_run_experts;
        played_ops.free = played_free;
    }
    pthread_mutex_unlock(&lock);
}

static bool played_check(demo_error *error)
{
    (void)error;
    return true;
}

static bool played_create(const model_sizes *sizes, int32_t local, int32_t num_local, compute **out, demo_error *error)
{
    compute *c = NULL;
    cu_stream stream = NULL;
    if (!compute_cpu.create(sizes, local, num_local, &c, error)) return false;
    expar_status status = cuda_device_open(0, &device);
    if (status == EXPAR_OK) status = cuda_enter(device);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    if (!demo_check(error, "open a GPU", status)) {
        compute_free(c);
        return false;
    }
    fill_table(c);
    c->ops = &played_ops;
    c->device = (expar_device){.type = EXPAR_CUDA, .index = 0};
    c->stream = stream;
    c->num_sms = 1;
    *out = c;
    return true;
}

const compute_kind compute_played = {
    .name = "cuda", .where = "on a played GPU", .threads = true, .check = played_check, .create = played_create};
