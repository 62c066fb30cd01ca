/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier over the heaps, by dissemination. In round r every PE tells the PE 2^r above it that it has come, and so
 * have all PEs of which it knows. After ⌈log2 N⌉ rounds every PE knows of all. No PE waits for a longer chain. With
 * several nodes of several PEs, the PEs of a node meet first, then the first PEs of all nodes, which then release their
 * nodes. So the network carries as few words as possible. */
#include "shmem/parts.h"
#include "shmem/tree.h"

#include <stddef.h>
#include <stdio.h>

/* PEs at equal distances that meet, each `place` from the first. Their words of the control page start at `word`. */
typedef struct meeting {
    int32_t first, stride, count, place, word;
} meeting;

static int32_t meeting_pe(const meeting *m, int64_t step)
{
    return m->first + (int32_t)((m->place + step) % m->count) * m->stride;
}

static int32_t rounds_of(const meeting *m)
{
    int32_t rounds = 0;
    while (((int64_t)1 << rounds) < m->count)
        rounds++;
    return rounds;
}

/* Returns the first meeting of a PE. */
static meeting meeting_of(const sym *self, int32_t pe)
{
    const int32_t each = self->node_ranks > 0 ? self->node_ranks : self->size;
    return (meeting){.first = pe - pe % each, .stride = 1, .count = each, .place = pe % each};
}

static uint64_t barrier_offset(int32_t word)
{
    return offsetof(sym_control, barrier) + (uint64_t)word * sizeof(uint64_t);
}

/* NULL if the PE's heap is not mapped. */
static _Atomic uint64_t *barrier_word(const sym *self, int32_t pe, int32_t word)
{
    return sym_at(self, pe, barrier_offset(word));
}

static bool barrier_has_come(const _Atomic uint64_t *word, uint64_t epoch)
{
    return atomic_load_explicit(word, memory_order_acquire) >= epoch;
}

/* Returns the word that shows that a rank has come, in round 0 at the PE above it; NULL if that heap is not mapped. */
static const _Atomic uint64_t *barrier_first_word(const sym *self, int32_t pe)
{
    const meeting its = meeting_of(self, pe);
    return barrier_word(self, meeting_pe(&its, 1), 0);
}

/* Writes into text the ranks that are seen not to have come to the epoch's barrier. Returns false if there is none. */
static bool list_missing(const sym *self, uint64_t epoch, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t pe = 0; pe < self->size; pe++) {
        const _Atomic uint64_t *word = barrier_first_word(self, pe);
        if (pe == self->rank || !word || barrier_has_come(word, epoch)) continue;
        if (used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", used == 0 ? "" : ", ", pe);
    }
    return used > 0;
}

static boot_topic barrier_topic(uint64_t epoch)
{
    return (boot_topic){.kind = BOOT_KIND_BARRIER, .number = epoch};
}

/* Names the ranks that have not come, besides the rank to blame for a time-out. The ranks are out of step from then
   on. */
static expar_status barrier_failed(sym *self, uint64_t epoch, const sym_rest *rest, expar_status status)
{
    char missing[256];
    sym_rest_blame(rest, status);
    if (!list_missing(self, epoch, missing, sizeof missing)) return status;
    return error_set(status, "%s; not come: rank %s", expar_last_error(), missing);
}

static expar_status barrier_tell(sym *self, uint64_t epoch, int32_t pe, int32_t word)
{
    expar_status status = sym_word_set(self, pe, barrier_offset(word), epoch);
    if (status == EXPAR_OK) return EXPAR_OK;
    const sym_rest unwaited = {.sym = self, .wait = {.topic = barrier_topic(epoch)}};
    return barrier_failed(self, epoch, &unwaited, status);
}

/* The word of pe for which this rank still waits. */
typedef struct barrier_wait {
    const sym *sym;
    uint64_t epoch;
    int32_t pe;
} barrier_wait;

/* A rank that has come, and has told this rank so, owes nothing more: only other ranks still have to learn of it. */
static bool barrier_owes(const void *context, int32_t rank)
{
    const barrier_wait *wait = context;
    const _Atomic uint64_t *word = barrier_first_word(wait->sym, rank);
    return rank == wait->pe || !word || !barrier_has_come(word, wait->epoch);
}

/* From now on it is unknown which ranks have come. */
static expar_status barrier_spoilt(sym *self, const boot_topic *topic, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    boot_note_ended(self->boot, topic, status, kept.text);
    sym_lose_step(self, status);
    return error_restore(&kept);
}

