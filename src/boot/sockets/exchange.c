/* SPDX-License-Identifier: Apache-2.0 */
/* exchange: the one pattern of all collectives over control sockets: a frame to and from every peer, all at once.
 *
 * Every rank gets a frame from every peer, so it sees by itself which peer is in another call, died or stays silent.
 * The total cost grows with the square of the number of ranks, which is acceptable at set-up. Payloads are moved once,
 * straight into place. */
#include "base/interrupt.h"
#include "boot/sockets/sockets.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SINK_BYTES = 4096 };
#define FINISH_NS ((int64_t)300 * 1000 * 1000)
#define DEATH_NS  ((int64_t)100 * 1000 * 1000)

const char *boot_exchange_name(frame_op op)
{
    static const char *const names[FRAME_OPS] = {
        [FRAME_BARRIER] = "barrier",     [FRAME_ALLGATHER] = "allgather",         [FRAME_ALLTOALL] = "alltoall",
        [FRAME_BROADCAST] = "broadcast", [FRAME_FDS] = "exchange of descriptors", [FRAME_BYE] = "leaving",
    };
    return op > 0 && op < FRAME_OPS ? names[op] : "?";
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Sends the first bytes of a head, with a descriptor. */
static ssize_t send_with_fd(int socket_fd, const lane *one, int fd)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)&one->out_head, .iov_len = sizeof one->out_head};
    union {
        struct cmsghdr align;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *item = CMSG_FIRSTHDR(&message);
    *item = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(item), &fd, sizeof fd);
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static wire_result push_head(int socket_fd, lane *one, int fd)
{
    if (one->out_head.with_fd && one->out_done_bytes == 0) {
        ssize_t count;
        do {
            count = send_with_fd(socket_fd, one, fd);
        } while (count < 0 && errno == EINTR);
        if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? WIRE_AGAIN : WIRE_CLOSED;
        one->out_done_bytes = (size_t)count;
    }
    return wire_push(socket_fd, &one->out_head, sizeof one->out_head, &one->out_done_bytes);
}

