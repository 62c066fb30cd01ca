/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread serves the peers while no thread of this rank waits. It sleeps until something arrives. If a
 * waiting thread drives the network then, it leaves the work to that thread and looks again a little later. */
#include "base/knobs.h"
#include "net/fabric/fabric.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Naps while a thread attends, or has attended since the last nap. A short nap ends by itself. The nap is long if a
   thread attends for long; that thread ends it when it stops attending. */
static void fabric_nap(fabric *f, int64_t nap_ns)
{
    uint64_t count;
    struct pollfd wake = {.fd = f->wake_event, .events = POLLIN};
    bool is_long = nap_ns >= knob(KNOB_FABRIC_LONG_NAP_NS);
    if (is_long) atomic_store(&f->naps, 1);
    if (!is_long || atomic_load(&f->attendants) > 0) ppoll(&wake, 1, &(struct timespec){.tv_nsec = nap_ns}, NULL);
    if (is_long) atomic_store(&f->naps, 0);
    if (wake.revents && read(f->wake_event, &count, sizeof count) < 0) LOG(LOG_DEBUG, "fabric: woken twice");
}

/* While a thread attends, this thread does not poll the queues: it would take what the other sleeps for. A thread that
   attends for one operation after the other would wake this thread each time it stops. So a nap is then too short to be
   ended that way. *visits: their number when this was last called. */
static void leave_to_attendants(fabric *f, uint32_t *visits)
{
    int64_t nap_ns = knob(KNOB_FABRIC_NAP_NS);
    for (;;) {
        uint32_t now = atomic_load_explicit(&f->visits, memory_order_relaxed);
        if (f->stops || (atomic_load(&f->attendants) == 0 && now == *visits)) return;
        const int64_t most_ns = now != *visits ? knob(KNOB_FABRIC_LONG_NAP_NS) - 1 : knob(KNOB_FABRIC_MOST_NAP_NS);
        *visits = now;
        fabric_nap(f, nap_ns < most_ns ? nap_ns : most_ns);
        nap_ns = nap_ns < most_ns ? nap_ns * 2 : most_ns;
    }
}

/* A peer's write leaves no trace in a queue, so any progress, also by arming, may have brought one. */
static void tell_of_progress(fabric *f)
{
    f->site->arrived(f->site->context);
    fabric_nudge(f);
}

/* More usually follows what has woken this thread, and waking up again takes longer than looking. */
static void serve(fabric *f)
{
    for (uint32_t turn = 0; turn <= f->spins && atomic_load(&f->attendants) == 0 && !f->stops; turn++) {
        fabric_progress(f);
        tell_of_progress(f);
        sched_yield();
    }
}

static void *run(void *argument)
{
    fabric *f = argument;
    uint64_t count;
    uint32_t visits = 0;
    log_set_rank(f->rank);
    while (!f->stops) {
        leave_to_attendants(f, &visits);
        bool armed = fabric_arm(f);
        tell_of_progress(f);
        if (armed) fabric_sleep(f, knob(KNOB_FABRIC_THREAD_SLEEP_NS), f->wake_event);
        if (read(f->wake_event, &count, sizeof count) == sizeof count) continue;
        serve(f);
    }
    return NULL;
}

expar_status fabric_thread_start(fabric *f)
{
    sigset_t all, before;
    f->wake_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->nudge_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->wake_event < 0 || f->nudge_event < 0) return error_errno("the progress thread's eventfd");
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
    f->stops = true;
    if (f->thread_runs && write(f->wake_event, &one, sizeof one) == sizeof one) pthread_join(f->thread, NULL);
    f->thread_runs = false;
    if (f->wake_event >= 0) close(f->wake_event);
    if (f->nudge_event >= 0) close(f->nudge_event);
    f->wake_event = f->nudge_event = -1;
}
