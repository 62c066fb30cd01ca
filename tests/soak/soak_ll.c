/* SPDX-License-Identifier: Apache-2.0 */
/* Soak of low-latency mode: one buffer for very many calls, two dispatches and two combines open at a time, every
 * result checked. Memory must stay flat (watch.h).
 *
 *     soak_ll [threads|processes [ranks [calls [seed]]]]      threads, 4, 100000
 *
 * Prints one line; ends with 1 when a result was wrong or memory grew. */
#include "ep/harness/ranks.h"
#include "ep/low_latency/trial.h"
#include "soak/watch.h"
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RANKS 4
#define DEFAULT_CALLS 100000

enum { LOADS = 6, CODED = 4, MAX_RANKS = 16, TOKENS = 12, HIDDEN = 128, TOPK = 4, LOCALS = 3 };

typedef struct soak {
    lowlat_traffic *traffic[LOADS];
    lowlat_answers *back[LOADS];
    uint64_t seed;
    int64_t calls;
    watch watch;
} soak;

static lowlat_choice draw_choice(random_source *own)
{
    lowlat_choice choice = {.own_x = random_once_in(own, 3),
                            .own_scales = random_once_in(own, 3),
                            .own_count = random_once_in(own, 3),
                            .stats = random_once_in(own, 4),
                            .waits = random_once_in(own, 4),
                            .late = random_once_in(own, 6),
                            .pad = random_once_in(own, 2)};
    choice.hook = random_once_in(own, 2);
    choice.async = !choice.hook && random_once_in(own, 3);
    return choice;
}

/* Rows in the buffer's own memory are one combine's: the first of two. Weights that go ahead allow no hook. */
static lowlat_choice draw_answer(const soak *s, int load, bool first, random_source *own)
{
    lowlat_choice choice = draw_choice(own);
    const lowlat_answers *back = s->back[load];
    choice.hook = choice.hook && (back->sum == EXPAR_LL_SUM_EXACT || s->traffic[load]->with_weights);
    choice.zero_copy = first && !back->logfmt && random_once_in(own, 4);
    return choice;
}

static bool end_both(lowlat_call calls[2], random_source *own)
{
    bool right = true;
    int first = (int)random_between(own, 0, 1);
    for (int i = 0; i < 2; i++) {
        lowlat_call *call = &calls[(first + i) % 2];
        right = right && CHECK(lowlat_end(call) == EXPAR_OK && lowlat_is_right(call), "what came of a call");
    }
    return right;
}

/* Four calls. Shared: all ranks draw the same from it. */
static bool trial_round(const soak *s, expar_ll *ll, int32_t rank, random_source *shared, random_source *own)
{
    lowlat_call there[2], back[2];
    int load[2] = {(int)random_between(shared, 0, LOADS - 1), (int)random_between(shared, 0, LOADS - 1)};
    bool right = true;
    for (int i = 0; i < 2; i++) {
        const lowlat_choice choice = draw_choice(own);
        lowlat_prepare_dispatch(&there[i], ll, s->traffic[load[i]], rank, &choice);
        right = right && CHECK_OK(lowlat_start(&there[i]));
    }
    right = right && end_both(there, own);
    for (int i = 0; right && i < 2; i++) {
        const lowlat_choice choice = draw_answer(s, load[i], i == 0, own);
        lowlat_prepare_combine(&back[i], ll, s->traffic[load[i]], s->back[load[i]], rank, &choice,
                               there[i].there.handle);
        right = CHECK_OK(lowlat_start(&back[i]));
        if (!right) lowlat_clean(&back[i]);
        if (!right && i) lowlat_clean(&back[0]);
    }
    if (right) {
        right = end_both(back, own);
        lowlat_clean(&back[0]);
        lowlat_clean(&back[1]);
    }
    lowlat_clean(&there[0]);
    lowlat_clean(&there[1]);
    return right;
}

static void trial(expar_group *group, void *context)
{
    soak *s = context;
    const int32_t rank = expar_group_rank(group);
    random_source shared = random_start(s->seed), own = random_start(s->seed + (uint64_t)rank + 1);
    const llo_job *job = &s->traffic[0]->job;
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = job->num_experts;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (int64_t calls = 4; calls <= s->calls + 3; calls += 4) {
        if (!trial_round(s, ll, rank, &shared, &own)) break;
        if (rank == 0) watch_look(&s->watch, calls);
    }
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(expar_ll_destroy(ll));
}

/* Reduced sums with weights that came along, and with some that go ahead; one load whose answers are coded. */
static void draw_loads(soak *s, int32_t ranks)
{
    static const llo_format formats[LOADS] = {LLO_PLAIN, LLO_FP8, LLO_PLAIN, LLO_FP8_UE8M0, LLO_INT8, LLO_PLAIN};
    static const expar_ll_sum sums[LOADS] = {EXPAR_LL_SUM_EXACT,   EXPAR_LL_SUM_EXACT, EXPAR_LL_SUM_REDUCED,
                                             EXPAR_LL_SUM_REDUCED, EXPAR_LL_SUM_EXACT, EXPAR_LL_SUM_EXACT};
    random_source random = random_start(s->seed);
    for (int i = 0; i < LOADS; i++) {
        int64_t num_tokens[MAX_RANKS];
        for (int32_t r = 0; r < ranks; r++)
            num_tokens[r] = random_between(&random, 0, TOKENS);
        const lowlat_plan plan = {.num_ranks = ranks,
                                  .max_tokens = TOKENS,
                                  .hidden = HIDDEN,
                                  .topk = TOPK,
                                  .num_experts = LOCALS * ranks,
                                  .type = i % 2 ? ORACLE_F16 : ORACLE_BF16,
                                  .format = formats[i],
                                  .with_weights = i % 3 == 0,
                                  .disturb = 5,
                                  .num_tokens = num_tokens};
        s->traffic[i] = lowlat_traffic_make(&plan, &random);
        s->back[i] = lowlat_answers_make(s->traffic[i], ORACLE_BF16, sums[i], &random);
        if (i == CODED) lowlat_answers_code(s->back[i], s->traffic[i]);
    }
}

int main(int argc, char **argv)
{
    const ranks_kind kind = argc > 1 && strcmp(argv[1], "processes") == 0 ? RANKS_PROCESSES : RANKS_THREADS;
    int32_t ranks = argc > 2 ? (int32_t)random_count("ranks", argv[2]) : DEFAULT_RANKS;
    ranks = ranks < 1 ? 1 : ranks > MAX_RANKS ? MAX_RANKS : ranks;
    soak s = {.calls = argc > 3 ? random_count("calls", argv[3]) : DEFAULT_CALLS,
              .seed = argc > 4 ? strtoull(argv[4], NULL, 0) : random_test_seed("low-latency soak")};
    watch_begin(&s.watch, s.calls);
    draw_loads(&s, ranks);
    const ranks_plan plan = {.kind = kind, .size = ranks, .heap_bytes = (size_t)32 << 20};
    bool passed = ranks_run(&plan, trial, &s);
    for (int i = 0; i < LOADS; i++) {
        lowlat_answers_free(s.back[i], s.traffic[i]);
        lowlat_traffic_free(s.traffic[i]);
    }
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
