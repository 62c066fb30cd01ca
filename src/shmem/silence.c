/* SPDX-License-Identifier: Apache-2.0 */
/* Silence: who is to blame for a wait that has timed out.
 *
 * The rank that was waited for may itself wait for another. So all who could be at fault are asked, at once: their
 * monitors answer whatever else they do. Who gives no answer is silent, and is the one to blame. When all live, the
 * answers say who waits for whom, and the chain from the rank that was waited for ends at one that waits for nobody
 * here: it has not come. Only who is blamed is gone for this rank from then on. */
#include "boot/ranks.h"
#include "shmem/parts.h"

#include <stdio.h>
#include <stdlib.h>

/* What an answer may take: a quarter of the time-out, but long enough for a busy machine: a living rank that is
   taken for silent is worse than a silent one that is named late. */
#define LEAST_MS 3000
#define MOST_MS  5000

typedef struct inquiry {
    sym *sym;
    boot_answer *answers; /* [size] asked: all among whom the culprit is, this rank included */
    bool *silent;         /* [size] */
    int32_t num_silent;
} inquiry;

static int64_t answer_ns(const sym *self)
{
    int64_t quarter_ms = self->timeout_ms / 4;
    if (quarter_ms < LEAST_MS) quarter_ms = LEAST_MS;
    return (quarter_ms < MOST_MS ? quarter_ms : MOST_MS) * 1000000;
}

/* Those who died or left will not answer, and are known. */
static bool can_be_asked(const sym *self, int32_t rank)
{
    uint8_t gone = atomic_load_explicit(&self->gone[rank], memory_order_acquire);
    return rank != self->rank && gone != SYM_PEER_DIED && gone != SYM_PEER_LEFT;
}

static void inquiry_free(inquiry *self)
{
    free(self->answers);
    free(self->silent);
}

/* False: out of memory. */
static bool inquire(sym *s, sym_ranks among, int32_t subject, inquiry *out)
{
    const size_t size = (size_t)s->size;
    *out =
        (inquiry){.sym = s, .answers = calloc(size, sizeof *out->answers), .silent = calloc(size, sizeof *out->silent)};
    if (!out->answers || !out->silent) {
        inquiry_free(out);
        return false;
    }
    for (int32_t i = 0; i < among.size; i++) {
        int32_t rank = among.start + i * among.stride;
        out->answers[rank].asked = can_be_asked(s, rank);
    }
    s->boot->ops->ask(s->boot, subject, out->answers, answer_ns(s));
    for (int32_t r = 0; r < s->size; r++) {
        out->silent[r] = out->answers[r].asked && !out->answers[r].came && can_be_asked(s, r);
        out->num_silent += out->silent[r];
    }
    return true;
}

static void blame(sym *self, int32_t rank)
{
    sym_fail(self, SYM_PEER_SILENT, rank);
    sym_tell(self, rank);
}

/* Returns the first that is silent, and writes all into text; -1: nobody is. */
static int32_t blame_silent(const inquiry *self, char *text, size_t bytes)
{
    int32_t first = -1;
    if (self->num_silent == 0) return -1;
    for (int32_t r = 0; r < self->sym->size; r++) {
        if (!self->silent[r]) continue;
        if (first < 0) first = r;
        blame(self->sym, r);
    }
    ranks_format(self->silent, true, self->sym->size, text, bytes);
    return first;
}

/* ---- words, and collectives over control sockets: whoever is silent ---------------------------------------------- */

bool sym_blame_silent(sym *self, expar_status status)
{
    char text[256];
    error_kept kept;
    inquiry all;
    error_keep(&kept, status);
    if (!inquire(self, (sym_ranks){.stride = 1, .size = self->size}, SYM_SUBJECT_NONE, &all)) return false;
    int32_t first = blame_silent(&all, text, sizeof text);
    if (first >= 0) error_set(status, "%s; silent: rank %s", kept.text, text);
    inquiry_free(&all);
    return first >= 0;
}

/* ---- collectives over the heaps: the end of the chain ------------------------------------------------------------ */

/* Whom a rank waits for, or has given up; -1: nobody that it concerns. */
static int32_t next_of(const inquiry *self, int32_t rank)
{
    const boot_answer *says = &self->answers[rank];
    int32_t next = says->doing != BOOT_IDLE ? says->rank : says->blamed;
    bool concerned = next >= 0 && next != rank && (next == self->sym->rank || self->answers[next].asked);
    return concerned ? next : -1;
}

/* -1: they wait in a circle. */
static int32_t end_of_chain(const inquiry *self, int32_t rank)
{
    for (int32_t steps = 0; steps < self->sym->size; steps++) {
        int32_t next = next_of(self, rank);
        if (next < 0) return rank;
        if (next == self->sym->rank) return -1;
        rank = next;
    }
    return -1;
}

/* Whom to blame; adds to the text why. */
static int32_t find_culprit(const inquiry *self, const sym_rest *rest, char *text, size_t bytes)
{
    char ranks[256];
    int32_t culprit = blame_silent(self, ranks, sizeof ranks);
    if (culprit >= 0) {
        snprintf(text, bytes, "silent: rank %s", ranks);
        return culprit;
    }
    culprit = end_of_chain(self, rest->awaited);
    if (culprit >= 0)
        snprintf(text, bytes, "rank %d is alive but has not come to this call", culprit);
    else
        snprintf(text, bytes, "ranks wait for each other in a circle");
    culprit = culprit >= 0 ? culprit : rest->awaited;
    blame(self->sym, culprit);
    return culprit;
}

expar_status sym_rest_blame(const sym_rest *rest)
{
    sym *self = rest->sym;
    char text[320] = "no memory to ask why";
    inquiry members;
    const sym_ranks all = {.stride = 1, .size = self->size};
    int32_t culprit = rest->awaited;
    if (inquire(self, rest->among.size > 0 ? rest->among : all, rest->subject, &members)) {
        culprit = find_culprit(&members, rest, text, sizeof text);
        inquiry_free(&members);
    } else {
        blame(self, culprit);
    }
    boot_note(self->boot, rest->subject, BOOT_GAVE_UP, culprit);
    return error_set(EXPAR_ERR_PEER, "%s: timed out after %lld ms waiting for rank %d; %s", rest->what,
                     (long long)self->timeout_ms, rest->awaited, text);
}
