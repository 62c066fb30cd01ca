/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a benchmark on GPUs: threads of this process, rank r on GPU r mod G. */
#include "bench/bench.h"
#include "bench/frame/patterns.h"
#include "bench/gpu/gpu.h"
#include "tool_kernels.h"
#include <expar/info.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(void)
{
    fprintf(stderr, "expar bench: %s\n", expar_last_error());
    return false;
}

/* ---- what can be refused before anything starts ------------------------------------------------------------------ */

/* Checks the number of SMs. Kernels of ranks that share a GPU run side by side, so their SMs add up. */
static bool check_sms(const struct bench_options *options, int32_t index)
{
    int sharers = (options->num_ranks - index + options->num_gpus - 1) / options->num_gpus;
    expar_cuda_gpu gpu = EXPAR_CUDA_GPU_INIT;
    if (expar_cuda_get_gpu(index, &gpu) != EXPAR_OK) return fail();
    for (int i = 0; i < options->num_workers; i++) {
        if (options->workers[i] * sharers <= gpu.num_sms && sharers <= gpu.num_sms) continue;
        fprintf(stderr, "expar bench: --sms %d: GPU %d (%s) has %d SMs for %d rank%s, at most %d each\n",
                options->workers[i], index, gpu.name, gpu.num_sms, sharers, sharers == 1 ? "" : "s",
                gpu.num_sms / sharers);
        return false;
    }
    return true;
}

static bool check_all_sms(const struct bench_options *options)
{
    for (int32_t index = 0; index < options->num_gpus; index++)
        if (!check_sms(options, index)) return false;
    return true;
}

/* Warns that ranks share a GPU. Times of decodes assume kernels that run side by side on all ranks. */
static void warn_of_sharing(const struct bench_options *options)
{
    const int ranks = options->num_ranks, gpus = options->num_gpus;
    if (!options->ll.wanted || ranks <= gpus) return;
    fprintf(stderr, "expar bench: %d ranks on %d GPU%s: up to %d share one, so that times mean little\n", ranks, gpus,
            gpus == 1 ? "" : "s", (ranks + gpus - 1) / gpus);
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

/* Loads the kernels. The caller has entered the rank's device. */
static expar_status load(struct gpu_rank *rank)
{
    expar_status status = CUDA_CALL(StreamCreate, &rank->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &rank->start, 0);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &rank->end, 0);
    if (status == EXPAR_OK) status = tool_kernel_load(rank->device, "bench/gpu/kernels/gate.cu", &rank->gate_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->gate_program, "bench_gate", 0, &rank->gate);
    if (status != EXPAR_OK) return status;
    if (rank->crew->options->ll.wanted) return gpu_ll_load(rank);
    if (bench_patterns_period(rank->crew->options)) status = gpu_encode_load(rank);
    return status == EXPAR_OK ? gpu_copy_load(rank) : status;
}

static void unload(struct gpu_rank *rank)
{
    cuda_program_release(rank->copy_program);
    cuda_program_release(rank->ll_program);
    cuda_program_release(rank->encode_program);
    cuda_program_release(rank->gate_program);
    if (rank->end) cuda_driver()->EventDestroy(rank->end);
    if (rank->start) cuda_driver()->EventDestroy(rank->start);
    if (rank->stream) cuda_driver()->StreamDestroy(rank->stream);
}

static void *rank_main(void *argument)
{
    struct gpu_rank *rank = argument;
    if (!bench_good(&rank->world, cuda_enter(rank->device))) {
        gpu_give_up(rank);
        return NULL;
    }
    bool loaded = bench_all_true(&rank->world, bench_good(&rank->world, load(rank)));
    rank->world.stream = rank->stream;
    const struct bench_options *options = rank->crew->options;
    if (loaded) rank->code = bench_run(&rank->world, options);
    gpu_give_up(rank);
    if (!bench_good(&rank->world, expar_group_destroy(rank->world.group))) rank->code = 1;
    unload(rank);
    cuda_leave();
    return NULL;
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

static bool open_devices(struct gpu_rank *ranks, struct gpu_crew *crew)
{
    for (int32_t r = 0; r < crew->options->num_ranks; r++) {
        ranks[r] = (struct gpu_rank){.crew = crew, .code = 1};
        if (cuda_device_open(r % crew->options->num_gpus, &ranks[r].device) != EXPAR_OK) return fail();
    }
    return true;
}

static bool make_words(const cuda_device *device, struct gpu_crew *crew)
{
    size_t size = (size_t)crew->options->num_ranks;
    if (cuda_enter(device) != EXPAR_OK) return fail();
    expar_status status = mem_pinned_create(size * (sizeof *crew->turns + sizeof *crew->expired), &crew->words);
    cuda_leave();
    if (status != EXPAR_OK) return fail();
    crew->turns = crew->words.host;
    crew->expired = (_Atomic uint32_t *)(crew->turns + size);
    return true;
}

static void free_words(const cuda_device *device, struct gpu_crew *crew)
{
    if (!device || cuda_enter(device) != EXPAR_OK) return;
    mem_pinned_free(&crew->words);
    cuda_leave();
}

static bool make_group(struct gpu_rank *ranks, const struct bench_options *options)
{
    const expar_group_options wanted = bench_group_options(options);
    expar_group **groups = calloc((size_t)options->num_ranks, sizeof(expar_group *));
    bool made = groups && expar_group_create_threads(options->num_ranks, &wanted, groups) == EXPAR_OK;
    for (int32_t r = 0; made && r < options->num_ranks; r++)
        ranks[r].world = (struct bench_world){.group = groups[r],
                                              .nodes = options->nodes,
                                              .each = options->num_ranks / options->nodes,
                                              .rank = r,
                                              .size = options->num_ranks,
                                              .device = options->nodes > 1 ? &bench_cuda_nodes : &bench_cuda,
                                              .place = {.type = EXPAR_CUDA, .index = r % options->num_gpus},
                                              .gpu = &ranks[r]};
    free(groups);
    return made || fail();
}

/* Runs the threads. The groups of threads that could not be started are left, so that the others do not wait for
   them. */
static int run_threads(struct gpu_rank *ranks, int count)
{
    int started = 0, code = 0;
    while (started < count && pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]) == 0)
        started++;
    if (started < count) fprintf(stderr, "expar bench: only %d of %d threads could be started\n", started, count);
    for (int r = started; r < count; r++) {
        gpu_give_up(&ranks[r]);
        expar_group_abort(ranks[r].world.group);
        expar_group_destroy(ranks[r].world.group);
    }
    for (int r = 0; r < started; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < count; r++)
        if (ranks[r].code) code = ranks[r].code;
    return code;
}

int bench_gpu_main(const struct bench_options *options)
{
    if (options->rma.wanted) return gpu_rma_main(options);
    struct gpu_crew crew = {.options = options};
    struct gpu_rank *ranks = calloc((size_t)options->num_ranks, sizeof *ranks);
    int code = 1;
    if (!ranks) {
        fprintf(stderr, "expar bench: out of memory\n");
        return 1;
    }
    warn_of_sharing(options);
    /* Devices stay open until the end, so that their contexts and kernels outlive each session. */
    if (check_all_sms(options) && open_devices(ranks, &crew) && make_words(ranks[0].device, &crew) &&
        make_group(ranks, options))
        code = run_threads(ranks, options->num_ranks);
    free_words(ranks[0].device, &crew);
    for (int r = 0; r < options->num_ranks; r++)
        cuda_device_close(ranks[r].device);
    free(ranks);
    return code;
}
