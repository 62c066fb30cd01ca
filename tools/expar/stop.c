/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C in ranks. A rank that waits in the library leaves its wait when this program's callback says so. A rank that
 * computes may not ask for long, so a timer ends it. In both cases nothing is left: a rank's shared objects go with its
 * process. */
#include "stop.h"

#include <expar/interrupt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS 100000000

/* The signal that came first, or 0. Its handler writes it, and waits of all threads read it (relaxed: no other data
   goes with it). */
static atomic_int came;
static timer_t grace;

static int asks_for_end(void *unused)
{
    (void)unused;
    return atomic_load_explicit(&came, memory_order_relaxed) != 0;
}

static void end_late(int number)
{
    (void)number;
    _exit(128 + atomic_load_explicit(&came, memory_order_relaxed));
}

/* Handles the first signal. A second one of either kind has its default action again (SA_RESETHAND). */
static void end_soon(int number)
{
    static const struct itimerspec later = {.it_value = {.tv_nsec = GRACE_NS}};
    int none = 0;
    if (!atomic_compare_exchange_strong_explicit(&came, &none, number, memory_order_relaxed, memory_order_relaxed))
        _exit(128 + number);
    timer_settime(grace, 0, &later, NULL);
}

void stop_listen(void)
{
    const struct sigaction first = {.sa_handler = end_soon, .sa_flags = (int)SA_RESETHAND},
                           last = {.sa_handler = end_late};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    /* Without a timer, signals end the process at once, which is their default. */
    if (timer_create(CLOCK_MONOTONIC, &event, &grace) != 0) return;
    expar_interrupt_set(asks_for_end, NULL);
    sigaction(SIGALRM, &last, NULL);
    sigaction(SIGINT, &first, NULL);
    sigaction(SIGTERM, &first, NULL);
}

int stop_exit_code(int code)
{
    const int number = atomic_load_explicit(&came, memory_order_relaxed);
    return number ? 128 + number : code;
}
