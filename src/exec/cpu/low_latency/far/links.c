/* SPDX-License-Identifier: Apache-2.0 */
/* Data that go to ranks that are not mapped: the stage, data under way to each rank, and failures to send. */
#include "exec/cpu/low_latency/far/links.h"
#include "base/knobs.h"

#include <sched.h>
#include <string.h>
#include <time.h>

/* ---- failures to send -------------------------------------------------------------------------------------------- */

/* A network notices before the control socket does that a rank has gone; only the latter knows how. */
static bool left_in_peace(const ll_cpu *self, int32_t pe)
{
    const _Atomic uint8_t *gone = &self->sym->gone[pe];
    const int64_t end_ns = clock_ns() + knob(KNOB_CPU_FAR_REASON_NS);
    uint8_t how;
    while ((how = atomic_load_explicit(gone, memory_order_acquire)) == SYM_SOUND && sym_is_sound(self->sym) &&
           clock_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return how == SYM_PEER_LEFT;
}

bool ll_far_has_failed(ll_links *far)
{
    pthread_mutex_lock(&far->lock);
    const bool failed = far->failed.status != EXPAR_OK;
    pthread_mutex_unlock(&far->lock);
    return failed;
}

void ll_far_keep(const ll_cpu *self, int32_t pe, expar_status status)
{
    ll_links *far = self->links;
    error_kept kept;
    if (status == EXPAR_OK || ll_far_has_failed(far) || ll_is_masked(self, pe)) return;
    error_keep(&kept, status);
    if (status == EXPAR_ERR_PEER && left_in_peace(self, pe)) return;
    if (status == EXPAR_ERR_PEER && self->masks) {
        status = ll_mask(far->cpu, pe, kept.text);
        if (status == EXPAR_OK) return;
        error_keep(&kept, status);
    }
    pthread_mutex_lock(&far->lock);
    if (far->failed.status == EXPAR_OK) far->failed = kept;
    pthread_mutex_unlock(&far->lock);
}

expar_status ll_far_check(const ll_cpu *self, const char *what)
{
    ll_links *far = self->links;
    pthread_mutex_lock(&far->lock);
    expar_status status = error_restore(&far->failed);
    pthread_mutex_unlock(&far->lock);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", what);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static bool far_is_awaited(const void *context, int32_t rank)
{
    const ll_far_wait *wait = context;
    if (rank != wait->pe) return false;
    if (!wait->batch) return ll_far_is_owed(wait->self, rank);
    return !ll_is_masked(wait->self, rank) && !link_is_quiet(wait->batch);
}

expar_status ll_far_wait_on(const ll_far_wait *wait)
{
    static const boot_topic nothing = {.kind = BOOT_KIND_NONE};
    sym *symmetric = wait->self->sym;
    expar_status status = EXPAR_OK;
    if (!far_is_awaited(wait, wait->pe)) return EXPAR_OK;
    sym_rest rest = sym_rest_begin(symmetric, "low latency: arrival of what was sent before");
    rest.halt = &wait->self->halted;
    sym_rest_expect_all(&rest, &nothing, far_is_awaited, wait);
    sym_rest_tolerate(&rest);
    rest.wait.late_limit_ms = wait->self->plan.late_limit_ms;
    while (status == EXPAR_OK && far_is_awaited(wait, wait->pe)) {
        ll_far_spread(wait->self);
        status = sym_rest_turn(&rest);
    }
    sym_rest_end(&rest);
    return status;
}

/* Data that a masked rank was sent are not awaited. */
static void batch_forget(const ll_cpu *self, link_batch *batch)
{
    if (link_is_quiet(batch)) link_quiet(self->sym, batch);
}

/* In a call that has failed nothing is awaited. */
static void await_tolerantly(const ll_cpu *self, int32_t pe, link_batch *batch)
{
    const ll_far_wait wait = {.self = self->links->cpu, .pe = pe, .batch = batch};
    if (!ll_far_has_failed(self->links)) ll_far_keep(self, pe, ll_far_wait_on(&wait));
    if (ll_is_masked(self, pe))
        batch_forget(self, batch);
    else if (ll_far_has_failed(self->links))
        link_drop(&self->links->ranks[pe].link, batch);
    else
        ll_far_keep(self, pe, link_quiet(self->sym, batch));
}

void ll_far_await_batch(const ll_cpu *self, int32_t pe, link_batch *batch)
{
    if (self->masks)
        await_tolerantly(self, pe, batch);
    else
        ll_far_keep(self, pe, link_quiet(self->sym, batch));
}

void ll_far_await(const ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    for (uint64_t i = 0; i < ll_staged(&self->shape); i++) {
        ll_slot *slot = &self->links->slots[i];
        if (slot->kind == kind && slot->slot == ll_slot_of_epoch(epoch))
            ll_far_await_batch(self, slot->pe, &slot->batch);
    }
}

/* ---- messages and rows ------------------------------------------------------------------------------------------- */

ll_slot *ll_far_take(const ll_cpu *self, ll_kind kind, uint64_t epoch)
{
    ll_links *far = self->links;
    ll_slot **place = &far->turn[atomic_fetch_add_explicit(&far->next, 1, memory_order_relaxed) % LL_STAGED];
    /* If its rank is masked meanwhile, another place replaces this one. */
    if (self->masks) ll_far_await_batch(self, (*place)->pe, &(*place)->batch);
    ll_slot *slot = *place;
    while (atomic_exchange_explicit(&slot->taken, true, memory_order_acquire))
        sched_yield();
    ll_far_await_batch(self, slot->pe, &slot->batch);
    slot->kind = kind;
    slot->slot = ll_slot_of_epoch(epoch);
    return slot;
}

static link_flag parcel_flag(const ll_cpu *self, const ll_parcel *to)
{
    ll_step(self);
    return (link_flag){.offset = self->buffer + to->flag, .word = to->word};
}

/* The flag's word stands in the place of the stage, too, right after the rows, as it will at the receiver. */
void ll_far_send(const ll_cpu *self, ll_slot *slot, int32_t rows, size_t pitch, const ll_parcel *to)
{
    const link_flag flag = parcel_flag(self, to);
    const size_t bytes = (size_t)rows * pitch;
    const link_data data = {.offset = flag.offset - bytes,
                            .source = slot->bytes,
                            .bytes = bytes + sizeof flag.word,
                            .ordered = ll_far_orders(self),
                            .rows = (uint32_t)rows};
    memcpy(slot->bytes + bytes, &flag.word, sizeof flag.word);
    slot->pe = to->pe;
    if (!ll_is_masked(self, to->pe)) ll_far_put(self, to->pe, &data, &slot->batch);
    atomic_store_explicit(&slot->taken, false, memory_order_release);
}

float *ll_far_weights(const ll_cpu *self, int32_t pe)
{
    ll_far_await_batch(self, pe, &self->links->ranks[pe].weights);
    if (ll_is_masked(self, pe)) return NULL;
    return self->links->weights + (int64_t)pe * self->shape.tokens * self->shape.topk;
}

void ll_far_send_weights(const ll_cpu *self, size_t bytes, const ll_parcel *to)
{
    const float *weights = self->links->weights + (int64_t)to->pe * self->shape.tokens * self->shape.topk;
    const link_data data = {.offset = self->buffer + to->at, .source = weights, .bytes = bytes};
    const link_flag flag = parcel_flag(self, to);
    ll_far_rank *rank = &self->links->ranks[to->pe];
    ll_far_keep(self, to->pe, link_put_flag(&rank->link, &data, &flag, &rank->weights));
}

/* ---- stage places of masked ranks -------------------------------------------------------------------------------- */

static bool is_under_way_to(const ll_slot *slot, int32_t rank)
{
    return slot->pe == rank && !link_is_quiet(&slot->batch);
}

static ll_slot *find_spare(const ll_cpu *self)
{
    for (uint64_t i = 0; i < ll_staged(&self->shape); i++) {
        ll_slot *slot = &self->links->slots[i];
        if (slot->in_turn || !link_is_quiet(&slot->batch)) continue;
        batch_forget(self, &slot->batch);
        return slot;
    }
    return NULL;
}

expar_status ll_far_set_aside(const ll_cpu *self, int32_t rank)
{
    for (int32_t i = 0; i < LL_STAGED; i++) {
        ll_slot **place = &self->links->turn[i];
        if (!is_under_way_to(*place, rank)) continue;
        ll_slot *spare = find_spare(self);
        if (!spare)
            return error_set(EXPAR_ERR_PEER,
                             "rank %d cannot be masked: all %llu slots of this buffer hold what is under way to it and "
                             "other masked ranks, which answer no more",
                             rank, (unsigned long long)ll_staged(&self->shape));
        (*place)->in_turn = false;
        spare->in_turn = true;
        *place = spare;
    }
    return EXPAR_OK;
}

bool ll_far_has_come(const ll_cpu *self, int32_t rank)
{
    const ll_far_rank *to = &self->links->ranks[rank];
    bool come = link_is_quiet(&to->weights);
    for (int kind = 0; kind < LL_KINDS; kind++)
        come = come && link_is_quiet(&to->units[kind]) && link_is_quiet(&to->reads[kind]);
    for (uint64_t i = 0; come && i < ll_staged(&self->shape); i++)
        come = !is_under_way_to(&self->links->slots[i], rank);
    return come;
}

/* ---- flags ------------------------------------------------------------------------------------------------------- */

bool ll_far_found(const ll_cpu *self, uint64_t flag, uint64_t epoch)
{
    if (!ll_far_came(self, flag, epoch)) return false;
    ll_see(self);
    return ll_word_is_of(ll_look(self, flag), epoch);
}
