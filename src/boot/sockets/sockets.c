/* SPDX-License-Identifier: Apache-2.0 */
/* sockets: the operations of boot over control sockets. */
#include "boot/sockets/sockets.h"
#include "boot/meet/meet.h"
#include "boot/sockets/create.h"
#include "boot/wire/wire.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define GOODBYE_NS ((int64_t)100 * 1000 * 1000) /* for all good-byes together, if sockets are full */

static boot_sockets *sockets_of(boot *self)
{
    return (boot_sockets *)self;
}

static expar_status sockets_check(const boot *self, const char *call, size_t bytes)
{
    if (bytes <= EXPAR_CONTROL_MAX_BYTES) return EXPAR_OK;
    return error_set(EXPAR_ERR_RANGE, "%s: rank %d gives %zu bytes, expected at most %d", call, self->rank, bytes,
                     EXPAR_CONTROL_MAX_BYTES);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static expar_status sockets_allgather(boot *self, const void *mine, void *all, size_t bytes)
{
    expar_status status = sockets_check(self, "allgather", bytes);
    if (status != EXPAR_OK) return status;
    unsigned char *own = (unsigned char *)all + (size_t)self->rank * bytes;
    /* Copied first, because `mine` may lie where a peer's record goes. */
    if (bytes > 0) memmove(own, mine, bytes);
    return boot_exchange(sockets_of(self), &(exchange_call){.op = FRAME_ALLGATHER,
                                                            .bytes = bytes,
                                                            .only_from = -1,
                                                            .send = own,
                                                            .receive = all,
                                                            .receive_stride_bytes = bytes,
                                                            .fd = -1});
}

static expar_status sockets_alltoall(boot *self, const void *send, void *receive, size_t bytes)
{
    expar_status status = sockets_check(self, "alltoall", bytes);
    if (status != EXPAR_OK) return status;
    size_t own = (size_t)self->rank * bytes;
    if (bytes > 0) memcpy((unsigned char *)receive + own, (const unsigned char *)send + own, bytes);
    return boot_exchange(sockets_of(self), &(exchange_call){.op = FRAME_ALLTOALL,
                                                            .bytes = bytes,
                                                            .only_from = -1,
                                                            .send = send,
                                                            .send_stride_bytes = bytes,
                                                            .receive = receive,
                                                            .receive_stride_bytes = bytes,
                                                            .fd = -1});
}

static expar_status sockets_broadcast(boot *self, void *data, size_t bytes, int32_t root)
{
    expar_status status = sockets_check(self, "broadcast", bytes);
    if (status != EXPAR_OK) return status;
    if (root < 0 || root >= self->size)
        return error_set(EXPAR_ERR_RANGE, "broadcast: root is %d, expected 0 to %d", root, self->size - 1);
    return boot_exchange(sockets_of(self), &(exchange_call){.op = FRAME_BROADCAST,
                                                            .bytes = bytes,
                                                            .root = root,
                                                            .only_from = root,
                                                            .send = data,
                                                            .receive = data,
                                                            .fd = -1});
}

static expar_status sockets_barrier(boot *self)
{
    return boot_exchange(sockets_of(self), &(exchange_call){.op = FRAME_BARRIER, .only_from = -1, .fd = -1});
}

static expar_status sockets_exchange_fds(boot *self, int fd, int *fds)
{
    boot_sockets *sockets = sockets_of(self);
    expar_status status = boot_exchange(sockets, &(exchange_call){.op = FRAME_FDS, .only_from = -1, .fd = fd});
    for (int32_t peer = 0; status == EXPAR_OK && peer < self->size; peer++)
        fds[peer] = sockets->lanes[peer].fd;
    return status;
}

static expar_status sockets_watch(boot *self, boot_gone_fn gone, void *context)
{
    boot_sockets *sockets = sockets_of(self);
    if (watch_tell(sockets->watch, gone, context)) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE, "boot: rank %d watches its peers already", self->rank);
}

static int32_t sockets_first_gone(boot *self, bool *clean)
{
    const boot_sockets *sockets = sockets_of(self);
    const int32_t dead = ask_first_death(sockets->asker);
    *clean = false;
    return dead >= 0 ? dead : watch_first(sockets->watch, clean);
}

static void sockets_tell_blame(boot *self, int32_t rank)
{
    ask_tell_blame(sockets_of(self)->asker, rank);
}

static int32_t sockets_blame_of(boot *self, int32_t rank)
{
    return ask_blame_of(sockets_of(self)->asker, rank);
}

static void sockets_ask(boot *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns)
{
    ask_peers(sockets_of(self)->asker, topic, answers, wait_ns);
}

static void sockets_abort(boot *self)
{
    boot_sockets *sockets = sockets_of(self);
    uint64_t one = 1;
    atomic_store_explicit(&sockets->aborted, true, memory_order_relaxed);
    if (write(sockets->abort_event, &one, sizeof one) != sizeof one) LOG(LOG_ERROR, "boot: abort cannot wake a waiter");
}

/* ---- creation and end -------------------------------------------------------------------------------------------- */

