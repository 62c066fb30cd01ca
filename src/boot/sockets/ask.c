/* SPDX-License-Identifier: Apache-2.0 */
/* ask: what a rank waits for, asked and answered between monitors. */
#include "boot/sockets/ask.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

/* Taken from one peer before the monitor looks at others again. */
#define MOST_AT_ONCE 64

typedef struct ask_inbox {
    ask_record record;
    size_t have_bytes;
    bool bye; /* the peer has said so */
} ask_inbox;

/* Lives on the stack of who asks. */
typedef struct question {
    uint32_t serial;
    int32_t subject, pending;
    boot_answer *answers; /* [size] */
    struct question *next;
} question;

struct asker {
    int32_t size;
    const int *lines; /* [size] */
    const boot_notes *notes;
    /* Guards all below, the questions that hang there, and both directions of the lines: records go whole. */
    pthread_mutex_t lock;
    ask_inbox *inboxes; /* [size] */
    pthread_cond_t answered;
    question *questions;
    uint32_t last_serial;
    bool *cut;           /* [size] a record went out in part, for want of room: nothing can follow it */
    int32_t first_death; /* -1: none that is known */
};

bool ask_record_check(const ask_record *record, int32_t size)
{
    const uint32_t kind = record->mark ^ ASK_MARK;
    if (kind == ASK_DEATH && record->rank < 0) return false;
    return kind >= ASK_QUESTION && kind <= ASK_BYE && record->subject >= 0 && record->subject < BOOT_SUBJECTS &&
           record->doing <= BOOT_GAVE_UP && record->rank >= -1 && record->rank < size && record->blamed >= -1 &&
           record->blamed < size;
}

/* The caller holds the lock. A line without room leads to who does not read: not sent is not answered. */
static bool send_record(asker *self, int32_t peer, const ask_record *record)
{
    size_t moved = 0;
    if (self->lines[peer] < 0 || self->cut[peer]) return false;
    wire_result result = wire_push(self->lines[peer], record, sizeof *record, &moved);
    self->cut[peer] = result != WIRE_DONE && moved > 0;
    return result == WIRE_DONE;
}

/* ---- hearing ----------------------------------------------------------------------------------------------------- */

static void asker_answer(asker *self, int32_t peer, const ask_record *asked)
{
    boot_answer own;
    notes_read(self->notes, asked->subject, &own);
    const ask_record record = {.mark = ASK_MARK | ASK_ANSWER,
                               .serial = asked->serial,
                               .subject = asked->subject,
                               .doing = (uint32_t)own.doing,
                               .rank = own.rank,
                               .blamed = own.blamed};
    (void)send_record(self, peer, &record);
}

/* An answer that nobody waits for any more is forgotten. */
static void take_answer(asker *self, int32_t peer, const ask_record *record)
{
    question *one = self->questions;
    while (one && one->serial != record->serial)
        one = one->next;
    if (!one || one->subject != record->subject || !one->answers[peer].asked || one->answers[peer].came) return;
    one->answers[peer] = (boot_answer){.asked = true,
                                       .came = true,
                                       .doing = (boot_doing)record->doing,
                                       .rank = record->rank,
                                       .blamed = record->blamed};
    if (--one->pending == 0) pthread_cond_broadcast(&self->answered);
}

/* The caller holds the lock. The first one is passed on to all: this rank may go because of it. Some rank that is cut
   off may take this one for dead, which it knows better. */
static void asker_learn(asker *self, int32_t rank)
{
    const ask_record record = {.mark = ASK_MARK | ASK_DEATH, .rank = rank, .blamed = -1};
    if (self->first_death >= 0 || self->lines[rank] < 0) return;
    self->first_death = rank;
    for (int32_t peer = 0; peer < self->size; peer++)
        (void)send_record(self, peer, &record);
}

/* The caller holds the lock. */
static void take_record(asker *self, int32_t peer, const ask_record *record)
{
    if (record->mark == (ASK_MARK | ASK_QUESTION))
        asker_answer(self, peer, record);
    else if (record->mark == (ASK_MARK | ASK_ANSWER))
        take_answer(self, peer, record);
    else if (record->mark == (ASK_MARK | ASK_DEATH))
        asker_learn(self, record->rank);
    else
        self->inboxes[peer].bye = true;
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

static void send_question(asker *self, question *one)
{
    const ask_record record = {.mark = ASK_MARK | ASK_QUESTION,
                               .serial = one->serial,
                               .subject = one->subject,
                               .doing = BOOT_IDLE,
                               .rank = -1,
                               .blamed = -1};
    for (int32_t peer = 0; peer < self->size; peer++) {
        one->answers[peer].came = false;
        if (one->answers[peer].asked && send_record(self, peer, &record)) one->pending++;
    }
}

static void asker_forget(asker *self, const question *one)
{
    question **place = &self->questions;
    while (*place != one)
        place = &(*place)->next;
    *place = one->next;
}

void ask_peers(asker *self, int32_t subject, boot_answer *answers, int64_t wait_ns)
{
    const int64_t end_ns = clock_ns() + wait_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    pthread_mutex_lock(&self->lock);
    question one = {.serial = ++self->last_serial, .subject = subject, .answers = answers, .next = self->questions};
    self->questions = &one;
    send_question(self, &one);
    while (one.pending > 0 && pthread_cond_timedwait(&self->answered, &self->lock, &end) != ETIMEDOUT) {
    }
    asker_forget(self, &one);
    pthread_mutex_unlock(&self->lock);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void make_locks(asker *self)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&self->answered, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&self->lock, NULL);
}

expar_status ask_open(int32_t size, const int *lines, const boot_notes *notes, asker **out)
{
    asker *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    *self = (asker){.size = size, .lines = lines, .notes = notes, .first_death = -1};
    make_locks(self);
    self->inboxes = calloc((size_t)size, sizeof *self->inboxes);
    self->cut = calloc((size_t)size, sizeof *self->cut);
    if (!self->inboxes || !self->cut) {
        ask_close(self);
        return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    }
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
    free(self);
}
