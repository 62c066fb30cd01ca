/* SPDX-License-Identifier: Apache-2.0 */
/* `expar bench rma --device cuda`: operations of kernels on symmetric memory, by one way after another. */
#include "bench/gpu/rma.h"
#include "bench/rma/rma.h"
#include "tool_kernels.h"
#include <expar/memory.h>
#include <expar/rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const rma_gpu_way_names[] = {"mapped", "gda", "proxy"};

bool rma_gpu_good(rma_rank *r, expar_status status)
{
    if (status == EXPAR_OK) return true;
    fprintf(stderr, "expar bench: rank %d: %s\n", r->rank, expar_last_error());
    r->all->failed = true;
    return false;
}

/* All ranks leave with the same answer: a rank may fail soon after the first barrier. */
bool rma_gpu_meet(rma_rank *r)
{
    rma_ranks *all = r->all;
    pthread_barrier_wait(&all->meet);
    if (r->rank == 0) all->is_over = all->failed;
    pthread_barrier_wait(&all->meet);
    return !all->is_over;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Requests need code that the ready kernels do not have. */
static expar_status load_program(rma_rank *r)
{
    static const cuda_macro by_requests = {"EXPAR_DEVICE_GDA", 1};
    const bool gda = r->all->way == RMA_GPU_GDA;
    size_t i = 0;
    while (i < tool_num_kernels && strcmp(tool_kernels[i].name, "bench/gpu/kernels/rma.cu") != 0)
        i++;
    if (i == tool_num_kernels) return error_set(EXPAR_ERR_ARGUMENT, "the tool has no kernel source rma.cu");
    expar_status status = cuda_program_make(r->device, &tool_kernels[i], &by_requests, gda ? 1 : 0, &r->program);
    if (status == EXPAR_OK && gda && cuda_program_is_generic(r->program))
        return error_set(EXPAR_ERR_UNSUPPORTED, "kernels that write requests must be compiled here, by NVRTC");
    return status;
}

static expar_status load(rma_rank *r)
{
    expar_status status = CUDA_CALL(StreamCreate, &r->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &r->start, 0);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &r->end, 0);
    if (status == EXPAR_OK) status = mem_pinned_create(4096, &r->words);
    if (status == EXPAR_OK) status = load_program(r);
    if (status == EXPAR_OK) status = cuda_program_kernel(r->program, "bench_rma", 0, &r->function);
    return status == EXPAR_OK ? cuda_program_kernel(r->program, "bench_rma_post", 0, &r->post) : status;
}

static void unload(rma_rank *r)
{
    cuda_program_release(r->program);
    mem_pinned_free(&r->words);
    if (r->end) cuda_driver()->EventDestroy(r->end);
    if (r->start) cuda_driver()->EventDestroy(r->start);
    if (r->stream) cuda_driver()->StreamDestroy(r->stream);
}

/* While a kernel of expar_launch runs, threads look for its commands all the time. */
bool rma_gpu_launch(rma_rank *r, uint32_t blocks, uint32_t threads)
{
    uint64_t *words = r->words.host;
    expar_launch_args args = EXPAR_LAUNCH_ARGS_INIT;
    args.function = (void *)r->function;
    args.blocks = blocks;
    args.threads = threads;
    args.arguments = (void *[]){&r->call};
    args.stream = r->stream;
    words[0] = words[1] = 0;
    if (!rma_gpu_good(r, expar_launch(r->group, &args, NULL)) ||
        !rma_gpu_good(r, CUDA_CALL(StreamSynchronize, r->stream)))
        return false;
    if (!words[1]) return true;
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    expar_device_get_error(&r->call.handle, &error);
    fprintf(stderr, "expar bench: rank %d: %s\n", r->rank, error.text);
    r->all->failed = true;
    return false;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static expar_status allocate(rma_rank *r, expar_memory_kind kind, size_t bytes, unsigned char **out)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = r->device->index;
    options.bytes = bytes;
    options.zeroed = 1;
    return expar_memory_alloc(r->group, &options, (void **)out);
}

