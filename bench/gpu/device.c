/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: tensors in device memory, and a turn timed by events after a gate that opens for the streams of all ranks at
 * the same moment. The calling thread has entered its rank's device. */
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/forms.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The time from the last host's arrival until the gate opens. In it the hosts can enqueue a call after the gate. */
#define GATE_DELAY_NS UINT64_C(50000)

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void gpu_memory(const struct bench_world *world, const struct bench_options *options, struct bench_memory *out)
{
    const int index = world->rank % options->num_gpus;
    const int sharers = (options->num_ranks - index + options->num_gpus - 1) / options->num_gpus;
    size_t free_bytes, total_bytes;
    if (CUDA_CALL(MemGetInfo, &free_bytes, &total_bytes) != EXPAR_OK) return;
    out->bytes = free_bytes / (size_t)sharers;
    snprintf(out->limit, sizeof out->limit, "what GPU %d has, for %d rank%s", index, sharers, sharers == 1 ? "" : "s");
}

static bool settle(const struct bench_world *world)
{
    return bench_good(world, CUDA_CALL(StreamSynchronize, world->stream));
}

static void *gpu_alloc(const struct bench_world *world, size_t bytes)
{
    const struct gpu_rank *rank = world->gpu;
    cu_address address;
    expar_status status = CUDA_CALL(MemAlloc, &address, bytes + 256);
    if (status == EXPAR_ERR_MEMORY) status = mem_device_full(rank->device, bytes);
    if (!bench_good(world, status)) return NULL;
    if (bench_good(world, CUDA_CALL(MemsetD8Async, address, 0, bytes + 256, world->stream)) && settle(world))
        return (void *)(uintptr_t)address;
    cuda_driver()->MemFree(address);
    return NULL;
}

static void gpu_free(const struct bench_world *world, void *data)
{
    if (data) bench_good(world, CUDA_CALL(MemFree, (cu_address)(uintptr_t)data));
}

/* The stream's kernels have to end before a copy from or to ordinary host memory is put on it. Such a copy after a
   kernel that waits for another rank of this process would hold up that rank's launches in the driver. */
static const void *gpu_view(const struct bench_world *world, const void *data, size_t bytes)
{
    void *view = malloc(bytes + 1);
    if (!view) return NULL;
    const bool good =
        settle(world) && (bytes == 0 || bench_good(world, CUDA_CALL(MemcpyDtoHAsync, view, (cu_address)(uintptr_t)data,
                                                                    bytes, world->stream)));
    if (good && settle(world)) return view;
    free(view);
    return NULL;
}

static void gpu_unview(const struct bench_world *world, const void *view)
{
    (void)world;
    free((void *)(uintptr_t)view);
}

static void *gpu_draft(const struct bench_world *world, void *data, size_t bytes)
{
    (void)world, (void)data;
    return malloc(bytes + 1);
}

static bool gpu_commit(const struct bench_world *world, void *data, void *draft, size_t bytes)
{
    const bool good = settle(world) &&
                      (bytes == 0 || bench_good(world, CUDA_CALL(MemcpyHtoDAsync, (cu_address)(uintptr_t)data, draft,
                                                                 bytes, world->stream))) &&
                      settle(world);
    free(draft);
    return good;
}

