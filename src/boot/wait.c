/* SPDX-License-Identifier: Apache-2.0 */
/* wait: how those stand who are awaited, asked from time to time by who waits.
 *
 * All who could be at fault are asked at once, about what the wait is for. Who has owed an answer for too long is
 * silent. The answers say who waits for whom, so that whoever is awaited may point at another: the chain ends at a
 * rank that has not come, and is late, or has noted that it will not come. A rank that waits in another call is
 * asked about that one: where that chain comes back to this rank's own wait nobody in it will ever move. Every wait
 * in it has to have looked in vain for the time-out, so that all of them were there at one time. Any thread may be held
 * up between its look and its question, for longer than a short time-out: so a look counts from the end of the question
 * before it, and the chain has to be walked at once.
 *
 * Ranks in one call that await several others may await each other without being the reason: each awaits the rest of
 * the other's rows, which wait for a third one. So a circle within such a call is none, and who looks for the end of
 * the chain begins at a rank that does not wait there itself. */
#include "base/interrupt.h"
#include "boot/inquiry.h"
#include "boot/notes.h"
#include "boot/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#define LEAST_SILENCE (3000 * NS_PER_MS)
#define FIRST_ASK     (250 * NS_PER_MS) /* from a wait's beginning to the first question; twice that to the next */
#define LAST_ASK      (1000 * NS_PER_MS)
#define LAST_ASK_RANK (10 * NS_PER_MS) /* and so much for each rank, since all may ask all */
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

/* Who has still to come, for the notes: who is thought to be the reason, or the first one. */
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

/* The clock is read at the first look: a wait that ends before costs nothing. */
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
    boot_notes *notes = wait->boot->notes;
    wait->noted = true;
    wait->topic.refused = notes_refused(notes, &wait->topic);
    wait->thread = thread_number();
    wait->caller = wait->topic.kind == BOOT_KIND_NONE ? 0 : notes_caller(notes, &wait->topic);
    if (wait->caller == 0) wait->caller = wait->thread;
    if (wait->for_caller) wait->thread = wait->caller;
    set_back(wait, now_ns);
    atomic_store_explicit(&wait->looked_ns, now_ns, memory_order_relaxed);
    notes_add(notes, wait);
}

void boot_wait_progress(boot_wait *wait)
{
    if (wait->noted) set_back(wait, clock_ns());
}

void boot_wait_end(boot_wait *wait)
{
    if (wait->noted) notes_remove(wait->boot->notes, wait);
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
    if (!silent) return; /* the next look finds it */
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
    /* This rank goes for the same reason, if it goes. */
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
           (limit_ms > 0 && notes_looked_for_ns(wait) >= limit_ms * NS_PER_MS);
}

/* Once a circle is broken here, whoever awaits this rank in it does not find it any more, and is not to wait for it;
   but a buffer's end is what comes behind a call that was broken off, and who tolerates the failure comes after all. */
static void break_circle(const inquiry *q)
{
    if (q->failed && q->wait->circled && q->wait->circle.kind != BOOT_KIND_END && !q->wait->tolerant)
        notes_broke(q->wait->boot->notes, q->wait, q->status, expar_last_error());
}

/* Before the wait leaves the notes: whoever looks for the end of the chain between that and what its call notes would
   find a rank that waits for nobody here, and take it for the late one. A wait for those alone who are missed is
   followed by one without them. */
static void note_failure(const inquiry *q)
{
    const boot_wait *wait = q->wait;
    if (q->failed && wait->topic.kind != BOOT_KIND_NONE && !wait->missed_alone)
        notes_failed(wait->boot->notes, wait, q->status, expar_last_error());
}

/* Whoever notes an end has told before what it had finished. A wait for several looks at whom it misses when the
   answers have come; for one alone only its caller has looked, before they were asked. */
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
    q.waited_ns = notes_looked_for_ns(wait);
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
