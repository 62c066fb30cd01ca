/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: own parts of the heap, and the keys by which peers' parts are reached. */
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* Networks that keep registered memory where it is count it against the limit of what a process may lock. */
static expar_status tell_unregistered(const fabric *f, const fabric_extent *e, int code)
{
    char host[64] = "";
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    expar_status status = fabric_error(f, EXPAR_ERR_MEMORY, code, "registering part of the symmetric heap");
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= e->bytes) return status;
    gethostname(host, sizeof host - 1);
    return error_prefix(status, "%s lets a process lock %llu bytes, fewer than %llu: raise that (ulimit -l)", host,
                        (unsigned long long)limit.rlim_cur, (unsigned long long)e->bytes);
}

static expar_status register_own(const fabric *f, fabric_extent *e)
{
    uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;
    int code = fabric_register(f, e->base, e->bytes, access, &e->mr);
    if (code == 0 && f->info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        code = fi_mr_bind(e->mr, &f->channels[0].ep->fid, 0);
        if (code == 0) code = fi_mr_enable(e->mr);
    }
    return code == 0 ? EXPAR_OK : tell_unregistered(f, e, code);
}

/* Hands the keys round. Memory that one rank cannot register is none that any has; to miss the others is another
   failure, this rank's alone. */
static expar_status extent_exchange(const fabric *f, fabric_extent *e, expar_status mine)
{
    bool out_of_step;
    char lacks[64];
    fabric_key own = {.key = mine == EXPAR_OK ? fi_mr_key(e->mr) : 0};
    if (f->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) own.address = (uint64_t)(uintptr_t)e->base;
    const boot_matter matter = {.refused = "cannot register its part of the heap",
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
        e->peers ? register_own(f, e) : error_set(EXPAR_ERR_MEMORY, "no memory for the keys of %d ranks", f->size);
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

const fabric_extent *fabric_extent_find(const fabric *f, uint64_t offset)
{
    if (offset >= f->site->heap->bytes) return f->page;
    size_t low = 0, high = atomic_load_explicit(&f->num_extents, memory_order_acquire);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const fabric_extent *e = f->extents[middle];
        if (offset < e->offset)
            high = middle;
        else if (offset - e->offset >= e->bytes)
            low = middle + 1;
        else
            return e;
    }
    return NULL;
}

bool fabric_descriptor(const fabric *f, const void *local, size_t bytes, void **descriptor)
{
    *descriptor = NULL;
    if (!(f->info->domain_attr->mr_mode & FI_MR_LOCAL)) return true;
    const uint8_t *at = local, *base = f->site->heap->base;
    if (at < base || at >= base + f->site->heap->bytes) return false;
    const fabric_extent *e = fabric_extent_find(f, (uint64_t)(at - base));
    if (!e || (uint64_t)(at - e->base) + bytes > e->bytes) return false;
    *descriptor = fi_mr_desc(e->mr);
    return true;
}
