/* SPDX-License-Identifier: Apache-2.0 */
/* Failures: how a rank tells its peers that it leaves, learns that a peer has gone, and reports it in errors. */
#include "shmem/doorbell.h"
#include "shmem/parts.h"
#include "shmem/sym.h"

/* In `told`, the rank that tells stands above kind and rank. */
#define TOLD_BY_SHIFT 40

static sym_failure_kind failure_kind(uint64_t failure)
{
    return (sym_failure_kind)(failure >> 32);
}

static uint64_t failure_word(sym_failure_kind kind, int32_t rank)
{
    return (uint64_t)kind << 32 | (uint32_t)rank;
}

static sym_control *control_of(const sym *self, int32_t pe)
{
    return sym_at(self, pe, 0);
}

/* Call this before recording the failure here: once it is recorded, this rank may leave at any time. */
static void tell_peers(const sym *self, uint64_t failure)
{
    const uint64_t told = (uint64_t)self->rank << TOLD_BY_SHIFT | failure;
    for (int32_t pe = 0; pe < self->size; pe++) {
        uint64_t none = 0;
        sym_control *control = pe == self->rank ? NULL : control_of(self, pe);
        if (control)
            atomic_compare_exchange_strong_explicit(&control->told, &none, told, memory_order_release,
                                                    memory_order_relaxed);
    }
}

/* A rank has left, or its program has ended. If a peer has told the reason, that is the one to report; otherwise the
   reason is its own. A program that ends without a good-bye ends for a reason that it has told itself. What another
   rank, which may live on, has told of a third one does not explain it. */
static uint64_t reason_of_going(const sym *self, sym_failure_kind kind, int32_t rank)
{
    uint64_t word = atomic_load_explicit(&control_of(self, self->rank)->told, memory_order_acquire);
    uint64_t told = word & (((uint64_t)1 << TOLD_BY_SHIFT) - 1);
    bool known = failure_kind(told) == SYM_PEER_DIED || failure_kind(told) == SYM_PEER_SILENT;
    bool other = (uint32_t)told < (uint32_t)self->size && (uint32_t)told != (uint32_t)self->rank;
    bool explains = kind == SYM_PEER_LEFT || word >> TOLD_BY_SHIFT == (uint64_t)rank;
    return known && other && explains ? told : failure_word(kind, rank);
}

/* Returns the rank whose silence made another one leave; -1: none is known. A peer has told it in this heap, or the
   leaving rank has told it through the boot. The boot also reaches ranks whose heaps it does not map. */
static int32_t silence_after(const sym *self, bool went, uint64_t failure, int32_t rank)
{
    if (failure_kind(failure) == SYM_PEER_SILENT) return (int32_t)(uint32_t)failure;
    return went ? self->boot->ops->blame_of(self->boot, rank) : -1;
}

/* A death explains a leaving. This rank's own abort also ends what the loss of others has not stopped. */
static bool replaces(sym_failure_kind later, sym_failure_kind earlier)
{
    if (earlier == SYM_SOUND || later == SYM_ABORTED) return earlier != SYM_ABORTED;
    return later == SYM_PEER_DIED && earlier == SYM_PEER_LEFT;
}

static void failure_record(sym *self, uint64_t failure)
{
    uint64_t seen = 0;
    while (!atomic_compare_exchange_weak_explicit(&self->failure, &seen, failure, memory_order_release,
                                                  memory_order_relaxed))
        if (!replaces(failure_kind(failure), failure_kind(seen))) return;
}

/* silent: the rank whose silence made it leave; -1: none. */
static void record_loss(sym *self, sym_failure_kind kind, int32_t rank, int32_t silent)
{
    atomic_store_explicit(&self->gone_for[rank], silent + 1, memory_order_relaxed);
    pthread_mutex_lock(&self->lock);
    bool known = atomic_load_explicit(&self->gone[rank], memory_order_relaxed) != 0;
    atomic_store_explicit(&self->gone[rank], (uint8_t)kind, memory_order_release);
    uint32_t losses = atomic_load_explicit(&self->losses, memory_order_relaxed);
    if (!known) {
        self->lost[losses] = rank;
        atomic_store_explicit(&self->losses, losses + 1, memory_order_release);
    }
    pthread_mutex_unlock(&self->lock);
}

/* This rank takes part in nothing more of a kind that others await. */
static void note_ended(const sym *self, boot_kind kind, expar_status status, const char *reason)
{
    const boot_topic all = {.kind = (uint16_t)kind};
    boot_note_ended(self->boot, &all, status, reason);
}

