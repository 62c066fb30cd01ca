/* SPDX-License-Identifier: Apache-2.0 */
/* Start, end, and what a program may ask about itself. */
#include "openshmem/exit.h"
#include "openshmem/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

shm_state shm;

const char exit_library[] = "shmem";

void shmem_global_exit(int status)
{
    exit_all(status);
}

void shm_must(expar_status status)
{
    exit_must(status);
}

void shm_fail(const char *what)
{
    exit_fail(what);
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

/* PEs of a node that share memory take its GPUs in turn. */
static void choose_memory(void)
{
    int32_t version, num_gpus = 0;
    shm.memory = shm_environment_memory();
    shm.device = 0;
    if (shm.memory == EXPAR_MEMORY_HOST) return;
    const expar_status got = expar_cuda_get_driver(&version, &num_gpus);
    if (got != EXPAR_OK || num_gpus < 1) {
        char wrong[512];
        snprintf(wrong, sizeof wrong, "EXPAR_SHMEM_MEMORY=pinned needs a GPU: %s",
                 got != EXPAR_OK ? expar_last_error() : "the driver shows none");
        shm_fail(wrong);
    }
    shm.device = expar_team_my_pe(shm.shared) % num_gpus;
}

static void start(int thread_level)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    if (shm.group) return;
    shm_environment_read(&options);
    options.heap_pages = EXPAR_HEAP_PAGES_SYSTEM; /* the program's variables are moved there */
    expar_group *group;
    bool watches = false;
    shm_must(expar_group_create(&options, &group));
    shm.rank = expar_group_rank(group);
    shm.size = expar_group_size(group);
    shm.thread_level = thread_level;
    shm_must(expar_globals_share(group));
    shm_must(exit_begin(group, &watches));
    shm_must(expar_team_get_world(group, &shm.world));
    shm_must(expar_team_get_shared(group, &shm.shared));
    choose_memory();
    shm.group = group;
    if (shm.rank == 0) shm_environment_print();
    if (!watches) shm_fail("no thread to be had");
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
    exit_end();
    shm.group = NULL;
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
