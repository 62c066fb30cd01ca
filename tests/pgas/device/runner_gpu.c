/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on this rank's GPU, or on a simulated one. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/test_sources.h"
#include "ep/harness/check.h"
#include "mem/device.h"
#include "pgas/device/runner.h"
#include <expar/stream.h>

#include <stdlib.h>
#include <string.h>

typedef struct gpu_kernels {
    cuda_device *device;
    cuda_program *program;
    cu_function function;
    cu_stream stream;
    mem_pinned words;
} gpu_kernels;

static int32_t num_gpus;

expar_device_target runner_target(void)
{
    return EXPAR_DEVICE_GPU;
}

expar_memory_kind runner_kind(void)
{
    return EXPAR_MEMORY_DEVICE;
}

int32_t runner_gpu(const expar_group *group)
{
    return group->rank % num_gpus;
}

bool runner_is_able(void)
{
    num_gpus = gpus_count(1);
    return num_gpus >= 1;
}

static const cuda_source *find_source(void)
{
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/handles.cu")) return &test_sources[i];
    return NULL;
}

/* Without a compiler there are no delays. */
static expar_status make_kernels(gpu_kernels *k, uint32_t seed)
{
    const bool by_requests = getenv("EXPAR_GDA_QUEUE_MEMORY") != NULL;
    cuda_macro macros[2];
    size_t count = 0;
    if (seed) macros[count++] = (cuda_macro){"EXPAR_DELAYS", seed};
    if (by_requests) macros[count++] = (cuda_macro){"EXPAR_DEVICE_GDA", 1};
    expar_status status = cuda_program_make(k->device, find_source(), macros, count, &k->program);
    if (status == EXPAR_OK) status = cuda_program_kernel(k->program, "handles_run", 0, &k->function);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamCreate, &k->stream, CU_STREAM_NON_BLOCKING);
    return status == EXPAR_OK ? mem_pinned_create(4096, &k->words) : status;
}

bool runner_open(runner *r, expar_group *group, int32_t threads, uint32_t seed)
{
    (void)threads;
    gpu_kernels *k = calloc(1, sizeof *k);
    *r = (runner){.group = group, .threads = HANDLES_THREADS, .seed = seed, .target = k};
    if (!CHECK_OK(cuda_device_open(runner_gpu(group), &k->device)) || !CHECK_OK(cuda_enter(k->device))) return false;
    const bool made = CHECK_OK(make_kernels(k, seed));
    cuda_leave();
    if (!made) return false;
    r->wrong = k->words.host;
    r->status = (int *)(void *)(r->wrong + 8);
    r->wrong_address = (uint64_t *)(uintptr_t)k->words.device;
    r->status_address = (int *)(void *)(r->wrong_address + 8);
    return true;
}

void runner_close(runner *r)
{
    gpu_kernels *k = r->target;
    if (CHECK_OK(cuda_enter(k->device))) {
        cuda_driver()->StreamDestroy(k->stream);
        mem_pinned_free(&k->words);
        cuda_leave();
    }
    cuda_program_release(k->program);
    cuda_device_close(k->device);
    free(k);
}

void runner_start(runner *r, const expar_device_handle *handle, const handles_call *call)
{
    gpu_kernels *k = r->target;
    handles_launch launch = {.handle = *handle, .call = *call};
    const cuda_launch on = {
        .function = k->function, .stream = k->stream, .blocks = 1, .threads = HANDLES_THREADS, .shared_bytes = 0};
    *r->wrong = 0;
    memset(r->status, 0xff, HANDLES_THREADS * sizeof *r->status);
    launch.call.wrong = (expar_uint64 *)r->wrong_address;
    launch.call.status = r->status_address;
    if (!CHECK_OK(cuda_enter(k->device))) return;
    CHECK_OK(cuda_launch_kernel(&on, (void *[]){&launch}));
    cuda_leave();
}

void runner_await(runner *r)
{
    gpu_kernels *k = r->target;
    if (!CHECK_OK(cuda_enter(k->device))) return;
    CHECK_OK(CUDA_CALL(StreamSynchronize, k->stream));
    cuda_leave();
}

int runner_add_on_stream(runner *r, uint64_t *signal, int32_t pe, int count)
{
    gpu_kernels *k = r->target;
    cu_stream stream;
    if (!CHECK_OK(cuda_enter(k->device))) return 0;
    CHECK_OK(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < count; i++)
        CHECK_OK(expar_signal_op_on_stream(r->group, signal, 1, EXPAR_SIGNAL_ADD, pe, stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    cuda_leave();
    return count;
}

void *runner_alloc(runner *r, size_t bytes)
{
    gpu_kernels *k = r->target;
    cu_address at = 0;
    if (!CHECK_OK(cuda_enter(k->device))) return NULL;
    CHECK_OK(CUDA_CALL(MemAlloc, &at, bytes));
    cuda_leave();
    CHECK_OK(mem_device_clear(k->device, at, bytes));
    /* Kernels use it for ranks that are not mapped, too. */
    CHECK_OK(expar_register(r->group, (void *)(uintptr_t)at, bytes));
    return (void *)(uintptr_t)at;
}

void runner_free(runner *r, void *memory)
{
    gpu_kernels *k = r->target;
    CHECK_OK(expar_unregister(r->group, memory));
    if (!CHECK_OK(cuda_enter(k->device))) return;
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)memory));
    cuda_leave();
}
