/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency buffer: the shape on which all ranks agree, and the executor that carries its calls out. */
#include "ep/low_latency/ll.h"

#include <stdlib.h>

static life_spent spent = LIFE_SPENT_NONE;
static const char creating[] = "expar_ll_create", destroying[] = "expar_ll_destroy";

void ll_unkeep(expar_ll *ll)
{
    if (!ll || atomic_fetch_sub_explicit(&ll->keepers, 1, memory_order_acq_rel) > 1) return;
    ep_buffer_free_parts(&ll->base);
    life_keep(&spent, ll);
}

static void unkeep_buffer(ep_buffer *buffer)
{
    ll_unkeep((expar_ll *)buffer);
}

static void give_combine_memory(ep_buffer *buffer)
{
    expar_ll *ll = (expar_ll *)buffer;
    mem_block_release(ll->combine_memory);
    ll->combine_memory = NULL;
}

static uint64_t number_of_call(uint64_t calls)
{
    return 2 * calls;
}

static const ep_buffer_kind ll_buffers = {.magic = LL_MAGIC,
                                          .topic = BOOT_KIND_LOW_LATENCY,
                                          .destroying = destroying,
                                          .number = number_of_call,
                                          .mismatch = ll_mismatch,
                                          .let_go = give_combine_memory,
                                          .free = unkeep_buffer};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* Tells all ranks whether all can create the buffer; own is the error that this rank found. */
