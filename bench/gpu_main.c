/* SPDX-License-Identifier: Apache-2.0 */
/* expar-bench-gpu: dispatch and combine on the GPUs of this host, one rank a GPU (threads of this process), beside the
 * copy limit with the same SMs and the same rows.
 *
 *     expar-bench-gpu [gpus] [SMs] [tokens]      (0: all, a sweep, a sweep)
 *
 * Each contender runs ITERS times in a row on its stream between two events; the time is the slowest rank's, divided by
 * ITERS. Rows come back checked: each carries its source and token. */
#include "cuda/cuda.h"
#include <expar/expar.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GPUS 16
#define WARMUP    5
#define ITERS     30

typedef struct copy_list {
    uint64_t own, places;
    int64_t rows, row_bytes;
    int32_t most, stage_bytes;
} copy_list;

typedef struct bench {
    int32_t gpus, hidden, topk, experts, num_sms;
    int64_t tokens;
    expar_dtype dtype;
    expar_group *groups[MOST_GPUS];
    uint64_t received[MOST_GPUS]; /* each rank's recv_x */
    double dispatch[MOST_GPUS], fresh[MOST_GPUS], combine[MOST_GPUS], push[MOST_GPUS];
    int64_t rows[MOST_GPUS]; /* that each rank received */
    pthread_barrier_t meeting;
} bench;

typedef struct rank {
    bench *b;
    int32_t number;
    cuda_device *device;
    cu_stream stream;
    cu_event start, end;
    expar_ep *ep;
    cu_address x, y, idx, list;
    int64_t *routing; /* [T][K] */
    expar_dispatch_result first;
    cu_function push;
    copy_list copies;
} rank;

static void need(expar_status status, const char *what)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "%s: %s\n", what, expar_last_error());
    exit(1);
}

static uint64_t scramble(uint64_t v)
{
    v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9u;
    v = (v ^ v >> 27) * 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* K different experts for a token, uniform. */
static void choose_experts(const bench *b, int32_t source, int64_t token, int64_t *out)
{
    uint64_t state = (uint64_t)source << 40 | (uint64_t)token << 8;
    for (int32_t k = 0; k < b->topk; k++) {
        bool again = true;
        while (again) {
            out[k] = (int64_t)(scramble(++state) % (uint64_t)b->experts);
            again = false;
            for (int32_t i = 0; i < k; i++)
                again |= out[i] == out[k];
        }
    }
}

static bool goes_to(const bench *b, const int64_t *experts, int32_t target)
{
    for (int32_t k = 0; k < b->topk; k++)
        if (experts[k] / (b->experts / b->gpus) == target) return true;
    return false;
}

static size_t row_bytes(const bench *b)
{
    return (size_t)b->hidden * expar_dtype_bytes(b->dtype);
}

static expar_tensor on_gpu(const rank *r, cu_address data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)data, dtype, rows, columns);
    t.device = (expar_device){.type = EXPAR_CUDA, .index = r->number};
    return t;
}

/* Each row begins with its rank and token. */
static void fill(rank *r)
{
    const bench *b = r->b;
    size_t bytes = row_bytes(b);
    unsigned char *rows = malloc((size_t)b->tokens * bytes);
    r->routing = malloc((size_t)(b->tokens * b->topk) * sizeof(int64_t));
    for (int64_t t = 0; t < b->tokens; t++) {
        memset(rows + (size_t)t * bytes, (int)(t % 251), bytes);
        memcpy(rows + (size_t)t * bytes, (int32_t[]){r->number, (int32_t)t}, 8);
        choose_experts(b, r->number, t, r->routing + t * b->topk);
    }
    need(CUDA_CALL(MemcpyHtoD, r->x, rows, (size_t)b->tokens * bytes), "x");
    need(CUDA_CALL(MemcpyHtoD, r->idx, r->routing, (size_t)(b->tokens * b->topk) * sizeof(int64_t)), "routing");
    free(rows);
}

