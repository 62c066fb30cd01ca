/* SPDX-License-Identifier: Apache-2.0 */
/* mesh: control sockets between all pairs. */
#include "boot/meet/mesh.h"
#include "base/interrupt.h"
#include "boot/meet/meet.h"
#include "boot/meet/rendezvous.h"
#include "boot/meet/session.h"
#include "boot/ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STRANGERS = 64 }; /* accepted connections beyond those of the expected ranks */
#define RETRY_NS ((int64_t)2 * 1000 * 1000)
/* after the first trouble: time for the rendezvous to say which rank died */
#define GIVE_UP_NS ((int64_t)600 * 1000 * 1000)

/* ---- listening --------------------------------------------------------------------------------------------------- */

expar_status mesh_open(mesh *self)
{
    address local;
    *self = (mesh){.unix_listener = -1, .tcp_listener = -1};
    address_random_unix_name(self->contact.unix_name);
    address_from_unix_name(self->contact.unix_name, &local);
    self->unix_listener = address_listen(&local);
    return self->unix_listener >= 0 ? EXPAR_OK : error_errno("boot: cannot listen on an abstract Unix socket");
}

expar_status mesh_listen_tcp(mesh *self, const address *local)
{
    address_ip ip;
    address any_port, bound;
    if (self->tcp_listener >= 0) return EXPAR_OK;
    address_to_ip(local, &ip);
    ip.port = 0;
    address_from_ip(&ip, &any_port);
    self->tcp_listener = address_listen(&any_port);
    if (self->tcp_listener < 0 || !address_local(self->tcp_listener, &bound))
        return error_errno("boot: cannot listen for control sockets");
    address_to_ip(&bound, &self->contact.tcp);
    return EXPAR_OK;
}

