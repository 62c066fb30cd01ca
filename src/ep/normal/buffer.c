/* SPDX-License-Identifier: Apache-2.0 */
/* The EP buffer: what all ranks agree on, and the executor that carries its calls out: that of its device. */
#include "ep/normal/normal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static life_spent spent = LIFE_SPENT_NONE;
static const char creating[] = "expar_ep_create", destroying[] = "expar_ep_destroy";

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* All ranks learn whether all can; own is what this rank found wrong. ep: NULL where it found so. */
static expar_status buffer_agree(expar_group *group, const expar_ep *ep, expar_status own)
{
    const expar_ep none = {0};
    if (!ep) ep = &none;
    const ep_shape *shape = &ep->shape;
    const boot_field fields[] = {
        {.name = "config.device.type", .value = (uint64_t)ep->device.type},
        {.name = "config.max_tokens", .value = (uint64_t)ep->limits.tokens},
        {.name = "config.max_row_bytes", .value = (uint64_t)ep->limits.row_bytes},
        {.name = "config.max_topk", .value = (uint64_t)ep->limits.topk},
        {.name = "config.max_experts", .value = (uint64_t)ep->limits.experts},
        {.name = "config.num_channels", .value = (uint64_t)shape->channels},
        {.name = "config.ring_slots", .value = (uint64_t)(shape->ring_slots ? shape->ring_slots : ep->ring_slots)},
        {.name = "config.pool_bytes", .value = shape->pool_bytes + ep->pool_bytes},
        {.name = "config.pool_limit_bytes", .value = ep->pool_limit_bytes},
        {.name = "config.max_scales", .value = (uint64_t)ep->limits.scales},
        {.name = "number of expar_ep_create calls on the group", .value = ep->number},
    };
    const boot_matter matter = {
        .what = "the buffer", .refused = "refused its config", .fields = fields, .num_fields = ARRAY_LENGTH(fields)};
    return sym_agree(group->sym, &matter, own);
}

static expar_status check_arguments(const expar_group *group, const expar_ep_config *config, expar_ep **out,
                                    expar_ep_config *full, ep_shape *shape)
{
    expar_status status = ep_shape_make(config, group->size, shape);
    if (status == EXPAR_OK && !out) status = error_set(EXPAR_ERR_NULL, "ep is NULL");
    if (status == EXPAR_OK) status = ep_copy_struct("config", full, sizeof *full, config);
    if (status == EXPAR_OK && !group->sym->all_mapped) status = ep_shape_check_across(full, group->num_nodes);
    return status == EXPAR_OK ? ep_allocator_check(full) : status;
}

static expar_status new_buffer(expar_group *group, const ep_shape *shape, const expar_ep_config *config,
                               uint32_t number, expar_ep **out)
{
    const expar_device device = config->device;
    expar_ep *ep = calloc(1, sizeof *ep);
    if (!ep) return error_set(EXPAR_ERR_MEMORY, "no memory for a buffer");
    ep->life = life_begin(EP_MAGIC);
    ep->group = group;
    ep->rank = group->rank;
    ep->device = (expar_device){.type = device.type ? device.type : EXPAR_CPU, .index = device.index};
    ep->shape = *shape;
    ep->limits = ep_limits_of(config, shape, group->sym->all_mapped);
    ep->ring_slots = config->ring_slots;
    if (!shape->pool_bytes) ep->pool_bytes = (uint64_t)config->pool_bytes;
    ep->pool_limit_bytes = (uint64_t)config->pool_limit_bytes;
    ep->allocator = (mem_allocator){.alloc = config->alloc, .free = config->free, .context = config->alloc_context};
    pthread_mutex_init(&ep->poison_lock, NULL);
    ep->number = number;
    ep->parting = (ep_parting){.group = group, .call = destroying, .number = number};
    *out = ep;
    ep->unheard = ep_unheard_make();
    return ep->unheard ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a buffer");
}

/* Without its executor. */
static void free_buffer(expar_ep *ep)
{
    if (!ep) return;
    ep_issue_free(ep);
    ep_unheard_release(ep->unheard);
    pthread_mutex_destroy(&ep->poison_lock);
    ep->group = NULL;
    atomic_store_explicit(&ep->life.references, 0, memory_order_release);
    life_keep(&spent, ep);
}

