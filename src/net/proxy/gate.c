/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: condition variables that cost the waking thread nothing while no thread sleeps. */
#include "mem/fence.h"
#include "net/proxy/parts.h"

#include <time.h>

#define NS_PER_S INT64_C(1000000000)

void proxy_gate_init(proxy_gate *gate)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->opened, &clock);
    pthread_condattr_destroy(&clock);
}

void proxy_gate_destroy(proxy_gate *gate)
{
    pthread_cond_destroy(&gate->opened);
    pthread_mutex_destroy(&gate->lock);
}

void proxy_gate_wait(proxy_gate *gate, bool (*is_over)(const void *context), const void *context, int64_t limit_ns)
{
    int64_t until_ns = clock_ns() + limit_ns;
    struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    pthread_mutex_lock(&gate->lock);
    atomic_fetch_add_explicit(&gate->sleepers, 1, memory_order_relaxed);
    /* Partner: the fence in proxy_gate_open. */
    fence_full();
    /* Woken for nothing, or late: the caller checks again in every case. */
    if (!is_over(context)) pthread_cond_timedwait(&gate->opened, &gate->lock, &until);
    atomic_fetch_sub_explicit(&gate->sleepers, 1, memory_order_relaxed);
    pthread_mutex_unlock(&gate->lock);
}

void proxy_gate_open(proxy_gate *gate)
{
    /* Partner: the fence in proxy_gate_wait. */
    fence_full();
    if (atomic_load_explicit(&gate->sleepers, memory_order_relaxed) == 0) return;
    /* With the lock held, a sleeper either sleeps already or has not checked yet. */
    pthread_mutex_lock(&gate->lock);
    pthread_cond_broadcast(&gate->opened);
    pthread_mutex_unlock(&gate->lock);
}
