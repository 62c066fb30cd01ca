/* SPDX-License-Identifier: Apache-2.0 */
/* attempt: one try to form a group at the rendezvous. */
#include "boot/meet/attempt.h"
#include "boot/ranks.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long late ranks of a failed try are told its reason. */
#define FAILURE_KEPT_NS ((int64_t)5 * 1000 * 1000 * 1000)

static void failure_forget(attempt_failure *failure)
{
    failure->until_ns = 0;
}

static void failure_know(attempt_failure *failure, int32_t rank)
{
    /* This counts processes, not ranks: if two came with one rank, another rank never comes to this try. */
    if (++failure->num_told >= failure->size) failure_forget(failure);
    if (rank >= 0 && rank < BOOT_MAX_RANKS) failure->told[rank] = true;
}

static void failure_keep(attempt_failure *failure, const handshake_verdict *verdict, int32_t size, int32_t culprit_size)
{
    failure->verdict = *verdict;
    failure->until_ns = clock_ns() + FAILURE_KEPT_NS;
    failure->size = size;
    failure->culprit_size = culprit_size;
    failure->num_told = 0;
    memset(failure->told, 0, sizeof failure->told);
}

/* Frees what belongs to the running try, which has ended. The clients stay. */
static void attempt_reset(attempt *self)
{
    free(self->handshakes);
    free(self->members);
    free(self->came);
    free(self->stands);
    self->handshakes = NULL;
    self->members = NULL;
    self->came = self->stands = NULL;
    self->size = self->num_came = self->num_standing = 0;
}

static bool attempt_start(attempt *self, const handshake *first)
{
    size_t size = (size_t)first->prefix.size;
    failure_forget(&self->failure);
    self->handshakes = calloc(size, sizeof *self->handshakes);
    self->members = calloc(size, sizeof *self->members);
    self->came = calloc(size, sizeof *self->came);
    self->stands = calloc(size, sizeof *self->stands);
    if (!self->handshakes || !self->members || !self->came || !self->stands) {
        attempt_reset(self);
        return false;
    }
    self->size = first->prefix.size;
    self->first = *first;
    self->deadline_ns = INT64_MAX;
    return true;
}

/* ---- failing ----------------------------------------------------------------------------------------------------- */

static void dismiss_members(attempt *self, wire_kind kind, const void *payload, size_t bytes)
{
    for (int32_t rank = 0; rank < self->size; rank++) {
        if (self->members[rank]) client_dismiss(self->members[rank], kind, payload, bytes);
    }
}

/* Ends the try for all ranks. refused: prefix of the greeting that was rejected because of it; NULL: none. */
static void attempt_fail(attempt *self, const handshake_verdict *verdict, const handshake_prefix *rejected)
{
    dismiss_members(self, WIRE_REJECTED, verdict, sizeof *verdict);
    failure_keep(&self->failure, verdict, self->size, rejected ? rejected->size : self->size);
    for (int32_t rank = 0; rank < self->size; rank++) {
        if (self->came[rank]) failure_know(&self->failure, rank);
    }
    if (rejected) failure_know(&self->failure, rejected->rank);
    attempt_reset(self);
}

/* Returns true if this greeting comes late for a failed try; its sender is told the reason. */
static bool failure_tell(attempt_failure *failure, client *from, const handshake_prefix *greeting)
{
    if (clock_ns() > failure->until_ns || failure->told[greeting->rank]) return false;
    if (greeting->size != failure->size && greeting->size != failure->culprit_size) return false;
    failure_know(failure, greeting->rank);
    client_dismiss(from, WIRE_REJECTED, &failure->verdict, sizeof failure->verdict);
    return true;
}

/* "3 of 4 ranks came: 0-2; missing: 3" */
static void describe_progress(const attempt *self, char *text, size_t bytes)
{
    char here[160], missing[160];
    bool all = self->num_came == self->size;
    const bool *set = all ? self->stands : self->came;
    ranks_format(set, true, self->size, here, sizeof here);
    ranks_format(set, false, self->size, missing, sizeof missing);
    if (all)
        snprintf(text, bytes, "all %d ranks came; control sockets stand on ranks: %s; not on: %s", self->size, here,
                 missing);
    else
        snprintf(text, bytes, "%d of %d ranks came: %s; missing: %s", self->num_came, self->size, here, missing);
}

/* ---- greeting ---------------------------------------------------------------------------------------------------- */

/* Rejects a greeting, and with it the try: the others would wait in vain. If it is the first to come, the others are
   told when they come. */
static void reject(attempt *self, client *from, const handshake_verdict *verdict, const handshake_prefix *greeting)
{
    client_dismiss(from, WIRE_REJECTED, verdict, sizeof *verdict);
    if (self->size > 0) {
        attempt_fail(self, verdict, greeting);
    } else {
        failure_keep(&self->failure, verdict, greeting->size, greeting->size);
        failure_know(&self->failure, greeting->rank);
    }
}

