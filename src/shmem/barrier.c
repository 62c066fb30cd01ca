/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier over the heaps: dissemination. In round r every PE tells the PE 2^r above it that it, and all whom it
 * has heard of, have come; after ⌈log2 N⌉ rounds everybody has heard of everybody. No PE waits for a chain longer than
 * that. */
#include "shmem/sym.h"

#include <stddef.h>
#include <stdio.h>

static uint64_t barrier_offset(int32_t round)
{
    return offsetof(sym_control, barrier) + (uint64_t)round * sizeof(uint64_t);
}

/* NULL where the PE's heap is not mapped. */
static _Atomic uint64_t *barrier_word(const sym *self, int32_t pe, int32_t round)
{
    return sym_at(self, pe, barrier_offset(round));
}

static bool has_come(const _Atomic uint64_t *word, uint64_t epoch)
{
    return atomic_load_explicit(word, memory_order_acquire) >= epoch;
}

/* Writes the ranks that are seen not to have come to the epoch's barrier into text, and returns the first; -1: there is
   none. A rank's coming is seen in round 0 at the PE above it, where that one's heap is mapped here. */
static int32_t list_missing(const sym *self, uint64_t epoch, char *text, size_t text_bytes)
{
    int32_t first = -1;
    size_t used = 0;
    text[0] = '\0';
    for (int32_t pe = 0; pe < self->size; pe++) {
        const _Atomic uint64_t *word = barrier_word(self, (pe + 1) % self->size, 0);
        if (pe == self->rank || !word || has_come(word, epoch)) continue;
        if (used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", first < 0 ? "" : ", ", pe);
        if (first < 0) first = pe;
    }
    return first;
}

/* Names those who have not come at all: the awaited PE may itself be waiting for them. A time-out fails the group,
   since the ranks are out of step from now on. */
static expar_status barrier_failed(sym *self, uint64_t epoch, int32_t awaited, const sym_rest *rest,
                                   expar_status status)
{
    char missing[256], cause[ERROR_TEXT_BYTES];
    int32_t first = list_missing(self, epoch, missing, sizeof missing);
    if (rest->timed_out) sym_fail(self, SYM_PEER_SILENT, first < 0 ? awaited : first);
    if (first < 0 && rest->timed_out) return error_prefix(status, "rank %d has not told of its coming", awaited);
    if (first < 0) return status;
    snprintf(cause, sizeof cause, "%s", expar_last_error());
    return error_set(status, "%s; not come: rank %s", cause, missing);
}

static expar_status barrier_round(sym *self, uint64_t epoch, int32_t round)
{
    int32_t step = (int32_t)(((int64_t)1 << round) % self->size);
    int32_t above = (int32_t)(((int64_t)self->rank + step) % self->size);
    int32_t below = (self->rank - step + self->size) % self->size;
    expar_status status = sym_word_set(self, above, barrier_offset(round), epoch);
    if (status != EXPAR_OK) return barrier_failed(self, epoch, above, &(sym_rest){.sym = self}, status);

    const _Atomic uint64_t *word = barrier_word(self, self->rank, round);
    sym_rest rest = sym_rest_begin(self, "barrier");
    while (!has_come(word, epoch) && (status = sym_rest_turn(&rest)) == EXPAR_OK) {
    }
    sym_rest_end(&rest);
    return status == EXPAR_OK ? EXPAR_OK : barrier_failed(self, epoch, below, &rest, status);
}

static expar_status barrier_over_heap(sym *self)
{
    uint64_t epoch = ++self->barrier_epoch;
    expar_status status = EXPAR_OK;
    for (int32_t round = 0; ((int64_t)1 << round) < self->size && status == EXPAR_OK; round++)
        status = barrier_round(self, epoch, round);
    return status;
}

expar_status sym_barrier(sym *self)
{
    expar_status status = sym_check(self, "barrier");
    if (status == EXPAR_OK) status = sym_quiet(self);
    if (status != EXPAR_OK) return status;
    if (self->all_reached) return barrier_over_heap(self);
    status = self->boot->ops->barrier(self->boot);
    return status == EXPAR_OK ? EXPAR_OK : sym_out_of_step(self, "barrier", status);
}
