/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous: connects, proves the secret, greets, waits for the table. */
#include "boot/meet/rendezvous.h"
#include "base/interrupt.h"
#include "boot/meet/meet.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_PAUSE_NS ((int64_t)1000 * 1000)
#define LAST_PAUSE_NS  ((int64_t)20 * 1000 * 1000)

expar_status rendezvous_open(rendezvous *self, const address *where, const auth_key *key, const boot_request *request,
                             int64_t deadline_ns)
{
    size_t limit_bytes = handshake_table_bytes(request->size);
    if (limit_bytes < sizeof(handshake_verdict)) limit_bytes = sizeof(handshake_verdict);
    *self = (rendezvous){.where = *where, .request = request, .key = *key, .deadline_ns = deadline_ns, .fd = -1};
    self->meeting = !request->have_id;
    self->inbox = (wire_inbox){.payload = malloc(limit_bytes), .limit_bytes = limit_bytes};
    return self->inbox.payload ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "rendezvous: out of memory");
}

void rendezvous_close(rendezvous *self)
{
    wire_close(&self->fd);
    free(self->inbox.payload);
    self->inbox.payload = NULL;
}

expar_status rendezvous_verdict(const rendezvous *self)
{
    handshake_verdict verdict;
    verdict_read(self->inbox.payload, self->inbox.header.bytes, &verdict);
    return error_set((expar_status)verdict.status, "%s", verdict.text);
}

const char *rendezvous_server(const rendezvous *self)
{
    return self->meeting ? "rank 0, which serves it, is stopped or cannot be reached"
                         : "the process that made the unique id (rank 0, where the ranks made it) is stopped or cannot "
                           "be reached";
}

expar_status rendezvous_lost(const rendezvous *self)
{
    char text[ADDRESS_TEXT];
    address_format(&self->where, text);
    return error_set(EXPAR_ERR_BOOTSTRAP, "the rendezvous at %s closed: %s", text,
                     self->meeting ? "rank 0, which serves it, died or left"
                                   : "the process that made the unique id ended, or retired the id");
}

/* Sleeps a little longer each time. Returns false when the deadline has passed, or the program asks to stop. */
static bool pause_before_retry(const rendezvous *self, int64_t *pause_ns)
{
    if (clock_ns() >= self->deadline_ns || interrupt_came()) return false;
    nanosleep(&(struct timespec){.tv_nsec = (long)*pause_ns}, NULL);
    *pause_ns = *pause_ns * 2 < LAST_PAUSE_NS ? *pause_ns * 2 : LAST_PAUSE_NS;
    return true;
}

/* Tries once. On failure -1 and errno; ETIMEDOUT at the deadline. */
static int connect_once(const rendezvous *self)
{
    int fd = address_connect(&self->where);
    if (fd < 0) return -1;
    int error = wire_wait(fd, POLLOUT, self->deadline_ns) ? address_connect_error(fd) : ETIMEDOUT;
    if (error == 0) return fd;
    wire_close(&fd);
    errno = error;
    return -1;
}

static expar_status report_unreachable(const rendezvous *self, int error)
{
    char text[ADDRESS_TEXT], here[ROLL_TEXT];
    address_format(&self->where, text);
    if (self->meeting) {
        roll_call(self->request, here);
        return error_set(EXPAR_ERR_BOOTSTRAP, "time-out: rank 0 did not come to the meeting place %s (%s); %s", text,
                         strerror(error), here);
    }
    if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH)
        return error_set(EXPAR_ERR_BOOTSTRAP,
                         "the unique id at %s cannot be reached (%s): expected an address that all hosts reach, see "
                         "EXPAR_BOOTSTRAP_INTERFACE where the id is made",
                         text, strerror(error));
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "nobody serves the unique id at %s (%s): it was retired, or the process that made it ended%s",
                     text, strerror(error),
                     address_is_loopback(&self->where)
                         ? ", or this is another host: then EXPAR_BOOTSTRAP_INTERFACE must be set where the id is made"
                         : "");
}

static expar_status check_other_user(rendezvous *self)
{
    char text[ADDRESS_TEXT];
    if (address_same_user(self->fd)) return EXPAR_OK;
    wire_close(&self->fd);
    address_format(&self->where, text);
    return error_set(EXPAR_ERR_AUTH, "another user listens at the meeting place %s", text);
}

