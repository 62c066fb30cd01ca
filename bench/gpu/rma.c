/* SPDX-License-Identifier: Apache-2.0 */
/* `expar bench rma --device cuda`: operations of kernels on symmetric memory, for each way and scope, beside the same
 * by bare loads and stores. Ranks are threads, rank r on GPU r mod G. Rank 0 and the last rank take part. Puts on a
 * stream are measured beside cuMemcpyAsync. What arrives is verified for each operation, scope and size. */
#include "bench/bench.h"
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/rma_forms.h"
#include "tool_kernels.h"
#include <expar/memory.h>
#include <expar/rma.h>
#include <expar/stream.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const way_names[] = {"mapped", "proxy"};
static const char *const scope_names[] = {"thread", "warp", "block"};
static const char *const op_names[] = {"put", "get", "put_signal"};
enum { WAYS = 2, SCOPES = 3, MOST_THREAD_BYTES = 64 << 10 };

/* The ranks of one way. */
typedef struct rma_ranks {
    const struct bench_options *options;
    const char *way;
    size_t largest;
    pthread_barrier_t meet;
    /* A rank has failed. Any rank sets it before a barrier, all read it after that. */
    _Atomic bool failed;
} rma_ranks;

typedef struct rma_rank {
    rma_ranks *all;
    expar_group *group;
    pthread_t thread;
    int32_t rank, size;
    cuda_device *device;
    cuda_program *program;
    cu_function function;
    cu_stream stream;
    cu_event start, end;
    mem_pinned words;
    unsigned char *memory; /* dest, source, and a signal */
    rma_gpu_call call;
} rma_rank;

static bool rma_good(rma_rank *r, expar_status status)
{
    if (status == EXPAR_OK) return true;
    fprintf(stderr, "expar bench: rank %d: %s\n", r->rank, expar_last_error());
    r->all->failed = true;
    return false;
}

/* Returns whether all ranks have come without a failure. */
static bool rma_meet(rma_rank *r)
{
    pthread_barrier_wait(&r->all->meet);
    return !r->all->failed;
}

/* ---- memory and kernels ------------------------------------------------------------------------------------------ */

static expar_status rma_load(rma_rank *r)
{
    expar_status status = CUDA_CALL(StreamCreate, &r->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &r->start, 0);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &r->end, 0);
    if (status == EXPAR_OK) status = mem_pinned_create(4096, &r->words);
    if (status == EXPAR_OK) status = tool_kernel_load(r->device, "bench/gpu/kernels/rma.cu", &r->program);
    return status == EXPAR_OK ? cuda_program_kernel(r->program, "bench_rma", 0, &r->function) : status;
}

static expar_status take_memory(rma_rank *r)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = EXPAR_MEMORY_DEVICE;
    options.device = r->device->index;
    options.bytes = 2 * r->all->largest + 256;
    options.zeroed = 1;
    expar_status status = expar_memory_alloc(r->group, &options, (void **)&r->memory);
    return status == EXPAR_OK ? expar_device_get(r->group, NULL, &r->call.handle) : status;
}

static void fill_call(rma_rank *r)
{
    const size_t largest = r->all->largest;
    const int32_t peer = r->rank == 0 ? r->size - 1 : 0;
    unsigned char *there = expar_device_ptr(r->group, r->memory, peer);
    rma_gpu_call *c = &r->call;
    c->dest = r->memory;
    c->source = r->memory + largest;
    c->signal = (expar_uint64 *)(void *)(r->memory + 2 * largest);
    c->peer = peer;
    c->starts = r->rank == 0;
    if (there) {
        c->peer_dest = there;
        c->peer_source = there + largest;
        c->peer_signal = (expar_uint64 *)(void *)(there + 2 * largest);
    }
    c->ns = (expar_uint64 *)(uintptr_t)r->words.device;
    c->failed = c->ns + 1;
}

static bool fill_source(rma_rank *r)
{
    unsigned char *bytes = malloc(r->all->largest);
    if (!bytes) return rma_good(r, error_set(EXPAR_ERR_MEMORY, "no memory"));
    for (size_t i = 0; i < r->all->largest; i++)
        bytes[i] = (unsigned char)(i * 7 + (size_t)r->rank + 1);
    const bool good = rma_good(r, expar_put(r->group, r->call.source, bytes, r->all->largest, r->rank));
    free(bytes);
    return good;
}

/* ---- one measurement --------------------------------------------------------------------------------------------- */

static bool takes_part(const rma_rank *r)
{
    return r->rank == 0 || (r->call.op == RMA_GPU_SIGNAL && r->rank == r->size - 1);
}

