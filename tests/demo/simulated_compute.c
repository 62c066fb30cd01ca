/* SPDX-License-Identifier: Apache-2.0 */
/* An object of the CPU's with another table: memory is the driver's, and what touches what the library's kernels write,
 * or may still read, waits for the stream first. */
#include "simulated_compute.h"

#include "cuda/cuda.h"
#include <pthread.h>
#include <string.h>

static compute_ops simulated_ops; /* filled by the first one, under the lock */
static const compute_ops *cpu_ops;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cuda_device *device; /* of the object that this thread has made */

static bool simulated_settle(compute *c, demo_error *error)
{
    return demo_check(error, "the GPU", CUDA_CALL(StreamSynchronize, c->stream));
}

static void await_stream(const compute *c)
{
    cuda_driver()->StreamSynchronize(c->stream);
}

static void *simulated_alloc(compute *c, size_t bytes, demo_error *error)
{
    cu_address memory;
    (void)c;
    if (!demo_check(error, "memory of the GPU", CUDA_CALL(MemAlloc, &memory, bytes + 1))) return NULL;
    return memset((void *)(uintptr_t)memory, 0, bytes);
}

static void simulated_release(compute *c, void *memory)
{
    (void)c;
    if (memory) cuda_driver()->MemFree((cu_address)(uintptr_t)memory);
}

static bool simulated_write(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    return simulated_settle(c, error) && cpu_ops->write(c, to, from, bytes, error);
}

static bool simulated_read(compute *c, void *to, const void *from, size_t bytes, demo_error *error)
{
    return simulated_settle(c, error) && cpu_ops->read(c, to, from, bytes, error);
}

static void simulated_copy(compute *c, void *to, const void *from, size_t bytes)
{
    await_stream(c);
    cpu_ops->copy(c, to, from, bytes);
}

static void simulated_rmsnorm(compute *c, const float *x, int64_t rows, const float *g, float *y)
{
    await_stream(c);
    cpu_ops->rmsnorm(c, x, rows, g, y);
}

static void simulated_add(compute *c, float *y, const float *x, int64_t n)
{
    await_stream(c);
    cpu_ops->add(c, y, x, n);
}

static void simulated_run_experts(compute *c, const expert_weights *w, const routed_rows *rows, float *y)
{
    await_stream(c);
    cpu_ops->run_experts(c, w, rows, y);
}

static void simulated_free(compute *c)
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
        simulated_ops = *cpu->ops;
        simulated_ops.alloc = simulated_alloc;
        simulated_ops.release = simulated_release;
        simulated_ops.write = simulated_write;
        simulated_ops.read = simulated_read;
        simulated_ops.settle = simulated_settle;
        simulated_ops.copy = simulated_copy;
        simulated_ops.rmsnorm = simulated_rmsnorm;
        simulated_ops.add = simulated_add;
        simulated_ops.run_experts = simulated_run_experts;
        simulated_ops.free = simulated_free;
    }
    pthread_mutex_unlock(&lock);
}

static bool simulated_check(demo_error *error)
{
    (void)error;
    return true;
}

static bool simulated_create(const model_sizes *sizes, int32_t local, int32_t num_local, compute **out,
                             demo_error *error)
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
    c->ops = &simulated_ops;
    c->device = (expar_device){.type = EXPAR_CUDA, .index = 0};
    c->stream = stream;
    c->num_sms = 1;
    *out = c;
    return true;
}

const compute_kind compute_simulated = {
    .name = "cuda", .where = "on a played GPU", .threads = true, .check = simulated_check, .create = simulated_create};
