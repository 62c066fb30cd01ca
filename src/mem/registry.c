/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the caller's that is registered. */
#include "mem/registry.h"
#include "mem/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct mem_registered {
    struct mem_registered *next;
    uintptr_t begin, end;
    bool on_gpu;
    /* how often it was registered */
    uint64_t count;
    /* begin == end: nothing is pinned */
    mem_pinned_range pinned;
    /* the library has pinned it, not the caller */
    bool own_pin;
    /* copies that use it */
    uint32_t users;
};

struct mem_registry {
    /* Held by a thread that adds or removes. It calls the driver, which may wait for kernels, without `lock`. */
    pthread_mutex_t change;
    /* guarded by change */
    const cuda_device *device;
    pthread_mutex_t lock;
    /* Threads that change it hold both locks; threads that read it hold one. */
    mem_registered *first;
    /* Number of entries. Written under lock; read without it by copies, which pass by if there are none. Relaxed: a
       caller knows its own registrations. */
    atomic_int entries;
};

mem_registry *mem_registry_create(void)
{
    mem_registry *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    pthread_mutex_init(&self->change, NULL);
    pthread_mutex_init(&self->lock, NULL);
    return self;
}

/* ---- pinning ----------------------------------------------------------------------------------------------------- */

static mem_pinned_range entry_pages(const mem_registered *entry)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)align_up(entry->begin, page), end = entry->end & ~(page - 1);
    return begin < end ? (mem_pinned_range){begin, end} : (mem_pinned_range){entry->begin, entry->begin};
}

/* The caller may have pinned it, also by another rank of this process. */
static expar_status entry_pin(const cuda_device *device, mem_registered *entry)
{
    mem_pinned_range range = entry_pages(entry);
    entry->own_pin = false;
    entry->pinned = (mem_pinned_range){entry->begin, entry->begin};
    if (entry->on_gpu || !device) return EXPAR_OK;
    if (cuda_knows((const void *)entry->begin) && cuda_knows((const void *)(entry->end - 1))) {
        entry->pinned = (mem_pinned_range){entry->begin, entry->end};
        return EXPAR_OK;
    }
    if (range.begin == range.end) return EXPAR_OK;
    expar_status status = mem_host_register(device, (void *)range.begin, range.end - range.begin);
    if (status != EXPAR_OK) return status;
    entry->pinned = range;
    entry->own_pin = true;
    return EXPAR_OK;
}

static void unpin(const cuda_device *device, const mem_registered *entry)
{
    if (entry->own_pin) mem_host_unregister(device, (void *)entry->pinned.begin);
}

void mem_registry_pin(mem_registry *self, const cuda_device *device)
{
    pthread_mutex_lock(&self->change);
    self->device = device;
    for (mem_registered *entry = self->first; entry; entry = entry->next) {
        mem_registered pinned = *entry;
        if (entry_pin(device, &pinned) != EXPAR_OK)
            LOG(LOG_WARN, "registered memory is not pinned, and copies of it pass through pieces: %s",
                expar_last_error());
        pthread_mutex_lock(&self->lock);
        entry->pinned = pinned.pinned;
        entry->own_pin = pinned.own_pin;
        pthread_mutex_unlock(&self->lock);
    }
    pthread_mutex_unlock(&self->change);
}

void mem_registry_unpin(mem_registry *self)
{
    pthread_mutex_lock(&self->change);
    for (mem_registered *entry = self->first; entry && self->device; entry = entry->next) {
        const mem_registered pinned = *entry;
        pthread_mutex_lock(&self->lock);
        entry->pinned.end = entry->pinned.begin;
        entry->own_pin = false;
        pthread_mutex_unlock(&self->lock);
        unpin(self->device, &pinned);
    }
    self->device = NULL;
    pthread_mutex_unlock(&self->change);
}

void mem_registry_destroy(mem_registry *self)
{
    if (!self) return;
    mem_registry_unpin(self);
    while (self->first) {
        mem_registered *entry = self->first;
        self->first = entry->next;
        free(entry);
    }
    pthread_mutex_destroy(&self->lock);
    pthread_mutex_destroy(&self->change);
    free(self);
}

/* ---- adding and removing ----------------------------------------------------------------------------------------- */

/* The kernel looks, so that memory that was freed gives no fault. Some systems forbid the second question. */
static expar_status check_readable(const void *address, uint64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)address, first = begin & ~(page - 1);
    uint8_t seen[2];
    const struct iovec here[] = {{&seen[0], 1}, {&seen[1], 1}};
    const struct iovec there[] = {{(void *)begin, 1}, {(void *)(begin + bytes - 1), 1}};
    const bool mapped = msync((void *)first, begin + bytes - first, MS_ASYNC) == 0 || errno != ENOMEM;
    if (mapped && (process_vm_readv(getpid(), here, 2, there, 2, 0) == 2 || errno != EFAULT)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "%p with %llu bytes is not memory that this process can read", address,
                     (unsigned long long)bytes);
}

/* Gives the entry of just that memory, or NULL. EXPAR_ERR_ADDRESS: another one overlaps it. */
static expar_status find_same(const mem_registry *self, uintptr_t begin, uintptr_t end, mem_registered **out)
{
    *out = NULL;
    for (mem_registered *entry = self->first; entry; entry = entry->next) {
        if (begin >= entry->end || entry->begin >= end) continue;
        if (begin != entry->begin || end != entry->end)
            return error_set(EXPAR_ERR_ADDRESS, "%#llx to %#llx overlaps %#llx to %#llx, which is registered",
                             (unsigned long long)begin, (unsigned long long)end, (unsigned long long)entry->begin,
                             (unsigned long long)entry->end);
        *out = entry;
    }
    return EXPAR_OK;
}

