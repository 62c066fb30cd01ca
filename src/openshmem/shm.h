/* SPDX-License-Identifier: Apache-2.0 */
/* openshmem: OpenSHMEM's names on top of expar's public calls; a library of its own, libexpar-shmem.
 *
 * Called by programs through expar/shmem.h; calls nothing of expar but its public interface. Every call checks its
 * status by shm_must, since the standard gives most calls no way to fail. */
#ifndef EXPAR_OPENSHMEM_SHM_H
#define EXPAR_OPENSHMEM_SHM_H

#define EXPAR_SHMEM_NO_GENERICS
#include <expar/expar.h>
#include <expar/shmem.h>

#include <stdbool.h>

/* Between shmem_init and shmem_finalize; written by them alone. */
typedef struct shm_state {
    expar_group *group; /* NULL: not started, or ended */
    expar_team *world, *shared;
    int32_t rank, size;
    int thread_level;
    /* The memory that shmem_malloc and its relatives give: host or pinned, and for the latter this PE's GPU. */
    expar_memory_kind memory;
    int32_t device;
} shm_state;
extern shm_state shm;

/* Does nothing on success. Else, where another PE has called shmem_global_exit, exits with its status; else says what
   went wrong and ends the job. */
void shm_must(expar_status status);
/* A mistake of the program that expar has not found. */
void shm_fail(const char *what) __attribute__((noreturn));
/* Bytes of so many elements; the job ends when that overflows. */
size_t shm_bytes(size_t nelems, size_t element_bytes);

/* A context of expar's; the job ends for SHMEM_CTX_INVALID. Not for SHMEM_CTX_DEFAULT, which is the group. */
expar_ctx *shm_ctx(shmem_ctx_t ctx);
/* expar_CALL on the group or expar_ctx_CALL on a context, by a shmem_ctx_t; the job ends when it fails. */
#define SHM_ON(ctx, call, ...)                                                                                         \
    shm_must((ctx) == SHMEM_CTX_DEFAULT ? expar_##call(shm.group, __VA_ARGS__)                                         \
                                        : expar_ctx_##call(shm_ctx(ctx), __VA_ARGS__))
/* NULL for SHMEM_TEAM_INVALID. */
expar_team *shm_team(shmem_team_t team);

/* The ranks of an active set as a team, freed by shm_set_end. */
expar_team *shm_set_begin(int start, int log_stride, int size);
void shm_set_end(expar_team *set);

/* Reads the environment's settings into the options of the group; the job ends when one makes no sense. */
void shm_environment_read(expar_group_options *options);
/* Reads the kind of memory of shmem_malloc; the job ends when it makes no sense. */
expar_memory_kind shm_environment_memory(void);
/* Prints what the environment asks for, on one PE. */
void shm_environment_print(void);

/* Statuses of collectives: 0, or the job ends. */
int shm_done(expar_status status);

#endif