void mesh_close(mesh *self)
{
    wire_close(&self->unix_listener);
    wire_close(&self->tcp_listener);
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

typedef struct builder {
    mesh *mesh;
    rendezvous *rendezvous;
    int32_t rank, size;
    handshake_entry *table; /* [size] */
    handshake_mesh names;   /* to: -1 */
    int *fds;               /* [BOOT_LINES · size], -1: not yet */
    session *sessions;      /* [capacity]: BOOT_LINES to each lower rank, then the accepted ones */
    struct pollfd *polls;   /* [capacity + 3] */
    int32_t capacity, used;
    int32_t num_connects; /* number of sessions to lower ranks */
    int32_t num_missing;
    bool told;                 /* the rendezvous knows that all control sockets of this rank stand */
    bool go;                   /* those of all ranks stand */
    int64_t give_up_ns;        /* INT64_MAX: no trouble yet */
    int64_t answer_due_ns;     /* a host that has not answered a connection by then never will */
    int64_t connect_due_ns;    /* later: nor will a higher rank connect that has not done so by then */
    handshake_verdict trouble; /* the last trouble */
} builder;

static void mesh_take_table(builder *self, const boot_request *request)
{
    handshake_table_head head;
    const unsigned char *payload = self->rendezvous->inbox.payload;
    memcpy(&head, payload, sizeof head);
    memcpy(self->table, payload + sizeof head, (size_t)request->size * sizeof *self->table);
    wire_inbox_clear(&self->rendezvous->inbox);
    self->names = (handshake_mesh){.magic = HANDSHAKE_MAGIC, .from = request->rank, .to = -1};
    memcpy(self->names.attempt, head.attempt, sizeof head.attempt);
}

static void builder_free(builder *self)
{
    for (int32_t i = 0; i < self->used; i++) {
        if (self->sessions[i].state != SESSION_DONE) wire_close(&self->sessions[i].fd);
    }
    free(self->table);
    free(self->sessions);
    free(self->polls);
}

/* Early enough that all ranks are told before the rendezvous ends the try, which does not know which rank is missing.
   The rank that connects knows the address, so it may tell before the rank that waits for it. */
static void set_due_times(builder *self)
{
    const int64_t now_ns = clock_ns(), eighth_ns = (self->rendezvous->deadline_ns - now_ns) / 8;
    self->answer_due_ns = now_ns + 6 * eighth_ns;
    self->connect_due_ns = now_ns + 7 * eighth_ns;
}

static expar_status builder_init(builder *self, mesh *control, rendezvous *entrance, const boot_request *request,
                                 int *fds)
{
    *self = (builder){.mesh = control,
                      .rendezvous = entrance,
                      .rank = request->rank,
                      .size = request->size,
                      .fds = fds,
                      .capacity = BOOT_LINES * request->size + MAX_STRANGERS,
                      .used = BOOT_LINES * request->rank,
                      .num_connects = BOOT_LINES * request->rank,
                      .num_missing = BOOT_LINES * (request->size - 1),
                      .give_up_ns = INT64_MAX};
    set_due_times(self);
    self->table = calloc((size_t)self->size, sizeof *self->table);
    self->sessions = calloc((size_t)self->capacity, sizeof *self->sessions);
    self->polls = calloc((size_t)self->capacity + 3, sizeof *self->polls);
    if (!self->table || !self->sessions || !self->polls) {
        self->used = 0;
        builder_free(self);
        return error_set(EXPAR_ERR_MEMORY, "boot: out of memory for the control sockets");
    }
    mesh_take_table(self, request);
    for (int32_t i = 0; i < BOOT_LINES * self->size; i++)
        fds[i] = -1;
    for (int32_t i = 0; i < self->num_connects; i++)
        self->sessions[i] = (session){.state = SESSION_IDLE, .side = AUTH_CONNECTS, .fd = -1, .rank = i / BOOT_LINES};
    return EXPAR_OK;
}

static bool address_of_peer(const builder *self, int32_t rank, address *out)
{
    const handshake_entry *peer = &self->table[rank];
    if (peer->place.host == self->table[self->rank].place.host)
        return address_from_unix_name(peer->contact.unix_name, out);
    return address_from_ip(&peer->contact.tcp, out);
}

/* A failed connection is tried again for a while, because the rendezvous may know better why it failed. All ranks get
   this text, so it names the rank that had the trouble. */
static void note_trouble(builder *self, int32_t rank, const char *what, int error)
{
    address where;
    char at[ADDRESS_TEXT] = "";
    if (address_of_peer(self, rank, &where) && !address_is_unix(&where)) address_format(&where, at);
    verdict_set(&self->trouble, EXPAR_ERR_BOOTSTRAP, "rank %d gets no control socket to rank %d%s%s: %s%s%s",
                self->rank, rank, at[0] ? " at " : "", at, what, error != 0 ? ": " : "",
                error != 0 ? strerror(error) : "");
    if (self->give_up_ns == INT64_MAX) self->give_up_ns = clock_ns() + GIVE_UP_NS;
}

static void start_connecting(builder *self, session *one)
{
    address where;
    handshake_mesh names = self->names;
    one->retry_ns = clock_ns() + RETRY_NS;
    if (!address_of_peer(self, one->rank, &where)) {
        note_trouble(self, one->rank, "it is on another host, but the ranks met at a place that only this host has", 0);
        return;
    }
    int fd = address_connect(&where);
    if (fd < 0) {
        if (errno != EAGAIN) note_trouble(self, one->rank, "connect", errno);
        return;
    }
    if (!address_same_user(fd)) {
        wire_close(&fd);
        note_trouble(self, one->rank, "another user listens there", 0);
        return;
    }
    names.to = one->rank;
    names.line = (int32_t)(one - self->sessions) % BOOT_LINES;
    session_start(one, fd, AUTH_CONNECTS, &self->rendezvous->key, &names);
}

static void mesh_finish(builder *self, session *one)
{
    /* A rank that connects again does so because its first connection failed. */
    int *fd = &self->fds[one->mine.line * self->size + one->rank];
    if (*fd < 0)
        self->num_missing--;
    else
        wire_close(fd);
    *fd = one->fd;
    one->state = SESSION_DONE;
    /* Trouble that lasts elsewhere is recorded again at its next try. */
    self->give_up_ns = INT64_MAX;
}

static void remove_accepted(builder *self, int32_t index)
{
    if (self->sessions[index].state != SESSION_DONE) wire_close(&self->sessions[index].fd);
    self->sessions[index] = self->sessions[--self->used];
}

static void step(builder *self, int32_t index)
{
    session *one = &self->sessions[index];
    wire_result result = session_step(one, self->size);
    int error = errno;
    if (result == WIRE_DONE) mesh_finish(self, one);
    if (index >= self->num_connects && result != WIRE_AGAIN) {
        remove_accepted(self, index);
    } else if (result == WIRE_CLOSED || result == WIRE_BAD) {
        wire_close(&one->fd);
        one->state = SESSION_IDLE;
        one->retry_ns = clock_ns() + RETRY_NS;
        note_trouble(self, one->rank, result == WIRE_BAD ? "it answers with a wrong proof" : "it closed the connection",
                     result == WIRE_BAD ? 0 : error);
    }
}

static void accept_all(builder *self, int listener)
{
    int fd;
    while ((fd = address_accept(listener)) >= 0) {
        if (!address_same_user(fd)) {
            wire_close(&fd);
            continue;
        }
        /* Accepted sessions are in order of age only until one is removed, so search for the oldest. */
        if (self->used == self->capacity) {
            int32_t oldest = self->num_connects;
            for (int32_t i = oldest + 1; i < self->used; i++) {
                if (self->sessions[i].since_ns < self->sessions[oldest].since_ns) oldest = i;
            }
            remove_accepted(self, oldest);
        }
        session_start(&self->sessions[self->used++], fd, AUTH_ACCEPTS, &self->rendezvous->key, &self->names);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* The rendezvous has sent something. */
static expar_status hear_rendezvous(builder *self)
{
    rendezvous *from = self->rendezvous;
    wire_result result = wire_inbox_pull(&from->inbox, from->fd);
    if (result == WIRE_AGAIN) return EXPAR_OK;
    if (result == WIRE_CLOSED) return rendezvous_lost(from);
    if (result == WIRE_DONE && from->inbox.header.kind == WIRE_REJECTED) return rendezvous_verdict(from);
    self->go = result == WIRE_DONE && from->inbox.header.kind == WIRE_GO && self->told;
    if (self->go) return EXPAR_OK;
    if (result == WIRE_DONE && from->inbox.header.kind == WIRE_LATER) return rendezvous_lost(from);
    return error_set(EXPAR_ERR_BOOTSTRAP, "the rendezvous sent a frame out of place");
}

/* A host that drops unexpected packets leaves a connection pending for minutes. The kernel of a stopped rank accepts
   connections, but the rank proves nothing. */
static void find_unanswered(builder *self)
{
    for (int32_t i = 0; i < self->num_connects; i++) {
        const session *one = &self->sessions[i];
        if (one->state == SESSION_IDLE || one->state == SESSION_DONE) continue;
        note_trouble(self, one->rank,
                     one->state == SESSION_CONNECT ? "no answer; a firewall, or not the network that the ranks share?"
                                                   : "it is connected, but does not answer; is it stopped?",
                     0);
        self->give_up_ns = clock_ns();
        return;
    }
}

/* A stopped rank of a higher number has not connected to this rank. */
static void find_unconnected(builder *self)
{
    char text[256];
    bool *missing = calloc((size_t)self->size, sizeof *missing);
    if (!missing) return; /* the rendezvous ends the try */
    for (int32_t i = 0; i < BOOT_LINES * self->size; i++)
        if (i % self->size > self->rank && self->fds[i] < 0) missing[i % self->size] = true;
    if (ranks_format(missing, true, self->size, text, sizeof text) > 0) {
        verdict_set(&self->trouble, EXPAR_ERR_BOOTSTRAP,
                    "rank %d gets no control socket from rank %s: not connected; is it stopped?", self->rank, text);
        self->give_up_ns = clock_ns();
    }
    free(missing);
}

static expar_status check_time(builder *self)
{
    int64_t now_ns = clock_ns();
    if (interrupt_came()) return error_set(EXPAR_ERR_BOOTSTRAP, "given up");
    if (now_ns >= self->answer_due_ns) {
        self->answer_due_ns = INT64_MAX;
        find_unanswered(self);
    }
    if (now_ns >= self->connect_due_ns) {
        self->connect_due_ns = INT64_MAX;
        find_unconnected(self);
    }
    if (self->num_missing > 0 && now_ns >= self->give_up_ns) {
        (void)wire_send_frame(self->rendezvous->fd, WIRE_REJECTED, &self->trouble, sizeof self->trouble,
                              now_ns + RETRY_NS);
        return error_set((expar_status)self->trouble.status, "%s", self->trouble.text);
    }
    if (now_ns < self->rendezvous->deadline_ns + RENDEZVOUS_GRACE_NS) return EXPAR_OK;
    return error_set(EXPAR_ERR_BOOTSTRAP, "time-out: the rendezvous does not answer while control sockets are made: %s",
                     rendezvous_server(self->rendezvous));
}

static int64_t next_wake_ns(const builder *self)
{
    int64_t wake_ns = self->rendezvous->deadline_ns + RENDEZVOUS_GRACE_NS;
    if (self->num_missing > 0 && self->give_up_ns < wake_ns) wake_ns = self->give_up_ns;
    if (self->answer_due_ns < wake_ns) wake_ns = self->answer_due_ns;
    if (self->connect_due_ns < wake_ns) wake_ns = self->connect_due_ns;
    for (int32_t i = 0; i < self->num_connects; i++) {
        const session *one = &self->sessions[i];
        if (one->state == SESSION_IDLE && one->retry_ns < wake_ns) wake_ns = one->retry_ns;
    }
    return wake_ns;
}

static void start_due(builder *self)
{
    int64_t now_ns = clock_ns();
    for (int32_t i = 0; i < self->num_connects; i++) {
        session *one = &self->sessions[i];
        if (one->state == SESSION_IDLE && now_ns >= one->retry_ns) start_connecting(self, one);
    }
}

static void tell_when_complete(builder *self)
{
    if (self->num_missing > 0 || self->told) return;
    /* If the rendezvous is gone, reading shows it. */
    (void)wire_send_frame(self->rendezvous->fd, WIRE_STANDS, NULL, 0, self->rendezvous->deadline_ns);
    self->told = true;
    mesh_close(self->mesh);
}

/* Returns how many sessions are polled. */
static int32_t mesh_poll(builder *self)
{
    self->polls[0] = (struct pollfd){.fd = self->rendezvous->fd, .events = POLLIN};
    self->polls[1] = (struct pollfd){.fd = self->mesh->unix_listener, .events = POLLIN};
    self->polls[2] = (struct pollfd){.fd = self->mesh->tcp_listener, .events = POLLIN};
    for (int32_t i = 0; i < self->used; i++) {
        const session *one = &self->sessions[i];
        bool open = one->state != SESSION_IDLE && one->state != SESSION_DONE;
        self->polls[i + 3] = (struct pollfd){.fd = open ? one->fd : -1, .events = session_events(one)};
    }
    int32_t polled = self->used;
    const int longest_ms = (int)(INTERRUPT_NS / 1000000), wake_ms = wire_poll_ms(next_wake_ns(self));
    if (poll(self->polls, (nfds_t)polled + 3, wake_ms < longest_ms ? wake_ms : longest_ms) >= 0) return polled;
    for (int32_t i = 0; i < polled + 3; i++)
        self->polls[i].revents = 0;
    return polled;
}

static expar_status mesh_build(builder *self)
{
    while (!self->go) {
        start_due(self);
        int32_t polled = mesh_poll(self);
        expar_status status = self->polls[0].revents != 0 ? hear_rendezvous(self) : EXPAR_OK;
        if (status == EXPAR_OK) status = check_time(self);
        if (status != EXPAR_OK) return status;
        /* From the end, so that removing one moves only those already seen. */
        for (int32_t i = polled - 1; i >= 0; i--) {
            if (self->polls[i + 3].revents != 0) step(self, i);
        }
        if (self->polls[1].revents != 0) accept_all(self, self->mesh->unix_listener);
        if (self->polls[2].revents != 0) accept_all(self, self->mesh->tcp_listener);
        tell_when_complete(self);
    }
    return EXPAR_OK;
}

expar_status mesh_connect(mesh *self, rendezvous *entrance, const boot_request *request, int *fds, boot_place *places)
{
    builder work;
    expar_status status = builder_init(&work, self, entrance, request, fds);
    if (status != EXPAR_OK) return status;
    status = mesh_build(&work);
    for (int32_t rank = 0; rank < request->size; rank++)
        places[rank] = work.table[rank].place;
    for (int32_t i = 0; i < BOOT_LINES * request->size && status != EXPAR_OK; i++)
        wire_close(&fds[i]);
    builder_free(&work);
    return status;
}
