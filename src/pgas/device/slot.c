/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: the memory of handles. A kernel may use its handle after the handle's group has ended, so a slot stays in the
 * process. A later handle takes it again with another generation, by which the old handle is told apart. */
#include "pgas/device/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Slots of the process. A handle is meant to be kept, so a program that comes to this many has lost some. */
#define MOST_SLOTS 65536
/* State and report of a CPU's slot begin at lines of their own. */
#define LINE_BYTES 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* [num_slots]; guarded by lock */
static handle_slot **slots;
static uint32_t num_slots;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

uint64_t slot_entries_bytes(int32_t ranks)
{
    return (uint64_t)EXPAR_DEV_KINDS * (uint64_t)ranks * sizeof(expar_dev_entry);
}

/* After the entries comes a word for each rank. */
static uint64_t state_bytes_for(int32_t ranks)
{
    return sizeof(expar_dev_state) + slot_entries_bytes(ranks) + (uint64_t)ranks * sizeof(uint32_t);
}

static uint64_t report_bytes(void)
{
    return align_up(sizeof(expar_dev_report), LINE_BYTES);
}

static expar_status allocate_on_cpu(const char *what, handle_slot *slot)
{
    uint8_t *memory = aligned_alloc(LINE_BYTES, report_bytes() + align_up(slot->state_bytes, LINE_BYTES));
    if (!memory) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a handle", what);
    slot->report = (expar_dev_report *)(void *)memory;
    slot->image = (expar_dev_state *)(void *)(memory + report_bytes());
    slot->report_address = (cu_address)(uintptr_t)slot->report;
    slot->state = slot->image_address = (cu_address)(uintptr_t)slot->image;
    return EXPAR_OK;
}

/* The device is entered. */
static expar_status allocate_in_context(handle_slot *slot)
{
    mem_pinned pinned;
    expar_status status = CUDA_CALL(MemAlloc, &slot->state, slot->state_bytes);
    if (status != EXPAR_OK) return status;
    status = mem_pinned_create(report_bytes() + slot->state_bytes, &pinned);
    if (status != EXPAR_OK) {
        cuda_driver()->MemFree(slot->state);
        return status;
    }
    slot->report = pinned.host;
    slot->report_address = pinned.device;
    slot->image = (expar_dev_state *)(void *)((uint8_t *)pinned.host + report_bytes());
    slot->image_address = pinned.device + report_bytes();
    return EXPAR_OK;
}

static expar_status allocate_on_gpu(const char *what, handle_slot *slot)
{
    expar_status status = cuda_device_open(slot->gpu, &slot->device);
    if (status == EXPAR_OK) {
        status = cuda_enter(slot->device);
        if (status == EXPAR_OK) {
            status = allocate_in_context(slot);
            cuda_leave();
        }
        if (status != EXPAR_OK) cuda_device_close(slot->device);
    }
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s: memory of a handle", what);
}

/* The caller holds the lock. */
static expar_status slot_make(const char *what, int32_t gpu, int32_t ranks, handle_slot **out)
{
    if (num_slots == MOST_SLOTS)
        return error_set(EXPAR_ERR_LIMIT, "%s: the process has %d handles, expected at most %d", what, MOST_SLOTS,
                         MOST_SLOTS);
    handle_slot **more = realloc(slots, (num_slots + 1) * sizeof *more);
    if (more) slots = more;
    handle_slot *slot = more ? calloc(1, sizeof *slot) : NULL;
    if (!slot) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a handle", what);
    slot->number = num_slots;
    slot->gpu = gpu;
    slot->capacity = ranks;
    slot->state_bytes = state_bytes_for(ranks);
    expar_status status = gpu < 0 ? allocate_on_cpu(what, slot) : allocate_on_gpu(what, slot);
    if (status != EXPAR_OK) {
        free(slot);
        return status;
    }
    slots[num_slots++] = slot;
    *out = slot;
    return EXPAR_OK;
}

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

static handle_slot *find_free(int32_t gpu, int32_t ranks)
{
    for (uint32_t i = 0; i < num_slots; i++)
        if (!slots[i]->taken && slots[i]->gpu == gpu && slots[i]->capacity >= ranks) return slots[i];
    return NULL;
}

