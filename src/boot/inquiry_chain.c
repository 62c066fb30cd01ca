/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of an inquiry: which rank waits for which, and where that ends (wait.c). */
#include "boot/inquiry.h"
#include "boot/registry.h"

#include <stdio.h>
#include <stdlib.h>

/* how long a failed look waits for an answer, to find the rank that it has to tell */
#define LAST_ANSWER (1000 * NS_PER_MS)

bool boot_same_topic(const boot_topic *a, const boot_topic *b)
{
    return a->kind == b->kind && a->object == b->object && a->number == b->number;
}

/* A missed rank that does not wait in the topic itself is the likelier reason for this wait. */
void inquiry_find_reason(inquiry *q)
{
    boot_wait *wait = q->wait;
    if (!wait->misses) return;
    wait->reason = -1;
    for (int32_t r = 0; r < wait->boot->size && wait->reason < 0; r++) {
        const boot_answer *answer = &q->answers[r];
        const bool waits_here = answer->waits && answer->waited_ns > 0 && boot_same_topic(&answer->topic, &wait->topic);
        if (answer->asked && answer->came && !waits_here && inquiry_misses(wait, r)) wait->reason = r;
    }
    boot_wait_find_awaited(wait);
}

/* The present place in the chain: the rank before it awaits `rank` in `topic`. */
typedef struct walk {
    int32_t rank;
    boot_topic topic;
    bool elsewhere; /* the walk has come to another topic than this rank's own */
    bool blocked;   /* all ranks that wait so far have looked without success for the time-out */
    bool unknown;   /* a rank on the walk has not answered in time */
    char text[640];
    size_t length;
} walk;

static void walk_tell(walk *w, int32_t rank, const char *doing)
{
    const size_t spare = sizeof w->text - w->length;
    int length = snprintf(w->text + w->length, spare, "%srank %d is %s", w->length ? "; " : "", rank, doing);
    if (length > 0 && (size_t)length < spare) w->length += (size_t)length;
    w->text[w->length] = '\0';
}

/* Asks how the rank stands to the topic. Returns false if that is not known. */
static bool ask_rank(boot *self, int32_t rank, const boot_topic *topic, int64_t wait_ns, boot_answer *out)
{
    boot_answer *all = calloc((size_t)self->size, sizeof *all);
    if (!all) return false;
    all[rank].asked = true;
    self->ops->ask(self, topic, all, wait_ns);
    *out = all[rank];
    free(all);
    return out->came;
}

/* Asks how the rank at the present place stands to the topic in which it is awaited. False: it is not known. */
static bool walk_look(inquiry *q, const walk *w, boot_answer *out)
{
    boot *self = q->wait->boot;
    if (w->rank == self->rank) {
        registry_read(self->registry, &w->topic, self->timeout_ms, out);
        return true;
    }
    if (boot_same_topic(&w->topic, &q->wait->topic) && q->answers[w->rank].asked) {
        *out = q->answers[w->rank];
        return out->came;
    }
    return ask_rank(self, w->rank, &w->topic, ANSWER, out);
}

/* Returns whether the chain has come back to this rank's own wait. */
static bool is_own(const inquiry *q, const walk *w, const boot_answer *answer)
{
    return w->rank == q->wait->boot->rank && answer->waits && boot_same_topic(&answer->topic, &q->wait->topic) &&
           answer->rank == atomic_load_explicit(&q->wait->awaited, memory_order_relaxed);
}

static void deadlock(inquiry *q, const walk *w)
{
    inquiry_fail(q, BOOT_DEADLOCK, atomic_load_explicit(&q->wait->awaited, memory_order_relaxed),
                 error_set(EXPAR_ERR_PEER,
                           "%s: a deadlock: timed out after %lld ms, ranks wait for each other in a circle: %s",
                           q->wait->what, (long long)(q->waited_ns / NS_PER_MS), w->text));
}

/* Returns whether all answers are of one time. Take a rank that has looked without success for the time-out, and
   recently. It cannot have begun to wait after another rank on the walk looked last. */
static bool was_walked_at_once(const inquiry *q)
{
    return clock_ns() - q->now_ns < inquiry_timeout_ns(q) - REGISTRY_FRESH_NS(inquiry_timeout_ns(q));
}

/* Returns whether the rank may end the wait if it does not come. It may not if the rank before it on the walk goes on
   without it, as this rank has done. */
static bool may_end(const inquiry *q, int32_t rank)
{
    return !q->wait->missed_alone || inquiry_misses(q->wait, rank);
}

/* Makes one step; false: the walk has ended. */
static bool walk_on(inquiry *q, walk *w)
{
    boot_answer answer;
    const bool in_topic = boot_same_topic(&w->topic, &q->wait->topic);
    w->unknown = !walk_look(q, w, &answer);
    if (w->unknown) return false;
    if (is_own(q, w, &answer)) {
        if (!w->elsewhere && q->wait->misses) return false;
        q->wait->circled = true;
        q->wait->circle = w->topic;
        if (w->blocked && was_walked_at_once(q)) deadlock(q, w);
        return false;
    }
    if (in_topic && w->rank != q->wait->boot->rank) {
        q->end = w->rank;
        if (answer.ended != EXPAR_OK && may_end(q, w->rank)) inquiry_ended(q, w->rank, &answer);
    }
    if (q->failed || !answer.waits || answer.rank < 0) return false;
    w->blocked = w->blocked && answer.waited_ns >= inquiry_timeout_ns(q);
    walk_tell(w, w->rank, answer.doing);
    w->rank = answer.rank;
    w->topic = answer.topic;
    w->elsewhere = w->elsewhere || !boot_same_topic(&w->topic, &q->wait->topic);
    return true;
}

void inquiry_follow_chain(inquiry *q)
{
    boot_wait *wait = q->wait;
    char own[BOOT_DOING_TEXT];
    walk w = {.rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed),
              .topic = wait->topic,
              .blocked = registry_waited_ns(wait, inquiry_timeout_ns(q)) >= inquiry_timeout_ns(q)};
    if (w.rank < 0 || w.rank == wait->boot->rank) return;
    registry_describe(wait->boot->registry, wait, own, sizeof own);
    walk_tell(&w, wait->boot->rank, own);
    const bool circled = wait->circled;
    wait->circled = false;
    /* In a circle without this rank, the walk would not end by itself. */
    for (int32_t steps = 0; steps <= wait->boot->size && walk_on(q, &w); steps++) {
    }
    /* A late answer does not undo a circle. */
    if (w.unknown) wait->circled = circled;
}

/* Another rank has left a circle before this one has seen that it is in it. The rank that left says for whom it had
   waited, and where. So this rank finds the circle from there, and tells the rank that awaits it in the circle
   (break_circle), which may not have seen it either. */
void inquiry_find_broken_circle(const inquiry *q)
{
    boot_wait *wait = q->wait;
    boot_answer at = q->left;
    if (q->ended < 0 || at.waits) return;
    for (int32_t steps = 0; at.rank >= 0 && at.rank != wait->boot->rank; steps++)
        if (at.rank == q->ended || steps == wait->boot->size ||
            !ask_rank(wait->boot, at.rank, &at.topic, LAST_ANSWER, &at))
            return;
    if (at.rank < 0 || boot_same_topic(&at.topic, &wait->topic)) return;
    wait->circled = true;
    wait->circle = at.topic;
}
