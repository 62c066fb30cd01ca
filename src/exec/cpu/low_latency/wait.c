/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting in a phase of a call, with what others are told of it, and how long it took for whom. */
#include "exec/cpu/low_latency/cpu.h"

#include <stdio.h>

static bool wait_misses(const void *context, int32_t rank)
{
    const ll_wait *wait = context;
    const ll_due due = wait->due(wait->context, rank);
    return due.came < due.all;
}

static void begin_rest(ll_wait *wait)
{
    const boot_topic topic = {.kind = BOOT_KIND_BUFFER, .object = wait->cpu->number, .number = wait->call->number};
    wait->rest = sym_rest_begin(wait->cpu->sym, wait->what);
    wait->rest.halt = &wait->cpu->halted;
    sym_rest_expect_all(&wait->rest, &topic, wait_misses, wait);
    wait->begun = true;
}

/* Only a call that asks for times looks at the clock. */
static void count_idle(ll_wait *wait, bool moved)
{
    if (!wait->call->wait_ns) return;
    if (!moved && wait->idle_since_ns == 0) wait->idle_since_ns = clock_ns();
    if (!moved || wait->idle_since_ns == 0) return;
    wait->idle_ns += clock_ns() - wait->idle_since_ns;
    wait->idle_since_ns = 0;
}

expar_status ll_wait_turn(ll_wait *wait, bool moved)
{
    ll_step(wait->cpu);
    count_idle(wait, moved);
    if (moved && !wait->begun) return EXPAR_OK;
    if (!wait->begun) begin_rest(wait);
    if (!moved) return sym_rest_turn(&wait->rest);
    sym_rest_progress(&wait->rest);
    return EXPAR_OK;
}

void ll_wait_came(ll_wait *wait, int32_t rank)
{
    int64_t *wait_ns = wait->call->wait_ns;
    if (!wait_ns || rank == wait->cpu->sym->rank) return;
    wait_ns[rank] += wait->idle_ns + (wait->idle_since_ns ? clock_ns() - wait->idle_since_ns : 0);
}

/* "; rows from rank 3: 12 of 40" of each that is missing, as many as fit. */
static expar_status tell_missing(const ll_wait *wait, expar_status status)
{
    char text[512] = "";
    size_t length = 0;
    for (int32_t r = 0; r < wait->cpu->shape.ranks; r++) {
        const ll_due due = wait->due(wait->context, r);
        const size_t room = sizeof text - length;
        if (due.came >= due.all) continue;
        const int more = snprintf(text + length, room, "; %s of rank %d: %lld of %lld", wait->of, r,
                                  (long long)due.came, (long long)due.all);
        if (more < 0 || (size_t)more >= room) break;
        length += (size_t)more;
    }
    text[length] = '\0';
    return error_set(status, "%s%s", expar_last_error(), text);
}

expar_status ll_wait_end(ll_wait *wait, expar_status status)
{
    if (wait->begun) sym_rest_end(&wait->rest);
    return status == EXPAR_OK ? status : tell_missing(wait, status);
}
