/* SPDX-License-Identifier: Apache-2.0 */
/* Backings: host memory of a store, in a region with several references. */
#include "mem/mem.h"

#include <stdlib.h>

expar_status mem_backing_create(mem_region *region, int32_t sharers, mem_backing **out)
{
    mem_backing *backing = calloc(1, sizeof *backing);
    if (!backing) {
        mem_region_close(region);
        return error_set(EXPAR_ERR_MEMORY, "no memory for the record of a region");
    }
    backing->region = *region;
    backing->budget.sharers = sharers;
    atomic_init(&backing->holders, 1);
    *region = (mem_region){.fd = -1};
    *out = backing;
    return EXPAR_OK;
}

void mem_backing_hold(mem_backing *backing)
{
    /* Relaxed: the caller has the pointer from a holder. */
    atomic_fetch_add_explicit(&backing->holders, 1, memory_order_relaxed);
}

void mem_backing_drop(mem_backing *backing)
{
    /* The last one sees everything that the others did with the memory before it unmaps it. */
    if (!backing || atomic_fetch_sub_explicit(&backing->holders, 1, memory_order_acq_rel) > 1) return;
    mem_region_close(&backing->region);
    free(backing);
}

static expar_status backing_fill(void *context, uint64_t offset, uint64_t bytes)
{
    mem_backing *self = context;
    return mem_region_commit(&self->region, &self->budget, (size_t)(offset - self->offset), (size_t)bytes);
}

static void backing_drain(void *context, uint64_t offset, uint64_t bytes)
{
    mem_backing *self = context;
    mem_region_discard(&self->region, (size_t)(offset - self->offset), (size_t)bytes);
}

static void backing_end(void *context)
{
    mem_backing_drop(context);
}

expar_status mem_backing_store(mem_backing *backing, uint64_t offset, mem_store **out)
{
    const mem_source source = {.fill = backing_fill, .drain = backing_drain, .end = backing_end, .context = backing};
    backing->offset = offset;
    expar_status status =
        mem_store_create((uint8_t *)backing->region.base - offset, offset, backing->region.bytes, &source, out);
    if (status == EXPAR_OK) mem_backing_hold(backing);
    return status;
}
