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
#include "boot/notes.h"
#include "boot/ranks.h"

#include <stdio.h>
#include <stdlib.h>

#define NS_PER_MS     ((int64_t)1000000)
#define LEAST_SILENCE (3000 * NS_PER_MS)
#define FIRST_ASK     (250 * NS_PER_MS) /* from a wait's beginning to the first question; twice that to the next */
#define LAST_ASK      (1000 * NS_PER_MS)
#define LAST_ASK_RANK (10 * NS_PER_MS)   /* and so much for each rank, since all may ask all */
#define ANSWER        (50 * NS_PER_MS)   /* what a look waits for answers */
#define LAST_ANSWER   (1000 * NS_PER_MS) /* and one that has failed, by which others shall learn of it */
#define FIRST_LOG     (10000 * NS_PER_MS)
#define LATE_TEXT     640 /* bytes: three ranks that have much to say */

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
static void find_awaited(boot_wait *wait)
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

typedef struct inquiry {
    boot_wait *wait;
    boot_answer *answers; /* [size] to the wait's own topic */
    int64_t now_ns;
    int64_t waited_ns; /* until it was last looked for in vain */
    int32_t end;       /* the last of those who wait in the topic for each other, or who does not come; -1: nobody */
    int32_t ended;     /* who does not come any more; -1: nobody */
    boot_answer left;  /* what that one has said */
    bool failed;       /* with status */
    expar_status status;
} inquiry;

static int64_t timeout_ns(const inquiry *q)
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

static bool is_missed(const boot_wait *wait, int32_t rank)
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
        q->answers[rank].asked = rank != self->rank && (!q->wait->missed_alone || is_missed(q->wait, rank));
    }
    self->ops->ask(self, &q->wait->topic, q->answers, ANSWER);
}

static void fail(inquiry *q, boot_verdict verdict, int32_t culprit, expar_status status)
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
    fail(q, BOOT_SILENT, first,
         error_set(EXPAR_ERR_PEER, "%s: timed out after %lld ms without an answer; silent: rank %s", wait->what,
                   (long long)(boot_silence_ns(wait->boot) / NS_PER_MS), text));
}

static void will_not_come(inquiry *q, int32_t rank, const boot_answer *answer)
{
    const int32_t blamed = answer->blamed;
    char given_up[48] = "";
    q->ended = rank;
    q->left = *answer;
    const bool other = blamed >= 0 && blamed != q->wait->boot->rank;
    if (other) snprintf(given_up, sizeof given_up, "; it has given up rank %d", blamed);
    /* This rank goes for the same reason, if it goes. */
    if (other && !q->wait->tolerant) boot_note_blamed(q->wait->boot, blamed);
    fail(q, BOOT_WILL_NOT_COME, other ? blamed : rank,
         error_set(EXPAR_ERR_PEER, "%s: rank %d does not come any more: %s: %s%s", q->wait->what, rank,
                   expar_status_string(answer->ended), answer->reason, given_up));
}

static void judge_ends(inquiry *q)
{
    const bool open = q->wait->topic.kind == BOOT_KIND_NONE;
    for (int32_t r = 0; r < q->wait->boot->size && !q->failed; r++) {
        const boot_answer *answer = &q->answers[r];
        if (answer->came && answer->ended != EXPAR_OK && (open || is_missed(q->wait, r))) will_not_come(q, r, answer);
    }
}

/* ---- the chain --------------------------------------------------------------------------------------------------- */

static bool same_topic(const boot_topic *a, const boot_topic *b)
{
    return a->kind == b->kind && a->object == b->object && a->number == b->number;
}

/* Whoever is missed and does not wait in the topic itself is the likelier reason for this wait. */
static void find_reason(inquiry *q)
{
    boot_wait *wait = q->wait;
    if (!wait->misses) return;
    wait->reason = -1;
    for (int32_t r = 0; r < wait->boot->size && wait->reason < 0; r++) {
        const boot_answer *answer = &q->answers[r];
        const bool waits_here = answer->waits && answer->waited_ns > 0 && same_topic(&answer->topic, &wait->topic);
        if (answer->asked && answer->came && !waits_here && is_missed(wait, r)) wait->reason = r;
    }
    find_awaited(wait);
}

