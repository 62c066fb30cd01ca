/* SPDX-License-Identifier: Apache-2.0 */
/* Creation, use and destruction of a buffer in both modes: which threads are inside, and which one owns it for a
 * call. */
#include "ep/call/call.h"

#include <stdio.h>
#include <unistd.h>

/* ---- the last reference ------------------------------------------------------------------------------------------ */

/* All calls of this rank have ended. A call that was broken off has left the ranks in different places of it. */
static void retire(const ep_buffer *buffer)
{
    const uint64_t calls = buffer->calls + 1;
    ep_rejection rejection = {.status = EXPAR_ERR_PEER};
    if (buffer->poison.status != EXPAR_OK) return;
    snprintf(rejection.text, sizeof rejection.text, "rank %d has abandoned the buffer", buffer->rank);
    buffer->exec->ops->retire(buffer->exec, (uint32_t)calls, &rejection);
    /* This is for ranks that are in that call already, that await something else of it, or whose records cannot have
       such a rejection. */
    const boot_topic next = ep_buffer_topic(buffer, buffer->kind->number(calls));
    boot_note_ended(buffer->group->boot, &next, EXPAR_ERR_PEER, "it has abandoned the buffer");
}

/* No thread is inside any more. If the buffer was destroyed, it has no executor. */
static void buffer_end(void *object)
{
    ep_buffer *buffer = object;
    const ep_buffer_kind *kind = buffer->kind;
    expar_group *group = buffer->group;
    if (buffer->exec) {
        retire(buffer);
        if (kind->let_go) kind->let_go(buffer);
        buffer->exec->ops->destroy(buffer->exec, false, false);
        buffer->exec = NULL;
    }
    buffer->group = NULL;
    kind->free(buffer);
    group_leave(group);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

void ep_buffer_begin(ep_buffer *buffer, const ep_buffer_kind *kind, expar_group *group, expar_device device,
                     uint32_t number)
{
    buffer->life = life_begin(kind->magic, buffer_end);
    buffer->kind = kind;
    buffer->group = group;
    buffer->rank = group->rank;
    buffer->device = (expar_device){.type = device.type ? device.type : EXPAR_CPU, .index = device.index};
    buffer->exec_kind = executor_kind_of(buffer->device.type);
    buffer->number = number;
    buffer->teardown = (ep_teardown){.group = group, .call = kind->destroying, .number = number};
    pthread_mutex_init(&buffer->poison_lock, NULL);
}

expar_status ep_buffer_make_parts(ep_buffer *buffer, ep_executor_maker make, const void *plan)
{
    error_kept kept;
    expar_status status = ep_teardown_make(&buffer->teardown);
    if (status != EXPAR_OK) return status;
    status = make(buffer, plan);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_keep(&kept, status);
    ep_teardown_give(&buffer->teardown);
    return error_restore(&kept);
}

void ep_buffer_free_parts(ep_buffer *buffer)
{
    ep_issuer_free(buffer->issuer);
    ep_unread_release(buffer->unread);
    pthread_mutex_destroy(&buffer->poison_lock);
    buffer->group = NULL;
    atomic_store_explicit(&buffer->life.references, 0, memory_order_release);
}

/* ---- who holds it ------------------------------------------------------------------------------------------------ */

expar_status ep_buffer_has_ended(const char *call)
{
    return error_set(EXPAR_ERR_STATE, "%s: the buffer has been destroyed or abandoned", call);
}

void ep_buffer_leave(ep_buffer *buffer)
{
    life_drop(&buffer->life, buffer->kind->magic);
}

expar_status ep_buffer_enter(ep_buffer *buffer, const char *call)
{
    if (!life_alive(&buffer->life, buffer->kind->magic) || !life_hold(&buffer->life)) return ep_buffer_has_ended(call);
    if (!atomic_load_explicit(&buffer->ended, memory_order_relaxed)) return EXPAR_OK;
    ep_buffer_leave(buffer);
    return ep_buffer_has_ended(call);
}

expar_status ep_buffer_take(ep_buffer *buffer, const char *call)
{
    expar_status status = ep_buffer_enter(buffer, call);
    if (status != EXPAR_OK) return status;
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&buffer->busy, &idle, 1)) {
        ep_buffer_leave(buffer);
        return error_set(EXPAR_ERR_BUSY, "%s: another call on this buffer is still running", call);
    }
    /* A thread that abandons the buffer now either sees that it is busy, or has been seen. */
    return atomic_load(&buffer->ended) ? ep_buffer_give(buffer, ep_buffer_has_ended(call)) : EXPAR_OK;
}

