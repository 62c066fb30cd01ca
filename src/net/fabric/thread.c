/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread: serves the peers while nobody of this rank waits. It sleeps until something comes; when somebody
 * attends to the network then, it leaves the work to him and looks again a little later. */
#include "net/fabric/fabric.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS 200000
/* Naps in a row before it asks the queues again, which gets in the way of those who wait. */
#define MOST_NAPS 16
/* Connections in the making do not wake every provider's queue. */
#define LONGEST_SLEEP_NS 100000000

static bool stopped(const fabric *f)
{
    uint64_t value;
    return read(f->stop_event, &value, sizeof value) == sizeof value;
}

/* True when nobody attends any more. */
static bool leave_to_attendants(const fabric *f)
{
    for (int i = 0; i < MOST_NAPS && atomic_load_explicit(&f->attendants, memory_order_relaxed) > 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    return atomic_load_explicit(&f->attendants, memory_order_relaxed) == 0;
}

static void *run(void *argument)
{
    fabric *f = argument;
    log_set_rank(f->rank);
    while (!stopped(f)) {
        fabric_sleep(f, LONGEST_SLEEP_NS, f->stop_event);
        if (!leave_to_attendants(f)) continue;
        fabric_progress(f);
        /* What a peer wrote here leaves no trace in a queue, so any progress may have brought it. */
        f->site->arrived(f->site->context);
    }
    return NULL;
}

expar_status fabric_thread_start(fabric *f)
{
    sigset_t all, before;
    f->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->stop_event < 0) return error_errno("the progress thread's eventfd");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&f->thread, NULL, run, f);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    f->thread_runs = code == 0;
    return code == 0 ? EXPAR_OK : error_set(EXPAR_ERR_SYSTEM, "the progress thread cannot be started");
}

void fabric_thread_stop(fabric *f)
{
    uint64_t one = 1;
    if (f->thread_runs && write(f->stop_event, &one, sizeof one) == sizeof one) pthread_join(f->thread, NULL);
    f->thread_runs = false;
    if (f->stop_event >= 0) close(f->stop_event);
    f->stop_event = -1;
}
