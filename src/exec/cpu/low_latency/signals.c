/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for the signals of a GEMM that is still writing the rows of a combine (proto/signals.h). The GEMM runs in
 * threads of this process, so this thread sleeps between two looks, for longer and longer. */
#include "base/interrupt.h"
#include "exec/cpu/low_latency/cpu.h"

#include <time.h>

enum { FIRST_NAP_NS = 20000, LONGEST_NAP_NS = 1000000 };

/* Returns the number of the first word from `from` on that counts and is not set yet; experts * blocks if there is
   none. */
static int32_t first_missing(const ll_signals *signals, int32_t from)
{
    for (int32_t i = from; i < signals->experts * signals->blocks; i++) {
        const int32_t expert = i / signals->blocks;
        if (i - expert * signals->blocks >= ll_signals_due(signals, expert)) continue;
        if (__atomic_load_n(&signals->words[i], __ATOMIC_ACQUIRE) != signals->value) return i;
    }
    return signals->experts * signals->blocks;
}

static expar_status say_late(const ll_signals *signals, int32_t word)
{
    return error_set(EXPAR_ERR_STATE,
                     "signals of local expert %d: word %d is %d after %.3g s; expected %d, which says that its rows of "
                     "x are written",
                     word / signals->blocks, word % signals->blocks,
                     (int32_t)__atomic_load_n(&signals->words[word], __ATOMIC_RELAXED),
                     (double)signals->timeout_ns / 1e9, (int32_t)signals->value);
}

expar_status ll_cpu_await_signals(executor *base, const ll_signals *signals)
{
    const ll_cpu *self = ll_cpu_of(base);
    const int64_t end_ns = clock_ns() + signals->timeout_ns;
    int64_t asked_ns = 0;
    long nap_ns = FIRST_NAP_NS;
    for (int32_t word = 0;;) {
        word = first_missing(signals, word);
        if (word == signals->experts * signals->blocks) return EXPAR_OK;
        expar_status status = sym_check(self->sym, "signals");
        if (status == EXPAR_OK) status = interrupt_look(&asked_ns, "signals");
        if (status != EXPAR_OK) return status;
        if (clock_ns() >= end_ns) return say_late(signals, word);
        nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
        nap_ns = 2 * nap_ns < LONGEST_NAP_NS ? 2 * nap_ns : LONGEST_NAP_NS;
    }
}
