/* SPDX-License-Identifier: Apache-2.0 */
/* wait: the waiting rank asks from time to time how the awaited ranks stand.
 *
 * It asks all ranks that could be at fault at once, about the topic of the wait. A rank that has owed an answer for too
 * long is silent. The answers say which rank waits for which, so an awaited rank may point at another. The chain ends
 * at a rank that has not come, and is late, or at one that has recorded that it will not come.
 *
 * A rank that waits in another call is asked about that one. If that chain comes back to this rank's own wait, no rank
 * in it will ever move. Every wait in it must have looked without success for the time-out, so that all of them existed
 * at one time. Any thread may be delayed between its look and its question, for longer than a short time-out. So a look
 * counts from the end of the question before it, and the chain has to be walked at once.
 *
 * Ranks in one call that await several others may await each other without being the reason. Each then awaits the rest
 * of the other's rows, which wait for a third rank. So a circle within such a call does not count. The search for the
 * end of the chain begins at a rank that does not wait there itself. */
#include "base/interrupt.h"
#include "boot/inquiry.h"
#include "boot/ranks.h"
#include "boot/registry.h"

#include <stdio.h>
#include <stdlib.h>

#define LEAST_SILENCE (3000 * NS_PER_MS)
#define FIRST_ASK     (250 * NS_PER_MS) /* from a wait's beginning to the first question; twice that to the next */
#define LAST_ASK      (1000 * NS_PER_MS)
#define LAST_ASK_RANK (10 * NS_PER_MS) /* plus this for each rank, since all may ask all */
#define FIRST_LOG     (10000 * NS_PER_MS)

