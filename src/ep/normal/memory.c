/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a buffer beside its pool, and facts about it: the caller's allocator, trim, statistics. */
#include "ep/normal/normal.h"

/* This thread has asked a caller's allocator for memory, in the middle of a call. */
static _Thread_local bool asking;

expar_status ep_allocator_check(const expar_ep_config *config)
{
    if (!config->alloc != !config->free)
        return error_set(EXPAR_ERR_NULL, "config.%s is NULL, but config.%s is given; expected both or none",
                         config->alloc ? "free" : "alloc", config->alloc ? "alloc" : "free");
    return EXPAR_OK;
}

expar_status ep_check_outside(const char *call)
{
    if (!asking) return EXPAR_OK;
    return error_set(EXPAR_ERR_BUSY, "%s: made by config.alloc, which a call on a buffer has asked; expected none",
                     call);
}

static expar_status ask_executor(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    asking = ep->allocator.alloc != NULL;
    expar_status status = ep->base.exec->ops->take(ep->base.exec, asking ? &ep->allocator : NULL, bytes, out);
    asking = false;
    return status;
}

expar_status ep_other_take(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    expar_status status = ask_executor(ep, bytes ? bytes : 1, out);
    if (status == EXPAR_OK) atomic_fetch_add_explicit(&ep->other_blocks, 1, memory_order_relaxed);
    return status;
}

expar_status ep_block_take(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    if (mem_pool_take(ep->base.exec->pool, bytes ? bytes : 1, out) == EXPAR_OK) return EXPAR_OK;
    return ep_other_take(ep, bytes, out);
}

/* ---- the public calls -------------------------------------------------------------------------------------------- */

static expar_status trim(expar_ep *ep, const char *name)
{
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong_explicit(&ep->base.busy, &idle, 1, memory_order_acquire, memory_order_relaxed))
        return error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", name);
    ep->base.exec->normal->trim(ep->base.exec);
    atomic_store_explicit(&ep->base.busy, 0, memory_order_release);
    return EXPAR_OK;
}

expar_status expar_ep_trim(expar_ep *ep)
{
    static const char name[] = "expar_ep_trim";
    expar_status status = ep_check_outside(name);
    if (status == EXPAR_OK) status = ep_enter(ep, name);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    status = trim(ep, name);
    ep_leave(ep);
    return ep_ended(ep, status);
}

static expar_status give_stats(const expar_ep *ep, const char *name, expar_ep_stats *stats)
{
    mem_pool_stats pool;
    mem_pool_get_stats(ep->base.exec->pool, &pool);
    const expar_ep_stats full = {
        .reserved_bytes = pool.store.filled_bytes,
        .reserved_high_bytes = pool.store.filled_high_bytes,
        .used_bytes = pool.used_bytes,
        .used_high_bytes = pool.used_high_bytes,
        .group_used_bytes = pool.store.used_bytes,
        .growths = atomic_load_explicit(&ep->growths, memory_order_relaxed),
        .direct_calls = atomic_load_explicit(&ep->direct_calls, memory_order_relaxed),
        .queue_calls = atomic_load_explicit(&ep->queue_calls, memory_order_relaxed),
        .other_blocks = atomic_load_explicit(&ep->other_blocks, memory_order_relaxed),
        .mapped_calls = atomic_load_explicit(&ep->mapped_calls, memory_order_relaxed),
        .copied_calls = atomic_load_explicit(&ep->copied_calls, memory_order_relaxed),
    };
    return struct_give(name, "stats", "EXPAR_EP_STATS_INIT", &full, sizeof full, stats);
}

expar_status expar_ep_get_stats(expar_ep *ep, expar_ep_stats *stats)
{
    static const char name[] = "expar_ep_get_stats";
    expar_status status = ep_enter(ep, name);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    status = give_stats(ep, name, stats);
    ep_leave(ep);
    return ep_ended(ep, status);
}

/* ---- memory for rows of the caller's ----------------------------------------------------------------------------- */

static expar_status alloc_block(expar_ep *ep, size_t bytes, expar_ep_output **out)
{
    expar_ep_output *output = ep_output_make(&ep->base);
    if (!output) return error_set(EXPAR_ERR_MEMORY, "no memory for an output");
    expar_status status = ep_block_take(ep, bytes, &output->block);
    if (status != EXPAR_OK) {
        expar_ep_output_release(output);
        return status;
    }
    output->parts[EXPAR_EP_PART_X] = expar_tensor_1d_on(ep->base.device, output->block->data, EXPAR_U8, (int64_t)bytes);
    *out = output;
    return EXPAR_OK;
}

static expar_status alloc(expar_ep *ep, const char *name, size_t bytes, expar_ep_output **out)
{
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong_explicit(&ep->base.busy, &idle, 1, memory_order_acquire, memory_order_relaxed))
        return error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", name);
    const ep_call call = {.buffer = &ep->base, .name = name};
    expar_status status = ep_call_check_poison(&call);
    if (status == EXPAR_OK) {
        status = alloc_block(ep, bytes, out);
        if (status != EXPAR_OK) ep_call_prefix(&call, status);
    }
    atomic_store_explicit(&ep->base.busy, 0, memory_order_release);
    return status;
}

expar_status expar_ep_alloc(expar_ep *ep, size_t bytes, expar_ep_output **output)
{
    static const char name[] = "expar_ep_alloc";
    expar_status status = ep_check_outside(name);
    if (status == EXPAR_OK) status = ep_enter(ep, name);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    if (!output)
        status = error_set(EXPAR_ERR_NULL, "%s: output is NULL", name);
    else if (bytes > PTRDIFF_MAX)
        status = error_set(EXPAR_ERR_MEMORY, "%s: bytes is %zu; no machine has so many", name, bytes);
    else
        status = alloc(ep, name, bytes, output);
    ep_leave(ep);
    return ep_ended(ep, status);
}