void sym_fail(sym *self, sym_failure_kind kind, int32_t rank)
{
    const bool went = kind == SYM_PEER_LEFT || kind == SYM_PEER_DIED;
    const uint64_t failure = went ? reason_of_going(self, kind, rank) : failure_word(kind, rank);
    const int32_t silent = silence_after(self, went, failure, rank);
    if ((went || kind == SYM_PEER_SILENT) && rank >= 0 && rank < self->size)
        record_loss(self, kind, rank, silent == rank ? -1 : silent);
    if (silent >= 0) boot_note_blamed(self->boot, silent);
    if (kind == SYM_ABORTED) note_ended(self, BOOT_KIND_ALL, EXPAR_ERR_ABORTED, "it has aborted the group");
    if (kind == SYM_PEER_DIED || (kind == SYM_PEER_SILENT && rank >= 0)) tell_peers(self, failure);
    failure_record(self, failure);
    doorbell_ring(&control_of(self, self->rank)->doorbell, self->by_threads);
    pthread_mutex_lock(&self->lock);
    for (const sym_listener *l = self->listeners; l; l = l->next)
        l->failed(l->context);
    pthread_mutex_unlock(&self->lock);
}

void sym_lose_step(sym *self, expar_status status)
{
    note_ended(self, BOOT_KIND_MEETINGS, status, expar_last_error());
    sym_fail(self, SYM_PEER_SILENT, -1);
}

void sym_listen(sym *self, sym_listener *listener)
{
    pthread_mutex_lock(&self->lock);
    listener->next = self->listeners;
    self->listeners = listener;
    bool failed = atomic_load_explicit(&self->failure, memory_order_acquire) != 0;
    if (failed) listener->failed(listener->context);
    pthread_mutex_unlock(&self->lock);
}

void sym_unlisten(sym *self, sym_listener *listener)
{
    pthread_mutex_lock(&self->lock);
    sym_listener **place = &self->listeners;
    while (*place && *place != listener)
        place = &(*place)->next;
    if (*place) *place = listener->next;
    pthread_mutex_unlock(&self->lock);
}

void sym_tell(sym *self, int32_t rank)
{
    uint32_t none = 0;
    if (atomic_load_explicit(&self->told_at[rank], memory_order_relaxed) != 0) return;
    uint32_t number = atomic_fetch_add_explicit(&self->tellings, 1, memory_order_relaxed) + 1;
    atomic_compare_exchange_strong_explicit(&self->told_at[rank], &none, number, memory_order_relaxed,
                                            memory_order_relaxed);
}

/* Returns the rank whose loss explains that a rank left; -1: not known. *died: that rank died, else it fell silent. The
   first failure explains a leaving if it concerns another rank. */
static int32_t cause_of_going(const sym *self, sym_failure_kind kind, int32_t rank, bool *died)
{
    const uint64_t first = atomic_load_explicit(&self->failure, memory_order_acquire);
    const int32_t other = (int32_t)(uint32_t)first;
    *died = failure_kind(first) == SYM_PEER_DIED;
    if (kind == SYM_PEER_LEFT && (*died || failure_kind(first) == SYM_PEER_SILENT) && other >= 0 && other != rank)
        return other;
    *died = false;
    return atomic_load_explicit(&self->gone_for[rank], memory_order_relaxed) - 1;
}

/* A rank has died or left. */
static expar_status failed_by_going(sym *self, sym_failure_kind kind, int32_t rank, const char *what)
{
    const char *how = kind == SYM_PEER_DIED ? "died (its control connection closed)" : "has left the group";
    bool died;
    const int32_t cause = cause_of_going(self, kind, rank, &died);
    if (cause < 0) return error_set(EXPAR_ERR_PEER, "%s: rank %d %s", what, rank, how);
    sym_tell(self, cause);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d %s, and rank %d %s", what, cause,
                     died ? "died (its control connection closed)" : "fell silent", rank, how);
}

/* Sets the error of a failure that is not SYM_SOUND. */
static expar_status failed_by(sym *self, sym_failure_kind kind, int32_t rank, const char *what)
{
    if (kind != SYM_SOUND && kind != SYM_ABORTED && rank >= 0) sym_tell(self, rank);
    switch (kind) {
    case SYM_SOUND:
        return EXPAR_OK;
    case SYM_PEER_DIED:
    case SYM_PEER_LEFT:
        return failed_by_going(self, kind, rank, what);
    case SYM_ABORTED:
        return error_set(EXPAR_ERR_ABORTED, "%s: rank %d, this one, has aborted the group", what, rank);
    case SYM_PEER_SILENT:
        break;
    }
    if (rank < 0)
        return error_set(EXPAR_ERR_PEER, "%s: an earlier collective call failed, the ranks are out of step", what);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d fell silent, or did not come to an earlier collective call", what,
                     rank);
}

expar_status sym_check(sym *self, const char *what)
{
    uint64_t failure = atomic_load_explicit(&self->failure, memory_order_acquire);
    return failed_by(self, failure_kind(failure), (int32_t)(uint32_t)failure, what);
}