/* Requests reach pinned memory. Handles and launches need memory of the GPU in any case. */
static expar_status take_memory(rma_rank *r)
{
    const expar_memory_kind kind = r->all->way == RMA_GPU_GDA ? EXPAR_MEMORY_PINNED : EXPAR_MEMORY_DEVICE;
    const size_t iters = (size_t)r->all->options->iters;
    r->us = calloc(2 * iters, sizeof *r->us);
    if (!r->us) return error_set(EXPAR_ERR_MEMORY, "no memory for %zu times", 2 * iters);
    r->bare_us = r->us + iters;
    expar_status status = allocate(r, EXPAR_MEMORY_DEVICE, RMA_GPU_SAMPLES * sizeof(uint32_t), &r->samples);
    if (status == EXPAR_OK) status = allocate(r, kind, 2 * r->all->largest + 256, &r->memory);
    return status == EXPAR_OK ? expar_device_get(r->group, NULL, &r->call.handle) : status;
}

static void fill_call(rma_rank *r)
{
    const size_t largest = r->all->largest;
    const int32_t peer = r->rank == 0 ? r->size - 1 : 0;
    unsigned char *there = r->all->way == RMA_GPU_GDA ? NULL : expar_device_ptr(r->group, r->memory, peer);
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
    c->spans = c->ns + RMA_GPU_SPANS_AT;
}

