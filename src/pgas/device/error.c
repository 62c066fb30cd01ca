/* SPDX-License-Identifier: Apache-2.0 */
/* expar_device_get_error: what kernels with a handle have reported. */
#include "pgas/device/parts.h"

#include <stdio.h>
#include <string.h>

static const char what[] = "expar_device_get_error";

static const char *const operations[EXPAR_DEV_OPERATIONS] = {
    [EXPAR_DEV_NONE] = "",
    [EXPAR_DEV_PUT] = "put",
    [EXPAR_DEV_GET] = "get",
    [EXPAR_DEV_P] = "p",
    [EXPAR_DEV_G] = "g",
    [EXPAR_DEV_PUT_SIGNAL] = "put_signal",
    [EXPAR_DEV_SIGNAL_OP] = "signal_op",
    [EXPAR_DEV_SIGNAL_FETCH] = "signal_fetch",
    [EXPAR_DEV_ATOMIC] = "atomic",
    [EXPAR_DEV_WAIT] = "wait_until",
    [EXPAR_DEV_TEST] = "test",
    [EXPAR_DEV_SYNC] = "sync",
    [EXPAR_DEV_FENCE] = "fence",
    [EXPAR_DEV_QUIET] = "quiet",
};

static const char *operation_name(uint32_t operation)
{
    return operation < EXPAR_DEV_OPERATIONS ? operations[operation] : "";
}

static bool is_of_wait(uint32_t operation)
{
    return operation == EXPAR_DEV_WAIT || operation == EXPAR_DEV_TEST || operation == EXPAR_DEV_SYNC;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void say_wait(const handle_slot *slot, expar_device_error *out)
{
    const char *why = slot->ended ? slot->why : "the host has not moved the pulse for the orphan time-out";
    if (out->pe >= 0)
        snprintf(out->text, sizeof out->text, "%s: PE %d has come %llu times, awaited %llu: %s", out->operation,
                 out->pe, (unsigned long long)out->seen, (unsigned long long)out->awaited, why);
    else
        snprintf(out->text, sizeof out->text, "%s: the word at offset %llu holds %llu, compared with %llu: %s",
                 out->operation, (unsigned long long)out->offset, (unsigned long long)out->seen,
                 (unsigned long long)out->awaited, why);
}

/* Something in another place has failed: a command, a rank or the host. */
static void say_loss(const handle_slot *slot, expar_device_error *out)
{
    const char *why = slot_has_lost(slot) ? slot->lost_why : slot->ended ? slot->why : expar_status_text(out->status);
    if (out->pe >= 0)
        snprintf(out->text, sizeof out->text, "%s: PE %d, offset %llu: %s", out->operation, out->pe,
                 (unsigned long long)out->offset, why);
    else
        snprintf(out->text, sizeof out->text, "%s: %s", out->operation, why);
}

/* A queue to which kernels write requests. */
static void say_queue(const handle_slot *slot, expar_device_error *out)
{
    char why[HANDLE_TEXT];
    queues_say_failure(slot, why, sizeof why);
    snprintf(out->text, sizeof out->text, "%s: PE %d, offset %llu: %s", out->operation, out->pe,
             (unsigned long long)out->offset, why);
}

static void say_call(const handle_slot *slot, expar_device_error *out)
{
    const char *const name = out->operation;
    char *const text = out->text;
    const size_t bytes = sizeof out->text;
    const unsigned long long at = out->offset;
    switch (out->status) {
    case EXPAR_ERR_RANGE:
        snprintf(text, bytes, "%s: PE %d, expected 0 to %d", name, out->pe, slot->handle.size - 1);
        break;
    case EXPAR_ERR_ADDRESS:
        snprintf(text, bytes,
                 "%s: address %#llx: the block is not in %s or pinned symmetric memory of the handle's group", name, at,
                 slot->gpu < 0 ? "host" : "device");
        break;
    case EXPAR_ERR_ALIGNMENT:
        snprintf(text, bytes, "%s: address %#llx is not aligned to the size of the elements", name, at);
        break;
    case EXPAR_ERR_UNSUPPORTED:
        snprintf(text, bytes,
                 "%s: PE %d: no way of kernels leads to that memory for this operation "
                 "(EXPAR_DEVICE_TRANSPORTS, EXPAR_DEVICE_ATOMICS)",
                 name, out->pe);
        break;
    case EXPAR_ERR_ARGUMENT:
        snprintf(text, bytes, "%s: an argument is not allowed", name);
        break;
    default:
        say_loss(slot, out);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void error_read_loss(const handle_slot *slot, expar_device_error *out)
{
    const expar_dev_report *report = slot->report;
    out->status = (expar_status)report->lost_status;
    out->operation = operation_name(report->lost_operation);
    out->pe = report->lost_pe;
    out->offset = report->lost_offset;
    say_loss(slot, out);
}

/* Returns whether the first error is that of the command that failed. */
static bool is_loss(const handle_slot *slot)
{
    const expar_dev_report *report = slot->report;
    return slot_has_lost(slot) && report->status == report->lost_status &&
           report->operation == report->lost_operation && report->pe == report->lost_pe &&
           report->offset == report->lost_offset;
}

/* Returns whether a wait has ended for a reason that is not its own. */
static bool is_in_vain(const handle_slot *slot, expar_status status)
{
    if (slot->ended && slot->report->ending == (uint32_t)status) return true;
    return status != EXPAR_ERR_ADDRESS && status != EXPAR_ERR_ALIGNMENT && status != EXPAR_ERR_UNSUPPORTED &&
           status != EXPAR_ERR_ARGUMENT;
}

/* The process's lock is held, so the slot is not given to another handle meanwhile. */
static void error_read(const handle_slot *slot, uint32_t generation, expar_device_error *out)
{
    const expar_dev_report *report = slot->report;
    *out = (expar_device_error){.pe = -1, .operation = ""};
    if (slot->generation != generation) {
        out->status = EXPAR_ERR_HANDLE;
        snprintf(out->text, sizeof out->text, "the handle's group, team or context has ended");
        return;
    }
    if (__atomic_load_n(&report->failed, __ATOMIC_ACQUIRE) != generation) {
        /* No kernel has noticed it yet. */
        if (slot_has_lost(slot)) error_read_loss(slot, out);
        return;
    }
    out->status = (expar_status)report->status;
    out->operation = operation_name(report->operation);
    out->pe = report->pe;
    out->offset = report->offset;
    out->seen = report->seen;
    out->awaited = report->awaited;
    if (report->failure)
        say_queue(slot, out);
    else if (is_loss(slot))
        say_loss(slot, out);
    else if (is_of_wait(report->operation) && is_in_vain(slot, out->status))
        say_wait(slot, out);
    else
        say_call(slot, out);
}

static expar_status error_find(const expar_device_handle *handle, expar_device_error *out)
{
    if (!handle) return error_set(EXPAR_ERR_NULL, "%s: handle is NULL", what);
    const handle_slot *slot = slot_find(handle->number);
    const uint64_t state = slot ? slot->state : 0;
    const bool is_known = slot && state == (uintptr_t)handle->state;
    if (is_known) error_read(slot, (uint32_t)(handle->mark >> 32), out);
    slot_done();
    if (is_known) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: handle is none that expar_device_get has filled in this process", what);
}

expar_status expar_device_get_error(const expar_device_handle *handle, expar_device_error *error)
{
    expar_device_error found;
    expar_status status = error_find(handle, &found);
    if (status == EXPAR_OK) status = struct_give(what, "error", "EXPAR_DEVICE_ERROR_INIT", &found, sizeof found, error);
    return call_ended(status);
}