static expar_dispatch_args dispatch_args(const rank *r, const expar_ep_handle *handle)
{
    const bench *b = r->b;
    expar_dispatch_args args = EXPAR_DISPATCH_ARGS_INIT;
    args.x = on_gpu(r, r->x, b->dtype, b->tokens, b->hidden);
    if (!handle) args.topk_idx = on_gpu(r, r->idx, EXPAR_I64, b->tokens, b->topk);
    args.num_experts = b->experts;
    args.handle = handle;
    args.stream = r->stream;
    return args;
}

/* ---- contenders ---- */

static void run_dispatch(rank *r, bool fresh)
{
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    expar_dispatch_args args = dispatch_args(r, fresh ? NULL : r->first.handle);
    need(expar_dispatch(r->ep, &args, &result), "dispatch");
    expar_ep_output_release(result.output);
    expar_ep_handle_destroy(result.handle);
}
static void run_cached(rank *r)
{
    run_dispatch(r, false);
}
static void run_fresh(rank *r)
{
    run_dispatch(r, true);
}
static void run_combine(rank *r)
{
    const bench *b = r->b;
    expar_combine_args args = EXPAR_COMBINE_ARGS_INIT;
    args.x = r->first.recv_x;
    args.y = on_gpu(r, r->y, b->dtype, b->tokens, b->hidden);
    args.handle = r->first.handle;
    args.stream = r->stream;
    need(expar_combine(r->ep, &args), "combine");
}
static void run_copy(rank *r, cu_function function, cu_address own, int32_t warps, uint32_t shared)
{
    r->copies.own = own;
    void *parameters[] = {&r->copies};
    cuda_launch launch = {.function = function,
                          .stream = r->stream,
                          .blocks = (uint32_t)r->b->num_sms,
                          .threads = (uint32_t)warps * 32,
                          .shared_bytes = shared};
    need(cuda_launch_kernel(&launch, parameters), "copy");
}
static void run_push(rank *r)
{
    int32_t stage = (int32_t)((row_bytes(r->b) + 127) / 128 * 128),
            fit = (r->device->shared_bytes - 1024) / (stage + 8);
    int32_t warps = fit < 32 ? fit : 32;
    r->copies.stage_bytes = stage;
    run_copy(r, r->push, r->x, warps, (uint32_t)(warps * (stage + 8)));
}

static double measure(rank *r, void (*run)(rank *))
{
    float milliseconds = 0;
    for (int i = 0; i < WARMUP; i++)
        run(r);
    need(CUDA_CALL(StreamSynchronize, r->stream), "warm up");
    pthread_barrier_wait(&r->b->meeting);
    need(CUDA_CALL(EventRecord, r->start, r->stream), "start");
    for (int i = 0; i < ITERS; i++)
        run(r);
    need(CUDA_CALL(EventRecord, r->end, r->stream), "end");
    need(CUDA_CALL(StreamSynchronize, r->stream), "run");
    need(CUDA_CALL(EventElapsedTime, &milliseconds, r->start, r->end), "time");
    pthread_barrier_wait(&r->b->meeting);
    return (double)milliseconds * 1000.0 / ITERS;
}

/* ---- one rank ---- */

/* Where each row goes, from the routing of all ranks. */
static void make_list(rank *r)
{
    const bench *b = r->b;
    uint64_t *list = calloc((size_t)(b->tokens * b->gpus), sizeof *list);
    int64_t next[MOST_GPUS] = {0}, *experts = malloc((size_t)b->topk * sizeof *experts);
    for (int32_t source = 0; source <= r->number; source++)
        for (int64_t t = 0; t < b->tokens; t++) {
            int32_t count = 0;
            choose_experts(b, source, t, experts);
            for (int32_t target = 0; target < b->gpus; target++) {
                if (!goes_to(b, experts, target)) continue;
                uint64_t place = b->received[target] + (uint64_t)next[target]++ * row_bytes(b);
                if (source == r->number) list[t * b->gpus + count++] = place;
            }
        }
    need(CUDA_CALL(MemcpyHtoD, r->list, list, (size_t)(b->tokens * b->gpus) * sizeof *list), "list");
    r->copies = (copy_list){.places = r->list, .rows = b->tokens, .row_bytes = (int64_t)row_bytes(b), .most = b->gpus};
    free(experts);
    free(list);
}

