/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that go ahead of a reduced combine whose dispatch had none: from each token's rank to its experts' ranks. */
#include "exec/cpu/low_latency/far.h"

#include <string.h>

bool ll_combine_goes_to(const ll_combine *c, int32_t token, int32_t pe)
{
    const int32_t *idx = c->step->routing->idx + (int64_t)token * c->self->shape.topk;
    const int32_t topk = c->step->call.form.topk, locals = c->self->shape.local_experts;
    int32_t k = 0;
    while (k < topk && (idx[k] < 0 || idx[k] / locals != pe))
        k++;
    return k < topk;
}

/* Stores each message's weights, with a flag of their own. */
static void store_weights(const ll_combine *c, int32_t pe)
{
    const ll_cpu *self = c->self;
    const ep_route_view *route = &c->step->route;
    const uint64_t epoch = c->step->call.epoch;
    const int32_t own = self->sym->rank;
    int32_t message = 0;
    for (int32_t t = 0; t < c->step->routing->tokens; t++) {
        if (!ll_combine_goes_to(c, t, pe)) continue;
        memcpy(ll_at(self, pe, ll_weights_at(&self->space, &self->shape, own, epoch, message)),
               route->weights + t * route->weights_pitch, (size_t)c->step->call.form.topk * sizeof(float));
        ll_store(self, pe, ll_weight_flag_at(&self->space, &self->shape, own, epoch, message), ll_word(epoch, 1));
        message++;
    }
    sym_ring(self->sym, pe);
}

static void send_weights(const ll_combine *c, int32_t pe)
{
    if (ll_is_far(c->self, pe))
        c->self->far->send_weights(c, pe);
    else
        store_weights(c, pe);
}

static bool weights_have_come(const ll_combine *c, int32_t source, int32_t message)
{
    const ll_cpu *self = c->self;
    const uint64_t epoch = c->step->call.epoch;
    return ll_word_is_of(ll_look(self, ll_weight_flag_at(&self->space, &self->shape, source, epoch, message)), epoch);
}

/* Passes when all of the source's weights are here; those of a far source come all with the last one.
   LL_CREDIT_REJECTS: it takes no part in the call. */
static ll_credit credit_of_weights(const ll_combine *c, int32_t source)
{
    const ll_cpu *self = c->self;
    const int32_t last = c->step->routing->messages[source] - 1;
    if (!ll_sends_data(self, c->record, source)) return LL_CREDIT_REJECTS;
    if (source == self->sym->rank) return LL_CREDIT_GIVEN;
    const int32_t first = ll_is_far(self, source) && last > 0 ? last : 0;
    for (int32_t m = last; m >= first; m--)
        if (!weights_have_come(c, source, m)) return LL_CREDIT_AWAITED;
    if (ll_is_far(self, source)) ll_see(self);
    return ll_combine_credit(c, source);
}

expar_status ll_combine_send_weighted(const ll_combine *c)
{
    static const ll_task weights = {.run = send_weights,
                                    .credit = ll_combine_credit,
                                    .what = "low-latency combine: acknowledgements of earlier rows",
                                    .of = "acknowledgements"};
    ll_cpu *self = c->self;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        self->progress[r] = r == self->sym->rank;
    expar_status status = ll_task_run(c, &weights);
    if (status == EXPAR_OK) status = ll_headers_await(self, &c->step->call);
    if (status != EXPAR_OK || ll_call_mismatches(self, &c->step->call)) return status;
    return ll_combine_send_rows(c, credit_of_weights);
}
