/* SPDX-License-Identifier: Apache-2.0 */
/* Latency and rate of each pair, and rates of all ranks at once. Pairs are measured in rounds, as in a tournament: in a
 * round each rank has one partner. The lower rank of a pair measures, and the other one answers. */
#include "check.h"
#include "progress.h"
#include <expar/group.h>
#include <expar/memory.h>
#include <expar/rma.h>
#include <expar/wait.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES ((size_t)1 << 20)
#define PIECES      4
/* The limits of a measurement. The best of its samples counts, since other work only makes samples worse. */
#define MOST_SAMPLES 200
#define WARM_SAMPLES 5
#define SAMPLE_NS    INT64_C(30000000)
#define MOST_ROUNDS  63
/* In the words of a round trip: the last one, which needs no answer. */
#define LAST (UINT64_C(1) << 31)

/* Symmetric memory of the measurement. */
struct pair_memory {
    uint64_t word; /* the partner's signal */
    char target[PIECE_BYTES], source[PIECE_BYTES];
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns this rank's partner in a round; -1: it has none. */
static int32_t partner_of(int32_t rank, int32_t round, int32_t ranks)
{
    const int32_t others = ranks % 2 ? ranks : ranks - 1; /* the last player stands still, or is not there */
    int32_t partner = round;
    if (rank != others) {
        partner = (2 * round - rank + 2 * others) % others;
        if (partner == rank) partner = others;
    }
    return partner < ranks ? partner : -1;
}

static expar_status put_word(expar_group *group, struct pair_memory *memory, uint64_t value, int32_t pe)
{
    return expar_put_signal(group, memory->target, memory->source, 0, &memory->word, value, EXPAR_SIGNAL_SET, pe);
}

/* Sends words and waits for each to come back. */
static expar_status measure_latency(expar_group *group, struct pair_memory *memory, uint64_t base, int32_t pe,
                                    double *latency_us)
{
    const int64_t end = now_ns() + SAMPLE_NS;
    int64_t best = INT64_MAX;
    expar_status status = EXPAR_OK;
    for (uint64_t i = 1; status == EXPAR_OK && i <= MOST_SAMPLES && (i <= WARM_SAMPLES || now_ns() < end); i++) {
        const int64_t begin = now_ns();
        status = put_word(group, memory, base + i, pe);
        if (status == EXPAR_OK) status = expar_signal_wait_until(group, &memory->word, EXPAR_CMP_GE, base + i, NULL);
        const int64_t took = now_ns() - begin;
        if (took < best) best = took;
    }
    *latency_us = (double)best / 2e3;
    return status == EXPAR_OK ? put_word(group, memory, base + LAST, pe) : status;
}

static expar_status answer(expar_group *group, struct pair_memory *memory, uint64_t base, int32_t pe)
{
    expar_status status = EXPAR_OK;
    uint64_t seen = 0;
    for (uint64_t i = 1; status == EXPAR_OK && seen < base + LAST; i++) {
        status = expar_signal_wait_until(group, &memory->word, EXPAR_CMP_GE, base + i, &seen);
        if (status == EXPAR_OK && seen < base + LAST) status = put_word(group, memory, seen, pe);
    }
    return status;
}

/* Puts pieces until they are delivered; *bytes counts up. */
static expar_status put_pieces(expar_group *group, struct pair_memory *memory, int pieces, int32_t pe, int64_t *bytes)
{
    expar_status status = EXPAR_OK;
    for (int i = 0; i < pieces && status == EXPAR_OK; i++)
        status = expar_put_nbi(group, memory->target, memory->source, PIECE_BYTES, pe);
    if (status == EXPAR_OK) status = expar_quiet(group);
    if (status == EXPAR_OK) *bytes += pieces * (int64_t)PIECE_BYTES;
    return status;
}

static expar_status measure_rate(expar_group *group, struct pair_memory *memory, int32_t pe, double *gbps)
{
    const int64_t end = now_ns() + SAMPLE_NS;
    expar_status status = EXPAR_OK;
    *gbps = 0;
    for (int i = 0; status == EXPAR_OK && (i < 2 || now_ns() < end); i++) {
        int64_t bytes = 0;
        const int64_t begin = now_ns();
        status = put_pieces(group, memory, PIECES, pe, &bytes);
        const double rate = (double)bytes / (double)(now_ns() - begin);
        if (rate > *gbps) *gbps = rate;
    }
    return status;
}

static expar_status play(expar_group *group, struct pair_memory *memory, int32_t round, struct check_pair *row)
{
    const int32_t rank = expar_group_rank(group), partner = partner_of(rank, round, expar_group_size(group));
    const uint64_t base = (uint64_t)(round + 1) << 32;
    expar_status status = EXPAR_OK;
    if (partner >= 0 && rank < partner) {
        status = measure_latency(group, memory, base, partner, &row[partner].latency_us);
        if (status == EXPAR_OK) status = measure_rate(group, memory, partner, &row[partner].gbps);
    } else if (partner >= 0) {
        status = answer(group, memory, base, partner);
    }
    return status == EXPAR_OK ? expar_barrier_all(group) : status;
}

static expar_status memory_make(expar_group *group, struct pair_memory **memory)
{
    void *block = NULL;
    expar_status status = expar_calloc(group, 1, sizeof **memory, &block);
    *memory = block;
    if (status == EXPAR_OK) memset((*memory)->source, 0x5a, PIECE_BYTES);
    return status;
}

expar_status check_measure_pairs(expar_group *group, struct check_pair *pairs)
{
    const int32_t ranks = expar_group_size(group), all = ranks % 2 ? ranks : ranks - 1;
    const int32_t rounds = all < MOST_ROUNDS ? all : MOST_ROUNDS;
    struct pair_memory *memory = NULL;
    struct check_pair *row = calloc((size_t)ranks, sizeof *row);
    if (!row) return EXPAR_ERR_MEMORY;
    expar_status status = memory_make(group, &memory);
    for (int32_t k = 0; k < rounds && status == EXPAR_OK; k++)
        status = play(group, memory, (int32_t)((int64_t)k * all / rounds), row);
    if (status == EXPAR_OK) status = expar_group_allgather(group, row, pairs, (size_t)ranks * sizeof *row);
    if (status == EXPAR_OK) status = expar_free(group, memory);
    free(row);
    return status;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static void say_left(size_t seconds)
{
    char text[64];
    snprintf(text, sizeof text, "expar check: loading the links, %zu s left", seconds);
    progress_say(text);
}

/* All ranks put for one second, each to one other. *sum gets the bytes of all. */
static expar_status load_second(expar_group *group, struct pair_memory *memory, int32_t distance, int64_t length_ns,
                                double *rate)
{
    const int32_t ranks = expar_group_size(group), pe = (expar_group_rank(group) + distance) % ranks;
    int64_t *all = calloc((size_t)ranks, sizeof *all), bytes = 0, begin = now_ns();
    expar_status status = all ? EXPAR_OK : EXPAR_ERR_MEMORY;
    do
        if (status == EXPAR_OK) status = put_pieces(group, memory, PIECES, pe, &bytes);
    while (status == EXPAR_OK && now_ns() - begin < length_ns);
    const double took = (double)(now_ns() - begin);
    if (status == EXPAR_OK) status = expar_group_allgather(group, &bytes, all, sizeof bytes);
    *rate = 0;
    for (int32_t i = 0; i < ranks && status == EXPAR_OK; i++)
        *rate += (double)all[i] / took;
    free(all);
    return status;
}

/* Sums the counters of all hosts; each is counted by its first rank. */
static expar_status errors_sum(expar_group *group, const struct check_plan *plan, const struct check_host *hosts,
                               int64_t *sum)
{
    struct check_text first = {0};
    const int32_t ranks = expar_group_size(group), rank = expar_group_rank(group);
    int64_t mine = 0, *all = calloc((size_t)ranks, sizeof *all);
    if (!all) return EXPAR_ERR_MEMORY;
    if (hosts->first[hosts->of[rank]] == rank && !check_count_errors(plan->site, &mine, &first)) mine = 0;
    expar_status status = expar_group_allgather(group, &mine, all, sizeof mine);
    *sum = 0;
    for (int32_t i = 0; i < ranks && status == EXPAR_OK; i++)
        *sum += all[i];
    free(all);
    return status;
}

expar_status check_load(expar_group *group, const struct check_plan *plan, const struct check_host *hosts, json_t *rows)
{
    const int32_t ranks = expar_group_size(group);
    const size_t seconds = plan->load_s < 1 ? 1 : (size_t)plan->load_s;
    const int64_t length_ns = plan->load_s < 1 ? (int64_t)(plan->load_s * 1e9) : 1000000000;
    double *rates = calloc(seconds, sizeof *rates);
    struct pair_memory *memory = NULL;
    int64_t before = 0, after = 0;
    if (!rates) return EXPAR_ERR_MEMORY;
    expar_status status = memory_make(group, &memory);
    if (status == EXPAR_OK) status = errors_sum(group, plan, hosts, &before);
    for (size_t i = 0; i < seconds && status == EXPAR_OK; i++) {
        if (expar_group_rank(group) == 0) say_left(seconds - i);
        status = load_second(group, memory, 1 + (int32_t)(i % (size_t)(ranks - 1)), length_ns, &rates[i]);
    }
    if (status == EXPAR_OK) status = errors_sum(group, plan, hosts, &after);
    if (status == EXPAR_OK) status = expar_free(group, memory);
    if (status == EXPAR_OK && expar_group_rank(group) == 0) check_judge_load(rates, seconds, after - before, rows);
    free(rates);
    return status;
}