static void fill_source(rma_rank *r)
{
    unsigned char *bytes = malloc(r->all->largest);
    if (!rma_gpu_good(r, bytes ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory"))) return;
    for (size_t i = 0; i < r->all->largest; i++)
        bytes[i] = (unsigned char)(i * 7 + (size_t)r->rank + 1);
    rma_gpu_good(r, expar_put(r->group, r->call.source, bytes, r->all->largest, r->rank));
    free(bytes);
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

static void measure_all(rma_rank *r)
{
    const char *ops = r->all->options->rma.ops;
    if (!r->all->rates_only && !rma_gpu_measure_cases(r)) return;
    if (r->all->way != RMA_GPU_MAPPED && (!ops || rma_list_has(ops, "commands"))) rma_gpu_measure_rate(r);
}

static void *rank_main(void *argument)
{
    rma_rank *r = argument;
    const bool entered = rma_gpu_good(r, cuda_enter(r->device));
    if (entered) rma_gpu_good(r, load(r));
    /* Memory is allocated by all ranks together. */
    if (rma_gpu_meet(r)) rma_gpu_good(r, take_memory(r));
    if (rma_gpu_meet(r)) {
        fill_call(r);
        fill_source(r);
        if (rma_gpu_meet(r)) measure_all(r);
    }
    if (!rma_gpu_meet(r)) expar_group_abort(r->group);
    expar_group_destroy(r->group);
    unload(r);
    free(r->us);
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
        if (pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r])) abort();
    return true;
}

/* *absent: this machine does not have the way. */
static bool run_ranks(rma_ranks *all, bool *absent)
{
    const int size = all->options->num_ranks;
    const expar_group_options wanted = bench_group_options(all->options);
    rma_rank *ranks = calloc((size_t)size, sizeof *ranks);
    expar_group **groups = calloc((size_t)size, sizeof(expar_group *));
    expar_status status = ranks && groups ? expar_group_create_threads(size, &wanted, groups)
                                          : error_set(EXPAR_ERR_MEMORY, "no memory for %d ranks", size);
    *absent = status == EXPAR_ERR_UNSUPPORTED;
    pthread_barrier_init(&all->meet, NULL, (unsigned)size);
    const bool good = status == EXPAR_OK && start_ranks(all, ranks, groups);
    if (!good) fprintf(stderr, "expar bench: %s\n", expar_last_error());
    for (int r = 0; r < size && good; r++) {
        pthread_join(ranks[r].thread, NULL);
        cuda_device_close(ranks[r].device);
    }
    pthread_barrier_destroy(&all->meet);
    free(groups);
    free(ranks);
    return good && !all->failed;
}

/* ---- ways -------------------------------------------------------------------------------------------------------- */

/* A variable of the environment that a way sets. */
typedef struct rma_setting {
    const char *name, *value;
    bool only_if_unset;
    char *before;
} rma_setting;

static void set_all(rma_setting *settings, int count)
{
    for (int i = 0; i < count; i++) {
        const char *before = getenv(settings[i].name);
        settings[i].before = before ? strdup(before) : NULL;
        setenv(settings[i].name, settings[i].value, !settings[i].only_if_unset);
    }
}

static void put_back(rma_setting *settings, int count)
{
    for (int i = 0; i < count; i++) {
        if (settings[i].before)
            setenv(settings[i].name, settings[i].before, 1);
        else
            unsetenv(settings[i].name);
        free(settings[i].before);
    }
}

static bool run_mapped(rma_ranks *all, bool *absent)
{
    rma_setting settings[] = {{.name = "EXPAR_DEVICE_TRANSPORTS", .value = "mapped"}};
    set_all(settings, 1);
    const bool good = run_ranks(all, absent);
    put_back(settings, 1);
    return good;
}

static bool run_gda(rma_ranks *all, bool *absent)
{
    rma_setting settings[] = {{.name = "EXPAR_DEVICE_TRANSPORTS", .value = "gda,mapped"},
                              {.name = "EXPAR_TRANSPORTS", .value = "gda"},
                              {.name = "EXPAR_GDA_NIC", .value = "software", .only_if_unset = true},
                              {.name = "EXPAR_GDA_QUEUE_MEMORY", .value = "pinned", .only_if_unset = true}};
    set_all(settings, 4);
    const bool good = run_ranks(all, absent);
    put_back(settings, 4);
    return good;
}

/* The first group measures operations, too. A rank has no more rings than peers. */
static bool run_proxy(rma_ranks *all, bool *absent)
{
    static const char *const counts[] = {"1", "4"};
    bool good = true;
    for (int i = 0; i < 2 && good; i++) {
        rma_setting settings[] = {{.name = "EXPAR_DEVICE_TRANSPORTS", .value = "proxy,mapped"},
                                  {.name = "EXPAR_PROXY_RINGS", .value = counts[i]}};
        all->rings = atoi(counts[i]);
        if (all->rings > all->options->num_ranks - 1) break;
        all->rates_only = i > 0;
        set_all(settings, 2);
        good = run_ranks(all, absent);
        put_back(settings, 2);
    }
    return good;
}

static bool run_way(const struct bench_options *options, rma_gpu_results *results, rma_gpu_way way, bool *absent)
{
    rma_ranks all = {
        .options = options, .results = results, .way = way, .largest = RMA_GPU_POSTS * sizeof(expar_uint64)};
    for (int i = 0; i < options->rma.num_sizes; i++)
        if (options->rma.sizes_bytes[i] > all.largest) all.largest = (options->rma.sizes_bytes[i] + 255) / 256 * 256;
    *absent = false;
    if (way == RMA_GPU_MAPPED) return run_mapped(&all, absent);
    return way == RMA_GPU_GDA ? run_gda(&all, absent) : run_proxy(&all, absent);
}

static bool all_verified(const rma_gpu_results *results)
{
    for (int i = 0; i < results->count; i++)
        if (!results->list[i].verified) return false;
    for (int i = 0; i < results->num_rates; i++)
        if (!results->rates[i].verified) return false;
    return true;
}

int gpu_rma_main(const struct bench_options *options)
{
    const char *given = options->rma.transports, *list = options->nodes > 1 ? "gda,proxy" : "mapped,gda,proxy";
    rma_gpu_results *results = calloc(1, sizeof *results);
    bool good = results != NULL, absent = false;
    if (!results) fprintf(stderr, "expar bench: out of memory\n");
    for (int way = 0; way < RMA_GPU_WAYS && good; way++)
        if (rma_list_has(given ? given : list, rma_gpu_way_names[way]))
            good = run_way(options, results, (rma_gpu_way)way, &absent) || (absent && !given);
    good = good && rma_gpu_report(options, results) && all_verified(results);
    free(results);
    return good ? 0 : 1;
}