static wire_result lane_send(int socket_fd, lane *one, int fd)
{
    if (one->out_done_bytes < sizeof one->out_head) {
        wire_result result = push_head(socket_fd, one, fd);
        if (result != WIRE_DONE) return result;
    }
    size_t moved = one->out_done_bytes - sizeof one->out_head;
    wire_result result = wire_push(socket_fd, one->out, one->out_head.payload_bytes, &moved);
    one->out_done_bytes = sizeof one->out_head + moved;
    one->sent = result == WIRE_DONE;
    return result;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

/* Keeps the first descriptor that arrived and closes any other. */
static void take_fds(struct msghdr *message, lane *one)
{
    for (struct cmsghdr *item = CMSG_FIRSTHDR(message); item; item = CMSG_NXTHDR(message, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
            if (one->fd < 0)
                one->fd = fd;
            else
                close(fd);
        }
    }
}

static wire_result pull_head(int socket_fd, lane *one)
{
    while (one->in_done_bytes < sizeof one->in_head) {
        union {
            struct cmsghdr align;
            unsigned char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec part = {.iov_base = (unsigned char *)&one->in_head + one->in_done_bytes,
                             .iov_len = sizeof one->in_head - one->in_done_bytes};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t count = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (count > 0) {
            take_fds(&message, one);
            one->in_done_bytes += (size_t)count;
        } else if (count == 0) {
            return WIRE_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return WIRE_AGAIN;
        } else if (errno != EINTR) {
            return WIRE_CLOSED;
        }
    }
    return WIRE_DONE;
}

static frame_op op_of(const frame_head *head)
{
    return (frame_op)(head->mark & 0xff);
}

/* Returns whether a head is possible at all. */
static bool head_is_sane(const frame_head *head)
{
    frame_op op = op_of(head);
    return (head->mark & ~0xffu) == FRAME_MARK && op >= FRAME_BARRIER && op <= FRAME_BYE &&
           head->payload_bytes <= EXPAR_CONTROL_MAX_BYTES;
}

/* Reads a head; a good-bye counts as the end of the stream. */
static wire_result receive_head(boot_sockets *self, int32_t peer, lane *one)
{
    pthread_mutex_lock(&self->read_lock);
    wire_result result = pull_head(self->fds[peer], one);
    if (result == WIRE_DONE && !head_is_sane(&one->in_head)) result = WIRE_BAD;
    if (result == WIRE_DONE && op_of(&one->in_head) == FRAME_BYE) {
        self->byes[peer] = true;
        result = WIRE_CLOSED;
    }
    pthread_mutex_unlock(&self->read_lock);
    return result;
}

/* Reads a payload that has no place, and drops it. */
static wire_result lane_drain(int socket_fd, size_t bytes, size_t *moved)
{
    unsigned char sink[SINK_BYTES];
    while (*moved < bytes) {
        size_t part = 0, want = bytes - *moved < sizeof sink ? bytes - *moved : sizeof sink;
        wire_result result = wire_pull(socket_fd, sink, want, &part);
        *moved += part;
        if (result != WIRE_DONE) return result;
    }
    return WIRE_DONE;
}

static bool lane_head_fits(const lane *one, size_t expected_payload_bytes)
{
    const frame_head *in = &one->in_head, *out = &one->out_head;
    return in->mark == out->mark && in->record_bytes == out->record_bytes && in->root == out->root &&
           in->payload_bytes == expected_payload_bytes;
}

static wire_result lane_receive(boot_sockets *self, int32_t peer, lane *one, size_t expected_payload_bytes)
{
    if (one->in_done_bytes < sizeof one->in_head) {
        wire_result result = receive_head(self, peer, one);
        if (result != WIRE_DONE) return result;
        one->fits = lane_head_fits(one, expected_payload_bytes);
    }
    size_t moved = one->in_done_bytes - sizeof one->in_head;
    wire_result result = one->fits ? wire_pull(self->fds[peer], one->in, one->in_head.payload_bytes, &moved)
                                   : lane_drain(self->fds[peer], one->in_head.payload_bytes, &moved);
    one->in_done_bytes = sizeof one->in_head + moved;
    one->received = result == WIRE_DONE;
    return result;
}

/* ---- causes of failures ------------------------------------------------------------------------------------------ */

/* Peeks at the last unread bytes; gets fewer if another thread reads at the same time. A plain peek ends after the
   first descriptor, so this one starts at the last bytes. TCP carries no descriptors, and old kernels do not support
   such a start. */
static size_t peek_last(int fd, size_t waiting_bytes, void *last, size_t bytes)
{
    int start = (int)(waiting_bytes - bytes), from_front = -1;
    if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) == 0) {
        ssize_t count = recv(fd, last, bytes, MSG_PEEK | MSG_DONTWAIT);
        (void)setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &from_front, sizeof from_front);
        return count > 0 ? (size_t)count : 0;
    }
    unsigned char *waiting = malloc(waiting_bytes);
    ssize_t count = waiting ? recv(fd, waiting, waiting_bytes, MSG_PEEK | MSG_DONTWAIT) : 0;
    bool enough = count >= (ssize_t)bytes;
    if (enough) memcpy(last, waiting + count - bytes, bytes);
    free(waiting);
    return enough ? bytes : 0;
}

bool boot_sockets_said_bye(boot_sockets *self, int32_t rank)
{
    frame_head last;
    int before_bytes = 0, after_bytes = 0;
    if (self->byes[rank] || ask_heard_bye(self->asker, rank)) return true;
    (void)ask_hear(self->asker, rank); /* a rank that leaves by part says good-bye there before its sockets close */
    if (ask_heard_bye(self->asker, rank)) return true;
    /* A good-bye is always the last frame. The exchange reads payloads without read_lock; if it has read meanwhile,
       look again. */
    do {
        if (ioctl(self->fds[rank], FIONREAD, &before_bytes) != 0 || before_bytes < (int)sizeof last) return false;
        size_t count = peek_last(self->fds[rank], (size_t)before_bytes, &last, sizeof last);
        if (count == sizeof last && last.mark == (FRAME_MARK | FRAME_BYE)) return true;
    } while (ioctl(self->fds[rank], FIONREAD, &after_bytes) == 0 && after_bytes != before_bytes);
    return false;
}

