/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <expar/interrupt.h>
#include <signal.h>
#include <stdatomic.h>

static atomic_int stopped; /* lock-free: the handler may write it */

static void on_signal(int number)
{
    stopped = number;
}

static int is_stopped(void *context)
{
    (void)context;
    return stopped != 0;
}

/* Ctrl-C ends whatever this process waits for; calls give EXPAR_ERR_INTERRUPTED. */
expar_status end_waits_on_signal(void)
{
    if (signal(SIGINT, on_signal) == SIG_ERR) return EXPAR_ERR_SYSTEM;
    return expar_interrupt_set(is_stopped, NULL);
}
