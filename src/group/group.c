/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and end of a group: expar_group_create, destroy and abort. */
#include "base/interrupt.h"
#include "group/parts.h"
#include "shmem/kinds.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static life_spent spent = LIFE_SPENT_NONE;

/* Boot's monitor calls this: a peer has died or left. */
static void on_gone(void *context, int32_t rank, bool clean)
{
    sym_fail(context, clean ? SYM_PEER_LEFT : SYM_PEER_DIED, rank);
}

static void group_free_memory(expar_group *group)
{
    sym_destroy(group->sym);
    /* After leaving: before that, transports may complete operations in the batches of objects attached to the
       group. */
    group_attachments_end(group);
    free(group->nodes);
    group->sym = NULL;
    group->boot = NULL;
    group->nodes = NULL;
    atomic_store_explicit(&group->life.references, 0, memory_order_release);
    life_keep(&spent, group);
}

void group_free(expar_group *group, bool sound)
{
    group_attachments_leave(group);
    sym_forget_boot(group->sym);
    /* This comes first: it stops the monitor, which may call on_gone until then. */
    group->boot->ops->leave(group->boot, sound);
    struct group_threads *threads = group->threads;
    group_free_memory(group);
    if (threads) group_threads_release(threads);
}

/* Waits of symmetric memory are counted, but hold no reference; if one is in progress, the memory that it uses is never
   freed. */
static bool is_quiet(const expar_group *group)
{
    return atomic_load_explicit(&group->sym->waiters, memory_order_acquire) == 0 &&
           atomic_load_explicit(&group->boot->inside, memory_order_acquire) == 0;
}

/* The last reference was dropped. */
static void group_end(void *object)
{
    expar_group *group = object;
    if (is_quiet(group))
        group_free(group, false);
    else
        LOG(LOG_INFO, "the group's memory stays: another thread is in a call on it");
}

static expar_status group_build(expar_group *group, boot *ctl, const group_settings *settings,
                                const group_threads *threads)
{
    group_topology topology;
    expar_status status = group_topology_find(ctl, settings->ranks_per_node, group->nodes, &topology);
    if (status != EXPAR_OK) return status;
    group->rank = ctl->rank;
    group->size = ctl->size;
    group->num_nodes = topology.num_nodes;
    group->ranks_per_node = topology.ranks_per_node;
    group->host_ranks = topology.host_ranks;
    group->host_cores = topology.host_cores;
    const sym_heap_plan plan = {
        .bytes = settings->heap_bytes,
        .fixed = settings->fixed_heap,
        .huge = settings->huge_heap,
        .region = threads ? threads->pointers[ctl->rank] : NULL,
        .peers = threads ? threads->pointers : NULL,
        .backing = threads ? threads->backings[ctl->rank] : NULL,
    };
    const sym_patience patience = {.timeout_ms = settings->timeout_ms, .spin_ns = settings->spin_us * 1000};
    status = sym_create(ctl, group->nodes, &patience, &plan, &group->sym);
    if (status == EXPAR_OK) status = ctl->ops->watch(ctl, on_gone, group->sym);
    return status;
}

/* Number of groups that the process has made. Each thread that makes a group raises it; relaxed, because only the
   numbers must differ. */
static _Atomic uint64_t groups_made;

expar_status group_make(boot *ctl, const group_settings *settings, group_threads *threads, expar_group **out)
{
    expar_group *group = calloc(1, sizeof *group);
    if (group) group->nodes = calloc((size_t)ctl->size, sizeof *group->nodes);
    if (!group || !group->nodes) {
        free(group);
        return error_set(EXPAR_ERR_MEMORY, "no memory for the records of a group of %d ranks", ctl->size);
    }
    group->life = life_begin(GROUP_MAGIC, group_end);
    group->pid = (int32_t)getpid();
    expar_status status = group_build(group, ctl, settings, threads);
    if (status != EXPAR_OK) {
        group_free_memory(group);
        return status;
    }
    group->boot = ctl;
    group->number = 1 + atomic_fetch_add_explicit(&groups_made, 1, memory_order_relaxed);
    group->threads = threads;
    *out = group;
    return EXPAR_OK;
}