static expar_status report_aborted(const exchange_call *call)
{
    return error_set(EXPAR_ERR_ABORTED, "%s: the group was aborted", boot_exchange_name(call->op));
}

static bool has_said_bye(boot_sockets *self, int32_t rank)
{
    pthread_mutex_lock(&self->read_lock);
    bool bye = boot_sockets_said_bye(self, rank);
    pthread_mutex_unlock(&self->read_lock);
    return bye;
}

/* Returns a rank that died; -1: none. Survivors leave because of a death, so a death explains a good-bye and not the
   reverse. The kernel closes the sockets of a dead process one by one, and the one to this rank may be the last. So
   this waits a little. A survivor that left before it heard of the death has not told of it. */
static int32_t find_dead(boot_sockets *self)
{
    int64_t deadline_ns = clock_ns() + DEATH_NS;
    int32_t size = self->base.size;
    do {
        for (int32_t rank = 0; rank < size; rank++) {
            bool mute = self->fds[rank] < 0 || has_said_bye(self, rank);
            self->polls[rank] = (struct pollfd){.fd = mute ? -1 : self->fds[rank], .events = POLLRDHUP};
        }
        if (poll(self->polls, (nfds_t)size, wire_poll_ms(deadline_ns)) == 0) return -1;
        for (int32_t rank = 0; rank < size; rank++) {
            if (self->polls[rank].revents == 0 || has_said_bye(self, rank)) continue;
            ask_hear_out(self->asker, rank, clock_ns() + BOOT_LAST_WORDS_NS);
            if (!has_said_bye(self, rank)) return rank;
        }
    } while (clock_ns() < deadline_ns);
    return -1;
}

/* Tells the others which rank's silence made the peer leave. The caller learns it afterwards, because it may end the
   process. */
static expar_status report_gone(boot_sockets *self, const char *name, int32_t peer, const char *how)
{
    const int32_t silent = ask_blame_of(self->asker, peer), pid = self->base.places[peer].pid;
    if (silent < 0) return error_set(EXPAR_ERR_PEER, "%s: rank %d (pid %d) %s", name, peer, pid, how);
    boot_note_blamed(&self->base, silent);
    return error_set(EXPAR_ERR_PEER, "%s: rank %d fell silent, and rank %d (pid %d) %s", name, silent, peer, pid, how);
}

static expar_status report_lost(boot_sockets *self, const exchange_call *call, int32_t peer, wire_result how)
{
    const char *name = boot_exchange_name(call->op);
    if (how == WIRE_BAD) return error_set(EXPAR_ERR_PEER, "%s: rank %d sent what is no frame of expar", name, peer);
    ask_hear_out(self->asker, peer, clock_ns() + BOOT_LAST_WORDS_NS);
    int32_t dead = ask_first_death(self->asker);
    if (dead < 0 && !has_said_bye(self, peer)) dead = peer;
    if (dead < 0 && ask_blame_of(self->asker, peer) < 0) dead = find_dead(self);
    /* Tells the others before the caller knows, because the caller may end the process. */
    bool bye = dead < 0;
    if (!bye) peer = ask_tell_death(self->asker, dead);
    return report_gone(self, name, peer, bye ? "has left the group" : "died");
}

