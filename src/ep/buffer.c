/* SPDX-License-Identifier: Apache-2.0 */
/* The EP buffer: its place in the symmetric heap, its executor and its output pool. */
#include "ep/ep.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* All ranks learn whether all can; own is what this rank found wrong, `refused` says with what. */
static expar_status agree(const expar_ep *ep, expar_group *group, expar_status own, const char *refused)
{
    const expar_ep none = {0};
    if (!ep) ep = &none;
    const ep_shape *shape = &ep->shape;
    const boot_field fields[] = {
        {.name = "config.device.type", .value = (uint64_t)ep->device.type},
        {.name = "config.max_tokens", .value = (uint64_t)shape->tokens},
        {.name = "config.max_row_bytes", .value = (uint64_t)shape->row_bytes},
        {.name = "config.max_topk", .value = (uint64_t)shape->topk},
        {.name = "config.max_experts", .value = (uint64_t)ep->max_experts},
        {.name = "config.num_channels", .value = (uint64_t)shape->channels},
        {.name = "config.ring_slots", .value = (uint64_t)shape->ring_slots},
        {.name = "config.pool_bytes", .value = shape->pool_bytes},
        {.name = "config.max_scales", .value = (uint64_t)shape->scales},
    };
    const boot_matter matter = {
        .what = "the buffer", .refused = refused, .fields = fields, .num_fields = ARRAY_LENGTH(fields)};
    return sym_agree(group->sym, &matter, own);
}

/* Worker threads of this rank: as asked, by the environment, or the cores of the host shared out among its ranks. */
static expar_status choose_threads(const expar_group *group, int32_t asked, int32_t *threads)
{
    int64_t chosen = asked;
    if (!chosen) chosen = group->host_ranks >= group->host_cores ? 1 : group->host_cores / group->host_ranks;
    expar_status status = asked ? EXPAR_OK : env_int("EXPAR_THREADS", 1, 1024, &chosen);
    *threads = (int32_t)chosen;
    return status;
}

/* This rank's own part of a buffer that has its place in the heap. */
static expar_status make_part(expar_ep *ep, int32_t threads)
{
    sym *symmetric = ep->group->sym;
    expar_status status = executor_cpu_create(symmetric, &ep->shape, ep->buffer, threads, &ep->exec);
    if (status == EXPAR_OK)
        status = mem_pool_create(symmetric->heap.base, ep->buffer + ep->space.pool, ep->shape.pool_bytes, &ep->pool);
    if (status == EXPAR_OK) mem_pool_fill(ep->pool, &symmetric->heap, ep->group->host_ranks);
    /* Memory of the heap may have served another buffer: flags of old epochs must go before anybody can post. */
    if (status == EXPAR_OK) memset(sym_at(symmetric, symmetric->rank, ep->buffer), 0, ep->space.slots);
    return status;
}

/* What is left of it once ep_gpu_empty_buffer has seen to a GPU's. */
static void drop_part(expar_ep *ep)
{
    if (ep->exec) ep->exec->ops->destroy(ep->exec);
    mem_pool_close(ep->pool);
    mem_pool_close(ep->private_pool);
    mem_region_close(&ep->private_region);
}

/* Takes the buffer's place and makes all parts, or none: a rank that cannot make its own tells the others, and all give
   the place back. Returns when all ranks have cleared their records. */
static expar_status fill_buffer(expar_ep *ep, int32_t threads)
{
    expar_group *group = ep->group;
    /* The pool, which is the last part, gets its memory as it is used. */
    expar_status status =
        sym_take_partly(group->sym, "the buffer", ep->space.total_bytes, ep->space.pool, 4096, &ep->buffer);
    if (status != EXPAR_OK) return status;
    expar_status own = make_part(ep, threads);
    status = agree(ep, group, own, "could not make its part");
    if (status == EXPAR_OK) return EXPAR_OK;
    error_kept kept;
    error_keep(&kept, status);
    drop_part(ep);
    sym_give(group->sym, "the buffer", ep->buffer);
    return error_restore(&kept);
}

static expar_ep *new_buffer(expar_group *group, const ep_shape *shape, expar_device device)
{
    expar_ep *ep = calloc(1, sizeof *ep);
    if (!ep) return NULL;
    ep->group = group;
    ep->private_region.fd = -1;
    ep->device = (expar_device){.type = device.type ? device.type : EXPAR_CPU, .index = device.index};
    ep->shape = *shape;
    ep->space = ep_space_of(shape);
    ep->max_experts = shape->local_experts * shape->ranks;
    return ep;
}

