/* SPDX-License-Identifier: Apache-2.0 */
/* ask: questions between monitors: how a rank stands to a call, and what it says of others. */
#include "boot/sockets/ask.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* Most records that are taken from one peer before the monitor looks at others again. */
#define MOST_AT_ONCE 64

typedef struct ask_inbox {
    ask_record record;
    size_t have_bytes;
    bool bye; /* the peer has said good-bye */
} ask_inbox;

/* A peer that owes an answer is asked again until this long after the first question, and then no more. Questions that
   it does not read would fill its line. */
#define OWED_NS ((int64_t)1000 * 1000 * 1000)

/* Lives on the stack of the thread that asks. */
typedef struct question {
    uint32_t serial;
    int32_t pending;
    boot_answer *answers; /* [size] */
    bool *awaited;        /* [size] the peer has been asked, and has not answered */
    struct question *next;
} question;

struct asker {
    int32_t size;
    const int *lines; /* [size] */
    const boot *boot; /* its wait registry is read */
    /* Guards the members below, the listed questions, and both directions of the lines, so that records stay whole. */
    pthread_mutex_t lock;
    ask_inbox *inboxes; /* [size] */
    pthread_cond_t answered;
    question *questions;
    uint32_t last_serial;
    bool *cut;           /* [size] only a part of a record was sent, for lack of free space: nothing can follow it */
    bool *closed;        /* [size] no process reads the line any more */
    int64_t *owed_ns;    /* [size] when the peer was first asked and has not answered since; 0: it owes nothing */
    int32_t first_death; /* -1: none is known */
    int32_t *blames;     /* [size] the first rank that the peer said it has given up; -1: none */
};

static bool is_text(const char *text, size_t bytes)
{
    return strnlen(text, bytes) < bytes;
}

bool ask_record_check(const ask_record *record, int32_t size)
{
    const uint32_t kind = record->mark ^ ASK_MARK;
    if ((kind == ASK_DEATH || kind == ASK_BLAME) && record->rank < 0) return false;
    return kind >= ASK_QUESTION && kind <= ASK_BLAME && record->topic.kind < BOOT_KINDS && record->waits <= 1 &&
           record->ended <= (uint32_t)EXPAR_ERR_INTERRUPTED && record->rank >= -1 && record->rank < size &&
           record->blamed >= -1 && record->blamed < size && record->waited_ns >= 0 &&
           is_text(record->doing, sizeof record->doing) && is_text(record->reason, sizeof record->reason);
}

/* The caller holds the lock. If a line has no free space, its peer does not read. An unsent record then counts as an
   unanswered one. */
static bool send_record(asker *self, int32_t peer, const ask_record *record)
{
    size_t moved = 0;
    if (self->lines[peer] < 0 || self->cut[peer]) return false;
    wire_result result = wire_push(self->lines[peer], record, sizeof *record, &moved);
    self->cut[peer] = result != WIRE_DONE && moved > 0;
    self->closed[peer] |= result == WIRE_CLOSED;
    return result == WIRE_DONE;
}

/* ---- hearing ----------------------------------------------------------------------------------------------------- */

static void asker_answer(asker *self, int32_t peer, const ask_record *asked)
{
    boot_answer own;
    registry_read(self->boot->registry, &asked->topic, self->boot->timeout_ms, &own);
    ask_record record = {.mark = ASK_MARK | ASK_ANSWER,
                         .serial = asked->serial,
                         .topic = own.topic,
                         .waits = own.waits,
                         .ended = (uint32_t)own.ended,
                         .rank = own.rank,
                         .blamed = own.blamed,
                         .waited_ns = own.waited_ns > 0 ? own.waited_ns : 0};
    memcpy(record.doing, own.doing, sizeof record.doing);
    memcpy(record.reason, own.reason, sizeof record.reason);
    (void)send_record(self, peer, &record);
}

/* Drops an answer for which no thread waits any more. */
static void take_answer(asker *self, int32_t peer, const ask_record *record)
{
    question *one = self->questions;
    while (one && one->serial != record->serial)
        one = one->next;
    if (!one || !one->awaited[peer]) return;
    boot_answer *answer = &one->answers[peer];
    *answer = (boot_answer){.asked = true,
                            .came = true,
                            .ended = (expar_status)record->ended,
                            .waits = record->waits != 0,
                            .topic = record->topic,
                            .rank = record->rank,
                            .waited_ns = record->waited_ns,
                            .blamed = record->blamed};
    memcpy(answer->doing, record->doing, sizeof answer->doing);
    memcpy(answer->reason, record->reason, sizeof answer->reason);
    wire_text_clean(answer->doing);
    wire_text_clean(answer->reason);
    one->awaited[peer] = false;
    if (--one->pending == 0) pthread_cond_broadcast(&self->answered);
}

