/* SPDX-License-Identifier: Apache-2.0 */
/* Runs histories on thread ranks: each waits for its turn before each of its deeds, and is looked at from step to step
 * by the delay hook of the executor. */
#include "ep/low_latency/history.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/reach.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEEDS 48
#define MAX_CALLS 12
/* "A while": steps of a deed that has just begun, and of a rank that goes on with one. With more of them a weaker
   protocol errs more surely; but a rank that waits takes its steps ever more slowly. */
#define FIRST_STEPS 24
#define MORE_STEPS  3
/* Ranks that wait for each other end then. */
#define LATE_LIMIT_MS 30000
#define TOKENS        3
#define HIDDEN        16

typedef struct history_deed {
    int32_t rank, call;
    char what; /* s, e or w */
    bool hook, goes_on, stops;
} history_deed;

typedef struct director {
    int32_t stop, num_deeds;
    history_deed deeds[MAX_DEEDS];
    int32_t first[HISTORY_MAX_RANKS][MAX_DEEDS]; /* the deed of each rank's i-th step */
    pthread_mutex_t lock;                        /* guards what follows */
    pthread_cond_t change;
    bool passed[MAX_DEEDS], ended[MAX_DEEDS];
    int32_t current;                     /* the first deed that has not passed */
    int64_t aimed_at;                    /* steps that its rank had taken when it became that */
    int64_t steps[HISTORY_MAX_RANKS];    /* that the rank has taken */
    int64_t begun_at[HISTORY_MAX_RANKS]; /* of these, before its last deed began */
    int32_t doing[HISTORY_MAX_RANKS];    /* its deed, or -1 */
    bool broken;                         /* a rank has given up: nobody waits any more */
} director;

typedef struct director_seat {
    director *director;
    int32_t rank;
} director_seat;

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static bool may_pass(const director *d, int32_t deed)
{
    const history_deed *it = &d->deeds[deed];
    const int32_t rank = it->rank, doing = d->doing[rank];
    bool went_on = d->steps[rank] >= d->aimed_at + MORE_STEPS;
    if (it->what == 'w') return doing < 0 || went_on;
    if (d->ended[deed] || !it->goes_on || doing < 0) return d->ended[deed];
    return went_on && (doing != deed || d->steps[rank] >= d->begun_at[rank] + FIRST_STEPS);
}

static void aim(director *d)
{
    if (d->current < d->num_deeds) d->aimed_at = d->steps[d->deeds[d->current].rank];
}

/* Under the lock, after anything has changed. */
static void pass_on(director *d)
{
    while (d->current < d->num_deeds && may_pass(d, d->current)) {
        d->passed[d->current++] = true;
        aim(d);
    }
    pthread_cond_broadcast(&d->change);
}

static void turn(void *context, int32_t rank, int32_t step, bool begins)
{
    director *d = context;
    pthread_mutex_lock(&d->lock);
    if (step < 0) {
        d->broken = true;
    } else if (begins) {
        int32_t deed = d->first[rank][step];
        while (d->current < deed && !d->broken)
            pthread_cond_wait(&d->change, &d->lock);
        d->doing[rank] = deed;
        d->begun_at[rank] = d->steps[rank];
    } else {
        d->ended[d->first[rank][step]] = true;
        d->doing[rank] = -1;
    }
    pass_on(d);
    pthread_mutex_unlock(&d->lock);
}

/* The w after a deed. */
static int32_t end_of_stop(const director *d, int32_t deed)
{
    while (deed + 1 < d->num_deeds && d->deeds[deed].what != 'w')
        deed++;
    return deed;
}