expar_status expar_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **out)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "expar_ep_create: group is NULL");
    ep_shape shape = {0};
    int32_t threads = 0;
    expar_ep_config full = {0};
    expar_status own = ep_shape_make(config, group->size, &shape);
    if (own == EXPAR_OK && group->num_nodes > 1)
        own = error_set(EXPAR_ERR_UNSUPPORTED, "the group spans %d nodes; expected 1: rows travel inside a node only",
                        group->num_nodes);
    if (own == EXPAR_OK && !out) own = error_set(EXPAR_ERR_NULL, "ep is NULL");
    if (own == EXPAR_OK) own = ep_copy_struct("config", &full, sizeof full, config);
    if (own == EXPAR_OK) own = choose_threads(group, full.num_threads, &threads);
    expar_ep *ep = own == EXPAR_OK ? new_buffer(group, &shape, full.device) : NULL;
    if (own == EXPAR_OK && !ep) own = error_set(EXPAR_ERR_MEMORY, "no memory for a buffer");
    if (own == EXPAR_OK && getrandom(&ep->serial, sizeof ep->serial, 0) != (ssize_t)sizeof ep->serial)
        own = error_errno("getrandom");
    expar_status status = agree(ep, group, own, "refused its config");
    if (status == EXPAR_OK)
        status = ep->device.type == EXPAR_CUDA ? ep_gpu_fill_buffer(ep, full.num_sms) : fill_buffer(ep, threads);
    if (status != EXPAR_OK) {
        free(ep);
        return error_prefix(status, "expar_ep_create");
    }
    atomic_fetch_add_explicit(&group->users, 1, memory_order_relaxed);
    *out = ep;
    return EXPAR_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------------------
 */

static const char destroying[] = "expar_ep_destroy";

/* How this rank's calls went, once all have ended: one that nobody has waited for may tell only now. */
static expar_status end_calls(expar_ep *ep)
{
    ep_issue_stop(ep);
    if (ep->poison.status != EXPAR_OK || !ep->gpu) return ep->poison.status;
    expar_status ended = executor_cuda_await(ep->exec, destroying);
    if (ended == EXPAR_OK)
        ep_gpu_tell_untold(&(ep_call){.ep = ep});
    else
        LOG(LOG_WARN, "%s: an earlier call: %s", destroying, expar_last_error());
    return ended;
}

/* Whether the ranks give the buffer back together. Only the group's failure is known to all of them: a call that failed
   may have failed here alone. Who was missed in it may have fallen silent, though; to ask takes less time than to wait
   for it again. */
static bool all_come(const expar_ep *ep, expar_status ended)
{
    sym *symmetric = ep->group->sym;
    if (sym_check(symmetric, destroying) != EXPAR_OK) return false;
    return ended != EXPAR_ERR_PEER || !sym_blame_silent(symmetric, ended);
}

/* A failed group gives its heap back as a whole, when it is destroyed. */
static void give_back(expar_ep *ep, bool sound, bool quiet)
{
    bool on_gpu = ep->gpu != NULL;
    if (on_gpu) ep_gpu_empty_buffer(ep, sound, quiet);
    drop_part(ep);
    if (!on_gpu && sound && sym_give(ep->group->sym, "the buffer", ep->buffer) != EXPAR_OK)
        LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
}

expar_status expar_ep_destroy(expar_ep *ep)
{
    if (!ep) return EXPAR_OK;
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&ep->busy, &idle, 1))
        return error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", destroying);
    expar_group *group = ep->group;
    expar_status ended = end_calls(ep);
    bool sound = all_come(ep, ended);
    /* Another rank may be in a call that only its time-out ends, and come behind it. No other collective of this rank's
       runs beside a destroy that is one. */
    const int64_t timeout_ms = group->boot->timeout_ms;
    if (sound) group->boot->timeout_ms = 2 * timeout_ms;
    give_back(ep, sound, ended == EXPAR_OK);
    if (sound) group->boot->timeout_ms = timeout_ms;
    atomic_fetch_sub_explicit(&group->users, 1, memory_order_relaxed);
    free(ep);
    return EXPAR_OK;
}
