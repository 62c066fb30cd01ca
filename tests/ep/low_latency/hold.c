/* SPDX-License-Identifier: Apache-2.0 */
/* By the test hooks of the CPU's executor. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/create.h"
#include "exec/cpu/low_latency/cpu.h"
#include "exec/cpu/low_latency/create.h"

void hold_install(expar_ll *ll, void (*step)(void *context), void *context)
{
    ll_executor_cpu_delay(ll->base.exec, step, context);
}

void hold_install_posts(expar_ll *ll, void (*step)(void *context), void *context)
{
    hold_install(ll, step, context);
}

void hold_watch(expar_ll *ll, int32_t ranks, void (*step)(void *context), void *context)
{
    (void)ranks;
    hold_install(ll, step, context);
}

void hold_stream(expar_ll *ll, uint64_t bytes)
{
    ll_executor_cpu_stream(ll->base.exec, bytes);
}

void hold_skip(expar_ll *ll, uint64_t calls)
{
    ll_executor_cpu_skip(ll->base.exec, calls);
}

bool hold_finds_late(void)
{
    return false;
}

bool hold_goes_on(void)
{
    return false;
}

bool hold_awaits_last(int32_t ranks)
{
    (void)ranks;
    return false;
}

bool hold_device_serves(int32_t rank)
{
    (void)rank;
    return true;
}

uint64_t hold_pulse(const expar_ll *ll, int32_t source)
{
    (void)ll, (void)source;
    return 0;
}

/* Words of the source at rank `at`, which the group maps, whether the buffer makes use of that or not. */
static uint64_t clean_word_at(const expar_ll *ll, int32_t at, int32_t source, int32_t word)
{
    const ll_cpu *self = ll_cpu_of(ll->base.exec);
    _Atomic uint64_t *said = sym_at(self->sym, at, self->buffer + ll_clean_at(&self->space, source, word));
    return atomic_load_explicit(said, memory_order_acquire);
}

hold_stage hold_clean_stage(const expar_ll *ll, int32_t at, int32_t source)
{
    const uint64_t stage = clean_word_at(ll, at, source, LL_CLEAN_STAGE);
    return (hold_stage){.attempt = (uint32_t)(stage >> 32), .step = (uint32_t)stage};
}

uint32_t hold_clean_decided(const expar_ll *ll, int32_t at, int32_t source)
{
    return (uint32_t)clean_word_at(ll, at, source, LL_CLEAN_DECIDED);
}

uint32_t hold_clean_taken(const expar_ll *ll, int32_t other)
{
    return ll_cpu_of(ll->base.exec)->masks->cleaner->view[other];
}
