/* SPDX-License-Identifier: Apache-2.0 */
/* Global exit, and the end of the job when a call fails. */
#include "openshmem/exit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Looks for the exit of another PE this often; a PE that computes ends by it, one that waits ends sooner. */
#define LOOK_NS    20000000
#define EXIT_ASKED (UINT64_C(1) << 32)

/* Between exit_begin and exit_end; written by them alone. NULL: not begun. */
static expar_group *exit_group;
/* Also afterwards, for messages. */
static int32_t exit_rank;
/* In the symmetric heap: EXIT_ASKED + status once a PE has called exit_all; set by that PE with an atomic, read by the
   watcher and by failing calls. */
static uint64_t *exit_word;
static pthread_t watcher;
/* Set by exit_end, read by the watcher; nothing else depends on it. */
static _Atomic bool watcher_stops;

/* Without the program's own handlers, which may not expect this while others of its threads go on; with that by which
   expar says good-bye to the launcher. The first thread to come ends the process. */
static void leave_process(int status) __attribute__((noreturn));
static void leave_process(int status)
{
    static pthread_mutex_t leaving = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&leaving);
    fflush(NULL);
    quick_exit(status);
}

static void leave_if_asked(void)
{
    uint64_t word = exit_word ? atomic_load_explicit((_Atomic uint64_t *)exit_word, memory_order_acquire) : 0;
    if (word & EXIT_ASKED) leave_process((int)(uint32_t)word);
}

static void *watch_for_exit(void *unused)
{
    (void)unused;
    while (!atomic_load_explicit(&watcher_stops, memory_order_relaxed)) {
        leave_if_asked();
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return NULL;
}

expar_status exit_begin(expar_group *group, bool *watches)
{
    exit_rank = expar_group_rank(group);
    expar_status status = expar_calloc(group, 1, sizeof *exit_word, (void **)&exit_word);
    if (status != EXPAR_OK) return status;
    exit_group = group;
    atomic_store_explicit(&watcher_stops, false, memory_order_relaxed);
    *watches = pthread_create(&watcher, NULL, watch_for_exit, NULL) == 0;
    return EXPAR_OK;
}

void exit_end(void)
{
    atomic_store_explicit(&watcher_stops, true, memory_order_relaxed);
    pthread_join(watcher, NULL);
    exit_group = NULL;
    exit_word = NULL;
}

void exit_all(int status)
{
    for (int32_t pe = 0; exit_group && pe < expar_group_size(exit_group); pe++)
        if (pe != exit_rank) expar_atomic_set_u64(exit_group, exit_word, EXIT_ASKED | (uint32_t)status, pe);
    if (exit_group) expar_quiet(exit_group);
    leave_process(status);
}

void exit_must(expar_status status)
{
    if (status == EXPAR_OK) return;
    leave_if_asked();
    fprintf(stderr, "%s: PE %d: %s: %s\n", exit_library, exit_rank, expar_status_string(status), expar_last_error());
    exit_all(EXIT_FAILURE);
}

void exit_fail(const char *what)
{
    fprintf(stderr, "%s: PE %d: %s\n", exit_library, exit_rank, what);
    exit_all(EXIT_FAILURE);
}
