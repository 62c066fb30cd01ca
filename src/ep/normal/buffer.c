/* SPDX-License-Identifier: Apache-2.0 */
/* The EP buffer: the shape on which all ranks agree, and the executor of its device, which carries its calls out. */
#include "ep/normal/normal.h"

#include <stdlib.h>

static life_spent spent = LIFE_SPENT_NONE;
static const char creating[] = "expar_ep_create", destroying[] = "expar_ep_destroy";

static uint64_t number_of_epoch(uint64_t calls)
{
    return (uint32_t)calls;
}

/* Without its executor. */
static void free_buffer(ep_buffer *buffer)
{
    ep_buffer_free_parts(buffer);
    life_keep(&spent, buffer);
}

static const ep_buffer_kind normal_buffers = {.magic = EP_MAGIC,
                                              .topic = BOOT_KIND_BUFFER,
                                              .destroying = destroying,
                                              .overlaps = true,
                                              .asks_twice = true,
                                              .number = number_of_epoch,
                                              .mismatch = normal_mismatch,
                                              .free = free_buffer};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Tells all ranks whether all can create the buffer; own is the error that this rank found. ep: NULL if it found
   one. */
static expar_status buffer_agree(expar_group *group, const expar_ep *ep, expar_status own)
{
    const expar_ep none = {0};
    if (!ep) ep = &none;
    const ep_shape *shape = &ep->shape;
    const ep_name_text device = ep_tell(&ep_names_device, ep->base.device.type);
    const boot_field fields[] = {
        {.name = "config.device.type", .text = device.text},
        {.name = "config.max_tokens", .value = (uint64_t)ep->limits.tokens},
        {.name = "config.max_row_bytes", .value = (uint64_t)ep->limits.row_bytes},
        {.name = "config.max_topk", .value = (uint64_t)ep->limits.topk},
        {.name = "config.max_experts", .value = (uint64_t)ep->limits.experts},
        {.name = "config.num_channels", .value = (uint64_t)shape->channels},
        {.name = "config.ring_slots", .value = (uint64_t)(shape->ring_slots ? shape->ring_slots : ep->ring_slots)},
        {.name = "config.pool_bytes", .value = shape->pool_bytes + ep->pool_bytes},
        {.name = "config.pool_limit_bytes", .value = ep->pool_limit_bytes},
        {.name = "config.max_scales", .value = (uint64_t)ep->limits.scales},
        {.name = "number of expar_ep_create calls on the group", .value = ep->base.number},
    };
    const boot_matter matter = {
        .what = "the buffer", .rejected = "rejected its config", .fields = fields, .num_fields = ARRAY_LENGTH(fields)};
    return sym_agree(group->sym, &matter, own);
}

static expar_status check_arguments(const expar_group *group, const expar_ep_config *config, expar_ep **out,
                                    expar_ep_config *full, ep_shape *shape)
{
    expar_status status = ep_shape_make(config, group->size, group->sym->all_mapped, shape);
    if (status == EXPAR_OK && !out) status = error_set(EXPAR_ERR_NULL, "ep is NULL");
    if (status == EXPAR_OK) status = ep_copy_struct("config", full, sizeof *full, config);
    return status == EXPAR_OK ? ep_allocator_check(full) : status;
}

static expar_status new_buffer(expar_group *group, const ep_shape *shape, const expar_ep_config *config,
                               uint32_t number, expar_ep **out)
{
    expar_ep *ep = calloc(1, sizeof *ep);
    if (!ep) return error_set(EXPAR_ERR_MEMORY, "no memory for a buffer");
    ep_buffer_begin(&ep->base, &normal_buffers, group, config->device, number);
    ep->shape = *shape;
    ep->limits = ep_limits_of(config, shape, group->sym->all_mapped);
    ep->ring_slots = config->ring_slots;
    if (!shape->pool_bytes) ep->pool_bytes = (uint64_t)config->pool_bytes;
    ep->pool_limit_bytes = (uint64_t)config->pool_limit_bytes;
    ep->allocator = (mem_allocator){.alloc = config->alloc, .free = config->free, .context = config->alloc_context};
    *out = ep;
    ep->base.unread = ep_unread_make();
    return ep->base.unread ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for a buffer");
}

static expar_status make_executor(ep_buffer *buffer, const void *plan)
{
    return buffer->exec_kind->create(plan, &buffer->exec);
}

static expar_status buffer_make(expar_group *group, const expar_ep_config *config, const executor_kind *kind,
                                expar_ep **out)
{
    /* Whether or not this buffer is made, the next one's number is the same on all ranks. */
    const uint32_t number = ++group->num_buffers;
    ep_shape shape = {0};
    expar_ep_config full = {0};
    expar_ep *ep = NULL;
    expar_status own = check_arguments(group, config, out, &full, &shape);
    if (own == EXPAR_OK) own = new_buffer(group, &shape, &full, number, &ep);
    expar_status status = buffer_agree(group, own == EXPAR_OK ? ep : NULL, own);
    if (status == EXPAR_OK) {
        const executor_plan plan = {.group = group,
                                    .number = ep->base.number,
                                    .device = ep->base.device,
                                    .shape = &ep->shape,
                                    .num_threads = full.num_threads,
                                    .num_sms = full.num_sms,
                                    .ring_slots = full.ring_slots,
                                    .pool_bytes = ep->pool_bytes,
                                    .pool_limit_bytes = ep->pool_limit_bytes};
        if (kind) ep->base.exec_kind = kind;
        status = ep_buffer_make_parts(&ep->base, make_executor, &plan);
    }
    if (status != EXPAR_OK) {
        if (ep) free_buffer(&ep->base);
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

/* ---- its calls, and its end -------------------------------------------------------------------------------------- */

/* Whatever it is that the caller holds. */
static bool is_buffer(const expar_ep *ep)
{
    return ep->base.life.magic == EP_MAGIC;
}

expar_status ep_check_known(const expar_ep *ep, const char *call)
{
    if (!ep) return error_set(EXPAR_ERR_NULL, "%s: ep is NULL", call);
    return is_buffer(ep) ? EXPAR_OK : ep_buffer_has_ended(call);
}

expar_status ep_enter(expar_ep *ep, const char *call)
{
    const expar_status status = ep_check_known(ep, call);
    return status == EXPAR_OK ? ep_buffer_enter(&ep->base, call) : status;
}

static expar_status ask_of_calls(expar_ep *ep, const char *name)
{
    const ep_call asking = {.buffer = &ep->base, .name = name};
    expar_status status = ep_call_check_earlier(&asking);
    if (status != EXPAR_OK) return status;
    ep_call_tell_untold(&asking);
    return ep_unread_take(ep->base.unread);
}

expar_status expar_ep_query(expar_ep *ep)
{
    static const char name[] = "expar_ep_query";
    expar_status status = ep_enter(ep, name);
    if (status != EXPAR_OK) return ep_ended(ep, status);
    status = ask_of_calls(ep, name);
    ep_leave(ep);
    return ep_ended(ep, status);
}

expar_status expar_ep_destroy(expar_ep *ep)
{
    if (!ep) return EXPAR_OK;
    expar_status status = ep_check_outside(destroying);
    if (status == EXPAR_OK) status = ep_check_known(ep, destroying);
    return call_ended(status == EXPAR_OK ? ep_buffer_destroy(&ep->base) : status);
}

expar_status expar_ep_abandon(expar_ep *ep)
{
    return call_ended(ep && is_buffer(ep) ? ep_buffer_abandon(&ep->base) : EXPAR_OK);
}