/* Where the chain is: `rank` is awaited in `topic` by the one before it. */
typedef struct walk {
    int32_t rank;
    boot_topic topic;
    bool elsewhere; /* it has come to another topic than this rank's own */
    bool blocked;   /* all who wait so far have looked in vain for the time-out */
    bool unknown;   /* somebody on it has not answered in time */
    char text[640];
    size_t length;
} walk;

static void walk_tell(walk *w, int32_t rank, const char *doing)
{
    const size_t room = sizeof w->text - w->length;
    int length = snprintf(w->text + w->length, room, "%srank %d is %s", w->length ? "; " : "", rank, doing);
    if (length > 0 && (size_t)length < room) w->length += (size_t)length;
    w->text[w->length] = '\0';
}

/* How the rank stands to the topic. False: it is not known. */
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

/* How the rank that the walk has come to stands to the topic in which it is awaited. False: it is not known. */
static bool walk_look(inquiry *q, const walk *w, boot_answer *out)
{
    boot *self = q->wait->boot;
    if (w->rank == self->rank) {
        notes_read(self->notes, &w->topic, self->timeout_ms, out);
        return true;
    }
    if (same_topic(&w->topic, &q->wait->topic) && q->answers[w->rank].asked) {
        *out = q->answers[w->rank];
        return out->came;
    }
    return ask_rank(self, w->rank, &w->topic, ANSWER, out);
}

/* The chain has come back to this rank's own wait. */
static bool is_own(const inquiry *q, const walk *w, const boot_answer *answer)
{
    return w->rank == q->wait->boot->rank && answer->waits && same_topic(&answer->topic, &q->wait->topic) &&
           answer->rank == atomic_load_explicit(&q->wait->awaited, memory_order_relaxed);
}

static void deadlock(inquiry *q, const walk *w)
{
    fail(q, BOOT_DEADLOCK, atomic_load_explicit(&q->wait->awaited, memory_order_relaxed),
         error_set(EXPAR_ERR_PEER, "%s: a deadlock: timed out after %lld ms, ranks wait for each other in a circle: %s",
                   q->wait->what, (long long)(q->waited_ns / NS_PER_MS), w->text));
}

/* All of it is of one time: nobody who has looked in vain for the time-out, and looked of late, can have begun to wait
   since another one on the walk looked last. */
static bool was_walked_at_once(const inquiry *q)
{
    return clock_ns() - q->now_ns < timeout_ns(q) - NOTES_FRESH_NS(timeout_ns(q));
}

/* Whether the rank may end the wait if it does not come: not where the one before it on the walk goes on without it, as
   this rank has done. */
static bool may_end(const inquiry *q, int32_t rank)
{
    return !q->wait->missed_alone || is_missed(q->wait, rank);
}

/* One step; false: it has come to an end. */
static bool walk_on(inquiry *q, walk *w)
{
    boot_answer answer;
    const bool in_topic = same_topic(&w->topic, &q->wait->topic);
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
        if (answer.ended != EXPAR_OK && may_end(q, w->rank)) will_not_come(q, w->rank, &answer);
    }
    if (q->failed || !answer.waits || answer.rank < 0) return false;
    w->blocked = w->blocked && answer.waited_ns >= timeout_ns(q);
    walk_tell(w, w->rank, answer.doing);
    w->rank = answer.rank;
    w->topic = answer.topic;
    w->elsewhere = w->elsewhere || !same_topic(&w->topic, &q->wait->topic);
    return true;
}