/* A peer that reads frees space soon; one that does not never learns the difference. */
static void sockets_say_goodbye(const boot_sockets *self)
{
    frame_head bye = {.mark = FRAME_MARK | FRAME_BYE};
    int64_t deadline_ns = clock_ns() + GOODBYE_NS;
    for (int32_t peer = 0; peer < self->base.size; peer++) {
        const lane *last = &self->lanes[peer];
        size_t moved = 0;
        /* A good-bye never goes into half a frame, where the peer would take it for data. That peer sees a death. */
        bool between_frames = last->sent || last->out_done_bytes == 0;
        if (self->fds[peer] < 0 || !between_frames) continue;
        while (wire_push(self->fds[peer], &bye, sizeof bye, &moved) == WIRE_AGAIN &&
               wire_wait(self->fds[peer], POLLOUT, deadline_ns))
            continue;
    }
}

static void free_parts(boot_sockets *self)
{
    ask_close(self->asker);
    registry_destroy(&self->registry);
    if (self->abort_event >= 0) close(self->abort_event);
    pthread_mutex_destroy(&self->read_lock);
    free(self->lanes);
    free(self->polls);
    free(self->byes);
    free(self);
}

static void sockets_free(boot_sockets *self)
{
    for (int32_t i = 0; i < BOOT_LINES * self->base.size; i++)
        wire_close(&self->fds[i]);
    free(self->fds);
    free(self->base.places);
    free_parts(self);
}

static expar_status sockets_finish(boot *self)
{
    watch_hush(sockets_of(self)->watch);
    return sockets_barrier(self);
}

/* A collective may have sent half a frame on the control sockets, so the good-bye goes over the lines. */
static void sockets_part(boot *self)
{
    boot_sockets *sockets = sockets_of(self);
    watch_hush(sockets->watch);
    ask_say_bye(sockets->asker);
    for (int32_t peer = 0; peer < self->size; peer++)
        if (sockets->fds[peer] >= 0) shutdown(sockets->fds[peer], SHUT_WR);
}

static void sockets_forsake(boot *self)
{
    boot_sockets *sockets = sockets_of(self);
    for (int32_t i = 0; i < BOOT_LINES * self->size; i++) {
        if (sockets->fds[i] >= 0) close(sockets->fds[i]); /* no shutdown: the connection is the parent's */
        sockets->fds[i] = -1;
    }
}

static void sockets_leave(boot *self, bool sound)
{
    boot_sockets *sockets = sockets_of(self);
    watch_hush(sockets->watch);
    if (sound && sockets_finish(self) != EXPAR_OK) LOG(LOG_INFO, "leaving: %s", expar_last_error());
    sockets_say_goodbye(sockets);
    watch_stop(sockets->watch);
    sockets_free(sockets);
}

static const boot_ops sockets_ops = {
    .name = "sockets",
    .allgather = sockets_allgather,
    .alltoall = sockets_alltoall,
    .broadcast = sockets_broadcast,
    .barrier = sockets_barrier,
    .exchange_fds = sockets_exchange_fds,
    .watch = sockets_watch,
    .first_gone = sockets_first_gone,
    .tell_blame = sockets_tell_blame,
    .blame_of = sockets_blame_of,
    .ask = sockets_ask,
    .finish = sockets_finish,
    .part = sockets_part,
    .forsake = sockets_forsake,
    .leave = sockets_leave,
    .abort = sockets_abort,
};

static expar_status make_parts(boot_sockets *self)
{
    const size_t size = (size_t)self->base.size;
    pthread_mutex_init(&self->read_lock, NULL);
    registry_init(&self->registry);
    self->lanes = calloc(size, sizeof *self->lanes);
    self->polls = calloc(size + 1, sizeof *self->polls);
    self->byes = calloc(size, sizeof *self->byes);
    self->abort_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->abort_event < 0) return error_errno("boot: eventfd");
    if (!self->lanes || !self->polls || !self->byes) return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    expar_status status = ask_open(&self->base, self->lines, &self->asker);
    return status == EXPAR_OK ? watch_start(self, &self->watch) : status;
}

expar_status boot_sockets_create(const boot_request *request, int *fds, boot_place *places, boot **out)
{
    const size_t size = (size_t)request->size;
    boot_sockets *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "boot: out of memory");
    self->fds = fds;
    self->lines = fds + (size_t)BOOT_LINE_ASK * size;
    self->base = (boot){.ops = &sockets_ops,
                        .rank = request->rank,
                        .size = request->size,
                        .timeout_ms = request->timeout_ms,
                        .late_limit_ms = request->late_limit_ms,
                        .places = places,
                        .registry = &self->registry};
    for (size_t i = 0; i < BOOT_LINES * size; i++)
        if (fds[i] >= 0) wire_keep_alive(fds[i], BOOT_HOST_SILENT_MS);
    expar_status status = make_parts(self);
    if (status != EXPAR_OK) {
        free_parts(self);
        return status;
    }
    *out = &self->base;
    return EXPAR_OK;
}
