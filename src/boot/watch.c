/* SPDX-License-Identifier: Apache-2.0 */
/* watch: the monitor, a thread that sleeps until a peer's control socket closes.
 *
 * It asks poll for the end of the stream alone (POLLRDHUP), so data that waits for a collective neither wakes it nor is
 * ever taken by it. Idle, it uses no time at all. */
#include "boot/sockets.h"
#include "boot/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct watch {
    boot_sockets *boot;
    boot_gone_fn gone;
    void *context;
    pthread_t thread;
    int stop_event;       /* eventfd: written by watch_stop, polled by the thread */
    struct pollfd *polls; /* [size + 1]; fd -1: reported, or this rank itself */
};

/* A peer is reported once: its entry is disabled. */
static void report(watch *self, int32_t rank)
{
    self->polls[rank].fd = -1;
    pthread_mutex_lock(&self->boot->read_lock);
    bool clean = boot_sockets_said_bye(self->boot, rank);
    pthread_mutex_unlock(&self->boot->read_lock);
    LOG(LOG_DEBUG, "rank %d is gone (%s)", rank, clean ? "said good-bye" : "died");
    self->gone(self->context, rank, clean);
}

static void *watch_run(void *argument)
{
    watch *self = argument;
    int32_t size = self->boot->base.size;
    log_set_rank(self->boot->base.rank);
    while (self->polls[size].revents == 0) {
        if (poll(self->polls, (nfds_t)size + 1, -1) < 0) continue;
        for (int32_t rank = 0; rank < size && self->polls[size].revents == 0; rank++) {
            if (self->polls[rank].fd >= 0 && self->polls[rank].revents != 0) report(self, rank);
        }
    }
    return NULL;
}

static int start_thread(watch *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, watch_run, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

expar_status watch_start(boot_sockets *sockets, boot_gone_fn gone, void *context, watch **out)
{
    expar_status status = EXPAR_OK;
    int32_t size = sockets->base.size;
    watch *self = calloc(1, sizeof *self);
    struct pollfd *polls = calloc((size_t)size + 1, sizeof *polls);
    int stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!self || !polls || stop_event < 0) {
        status = stop_event < 0 ? error_errno("watch: eventfd") : error_set(EXPAR_ERR_MEMORY, "watch: out of memory");
        goto fail;
    }
    *self = (watch){.boot = sockets, .gone = gone, .context = context, .stop_event = stop_event, .polls = polls};
    for (int32_t rank = 0; rank < size; rank++)
        polls[rank] = (struct pollfd){.fd = sockets->fds[rank], .events = POLLRDHUP};
    polls[size] = (struct pollfd){.fd = stop_event, .events = POLLIN};
    errno = start_thread(self);
    if (errno != 0) {
        status = error_errno("watch: cannot start the monitor's thread");
        goto fail;
    }
    *out = self;
    return EXPAR_OK;

fail:
    if (stop_event >= 0) close(stop_event);
    free(polls);
    free(self);
    return status;
}

void watch_stop(watch *self)
{
    if (!self) return;
    uint64_t one = 1;
    if (write(self->stop_event, &one, sizeof one) != sizeof one) LOG(LOG_ERROR, "watch: the monitor cannot be stopped");
    pthread_join(self->thread, NULL);
    close(self->stop_event);
    free(self->polls);
    free(self);
}