static void follow_chain(inquiry *q)
{
    boot_wait *wait = q->wait;
    char own[BOOT_DOING_TEXT];
    walk w = {.rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed),
              .topic = wait->topic,
              .blocked = notes_waited_ns(wait, timeout_ns(q)) >= timeout_ns(q)};
    if (w.rank < 0 || w.rank == wait->boot->rank) return;
    notes_describe(wait->boot->notes, wait, own, sizeof own);
    walk_tell(&w, wait->boot->rank, own);
    const bool circled = wait->circled;
    wait->circled = false;
    /* In a circle that this rank is not in, it comes to no end. */
    for (int32_t steps = 0; steps <= wait->boot->size && walk_on(q, &w); steps++) {
    }
    /* An answer that is late undoes no circle. */
    if (w.unknown) wait->circled = circled;
}

/* Another rank has left a circle before this one has seen that it is in it. Who does says for whom it had waited, and
   where: so the circle is found behind it, and who awaits this rank there is told (break_circle), which may not have
   seen it either. */
static void find_broken_circle(const inquiry *q)
{
    boot_wait *wait = q->wait;
    boot_answer at = q->left;
    if (q->ended < 0 || at.waits) return;
    for (int32_t steps = 0; at.rank >= 0 && at.rank != wait->boot->rank; steps++)
        if (at.rank == q->ended || steps == wait->boot->size ||
            !ask_rank(wait->boot, at.rank, &at.topic, LAST_ANSWER, &at))
            return;
    if (at.rank < 0 || same_topic(&at.topic, &wait->topic)) return;
    wait->circled = true;
    wait->circle = at.topic;
}

/* ---- those who are late ------------------------------------------------------------------------------------------ */

/* What the others are told of one rank; as long as snprintf says. */
static int describe_rank(const inquiry *q, int32_t rank, char *text, size_t bytes)
{
    if (!q->answers[rank].came) return snprintf(text, bytes, "rank %d has not answered yet", rank);
    return snprintf(text, bytes, "rank %d is %s", rank, q->answers[rank].doing);
}

/* Who will change a word is not known: it may be any of those that were asked. What finds no room is counted. */
static void describe_all(const inquiry *q, char *text, size_t bytes)
{
    char one[BOOT_DOING_TEXT + 32];
    size_t length = (size_t)snprintf(text, bytes, "no rank is silent");
    int32_t left = 0, told = 0;
    for (int32_t r = 0; r < q->wait->boot->size; r++) {
        if (!q->answers[r].asked) continue;
        const size_t more = (size_t)describe_rank(q, r, one, sizeof one) + 2;
        if (left > 0 || length + more + sizeof "; and 2147483647 more" > bytes)
            left++;
        else
            length += (size_t)snprintf(text + length, bytes - length, "%s%s", told++ ? "; " : ": ", one);
    }
    if (left > 0) snprintf(text + length, bytes - length, "; and %d more", left);
}

/* "rank 2 is alive but has not come to this call: it is in …" */
static void describe_late(const inquiry *q, char *text, size_t bytes)
{
    const boot_wait *wait = q->wait;
    const int32_t rank = q->end >= 0 ? q->end : atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    if (rank < 0)
        describe_all(q, text, bytes);
    else if (!q->answers[rank].came)
        snprintf(text, bytes, "rank %d has not come, and not answered yet", rank);
    else if (q->answers[rank].waits && same_topic(&q->answers[rank].topic, &wait->topic))
        snprintf(text, bytes, "rank %d is late: it is %s", rank, q->answers[rank].doing);
    else
        snprintf(text, bytes, "rank %d is alive but has not come to this call: it is %s", rank, q->answers[rank].doing);
}

/* Who owes an answer may turn out to be silent, which is another thing than late. */
static bool somebody_owes(const inquiry *q)
{
    for (int32_t r = 0; r < q->wait->boot->size; r++)
        if (q->answers[r].asked && !q->answers[r].came && q->answers[r].silent_ns > 0) return true;
    return false;
}

/* 0: none. */
static int64_t wait_late_limit_ms(const boot_wait *wait)
{
    const int64_t limit_ms = wait->boot->late_limit_ms;
    const bool own = wait->late_limit_ms > 0 && (limit_ms == 0 || wait->late_limit_ms < limit_ms);
    return own ? wait->late_limit_ms : limit_ms;
}

