/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a buffer beside its pool, and what there is to know of it: the caller's allocator, trim, statistics. */
#include "ep/ep.h"

/* The caller's memory is aligned as blocks of the pool are. */
#define ALIGNMENT 128u

expar_status ep_allocator_check(const expar_ep_config *config)
{
    if (!config->alloc != !config->free)
        return error_set(EXPAR_ERR_NULL, "config.%s is NULL, but config.%s is given; expected both or none",
                         config->alloc ? "free" : "alloc", config->alloc ? "alloc" : "free");
    return EXPAR_OK;
}

static expar_status check_given(const expar_ep *ep, const void *data, uint64_t bytes)
{
    if (!data) return error_set(EXPAR_ERR_MEMORY, "config.alloc gave NULL for %llu bytes", (unsigned long long)bytes);
    if ((uintptr_t)data % ALIGNMENT)
        return error_set(EXPAR_ERR_ALIGNMENT, "config.alloc gave %p for %llu bytes; expected a multiple of %u", data,
                         (unsigned long long)bytes, ALIGNMENT);
    return exec_check_place(ep->device, "what config.alloc gave", data);
}

static expar_status take_from_caller(const expar_ep *ep, uint64_t bytes, mem_block **out)
{
    const ep_allocator *own = &ep->allocator;
    void *data = own->alloc(own->context, (size_t)bytes, ALIGNMENT, NULL);
    expar_status status = check_given(ep, data, bytes);
    if (status == EXPAR_OK) status = mem_block_foreign(data, bytes, own->free, own->context, out);
    if (status != EXPAR_OK && data) own->free(own->context, data, (size_t)bytes, NULL);
    return status;
}

expar_status ep_other_take(expar_ep *ep, uint64_t bytes, mem_block **out)
{
    bytes = bytes ? bytes : 1;
    expar_status status =
        ep->allocator.alloc ? take_from_caller(ep, bytes, out) : ep->exec->ops->take(ep->exec, bytes, out);
    if (status == EXPAR_OK) atomic_fetch_add_explicit(&ep->other_blocks, 1, memory_order_relaxed);
    return status;
}

void ep_count_path(expar_ep *ep, ep_mode mode)
{
    atomic_fetch_add_explicit(mode == EP_MODE_QUEUE ? &ep->queue_calls : &ep->direct_calls, 1, memory_order_relaxed);
}

/* ---- the public calls -------------------------------------------------------------------------------------------- */

expar_status expar_ep_trim(expar_ep *ep)
{
    int32_t idle = 0;
    if (!ep) return ep_ended(ep, error_set(EXPAR_ERR_NULL, "expar_ep_trim: ep is NULL"));
    if (!atomic_compare_exchange_strong_explicit(&ep->busy, &idle, 1, memory_order_acquire, memory_order_relaxed))
        return ep_ended(ep, error_set(EXPAR_ERR_BUSY, "expar_ep_trim: a call on this buffer is still running"));
    ep->exec->ops->trim(ep->exec);
    atomic_store_explicit(&ep->busy, 0, memory_order_release);
    return EXPAR_OK;
}

expar_status expar_ep_get_stats(expar_ep *ep, expar_ep_stats *stats)
{
    static const char name[] = "expar_ep_get_stats";
    mem_pool_stats pool;
    if (!ep) return ep_ended(ep, error_set(EXPAR_ERR_NULL, "%s: ep is NULL", name));
    mem_pool_get_stats(ep->exec->pool, &pool);
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
    };
    return ep_ended(ep, struct_give(name, "EXPAR_EP_STATS_INIT", &full, sizeof full, stats));
}