static uint64_t mark_of(uint32_t generation)
{
    return (uint64_t)generation << 32;
}

/* Kernels with handles of earlier generations may read the mark meanwhile. Those of GPUs read other words together with
   it, and drop them. */
static void slot_clear(handle_slot *slot)
{
    uint8_t *const image = (uint8_t *)slot->image;
    const size_t after = sizeof slot->image->mark;
    slot->generation++;
    slot->ended = slot->waits = false;
    slot->awaits = 0;
    slot->why[0] = 0;
    slot->team = NULL;
    slot->ctx = NULL;
    slot->rings = NULL;
    slot->symmetric = NULL;
    slot->lost_why[0] = 0;
    memset(slot->report, 0, sizeof *slot->report);
    memset(image + after, 0, slot->state_bytes - after);
    __atomic_store_n(&slot->image->mark, mark_of(slot->generation), __ATOMIC_RELEASE);
}

expar_status slot_take(const char *what, int32_t gpu, int32_t ranks, handle_slot **out)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&lock);
    handle_slot *slot = find_free(gpu, ranks);
    if (!slot) status = slot_make(what, gpu, ranks, &slot);
    if (status == EXPAR_OK) {
        slot->taken = true;
        slot_clear(slot);
        *out = slot;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

expar_status slot_publish(const handle_slot *slot, const void *at, uint64_t bytes)
{
    const uint64_t offset = (uint64_t)((const uint8_t *)at - (const uint8_t *)slot->image);
    if (slot->gpu < 0) return EXPAR_OK;
    return mem_device_copy(slot->device, slot->state + offset, slot->image_address + offset, bytes);
}

void slot_end(handle_slot *slot)
{
    pthread_mutex_lock(&lock);
    const uint32_t failed = __atomic_load_n(&slot->report->failed, __ATOMIC_ACQUIRE);
    const bool may_fetch = slot->rings && (failed == slot->generation || slot_has_lost(slot));
    slot->generation++;
    __atomic_store_n(&slot->image->mark, mark_of(slot->generation), __ATOMIC_RELEASE);
    const expar_status status = slot_publish(slot, &slot->image->mark, sizeof slot->image->mark);
    /* Where kernels do not learn of the end, the slot is not used again. The same holds if a kernel may have given up a
       wait for a word, which may still come. */
    if (status == EXPAR_OK && !may_fetch) slot->taken = false;
    pthread_mutex_unlock(&lock);
    if (status != EXPAR_OK) LOG(LOG_WARN, "the end of a handle: %s", expar_last_error());
}

void slot_end_waits(handle_slot *slot, expar_status status, const char *why)
{
    if (slot->ended) return;
    pthread_mutex_lock(&lock);
    slot->ended = true;
    snprintf(slot->why, sizeof slot->why, "%s", why);
    pthread_mutex_unlock(&lock);
    __atomic_store_n(&slot->report->ending, (uint32_t)status, __ATOMIC_RELEASE);
    __atomic_fetch_or(&slot->report->orders, EXPAR_DEV_ABORT, __ATOMIC_RELEASE);
}

bool slot_has_lost(const handle_slot *slot)
{
    return __atomic_load_n(&slot->report->lost, __ATOMIC_ACQUIRE) == slot->generation;
}

void slot_lose(uint32_t number, uint32_t generation, const expar_dev_report *lost, const char *why)
{
    handle_slot *slot = slot_find(number);
    if (slot && slot->taken && slot->generation == generation && !slot_has_lost(slot)) {
        expar_dev_report *report = slot->report;
        report->lost_status = lost->lost_status;
        report->lost_operation = lost->lost_operation;
        report->lost_pe = slot->handle.size > 1 ? (lost->lost_pe - slot->handle.start) / slot->handle.stride : 0;
        report->lost_offset = lost->lost_offset;
        snprintf(slot->lost_why, sizeof slot->lost_why, "%s", why);
        __atomic_store_n(&report->lost, generation, __ATOMIC_RELEASE);
    }
    slot_done();
}

handle_slot *slot_find(uint32_t number)
{
    pthread_mutex_lock(&lock);
    return number < num_slots ? slots[number] : NULL;
}

void slot_done(void)
{
    pthread_mutex_unlock(&lock);
}