static expar_status entry_add(mem_registry *self, const mem_registered *wanted)
{
    mem_registered *entry = malloc(sizeof *entry);
    if (!entry) return error_set(EXPAR_ERR_MEMORY, "no memory");
    *entry = *wanted;
    expar_status status =
        entry->on_gpu ? EXPAR_OK : check_readable((const void *)entry->begin, entry->end - entry->begin);
    if (status == EXPAR_OK) status = entry_pin(self->device, entry);
    if (status != EXPAR_OK) {
        free(entry);
        return status;
    }
    pthread_mutex_lock(&self->lock);
    entry->next = self->first;
    self->first = entry;
    atomic_fetch_add_explicit(&self->entries, 1, memory_order_relaxed);
    pthread_mutex_unlock(&self->lock);
    return EXPAR_OK;
}

expar_status mem_registry_add(mem_registry *self, void *address, uint64_t bytes, bool on_gpu)
{
    mem_registered *same;
    const mem_registered wanted = {
        .begin = (uintptr_t)address, .end = (uintptr_t)address + bytes, .on_gpu = on_gpu, .count = 1};
    pthread_mutex_lock(&self->change);
    expar_status status = find_same(self, wanted.begin, wanted.end, &same);
    if (status == EXPAR_OK && same)
        same->count++;
    else if (status == EXPAR_OK)
        status = entry_add(self, &wanted);
    pthread_mutex_unlock(&self->change);
    return status;
}

/* Takes the entry out of the list, unless a copy uses it. */
static expar_status entry_take(mem_registry *self, mem_registered **place)
{
    mem_registered *entry = *place;
    pthread_mutex_lock(&self->lock);
    const uint32_t users = entry->users;
    if (users == 0) {
        *place = entry->next;
        atomic_fetch_sub_explicit(&self->entries, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&self->lock);
    if (users == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_BUSY, "%#llx is in use by %u calls of other threads", (unsigned long long)entry->begin,
                     users);
}

static expar_status entry_remove(mem_registry *self, mem_registered **place)
{
    mem_registered *entry = *place;
    if (entry->count > 1) {
        entry->count--;
        return EXPAR_OK;
    }
    expar_status status = entry_take(self, place);
    if (status != EXPAR_OK) return status;
    unpin(self->device, entry);
    free(entry);
    return EXPAR_OK;
}

expar_status mem_registry_remove(mem_registry *self, const void *address)
{
    pthread_mutex_lock(&self->change);
    mem_registered **place = &self->first;
    while (*place && (*place)->begin != (uintptr_t)address)
        place = &(*place)->next;
    expar_status status =
        *place ? entry_remove(self, place) : error_set(EXPAR_ERR_ADDRESS, "no registered memory begins at %p", address);
    pthread_mutex_unlock(&self->change);
    return status;
}

/* ---- use --------------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static mem_registered *find_holder(const mem_registry *self, uintptr_t begin, uint64_t bytes)
{
    mem_registered *entry = self->first;
    while (entry && (begin < entry->begin || begin >= entry->end || bytes > entry->end - begin))
        entry = entry->next;
    return entry;
}

bool mem_registry_holds(mem_registry *self, const void *at, uint64_t bytes, bool *on_gpu)
{
    if (atomic_load_explicit(&self->entries, memory_order_relaxed) == 0) return false;
    pthread_mutex_lock(&self->lock);
    const mem_registered *entry = find_holder(self, (uintptr_t)at, bytes);
    if (entry) *on_gpu = entry->on_gpu;
    pthread_mutex_unlock(&self->lock);
    return entry != NULL;
}

mem_registered *mem_registry_enter(mem_registry *self, const void *at, uint64_t bytes, mem_pinned_range *pinned)
{
    if (!self || atomic_load_explicit(&self->entries, memory_order_relaxed) == 0) return NULL;
    pthread_mutex_lock(&self->lock);
    mem_registered *entry = find_holder(self, (uintptr_t)at, bytes);
    if (entry && entry->pinned.begin == entry->pinned.end) entry = NULL;
    if (entry) {
        entry->users++;
        *pinned = entry->pinned;
    }
    pthread_mutex_unlock(&self->lock);
    return entry;
}

void mem_registry_leave(mem_registry *self, mem_registered *entry)
{
    pthread_mutex_lock(&self->lock);
    entry->users--;
    pthread_mutex_unlock(&self->lock);
}

bool mem_registry_permits(mem_registry *self, const void *at, uint64_t bytes)
{
    const uintptr_t begin = (uintptr_t)at, end = begin + bytes;
    bool permits = true;
    if (atomic_load_explicit(&self->entries, memory_order_relaxed) == 0) return true;
    pthread_mutex_lock(&self->lock);
    for (const mem_registered *entry = self->first; entry && permits; entry = entry->next) {
        const mem_pinned_range *pinned = &entry->pinned;
        const bool touches = entry->own_pin && begin < pinned->end && pinned->begin < end;
        permits = !touches || (begin >= pinned->begin && end <= pinned->end);
    }
    pthread_mutex_unlock(&self->lock);
    return permits;
}

mem_registry_stats mem_registry_get_stats(mem_registry *self)
{
    mem_registry_stats stats = {0};
    pthread_mutex_lock(&self->lock);
    for (const mem_registered *entry = self->first; entry; entry = entry->next) {
        *(entry->on_gpu ? &stats.gpu_ranges : &stats.host_ranges) += 1;
        *(entry->on_gpu ? &stats.gpu_bytes : &stats.host_bytes) += entry->end - entry->begin;
    }
    pthread_mutex_unlock(&self->lock);
    return stats;
}
