/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric memory of one rank: creation, end and addresses. */
#include "shmem/sym.h"
#include "mem/registry.h"
#include "shmem/doorbell.h"
#include "shmem/kinds.h"
#include "shmem/parts.h"

#include <assert.h>
#include <stdlib.h>

static_assert(sizeof(sym_control) <= SYM_CONTROL_BYTES, "the control page holds the control words");

/* Helps to choose the size of a heap: EXPAR_LOG=info shows it. */
static void report_heap(const sym *self)
{
    mem_arena_stats stats;
    mem_arena_get_stats(self->arena, &stats);
    LOG(LOG_INFO,
        "symmetric heap: at most %llu bytes in use, grown to %llu of %llu; at the end %llu in use, %llu free in %llu "
        "holes, the largest of %llu",
        (unsigned long long)stats.high_water_bytes, (unsigned long long)self->grown_bytes,
        (unsigned long long)stats.total_bytes, (unsigned long long)stats.used_bytes,
        (unsigned long long)stats.hole_bytes, (unsigned long long)stats.holes,
        (unsigned long long)stats.largest_hole_bytes);
}

void sym_forget_boot(sym *self)
{
    pthread_mutex_lock(&self->monitor_lock);
    self->unmonitored = true;
    pthread_mutex_unlock(&self->monitor_lock);
}

/* Frees what exists, so it serves every stage of the creation. */
void sym_destroy(sym *self)
{
    if (!self) return;
    if (self->arena) report_heap(self);
    kinds_end(self, false);
    sym_reach_close(self);
    kinds_free(self);
    sym_strand_end(self);
    mem_store_close(self->store);
    if (self->owns_heap) {
        mem_backing_drop(self->backing);
        mem_region_close(&self->heap);
    }
    mem_arena_destroy(self->arena);
    mem_registry_destroy(self->registry);
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->monitor_lock);
    free(self->ways);
    free(self->peers);
    free(self->direct);
    free(self->gone);
    free(self->gone_for);
    free(self->lost);
    free(self->told_at);
    free(self);
}

static sym *sym_new(boot *ctl, const int32_t *nodes, const sym_patience *patience)
{
    sym *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    size_t size = (size_t)ctl->size;
    pthread_mutex_init(&self->lock, NULL);
    pthread_mutex_init(&self->monitor_lock, NULL);
    self->boot = ctl;
    self->by_threads = ctl->threads;
    self->forms = true;
    self->rank = ctl->rank;
    self->size = ctl->size;
    self->nodes = nodes;
    self->timeout_ms = patience->timeout_ms;
    self->spin_ns = patience->spin_ns;
    self->host_ranks = boot_host_ranks(ctl, ctl->rank);
    self->machine_ranks = boot_machine_ranks(ctl, ctl->rank);
    self->budget.sharers = self->host_ranks;
    self->heap.fd = -1;
    self->ways = calloc(TRANSPORT_MEMORIES * size, sizeof *self->ways);
    self->peers = calloc(size, sizeof *self->peers);
    self->direct = calloc(size, sizeof *self->direct);
    self->gone = calloc(size, sizeof *self->gone);
    self->gone_for = calloc(size, sizeof *self->gone_for);
    self->lost = calloc(size, sizeof *self->lost);
    self->told_at = calloc(size, sizeof *self->told_at);
    self->registry = mem_registry_create();
    if (self->ways && self->peers && self->direct && self->gone && self->gone_for && self->lost && self->told_at &&
        self->registry)
        return self;
    sym_destroy(self);
    return NULL;
}

/* The control page is the arena's first block, so that an offset of the arena is an offset of the heap. */
static expar_status make_arena(sym *self)
{
    uint64_t control;
    expar_status status = mem_arena_create(self->heap.bytes, &self->arena);
    if (status != EXPAR_OK) return status;
    if (!mem_arena_take(self->arena, SYM_CONTROL_BYTES, SYM_CONTROL_BYTES, &control))
        return error_set(EXPAR_ERR_ARGUMENT, "a symmetric heap of %zu bytes has no space for its control page",
                         self->heap.bytes);
    return EXPAR_OK;
}

/* Opens all of a static heap, or a dynamic one up to the end of its first chunk. */
static expar_status open_heap(sym *self)
{
    size_t bytes = self->fixed_heap ? self->heap.bytes : SYM_CONTROL_BYTES;
    expar_status status = mem_region_open(&self->heap, sym_border(self, bytes));
    if (status == EXPAR_OK) status = mem_region_commit(&self->heap, &self->budget, 0, bytes);
    if (status == EXPAR_OK || !self->fixed_heap) return status;
    return error_prefix(status, "a static symmetric heap of %zu bytes on each rank", bytes);
}