/* Runs the rounds; *us is the time of one, of a signal one way. All ranks call it together. */
static bool run_rounds(rma_rank *r, int32_t rounds, double *us)
{
    uint64_t *words = r->words.host;
    const cuda_launch on = {.function = r->function, .stream = r->stream, .blocks = 1, .threads = RMA_GPU_THREADS};
    r->call.rounds = rounds;
    if (!rma_meet(r)) return false;
    if (takes_part(r)) {
        words[0] = words[1] = 0;
        rma_good(r, cuda_launch_kernel(&on, (void *[]){&r->call}));
        rma_good(r, CUDA_CALL(StreamSynchronize, r->stream));
        if (words[1]) {
            expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
            expar_device_get_error(&r->call.handle, &error);
            fprintf(stderr, "expar bench: rank %d: %s\n", r->rank, error.text);
            r->all->failed = true;
        }
    }
    r->call.first += (uint64_t)rounds;
    *us = (double)words[0] / 1000 / rounds / (r->call.op == RMA_GPU_SIGNAL ? 2 : 1);
    return rma_meet(r);
}

/* The best of some turns, after one that warms up. */
static bool measure(rma_rank *r, bool bare, double *us)
{
    const int32_t rounds = r->call.bytes > 65536 ? 20 : 50;
    double best = 0, one = 0;
    r->call.bare = bare;
    for (int turn = 0; turn <= r->all->options->iters; turn++) {
        if (!run_rounds(r, turn ? rounds : 2, &one)) return false;
        if (turn == 1 || (turn > 1 && one < best)) best = one;
    }
    *us = best;
    return true;
}

/* Leaves other bytes where the operation's data will arrive. */
static bool spoil(rma_rank *r)
{
    const int32_t at = r->call.op == RMA_GPU_GET ? 0 : r->size - 1;
    unsigned char *bytes = calloc(1, r->call.bytes);
    const bool good = bytes && rma_good(r, expar_put(r->group, r->call.dest, bytes, r->call.bytes, at)) &&
                      rma_good(r, expar_quiet(r->group));
    free(bytes);
    return good;
}

/* Compares what arrived: at the last rank for puts, here for gets. */
static bool verify(rma_rank *r)
{
    const bool gets = r->call.op == RMA_GPU_GET;
    const size_t bytes = r->call.bytes, from = gets ? (size_t)r->size - 1 : 0;
    const int32_t at = gets ? 0 : r->size - 1;
    unsigned char *seen = malloc(bytes);
    bool right = seen && rma_good(r, expar_get(r->group, seen, r->call.dest, bytes, at));
    for (size_t i = 0; i < bytes && right; i++)
        right = seen[i] == (unsigned char)(i * 7 + from + 1);
    free(seen);
    if (!right) fprintf(stderr, "expar bench: %s of %zu bytes left other bytes\n", op_names[r->call.op], bytes);
    if (!right) r->all->failed = true;
    return right;
}

static void print_row(const rma_rank *r, const char *op, const char *scope, double us, double bare_us)
{
    printf("%-11s %-7s %-7s %10llu %11.2f ", op, r->all->way, scope, (unsigned long long)r->call.bytes, us);
    if (bare_us > 0)
        printf("%11.2f %7.2f", bare_us, us / bare_us);
    else
        printf("%11s %7s", "-", "-");
    printf(" %9.2f\n", us > 0 ? (double)r->call.bytes / us / 1000 : 0);
    fflush(stdout);
}

static bool measure_case(rma_rank *r, rma_gpu_op op, int scope, size_t bytes)
{
    double us = 0, bare_us = 0;
    r->call.op = (expar_int32)op;
    r->call.scope = scope;
    r->call.bytes = bytes;
    if (r->rank == 0) spoil(r);
    if (!measure(r, false, &us)) return false;
    if (r->rank == 0) verify(r);
    if (r->call.peer_dest && !measure(r, true, &bare_us)) return false;
    if (r->rank == 0) print_row(r, op_names[op], scope_names[scope], us, bare_us);
    return rma_meet(r);
}

/* ---- puts on a stream -------------------------------------------------------------------------------------------- */

static expar_status put_on_stream(rma_rank *r, bool bare)
{
    if (!bare)
        return expar_put_on_stream(r->group, r->call.dest, r->call.source, r->call.bytes, r->call.peer, r->stream);
    return CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)r->call.peer_dest, (cu_address)(uintptr_t)r->call.source,
                     r->call.bytes, r->stream);
}

static bool time_stream(rma_rank *r, bool bare, double *us)
{
    enum { PUTS = 20 };
    float ms = 0;
    for (int turn = 0; turn <= r->all->options->iters; turn++) {
        bool good = rma_good(r, CUDA_CALL(EventRecord, r->start, r->stream));
        for (int i = 0; i < PUTS && good; i++)
            good = rma_good(r, put_on_stream(r, bare));
        if (!good || !rma_good(r, CUDA_CALL(EventRecord, r->end, r->stream)) ||
            !rma_good(r, CUDA_CALL(StreamSynchronize, r->stream)) ||
            !rma_good(r, CUDA_CALL(EventElapsedTime, &ms, r->start, r->end)))
            return false;
        const double one = (double)ms * 1000 / PUTS;
        if (turn == 1 || (turn > 1 && one < *us)) *us = one;
    }
    return true;
}