/* Received rows are those that the routing sends here, in order. */
static void verify(rank *r)
{
    const bench *b = r->b;
    size_t bytes = row_bytes(b);
    unsigned char *rows = malloc((size_t)r->first.num_recv_tokens * bytes + 1);
    int64_t *experts = malloc((size_t)b->topk * sizeof *experts), row = 0;
    need(CUDA_CALL(MemcpyDtoH, rows, (cu_address)(uintptr_t)r->first.recv_x.data,
                   (size_t)r->first.num_recv_tokens * bytes),
         "verify");
    for (int32_t source = 0; source < b->gpus; source++)
        for (int64_t t = 0; t < b->tokens; t++) {
            choose_experts(b, source, t, experts);
            if (!goes_to(b, experts, r->number)) continue;
            const unsigned char *got = rows + (size_t)row++ * bytes;
            bool right = memcmp(got, (int32_t[]){source, (int32_t)t}, 8) == 0;
            for (size_t i = 8; i < bytes; i++)
                right &= got[i] == (unsigned char)(t % 251);
            if (right) continue;
            fprintf(stderr, "rank %d: row %lld is wrong\n", r->number, (long long)(row - 1));
            exit(1);
        }
    free(experts);
    free(rows);
}

static void set_up(rank *r)
{
    bench *b = r->b;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = b->tokens;
    config.max_row_bytes = (int64_t)row_bytes(b);
    config.max_topk = b->topk;
    config.max_experts = b->experts;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = r->number};
    config.num_sms = b->num_sms;
    need(expar_ep_create(b->groups[r->number], &config, &r->ep), "buffer");
    need(CUDA_CALL(StreamCreate, &r->stream, CU_STREAM_NON_BLOCKING), "stream");
    need(CUDA_CALL(EventCreate, &r->start, 0), "event");
    need(CUDA_CALL(EventCreate, &r->end, 0), "event");
    size_t rows = (size_t)b->tokens * row_bytes(b);
    need(CUDA_CALL(MemAlloc, &r->x, rows), "x");
    need(CUDA_CALL(MemAlloc, &r->y, rows), "y");
    need(CUDA_CALL(MemAlloc, &r->idx, (size_t)(b->tokens * b->topk) * 8), "idx");
    need(CUDA_CALL(MemAlloc, &r->list, (size_t)(b->tokens * b->gpus) * 8), "list");
    fill(r);
    expar_dispatch_args args = dispatch_args(r, NULL);
    r->first = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    need(expar_dispatch(r->ep, &args, &r->first), "first dispatch");
    need(CUDA_CALL(StreamSynchronize, r->stream), "first dispatch");
    b->received[r->number] = (uint64_t)(uintptr_t)r->first.recv_x.data;
    b->rows[r->number] = r->first.num_recv_tokens;
    pthread_barrier_wait(&b->meeting);
    make_list(r);
    verify(r);
}

static void clear_up(rank *r)
{
    expar_ep_output_release(r->first.output);
    expar_ep_handle_destroy(r->first.handle);
    pthread_barrier_wait(&r->b->meeting);
    need(expar_ep_destroy(r->ep), "destroy");
    cu_address all[] = {r->x, r->y, r->idx, r->list};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        cuda_driver()->MemFree(all[i]);
    cuda_driver()->StreamDestroy(r->stream);
    cuda_driver()->EventDestroy(r->start);
    cuda_driver()->EventDestroy(r->end);
    free(r->routing);
}

