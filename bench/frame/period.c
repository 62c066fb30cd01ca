/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of pairs: moments on each rank's own clock, and the figures that follow from them. */
#include "bench/frame/period.h"
#include "bench/frame/session.h"
#include "bench/frame/stats.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The moments of a pair: before the dispatch, between the calls (second chain), after the combine. */
enum { BEGIN, BETWEEN, END, MOMENTS };

struct chain {
    struct bench_call *call;
    bool split;  /* the second chain */
    void *marks; /* of the device */
    int pairs, pair, turn;
    double *us; /* [BENCH_TRIALS][pairs][MOMENTS] */
    double *scratch;
};

static const struct bench_device *device_of(const struct chain *chain)
{
    return chain->call->session->world->device;
}

/* ---- one trial --------------------------------------------------------------------------------------------------- */

static bool mark(const struct chain *chain, int moment)
{
    return device_of(chain)->mark(chain->call->session->world, chain->marks, chain->pair * MOMENTS + moment);
}

static bool mark_between(void *context)
{
    return mark(context, BETWEEN);
}

static bool chain_run(void *context)
{
    struct chain *chain = context;
    struct bench_call *call = chain->call;
    const struct bench_mode *mode = call->session->mode;
    bool good = true;
    for (chain->pair = 0; chain->pair < chain->pairs && good; chain->pair++) {
        expar_event *event = NULL;
        good = mark(chain, BEGIN) && mode->in_loop(call, &event) && mark(chain, END);
        expar_event_release(event);
        if (good && chain->pair + 1 < chain->pairs) mode->release(call);
    }
    return good;
}

/* Keeps the moments of a trial. Contents change before the last turn, whose outputs are verified. */
static bool chain_after(void *context, bool check)
{
    struct chain *chain = context;
    struct bench_call *call = chain->call;
    const struct bench_session *session = call->session;
    const uint64_t salt = bench_measured_salt(session);
    const int trial = chain->turn - 1, moments = chain->pairs * MOMENTS;
    bool good = session->mode->ended(call, chain->turn == BENCH_TRIALS ? BENCH_LOOPS : chain->turn);
    if (good && trial >= 0 && !check)
        good = device_of(chain)->marks_read(session->world, chain->marks, moments,
                                            chain->us + (size_t)trial * (size_t)moments);
    if (good && chain->turn == BENCH_TRIALS) good = session->mode->fill(call, salt) && bench_spoil_y(session);
    if (check) call->verified &= good && session->mode->verify(call, salt);
    session->mode->release(call);
    chain->turn++;
    return good;
}

/* ---- what follows from the moments ------------------------------------------------------------------------------- */

/* The difference of two moments in pairs of all trials; the second one may be of the pair after it. */
struct difference {
    int from, to, later; /* to: in the pair `later` places after that of from */
};
static const struct difference period = {BEGIN, BEGIN, 1}, gap = {END, BEGIN, 1}, dispatch = {BEGIN, BETWEEN, 0},
                               combine = {BETWEEN, END, 0};

static double at(const struct chain *chain, int trial, int pair, int moment)
{
    return chain->us[((size_t)trial * (size_t)chain->pairs + (size_t)pair) * MOMENTS + (size_t)moment];
}

static int dropped(const struct chain *chain)
{
    return chain->pairs / 8 < BENCH_MOST_DROPPED ? chain->pairs / 8 : BENCH_MOST_DROPPED;
}

/* Collects the differences of pairs first to last - 1 of all trials, sorted. Returns how many there are. */
static int collect(struct chain *chain, const struct difference *difference, int first, int last)
{
    int count = 0;
    for (int trial = 0; trial < BENCH_TRIALS; trial++)
        for (int pair = first; pair + difference->later < last; pair++)
            chain->scratch[count++] =
                at(chain, trial, pair + difference->later, difference->to) - at(chain, trial, pair, difference->from);
    stats_sort(chain->scratch, count);
    return count;
}

static double median_of(struct chain *chain, const struct difference *difference, int first, int last)
{
    const int count = collect(chain, difference, first, last);
    return count ? stats_median(chain->scratch, count) : 0;
}

/* Computes the figures of this rank: those of the period by the first chain, the floors by the second. */
static void figures_of_pairs(struct chain *chain, struct bench_period *mine)
{
    const int first = dropped(chain), pairs = chain->pairs, quarter = (pairs - first) / 4;
    mine->pair_us = median_of(chain, &period, first, pairs);
    mine->gap_us = median_of(chain, &gap, first, pairs);
    const int count = collect(chain, &period, first, pairs);
    mine->spread = count ? stats_spread(chain->scratch, count) : 0;
    const double early_us = median_of(chain, &period, first, first + quarter + 1),
                 late_us = median_of(chain, &period, pairs - quarter - 1, pairs);
    mine->drift = early_us > 0 ? late_us / early_us - 1 : 0;
}