static bool measure_stream(rma_rank *r, size_t bytes)
{
    double us = 0, bare_us = 0;
    r->call.bytes = bytes;
    if (r->rank == 0 && time_stream(r, false, &us) && (!r->call.peer_dest || time_stream(r, true, &bare_us)))
        print_row(r, "stream_put", "-", us, bare_us);
    return rma_meet(r);
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void measure_all(rma_rank *r)
{
    const struct rma_options *options = &r->all->options->rma;
    bool good = true;
    for (int op = 0; op < RMA_GPU_OPS; op++)
        for (int scope = 0; scope < SCOPES; scope++)
            for (int i = 0; i < options->num_sizes && good; i++) {
                /* One thread takes too long for large ones. */
                if (scope == EXPAR_DEV_THREAD && options->sizes_bytes[i] > MOST_THREAD_BYTES) continue;
                good = measure_case(r, (rma_gpu_op)op, scope, options->sizes_bytes[i]);
            }
    for (int i = 0; i < options->num_sizes && good && !strcmp(r->all->way, way_names[0]); i++)
        good = measure_stream(r, options->sizes_bytes[i]);
}

static void rma_unload(rma_rank *r)
{
    cuda_program_release(r->program);
    mem_pinned_free(&r->words);
    if (r->end) cuda_driver()->EventDestroy(r->end);
    if (r->start) cuda_driver()->EventDestroy(r->start);
    if (r->stream) cuda_driver()->StreamDestroy(r->stream);
}

static void *rma_rank_main(void *argument)
{
    rma_rank *r = argument;
    const bool entered = rma_good(r, cuda_enter(r->device));
    if (entered) rma_good(r, rma_load(r));
    rma_good(r, take_memory(r));
    if (rma_meet(r)) {
        fill_call(r);
        fill_source(r);
        if (rma_meet(r)) measure_all(r);
    }
    if (!rma_meet(r)) expar_group_abort(r->group);
    expar_group_destroy(r->group);
    rma_unload(r);
    if (entered) cuda_leave();
    return NULL;
}

/* ---- all ranks of a way ------------------------------------------------------------------------------------------ */

static bool start_ranks(rma_ranks *all, rma_rank *ranks, expar_group **groups)
{
    const int size = all->options->num_ranks;
    for (int r = 0; r < size; r++) {
        ranks[r] = (rma_rank){.all = all, .group = groups[r], .rank = r, .size = size};
        if (cuda_device_open(r % all->options->num_gpus, &ranks[r].device) != EXPAR_OK) return false;
    }
    for (int r = 0; r < size; r++)
        if (pthread_create(&ranks[r].thread, NULL, rma_rank_main, &ranks[r])) abort();
    return true;
}

static bool run_way(const struct bench_options *options, const char *way)
{
    rma_ranks all = {.options = options, .way = way, .largest = 256};
    const expar_group_options wanted = bench_group_options(options);
    rma_rank *ranks = calloc((size_t)options->num_ranks, sizeof *ranks);
    expar_group **groups = calloc((size_t)options->num_ranks, sizeof(expar_group *));
    for (int i = 0; i < options->rma.num_sizes; i++)
        if (options->rma.sizes_bytes[i] > all.largest) all.largest = (options->rma.sizes_bytes[i] + 255) / 256 * 256;
    setenv("EXPAR_DEVICE_TRANSPORTS", strcmp(way, "proxy") ? way : "proxy,mapped", 1);
    pthread_barrier_init(&all.meet, NULL, (unsigned)options->num_ranks);
    bool good = ranks && groups && expar_group_create_threads(options->num_ranks, &wanted, groups) == EXPAR_OK &&
                start_ranks(&all, ranks, groups);
    if (!good) fprintf(stderr, "expar bench: %s\n", expar_last_error());
    for (int r = 0; r < options->num_ranks && good; r++) {
        pthread_join(ranks[r].thread, NULL);
        cuda_device_close(ranks[r].device);
    }
    pthread_barrier_destroy(&all.meet);
    free(groups);
    free(ranks);
    return good && !all.failed;
}

int gpu_rma_main(const struct bench_options *options)
{
    printf("%-11s %-7s %-7s %10s %11s %11s %7s %9s\n", "operation", "way", "scope", "bytes", "us", "bare us", "ratio",
           "GB/s");
    for (int way = 0; way < WAYS; way++)
        if (!run_way(options, way_names[way])) return 1;
    return 0;
}