static expar_status report_mismatch(const boot_sockets *self, int32_t peer)
{
    const lane *one = &self->lanes[peer];
    return error_set(EXPAR_ERR_MISMATCH, "rank %d is in %s of %u bytes (root %d), rank %d in %s of %u bytes (root %d)",
                     self->base.rank, boot_exchange_name(op_of(&one->out_head)), one->out_head.record_bytes,
                     one->out_head.root, peer, boot_exchange_name(op_of(&one->in_head)), one->in_head.record_bytes,
                     one->in_head.root);
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

static size_t payload_from(const exchange_call *call, int32_t rank)
{
    return call->only_from < 0 || call->only_from == rank ? call->bytes : 0;
}

static void lanes_prepare(boot_sockets *self, const exchange_call *call)
{
    const boot *base = &self->base;
    for (int32_t peer = 0; peer < base->size; peer++) {
        size_t stride = (size_t)peer;
        bool with_fd = call->fd >= 0 && base->places[peer].host == base->places[base->rank].host;
        self->lanes[peer] = (lane){
            .out_head = {.mark = FRAME_MARK | (uint32_t)call->op,
                         .record_bytes = (uint32_t)call->bytes,
                         .root = call->root,
                         .payload_bytes = (uint32_t)payload_from(call, base->rank),
                         .with_fd = with_fd},
            .out = call->send ? call->send + stride * call->send_stride_bytes : NULL,
            .in = call->receive ? call->receive + stride * call->receive_stride_bytes : NULL,
            .fd = -1,
            .sent = peer == base->rank,
            .received = peer == base->rank,
            .fits = peer == base->rank,
        };
    }
}

/* Moves as many bytes as possible to and from one peer. */
static wire_result lane_step(boot_sockets *self, const exchange_call *call, int32_t peer)
{
    lane *one = &self->lanes[peer];
    wire_result result = WIRE_DONE;
    if (!one->received) result = lane_receive(self, peer, one, payload_from(call, peer));
    if (result == WIRE_CLOSED || result == WIRE_BAD || one->sent) return result;
    return lane_send(self->fds[peer], one, call->fd);
}

static int32_t collect_polls(boot_sockets *self)
{
    int32_t open = 0, size = self->base.size;
    for (int32_t peer = 0; peer < size; peer++) {
        const lane *one = &self->lanes[peer];
        bool done = one->lost || (one->sent && one->received);
        short events = (short)((one->received ? 0 : POLLIN) | (one->sent ? 0 : POLLOUT));
        self->polls[peer] = (struct pollfd){.fd = done ? -1 : self->fds[peer], .events = events};
        open += !done;
    }
    self->polls[size] = (struct pollfd){.fd = self->abort_event, .events = POLLIN};
    return open;
}

static bool half_sent(const boot_sockets *self)
{
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        const lane *one = &self->lanes[peer];
        if (!one->lost && !one->sent && one->out_done_bytes > 0) return true;
    }
    return false;
}

static void step_ready(boot_sockets *self, const exchange_call *call, int32_t *lost, wire_result *how)
{
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        if (self->polls[peer].revents == 0) continue;
        wire_result result = lane_step(self, call, peer);
        if (result != WIRE_CLOSED && result != WIRE_BAD) continue;
        self->lanes[peer].lost = true;
        *lost = peer;
        *how = result;
    }
}

/* After a loss, goes on among the survivors for a moment, until no frame is half sent. So a good-bye can follow, and
   the others see that this rank leaves and does not die. */
static void finish_frames(boot_sockets *self, const exchange_call *call)
{
    int64_t deadline_ns = clock_ns() + FINISH_NS;
    while (half_sent(self)) {
        int32_t lost;
        wire_result how;
        collect_polls(self);
        if (poll(self->polls, (nfds_t)self->base.size, wire_poll_ms(deadline_ns)) == 0) return;
        step_ready(self, call, &lost, &how);
    }
}

static bool lane_is_open(const void *context, int32_t peer)
{
    const boot_sockets *self = context;
    return !(self->lanes[peer].sent && self->lanes[peer].received);
}

