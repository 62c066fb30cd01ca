/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a buffer that gets its shape later (proto/reserve.h). Each rank lays it out at its own first call, and tells
 * it to the others. Before this rank sends anything to another one, that must have told the same shape. A rank that is
 * masked meanwhile is not awaited. A rank that comes back by a clean may not have made its first call yet, so each call
 * looks at the ranks that have not been met. */
#include "exec/cpu/low_latency/cpu.h"

static uint64_t shape_at(const ll_cpu *self, int32_t source)
{
    return self->reserve.shapes + (uint64_t)source * EP_LINE_BYTES;
}

void ll_meet_say(ll_cpu *self)
{
    const ll_shape_words words = ll_shape_say(&self->shape);
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        for (int w = 0; w < LL_SHAPE_WORDS; w++)
            ll_store(self, r, shape_at(self, self->sym->rank) + (uint64_t)w * 8, words.words[w]);
        sym_ring(self->sym, r);
    }
}

/* Says whether the rank has told its shape, and returns it. */
static bool hear_shape(const ll_cpu *self, int32_t rank, ll_shape_words *out)
{
    bool said = true;
    for (int w = 0; w < LL_SHAPE_WORDS; w++) {
        out->words[w] = ll_look(self, shape_at(self, rank) + (uint64_t)w * 8);
        said = said && (out->words[w] & LL_SHAPE_IS_SAID);
    }
    return said;
}

static ll_due shape_due(const void *context, int32_t rank)
{
    const ll_cpu *self = context;
    ll_shape_words words;
    return (ll_due){.came = ll_is_masked(self, rank) || ll_has_met(self, rank) || hear_shape(self, rank, &words),
                    .all = 1};
}

/* Meets the ranks that have told their shape. EXPAR_ERR_MISMATCH if one is different. */
static expar_status meet_those(ll_cpu *self)
{
    const ll_shape_words own = ll_shape_say(&self->shape);
    ll_shape_words words;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (ll_has_met(self, r) || ll_is_masked(self, r) || !hear_shape(self, r, &words)) continue;
        if (!ll_shapes_are_same(&words, &own)) return ll_shape_differs(&self->shape, self->sym->rank, &words, r);
        self->meeting.met[r] = true;
        self->meeting.missing--;
    }
    return EXPAR_OK;
}

static expar_status await_first_calls(ll_cpu *self, const ll_call *call)
{
    ll_wait wait = {.cpu = self,
                    .call = call,
                    .what = "low latency: first calls",
                    .of = "shapes",
                    .due = shape_due,
                    .context = self};
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++)
        while (status == EXPAR_OK && shape_due(self, r).came == 0)
            status = ll_wait_turn(&wait, false);
    return ll_wait_end(&wait, status);
}

expar_status ll_meet(ll_cpu *self, ll_call *call)
{
    if (!self->meeting.met || self->meeting.missing == 0) return EXPAR_OK;
    expar_status status = await_first_calls(self, call);
    if (status != EXPAR_OK) return status;
    status = meet_those(self);
    if (status != EXPAR_OK && (call->rejection.status == EXPAR_OK || call->rejection.status == EXPAR_ERR_INDEX))
        call->rejection = ep_rejection_of(status);
    call->open = status == EXPAR_OK;
    return EXPAR_OK;
}
