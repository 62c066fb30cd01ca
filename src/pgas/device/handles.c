/* SPDX-License-Identifier: Apache-2.0 */
/* The handles of a group, from the first one to the group's end. */
#include "pgas/device/parts.h"

#include <stdlib.h>

/* ---- lifetime ---------------------------------------------------------------------------------------------------- */

static void handles_free(group_attachment *attachment)
{
    handles *all = (handles *)attachment;
    sem_destroy(&all->wake);
    pthread_mutex_destroy(&all->quiet);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

handles *handles_of(const expar_group *group)
{
    return (handles *)group_kept(group, handles_free);
}

static void handles_end_one(handle_slot *slot)
{
    if (slot->waits) boot_wait_end(&slot->wait);
    slot->waits = false;
    slot_end(slot);
}

static const sym_rings_user users[] = {SYM_RINGS_HANDLES_GPU, SYM_RINGS_HANDLES_CPU};

/* Completes what kernels have left in rings and in queues. */
static expar_status rings_quiet(const char *what, handles *all)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&all->quiet);
    for (size_t i = 0; i < ARRAY_LENGTH(users); i++) {
        const sym_rings *rings = sym_rings_of(all->group->sym, users[i]);
        const expar_status one = rings ? sym_rings_quiet(rings, what) : EXPAR_OK;
        if (status == EXPAR_OK) status = one;
    }
    const expar_status queues = sym_queues_quiet(all->group->sym);
    if (status == EXPAR_OK) status = queues;
    pthread_mutex_unlock(&all->quiet);
    return status;
}

/* The group ends: its boot and its heaps are still there. The rings' threads use them, so they end before. */
static void handles_leave(group_attachment *attachment)
{
    handles *all = (handles *)attachment;
    sym *const self = all->group->sym;
    if (sym_is_sound(self) && rings_quiet("expar_group_destroy", all) != EXPAR_OK)
        LOG(LOG_WARN, "%s", expar_last_error());
    for (size_t i = 0; i < ARRAY_LENGTH(users); i++)
        sym_rings_end(self, users[i]);
    if (all->runs) {
        sym_unlisten(all->group->sym, &all->listener);
        guard_stop(all);
    }
    all->runs = false;
    launched_free(all);
    pthread_mutex_lock(&all->lock);
    while (all->first) {
        handle_slot *slot = all->first;
        all->first = slot->next;
        handles_end_one(slot);
    }
    pthread_mutex_unlock(&all->lock);
}

/* Called under a lock of sym, so it only wakes the guard. */
static void group_has_failed(void *context)
{
    handles *all = context;
    sem_post(&all->wake);
}

/* One thread makes the handles, others wait for it. */
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static expar_status handles_make(const char *what, expar_group *group, handles **out)
{
    handles *all = calloc(1, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "%s: no memory", what);
    all->attachment.end = handles_free;
    all->attachment.leave = handles_leave;
    all->group = group;
    all->listener = (sym_listener){.failed = group_has_failed, .context = all};
    pthread_mutex_init(&all->lock, NULL);
    pthread_mutex_init(&all->quiet, NULL);
    sem_init(&all->wake, 0, 0);
    expar_status status = guard_start(all);
    if (status != EXPAR_OK) {
        handles_free(&all->attachment);
        return error_prefix(status, "%s", what);
    }
    all->runs = true;
    sym_listen(group->sym, &all->listener);
    group_keep(group, &all->attachment);
    *out = all;
    return EXPAR_OK;
}

expar_status handles_open(const char *what, expar_group *group, handles **out)
{
    pthread_mutex_lock(&making);
    *out = handles_of(group);
    const expar_status status = *out ? EXPAR_OK : handles_make(what, group, out);
    pthread_mutex_unlock(&making);
    return status;
}

void handles_add(handles *all, handle_slot *slot)
{
    pthread_mutex_lock(&all->lock);
    slot->next = all->first;
    all->first = slot;
    pthread_mutex_unlock(&all->lock);
}

expar_status handles_quiet(const char *what, const expar_group *group)
{
    handles *all = handles_of(group);
    return all ? rings_quiet(what, all) : EXPAR_OK;
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

void handles_renew(expar_group *group)
{
    handles *all = handles_of(group);
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    for (handle_slot *slot = all->first; slot; slot = slot->next)
        if (table_renew(group, slot) != EXPAR_OK)
            slot_end_waits(slot, EXPAR_ERR_CUDA, "the handle's table could not be copied to the GPU");
    pthread_mutex_unlock(&all->lock);
}

/* Ends handles of the team (NULL: of any), and of the context (NULL: of any). */
static void end_some(const expar_group *group, const expar_team *team, const expar_ctx *ctx)
{
    handles *all = group ? handles_of(group) : NULL;
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    handle_slot **place = &all->first;
    while (*place) {
        handle_slot *slot = *place;
        if ((!team || slot->team == team) && (!ctx || slot->ctx == ctx)) {
            *place = slot->next;
            handles_end_one(slot);
        } else {
            place = &slot->next;
        }
    }
    pthread_mutex_unlock(&all->lock);
}

void handles_end_of_team(const expar_team *team)
{
    end_some(team->group, team, NULL);
}

void handles_end_of_context(const expar_ctx *ctx)
{
    end_some(ctx->group, NULL, ctx);
}