expar_status ep_buffer_give(ep_buffer *buffer, expar_status status)
{
    atomic_store_explicit(&buffer->busy, 0, memory_order_release);
    ep_buffer_leave(buffer);
    return status;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void issuer_end(ep_buffer *buffer)
{
    if (!buffer->issuer) return;
    ep_issuer_stop(buffer->issuer);
    buffer->issuer = NULL;
    life_drop(&buffer->life, buffer->kind->magic);
}

/* Returns how this rank's calls ended, after all have. A call that no thread has waited for may report only now. */
static expar_status end_calls(ep_buffer *buffer)
{
    const char *destroying = buffer->kind->destroying;
    issuer_end(buffer);
    if (buffer->poison.status != EXPAR_OK) return buffer->poison.status;
    expar_status ended = buffer->exec->ops->await(buffer->exec, destroying);
    if (ended == EXPAR_OK)
        ep_call_tell_untold(&(ep_call){.buffer = buffer});
    else
        LOG(LOG_WARN, "%s: an earlier call: %s", destroying, expar_last_error());
    return ended;
}

/* Says whether the ranks give the buffer back together. All of them know only which rank has abandoned it, or says that
   the group has failed. A failed call may have failed here alone, and so may the group. A rank that did not come to a
   call may have fallen silent, though; asking takes less time than waiting for it again. */
static bool all_come(ep_buffer *buffer, expar_status ended)
{
    sym *symmetric = buffer->group->sym;
    const char *destroying = buffer->kind->destroying;
    if (sym_check(symmetric, destroying) != EXPAR_OK ||
        (ended == EXPAR_ERR_PEER && sym_blame_silent(symmetric, ended))) {
        ep_teardown_fail(&buffer->teardown);
        return false;
    }
    if (ep_teardown_meet(&buffer->teardown) == EXPAR_OK) return true;
    LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    return false;
}

static void end_together(ep_buffer *buffer)
{
    const char *destroying = buffer->kind->destroying;
    expar_group *group = buffer->group;
    expar_status ended = end_calls(buffer);
    bool sound = all_come(buffer, ended);
    /* While a collective destroy runs, no other collective of this rank does. */
    if (sound) group->boot->call = destroying;
    if (buffer->kind->let_go) buffer->kind->let_go(buffer);
    buffer->exec->ops->destroy(buffer->exec, sound, ended == EXPAR_OK);
    if (sound && ep_teardown_give(&buffer->teardown) != EXPAR_OK)
        LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    if (sound) group->boot->call = NULL;
    buffer->exec = NULL;
}

/* Rejects the destroy: the buffer lives on. */
static expar_status reject_end(ep_buffer *buffer, bool taken, expar_status status)
{
    atomic_store_explicit(&buffer->ended, false, memory_order_relaxed);
    if (taken) atomic_store_explicit(&buffer->busy, 0, memory_order_release);
    return status;
}

expar_status ep_buffer_destroy(ep_buffer *buffer)
{
    const char *destroying = buffer->kind->destroying;
    int32_t idle = 0;
    if (!life_alive(&buffer->life, buffer->kind->magic) ||
        atomic_exchange_explicit(&buffer->ended, true, memory_order_relaxed))
        return ep_buffer_has_ended(destroying);
    const expar_status ours = group_check_process(buffer->group, destroying);
    if (ours != EXPAR_OK) return reject_end(buffer, false, ours);
    if (!atomic_compare_exchange_strong(&buffer->busy, &idle, 1))
        return reject_end(buffer, false,
                          error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", destroying));
    const expar_status waited = ep_issuer_await(buffer->issuer, EP_CALL_ENDED);
    if (waited != EXPAR_OK) return reject_end(buffer, true, error_prefix(waited, "%s", destroying));
    end_together(buffer);
    atomic_fetch_sub_explicit(&buffer->group->users, 1, memory_order_relaxed);
    ep_buffer_leave(buffer);
    return EXPAR_OK;
}

/* ---- without the others ------------------------------------------------------------------------------------------ */

static void leave_by_thread(void *buffer)
{
    ep_buffer_leave(buffer);
}

/* A thread that is in a call here ends it; else what was issued goes on by itself, and holds the buffer until then. The
   thread's record stays until the buffer's last reference goes: others may wait there for the calls. */
static void leave_alone(ep_buffer *buffer)
{
    ep_teardown_leave(&buffer->teardown);
    if (atomic_load(&buffer->busy)) buffer->exec->ops->halt(buffer->exec);
    if (buffer->issuer) ep_issuer_let_go(buffer->issuer, leave_by_thread, buffer);
    atomic_fetch_sub_explicit(&buffer->group->users, 1, memory_order_relaxed);
}

expar_status ep_buffer_abandon(ep_buffer *buffer)
{
    if (!life_alive(&buffer->life, buffer->kind->magic) || !life_hold(&buffer->life)) return EXPAR_OK;
    if (buffer->group->pid != (int32_t)getpid()) { /* nothing here is this process's to end */
        life_drop(&buffer->life, buffer->kind->magic);
        return EXPAR_OK;
    }
    if (!atomic_exchange(&buffer->ended, true)) {
        leave_alone(buffer);
        ep_buffer_leave(buffer);
    }
    ep_buffer_leave(buffer);
    return EXPAR_OK;
}
