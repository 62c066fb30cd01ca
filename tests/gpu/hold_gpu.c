/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h where calls are carried out by kernels: between their steps no thread of the host's can be held. What a test
 * would do there it does behind the call. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/create.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "gpu/hand.h"

void hold_install(expar_ll *ll, void (*step)(void *context), void *context)
{
    if (hand_is_host()) ll_executor_cpu_delay(ll->exec, step, context);
}

void hold_stream(expar_ll *ll, uint64_t bytes)
{
    if (hand_is_host()) ll_executor_cpu_stream(ll->exec, bytes);
}

void hold_skip(expar_ll *ll, uint64_t calls)
{
    if (hand_is_host()) ll_executor_cpu_skip(ll->exec, calls);
}

bool hold_finds_late(void)
{
    return !hand_is_host();
}

uint64_t hold_pulse(const expar_ll *ll, int32_t source)
{
    if (hand_is_host()) return 0;
    return __atomic_load_n(&ll_gpu_of(ll->exec)->core.watch.awaits[source], __ATOMIC_RELAXED);
}
