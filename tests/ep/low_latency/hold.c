/* SPDX-License-Identifier: Apache-2.0 */
/* By the test hooks of the CPU's executor. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/create.h"

void hold_install(expar_ll *ll, void (*step)(void *context), void *context)
{
    ll_executor_cpu_delay(ll->exec, step, context);
}

void hold_stream(expar_ll *ll, uint64_t bytes)
{
    ll_executor_cpu_stream(ll->exec, bytes);
}

void hold_skip(expar_ll *ll, uint64_t calls)
{
    ll_executor_cpu_skip(ll->exec, calls);
}
