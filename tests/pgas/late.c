/* SPDX-License-Identifier: Apache-2.0 */
#include "pgas/late.h"

#include <time.h>

static void replace(sym *self, const transport *old, transport *new)
{
    for (int32_t i = 0; i < TRANSPORT_MEMORIES * self->size; i++) {
        if (self->ways[i].data == old) self->ways[i].data = new;
        if (self->ways[i].words == old) self->ways[i].words = new;
    }
}

void late_begin(expar_group *group, int64_t longest_ns)
{
    sym *self = group->sym;
    for (int32_t t = 0; t < self->num_transports; t++) {
        transport *inner = self->transports[t], *shim;
        shim_plan plan = {.seed = 5 + (uint64_t)group->rank, .longest_ns = longest_ns};
        if (!CHECK_OK(shim_open(inner, &self->site, &plan, &shim))) return;
        replace(self, inner, shim);
        self->transports[t] = shim;
    }
    /* The short way into mapped memory would pass the shim by. */
    for (int32_t pe = 0; pe < self->size; pe++)
        self->direct[pe] = NULL;
}

void late_hold(expar_group *group, bool held)
{
    for (int32_t t = 0; t < group->sym->num_transports; t++)
        shim_hold(group->sym->transports[t], held);
}

size_t late_count(expar_group *group)
{
    size_t count = 0;
    for (int32_t t = 0; t < group->sym->num_transports; t++)
        count += shim_count(group->sym->transports[t]);
    return count;
}

static void *call_quiet(void *argument)
{
    late_quiet *quiet = argument;
    quiet->status = quiet->ctx ? expar_ctx_quiet(quiet->ctx) : expar_quiet(quiet->group);
    atomic_store_explicit(&quiet->returned, true, memory_order_release);
    return NULL;
}

void late_quiet_start(late_quiet *quiet, expar_group *group, expar_ctx *ctx)
{
    *quiet = (late_quiet){.group = group, .ctx = ctx};
    if (pthread_create(&quiet->id, NULL, call_quiet, quiet)) abort();
}

/* However long it takes to see a quiet that does not wait, one that waits is never seen to return. */
void late_quiet_expect_waiting(late_quiet *quiet)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    CHECK(!atomic_load_explicit(&quiet->returned, memory_order_acquire), "quiet has not waited");
}

void late_quiet_join(late_quiet *quiet)
{
    pthread_join(quiet->id, NULL);
    CHECK_OK(quiet->status);
}