/* A rank that has passed the barrier may leave the group while other ranks are still in it. */
static expar_status barrier_hear(sym *self, uint64_t epoch, int32_t pe, int32_t number)
{
    const barrier_wait wait = {.sym = self, .epoch = epoch, .pe = pe};
    const _Atomic uint64_t *word = barrier_word(self, self->rank, number);
    const sym_rest_goal goal = {.word = word, .least = epoch};
    const boot_topic topic = barrier_topic(epoch);
    expar_status status = EXPAR_OK;
    sym_rest rest = sym_rest_begin(self, "barrier");
    sym_rest_expect(&rest, &topic, pe);
    sym_rest_until(&rest, &goal);
    sym_rest_outlast(&rest, barrier_owes, &wait);
    while (!barrier_has_come(word, epoch) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    if (status != EXPAR_OK) return barrier_failed(self, epoch, &rest, status);
    status = sym_check_count(word, epoch, pe, "barrier");
    return status == EXPAR_OK ? EXPAR_OK : barrier_spoilt(self, &topic, status);
}

static expar_status barrier_meet(sym *self, uint64_t epoch, const meeting *m)
{
    const int32_t rounds = rounds_of(m);
    expar_status status = EXPAR_OK;
    for (int32_t round = 0; round < rounds && status == EXPAR_OK; round++) {
        int64_t step = (int64_t)1 << round;
        status = barrier_tell(self, epoch, meeting_pe(m, step), m->word + round);
        if (status == EXPAR_OK) status = barrier_hear(self, epoch, meeting_pe(m, m->count - step), m->word + round);
    }
    return status;
}

/* The first rank of a node releases all others of it. */
static expar_status barrier_release(sym *self, uint64_t epoch, const meeting *node, int32_t word)
{
    const tree t = tree_of_node(node->count, node->place, 0);
    expar_status status = EXPAR_OK;
    if (t.parent >= 0) status = barrier_hear(self, epoch, node->first + t.parent, word);
    for (int32_t i = 0; i < t.num_children && status == EXPAR_OK; i++)
        status = barrier_tell(self, epoch, node->first + t.children[i], word);
    return status;
}

static expar_status barrier_over_heap(sym *self)
{
    const uint64_t epoch = ++self->barrier_epoch;
    const boot_topic topic = barrier_topic(epoch);
    const meeting node = meeting_of(self, self->rank);
    const meeting leaders = {.stride = node.count,
                             .count = self->size / node.count,
                             .place = self->rank / node.count,
                             .word = rounds_of(&node)};
    boot_note_call(self->boot, &topic, "barrier");
    expar_status status = barrier_meet(self, epoch, &node);
    if (leaders.count == 1 || status != EXPAR_OK) return status;
    if (node.place == 0) status = barrier_meet(self, epoch, &leaders);
    return status == EXPAR_OK ? barrier_release(self, epoch, &node, leaders.word + rounds_of(&leaders)) : status;
}

/* A rank that knows that the barrier cannot be completed does not come, and tells those that are in it. */
static expar_status barrier_check(sym *self)
{
    const boot_topic next = barrier_topic(self->barrier_epoch + 1);
    expar_status status = sym_check(self, "barrier");
    if (status != EXPAR_OK) sym_note_absent(self, &next, status);
    return status;
}

static expar_status barrier_meet_all(sym *self)
{
    if (self->all_reached) return barrier_over_heap(self);
    const expar_status status = self->boot->ops->barrier(self->boot);
    return status == EXPAR_OK ? EXPAR_OK : sym_out_of_step(self, "barrier", status);
}

expar_status sym_barrier_after(sym *self, expar_status before)
{
    error_kept kept;
    error_keep(&kept, before);
    expar_status status = barrier_check(self);
    if (status != EXPAR_OK) return status;
    const expar_status quiet = sym_quiet(self);
    before = error_restore(&kept);
    if (before == EXPAR_OK) before = quiet;
    if (before == EXPAR_ERR_INTERRUPTED) return before;
    error_keep(&kept, before);
    status = barrier_meet_all(self);
    return status == EXPAR_OK ? error_restore(&kept) : status;
}

expar_status sym_barrier(sym *self)
{
    return sym_barrier_after(self, EXPAR_OK);
}

void sym_barrier_end(sym *self)
{
    const boot_topic next = barrier_topic(self->barrier_epoch + 1);
    boot_note_ended(self->boot, &next, EXPAR_ERR_PEER, "it destroys the group");
}
