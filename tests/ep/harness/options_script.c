/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the group and the buffers of a script, and runs it. */
#include "ep/harness/options_script.h"
#include "ep/harness/options_draw.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define AMPLE_POOL_BYTES ((int64_t)48 << 20)
#define TINY_POOL_BYTES  4096
#define HEAP_SLACK_BYTES ((size_t)16 << 20)
#define FEW_AREA_BYTES   ((size_t)256 << 10)
#define MANY_AREA_BYTES  ((size_t)2 << 20)
/* Calls that may be unfinished at a time, and areas, so that none is used by two of them. */
#define LAG   3
#define AREAS (LAG + 1)
#define DEALS 2

/* ---- the group --------------------------------------------------------------------------------------------------- */

static expar_ep_config draw_config(random_source *random, int32_t ranks, bool ample_pool)
{
    static const int32_t slots[] = {0, 1, 2, 3, 4, 16};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = random_between(random, 0, 20);
    config.max_row_bytes = 16 * random_between(random, 1, 32);
    config.max_topk = (int32_t)random_between(random, 1, 8);
    config.max_experts = ranks * (int32_t)random_between(random, 1, 6);
    config.num_channels = (int32_t)random_between(random, 0, 3);
    config.ring_slots = slots[random_between(random, 0, 5)];
    config.max_scales = random_once_in(random, 2) ? (int32_t)random_between(random, 1, 12) : 0;
    config.pool_limit_bytes = ample_pool ? AMPLE_POOL_BYTES : random_once_in(random, 2) ? 0 : TINY_POOL_BYTES;
    return config;
}

/* The config of the buffer. */
static expar_ep_config config_made(const options_script *s, int32_t buffer)
{
    expar_ep_config config = s->configs[buffer];
    config.ranks_per_node = s->ranks.ranks_per_node;
    if (!s->unlimited) return config;
    config.max_tokens = config.max_row_bytes = 0;
    config.max_topk = config.max_experts = config.max_scales = 0;
    return config;
}

void options_script_fit(options_script *s)
{
    size_t all = 2 * AREAS * s->area_bytes + HEAP_SLACK_BYTES;
    for (int32_t b = 0; b < s->num_buffers; b++) {
        const expar_ep_config config = config_made(s, b);
        size_t bytes = 0;
        if (expar_ep_get_buffer_size(&config, s->ranks.size, &bytes) != EXPAR_OK) {
            fprintf(stderr, "%s\n", expar_last_error());
            abort();
        }
        all += bytes + 4096;
    }
    s->ranks.heap_bytes = all;
}

options_script options_script_make_on(uint64_t seed, const ranks_plan *ranks, int64_t num_moves)
{
    random_source random = random_start(seed);
    options_script s = {.seed = seed, .num_moves = num_moves, .area_bytes = FEW_AREA_BYTES};
    int32_t drawn = (int32_t)random_between(&random, 1, 6);
    s.ranks = *ranks;
    if (!ranks->size) s.ranks.size = drawn;
    s.num_buffers = (int32_t)random_between(&random, 1, OPTIONS_BUFFERS);
    s.ample_pool = !random_once_in(&random, 3);
    for (int32_t b = 0; b < s.num_buffers; b++)
        s.configs[b] = draw_config(&random, s.ranks.size, s.ample_pool);
    options_script_fit(&s);
    return s;
}

options_script options_script_make(uint64_t seed, ranks_kind kind, int32_t ranks, int64_t num_moves)
{
    return options_script_make_on(seed, &(ranks_plan){.kind = kind, .size = ranks}, num_moves);
}

void options_script_widen(options_script *s)
{
    random_source random = random_start(~s->seed);
    for (int32_t b = 0; b < s->num_buffers; b++) {
        expar_ep_config *c = &s->configs[b];
        c->max_tokens = random_between(&random, 600, 1500);
        c->max_row_bytes = 16;
        if (c->max_topk > 3) c->max_topk = 3;
    }
    s->area_bytes = MANY_AREA_BYTES;
    options_script_fit(s);
}