/* Whoever is missed and waits for nobody keeps the others. False: it is not yet known who is late, where the wait has a
   limit of its own and whoever waits goes on without them. One such rank is late. Several may have waited, until this
   very limit, for one that does not come, and be on their way now; and those who wait have limits, too: so they all
   have half of it more. wait->silent has who is late. */
static bool find_late(const inquiry *q, int64_t limit_ns)
{
    boot_wait *wait = q->wait;
    int32_t count = 0;
    if (wait->late_limit_ms == 0 || !wait->misses) return true;
    bool *late = calloc((size_t)wait->boot->size, sizeof *late);
    for (int32_t r = 0; late && r < wait->boot->size; r++) {
        const boot_answer *answer = &q->answers[r];
        late[r] = answer->asked && answer->came && !answer->waits && is_missed(wait, r);
        count += late[r];
    }
    if (count != 1 && q->waited_ns < limit_ns + limit_ns / 2) {
        free(late);
        return false;
    }
    wait->silent = late;
    return true;
}

static void judge_lateness(inquiry *q)
{
    boot_wait *wait = q->wait;
    const int64_t limit_ms = wait_late_limit_ms(wait);
    const int32_t awaited = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    char text[LATE_TEXT], whom[48] = "";
    if (limit_ms == 0 || q->waited_ns < limit_ms * NS_PER_MS || somebody_owes(q)) return;
    if (!find_late(q, limit_ms * NS_PER_MS)) return;
    if (awaited >= 0) snprintf(whom, sizeof whom, " waiting for rank %d", awaited);
    describe_late(q, text, sizeof text);
    fail(q, BOOT_LATE, q->end >= 0 ? q->end : awaited,
         error_set(EXPAR_ERR_PEER, "%s: timed out after %lld ms (the late limit)%s; %s", wait->what,
                   (long long)limit_ms, whom, text));
}

const char *boot_limit_text(const boot *self)
{
    return self->late_limit_ms > 0
               ? "the late limit (EXPAR_LATE_LIMIT, late_limit_ms) ends it"
               : "no limit ends it (EXPAR_LATE_LIMIT in seconds or the group's late_limit_ms sets one)";
}

static void log_wait(inquiry *q)
{
    boot_wait *wait = q->wait;
    char own[BOOT_DOING_TEXT], text[LATE_TEXT];
    if (q->now_ns < wait->log_ns) return;
    wait->log_pause_ns *= 2;
    wait->log_ns = q->now_ns + wait->log_pause_ns;
    notes_describe(wait->boot->notes, wait, own, sizeof own);
    describe_late(q, text, sizeof text);
    const int64_t waited_ns = q->now_ns - atomic_load_explicit(&wait->since_ns, memory_order_relaxed);
    LOG(LOG_WARN, "for %lld s %s; %s; %s", (long long)(waited_ns / (1000 * NS_PER_MS)), own, text,
        boot_limit_text(wait->boot));
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static bool is_due(const boot_wait *wait, int64_t now_ns)
{
    const int64_t limit_ms = wait_late_limit_ms(wait);
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
    if (!q.failed) find_reason(&q);
    if (!q.failed) follow_chain(&q);
    if (!q.failed) judge_lateness(&q);
    if (!q.failed) log_wait(&q);
    forgive_what_has_come(&q);
    wait->circled = wait->circled || (q.failed && circled);
    if (!wait->circled) find_broken_circle(&q);
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
    if (wait->misses) find_awaited(wait);
    if (!wait->noted) note_wait(wait, now_ns);
    atomic_store_explicit(&wait->looked_ns, wait->left_ns, memory_order_relaxed);
    expar_status status = interrupt_look(&wait->interrupt_ns, wait->what);
    if (status == EXPAR_OK && is_due(wait, now_ns)) status = inquire(wait, now_ns);
    wait->left_ns = clock_ns();
    return status;
}