/* On all ranks, or on none. */
static expar_status buffer_make_parts(expar_ep *ep, const executor_plan *plan)
{
    error_kept kept;
    expar_status status = ep_parting_make(&ep->parting);
    if (status != EXPAR_OK) return status;
    status = ep->kind->create(plan, &ep->exec);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_keep(&kept, status);
    ep_parting_give(&ep->parting);
    return error_restore(&kept);
}

static expar_status buffer_make(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                                expar_ep **out)
{
    /* Whatever comes of this one, the next one's number is the same on all ranks. */
    const uint32_t number = ++group->num_buffers;
    ep_shape shape = {0};
    expar_ep_config full = {0};
    expar_ep *ep = NULL;
    expar_status own = check_arguments(group, config, out, &full, &shape);
    if (own == EXPAR_OK) own = new_buffer(group, &shape, &full, number, &ep);
    expar_status status = buffer_agree(group, own == EXPAR_OK ? ep : NULL, own);
    if (status == EXPAR_OK) {
        const executor_plan plan = {.group = group,
                                    .number = ep->number,
                                    .device = ep->device,
                                    .shape = &ep->shape,
                                    .num_threads = full.num_threads,
                                    .num_sms = full.num_sms,
                                    .ring_slots = full.ring_slots,
                                    .pool_bytes = ep->pool_bytes,
                                    .pool_limit_bytes = ep->pool_limit_bytes};
        ep->kind = kind ? kind : executor_kind_of(ep->device.type);
        status = buffer_make_parts(ep, &plan);
    }
    if (status != EXPAR_OK) {
        free_buffer(ep);
        return error_prefix(status, "%s", creating);
    }
    atomic_fetch_add_explicit(&group->users, 1, memory_order_relaxed);
    *out = ep;
    return EXPAR_OK;
}

/* The buffer keeps the group entered. */
expar_status ep_create_with(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                            expar_ep **out)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", creating);
    expar_status status = ep_check_outside(creating);
    if (status != EXPAR_OK) return status;
    if (!group_enter(group, creating)) return EXPAR_ERR_STATE;
    group->boot->call = creating;
    status = buffer_make(group, config, kind, out);
    group->boot->call = NULL;
    if (status != EXPAR_OK) group_leave(group);
    return status;
}

expar_status expar_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **out)
{
    return group_ended(group, ep_create_with(group, config, NULL, out));
}

/* ---- who holds it ------------------------------------------------------------------------------------------------ */

static expar_status buffer_has_ended(const char *call)
{
    return error_set(EXPAR_ERR_STATE, "%s: the buffer has been destroyed or abandoned", call);
}

expar_status ep_enter(expar_ep *ep, const char *call)
{
    if (!ep) return error_set(EXPAR_ERR_NULL, "%s: ep is NULL", call);
    if (!life_alive(&ep->life, EP_MAGIC) || !life_hold(&ep->life)) return buffer_has_ended(call);
    if (!atomic_load_explicit(&ep->ended, memory_order_relaxed)) return EXPAR_OK;
    ep_leave(ep);
    return buffer_has_ended(call);
}

/* All calls of this rank have ended. A call that was broken off has left the ranks in different places of it. */
static void retire(const expar_ep *ep)
{
    ep_refusal refusal = {.status = EXPAR_ERR_PEER};
    if (ep->poison.status != EXPAR_OK) return;
    snprintf(refusal.text, sizeof refusal.text, "rank %d has abandoned the buffer", ep->rank);
    ep->exec->ops->retire(ep->exec, ep->epoch + 1, &refusal);
    /* For those who are in that call already, or whose records hold no such refusal. */
    const boot_topic next = {.kind = BOOT_KIND_BUFFER, .object = ep->number, .number = (uint64_t)ep->epoch + 1};
    boot_note_ended(ep->group->boot, &next, EXPAR_ERR_PEER, "it has abandoned the buffer");
}