/* The caller holds the lock. The first death is passed on to all ranks, because this rank may leave for it. A rank that
   is cut off may take this one for dead; such a message is ignored. */
static void asker_learn(asker *self, int32_t rank)
{
    const ask_record record = {.mark = ASK_MARK | ASK_DEATH, .rank = rank, .blamed = -1};
    if (self->first_death >= 0 || self->lines[rank] < 0) return;
    self->first_death = rank;
    for (int32_t peer = 0; peer < self->size; peer++)
        (void)send_record(self, peer, &record);
}

/* The caller holds the lock. Ignores a peer that names itself or this rank: neither explains why the peer left. */
static void take_blame(asker *self, int32_t peer, int32_t rank)
{
    if (self->blames[peer] < 0 && rank != peer && self->lines[rank] >= 0) self->blames[peer] = rank;
}

/* The caller holds the lock. */
static void take_record(asker *self, int32_t peer, const ask_record *record)
{
    self->owed_ns[peer] = 0;
    if (record->mark == (ASK_MARK | ASK_QUESTION))
        asker_answer(self, peer, record);
    else if (record->mark == (ASK_MARK | ASK_ANSWER))
        take_answer(self, peer, record);
    else if (record->mark == (ASK_MARK | ASK_DEATH))
        asker_learn(self, record->rank);
    else if (record->mark == (ASK_MARK | ASK_BLAME))
        take_blame(self, peer, record->rank);
    else
        self->inboxes[peer].bye = true;
}

/* The caller holds the lock. A peer that has gone owes no answer. */
static void asker_line_closed(asker *self, int32_t peer)
{
    self->closed[peer] = true;
    for (question *one = self->questions; one; one = one->next) {
        if (!one->awaited[peer]) continue;
        one->awaited[peer] = false;
        if (--one->pending == 0) pthread_cond_broadcast(&self->answered);
    }
}

/* WIRE_DONE: there may be more. */
static wire_result hear_some(asker *self, int32_t peer)
{
    ask_inbox *in = &self->inboxes[peer];
    wire_result result = WIRE_DONE;
    pthread_mutex_lock(&self->lock);
    for (int i = 0; i < MOST_AT_ONCE && result == WIRE_DONE; i++) {
        result = wire_pull(self->lines[peer], &in->record, sizeof in->record, &in->have_bytes);
        if (result != WIRE_DONE) break;
        in->have_bytes = 0;
        if (ask_record_check(&in->record, self->size))
            take_record(self, peer, &in->record);
        else
            result = WIRE_BAD;
    }
    if (result == WIRE_CLOSED) asker_line_closed(self, peer);
    pthread_mutex_unlock(&self->lock);
    if (result == WIRE_BAD) LOG(LOG_WARN, "rank %d sent what is no question, answer or death of expar", peer);
    return result;
}

bool ask_hear(asker *self, int32_t peer)
{
    wire_result result = hear_some(self, peer);
    return result == WIRE_DONE || result == WIRE_AGAIN;
}

void ask_hear_out(asker *self, int32_t peer, int64_t deadline_ns)
{
    (void)wire_wait(self->lines[peer], POLLRDHUP, deadline_ns);
    while (hear_some(self, peer) == WIRE_DONE)
        continue;
}

/* ---- deaths ------------------------------------------------------------------------------------------------------ */

int32_t ask_tell_death(asker *self, int32_t rank)
{
    pthread_mutex_lock(&self->lock);
    asker_learn(self, rank);
    int32_t first = self->first_death;
    pthread_mutex_unlock(&self->lock);
    return first;
}

int32_t ask_first_death(asker *self)
{
    pthread_mutex_lock(&self->lock);
    int32_t first = self->first_death;
    pthread_mutex_unlock(&self->lock);
    return first;
}

/* ---- blame ------------------------------------------------------------------------------------------------------- */

void ask_tell_blame(asker *self, int32_t rank)
{
    const ask_record record = {.mark = ASK_MARK | ASK_BLAME, .rank = rank, .blamed = -1};
    pthread_mutex_lock(&self->lock);
    for (int32_t peer = 0; peer < self->size; peer++)
        (void)send_record(self, peer, &record);
    pthread_mutex_unlock(&self->lock);
}