static expar_status ll_agree(expar_group *group, const expar_ll_config *config, uint32_t number, expar_status own)
{
    const ep_name_text sums = ep_tell(&ep_names_sums, config->sums ? config->sums : LL_ALL_SUMS),
                       device = ep_tell(&ep_names_device, config->device.type ? config->device.type : EXPAR_CPU);
    const int64_t row_bytes = config->max_row_bytes ? config->max_row_bytes : 2 * (int64_t)config->hidden;
    const boot_field fields[] = {
        {.name = "config.max_tokens", .value = (uint64_t)config->max_tokens},
        {.name = "config.hidden", .value = (uint64_t)config->hidden},
        {.name = "config.max_topk", .value = (uint64_t)config->max_topk},
        {.name = "config.num_experts", .value = (uint64_t)config->num_experts},
        {.name = "config.max_row_bytes", .value = (uint64_t)row_bytes},
        {.name = "config.sums", .text = sums.text},
        {.name = "config.device.type", .text = device.text},
        {.name = "config.masking", .value = (uint64_t)config->masking},
        {.name = "config.unmapped", .value = (uint64_t)config->unmapped},
        {.name = "config.reserve_bytes", .value = config->reserve_bytes},
        {.name = "number of buffers that were created on the group", .value = number},
    };
    const boot_matter matter = {.what = "the low-latency buffer",
                                .rejected = "rejected its config",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    return sym_agree(group->sym, &matter, own);
}

static expar_status new_ll(expar_group *group, const expar_ll_config *config, const ll_shape *shape, uint32_t number,
                           expar_ll **out)
{
    expar_ll *ll = calloc(1, sizeof *ll);
    if (!ll) return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
    ep_buffer_begin(&ll->base, &ll_buffers, group, config->device, number);
    atomic_init(&ll->keepers, 1);
    ll->shape = *shape;
    ll->reserve = ll_reserved_of(group->size, config->reserve_bytes);
    *out = ll;
    return EXPAR_OK;
}

static expar_status make_ll_executor(ep_buffer *buffer, const void *plan)
{
    return ll_create_of(buffer->device.type)(plan, &buffer->exec);
}

static expar_status ll_make(expar_group *group, const expar_ll_config *given, expar_ll **out)
{
    /* Whether or not this buffer is made, the next one's number is the same on all ranks. */
    const uint32_t number = ++group->num_buffers;
    expar_ll_config config = {0};
    ll_shape shape = {0};
    expar_ll *ll = NULL;
    expar_status own = ll_shape_make(given, group->size, &config, &shape);
    if (own == EXPAR_OK && !out) own = error_set(EXPAR_ERR_NULL, "ll is NULL");
    if (own == EXPAR_OK) own = new_ll(group, &config, &shape, number, &ll);
    expar_status status = ll_agree(group, &config, number, own);
    if (status == EXPAR_OK) {
        const ll_plan plan = {.group = group,
                              .number = number,
                              .shape = &ll->shape,
                              .device = ll->base.device,
                              .num_threads = config.num_threads,
                              .num_sms = config.num_sms,
                              .late_limit_ms = config.late_limit_ms,
                              .reserve_bytes = config.reserve_bytes};
        status = ep_buffer_make_parts(&ll->base, make_ll_executor, &plan);
    }
    if (status != EXPAR_OK) {
        ll_unkeep(ll);
        return error_prefix(status, "%s", creating);
    }
    atomic_fetch_add_explicit(&group->users, 1, memory_order_relaxed);
    *out = ll;
    return EXPAR_OK;
}

/* The buffer keeps the group entered. */
expar_status expar_ll_create(expar_group *group, const expar_ll_config *config, expar_ll **ll)
{
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", creating));
    if (!group_enter(group, creating)) return group_ended(group, EXPAR_ERR_STATE);
    group->boot->call = creating;
    expar_status status = ll_make(group, config, ll);
    group->boot->call = NULL;
    if (status != EXPAR_OK) group_leave(group);
    return group_ended(group, status);
}

/* ---- who has it, and its end ------------------------------------------------------------------------------------- */

/* Whatever it is that the caller holds. */
static bool is_ll(const expar_ll *ll)
{
    return ll->base.life.magic == LL_MAGIC;
}

expar_status ll_check_known(const expar_ll *ll, const char *name)
{
    if (!ll) return error_set(EXPAR_ERR_NULL, "%s: ll is NULL", name);
    return is_ll(ll) ? EXPAR_OK : ep_buffer_has_ended(name);
}

expar_status ll_take(expar_ll *ll, const char *name, bool alone)
{
    expar_status status = ll_check_known(ll, name);
    if (status == EXPAR_OK) status = ep_buffer_take(&ll->base, name);
    if (status != EXPAR_OK) return status;
    const ep_call asking = {.buffer = &ll->base, .name = name, .number = number_of_call(ll->base.calls)};
    status = alone ? ep_call_settle(&asking) : ep_call_check_earlier(&asking);
    return status == EXPAR_OK ? EXPAR_OK : ep_buffer_give(&ll->base, status);
}

expar_status ll_check_shaped(const expar_ll *ll, const char *name)
{
    if (ll->shape.tokens > 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE, "%s: the buffer has no shape; expected expar_ll_set_shape first", name);
}

expar_status expar_ll_destroy(expar_ll *ll)
{
    if (!ll) return EXPAR_OK;
    const expar_status status = ll_check_known(ll, destroying);
    return call_ended(status == EXPAR_OK ? ep_buffer_destroy(&ll->base) : status);
}

expar_status expar_ll_abandon(expar_ll *ll)
{
    return call_ended(ll && is_ll(ll) ? ep_buffer_abandon(&ll->base) : EXPAR_OK);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static uint64_t count_of(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

expar_status expar_ll_get_stats(expar_ll *ll, expar_ll_stats *stats)
{
    static const char name[] = "expar_ll_get_stats";
    expar_status status = ll_check_known(ll, name);
    if (status == EXPAR_OK) status = ep_buffer_enter(&ll->base, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    const ll_counts *counts = ll->base.exec->ll->count(ll->base.exec);
    const expar_ll_stats full = {.heap_bytes = counts->heap_bytes + ep_teardown_bytes(ll->base.group->size),
                                 .dispatches = count_of(&counts->dispatches),
                                 .combines = count_of(&counts->combines),
                                 .dispatch_messages = count_of(&counts->dispatch_messages),
                                 .combine_rows = count_of(&counts->combine_rows),
                                 .bytes_sent = count_of(&counts->bytes_sent)};
    status = struct_give(name, "stats", "EXPAR_LL_STATS_INIT", &full, sizeof full, stats);
    ep_buffer_leave(&ll->base);
    return ll_ended(ll, status);
}