static void send_table(attempt *self)
{
    size_t bytes = handshake_table_bytes(self->size);
    unsigned char *table = malloc(bytes);
    if (!table) {
        handshake_verdict verdict;
        verdict_set(&verdict, EXPAR_ERR_MEMORY, "the rendezvous is out of memory");
        attempt_fail(self, &verdict, NULL);
        return;
    }
    handshake_table_head head = {.size = self->size};
    randombytes_buf(head.attempt, sizeof head.attempt);
    memcpy(table, &head, sizeof head);
    for (int32_t rank = 0; rank < self->size; rank++) {
        handshake_entry entry = {.place = self->handshakes[rank].place, .contact = self->handshakes[rank].contact};
        memcpy(table + sizeof head + (size_t)rank * sizeof entry, &entry, sizeof entry);
    }
    for (int32_t rank = 0; rank < self->size; rank++)
        client_tell(self->members[rank], WIRE_TABLE, table, bytes);
    free(table);
}

static void admit(attempt *self, client *from, const handshake *greeting)
{
    int32_t rank = greeting->prefix.rank;
    int64_t deadline_ns = clock_ns() + greeting->timeout_ms * 1000000;
    self->handshakes[rank] = *greeting;
    self->members[rank] = from;
    self->came[rank] = true;
    self->num_came++;
    if (deadline_ns < self->deadline_ns) self->deadline_ns = deadline_ns;
    from->state = CLIENT_MEMBER;
    from->rank = rank;
    client_tell(from, WIRE_WELCOME, NULL, 0);
    if (self->num_came == self->size) send_table(self);
}

static void take_handshake(attempt *self, client *from)
{
    handshake greeting;
    handshake_verdict verdict;
    if (!handshake_check(from->inbox.payload, from->inbox.header.bytes, &greeting, &verdict)) {
        reject(self, from, &verdict, &greeting.prefix);
        return;
    }
    int32_t rank = greeting.prefix.rank;
    if (self->size == 0) {
        if (failure_tell(&self->failure, from, &greeting.prefix)) return;
        if (!attempt_start(self, &greeting)) {
            verdict_set(&verdict, EXPAR_ERR_MEMORY, "the rendezvous is out of memory");
            reject(self, from, &verdict, &greeting.prefix);
            return;
        }
    }
    if (!handshake_agree(&self->first, &greeting, &verdict)) {
        reject(self, from, &verdict, &greeting.prefix);
    } else if (self->came[rank]) {
        verdict_set(&verdict, EXPAR_ERR_MISMATCH, "two processes join as rank %d: pid %d and pid %d", rank,
                    self->handshakes[rank].place.pid, greeting.place.pid);
        reject(self, from, &verdict, &greeting.prefix);
    } else {
        admit(self, from, &greeting);
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static void take_stands(attempt *self, client *from)
{
    if (self->stands[from->rank] || self->num_came < self->size) return;
    self->stands[from->rank] = true;
    if (++self->num_standing < self->size) return;
    dismiss_members(self, WIRE_GO, NULL, 0);
    attempt_reset(self);
}

static void take_rejection(attempt *self, client *from)
{
    handshake_verdict theirs, verdict;
    int32_t rank = from->rank;
    verdict_read(from->inbox.payload, from->inbox.header.bytes, &theirs);
    verdict_set(&verdict, (expar_status)theirs.status, "rank %d: %.480s", rank, theirs.text);
    attempt_fail(self, &verdict, NULL);
}

/* Handles a frame from a known client. It may end the try, for this client or for all. Returns false if the frame is
   out of place. */
static bool take_frame(attempt *self, client *from)
{
    wire_kind kind = (wire_kind)from->inbox.header.kind;
    bool member = from->state == CLIENT_MEMBER;
    if (!member && kind == WIRE_HANDSHAKE)
        take_handshake(self, from);
    else if (member && kind == WIRE_STANDS)
        take_stands(self, from);
    else if (member && kind == WIRE_REJECTED)
        take_rejection(self, from);
    else
        return false;
    wire_inbox_clear(&from->inbox);
    return true;
}

bool attempt_serve(attempt *self, client *from)
{
    wire_result result;
    while ((result = client_step(from)) == WIRE_DONE) {
        if (!take_frame(self, from)) result = WIRE_BAD;
        if (result == WIRE_BAD) break;
    }
    if (result == WIRE_BAD) LOG(LOG_INFO, "rendezvous: dropping a peer with a wrong secret or a malformed frame");
    return result == WIRE_AGAIN;
}

void attempt_lost(attempt *self, client *member)
{
    char progress[400];
    handshake_verdict verdict;
    int32_t rank = member->rank;
    if (member->state != CLIENT_MEMBER) return;
    describe_progress(self, progress, sizeof progress);
    verdict_set(&verdict, EXPAR_ERR_BOOTSTRAP, "rank %d (pid %d) died or left while the group was formed (%s)", rank,
                self->handshakes[rank].place.pid, progress);
    self->members[rank] = NULL;
    attempt_fail(self, &verdict, NULL);
}

void attempt_check_time(attempt *self, int64_t now_ns)
{
    char progress[400];
    handshake_verdict verdict;
    if (now_ns < attempt_deadline_ns(self)) return;
    describe_progress(self, progress, sizeof progress);
    verdict_set(&verdict, EXPAR_ERR_BOOTSTRAP, "time-out: %s", progress);
    attempt_fail(self, &verdict, NULL);
    /* A rank that did not come in time has no part in the failed try: it starts the next one. */
    failure_forget(&self->failure);
}

int64_t attempt_deadline_ns(const attempt *self)
{
    return self->size > 0 ? self->deadline_ns : INT64_MAX;
}

void attempt_close(attempt *self)
{
    dismiss_members(self, WIRE_LATER, NULL, 0);
    attempt_reset(self);
    failure_forget(&self->failure);
}