static void figures_of_calls(struct chain *chain, struct bench_period *mine)
{
    mine->dispatch_us = median_of(chain, &dispatch, dropped(chain), chain->pairs);
    mine->combine_us = median_of(chain, &combine, dropped(chain), chain->pairs);
}

/* Puts the figures of all ranks together: `which` 0 is the least, 1 the median, 2 the most. */
static double together(const struct bench_period *all, int size, size_t member, int which, double *scratch)
{
    for (int rank = 0; rank < size; rank++)
        memcpy(&scratch[rank], (const char *)&all[rank] + member, sizeof *scratch);
    stats_sort(scratch, size);
    return which == 0 ? scratch[0] : which == 1 ? stats_median(scratch, size) : scratch[size - 1];
}

static bool gather(const struct bench_world *world, const struct bench_period *mine, struct bench_period *out)
{
    struct bench_period *all = calloc((size_t)world->size, sizeof *all);
    double *scratch = calloc((size_t)world->size, sizeof *scratch);
    bool good = bench_all_true(world, (all && scratch) || bench_complain(world, "out of memory"));
    good = good && bench_good(world, expar_group_allgather(world->group, mine, all, sizeof *mine));
#define TOGETHER(member, which)                                                                                        \
    .member = together(all, world->size, offsetof(struct bench_period, member), which, scratch)
    if (good)
        *out = (struct bench_period){.known = true,
                                     TOGETHER(pair_us, 1),
                                     TOGETHER(gap_us, 1),
                                     TOGETHER(dispatch_us, 0),
                                     TOGETHER(combine_us, 0),
                                     TOGETHER(spread, 2),
                                     TOGETHER(drift, 1)};
#undef TOGETHER
    free(all);
    free(scratch);
    return good;
}

/* ---- both chains ------------------------------------------------------------------------------------------------- */

static bool chain_open(struct chain *chain)
{
    const struct bench_world *world = chain->call->session->world;
    const size_t moments = (size_t)chain->pairs * MOMENTS;
    chain->us = calloc(BENCH_TRIALS * moments, sizeof *chain->us);
    chain->scratch = calloc(BENCH_TRIALS * moments, sizeof *chain->scratch);
    chain->marks = device_of(chain)->marks_open(world, (int)moments);
    const bool good = chain->us && chain->scratch && chain->marks;
    return bench_all_true(world, good || bench_complain(world, "out of memory for the moments of pairs"));
}

static void chain_close(struct chain *chain)
{
    device_of(chain)->marks_close(chain->call->session->world, chain->marks, chain->pairs * MOMENTS);
    free(chain->us);
    free(chain->scratch);
}

static bool chain_measure(struct chain *chain, struct bench_times *times)
{
    struct bench_call *call = chain->call;
    const struct bench_session *session = call->session;
    struct bench_options of_trials = *session->options;
    struct contender contender = {.run = chain_run, .after = chain_after, .context = chain};
    char label[BENCH_LABEL_BYTES];
    of_trials.warmup = 1;
    of_trials.iters = BENCH_TRIALS;
    chain->turn = 0;
    call->between = chain->split ? mark_between : NULL;
    call->between_context = chain;
    bench_session_label(session, "pairs", label);
    const bool good = bench_all_true(session->world, session->mode->fill(call, bench_first_salt(session))) &&
                      bench_measure(session->world, &of_trials, label, &contender, 1);
    call->between = NULL;
    if (good) *times = bench_times_share(&contender.times, chain->pairs);
    return good;
}

static bool measure(struct bench_call *call, struct bench_times *times, struct bench_period *figures)
{
    struct chain chain = {.call = call, .pairs = call->session->options->pairs};
    struct bench_period mine = {0};
    struct bench_times of_calls;
    bool good = chain_open(&chain) && chain_measure(&chain, times);
    if (good) figures_of_pairs(&chain, &mine);
    chain.split = true;
    good = good && chain_measure(&chain, &of_calls);
    if (good) figures_of_calls(&chain, &mine);
    chain_close(&chain);
    return good && gather(call->session->world, &mine, figures);
}

bool bench_period_measure(struct bench_call *call, struct bench_results *results)
{
    const struct bench_mode *mode = call->session->mode;
    struct bench_times times = {0};
    struct bench_period figures = {0};
    struct bench_result *result = NULL;
    bool good = mode->open(call) && measure(call, &times, &figures) && (result = bench_result_of(call, results));
    if (good) {
        result->phase = call->kind.hooked ? "hooks" : "call";
        result->expar = times;
        result->period = figures;
        good = mode->describe(call, result);
    }
    mode->close(call);
    return good;
}