static bool gpu_copy_tensor(const struct bench_world *world, void *to, const void *from, size_t bytes)
{
    const cu_address target = (cu_address)(uintptr_t)to, source = (cu_address)(uintptr_t)from;
    return bytes == 0 || bench_good(world, CUDA_CALL(MemcpyAsync, target, source, bytes, world->stream));
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

uint32_t *gpu_expired(const struct gpu_rank *rank)
{
    const struct gpu_crew *crew = rank->crew;
    const size_t turns_bytes = (size_t)rank->world.size * sizeof *crew->turns;
    return (uint32_t *)(uintptr_t)(crew->words.device + turns_bytes) + rank->world.rank;
}

static expar_status launch_gate(struct gpu_rank *rank)
{
    const struct gpu_crew *crew = rank->crew;
    gate_call gate = {.turns = (const uint64_t *)(uintptr_t)crew->words.device,
                      .turn = ++rank->turn,
                      .delay_ns = GATE_DELAY_NS,
                      .timeout_ns = GPU_TURN_TIMEOUT_NS,
                      .expired = gpu_expired(rank),
                      .ranks = rank->world.size};
    void *parameters[] = {&gate};
    const cuda_launch launch = {.function = rank->gate, .stream = rank->stream, .blocks = 1, .threads = 32};
    return cuda_launch_kernel(&launch, parameters);
}

void gpu_give_up(struct gpu_rank *rank)
{
    atomic_store_explicit(&rank->crew->turns[rank->world.rank], UINT64_MAX, memory_order_release);
}

static expar_status read_time(const struct gpu_rank *rank, struct bench_span *span)
{
    float milliseconds = 0;
    expar_status status = CUDA_CALL(StreamSynchronize, rank->stream);
    if (status != EXPAR_OK) return status;
    if (atomic_load_explicit(&rank->crew->expired[rank->world.rank], memory_order_relaxed))
        return error_set(EXPAR_ERR_PEER, "some rank did not come to turn %llu within %llu s",
                         (unsigned long long)rank->turn, (unsigned long long)(GPU_TURN_TIMEOUT_NS / 1000000000));
    status = CUDA_CALL(EventElapsedTime, &milliseconds, rank->start, rank->end);
    if (status == EXPAR_OK) *span = (struct bench_span){.end_ns = (int64_t)((double)milliseconds * 1e6)};
    return status;
}

/* Runs a turn. The common start is the opening of the gate. */
static bool gpu_turn(const struct bench_world *world, struct contender *contender, struct bench_span *span)
{
    struct gpu_rank *rank = world->gpu;
    bool good = (!contender->before || contender->before(contender->context)) && bench_good(world, launch_gate(rank)) &&
                bench_good(world, CUDA_CALL(EventRecord, rank->start, rank->stream));
    if (good) {
        atomic_store_explicit(&rank->crew->turns[world->rank], rank->turn, memory_order_release);
        good = contender->run(contender->context) &&
               bench_good(world, CUDA_CALL(EventRecord, rank->end, rank->stream)) &&
               bench_good(world, read_time(rank, span));
    }
    if (!good) gpu_give_up(rank);
    return good;
}

/* ---- moments ----------------------------------------------------------------------------------------------------- */

static void gpu_marks_close(const struct bench_world *world, void *marks, int count)
{
    cu_event *events = marks;
    (void)world;
    for (int i = 0; events && i < count; i++)
        if (events[i]) cuda_driver()->EventDestroy(events[i]);
    free(events);
}

static void *gpu_marks_open(const struct bench_world *world, int count)
{
    cu_event *events = calloc((size_t)count, sizeof *events);
    for (int i = 0; events && i < count; i++) {
        if (bench_good(world, CUDA_CALL(EventCreate, &events[i], 0))) continue;
        gpu_marks_close(world, events, count);
        return NULL;
    }
    return events;
}

static bool gpu_mark(const struct bench_world *world, void *marks, int index)
{
    return bench_good(world, CUDA_CALL(EventRecord, ((cu_event *)marks)[index], world->stream));
}

/* Reads the moments. One that was never recorded counts as the first one. */
static bool gpu_marks_read(const struct bench_world *world, void *marks, int count, double *us)
{
    const cu_event *events = marks;
    float milliseconds;
    for (int i = 0; i < count; i++) {
        const bool timed = cuda_driver()->EventElapsedTime(&milliseconds, events[0], events[i]) == CU_OK;
        us[i] = timed ? (double)milliseconds * 1e3 : 0;
    }
    (void)world;
    return true;
}

#define GPU                                                                                                            \
    .name = "cuda", .workers = "sms", .held_outputs = 2, .memory = gpu_memory, .alloc = gpu_alloc, .free = gpu_free,   \
    .view = gpu_view, .unview = gpu_unview, .draft = gpu_draft, .commit = gpu_commit, .copy = gpu_copy_tensor,         \
    .encode = gpu_encode, .turn = gpu_turn, .marks_open = gpu_marks_open, .mark = gpu_mark,                            \
    .marks_read = gpu_marks_read, .marks_close = gpu_marks_close

const struct bench_device bench_cuda = {GPU, .copies = {"push_us", "pull_us"},
                                        .sites = {&gpu_normal_site, &gpu_ll_site}, .ll = &ll_cuda};
const struct bench_device bench_cuda_nodes = {GPU, .copies = {"whole_puts_us", "piece_puts_us"},
                                              .sites = {&gpu_normal_nodes_site, &gpu_ll_nodes_site},
                                              .ll = &ll_cuda_nodes};