static expar_status connect_somehow(rendezvous *self)
{
    int64_t pause_ns = FIRST_PAUSE_NS;
    for (;;) {
        self->fd = connect_once(self);
        if (self->fd >= 0) return check_other_user(self);
        int error = errno;
        bool again = self->meeting || error == EAGAIN || error == EINTR;
        if (!again || !pause_before_retry(self, &pause_ns)) return report_unreachable(self, error);
    }
}

static expar_status report_silent(const rendezvous *self)
{
    char text[ADDRESS_TEXT];
    address_format(&self->where, text);
    return error_set(EXPAR_ERR_BOOTSTRAP, "time-out: the rendezvous at %s does not answer: %s", text,
                     rendezvous_server(self));
}

/* Connects and proves the secret. *again: the connection closed before that was done. */
static expar_status approach(rendezvous *self, bool *again)
{
    auth proof;
    char text[ADDRESS_TEXT];
    expar_status status = connect_somehow(self);
    if (status != EXPAR_OK) return status;
    auth_begin(&proof, &self->key, AUTH_CONNECTS, AUTH_RENDEZVOUS);
    switch (auth_run(&proof, self->fd, self->deadline_ns)) {
    case WIRE_DONE:
        return EXPAR_OK;
    case WIRE_BAD:
        address_format(&self->where, text);
        return error_set(EXPAR_ERR_AUTH, "the rendezvous at %s and this rank do not have the same secret", text);
    case WIRE_CLOSED:
        *again = true;
        return EXPAR_OK;
    default:
        return report_silent(self);
    }
}

static expar_status rendezvous_take_table(const rendezvous *self, int32_t size)
{
    if (handshake_table_check(self->inbox.payload, self->inbox.header.bytes, size)) return EXPAR_OK;
    return error_set(EXPAR_ERR_BOOTSTRAP, "the rendezvous sent a malformed table");
}

/* Waits for the table. *again: the rendezvous closes and wants this rank to come again. */
static expar_status await_table(rendezvous *self, int32_t size, bool *again)
{
    bool welcome = false;
    for (;;) {
        wire_inbox_clear(&self->inbox);
        wire_result result = wire_receive_frame(self->fd, &self->inbox, self->deadline_ns + RENDEZVOUS_GRACE_NS);
        if (result == WIRE_AGAIN) return report_silent(self);
        /* Without a welcome the rendezvous has not seen the greeting: the connection came too late, while it was
           closing. */
        *again = result == WIRE_CLOSED && !welcome;
        if (*again) return EXPAR_OK;
        if (result == WIRE_CLOSED) return rendezvous_lost(self);
        if (result == WIRE_BAD) return error_set(EXPAR_ERR_BOOTSTRAP, "the rendezvous sent a frame that is too long");
        switch ((wire_kind)self->inbox.header.kind) {
        case WIRE_WELCOME:
            welcome = true;
            break;
        case WIRE_TABLE:
            return rendezvous_take_table(self, size);
        case WIRE_REJECTED:
            return rendezvous_verdict(self);
        case WIRE_LATER:
            *again = true;
            return EXPAR_OK;
        default:
            return error_set(EXPAR_ERR_BOOTSTRAP, "the rendezvous sent a frame out of place");
        }
    }
}

static expar_status say_handshake(rendezvous *self, const boot_request *request, const boot_place *place, mesh *control)
{
    handshake greeting;
    address local;
    if (!address_is_unix(&self->where) && address_local(self->fd, &local)) {
        expar_status status = mesh_listen_tcp(control, &local);
        if (status != EXPAR_OK) return status;
    }
    handshake_fill(request, place, &control->contact, &greeting);
    int64_t left_ms = (self->deadline_ns - clock_ns()) / 1000000;
    greeting.timeout_ms = left_ms > 1 ? left_ms : 1;
    /* If the connection is gone, reading the answer shows it. */
    (void)wire_send_frame(self->fd, WIRE_HANDSHAKE, &greeting, sizeof greeting, self->deadline_ns);
    return EXPAR_OK;
}

expar_status rendezvous_enter(rendezvous *self, const boot_request *request, const boot_place *place, mesh *control)
{
    int64_t pause_ns = FIRST_PAUSE_NS;
    for (;;) {
        bool again = false;
        expar_status status = approach(self, &again);
        if (status == EXPAR_OK && !again) status = say_handshake(self, request, place, control);
        if (status == EXPAR_OK && !again) status = await_table(self, request->size, &again);
        if (status != EXPAR_OK || !again) return status;
        wire_close(&self->fd);
        if (!pause_before_retry(self, &pause_ns)) return report_unreachable(self, ECONNRESET);
    }
}
