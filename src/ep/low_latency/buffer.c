/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency buffer: what all ranks agree on, and the executor that carries its calls out. */
#include "ep/low_latency/ll.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static life_spent spent = LIFE_SPENT_NONE;
static const char creating[] = "expar_ll_create", destroying[] = "expar_ll_destroy";

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* All ranks learn whether all can; own is what this rank found wrong. */
static expar_status ll_agree(expar_group *group, const expar_ll_config *config, uint32_t number, expar_status own)
{
    const boot_field fields[] = {
        {.name = "config.max_tokens", .value = (uint64_t)config->max_tokens},
        {.name = "config.hidden", .value = (uint64_t)config->hidden},
        {.name = "config.num_topk", .value = (uint64_t)config->num_topk},
        {.name = "config.num_experts", .value = (uint64_t)config->num_experts},
        {.name = "config.max_element_bytes", .value = (uint64_t)config->max_element_bytes},
        {.name = "config.sums", .value = (uint64_t)config->sums},
        {.name = "config.device.type", .value = (uint64_t)config->device.type},
        {.name = "config.masking", .value = (uint64_t)config->masking},
        {.name = "config.unmapped", .value = (uint64_t)config->unmapped},
        {.name = "config.reserve_bytes", .value = config->reserve_bytes},
        {.name = "number of buffers that were created on the group", .value = number},
    };
    const boot_matter matter = {.what = "the low-latency buffer",
                                .refused = "refused its config",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields)};
    return sym_agree(group->sym, &matter, own);
}

static expar_status new_ll(expar_group *group, const expar_ll_config *config, const ll_shape *shape, uint32_t number,
                           expar_ll **out)
{
    expar_ll *ll = calloc(1, sizeof *ll);
    if (!ll) return error_set(EXPAR_ERR_MEMORY, "no memory for a low-latency buffer");
    ll->life = life_begin(LL_MAGIC);
    atomic_init(&ll->keepers, 1);
    ll->group = group;
    ll->rank = group->rank;
    ll->device =
        (expar_device){.type = config->device.type ? config->device.type : EXPAR_CPU, .index = config->device.index};
    ll->shape = *shape;
    ll->number = number;
    ll->parting = (ep_parting){.group = group, .call = destroying, .number = number};
    pthread_mutex_init(&ll->poison_lock, NULL);
    *out = ll;
    return EXPAR_OK;
}

void ll_unkeep(expar_ll *ll)
{
    if (!ll || atomic_fetch_sub_explicit(&ll->keepers, 1, memory_order_acq_rel) > 1) return;
    ep_issuer_free(ll->issuer);
    pthread_mutex_destroy(&ll->poison_lock);
    atomic_store_explicit(&ll->life.references, 0, memory_order_release);
    life_keep(&spent, ll);
}

/* On all ranks, or on none. */
static expar_status ll_make_parts(expar_ll *ll, const expar_ll_config *config)
{
    const ll_plan plan = {.group = ll->group,
                          .number = ll->number,
                          .shape = &ll->shape,
                          .device = ll->device,
                          .num_threads = config->num_threads,
                          .num_sms = config->num_sms,
                          .late_limit_ms = config->late_limit_ms,
                          .reserve_bytes = config->reserve_bytes};
    error_kept kept;
    expar_status status = ep_parting_make(&ll->parting);
    if (status != EXPAR_OK) return status;
    status = ll_create_of(ll->device.type)(&plan, &ll->exec);
    if (status == EXPAR_OK) return EXPAR_OK;
    error_keep(&kept, status);
    ep_parting_give(&ll->parting);
    return error_restore(&kept);
}