/* Waits until something arrives, or it is time to look at the awaited ranks. */
static expar_status exchange_wait(boot_sockets *self, const exchange_call *call, boot_wait *wait, int *ready)
{
    *ready = poll(self->polls, (nfds_t)self->base.size + 1, (int)(INTERRUPT_NS / 1000000));
    if (atomic_load_explicit(&self->aborted, memory_order_relaxed)) return report_aborted(call);
    if (*ready > 0) {
        boot_wait_progress(wait);
        return EXPAR_OK;
    }
    expar_status status = boot_wait_look(wait);
    if (status == EXPAR_ERR_PEER) self->base.timed_out = wait->verdict == BOOT_SILENT;
    if (status == EXPAR_ERR_PEER && wait->verdict == BOOT_SILENT) boot_note_blamed(&self->base, wait->culprit);
    return status;
}

static expar_status exchange_run(boot_sockets *self, const exchange_call *call, boot_wait *wait)
{
    while (collect_polls(self) > 0) {
        int ready;
        expar_status status = exchange_wait(self, call, wait, &ready);
        if (status != EXPAR_OK) return status;
        int32_t lost = -1;
        wire_result how = WIRE_DONE;
        if (ready > 0) step_ready(self, call, &lost, &how);
        if (lost < 0) continue;
        status = report_lost(self, call, lost, how);
        finish_frames(self, call);
        return status;
    }
    return EXPAR_OK;
}

/* Registers the call for other ranks: all ranks count their exchanges alike. */
static expar_status exchange_noted(boot_sockets *self, const exchange_call *call)
{
    boot *base = &self->base;
    const boot_topic topic = {.kind = BOOT_KIND_CONTROL, .number = ++self->exchanges};
    boot_wait wait;
    boot_note_new(base, &topic);
    boot_note_call(base, &topic, base->call ? base->call : boot_exchange_name(call->op));
    boot_wait_begin(&wait, base, &topic, boot_exchange_name(call->op));
    wait.misses = lane_is_open;
    wait.context = self;
    expar_status status = exchange_run(self, call, &wait);
    boot_wait_end(&wait);
    if (status == EXPAR_OK)
        boot_note_met(base, &topic);
    else
        boot_note_ended(base, &topic, status, expar_last_error());
    return status;
}

static void close_received_fds(boot_sockets *self)
{
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        if (self->lanes[peer].fd >= 0) close(self->lanes[peer].fd);
        self->lanes[peer].fd = -1;
    }
}

/* A peer may send a descriptor that no rank has asked for. */
static void close_unasked_fds(boot_sockets *self, frame_op op)
{
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        lane *one = &self->lanes[peer];
        if (one->fd < 0 || (op == FRAME_FDS && one->in_head.with_fd)) continue;
        close(one->fd);
        one->fd = -1;
    }
}

static expar_status check_lanes(const boot_sockets *self)
{
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        const lane *one = &self->lanes[peer];
        if (!one->fits) return report_mismatch(self, peer);
    }
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        const lane *one = &self->lanes[peer];
        if (one->in_head.with_fd && one->fd < 0)
            return error_set(EXPAR_ERR_SYSTEM, "the descriptor of rank %d did not arrive: too many open files?", peer);
    }
    return EXPAR_OK;
}

static expar_status exchange_carry_out(boot_sockets *self, const exchange_call *call)
{
    if (error_restore(&self->broken) != EXPAR_OK) return self->broken.status;
    if (atomic_load_explicit(&self->aborted, memory_order_relaxed)) return report_aborted(call);
    lanes_prepare(self, call);
    expar_status status = exchange_noted(self, call);
    /* From here on the sockets may hold half a frame, so every later call gets the same answer. */
    if (status != EXPAR_OK)
        error_keep(&self->broken, status);
    else
        status = check_lanes(self);
    if (status != EXPAR_OK) close_received_fds(self);
    close_unasked_fds(self, call->op);
    return status;
}

expar_status boot_exchange(boot_sockets *self, const exchange_call *call)
{
    atomic_fetch_add_explicit(&self->base.inside, 1, memory_order_relaxed);
    expar_status status = exchange_carry_out(self, call);
    atomic_fetch_sub_explicit(&self->base.inside, 1, memory_order_release);
    return status;
}