/* If huge pages were asked for and none are free, the heap is slower, but it is made. */
static expar_status make_region(const sym_heap_plan *plan, size_t following_bytes, mem_region *out)
{
    if (plan->huge) {
        const size_t first_bytes = plan->fixed ? plan->bytes : SYM_CONTROL_BYTES;
        if (mem_region_create_huge(plan->bytes, first_bytes, following_bytes, out) == EXPAR_OK) {
            LOG(LOG_INFO, "the symmetric heap has huge pages of %zu bytes", out->page_bytes);
            return EXPAR_OK;
        }
        LOG(LOG_WARN, "the symmetric heap has no huge pages of hugetlbfs: %s", expar_last_error());
    }
    return mem_region_create_before(plan->bytes, following_bytes, true, out);
}

/* Makes the heap and the part that follows it, for a rank that is a process. */
static expar_status make_own_regions(sym *self, const sym_heap_plan *plan)
{
    mem_region after;
    expar_status status = make_region(plan, sym_store_reserve(plan->bytes, self->host_ranks, false), &self->heap);
    if (status != EXPAR_OK) return status;
    self->owns_heap = true;
    status = mem_region_create_following(&self->heap, true, &after);
    return status == EXPAR_OK ? mem_backing_create(&after, self->host_ranks, &self->backing) : status;
}

static expar_status sym_heap_make(sym *self, const sym_heap_plan *plan)
{
    expar_status status = EXPAR_OK;
    if (plan->region) {
        self->heap = *plan->region;
        self->backing = plan->backing;
    } else {
        status = make_own_regions(self, plan);
    }
    if (status != EXPAR_OK) return status;
    self->fixed_heap = self->keeps_pages = plan->fixed;
    status = make_arena(self);
    if (status == EXPAR_OK) status = mem_backing_store(self->backing, self->heap.bytes, &self->store);
    if (status == EXPAR_OK) status = open_heap(self);
    if (status == EXPAR_OK) doorbell_open(&((sym_control *)self->heap.base)->doorbell);
    return status;
}

/* A rank that could not make its heap says so before the others map it. */
static expar_status agree_on_heaps(const sym *self, expar_status mine)
{
    const boot_field kind = {.name = "the heap's kind (EXPAR_HEAP_KIND or heap_kind)",
                             .text = self->fixed_heap ? "static" : "dynamic"};
    const boot_matter matter = {.rejected = "could not make its symmetric heap", .fields = &kind, .num_fields = 1};
    return boot_agree(self->boot, &matter, mine, NULL);
}

expar_status sym_create(boot *ctl, const int32_t *nodes, const sym_patience *patience, const sym_heap_plan *plan,
                        sym **out)
{
    sym *self = sym_new(ctl, nodes, patience);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory for the records of %d ranks", ctl->size);
    expar_status status = sym_heap_make(self, plan);
    status = agree_on_heaps(self, status);
    if (status == EXPAR_OK) status = sym_cores_count(self);
    if (status == EXPAR_OK) status = sym_reach_open(self, plan->peers);
    if (status != EXPAR_OK) {
        sym_destroy(self);
        return status;
    }
    atomic_store_explicit(&self->forms, false, memory_order_relaxed);
    sym_card_write(self);
    *out = self;
    return EXPAR_OK;
}

expar_status sym_agree(sym *self, const boot_matter *matter, expar_status own)
{
    bool out_of_step;
    expar_status status = boot_agree(self->boot, matter, own, &out_of_step);
    return out_of_step ? sym_out_of_step(self, matter->what, status) : status;
}

static bool within(uintptr_t at, size_t bytes, uintptr_t base, size_t limit)
{
    return at >= base && at - base < limit && bytes <= limit - (at - base);
}

bool sym_store_offset(const sym *self, const void *address, size_t bytes, uint64_t *offset)
{
    return mem_store_offset(self->store, address, bytes, offset);
}

void sym_alias(sym *self, uintptr_t base, size_t bytes, uint64_t offset)
{
    self->alias.base = base;
    self->alias.bytes = bytes;
    self->alias.offset = offset;
}

bool sym_offset(const sym *self, const void *address, size_t bytes, uint64_t *offset)
{
    const uintptr_t at = (uintptr_t)address;
    uint64_t in_heap;
    if (sym_heap_offset(self, address, bytes, &in_heap))
        *offset = in_heap;
    else if (within(at, bytes, self->alias.base, self->alias.bytes))
        *offset = self->alias.offset + (at - self->alias.base);
    else
        return false;
    return true;
}