/* Checks the caller's rank and size, and fills the request from them or from the environment. */
static expar_status make_request(const expar_group_options *options, const group_settings *settings,
                                 boot_request *request)
{
    *request = (boot_request){.timeout_ms = settings->bootstrap_timeout_ms, .late_limit_ms = settings->late_limit_ms};
    if (options->id) {
        if (options->size < 1)
            return error_set(EXPAR_ERR_RANGE, "expar_group_create: options.size %d, expected 1 or more", options->size);
        if (options->rank < 0 || options->rank >= options->size)
            return error_set(EXPAR_ERR_RANGE, "expar_group_create: options.rank %d, expected 0 to %d", options->rank,
                             options->size - 1);
        request->id = *options->id;
        request->have_id = true;
        request->rank = options->rank;
        request->size = options->size;
    } else {
        if (options->rank != 0 || options->size != 0)
            return error_set(
                EXPAR_ERR_ARGUMENT,
                "expar_group_create: options.rank %d and options.size %d need options.id; without one they come "
                "from the environment",
                options->rank, options->size);
        expar_status status = boot_request_from_env(request);
        if (status != EXPAR_OK) return status;
    }
    request->ranks_per_node = settings->ranks_per_node;
    request->heap_bytes = settings->heap_bytes;
    return EXPAR_OK;
}

static expar_status join(const boot_request *request, const group_settings *settings, expar_group **out)
{
    boot *ctl;
    expar_group *group;
    expar_status status = boot_join_sockets(request, &ctl);
    if (status != EXPAR_OK) return status;
    status = group_make(ctl, settings, NULL, &group);
    if (status != EXPAR_OK) {
        ctl->ops->leave(ctl, false);
        return status;
    }
    /* No rank goes on before all ranks have mapped each other. */
    status = ctl->ops->barrier(ctl);
    if (status != EXPAR_OK) {
        group_free(group, false);
        return status;
    }
    ctl->timeout_ms = settings->timeout_ms;
    boot_note_made(ctl);
    *out = group;
    return EXPAR_OK;
}

