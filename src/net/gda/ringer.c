/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that rings where posting threads cannot reach the doorbell: they raise prod_idx, and the thread writes
 * record and register. It takes no lock, because a posting thread may hold the transport's while it waits. */
#include "net/gda/parts.h"

#include <sched.h>
#include <time.h>

#define IDLE_TURNS 200   /* without a ring, before the thread sleeps between turns */
#define IDLE_NS    20000 /* how long it sleeps */

static void *gda_run_ringer(void *context)
{
    gda *g = context;
    uint32_t idle = 0;
    while (!atomic_load_explicit(&g->ringer_ends, memory_order_relaxed)) {
        idle++;
        for (int32_t i = 0; i < g->num_lanes; i++)
            if (g->options.ringer == GDA_RINGER_CPU && gda_ring_for(&g->lanes[i].queue, &g->lanes[i].rung)) idle = 0;
        gda_kernels *kernels = atomic_load_explicit(&g->kernels, memory_order_acquire);
        if (kernels && gda_kernels_ring(kernels)) idle = 0;
        if (idle > IDLE_TURNS)
            nanosleep(&(struct timespec){.tv_nsec = IDLE_NS}, NULL);
        else
            sched_yield();
    }
    return NULL;
}

expar_status gda_ringer_start(gda *g)
{
    if (g->has_ringer) return EXPAR_OK;
    if (pthread_create(&g->ringer, NULL, gda_run_ringer, g) != 0) return error_errno("gda: no thread to ring");
    g->has_ringer = true;
    return EXPAR_OK;
}

void gda_ringer_stop(gda *g)
{
    if (!g->has_ringer) return;
    atomic_store_explicit(&g->ringer_ends, true, memory_order_relaxed);
    pthread_join(g->ringer, NULL);
}
