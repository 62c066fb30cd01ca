/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a script on one rank. */
#include "ep/harness/script.h"
#include <stdlib.h>

/* The live objects of one rank. `first` owns the handle; `repeat` is the latest dispatch that used it. */
typedef struct live_slot {
    trial_arrival first, repeat;
    trial_area first_area, repeat_area;
} live_slot;

typedef struct player {
    const script *script;
    expar_ep *ep;
    int32_t rank;
    live_slot slots[SCRIPT_SLOTS];
} player;

/* Checks for a last time and frees. */
static bool retire(player *p, trial_arrival *arrival, bool handle_first)
{
    bool right = !arrival->result.output || trial_check_arrival(arrival, p->rank);
    trial_release(arrival, handle_first);
    return right;
}

/* Old outputs stay alive during the new call, except where it reuses their memory. */
static bool trial_new(player *p, const script_op *op)
{
    live_slot *slot = &p->slots[op->slot];
    const trial_choice *choice = &op->choices[p->rank];
    live_slot old = *slot;
    bool early = choice->place == PLACE_SYMMETRIC, right = true;
    if (early) right = retire(p, &old.first, true) & retire(p, &old.repeat, false);
    slot->repeat = (trial_arrival){0};
    right &= trial_dispatch(p->ep, op->traffic, p->rank, choice, &slot->first_area, NULL, &slot->first);
    if (!early) right &= retire(p, &old.repeat, true) & retire(p, &old.first, false);
    return right;
}

static bool trial_repeat(player *p, const script_op *op)
{
    live_slot *slot = &p->slots[op->slot];
    const trial_choice *choice = &op->choices[p->rank];
    trial_arrival old = slot->repeat;
    bool early = choice->place == PLACE_SYMMETRIC, right = true;
    if (early) right = retire(p, &old, true);
    right &= trial_dispatch(p->ep, op->traffic, p->rank, choice, &slot->repeat_area, slot->first.handle, &slot->repeat);
    if (!early) right &= retire(p, &old, true);
    return right;
}

static bool trial_forget(player *p, const script_op *op)
{
    trial_arrival *first = &p->slots[op->slot].first;
    expar_ep_handle *handle = first->handle;
    first->handle = NULL;
    bool right = retire(p, first, false);
    first->handle = handle;
    return right;
}

static bool trial_op(player *p, const script_op *op)
{
    live_slot *slot = &p->slots[op->slot];
    switch (op->kind) {
    case SCRIPT_DISPATCH:
        return trial_new(p, op);
    case SCRIPT_REPEAT:
        return trial_repeat(p, op);
    case SCRIPT_COMBINE:
        return trial_combine(p->ep, op->traffic, op->answers, p->rank, &op->choices[p->rank], &slot->first_area,
                             slot->first.handle, &slot->first);
    default:
        return trial_forget(p, op);
    }
}

static bool trial_ops(player *p)
{
    bool right = true;
    for (int64_t i = 0; right && i < p->script->num_ops; i++)
        right = CHECK(trial_op(p, &p->script->ops[i]), "op %lld of the script went wrong", (long long)i);
    for (int32_t i = 0; i < SCRIPT_SLOTS; i++)
        right &= retire(p, &p->slots[i].repeat, i & 1) & retire(p, &p->slots[i].first, i & 2);
    return right;
}

static bool take_areas(player *p, expar_group *group)
{
    bool right = true;
    for (int32_t i = 0; right && i < SCRIPT_SLOTS; i++)
        right = trial_area_take(group, p->script->area_bytes, &p->slots[i].first_area) &&
                trial_area_take(group, p->script->area_bytes, &p->slots[i].repeat_area);
    return right;
}

static void give_areas(player *p, expar_group *group)
{
    for (int32_t i = 0; i < SCRIPT_SLOTS; i++) {
        trial_area_give(group, &p->slots[i].first_area);
        trial_area_give(group, &p->slots[i].repeat_area);
    }
}

void script_trial(expar_group *group, void *shared)
{
    player p = {.script = shared, .rank = expar_group_rank(group)};
    expar_ep_config config = p.script->config;
    config.num_threads = p.script->threads[p.rank];
    if (!CHECK_OK(expar_ep_create(group, &config, &p.ep))) return;
    bool right = take_areas(&p, group) && trial_ops(&p);
    if (!right)
        expar_group_abort(group);
    else
        give_areas(&p, group);
    CHECK_OK(expar_ep_destroy(p.ep));
}