int32_t ask_blame_of(asker *self, int32_t peer)
{
    pthread_mutex_lock(&self->lock);
    int32_t rank = self->blames[peer];
    pthread_mutex_unlock(&self->lock);
    return rank;
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */

void ask_say_bye(asker *self)
{
    const ask_record record = {.mark = ASK_MARK | ASK_BYE, .rank = -1, .blamed = -1};
    pthread_mutex_lock(&self->lock);
    for (int32_t peer = 0; peer < self->size; peer++) {
        if (self->lines[peer] < 0) continue;
        (void)send_record(self, peer, &record);
        shutdown(self->lines[peer], SHUT_WR);
    }
    pthread_mutex_unlock(&self->lock);
}

bool ask_heard_bye(asker *self, int32_t peer)
{
    pthread_mutex_lock(&self->lock);
    bool bye = self->inboxes[peer].bye;
    pthread_mutex_unlock(&self->lock);
    return bye;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* The caller holds the lock. Returns whether an answer to this question may come. A peer that has closed its line is
   not asked, nor is one that has owed an answer for long. */
static bool ask_one(asker *self, const ask_record *record, int32_t peer, int64_t now_ns)
{
    if (self->closed[peer] || self->lines[peer] < 0) return false;
    if (self->owed_ns[peer] != 0 && now_ns - self->owed_ns[peer] > OWED_NS) return false;
    bool sent = send_record(self, peer, record);
    if (self->closed[peer]) return false;
    if (self->owed_ns[peer] == 0) self->owed_ns[peer] = now_ns;
    return sent;
}

static void send_question(asker *self, const boot_topic *topic, question *one)
{
    const int64_t now_ns = clock_ns();
    const ask_record record = {
        .mark = ASK_MARK | ASK_QUESTION, .serial = one->serial, .topic = *topic, .rank = -1, .blamed = -1};
    for (int32_t peer = 0; peer < self->size; peer++) {
        one->answers[peer] = (boot_answer){.asked = one->answers[peer].asked, .rank = -1, .blamed = -1};
        one->awaited[peer] = one->answers[peer].asked && ask_one(self, &record, peer, now_ns);
        one->pending += one->awaited[peer];
    }
}

/* Tells since when each peer that has not answered owes its answer. */
static void question_tell_owed(const asker *self, question *one)
{
    const int64_t now_ns = clock_ns();
    for (int32_t peer = 0; peer < self->size; peer++) {
        boot_answer *answer = &one->answers[peer];
        if (answer->asked && !answer->came && !self->closed[peer] && self->owed_ns[peer] != 0)
            answer->silent_ns = now_ns - self->owed_ns[peer];
    }
}

static void asker_forget(asker *self, const question *one)
{
    question **place = &self->questions;
    while (*place != one)
        place = &(*place)->next;
    *place = one->next;
}

void ask_peers(asker *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns)
{
    const int64_t end_ns = clock_ns() + wait_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    bool *awaited = calloc((size_t)self->size, sizeof *awaited);
    if (!awaited) return; /* no peer has answered, and none is silent */
    pthread_mutex_lock(&self->lock);
    question one = {.serial = ++self->last_serial, .answers = answers, .awaited = awaited, .next = self->questions};
    self->questions = &one;
    send_question(self, topic, &one);
    while (one.pending > 0 && pthread_cond_timedwait(&self->answered, &self->lock, &end) != ETIMEDOUT) {
    }
    asker_forget(self, &one);
    question_tell_owed(self, &one);
    pthread_mutex_unlock(&self->lock);
    free(awaited);
}

/* ---- creation and end -------------------------------------------------------------------------------------------- */

static void make_locks(asker *self)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&self->answered, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&self->lock, NULL);
}

expar_status ask_open(const boot *base, const int *lines, asker **out)
{
    const size_t size = (size_t)base->size;
    asker *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    *self = (asker){.size = base->size, .lines = lines, .boot = base, .first_death = -1};
    make_locks(self);
    self->inboxes = calloc(size, sizeof *self->inboxes);
    self->cut = calloc(size, sizeof *self->cut);
    self->closed = calloc(size, sizeof *self->closed);
    self->owed_ns = calloc(size, sizeof *self->owed_ns);
    self->blames = malloc(size * sizeof *self->blames);
    if (!self->inboxes || !self->cut || !self->closed || !self->owed_ns || !self->blames) {
        ask_close(self);
        return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    }
    memset(self->blames, -1, size * sizeof *self->blames);
    *out = self;
    return EXPAR_OK;
}

void ask_close(asker *self)
{
    if (!self) return;
    pthread_cond_destroy(&self->answered);
    pthread_mutex_destroy(&self->lock);
    free(self->inboxes);
    free(self->cut);
    free(self->closed);
    free(self->owed_ns);
    free(self->blames);
    free(self);
}
