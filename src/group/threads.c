/* SPDX-License-Identifier: Apache-2.0 */
/* Groups whose ranks are threads of one process: one thread makes them all, with a heap in anonymous memory for
 * each. */
#include "group/parts.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_THREAD_RANKS 4096

static void threads_free(group_threads *threads)
{
    if (!threads) return;
    for (int32_t r = 0; threads->backings && r < threads->size; r++)
        mem_backing_drop(threads->backings[r]);
    for (int32_t r = 0; threads->heaps && r < threads->size; r++)
        if (threads->heaps[r].base) mem_region_close(&threads->heaps[r]);
    free(threads->backings);
    free(threads->heaps);
    free(threads->pointers);
    free(threads);
}

void group_threads_release(group_threads *threads)
{
    /* The last rank sees everything that the others did with the heaps before it unmaps them. */
    if (atomic_fetch_sub_explicit(&threads->references, 1, memory_order_acq_rel) == 1) threads_free(threads);
}

/* Makes the heap of rank r, and the part that follows it. */
static expar_status make_heap(group_threads *threads, int32_t r, size_t heap_bytes)
{
    mem_region after, *heap = &threads->heaps[r];
    expar_status status =
        mem_region_create_before(heap_bytes, sym_store_reserve(heap_bytes, threads->size, true), false, heap);
    if (status == EXPAR_OK) status = mem_region_create_following(heap, false, &after);
    return status == EXPAR_OK ? mem_backing_create(&after, threads->size, &threads->backings[r]) : status;
}

static expar_status make_heaps(int32_t size, size_t heap_bytes, group_threads **out)
{
    group_threads *threads = calloc(1, sizeof *threads);
    if (!threads) return error_set(EXPAR_ERR_MEMORY, "no memory for %d ranks", size);
    threads->size = size;
    atomic_init(&threads->references, size);
    threads->heaps = calloc((size_t)size, sizeof *threads->heaps);
    threads->pointers = calloc((size_t)size, sizeof *threads->pointers);
    threads->backings = calloc((size_t)size, sizeof(mem_backing *));
    expar_status status = EXPAR_OK;
    if (!threads->heaps || !threads->pointers || !threads->backings)
        status = error_set(EXPAR_ERR_MEMORY, "no memory for %d ranks", size);
    for (int32_t r = 0; r < size && status == EXPAR_OK; r++) {
        status = make_heap(threads, r, heap_bytes);
        threads->pointers[r] = &threads->heaps[r];
    }
    if (status != EXPAR_OK) {
        threads_free(threads);
        return status;
    }
    *out = threads;
    return EXPAR_OK;
}

/* Creates one rank, in a thread of its own because creation is collective. */
typedef struct maker {
    pthread_t thread;
    boot *boot;
    const group_settings *settings;
    group_threads *threads;
    expar_group *group;
    error_kept ended;
} maker;

static void *make_one(void *argument)
{
    maker *self = argument;
    log_set_rank(self->boot->rank);
    self->boot->timeout_ms = self->settings->timeout_ms;
    self->boot->late_limit_ms = self->settings->late_limit_ms;
    error_keep(&self->ended, group_make(self->boot, self->settings, self->threads, &self->group));
    if (self->ended.status == EXPAR_OK) boot_note_made(self->boot);
    if (self->ended.status != EXPAR_OK) {
        /* The others wait in exchanges for this rank, so it leaves. */
        self->boot->ops->leave(self->boot, false);
        group_threads_release(self->threads);
    }
    return NULL;
}

/* Returns the error to report: preferably a rank's own error, not one about another rank. */
static expar_status worst_of(const maker *makers, int32_t size)
{
    const maker *worst = NULL;
    for (int32_t r = 0; r < size; r++) {
        const expar_status status = makers[r].ended.status;
        bool follows = status == EXPAR_ERR_PEER || status == EXPAR_ERR_REMOTE;
        if (status != EXPAR_OK && (!worst || !follows)) worst = &makers[r];
        if (worst == &makers[r] && !follows) break;
    }
    return worst ? error_prefix(error_restore(&worst->ended), "rank %d", (int)(worst - makers)) : EXPAR_OK;
}

/* Takes ownership of boots[0 … size-1], on success and on failure. */
static expar_status make_groups(int32_t size, boot **boots, const group_settings *settings, group_threads *threads,
                                expar_group **groups)
{
    maker *makers = calloc((size_t)size, sizeof *makers);
    int32_t started = 0;
    for (; makers && started < size; started++) {
        makers[started] = (maker){.boot = boots[started], .settings = settings, .threads = threads};
        if (pthread_create(&makers[started].thread, NULL, make_one, &makers[started]) != 0) break;
    }
    expar_status status =
        started == size ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for the threads of %d ranks", size);
    for (int32_t r = started; r < size; r++) {
        boots[r]->ops->leave(boots[r], false);
        group_threads_release(threads);
    }
    for (int32_t r = 0; r < started; r++)
        pthread_join(makers[r].thread, NULL);
    if (status == EXPAR_OK) status = worst_of(makers, size);
    for (int32_t r = 0; r < started; r++) {
        groups[r] = makers[r].group;
        if (status != EXPAR_OK && makers[r].group) group_free(makers[r].group, false);
    }
    free(makers);
    return status;
}

static expar_status join_all(int32_t size, const group_settings *settings, expar_group **groups)
{
    group_threads *threads = NULL;
    boot **boots = calloc((size_t)size, sizeof(boot *));
    if (!boots) return error_set(EXPAR_ERR_MEMORY, "no memory for %d ranks", size);
    expar_status status = make_heaps(size, settings->heap_bytes, &threads);
    if (status == EXPAR_OK) status = boot_join_threads(size, settings->timeout_ms, boots);
    if (status == EXPAR_OK)
        status = make_groups(size, boots, settings, threads, groups);
    else
        threads_free(threads);
    free(boots);
    return status;
}

/* Creates the groups in an array of its own, so that the caller's array is written on success only. */
static expar_status threads_create(const char *call, int32_t size, const group_settings *settings, expar_group **groups)
{
    expar_group **made = calloc((size_t)size, sizeof(expar_group *));
    if (!made) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for %d ranks", call, size);
    expar_status status = join_all(size, settings, made);
    for (int32_t r = 0; r < size && status == EXPAR_OK; r++)
        groups[r] = made[r];
    free(made);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call);
}

expar_status expar_group_create_threads(int32_t size, const expar_group_options *options, expar_group **groups)
{
    static const char call[] = "expar_group_create_threads";
    expar_group_options known;
    group_settings settings;
    if (!groups) return call_ended(error_set(EXPAR_ERR_NULL, "%s: groups is NULL", call));
    env_warn_unknown();
    if (size < 1 || size > MAX_THREAD_RANKS)
        return call_ended(error_set(EXPAR_ERR_RANGE, "%s: size %d, expected 1 to %d", call, size, MAX_THREAD_RANKS));
    expar_status status = group_options_copy(call, options, &known);
    if (status == EXPAR_OK && known.size != 0 && known.size != size)
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: options.size %d, expected 0 or %d", call, known.size, size);
    if (status == EXPAR_OK) status = group_settings_read(call, &known, &settings);
    return call_ended(status == EXPAR_OK ? threads_create(call, size, &settings, groups) : status);
}
