/* SPDX-License-Identifier: Apache-2.0 */
/* Work on many rows, divided among the buffer's worker threads; the calling thread is the first of them. */
#include "base/knobs.h"
#include "exec/cpu/low_latency/cpu.h"

#include <stdlib.h>

/* ---- workers ----------------------------------------------------------------------------------------------------- */

static void scratch_free(ll_scratch *scratch)
{
    free(scratch->payload);
    free(scratch->decoded);
    free(scratch->rows);
    free(scratch->row_weights);
}

static bool scratch_make(const ll_cpu *self, ll_scratch *scratch)
{
    const size_t topk = (size_t)self->shape.topk, row = (size_t)self->shape.hidden * sizeof(float);
    scratch->payload = aligned_alloc(EP_LINE_BYTES, (size_t)self->space.message_bytes);
    scratch->decoded = aligned_alloc(EP_LINE_BYTES, ep_round((topk + 1) * row, EP_LINE_BYTES));
    scratch->rows = calloc(topk, sizeof *scratch->rows);
    scratch->row_weights = calloc(topk, sizeof *scratch->row_weights);
    return scratch->payload && scratch->decoded && scratch->rows && scratch->row_weights;
}

expar_status ll_workers_make(ll_cpu *self, const ll_plan *plan)
{
    const expar_group *group = plan->group;
    const int32_t shared = group->host_ranks >= group->host_cores ? 1 : group->host_cores / group->host_ranks;
    int64_t given = plan->num_threads;
    expar_status status = given ? EXPAR_OK : env_int("EXPAR_THREADS", 1, CPU_MOST_WORKERS, &given);
    if (status != EXPAR_OK) return status;
    self->num_workers = given ? (int32_t)given : shared;
    self->chose_workers = !given;
    self->scratch = calloc((size_t)self->num_workers, sizeof *self->scratch);
    bool made = self->scratch != NULL;
    for (int32_t w = 0; w < self->num_workers && made; w++)
        made = scratch_make(self, &self->scratch[w]);
    if (!made) return error_set(EXPAR_ERR_MEMORY, "no memory for the %d threads of a buffer", self->num_workers);
    return cpu_workers_create(1, &self->workers);
}

void ll_workers_free(ll_cpu *self)
{
    cpu_workers_destroy(self->workers);
    for (int32_t w = 0; w < self->num_workers && self->scratch; w++)
        scratch_free(&self->scratch[w]);
    free(self->scratch);
    self->workers = NULL;
    self->scratch = NULL;
}

/* Threads are started when the work is large enough. Between two calls of a decoder a thread has slept for long. Its
   core sleeps, too, and the thread does not always wake there. So only rows of half a millisecond are worth that
   (measured: docs/internals/measurements/low-latency-cpu.md).

   Waits for the network mask the ranks that they have lost, which only the calling thread may do. */
static int32_t workers_worth(const ll_cpu *self, int32_t items, uint64_t bytes)
{
    if (self->masks && self->far) return 1;
    const uint64_t worth = 1 + bytes / (uint64_t)knob(KNOB_CPU_LL_WORKER_BYTES);
    int32_t wanted = self->num_workers < items ? self->num_workers : items;
    if (self->chose_workers && worth < (uint64_t)wanted) wanted = (int32_t)worth;
    return wanted > 1 ? cpu_workers_grow(self->workers, wanted) : 1;
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

typedef struct ll_sharing {
    const ll_cpu *self;
    ll_items_fn share;
    const void *context;
    int32_t items, active;
} ll_sharing;

/* Stores past the cache are ordered by the thread that has made them. */
static expar_status take_share(void *context, int32_t worker)
{
    const ll_sharing *sharing = context;
    const int64_t items = sharing->items;
    const int32_t begin = (int32_t)(items * worker / sharing->active);
    const int32_t end = (int32_t)(items * (worker + 1) / sharing->active);
    sharing->share(sharing->context, &sharing->self->scratch[worker], begin, end);
    if (worker > 0) cpu_copy_fence();
    return EXPAR_OK;
}

void ll_share_out(const ll_cpu *self, int32_t items, uint64_t bytes, ll_items_fn share, const void *context)
{
    ll_sharing sharing = {
        .self = self, .share = share, .context = context, .items = items, .active = workers_worth(self, items, bytes)};
    cpu_workers_run(self->workers, sharing.active, take_share, &sharing);
}