static void options_script_print(const options_script *s)
{
    for (int32_t b = 0; b < s->num_buffers; b++) {
        const expar_ep_config *c = &s->configs[b];
        fprintf(stderr,
                "script %" PRIu64 ", buffer %d: %d ranks, %d a node, T ≤ %lld, rows ≤ %lld bytes, K ≤ %d, E ≤ %d, S ≤ "
                "%d, %d channels, %d slots, "
                "pool %lld\n",
                s->seed, (int)b, (int)s->ranks.size, (int)s->ranks.ranks_per_node, (long long)c->max_tokens,
                (long long)c->max_row_bytes, (int)c->max_topk, (int)c->max_experts, (int)c->max_scales,
                (int)c->num_channels, (int)c->ring_slots, (long long)c->pool_limit_bytes);
    }
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

typedef struct open_deal {
    deal *deal;
    expar_ep_handle *handle;
    int32_t buffer;
} open_deal;

typedef struct player {
    const options_script *script;
    int32_t rank;
    random_source random; /* drawn from alike on all ranks */
    random_source own;    /* this rank's */
    expar_ep *eps[OPTIONS_BUFFERS];
    trial_area areas[AREAS];
    open_deal deals[DEALS];
    int32_t num_deals;
    deal_call calls[LAG]; /* unfinished, oldest first */
    deal_move *moves[LAG];
    int32_t num_calls;
    int64_t simulated;
} player;

/* Describes a move that went wrong on this rank. */
static void print_move(const deal_move *m, int32_t rank)
{
    static const char *const kinds[] = {
        [MOVE_DISPATCH] = "dispatch", [MOVE_REPEAT] = "repeat", [MOVE_COMBINE] = "combine"};
    const move_form *f = &m->form;
    const deal_choice *c = &m->choices[rank];
    fprintf(stderr,
            "rank %d, %s%s: type %d, hidden %d, K %d, order %d, weights %d, owners' %d, slots kept %d; path %d, "
            "place %d, async %d, SMs %d, expert-major %d, worst %d, limit %d\n",
            (int)rank, kinds[f->kind], f->routed ? " of a route" : "", (int)f->type, (int)f->hidden,
            (int)m->deal->job.topk, (int)f->order, f->with_weights, f->owners_weights, m->deal->keep_slots,
            (int)c->path, (int)c->place, c->async, (int)c->num_sms, c->expert_major, (int)c->worst, (int)c->limit);
}

static bool finish_oldest(player *p)
{
    bool right = deal_call_finish(&p->calls[0]);
    if (!right) print_move(p->moves[0], p->rank);
    move_free(p->moves[0]);
    p->num_calls--;
    for (int32_t i = 0; i < p->num_calls; i++) {
        p->calls[i] = p->calls[i + 1];
        p->moves[i] = p->moves[i + 1];
    }
    return CHECK(right, "move %lld of script %" PRIu64 " went wrong", (long long)(p->simulated - p->num_calls - 1),
                 p->script->seed);
}

static bool finish_until(player *p, int32_t left)
{
    bool right = true;
    while (right && p->num_calls > left)
        right = finish_oldest(p);
    return right;
}

/* The event that the next call waits for: none, an unfinished call, or an event of ours. Ours may be signalled late
   where the call does not wait itself. *late: to be signalled once the call has been made. */
static expar_event *draw_event(player *p, bool may_be_late, expar_event **own, bool *late)
{
    *own = NULL;
    *late = false;
    int64_t choice = random_between(&p->own, 0, 5);
    const deal_call *last = p->num_calls ? &p->calls[p->num_calls - 1] : NULL;
    if (choice == 0 && last && last->event && deal_call_ending(last) == EXPAR_OK) return last->event;
    if (choice > 1) return NULL;
    CHECK_OK(expar_event_create(own));
    *late = may_be_late && random_once_in(&p->own, 2);
    if (!*late) CHECK_OK(expar_event_signal(*own));
    return *own;
}

static bool trial_move(player *p, open_deal *open, deal_move *m)
{
    bool late, right = finish_until(p, LAG - 1);
    expar_event *own;
    if (!right) {
        move_free(m);
        return false;
    }
    deal_call *call = &p->calls[p->num_calls];
    bool alone = m->choices[p->rank].async && m->form.kind != MOVE_DISPATCH && !EVENTS_HOLD_UP_THE_CALLER;
    expar_event *event = draw_event(p, alone, &own, &late);
    right =
        deal_call_start(call, p->eps[open->buffer], m, p->rank, &p->areas[p->simulated % AREAS], open->handle, event);
    if (late) CHECK_OK(expar_event_signal(own));
    expar_event_release(own);
    p->moves[p->num_calls++] = m;
    p->simulated++;
    if (m->form.kind == MOVE_DISPATCH) open->handle = call->result.handle;
    if (!right) return false;
    return m->choices[p->rank].async && !random_once_in(&p->own, 2) ? true : finish_until(p, 0);
}

static const expar_ep_config *config_of(const player *p, int32_t buffer)
{
    return &p->script->configs[buffer];
}

static bool open_deals(player *p)
{
    int32_t wanted = (int32_t)random_between(&p->random, 1, DEALS);
    bool right = true;
    for (p->num_deals = 0; right && p->num_deals < wanted;) {
        int32_t buffer = (int32_t)random_between(&p->random, 0, p->script->num_buffers - 1);
        options_limits limits = {config_of(p, buffer), p->script->ranks.size, p->script->ranks.ranks_per_node,
                                 p->script->ample_pool};
        open_deal *open = &p->deals[p->num_deals++];
        *open = (open_deal){.deal = options_draw_deal(&limits, &p->random), .buffer = buffer};
        right = trial_move(p, open, options_draw_dispatch(&limits, open->deal, MOVE_DISPATCH, false, &p->random));
    }
    return right;
}

static bool trial_deals(player *p)
{
    bool right = true;
    for (int64_t i = random_between(&p->random, 0, 6); right && i > 0; i--) {
        open_deal *open = &p->deals[random_between(&p->random, 0, p->num_deals - 1)];
        options_limits limits = {config_of(p, open->buffer), p->script->ranks.size, p->script->ranks.ranks_per_node,
                                 p->script->ample_pool};
        bool again = random_once_in(&p->random, 3), rejected = random_once_in(&p->random, 10);
        right = trial_move(p, open,
                           again ? options_draw_dispatch(&limits, open->deal, MOVE_REPEAT, rejected, &p->random)
                                 : options_draw_combine(&limits, open->deal, rejected, &p->random));
    }
    return right;
}

/* A first dispatch that one rank's arguments spoil for all. */
static bool trial_rejected(player *p)
{
    options_limits limits = {config_of(p, 0), p->script->ranks.size, p->script->ranks.ranks_per_node,
                             p->script->ample_pool};
    open_deal spoilt = {.deal = options_draw_deal(&limits, &p->random)};
    bool right = trial_move(p, &spoilt, options_draw_dispatch(&limits, spoilt.deal, MOVE_DISPATCH, true, &p->random)) &&
                 finish_until(p, 0);
    expar_ep_handle_release(spoilt.handle);
    if (right) deal_free(spoilt.deal);
    return right;
}

/* Handles go before or after the calls that still use them. */
static bool close_deals(player *p, bool right)
{
    bool early = random_once_in(&p->own, 2);
    if (right && !early) right = finish_until(p, 0);
    for (int32_t i = 0; i < p->num_deals; i++)
        expar_ep_handle_release(p->deals[i].handle);
    if (right && early) right = finish_until(p, 0);
    for (int32_t i = 0; right && i < p->num_deals; i++)
        deal_free(p->deals[i].deal);
    return right;
}

static bool trial_all(player *p)
{
    const options_script *s = p->script;
    bool right = true;
    while (right && p->simulated < s->num_moves) {
        right = close_deals(p, open_deals(p) && trial_deals(p));
        if (right && random_once_in(&p->random, 6)) right = trial_rejected(p);
        if (s->watch && p->rank == 0) s->watch(s->watch_context, p->simulated);
    }
    return right;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static bool begin(player *p, expar_group *group)
{
    const options_script *s = p->script;
    bool right = true;
    for (int32_t b = 0; right && b < s->num_buffers; b++) {
        expar_ep_config config = config_made(s, b);
        config.num_threads = (int32_t)random_between(&p->own, 1, 3);
        right = CHECK_OK(expar_ep_create(group, &config, &p->eps[b]));
        if (right && s->prepare) s->prepare(s->prepare_context, p->eps[b], p->rank);
    }
    for (int32_t i = 0; right && i < AREAS; i++)
        right = trial_area_take(group, s->area_bytes, &p->areas[i]);
    return right;
}

/* The body of its ranks. */
static void options_script_trial(expar_group *group, void *shared)
{
    const options_script *s = shared;
    player *p = traffic_alloc(1, sizeof *p);
    p->script = s;
    p->rank = expar_group_rank(group);
    p->random = random_start(s->seed ^ 0x6f7074696f6e73u);
    p->own = random_start(s->seed * 64 + (uint64_t)p->rank);
    bool right = begin(p, group) && trial_all(p);
    if (!right) expar_group_abort(group);
    for (int32_t i = 0; right && i < AREAS; i++)
        trial_area_give(group, &p->areas[i]);
    for (int32_t b = 0; b < s->num_buffers; b++)
        CHECK_OK(expar_ep_destroy(p->eps[b]));
    free(p);
}

bool options_script_run(options_script *s)
{
    const bool passed = ranks_run(&s->ranks, options_script_trial, s);
    if (!passed) options_script_print(s);
    return passed;
}
