/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of rank 0 put words to other ranks, by commands or requests. Figures are how many words in a second, and the
 * time from the issue of one until its thread sees its end. The words that arrive are verified. */
#include "bench/gpu/rma.h"
#include <expar/rma.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 20, ALONE = RMA_GPU_SAMPLES };

static bool count(rma_rank *r, expar_network_stats *stats)
{
    *stats = (expar_network_stats)EXPAR_NETWORK_STATS_INIT;
    return rma_gpu_good(r, expar_network_get_stats(r->group, stats));
}

static bool launch(rma_rank *r, bool alone, int32_t rounds)
{
    r->call.rounds = rounds;
    r->call.cycles = alone ? (expar_uint32 *)(void *)r->samples : NULL;
    const bool good = rma_gpu_launch(r, alone ? 1 : RMA_GPU_POST_BLOCKS, RMA_GPU_POST_THREADS);
    r->call.first += (uint64_t)rounds;
    return good;
}

/* Adds one launch's blocks: from the first begin to the last end, and the time in which threads issue. */
static void add_spans(const rma_rank *r, double *whole_us, double *issuing_us)
{
    const expar_uint64 *spans = (const expar_uint64 *)r->words.host + RMA_GPU_SPANS_AT;
    uint64_t begin = spans[0], end = spans[1], issuing = 0;
    for (int b = 0; b < RMA_GPU_POST_BLOCKS; b++) {
        begin = spans[3 * b] < begin ? spans[3 * b] : begin;
        end = spans[3 * b + 1] > end ? spans[3 * b + 1] : end;
        issuing += spans[3 * b + 2];
    }
    *whole_us += (double)(end - begin) / 1000;
    *issuing_us += (double)issuing / 1000 / RMA_GPU_POST_BLOCKS;
}

static double share(uint64_t after, uint64_t before, double of)
{
    return of > 0 ? (double)(after - before) / of : 0;
}

static bool measure_together(rma_rank *r, rma_gpu_rate *rate)
{
    expar_network_stats before, after;
    double whole_us = 0, issuing_us = 0;
    const int turns = r->all->options->iters;
    const double words = (double)turns * ROUNDS * RMA_GPU_POSTS;
    bool good = launch(r, false, 1) && count(r, &before);
    for (int turn = 0; turn < turns && good; turn++) {
        good = launch(r, false, ROUNDS);
        add_spans(r, &whole_us, &issuing_us);
    }
    good = good && count(r, &after);
    if (!good) return false;
    rate->commands_per_s = issuing_us > 0 ? words / issuing_us * 1e6 : 0;
    rate->completed_per_s = whole_us > 0 ? words / whole_us * 1e6 : 0;
    rate->requests = share(after.requests, before.requests, words);
    rate->request_bytes = share(after.request_bytes, before.request_bytes, words);
    rate->doorbells = share(after.doorbells, before.doorbells, words);
    return true;
}

/* Each PE has the words that went to it, with the last value. */
static bool verify(rma_rank *r)
{
    expar_uint64 seen[RMA_GPU_POSTS];
    bool right = true;
    for (int pe = 1; pe < r->size && right; pe++) {
        right = rma_gpu_good(r, expar_get(r->group, seen, r->call.dest, sizeof seen, pe));
        for (int i = pe - 1; i < RMA_GPU_POSTS && right; i += r->size - 1)
            right = seen[i] == r->call.first;
    }
    if (!right) fprintf(stderr, "expar bench: words of kernels left other bytes\n");
    return right;
}

/* The cycles are scaled by the whole time, since clocks of GPUs change. */
static bool measure_alone(rma_rank *r, rma_gpu_rate *rate)
{
    expar_network_stats before, after;
    static uint32_t cycles[ALONE]; /* rank 0 alone comes here */
    static double us[ALONE];
    const expar_uint64 *span = (const expar_uint64 *)r->words.host + RMA_GPU_SPANS_AT;
    double sum = 0;
    if (!launch(r, true, ALONE / 10) || !count(r, &before) || !launch(r, true, ALONE) || !count(r, &after))
        return false;
    if (!rma_gpu_good(r, expar_get(r->group, cycles, r->samples, sizeof cycles, r->rank))) return false;
    for (int i = 0; i < ALONE; i++)
        sum += cycles[i];
    const double whole_us = (double)(span[1] - span[0]) / 1000;
    for (int i = 0; i < ALONE; i++)
        us[i] = sum > 0 ? cycles[i] / sum * whole_us : 0;
    rate->mean_us = whole_us / ALONE;
    rate->times = bench_summary(us, ALONE);
    rate->device_us = share(after.device_ns, before.device_ns, 1e3 * (double)(after.completions - before.completions));
    return true;
}

static bool measure(rma_rank *r)
{
    rma_gpu_results *all = r->all->results;
    rma_gpu_rate rate = {.way = rma_gpu_way_names[r->all->way],
                         .rings = r->all->way == RMA_GPU_PROXY ? r->all->rings : 0};
    r->call.peers = r->size - 1;
    if (!measure_together(r, &rate)) return false;
    rate.verified = verify(r);
    if (!measure_alone(r, &rate)) return false;
    if (all->num_rates < RMA_GPU_RATES) all->rates[all->num_rates++] = rate;
    return true;
}

bool rma_gpu_measure_rate(rma_rank *r)
{
    cu_function operations = r->function;
    r->function = r->post;
    if (r->rank == 0) measure(r);
    r->function = operations;
    return rma_gpu_meet(r);
}
