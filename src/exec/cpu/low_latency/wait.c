/* SPDX-License-Identifier: Apache-2.0 */
/* Waits in a phase of a call, and tells others about them. Measures how long they took for which rank. With masks a
 * wait that would end because of a rank goes on without it. */
#include "exec/cpu/low_latency/far.h"

#include <stdio.h>

static bool wait_misses(const void *context, int32_t rank)
{
    const ll_wait *wait = context;
    if (ll_is_masked(wait->cpu, rank)) return false;
    const ll_due due = wait->due(wait->context, rank);
    return due.came < due.all;
}

static void begin_rest(ll_wait *wait)
{
    const boot_topic topic = {.kind = BOOT_KIND_LOW_LATENCY, .object = wait->cpu->number, .number = wait->call->number};
    wait->rest = sym_rest_begin(wait->cpu->sym, wait->what);
    wait->rest.halt = &wait->cpu->halted;
    sym_rest_expect_all(&wait->rest, &topic, wait_misses, wait);
    if (wait->cpu->masks) {
        sym_rest_tolerate(&wait->rest);
        wait->rest.wait.late_limit_ms = wait->cpu->plan.late_limit_ms;
    } else if (wait->receives) {
        sym_rest_outlast(&wait->rest, wait_misses, wait);
    }
    wait->begun = true;
}

/* ---- without lost ranks ------------------------------------------------------------------------------------------ */

/* A rank that has masked this one sends it nothing more. *any: such a rank was missing. */
static expar_status answer_masks(const ll_wait *wait, bool *any)
{
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < wait->cpu->shape.ranks && status == EXPAR_OK; r++) {
        if (!ll_is_masked_by(wait->cpu, r) || !wait_misses(wait, r)) continue;
        status = ll_mask(wait->cpu, r, "it has masked this rank");
        *any = true;
    }
    return status;
}

/* The wait has failed: it goes on without the ranks for which it has failed. */
static expar_status lose_ranks(ll_wait *wait)
{
    char why[512];
    bool any = false;
    expar_status status = EXPAR_OK;
    snprintf(why, sizeof why, "%s", expar_last_error());
    for (int32_t r = 0; r < wait->cpu->shape.ranks && status == EXPAR_OK; r++) {
        if (!sym_rest_has_lost(&wait->rest, r)) continue;
        status = ll_mask(wait->cpu, r, why);
        any = true;
    }
    /* The rank to blame is awaited by others: the ranks that this one awaits do not come because of it. */
    for (int32_t r = 0; r < wait->cpu->shape.ranks && status == EXPAR_OK && !any; r++) {
        any = r != wait->cpu->sym->rank && wait_misses(wait, r);
        if (any) status = ll_mask(wait->cpu, r, why);
    }
    sym_rest_end(&wait->rest);
    wait->begun = false;
    return status;
}

static expar_status masking_turn(ll_wait *wait)
{
    bool answered = false;
    if (wait->cpu->far) wait->cpu->far->spread(wait->cpu);
    expar_status status = answer_masks(wait, &answered);
    if (status != EXPAR_OK || answered) return status;
    status = sym_rest_turn(&wait->rest);
    return status == EXPAR_ERR_PEER ? lose_ranks(wait) : status;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Only a call that asks for times reads the clock. */
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
    if (!moved) return wait->cpu->masks ? masking_turn(wait) : sym_rest_turn(&wait->rest);
    sym_rest_progress(&wait->rest);
    return EXPAR_OK;
}

void ll_wait_came(ll_wait *wait, int32_t rank)
{
    int64_t *wait_ns = wait->call->wait_ns;
    if (!wait_ns || rank == wait->cpu->sym->rank) return;
    wait_ns[rank] += wait->idle_ns + (wait->idle_since_ns ? clock_ns() - wait->idle_since_ns : 0);
}

/* Adds "; rows from rank 3: 12 of 40" for each rank whose data are missing, as many as fit. */
static expar_status tell_missing(const ll_wait *wait, expar_status status)
{
    char text[512] = "";
    size_t length = 0;
    for (int32_t r = 0; r < wait->cpu->shape.ranks; r++) {
        const ll_due due = wait->due(wait->context, r);
        const size_t spare = sizeof text - length;
        if (due.came >= due.all || ll_is_masked(wait->cpu, r)) continue;
        const int more = snprintf(text + length, spare, "; %s of rank %d: %lld of %lld", wait->of, r,
                                  (long long)due.came, (long long)due.all);
        if (more < 0 || (size_t)more >= spare) break;
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
