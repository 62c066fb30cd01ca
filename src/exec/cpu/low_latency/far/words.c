/* SPDX-License-Identifier: Apache-2.0 */
/* Words about masks and cleans for ranks that are not mapped (exec/far_words.h). They go after everything that was sent
 * to the rank before (ll_far_has_come). */
#include "base/knobs.h"
#include "exec/cpu/low_latency/far/links.h"

#include <time.h>

static bool words_may_go(const void *context, int32_t pe)
{
    return ll_far_has_come(context, pe);
}

static void between(const void *context)
{
    ll_step(context);
}

static far_words_place said_place(const ll_cpu *self)
{
    const uint64_t cleans = ll_clean_at(&self->space, self->sym->rank, 0);
    return (far_words_place){.sym = self->sym,
                             .ranks = self->shape.ranks,
                             .masker = self->buffer + ll_masker_at(&self->space, self->sym->rank),
                             .cleans = self->buffer + cleans,
                             .said = ll_here(self, cleans),
                             .has_come = words_may_go,
                             .between = between,
                             .context = self};
}

bool ll_far_is_owed(const ll_cpu *self, int32_t rank)
{
    const far_words_place place = said_place(self);
    return ll_is_far(self, rank) && far_words_are_owed(&place, &self->links->ranks[rank].words);
}

/* Where nothing more reaches a rank by this way, data sent to it in calls fail, too, and mask it. */
void ll_far_spread(const ll_cpu *self)
{
    const far_words_place place = said_place(self);
    for (int32_t r = 0; self->masks && r < self->shape.ranks; r++) {
        if (!ll_is_far(self, r)) continue;
        far_words *words = &self->links->ranks[r].words;
        far_words_spread(&place, words, r);
        if (words->cut_off) self->masks->cleaner->cut_off[r] = true;
    }
}

void ll_far_masker(const ll_cpu *self, int32_t rank, uint64_t masker)
{
    self->links->ranks[rank].words.masker = masker;
    ll_far_spread(self);
}

void ll_far_linger(const ll_cpu *self, int32_t rank)
{
    const int64_t end_ns = clock_ns() + knob(KNOB_LINK_LINGER_NS);
    ll_far_spread(self);
    while (!self->links->ranks[rank].words.cut_off && clock_ns() < end_ns &&
           (ll_far_is_owed(self, rank) || !link_is_quiet(&self->links->ranks[rank].words.batch))) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        ll_far_spread(self);
    }
}

expar_status ll_far_conclude(const ll_cpu *self, const uint32_t *view)
{
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        const ll_far_wait wait = {.self = self->links->cpu, .pe = r};
        if (view[r] && ll_is_far(self, r)) status = ll_far_wait_on(&wait);
        if (status == EXPAR_ERR_PEER) status = EXPAR_OK;
    }
    return status;
}