/* Between two steps of a rank, on its thread. */
static void take_step(void *context)
{
    const director_seat *seat = context;
    director *d = seat->director;
    pthread_mutex_lock(&d->lock);
    int32_t deed = d->doing[seat->rank];
    d->steps[seat->rank]++;
    pass_on(d);
    if (deed >= 0 && d->deeds[deed].stops && d->steps[seat->rank] - d->begun_at[seat->rank] == d->stop) {
        int32_t until = end_of_stop(d, deed);
        /* A rank that stands still is as far as it comes. */
        d->steps[seat->rank] += FIRST_STEPS;
        pass_on(d);
        while (!d->passed[until] && !d->broken)
            pthread_cond_wait(&d->change, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static expar_status status_of(char letter)
{
    switch (letter) {
    case 'A':
        return EXPAR_ERR_ARGUMENT;
    case 'R':
        return EXPAR_ERR_REMOTE;
    case 'M':
        return EXPAR_ERR_MISMATCH;
    case 'S':
        return EXPAR_ERR_STATE;
    default:
        return EXPAR_OK;
    }
}

/* All tokens of a rank go to one expert of the rank `distance` after it; 0: each to any two. */
static lowlat_traffic *make_traffic(int32_t ranks, int32_t distance, random_source *random)
{
    int64_t num_tokens[HISTORY_MAX_RANKS] = {TOKENS, TOKENS, TOKENS};
    lowlat_plan plan = {.num_ranks = ranks,
                        .max_tokens = TOKENS,
                        .hidden = HIDDEN,
                        .topk = 2,
                        .num_experts = 2 * ranks,
                        .num_tokens = num_tokens};
    lowlat_traffic *t = lowlat_traffic_make(&plan, random);
    for (int32_t r = 0; distance && r < ranks; r++)
        for (int32_t i = 0; i < TOKENS; i++) {
            int64_t *idx = (int64_t *)(uintptr_t)t->inputs[r].topk_idx + 2 * (size_t)i;
            idx[0] = 2 * ((r + distance) % ranks) + i % 2;
            idx[1] = -1;
        }
    lowlat_traffic_settle(t);
    return t;
}

static void read_troubles(lowlat_op *op, const char *word, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++) {
        op->statuses[r] = status_of(word[3 + r]);
        if (op->statuses[r] == EXPAR_ERR_ARGUMENT) {
            op->trouble = LOWLAT_REJECTED;
            op->culprit = r;
        } else if (op->statuses[r] == EXPAR_ERR_STATE) {
            op->trouble = LOWLAT_PENDING;
        } else if (op->statuses[r] == EXPAR_ERR_MISMATCH) {
            op->trouble = LOWLAT_MISMATCH;
            op->culprit = 1; /* one of them */
        }
    }
}

static void read_calls(lowlat_script *s, const char *text, random_source *random)
{
    const size_t n = (size_t)s->ranks.size, word_bytes = 3 + n;
    for (; *text; text += word_bytes + strspn(text + word_bytes, " ")) {
        lowlat_op *op = &s->ops[s->num_ops++];
        int32_t number = text[1] - '0';
        op->kind = text[0] == 'D' ? LOWLAT_DISPATCH : LOWLAT_COMBINE;
        op->manner = 2;
        op->choices = traffic_alloc(n, sizeof *op->choices);
        op->statuses = traffic_alloc(n, sizeof *op->statuses);
        read_troubles(op, text, s->ranks.size);
        if (op->kind == LOWLAT_DISPATCH) {
            op->traffic = make_traffic(s->ranks.size, number, random);
        } else {
            op->source = number;
            op->traffic = s->ops[number].traffic;
            op->answers = lowlat_answers_make(op->traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, random);
        }
    }
}

static void read_deeds(director *d, lowlat_script *s, const char *text)
{
    char word[16];
    int length;
    for (; sscanf(text, " %15s%n", word, &length) == 1; text += length) {
        history_deed *deed = &d->deeds[d->num_deeds];
        *deed = (history_deed){.rank = word[0] - '0',
                               .what = word[1],
                               .call = word[1] == 'w' ? 0 : word[2] - '0',
                               .hook = strchr(word, 'h') != NULL,
                               .goes_on = strchr(word, '+') != NULL,
                               .stops = strchr(word, '@') != NULL};
        if (deed->what != 'w') {
            d->first[deed->rank][s->num_steps[deed->rank]] = d->num_deeds;
            s->steps[deed->rank][s->num_steps[deed->rank]++] =
                (lowlat_step){deed->what == 's' ? LOWLAT_START : LOWLAT_END, deed->call};
        }
        if (deed->what == 's') s->ops[deed->call].choices[deed->rank].hook = deed->hook;
        d->num_deeds++;
    }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void take_seat(void *context, expar_ll *ll, int32_t rank)
{
    hold_install(ll, take_step, (director_seat *)context + rank);
}

static lowlat_script *script_of(const history *h, director *d, random_source *random)
{
    lowlat_script *s = traffic_alloc(1, sizeof *s);
    size_t n = (size_t)h->ranks;
    s->ranks = (ranks_plan){
        .kind = RANKS_THREADS, .size = h->ranks, .heap_bytes = (size_t)16 << 20, .late_limit_ms = LATE_LIMIT_MS};
    s->ranks.ranks_per_node = reach_ranks_per_node(h->ranks);
    s->config = (expar_ll_config)EXPAR_LL_CONFIG_INIT;
    s->config.max_tokens = TOKENS;
    s->config.hidden = HIDDEN;
    s->config.max_topk = 2;
    s->config.num_experts = 2 * h->ranks;
    s->config.unmapped = reach_unmapped();
    s->with_trouble = true;
    s->ops = traffic_alloc(MAX_CALLS, sizeof *s->ops);
    s->steps = traffic_alloc(n, sizeof *s->steps);
    s->num_steps = traffic_alloc(n, sizeof *s->num_steps);
    for (size_t r = 0; r < n; r++)
        s->steps[r] = traffic_alloc(MAX_DEEDS, sizeof **s->steps);
    read_calls(s, h->calls, random);
    read_deeds(d, s, h->deeds);
    return s;
}

bool history_trial(const history *h, int32_t stop)
{
    random_source random = random_start(7);
    director d = {.stop = stop, .doing = {-1, -1, -1}};
    director_seat seats[HISTORY_MAX_RANKS];
    lowlat_script *s = script_of(h, &d, &random);
    pthread_mutex_init(&d.lock, NULL);
    pthread_cond_init(&d.change, NULL);
    aim(&d);
    for (int32_t r = 0; r < h->ranks; r++)
        seats[r] = (director_seat){&d, r};
    s->prepare = take_seat;
    s->prepare_context = seats;
    s->around = turn;
    s->around_context = &d;
    bool passed = ranks_run(&s->ranks, lowlat_script_trial, s);
    if (!passed) fprintf(stderr, "history \"%s\", stopped at step %d, went wrong\n", h->name, (int)stop);
    lowlat_script_free(s);
    pthread_cond_destroy(&d.change);
    pthread_mutex_destroy(&d.lock);
    return passed;
}