static expar_status ll_make(expar_group *group, const expar_ll_config *given, expar_ll **out)
{
    /* Whatever comes of this one, the next one's number is the same on all ranks. */
    const uint32_t number = ++group->num_buffers;
    expar_ll_config config = {0};
    ll_shape shape = {0};
    expar_ll *ll = NULL;
    expar_status own = ll_shape_make(given, group->size, &config, &shape);
    if (own == EXPAR_OK && !out) own = error_set(EXPAR_ERR_NULL, "ll is NULL");
    if (own == EXPAR_OK) own = new_ll(group, &config, &shape, number, &ll);
    expar_status status = ll_agree(group, &config, number, own);
    if (status == EXPAR_OK) status = ll_make_parts(ll, &config);
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

/* ---- who holds it ------------------------------------------------------------------------------------------------ */

static expar_status ll_has_ended(const char *call)
{
    return error_set(EXPAR_ERR_STATE, "%s: the buffer has been destroyed or abandoned", call);
}

expar_status ll_enter(expar_ll *ll, const char *name)
{
    if (!ll) return error_set(EXPAR_ERR_NULL, "%s: ll is NULL", name);
    if (!life_alive(&ll->life, LL_MAGIC) || !life_hold(&ll->life)) return ll_has_ended(name);
    if (!atomic_load_explicit(&ll->ended, memory_order_relaxed)) return EXPAR_OK;
    ll_leave(ll);
    return ll_has_ended(name);
}

/* All calls of this rank have ended. A call that was broken off has left the ranks in different places of it. */
static void ll_retire(const expar_ll *ll)
{
    ep_refusal refusal = {.status = EXPAR_ERR_PEER};
    if (ll->poison.status != EXPAR_OK) return;
    snprintf(refusal.text, sizeof refusal.text, "rank %d has abandoned the buffer", ll->rank);
    ll->exec->ops->retire(ll->exec, &refusal);
    /* For those who are in the next call already, or await something else of it. */
    const boot_topic next = {.kind = BOOT_KIND_LOW_LATENCY, .object = ll->number, .number = 2 * (ll->calls + 1)};
    boot_note_ended(ll->group->boot, &next, EXPAR_ERR_PEER, "it has abandoned the buffer");
}

/* The executor goes with who ends the buffer, the group with it; the record with the last hook. */
static void ll_end_alone(expar_ll *ll)
{
    if (ll->exec) {
        ll_retire(ll);
        mem_block_release(ll->combine_memory);
        ll->exec->ops->destroy(ll->exec, false);
        ll->exec = NULL;
    }
}

void ll_leave(expar_ll *ll)
{
    if (life_drop(&ll->life, LL_MAGIC) != LIFE_LAST) return;
    expar_group *group = ll->group;
    ll_end_alone(ll);
    ll->group = NULL;
    ll_unkeep(ll);
    group_leave(group);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Whether the ranks give the buffer back together. Only the group's failure, and who has abandoned the buffer, is known
   to all of them: a call that failed may have failed here alone. Who was missed in it may have fallen silent, though.
   */
static bool ll_all_come(expar_ll *ll)
{
    sym *symmetric = ll->group->sym;
    const expar_status poison = ll->poison.status;
    if (sym_check(symmetric, destroying) != EXPAR_OK) return false;
    if (poison == EXPAR_ERR_PEER && sym_blame_silent(symmetric, poison)) return false;
    if (ep_parting_meet(&ll->parting) == EXPAR_OK) return true;
    LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    return false;
}

static void ll_end_together(expar_ll *ll)
{
    expar_group *group = ll->group;
    const bool sound = ll_all_come(ll);
    if (sound) group->boot->call = destroying;
    mem_block_release(ll->combine_memory);
    ll->combine_memory = NULL;
    ll->exec->ops->destroy(ll->exec, sound);
    if (sound && ep_parting_give(&ll->parting) != EXPAR_OK) LOG(LOG_WARN, "%s: %s", destroying, expar_last_error());
    if (sound) group->boot->call = NULL;
    ll->exec = NULL;
}

static void ll_stop_issuer(expar_ll *ll)
{
    if (!ll->issuer) return;
    ep_issuer_stop(ll->issuer);
    ll->issuer = NULL;
    life_drop(&ll->life, LL_MAGIC);
}

expar_status expar_ll_destroy(expar_ll *ll)
{
    if (!ll) return EXPAR_OK;
    if (!life_alive(&ll->life, LL_MAGIC) || atomic_exchange_explicit(&ll->ended, true, memory_order_relaxed))
        return call_ended(ll_has_ended(destroying));
    const expar_status ours = group_check_process(ll->group, destroying);
    if (ours != EXPAR_OK) {
        atomic_store_explicit(&ll->ended, false, memory_order_relaxed);
        return call_ended(ours);
    }
    int32_t idle = 0;
    if (!atomic_compare_exchange_strong(&ll->busy, &idle, 1)) {
        atomic_store_explicit(&ll->ended, false, memory_order_relaxed);
        return call_ended(error_set(EXPAR_ERR_BUSY, "%s: a call on this buffer is still running", destroying));
    }
    expar_status waited = ep_issuer_await(ll->issuer, EP_CALL_ENDED);
    if (waited != EXPAR_OK) {
        atomic_store_explicit(&ll->ended, false, memory_order_relaxed);
        atomic_store_explicit(&ll->busy, 0, memory_order_release);
        return call_ended(error_prefix(waited, "%s", destroying));
    }
    ll_stop_issuer(ll);
    ll_end_together(ll);
    atomic_fetch_sub_explicit(&ll->group->users, 1, memory_order_relaxed);
    ll_leave(ll);
    return EXPAR_OK;
}

static void leave_ll(void *ll)
{
    ll_leave(ll);
}

/* A thread that is in a call here ends it; what was issued goes on by itself, and holds the buffer until then. */
static void ll_give_up(expar_ll *ll)
{
    ep_parting_leave(&ll->parting);
    if (atomic_load(&ll->busy)) ll->exec->ops->halt(ll->exec);
    if (ll->issuer) ep_issuer_let_go(ll->issuer, leave_ll, ll);
    atomic_fetch_sub_explicit(&ll->group->users, 1, memory_order_relaxed);
}

expar_status expar_ll_abandon(expar_ll *ll)
{
    if (!ll || !life_alive(&ll->life, LL_MAGIC) || !life_hold(&ll->life)) return EXPAR_OK;
    if (ll->group->pid != (int32_t)getpid()) { /* nothing here is this process's to end */
        life_drop(&ll->life, LL_MAGIC);
        return EXPAR_OK;
    }
    if (!atomic_exchange(&ll->ended, true)) {
        ll_give_up(ll);
        ll_leave(ll);
    }
    ll_leave(ll);
    return EXPAR_OK;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static uint64_t count_of(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

expar_status expar_ll_get_stats(expar_ll *ll, expar_ll_stats *stats)
{
    static const char name[] = "expar_ll_get_stats";
    expar_status status = ll_enter(ll, name);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    const ll_counts *counts = &ll->exec->counts;
    ll->exec->ops->count(ll->exec);
    const expar_ll_stats full = {.heap_bytes = ll->exec->heap_bytes + ep_parting_bytes(ll->group->size),
                                 .dispatches = count_of(&counts->dispatches),
                                 .combines = count_of(&counts->combines),
                                 .dispatch_messages = count_of(&counts->dispatch_messages),
                                 .combine_rows = count_of(&counts->combine_rows),
                                 .bytes_sent = count_of(&counts->bytes_sent)};
    status = struct_give(name, "stats", "EXPAR_LL_STATS_INIT", &full, sizeof full, stats);
    ll_leave(ll);
    return ll_ended(ll, status);
}
