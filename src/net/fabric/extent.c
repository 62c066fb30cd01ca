/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: this rank's parts of the heap, and the keys by which it reaches its peers' parts. */
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define EXTENT_BYTES ((size_t)1 << 20) /* the smallest size of an extent, except the last one */

/* Networks that pin registered memory count it against the process's limit of locked memory. */
static expar_status tell_unregistered(const fabric *f, uint64_t bytes, const char *what, int code)
{
    char host[64] = "";
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    expar_status status = fabric_error(f, EXPAR_ERR_MEMORY, code, what);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return status;
    gethostname(host, sizeof host - 1);
    return error_prefix(status, "%s lets a process lock %llu bytes, fewer than %llu: raise that (ulimit -l)", host,
                        (unsigned long long)limit.rlim_cur, (unsigned long long)bytes);
}

expar_status fabric_register_for(const fabric *f, void *base, uint64_t bytes, uint64_t access, struct fid_mr **mr)
{
    int code = fabric_register(f, base, bytes, access, mr);
    if (code == 0 && f->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        code = fi_mr_bind(*mr, &f->channels[0].ep->fid, 0);
        if (code == 0) code = fi_mr_enable(*mr);
        if (code != 0) {
            fi_close(&(*mr)->fid);
            *mr = NULL;
        }
    }
    const bool shared = access & FI_REMOTE_WRITE;
    if (code == 0) return EXPAR_OK;
    return tell_unregistered(f, bytes, shared ? "registering part of the symmetric heap" : "registering memory", code);
}

static expar_status extent_register(const fabric *f, fabric_extent *e)
{
    const uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;
    return fabric_register_for(f, e->base, e->bytes, access, &e->mr);
}

/* Exchanges the keys. If one rank cannot register the memory, no rank has it. A failed exchange is another failure, of
   this rank alone. */
static expar_status extent_exchange(const fabric *f, fabric_extent *e, expar_status mine)
{
    bool out_of_step;
    char lacks[64];
    fabric_key own = {.key = mine == EXPAR_OK ? fi_mr_key(e->mr) : 0};
    if (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) own.address = (uint64_t)(uintptr_t)e->base;
    const boot_matter matter = {.rejected = "cannot register its part of the heap",
                                .common = EXPAR_ERR_MEMORY,
                                .lacks = lacks,
                                .mine = &own,
                                .all = e->peers,
                                .bytes = sizeof own};
    snprintf(lacks, sizeof lacks, "cannot register %llu bytes of its heap", (unsigned long long)e->bytes);
    expar_status status = boot_agree(f->site->boot, &matter, mine, &out_of_step);
    return out_of_step && status == EXPAR_ERR_MEMORY ? EXPAR_ERR_SYSTEM : status;
}

expar_status fabric_extent_open(fabric *f, uint64_t offset, uint64_t bytes, uint8_t *base, fabric_extent **out)
{
    fabric_extent *e = calloc(1, sizeof *e);
    if (!e) return error_set(EXPAR_ERR_SYSTEM, "no memory for the record of an extent");
    *e = (fabric_extent){.offset = offset, .bytes = bytes, .base = base};
    e->peers = calloc((size_t)f->size, sizeof *e->peers);
    expar_status status =
        e->peers ? extent_register(f, e) : error_set(EXPAR_ERR_MEMORY, "no memory for the keys of %d ranks", f->size);
    status = extent_exchange(f, e, status);
    if (status != EXPAR_OK) {
        fabric_extent_close(e);
        return status;
    }
    *out = e;
    return EXPAR_OK;
}

void fabric_extent_close(fabric_extent *extent)
{
    if (!extent) return;
    if (extent->mr) fi_close(&extent->mr->fid);
    free(extent->peers);
    free(extent);
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

/* Memory of GPUs would need a provider that takes its handles. */
bool fabric_serves(const fabric *f, transport_memory memory)
{
    return (memory == TRANSPORT_HOST || memory == TRANSPORT_PINNED) && f->site->segments[memory].region;
}

bool fabric_segment_make(fabric *f, transport_memory memory)
{
    fabric_segment *segment = &f->segments[memory];
    if (!fabric_serves(f, memory) || segment->extents) return true;
    segment->max_extents = f->site->segments[memory].region->bytes / EXTENT_BYTES + 2;
    segment->extents = calloc(segment->max_extents, sizeof(fabric_extent *));
    return segment->extents != NULL;
}

bool fabric_segments_make(fabric *f)
{
    bool made = true;
    for (int k = 0; k < TRANSPORT_MEMORIES; k++)
        made = made && fabric_segment_make(f, (transport_memory)k);
    return made;
}

void fabric_segments_free(fabric *f)
{
    for (size_t k = 0; k < TRANSPORT_MEMORIES; k++) {
        fabric_segment *segment = &f->segments[k];
        for (size_t i = 0; i < segment->num_extents; i++)
            fabric_extent_close(segment->extents[i]);
        free(segment->extents);
        segment->extents = NULL;
        segment->num_extents = 0;
    }
}

expar_status fabric_segment_grow(fabric *f, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    fabric_extent *made;
    fabric_segment *segment = &f->segments[memory];
    if (!segment->extents) return transport_reject(&f->base, memory);
    size_t count = atomic_load_explicit(&segment->num_extents, memory_order_relaxed);
    if (count == segment->max_extents)
        return error_set(EXPAR_ERR_LIMIT, "the heap has grown %zu times, which is as often as it may", count);
    uint8_t *base = f->site->segments[memory].region->base;
    expar_status status = fabric_extent_open(f, offset, bytes, base + offset, &made);
    if (status != EXPAR_OK) return status;
    segment->extents[count] = made;
    atomic_store_explicit(&segment->num_extents, count + 1, memory_order_release);
    return EXPAR_OK;
}

const fabric_extent *fabric_extent_find(const fabric *f, transport_memory memory, uint64_t offset)
{
    const fabric_segment *segment = &f->segments[memory];
    if (memory == TRANSPORT_HOST && offset >= f->site->segments[memory].region->bytes) return f->page;
    size_t low = 0, high = atomic_load_explicit(&segment->num_extents, memory_order_acquire);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const fabric_extent *e = segment->extents[middle];
        if (offset < e->offset)
            high = middle;
        else if (offset - e->offset >= e->bytes)
            low = middle + 1;
        else
            return e;
    }
    return NULL;
}

/* Returns the extent of this rank's own memory in which the address lies, or NULL. */
static const fabric_extent *extent_find_local(const fabric *f, const uint8_t *at)
{
    for (int k = 0; k < TRANSPORT_MEMORIES; k++) {
        /* A segment may be added meanwhile; its first extent comes after that. */
        if (atomic_load_explicit(&f->segments[k].num_extents, memory_order_acquire) == 0) continue;
        const mem_region *region = f->site->segments[k].region;
        const uint8_t *base = region->base;
        if (at >= base && at < base + region->bytes)
            return fabric_extent_find(f, (transport_memory)k, (uint64_t)(at - base));
    }
    return NULL;
}

bool fabric_descriptor(const fabric *f, const void *local, size_t bytes, void **descriptor)
{
    *descriptor = NULL;
    if (!(f->info->domain_attr->mr_mode & FI_MR_LOCAL)) return true;
    const uint8_t *at = local;
    const fabric_extent *e = extent_find_local(f, at);
    if (!e) return fabric_own_descriptor(f->owns, local, bytes, descriptor);
    if ((uint64_t)(at - e->base) + bytes > e->bytes) return false;
    *descriptor = fi_mr_desc(e->mr);
    return true;
}
