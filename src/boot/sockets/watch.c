/* SPDX-License-Identifier: Apache-2.0 */
/* watch: the monitor, a thread that sleeps until a peer's control socket closes, or a peer asks. It answers from the
 * moment on when the sockets stand. It reports ranks that have gone as soon as a caller watches.
 *
 * On control sockets it polls only for the end of the stream (POLLRDHUP), so data for a collective neither wakes it nor
 * is ever taken by it. Only the monitor reads the lines (ask.h). While idle, it uses no time at all. */
#include "boot/sockets/ask.h"
#include "boot/sockets/sockets.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct watch {
    boot_sockets *boot;
    pthread_mutex_t lock; /* guards the next four */
    boot_gone_fn gone;    /* NULL: no caller watches yet */
    void *context;
    int32_t *lost; /* [num_lost] ranks that have gone, in that order: rank, or -1 - rank for one that died */
    int32_t num_lost;
    pthread_t thread;
    /* The thread that leaves writes it, the monitor reads it. Relaxed: the barrier of leaving comes before any peer
       goes. */
    atomic_bool hushed;
    int stop_event;       /* eventfd: written by watch_stop, polled by the thread */
    struct pollfd *polls; /* [2 · size + 1]: control sockets, lines, stop_event; fd -1: at its end, or this rank */
};

static int32_t lost_rank(int32_t one)
{
    return one >= 0 ? one : -1 - one;
}

/* A peer is reported once, so its entry is disabled. */
static void report(watch *self, int32_t rank, bool clean)
{
    if (self->polls[rank].fd < 0) return;
    self->polls[rank].fd = -1;
    LOG(LOG_DEBUG, "rank %d is gone (%s)", rank, clean ? "said good-bye" : "died");
    pthread_mutex_lock(&self->lock);
    self->lost[self->num_lost++] = clean ? rank : -1 - rank;
    if (self->gone) self->gone(self->context, rank, clean);
    pthread_mutex_unlock(&self->lock);
}

/* A socket has closed. If the rank left because of another's death, that death is reported first, although the dead
   rank's socket may close later here. All others are told before any thread of this rank can act on it. */
static void look_into(watch *self, int32_t rank)
{
    if (atomic_load_explicit(&self->hushed, memory_order_relaxed)) {
        self->polls[rank].fd = -1;
        return;
    }
    /* Once the first death is known, later messages do not change it, and a thread that asks this rank must not
       wait. */
    const bool open = ask_first_death(self->boot->asker) < 0;
    ask_hear_out(self->boot->asker, rank, open ? clock_ns() + BOOT_LAST_WORDS_NS : 0);
    pthread_mutex_lock(&self->boot->read_lock);
    bool clean = boot_sockets_said_bye(self->boot, rank);
    pthread_mutex_unlock(&self->boot->read_lock);
    int32_t first = clean ? ask_first_death(self->boot->asker) : ask_tell_death(self->boot->asker, rank);
    if (first >= 0 && first != rank) {
        ask_hear_out(self->boot->asker, first, 0);
        report(self, first, false);
    }
    report(self, rank, clean);
}

/* Serves questions first, because their senders wait. */
static void watch_serve(watch *self)
{
    int32_t size = self->boot->base.size;
    for (int32_t rank = 0; rank < size; rank++) {
        struct pollfd *line = &self->polls[size + rank];
        if (line->fd >= 0 && line->revents != 0 && !ask_hear(self->boot->asker, rank)) line->fd = -1;
    }
    for (int32_t rank = 0; rank < size; rank++)
        if (self->polls[rank].fd >= 0 && self->polls[rank].revents != 0) look_into(self, rank);
}

static void *watch_run(void *argument)
{
    watch *self = argument;
    const nfds_t stop = 2 * (nfds_t)self->boot->base.size;
    log_set_rank(self->boot->base.rank);
    for (;;) {
        if (poll(self->polls, stop + 1, -1) < 0) continue;
        if (self->polls[stop].revents != 0) return NULL;
        watch_serve(self);
    }
}

static int watch_start_thread(watch *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, watch_run, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void watch_free(watch *self)
{
    if (self->stop_event >= 0) close(self->stop_event);
    pthread_mutex_destroy(&self->lock);
    free(self->lost);
    free(self->polls);
    free(self);
}

static expar_status watch_prepare(watch *self)
{
    const boot_sockets *sockets = self->boot;
    int32_t size = sockets->base.size;
    self->polls = calloc(2 * (size_t)size + 1, sizeof *self->polls);
    self->lost = calloc((size_t)size, sizeof *self->lost);
    if (!self->polls || !self->lost) return error_set(EXPAR_ERR_MEMORY, "watch: out of memory");
    self->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->stop_event < 0) return error_errno("watch: eventfd");
    for (int32_t rank = 0; rank < size; rank++) {
        self->polls[rank] = (struct pollfd){.fd = sockets->fds[rank], .events = POLLRDHUP};
        self->polls[size + rank] = (struct pollfd){.fd = sockets->lines[rank], .events = POLLIN};
    }
    self->polls[2 * size] = (struct pollfd){.fd = self->stop_event, .events = POLLIN};
    return EXPAR_OK;
}

expar_status watch_start(boot_sockets *sockets, watch **out)
{
    watch *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "watch: out of memory");
    *self = (watch){.boot = sockets, .stop_event = -1};
    pthread_mutex_init(&self->lock, NULL);
    expar_status status = watch_prepare(self);
    if (status == EXPAR_OK && (errno = watch_start_thread(self)) != 0)
        status = error_errno("watch: cannot start the monitor's thread");
    if (status == EXPAR_OK)
        *out = self;
    else
        watch_free(self);
    return status;
}

bool watch_tell(watch *self, boot_gone_fn gone, void *context)
{
    pthread_mutex_lock(&self->lock);
    const bool first = self->gone == NULL;
    if (first) {
        self->gone = gone;
        self->context = context;
    }
    for (int32_t i = 0; i < self->num_lost && first; i++)
        gone(context, lost_rank(self->lost[i]), self->lost[i] >= 0);
    pthread_mutex_unlock(&self->lock);
    return first;
}

int32_t watch_first(watch *self, bool *clean)
{
    int32_t rank = -1;
    if (!self) return -1;
    pthread_mutex_lock(&self->lock);
    if (self->num_lost > 0) {
        rank = lost_rank(self->lost[0]);
        *clean = self->lost[0] >= 0;
    }
    pthread_mutex_unlock(&self->lock);
    return rank;
}

void watch_hush(watch *self)
{
    if (self) atomic_store_explicit(&self->hushed, true, memory_order_relaxed);
}

void watch_stop(watch *self)
{
    if (!self) return;
    uint64_t one = 1;
    if (write(self->stop_event, &one, sizeof one) != sizeof one) LOG(LOG_ERROR, "watch: the monitor cannot be stopped");
    pthread_join(self->thread, NULL);
    watch_free(self);
}