/* The error that a rank was given up is less useful than its cause. */
void sym_note_absent(sym *self, const boot_topic *topic, expar_status status)
{
    const uint64_t failure = atomic_load_explicit(&self->failure, memory_order_acquire);
    const char *reason = expar_last_error();
    pthread_mutex_lock(&self->lock);
    if (failure_kind(failure) == SYM_PEER_SILENT && self->given_up.status != EXPAR_OK) reason = self->given_up.text;
    pthread_mutex_unlock(&self->lock);
    boot_note_ended(self->boot, topic, status, reason);
}

expar_status sym_check_count(const _Atomic uint64_t *word, uint64_t awaited, int32_t pe, const char *what)
{
    const uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    if (seen - awaited < SYM_MOST_AHEAD) return EXPAR_OK;
    return error_set(EXPAR_ERR_PEER,
                     "%s: rank %d's word here holds 0x%llx where 0x%llx was to come: its memory has been overwritten",
                     what, pe, (unsigned long long)seen, (unsigned long long)awaited);
}

expar_status sym_check_come(sym *self, const char *what)
{
    static const boot_topic control = {.kind = BOOT_KIND_CONTROL};
    expar_status status = sym_check(self, what);
    if (status != EXPAR_OK) sym_note_absent(self, &control, status);
    return status;
}

expar_status sym_check_pe(sym *self, int32_t pe, const char *what)
{
    uint64_t failure = atomic_load_explicit(&self->failure, memory_order_acquire);
    if (failure == 0) return EXPAR_OK;
    uint8_t gone = atomic_load_explicit(&self->gone[pe], memory_order_acquire);
    bool by_pe = failure_kind(failure) != SYM_ABORTED && gone != 0 && (int32_t)(uint32_t)failure != pe;
    if (by_pe) return failed_by(self, (sym_failure_kind)gone, pe, what);
    return failure_kind(failure) == SYM_ABORTED || gone != 0 ? sym_check(self, what) : EXPAR_OK;
}

/* A group is made by all ranks or not at all. So a lost rank ends it even for ranks that wait for others. */
expar_status sym_check_forming(sym *self, const char *what)
{
    bool clean = false;
    if (!atomic_load_explicit(&self->forms, memory_order_relaxed)) return EXPAR_OK;
    const int32_t rank = self->boot->ops->first_gone(self->boot, &clean);
    return rank < 0 ? EXPAR_OK : failed_by(self, clean ? SYM_PEER_LEFT : SYM_PEER_DIED, rank, what);
}

expar_status sym_check_ranks(sym *self, const sym_ranks *ranks, const char *what)
{
    uint64_t failure = atomic_load_explicit(&self->failure, memory_order_acquire);
    expar_status status = EXPAR_OK;
    if (failure == 0) return EXPAR_OK;
    if ((int32_t)(uint32_t)failure < 0) return sym_check(self, what); /* no rank knows which one is out of step */
    for (int32_t i = 0; i < ranks->size && status == EXPAR_OK; i++)
        status = sym_check_pe(self, ranks->start + i * ranks->stride, what);
    return status;
}

bool sym_failed_by_leaving(const sym *self)
{
    return failure_kind(atomic_load_explicit(&self->failure, memory_order_acquire)) == SYM_PEER_LEFT;
}

expar_status sym_check_self(sym *self, const char *what)
{
    uint64_t failure = atomic_load_explicit(&self->failure, memory_order_acquire);
    return failure_kind(failure) == SYM_ABORTED ? sym_check(self, what) : EXPAR_OK;
}

expar_status sym_check_losses(sym *self, uint32_t tellings, const char *what)
{
    expar_status status = sym_check_self(self, what);
    uint32_t losses = atomic_load_explicit(&self->losses, memory_order_acquire);
    for (uint32_t i = 0; i < losses && status == EXPAR_OK; i++) {
        int32_t rank = self->lost[i];
        uint32_t told_at = atomic_load_explicit(&self->told_at[rank], memory_order_relaxed);
        if (told_at != 0 && told_at <= tellings) continue;
        sym_tell(self, rank);
        /* The first failure's own text knows why a rank has left. */
        if (i == 0) status = sym_check(self, what);
        uint8_t gone = atomic_load_explicit(&self->gone[rank], memory_order_acquire);
        if (status == EXPAR_OK) status = failed_by(self, (sym_failure_kind)gone, rank, what);
    }
    return status;
}

expar_status sym_out_of_step(sym *self, const char *what, expar_status status)
{
    error_prefix(status, "%s", what);
    if (status == EXPAR_ERR_MISMATCH) return status;
    bool late = status == EXPAR_ERR_PEER && self->boot->timed_out;
    if (!late || !sym_blame_silent(self, status)) sym_lose_step(self, status);
    return status;
}