/* One that was destroyed has no executor any more. */
void ep_leave(expar_ep *ep)
{
    if (life_drop(&ep->life, EP_MAGIC) != LIFE_LAST) return;
    expar_group *group = ep->group;
    if (ep->exec) {
        retire(ep);
        ep->exec->ops->destroy(ep->exec, false, false);
    }
    free_buffer(ep);
    group_leave(group);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* How this rank's calls went, once all have ended: one that nobody has waited for may tell only now. */
static expar_status end_calls(expar_ep *ep)
{
    ep_issue_stop(ep);
    if (ep->poison.status != EXPAR_OK) return ep->poison.status;
    expar_status ended = ep->exec->ops->await(ep->exec, destroying);
    if (ended == EXPAR_OK)
        ep_call_tell_untold(&(ep_call){.ep = ep});
    else
        LOG(LOG_WARN, "%s: an earlier call: %s", destroying, expar_last_error());
    return ended;
}

/* Whether the ranks give the buffer back together. Only who has abandoned it, or says that the group has failed, is
   known to all of them: a call that failed may have failed here alone, and so may the group. Who was missed in it may
   have fallen silent, though; to ask takes less time than to wait for it again. */
static bool all_come(expar_ep *ep, expar_status ended)
{
    sym *symmetric = ep->group->sym;
    if (sym_check(symmetric, destroying) != EXPAR_OK ||
        (ended == EXPAR_ERR_PEER && sym_blame_silent(symmetric, ended))) {
        ep_parting_fail(&ep->parting);
        return false;
    }
    if (ep_parting_meet(&ep->parting) == EXPAR_OK) return true;
    LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    return false;
}

static void end_together(expar_ep *ep)
{
    expar_group *group = ep->group;
    expar_status ended = end_calls(ep);
    bool sound = all_come(ep, ended);
    /* No other collective of this rank's runs beside a destroy that is one. */
    if (sound) group->boot->call = destroying;
    ep->exec->ops->destroy(ep->exec, sound, ended == EXPAR_OK);
    if (sound && ep_parting_give(&ep->parting) != EXPAR_OK) LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    if (sound) group->boot->call = NULL;
    ep->exec = NULL;
}

expar_status expar_ep_destroy(expar_ep *ep)
{
    if (!ep) return EXPAR_OK;
    expar_status outside = ep_check_outside(destroying);
    if (outside != EXPAR_OK) return call_ended(outside);
    if (!life_alive(&ep->life, EP_MAGIC) || atomic_exchange_explicit(&ep->ended, true, memory_order_relaxed))
        return call_ended(buffer_has_ended(destroying));
    const expar_status ours = group_check_process(ep->group, destroying);
    if (ours != EXPAR_OK) {
        atomic_store_explicit(&ep->ended, false, memory_order_relaxed);
        return call_ended(ours);
    }
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&ep->busy, &idle, 1)) {
        atomic_store_explicit(&ep->ended, false, memory_order_relaxed);
        return call_ended(error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", destroying));
    }
    expar_status waited = ep_issue_await(ep, EP_CALL_ENDED);
    if (waited != EXPAR_OK) {
        atomic_store_explicit(&ep->ended, false, memory_order_relaxed);
        atomic_store_explicit(&ep->busy, 0, memory_order_release);
        return call_ended(error_prefix(waited, "%s", destroying));
    }
    end_together(ep);
    atomic_fetch_sub_explicit(&ep->group->users, 1, memory_order_relaxed);
    ep_leave(ep);
    return EXPAR_OK;
}

/* ---- without the others ------------------------------------------------------------------------------------------ */

/* A thread that is in a call here ends it; else what was issued goes on by itself, and holds the buffer until then. */
static void buffer_abandon(expar_ep *ep)
{
    ep_parting_leave(&ep->parting);
    if (atomic_load(&ep->busy)) ep->exec->ops->halt(ep->exec);
    ep_issue_let_go(ep);
    atomic_fetch_sub_explicit(&ep->group->users, 1, memory_order_relaxed);
}

expar_status expar_ep_abandon(expar_ep *ep)
{
    if (!ep || !life_alive(&ep->life, EP_MAGIC) || !life_hold(&ep->life)) return EXPAR_OK;
    if (ep->group->pid != (int32_t)getpid()) { /* nothing here is this process's to end */
        life_drop(&ep->life, EP_MAGIC);
        return EXPAR_OK;
    }
    if (!atomic_exchange(&ep->ended, true)) {
        buffer_abandon(ep);
        ep_leave(ep);
    }
    ep_leave(ep);
    return EXPAR_OK;
}
