/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CPU's executor: by stores, or, where it is not mapped (reach.h), by the links that calls use. */
#include "ep/low_latency/rogue.h"
#include "ep/harness/check.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/far/links.h"

#include <string.h>

static const ll_cpu *cpu_of(const expar_ll *ll)
{
    return ll_cpu_of(ll->base.exec);
}

const ll_shape *rogue_shape(const expar_ll *ll)
{
    return &cpu_of(ll)->shape;
}

const ll_space *rogue_space(const expar_ll *ll)
{
    return &cpu_of(ll)->space;
}

bool rogue_is_found_out(void)
{
    return true;
}

bool rogue_is_far(const expar_ll *ll)
{
    return ll_is_far(cpu_of(ll), ROGUE_VICTIM);
}

void rogue_put_word(const expar_ll *ll, uint64_t at, uint64_t word)
{
    const ll_cpu *cpu = cpu_of(ll);
    const link_flag flag = {.offset = cpu->buffer + at, .word = word};
    link_batch batch = {0};
    if (!ll_is_far(cpu, ROGUE_VICTIM)) {
        ll_store(cpu, ROGUE_VICTIM, at, word);
        return;
    }
    CHECK_OK(link_set_flag(&cpu->links->ranks[ROGUE_VICTIM].link, &flag, &batch));
    CHECK_OK(link_quiet(cpu->sym, &batch));
}

void rogue_put(const expar_ll *ll, uint64_t at, const void *source, size_t bytes)
{
    const ll_cpu *cpu = cpu_of(ll);
    const link_data data = {.offset = cpu->buffer + at, .source = source, .bytes = bytes};
    link_batch batch = {0};
    if (!ll_is_far(cpu, ROGUE_VICTIM)) {
        memcpy(ll_at(cpu, ROGUE_VICTIM, at), source, bytes);
        return;
    }
    CHECK_OK(link_put(&cpu->links->ranks[ROGUE_VICTIM].link, &data, &batch));
    CHECK_OK(link_quiet(cpu->sym, &batch));
}

void rogue_put_clean_word(const expar_ll *ll, int32_t word, uint64_t value)
{
    rogue_put_word(ll, ll_clean_at(rogue_space(ll), ROGUE_PEER, word), value);
}

void rogue_fill(const expar_ll *ll, uint64_t at, uint8_t value, size_t bytes)
{
    memset(ll_here(cpu_of(ll), at), value, bytes);
}

void rogue_fetch(const expar_ll *ll, void *to, uint64_t at, size_t bytes)
{
    memcpy(to, ll_here(cpu_of(ll), at), bytes);
}

void rogue_guard_lent(uint8_t value)
{
    (void)value;
}

bool rogue_lent_is_sound(uint8_t value)
{
    (void)value;
    return true;
}