expar_status expar_group_create(const expar_group_options *options, expar_group **group)
{
    static const char call[] = "expar_group_create";
    expar_group_options known;
    group_settings settings;
    boot_request request;
    if (!group) return call_ended(error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    env_warn_unknown();
    expar_status status = group_options_copy(call, options, &known);
    if (status == EXPAR_OK) status = group_settings_read(call, &known, &settings);
    if (status == EXPAR_OK) status = make_request(&known, &settings, &request);
    if (status != EXPAR_OK) return call_ended(status);
    log_set_process_rank(request.rank);
    status = join(&request, &settings, group);
    boot_request_end(&request);
    return call_ended(status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s: rank %d", call, request.rank));
}

/* ---- references -------------------------------------------------------------------------------------------------- */

static expar_status report_ended(const char *call)
{
    return error_set(EXPAR_ERR_STATE, "%s: the group has been destroyed or abandoned", call);
}

bool group_enter(expar_group *group, const char *call)
{
    if (!life_alive(&group->life, GROUP_MAGIC) || !life_hold(&group->life)) {
        report_ended(call);
        return false;
    }
    if (!atomic_load_explicit(&group->ended, memory_order_relaxed)) return true;
    report_ended(call);
    group_leave(group);
    return false;
}

void group_leave(expar_group *group)
{
    life_drop(&group->life, GROUP_MAGIC);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static const char destroying[] = "expar_group_destroy";

/* A child that exits also runs what the program does at its exit: it would say good-bye in its parent's name. */
expar_status group_check_process(const expar_group *group, const char *call)
{
    const int32_t own = (int32_t)getpid();
    if (group->pid == own) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE,
                     "%s: this process, %d, was forked by rank %d, process %d, and is no rank; nothing is ended", call,
                     own, group->rank, group->pid);
}

/* Waits until only the owner holds the group: operations that were issued on an abandoned buffer end soon. */
static expar_status await_others(const expar_group *group)
{
    const int64_t end_ns = clock_ns() + group->boot->timeout_ms * 1000000;
    int64_t asked_ns = 0;
    expar_status status = EXPAR_OK;
    while (atomic_load_explicit(&group->life.references, memory_order_acquire) > 1 && status == EXPAR_OK) {
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        status = interrupt_look(&asked_ns, destroying);
        if (status == EXPAR_OK && clock_ns() >= end_ns)
            status = error_set(EXPAR_ERR_BUSY, "%s: rank %d: another thread is in a call on the group", destroying,
                               group->rank);
    }
    return status;
}

/* Checks that no buffer, and no call of another thread, holds the group. */
static expar_status check_unused(const expar_group *group)
{
    int32_t users = atomic_load_explicit(&group->users, memory_order_acquire);
    if (users > 0)
        return error_set(EXPAR_ERR_STATE, "%s: rank %d: %d EP buffers are alive, destroy them first", destroying,
                         group->rank, users);
    return await_others(group);
}

/* Another thread may abandon the group meanwhile, which ends the barrier. */
expar_status expar_group_destroy(expar_group *group)
{
    if (!group) return EXPAR_OK;
    if (!life_alive(&group->life, GROUP_MAGIC) || atomic_exchange_explicit(&group->ended, true, memory_order_relaxed))
        return group_ended(group, report_ended(destroying));
    expar_status status = group_check_process(group, destroying);
    if (status == EXPAR_OK) status = check_unused(group);
    if (status != EXPAR_OK) {
        atomic_store_explicit(&group->ended, false, memory_order_relaxed);
        return group_ended(group, status);
    }
    sym_barrier_end(group->sym);
    group_attachments_leave(group);
    if (sym_is_sound(group->sym)) kinds_end(group->sym, true);
    bool sound = sym_is_sound(group->sym);
    if (sound && group->boot->ops->finish(group->boot) != EXPAR_OK) LOG(LOG_INFO, "leaving: %s", expar_last_error());
    /* A driver may free memory only after all kernels of the GPU have ended. Kernels of another rank may wait for this
       one, and end when they know that it has gone. So the others learn of it first. */
    if (!sound) group->boot->ops->part(group->boot);
    group_leave(group);
    return EXPAR_OK;
}

/* Ends all waits of this rank's own threads and lets the others see it gone. The memory is freed when no thread is in a
   call any more. */
static void group_part(expar_group *group)
{
    const boot_topic all = {.kind = BOOT_KIND_ALL};
    /* A rank that asks before it gets the good-bye learns the same reason, and not only of an abort. */
    boot_note_ended(group->boot, &all, EXPAR_ERR_ABORTED, "it has left the group");
    sym_fail(group->sym, SYM_ABORTED, group->rank);
    group->boot->ops->abort(group->boot);
    group->boot->ops->part(group->boot);
}

expar_status expar_group_abandon(expar_group *group)
{
    if (!group || !life_alive(&group->life, GROUP_MAGIC)) return EXPAR_OK;
    if (group->pid != (int32_t)getpid()) {
        group->boot->ops->forsake(group->boot);
        return EXPAR_OK;
    }
    if (!life_hold(&group->life)) return EXPAR_OK;
    bool first = !atomic_exchange_explicit(&group->ended, true, memory_order_relaxed);
    group_part(group);
    if (first) group_leave(group);
    group_leave(group);
    return EXPAR_OK;
}

expar_status expar_group_abort(expar_group *group)
{
    static const char call[] = "expar_group_abort";
    if (!group) return call_ended(error_set(EXPAR_ERR_NULL, "%s: group is NULL", call));
    if (!life_alive(&group->life, GROUP_MAGIC) || !life_hold(&group->life))
        return group_ended(group, report_ended(call));
    sym_fail(group->sym, SYM_ABORTED, group->rank);
    group->boot->ops->abort(group->boot);
    group_leave(group);
    return EXPAR_OK;
}
