/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeping until the network has something, and the division of work between waiting threads and the transport's own
 * thread. */
#include "net/fabric/fabric.h"

#include <poll.h>
#include <unistd.h>

/* It may make progress on any channel, under the channel's lock (fabric_behold). No other thread holds two of these
   locks. */
bool fabric_arm(fabric *f)
{
    struct fid *fids[FABRIC_MAX_CHANNELS];
    for (int32_t i = 0; i < f->num_channels; i++) {
        fids[i] = &f->channels[i].cq->fid;
        pthread_mutex_lock(&f->channels[i].lock);
    }
    const int code = fi_trywait(f->fabric, fids, f->num_channels);
    for (int32_t i = 0; i < f->num_channels; i++)
        pthread_mutex_unlock(&f->channels[i].lock);
    return code == 0;
}

static void drain(int event)
{
    uint64_t count;
    while (read(event, &count, sizeof count) == sizeof count) {
    }
}

static void ring(int event)
{
    uint64_t one = 1;
    if (write(event, &one, sizeof one) != sizeof one) LOG(LOG_DEBUG, "fabric: an event is full, so it rings already");
}

bool fabric_sleep(fabric *f, int64_t limit_ns, int extra_fd)
{
    struct pollfd polls[FABRIC_MAX_CHANNELS + 2];
    struct timespec limit = {.tv_sec = limit_ns / 1000000000, .tv_nsec = limit_ns % 1000000000};
    nfds_t count = (nfds_t)f->num_channels;
    for (int32_t i = 0; i < f->num_channels; i++)
        polls[i] = (struct pollfd){.fd = f->channels[i].wait_fd, .events = POLLIN};
    polls[count++] = (struct pollfd){.fd = f->nudge_event, .events = POLLIN};
    if (extra_fd >= 0) polls[count++] = (struct pollfd){.fd = extra_fd, .events = POLLIN};
    atomic_fetch_add_explicit(&f->sleepers, 1, memory_order_relaxed);
    bool came = ppoll(polls, count, &limit, NULL) > 0;
    atomic_fetch_sub_explicit(&f->sleepers, 1, memory_order_relaxed);
    drain(f->nudge_event);
    return came;
}

void fabric_nudge(fabric *f)
{
    if (atomic_load_explicit(&f->sleepers, memory_order_relaxed) > 0) ring(f->nudge_event);
}

void fabric_attend(fabric *f, int change)
{
    int32_t left = atomic_fetch_add(&f->attendants, change) + change;
    if (change > 0) atomic_fetch_add_explicit(&f->visits, 1, memory_order_relaxed);
    /* This thread may have taken what another one sleeps for, here or on the doorbell. */
    if (change < 0) {
        fabric_nudge(f);
        f->site->arrived(f->site->context);
    }
    if (left == 0 && (change == 0 || atomic_load(&f->naps))) ring(f->wake_event);
}