int64_t boot_silence_ns(const boot *self)
{
    const int64_t timeout_ns = self->timeout_ms * NS_PER_MS;
    return timeout_ns > LEAST_SILENCE ? timeout_ns : LEAST_SILENCE;
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t first_pause_ns(const boot *self)
{
    return least(FIRST_ASK, self->timeout_ms * NS_PER_MS / 4 + 1);
}

static int64_t last_pause_ns(const boot *self)
{
    return least(LAST_ASK + self->size * LAST_ASK_RANK, self->timeout_ms * NS_PER_MS / 4 + 1);
}

/* Finds the rank that the wait registry names: the one thought to be the reason, or the first one that has still to
   come. */
void boot_wait_find_awaited(boot_wait *wait)
{
    int32_t rank = 0;
    if (wait->reason >= 0 && wait->misses(wait->context, wait->reason)) {
        boot_wait_for(wait, wait->reason);
        return;
    }
    while (rank < wait->boot->size && (rank == wait->boot->rank || !wait->misses(wait->context, rank)))
        rank++;
    boot_wait_for(wait, rank < wait->boot->size ? rank : -1);
}

/* The clock is read at the first look, so a wait that ends before costs nothing. */
void boot_wait_begin(boot_wait *wait, boot *self, const boot_topic *topic, const char *what)
{
    *wait = (boot_wait){.boot = self, .topic = *topic, .what = what, .stride = 1};
    wait->awaited = wait->reason = wait->culprit = -1;
}

static void set_back(boot_wait *wait, int64_t now_ns)
{
    wait->circled = false;
    wait->left_ns = now_ns;
    atomic_store_explicit(&wait->since_ns, now_ns, memory_order_relaxed);
    wait->ask_pause_ns = first_pause_ns(wait->boot);
    wait->ask_ns = now_ns + wait->ask_pause_ns;
    wait->log_pause_ns = FIRST_LOG;
    wait->log_ns = now_ns + wait->log_pause_ns;
}

static void note_wait(boot_wait *wait, int64_t now_ns)
{
    boot_registry *registry = wait->boot->registry;
    wait->noted = true;
    wait->topic.rejected = registry_rejected(registry, &wait->topic);
    wait->thread = thread_number();
    wait->caller = wait->topic.kind == BOOT_KIND_NONE ? 0 : registry_caller(registry, &wait->topic);
    if (wait->caller == 0) wait->caller = wait->thread;
    if (wait->for_caller) wait->thread = wait->caller;
    set_back(wait, now_ns);
    atomic_store_explicit(&wait->looked_ns, now_ns, memory_order_relaxed);
    registry_add(registry, wait);
}

void boot_wait_progress(boot_wait *wait)
{
    if (wait->noted) set_back(wait, clock_ns());
}

void boot_wait_end(boot_wait *wait)
{
    if (wait->noted) registry_remove(wait->boot->registry, wait);
    wait->noted = false;
    free(wait->silent);
    wait->silent = NULL;
}

/* ---- an inquiry -------------------------------------------------------------------------------------------------- */

int64_t inquiry_timeout_ns(const inquiry *q)
{
    return q->wait->boot->timeout_ms * NS_PER_MS;
}

static int32_t member(const boot_wait *wait, int32_t i)
{
    return wait->first + i * wait->stride;
}

static int32_t num_members(const boot_wait *wait)
{
    return wait->size > 0 ? wait->size : wait->boot->size;
}

bool inquiry_misses(const boot_wait *wait, int32_t rank)
{
    if (rank == wait->boot->rank) return false;
    if (wait->misses) return wait->misses(wait->context, rank);
    return rank == atomic_load_explicit(&wait->awaited, memory_order_relaxed);
}

static void ask_members(inquiry *q)
{
    boot *self = q->wait->boot;
    for (int32_t i = 0; i < num_members(q->wait); i++) {
        const int32_t rank = member(q->wait, i);
        q->answers[rank].asked = rank != self->rank && (!q->wait->missed_alone || inquiry_misses(q->wait, rank));
    }
    self->ops->ask(self, &q->wait->topic, q->answers, ANSWER);
}

void inquiry_fail(inquiry *q, boot_verdict verdict, int32_t culprit, expar_status status)
{
    q->failed = true;
    q->status = status;
    q->wait->verdict = verdict;
    q->wait->culprit = culprit;
}

static void judge_silence(inquiry *q)
{
    boot_wait *wait = q->wait;
    const int32_t size = wait->boot->size;
    int32_t first = -1;
    char text[256];
    bool *silent = calloc((size_t)size, sizeof *silent);
    if (!silent) return; /* the next look finds the silent ranks */
    for (int32_t r = size - 1; r >= 0; r--) {
        const boot_answer *answer = &q->answers[r];
        silent[r] = answer->asked && !answer->came && answer->silent_ns >= boot_silence_ns(wait->boot);
        if (silent[r]) first = r;
    }
    if (first < 0) {
        free(silent);
        return;
    }
    wait->silent = silent;
    ranks_format(silent, true, size, text, sizeof text);
    inquiry_fail(q, BOOT_SILENT, first,
                 error_set(EXPAR_ERR_PEER, "%s: timed out after %lld ms without an answer; silent: rank %s", wait->what,
                           (long long)(boot_silence_ns(wait->boot) / NS_PER_MS), text));
}

void inquiry_ended(inquiry *q, int32_t rank, const boot_answer *answer)
{
    const int32_t blamed = answer->blamed;
    char given_up[48] = "";
    q->ended = rank;
    q->left = *answer;
    const bool other = blamed >= 0 && blamed != q->wait->boot->rank;
    if (other) snprintf(given_up, sizeof given_up, "; it has given up rank %d", blamed);
    /* If this rank leaves, it leaves for the same reason. */
    if (other && !q->wait->tolerant) boot_note_blamed(q->wait->boot, blamed);
    inquiry_fail(q, BOOT_WILL_NOT_COME, other ? blamed : rank,
                 error_set(EXPAR_ERR_PEER, "%s: rank %d does not come any more: %s: %s%s", q->wait->what, rank,
                           expar_status_string(answer->ended), answer->reason, given_up));
}

static void judge_ends(inquiry *q)
{
    const bool open = q->wait->topic.kind == BOOT_KIND_NONE;
    for (int32_t r = 0; r < q->wait->boot->size && !q->failed; r++) {
        const boot_answer *answer = &q->answers[r];
        if (answer->came && answer->ended != EXPAR_OK && (open || inquiry_misses(q->wait, r)))
            inquiry_ended(q, r, answer);
    }
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static bool is_due(const boot_wait *wait, int64_t now_ns)
{
    const int64_t limit_ms = boot_wait_late_limit_ms(wait);
    return now_ns >= wait->ask_ns || now_ns >= wait->log_ns ||
           (limit_ms > 0 && registry_looked_for_ns(wait) >= limit_ms * NS_PER_MS);
}

/* Once a circle is broken here, the rank that awaits this one in it can no longer find it, and must not wait for it.
   There are two exceptions: a buffer's end follows even a call that was broken off, and a rank that tolerates the
   failure comes after all. */
static void break_circle(const inquiry *q)
{
    if (q->failed && q->wait->circled && q->wait->circle.kind != BOOT_KIND_END && !q->wait->tolerant)
        registry_broke(q->wait->boot->registry, q->wait, q->status, expar_last_error());
}

/* Records the failure before the wait leaves the registry. Another rank may follow the chain between that and the
   record of this rank's call. It would find a rank that waits for no other, and take it for the late one. A wait only
   for missed ranks needs no record, because one without them follows. */
static void note_failure(const inquiry *q)
{
    const boot_wait *wait = q->wait;
    if (q->failed && wait->topic.kind != BOOT_KIND_NONE && !wait->missed_alone)
        registry_failed(wait->boot->registry, wait, q->status, expar_last_error());
}

/* A rank that records an end has first told what it had finished. A wait for several ranks checks which it misses after
   the answers have come. For one rank only the caller has checked, before the question. */
static void forgive_what_has_come(inquiry *q)
{
    boot_wait *wait = q->wait;
    if (!q->failed || !wait->has_come || !wait->has_come(wait->context)) return;
    q->failed = false;
    q->ended = -1;
    wait->verdict = BOOT_GOES_ON;
    wait->culprit = -1;
    free(wait->silent);
    wait->silent = NULL;
}

static expar_status inquire(boot_wait *wait, int64_t now_ns)
{
    boot *self = wait->boot;
    const bool circled = wait->circled;
    inquiry q = {.wait = wait, .now_ns = now_ns, .end = -1, .ended = -1};
    q.waited_ns = registry_looked_for_ns(wait);
    q.answers = calloc((size_t)self->size, sizeof *q.answers);
    if (!q.answers) return error_set(EXPAR_ERR_MEMORY, "%s: no memory to ask %d ranks", wait->what, self->size);
    ask_members(&q);
    judge_silence(&q);
    if (!q.failed) judge_ends(&q);
    if (!q.failed) inquiry_find_reason(&q);
    if (!q.failed) inquiry_follow_chain(&q);
    if (!q.failed) inquiry_judge_lateness(&q);
    if (!q.failed) inquiry_log(&q);
    forgive_what_has_come(&q);
    wait->circled = wait->circled || (q.failed && circled);
    if (!wait->circled) inquiry_find_broken_circle(&q);
    break_circle(&q);
    note_failure(&q);
    free(q.answers);
    wait->ask_pause_ns = least(2 * wait->ask_pause_ns, last_pause_ns(self));
    wait->ask_ns = now_ns + wait->ask_pause_ns;
    return q.failed ? q.status : EXPAR_OK;
}

expar_status boot_wait_look(boot_wait *wait)
{
    const int64_t now_ns = clock_ns();
    if (wait->misses) boot_wait_find_awaited(wait);
    if (!wait->noted) note_wait(wait, now_ns);
    atomic_store_explicit(&wait->looked_ns, wait->left_ns, memory_order_relaxed);
    expar_status status = interrupt_look(&wait->interrupt_ns, wait->what);
    if (status == EXPAR_OK && is_due(wait, now_ns)) status = inquire(wait, now_ns);
    wait->left_ns = clock_ns();
    return status;
}
