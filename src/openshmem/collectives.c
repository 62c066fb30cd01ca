/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over teams, and those over active sets, which are teams for one call. pSync and pWrk are not needed. */
#include "openshmem/shm.h"

expar_team *shm_set_begin(int start, int log_stride, int size)
{
    expar_team *set;
    if (log_stride < 0 || log_stride > 30) shm_fail("logPE_stride is out of range");
    shm_must(expar_team_form(shm.group, start, (int32_t)1 << log_stride, size, &set));
    if (!set) shm_fail("a PE called a collective of an active set that it is not in");
    return set;
}

void shm_set_end(expar_team *set)
{
    shm_must(expar_team_destroy(set));
}

/* ---- over teams -------------------------------------------------------------------------------------------------- */

#define MOVING(T, size, broadcast, collect, fcollect, alltoall, alltoalls)                                             \
    int shmem_##broadcast(shmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root)                     \
    {                                                                                                                  \
        return shm_done(expar_broadcast(shm_team(team), dest, source, shm_bytes(nelems, size), PE_root));              \
    }                                                                                                                  \
    int shmem_##collect(shmem_team_t team, T *dest, const T *source, size_t nelems)                                    \
    {                                                                                                                  \
        return shm_done(expar_collect(shm_team(team), dest, source, shm_bytes(nelems, size)));                         \
    }                                                                                                                  \
    int shmem_##fcollect(shmem_team_t team, T *dest, const T *source, size_t nelems)                                   \
    {                                                                                                                  \
        return shm_done(expar_fcollect(shm_team(team), dest, source, shm_bytes(nelems, size)));                        \
    }                                                                                                                  \
    int shmem_##alltoall(shmem_team_t team, T *dest, const T *source, size_t nelems)                                   \
    {                                                                                                                  \
        return shm_done(expar_alltoall(shm_team(team), dest, source, shm_bytes(nelems, size)));                        \
    }                                                                                                                  \
    int shmem_##alltoalls(shmem_team_t team, T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems)    \
    {                                                                                                                  \
        return shm_done(expar_alltoalls(shm_team(team), dest, source, dst, sst, size, nelems));                        \
    }
#define TYPED(T, N) MOVING(T, sizeof(T), N##_broadcast, N##_collect, N##_fcollect, N##_alltoall, N##_alltoalls)
EXPAR_SHMEM_RMA_TYPES(TYPED)
MOVING(void, 1, broadcastmem, collectmem, fcollectmem, alltoallmem, alltoallsmem)

/* ---- over active sets -------------------------------------------------------------------------------------------- */

void shmem_barrier(int PE_start, int logPE_stride, int PE_size, long *pSync)
{
    shmem_quiet();
    shmem_sync(PE_start, logPE_stride, PE_size, pSync);
}

void shmem_sync(int PE_start, int logPE_stride, int PE_size, long *pSync)
{
    (void)pSync;
    expar_team *set = shm_set_begin(PE_start, logPE_stride, PE_size);
    shm_must(expar_team_sync(set));
    shm_set_end(set);
}

/* Names are those of the standard; `call` is made with `set`. */
#define OVER_SET(call)                                                                                                 \
    {                                                                                                                  \
        (void)pSync;                                                                                                   \
        expar_team *set = shm_set_begin(PE_start, logPE_stride, PE_size);                                              \
        shm_must(call);                                                                                                \
        shm_set_end(set);                                                                                              \
    }
#define SETS(W)                                                                                                        \
    void shmem_broadcast##W(void *dest, const void *source, size_t nelems, int PE_root, int PE_start,                  \
                            int logPE_stride, int PE_size, long *pSync)                                                \
        OVER_SET(expar_broadcast_others(set, dest, source, shm_bytes(nelems, W / 8), PE_root)) void shmem_collect##W(  \
            void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync)   \
            OVER_SET(expar_collect(set, dest, source, shm_bytes(nelems, W / 8))) void shmem_fcollect##W(               \
                void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size,            \
                long *pSync)                                                                                           \
                OVER_SET(expar_fcollect(set, dest, source, shm_bytes(nelems, W / 8))) void shmem_alltoall##W(          \
                    void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size,        \
                    long *pSync)                                                                                       \
                    OVER_SET(expar_alltoall(set, dest, source, shm_bytes(nelems, W / 8))) void shmem_alltoalls##W(     \
                        void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int PE_start,     \
                        int logPE_stride, int PE_size, long *pSync)                                                    \
                        OVER_SET(expar_alltoalls(set, dest, source, dst, sst, W / 8, nelems))
SETS(32)
SETS(64)
