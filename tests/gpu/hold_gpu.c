/* SPDX-License-Identifier: Apache-2.0 */
/* hold.h where calls are carried out by kernels: between their steps no thread of the host's can be held. A test does
 * its work after the call instead, or while the kernel waits. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/create.h"
#include "exec/cpu/low_latency/cpu.h"
#include "exec/cpu/low_latency/create.h"
#include "exec/cuda/low_latency/ll_gpu.h"
#include "gpu/serves.h"
#include "gpu/worker.h"
#include "net/proxy/proxy.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

void hold_install(expar_ll *ll, void (*step)(void *context), void *context)
{
    if (worker_is_host()) ll_executor_cpu_delay(ll->base.exec, step, context);
}

/* ---- between steps of the proxies -------------------------------------------------------------------------------- */

typedef struct hold_posts {
    void (*step)(void *context);
    void *context;
} hold_posts;

/* The rank's thread writes `posts_now`, then `posts` (release); NULL: there is none. The threads of the proxies read
   both (acquire). A process has one rank. */
static hold_posts posts_now;
static _Atomic(const hold_posts *) posts;

static void between_posts(void *context)
{
    (void)context;
    const hold_posts *now = atomic_load_explicit(&posts, memory_order_acquire);
    if (now) now->step(now->context);
}

/* The linker calls it in place of proxy_open. */
expar_status __real_proxy_open(const proxy_plan *plan, proxy **out);
expar_status __wrap_proxy_open(const proxy_plan *plan, proxy **out);
expar_status __wrap_proxy_open(const proxy_plan *plan, proxy **out)
{
    proxy_plan own = *plan;
    if (!own.between_steps) own.between_steps = between_posts;
    return __real_proxy_open(&own, out);
}

void hold_install_posts(expar_ll *ll, void (*step)(void *context), void *context)
{
    if (worker_is_host()) {
        hold_install(ll, step, context);
        return;
    }
    if (step) posts_now = (hold_posts){step, context};
    atomic_store_explicit(&posts, step ? &posts_now : NULL, memory_order_release);
}

/* ---- what happens while a kernel waits --------------------------------------------------------------------------- */

/* One at a time in a process. */
typedef struct hold_watcher {
    pthread_t thread;
    const expar_ll *ll;
    int32_t ranks;
    void (*step)(void *context);
    void *context;
    atomic_bool runs; /* by who began it; the thread ends when it is false */
} hold_watcher;
static hold_watcher watcher;

static uint64_t pulses(const hold_watcher *w)
{
    uint64_t sum = 0;
    for (int32_t r = 0; r < w->ranks; r++)
        sum += hold_pulse(w->ll, r);
    return sum;
}

static void *watch(void *context)
{
    const hold_watcher *w = context;
    uint64_t last = pulses(w);
    while (atomic_load(&w->runs)) {
        const uint64_t now = pulses(w);
        if (now != last) w->step(w->context);
        last = now;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return NULL;
}

void hold_watch(expar_ll *ll, int32_t ranks, void (*step)(void *context), void *context)
{
    if (worker_is_host()) {
        hold_install(ll, step, context);
    } else if (step) {
        watcher = (hold_watcher){.ll = ll, .ranks = ranks, .step = step, .context = context, .runs = true};
        if (pthread_create(&watcher.thread, NULL, watch, &watcher)) abort();
    } else {
        atomic_store(&watcher.runs, false);
        pthread_join(watcher.thread, NULL);
    }
}

/* ---- other holds ------------------------------------------------------------------------------------------------- */

bool hold_awaits_last(int32_t ranks)
{
    int32_t gpus = 0;
    return !worker_is_host() && cuda_device_count(&gpus) == EXPAR_OK && gpus < ranks;
}

bool hold_device_serves(int32_t rank)
{
    return worker_is_host() || serves_context(worker_device(rank).index);
}

void hold_stream(expar_ll *ll, uint64_t bytes)
{
    if (worker_is_host()) ll_executor_cpu_stream(ll->base.exec, bytes);
}

/* In each block's copy of what the rank's kernels leave for the next one. All calls of this thread's have ended. */
void hold_skip(expar_ll *ll, uint64_t calls)
{
    if (worker_is_host()) {
        ll_executor_cpu_skip(ll->base.exec, calls);
        return;
    }
    const ll_gpu *gpu = ll_gpu_of(ll->base.exec);
    const size_t bytes = (size_t)gpu->copies * sizeof *gpu->state;
    const cu_address there = (cu_address)(uintptr_t)gpu->state;
    worker *h = worker_of(gpu->core.device->index);
    ll_gpu_state *states = malloc(bytes);
    if (!states) abort();
    worker_wait(h);
    worker_fetch(h, states, there, bytes);
    for (int32_t copy = 0; copy < gpu->copies; copy++)
        for (int kind = 0; kind < LL_KINDS; kind++)
            states[copy].lines[kind].epoch += calls;
    worker_send(h, there, states, bytes);
    worker_wait(h);
    free(states);
}

bool hold_finds_late(void)
{
    return !worker_is_host();
}

bool hold_goes_on(void)
{
    return !worker_is_host();
}

uint64_t hold_pulse(const expar_ll *ll, int32_t source)
{
    if (worker_is_host()) return 0;
    return __atomic_load_n(&ll_gpu_of(ll->base.exec)->core.watch.awaits[source], __ATOMIC_RELAXED);
}

uint32_t hold_clean_taken(const expar_ll *ll, int32_t other)
{
    return worker_is_host() ? ll_cpu_of(ll->base.exec)->masks->cleaner->view[other]
                            : ll_gpu_of(ll->base.exec)->cleaner->view[other];
}
