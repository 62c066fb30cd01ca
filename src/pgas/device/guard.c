/* SPDX-License-Identifier: Apache-2.0 */
/* The guard of handles: a host thread for the waits of kernels, since kernels cannot ask ranks for their state.
 *
 * It raises the pulse of each handle. A kernel whose wait lasts from one pulse to another says so in the handle's
 * report. At each beat the guard looks at that wait as a wait of the host does (boot_wait): while the ranks answer, the
 * kernel waits on. If the wait cannot end, or the group has failed, the guard keeps the reason in the slot and orders
 * the handle's kernels to leave. */
#include "base/knobs.h"
#include "pgas/device/parts.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char waits_for_words[] = "a wait of a kernel";
static const char waits_for_sync[] = "a barrier of kernels";

/* ---- what kernels say -------------------------------------------------------------------------------------------- */

static uint64_t pulse_of(const handle_slot *slot)
{
    return __atomic_load_n(&slot->report->orders, __ATOMIC_RELAXED) / EXPAR_DEV_BEAT & EXPAR_DEV_PULSE_MASK;
}

static bool slot_is_fresh(const handle_slot *slot, uint64_t awaits)
{
    if ((awaits >> 32 & 0xff) == EXPAR_DEV_AWAITS_NONE) return false;
    return ((pulse_of(slot) - (awaits >> 40)) & EXPAR_DEV_PULSE_MASK) < knob_count(KNOB_CUDA_GUARD_FRESH_BEATS);
}

static bool is_sync(uint64_t awaits)
{
    return (awaits >> 32 & 0xff) == EXPAR_DEV_AWAITS_SYNC;
}

/* ---- the wait of a handle ---------------------------------------------------------------------------------------- */

static void stop_waiting(handle_slot *slot)
{
    if (slot->waits) boot_wait_end(&slot->wait);
    slot->waits = false;
}

/* Any rank may change a word; a barrier's ranks are known. */
static void begin_waiting(const handles *all, handle_slot *slot, uint64_t awaits)
{
    static const boot_topic none = {.kind = BOOT_KIND_NONE};
    const boot_topic sync = team_kernel_topic(slot->image->sync_slot, slot->gpu >= 0);
    boot_wait_begin(&slot->wait, all->group->boot, is_sync(awaits) ? &sync : &none,
                    is_sync(awaits) ? waits_for_sync : waits_for_words);
    if (slot->team || is_sync(awaits)) {
        slot->wait.first = slot->handle.start;
        slot->wait.stride = slot->handle.stride;
        slot->wait.size = slot->handle.size;
    }
    slot->waits = true;
}

/* The last error says why. */
static void end_waits(handles *all, handle_slot *slot, expar_status status)
{
    char why[HANDLE_TEXT];
    snprintf(why, sizeof why, "%s", expar_last_error());
    if (slot->waits && is_sync(slot->awaits)) boot_note_ended(all->group->boot, &slot->wait.topic, status, why);
    stop_waiting(slot);
    slot_end_waits(slot, status, why);
}

static void slot_look_at_wait(handles *all, handle_slot *slot)
{
    const uint64_t awaits = __atomic_load_n(&slot->report->awaits, __ATOMIC_RELAXED);
    const bool fresh = slot_is_fresh(slot, awaits);
    if (!fresh || (slot->waits && is_sync(awaits) != is_sync(slot->awaits))) stop_waiting(slot);
    if (!fresh) return;
    if (!slot->waits) begin_waiting(all, slot, awaits);
    slot->awaits = awaits;
    if (is_sync(awaits)) boot_wait_for(&slot->wait, (int32_t)(uint32_t)awaits);
    expar_status status = sym_wait_look(all->group->sym, &slot->wait);
    if (status != EXPAR_OK) end_waits(all, slot, status);
}

/* ---- beats ------------------------------------------------------------------------------------------------------- */

/* A handle for a team outlives ranks that are not members. */
static expar_status check_ranks(const handles *all, const handle_slot *slot)
{
    const sym_ranks members = {.start = slot->handle.start, .stride = slot->handle.stride, .size = slot->handle.size};
    if (sym_is_sound(all->group->sym)) return EXPAR_OK;
    if (!slot->team) return sym_check(all->group->sym, waits_for_words);
    return sym_check_ranks(all->group->sym, &members, waits_for_words);
}

static expar_status check_rings(const handle_slot *slot)
{
    const expar_status status = slot->rings ? sym_rings_ending(slot->rings) : EXPAR_OK;
    if (status == EXPAR_OK) return EXPAR_OK;
    return error_set(status, "the proxy of this rank carries nothing any more: %s", expar_status_text(status));
}

static void slot_beat(handles *all, handle_slot *slot)
{
    if (slot->ended) return;
    if (slot_has_lost(slot)) {
        stop_waiting(slot);
        slot_end_waits(slot, (expar_status)slot->report->lost_status, slot->lost_why);
        return;
    }
    expar_status status = check_ranks(all, slot);
    if (status == EXPAR_OK) status = check_rings(slot);
    if (status != EXPAR_OK) {
        end_waits(all, slot, status);
        return;
    }
    slot_look_at_wait(all, slot);
    if (!slot->ended) __atomic_fetch_add(&slot->report->orders, EXPAR_DEV_BEAT, __ATOMIC_RELEASE);
}

static void rest(handles *all)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    const int64_t ns = end.tv_nsec + knob(KNOB_CUDA_GUARD_BEAT_NS);
    end.tv_sec += ns / 1000000000;
    end.tv_nsec = ns % 1000000000;
    sem_timedwait(&all->wake, &end);
}

static void *handles_guard_run(void *argument)
{
    handles *all = argument;
    log_set_rank(all->group->rank);
    while (!atomic_load_explicit(&all->closing, memory_order_acquire)) {
        pthread_mutex_lock(&all->lock);
        for (handle_slot *slot = all->first; slot; slot = slot->next)
            slot_beat(all, slot);
        launched_look(all);
        pthread_mutex_unlock(&all->lock);
        rest(all);
    }
    return NULL;
}

expar_status guard_start(handles *all)
{
    const int error = pthread_create(&all->thread, NULL, handles_guard_run, all);
    if (error == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_SYSTEM, "cannot start the thread that looks after kernels' waits: %s", strerror(error));
}

void guard_stop(handles *all)
{
    atomic_store_explicit(&all->closing, true, memory_order_release);
    sem_post(&all->wake);
    pthread_join(all->thread, NULL);
}