static void *rank_main(void *argument)
{
    rank *r = argument;
    bench *b = r->b;
    cuda_program *program;
    need(cuda_device_open(r->number, &r->device), "GPU");
    need(cuda_enter(r->device), "GPU");
    need(cuda_program_load(r->device, "copy_limit.cu", NULL, 0, &program), "copy kernels");
    need(cuda_program_kernel(program, "ep_copy_push", r->device->shared_bytes - 1024, &r->push), "push");
    set_up(r);
    b->push[r->number] = measure(r, run_push);
    b->dispatch[r->number] = measure(r, run_cached);
    b->fresh[r->number] = measure(r, run_fresh);
    verify(r);
    if (b->dtype == EXPAR_BF16) b->combine[r->number] = measure(r, run_combine);
    clear_up(r);
    cuda_program_release(program);
    cuda_leave();
    cuda_device_close(r->device);
    return NULL;
}

static double worst(const bench *b, const double *times)
{
    double most = 0;
    for (int32_t i = 0; i < b->gpus; i++)
        most = times[i] > most ? times[i] : most;
    return most;
}

static void run_case(bench *b)
{
    pthread_t threads[MOST_GPUS];
    rank ranks[MOST_GPUS];
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.size = b->gpus;
    options.timeout_ms = 10000;
    need(expar_group_create_threads(b->gpus, &options, b->groups), "group");
    pthread_barrier_init(&b->meeting, NULL, (unsigned)b->gpus);
    for (int32_t i = 0; i < b->gpus; i++) {
        ranks[i] = (rank){.b = b, .number = i};
        pthread_create(&threads[i], NULL, rank_main, &ranks[i]);
    }
    for (int32_t i = 0; i < b->gpus; i++)
        pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < b->gpus; i++)
        need(expar_group_destroy(b->groups[i]), "group");
    pthread_barrier_destroy(&b->meeting);
    double push = worst(b, b->push), dispatch = worst(b, b->dispatch);
    double combine = worst(b, b->combine);
    printf("| %d | %s | %d | %lld | %.1f | %.1f | %.2f | %.1f |", b->gpus, expar_dtype_string(b->dtype), b->num_sms,
           (long long)b->tokens, push, dispatch, push / dispatch, worst(b, b->fresh));
    if (combine > 0) printf(" %.1f | %.2f |", combine, push / combine);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int64_t tokens[] = {1, 16, 128, 512, 4096};
    static const int32_t sms[] = {8, 12, 24};
    int32_t count = 0;
    need(cuda_device_count(&count), "GPUs");
    cuda_device *kept[MOST_GPUS]; /* so that contexts outlive the cases */
    for (int32_t i = 0; i < count && i < MOST_GPUS; i++)
        need(cuda_device_open(i, &kept[i]), "GPU");
    bench b = {.gpus = argc > 1 && atoi(argv[1]) ? atoi(argv[1]) : count, .hidden = 7168, .topk = 8};
    int32_t only_sms = argc > 2 ? atoi(argv[2]) : 0;
    int64_t only_tokens = argc > 3 ? atoll(argv[3]) : 0;

    if (b.gpus < 1 || b.gpus > count || b.gpus > MOST_GPUS) {
        fprintf(stderr, "usage: expar-bench-gpu [gpus] [SMs] [tokens]; %d GPUs are there\n", (int)count);
        return 2;
    }
    b.experts = 256 / b.gpus * b.gpus;
    printf("| GPUs | rows | SMs | T | copy limit µs | dispatch µs | of limit | with layout + notify µs | "
           "| combine µs | of limit |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int format = 0; format < 2; format++)
        for (size_t s = 0; s < ARRAY_LENGTH(sms); s++)
            for (size_t t = 0; t < ARRAY_LENGTH(tokens); t++) {
                if ((only_sms && sms[s] != only_sms) || (only_tokens && tokens[t] != only_tokens)) continue;
                b.dtype = format ? EXPAR_F8E4M3 : EXPAR_BF16;
                b.num_sms = sms[s];
                b.tokens = tokens[t];
                memset(b.combine, 0, sizeof b.combine);
                run_case(&b);
            }
    for (int32_t i = 0; i < count && i < MOST_GPUS; i++)
        cuda_device_close(kept[i]);
    return 0;
}
