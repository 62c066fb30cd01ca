/* SPDX-License-Identifier: Apache-2.0 */
/* Start, end, and what a program may ask about itself. */
#include "openshmem/shm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

shm_state shm;

/* ---- global exit ------------------------------------------------------------------------------------------------- */

/* Looks for the exit of another PE this often; a PE that computes ends by it, one that waits ends sooner. */
#define LOOK_NS    20000000
#define EXIT_ASKED (UINT64_C(1) << 32)

/* In the symmetric heap: EXIT_ASKED + status once a PE has called shmem_global_exit; set by that PE with an atomic,
   read by the watcher and by failing calls. */
static uint64_t *exit_word;
static pthread_t watcher;
/* Set by shmem_finalize, read by the watcher; nothing else depends on it. */
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

static void *watch(void *unused)
{
    (void)unused;
    while (!atomic_load_explicit(&watcher_stops, memory_order_relaxed)) {
        leave_if_asked();
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return NULL;
}

void shmem_global_exit(int status)
{
    /* Whom it does not reach, the launcher ends. */
    for (int32_t pe = 0; shm.group && pe < shm.size; pe++)
        if (pe != shm.rank) expar_atomic_set_u64(shm.group, exit_word, EXIT_ASKED | (uint32_t)status, pe);
    if (shm.group) expar_quiet(shm.group);
    leave_process(status);
}

void shm_must(expar_status status)
{
    if (status == EXPAR_OK) return;
    leave_if_asked();
    fprintf(stderr, "shmem: PE %d: %s: %s\n", shm.rank, expar_status_string(status), expar_last_error());
    shmem_global_exit(EXIT_FAILURE);
}

void shm_fail(const char *what)
{
    fprintf(stderr, "shmem: PE %d: %s\n", shm.rank, what);
    shmem_global_exit(EXIT_FAILURE);
}

size_t shm_bytes(size_t nelems, size_t element_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(nelems, element_bytes, &bytes)) shm_fail("a number of elements overflows");
    return bytes;
}

int shm_done(expar_status status)
{
    shm_must(status);
    return 0;
}

/* ---- start and end ----------------------------------------------------------------------------------------------- */

static void start(int thread_level)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    if (shm.group) return;
    shm_environment_read(&options);
    options.heap_pages = EXPAR_HEAP_PAGES_SYSTEM; /* the program's variables are moved there */
    expar_group *group;
    shm_must(expar_group_create(&options, &group));
    shm.rank = expar_group_rank(group);
    shm.size = expar_group_size(group);
    shm.thread_level = thread_level;
    shm_must(expar_globals_share(group));
    shm_must(expar_calloc(group, 1, sizeof *exit_word, (void **)&exit_word));
    shm_must(expar_team_get_world(group, &shm.world));
    shm_must(expar_team_get_shared(group, &shm.shared));
    shm.group = group;
    if (shm.rank == 0) shm_environment_print();
    if (pthread_create(&watcher, NULL, watch, NULL) != 0) shm_fail("no thread to be had");
    shm_must(expar_barrier_all(group));
}

void shmem_init(void)
{
    start(SHMEM_THREAD_SINGLE);
}

int shmem_init_thread(int requested, int *provided)
{
    if (requested < SHMEM_THREAD_SINGLE || requested > SHMEM_THREAD_MULTIPLE)
        shm_fail("shmem_init_thread: no such thread level");
    start(requested);
    *provided = shm.thread_level;
    return 0;
}

void shmem_query_thread(int *provided)
{
    *provided = shm.thread_level;
}

void shmem_finalize(void)
{
    expar_group *group = shm.group;
    if (!group) return;
    shm_must(expar_barrier_all(group));
    atomic_store_explicit(&watcher_stops, true, memory_order_relaxed);
    pthread_join(watcher, NULL);
    shm.group = NULL;
    exit_word = NULL;
    shm_must(expar_group_destroy(group));
}

void start_pes(int npes)
{
    (void)npes;
    if (!shm.group) atexit(shmem_finalize);
    start(SHMEM_THREAD_SINGLE);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

int shmem_my_pe(void)
{
    return shm.rank;
}

int shmem_n_pes(void)
{
    return shm.size;
}

int _my_pe(void)
{
    return shm.rank;
}

int _num_pes(void)
{
    return shm.size;
}

int shmem_pe_accessible(int pe)
{
    return pe >= 0 && pe < shm.size;
}

int shmem_addr_accessible(const void *addr, int pe)
{
    return shmem_pe_accessible(pe) && expar_ptr(shm.group, addr, shm.rank) != NULL;
}

void *shmem_ptr(const void *dest, int pe)
{
    return pe == shm.rank && shmem_addr_accessible(dest, pe) ? (void *)(uintptr_t)dest : expar_ptr(shm.group, dest, pe);
}

void shmem_pcontrol(int level, ...)
{
    (void)level;
}

void shmem_info_get_version(int *major, int *minor)
{
    *major = SHMEM_MAJOR_VERSION;
    *minor = SHMEM_MINOR_VERSION;
}

void shmem_info_get_name(char *name)
{
    memcpy(name, SHMEM_VENDOR_STRING, sizeof SHMEM_VENDOR_STRING);
}
