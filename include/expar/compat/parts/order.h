/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's fences, quiets and barriers, and what a PE may ask about itself and its teams. */
#ifndef EXPAR_COMPAT_PARTS_ORDER_H
#define EXPAR_COMPAT_PARTS_ORDER_H

#include <expar/compat/parts/target.h>

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* -1 before nvshmem_init. */
EXPAR_NV_CALL int nvshmem_my_pe(void)
{
    return EXPAR_NV_BODY(expar_kernel_my_pe(EXPAR_NV_WORLD), expar_group_rank(expar_nvshmem_group()));
}
EXPAR_NV_CALL int nvshmem_n_pes(void)
{
    return EXPAR_NV_BODY(expar_kernel_n_pes(EXPAR_NV_WORLD), expar_group_size(expar_nvshmem_group()));
}
/* Where the caller loads and stores pe's copy; NULL: it cannot. On the host the address is for kernels if the memory is
   a GPU's. */
EXPAR_NV_CALL void *nvshmem_ptr(const void *dest, int pe)
{
    return EXPAR_NV_BODY(expar_kernel_ptr(EXPAR_NV_WORLD, dest, pe), expar_nvshmem_ptr(dest, pe));
}
/* -1: this PE is no member, or there is no such team. */
EXPAR_NV_CALL int nvshmem_team_my_pe(nvshmem_team_t team)
{
    return EXPAR_NV_BODY(expar_nv_team(team) ? expar_kernel_my_pe(expar_nv_team(team)) : -1,
                         expar_team_my_pe(expar_nvshmem_team(team)));
}
EXPAR_NV_CALL int nvshmem_team_n_pes(nvshmem_team_t team)
{
    return EXPAR_NV_BODY(expar_nv_team(team) ? expar_kernel_n_pes(expar_nv_team(team)) : -1,
                         expar_nvshmem_team(team) ? expar_team_n_pes(expar_nvshmem_team(team)) : -1);
}
EXPAR_NV_CALL int nvshmem_team_translate_pe(nvshmem_team_t src_team, int src_pe, nvshmem_team_t dest_team)
{
    return EXPAR_NV_BODY(expar_nv_team(src_team) && expar_nv_team(dest_team)
                             ? expar_kernel_translate_pe(expar_nv_team(src_team), src_pe, expar_nv_team(dest_team))
                             : -1,
                         expar_nvshmem_translate(src_team, src_pe, dest_team));
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Kernels' fence and quiet cover the kernels' calls, the host's those of the host. */
EXPAR_NV_CALL void nvshmem_fence(void)
{
    EXPAR_NV_BODY(expar_kernel_fence(EXPAR_NV_WORLD), expar_nvshmem_must(expar_fence(expar_nvshmem_group())));
}
EXPAR_NV_CALL void nvshmem_quiet(void)
{
    EXPAR_NV_BODY((void)expar_kernel_quiet(EXPAR_NV_WORLD), expar_nvshmem_quiet());
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

#ifdef EXPAR_NV_HAS_KERNELS
#define EXPAR_NV_BARRIERS_IN(scope)                                                                                    \
    EXPAR_NV_KERNEL int expar_nv_sync##scope(nvshmem_team_t team)                                                      \
    {                                                                                                                  \
        return expar_nv_team(team) ? expar_kernel_sync##scope(expar_nv_team(team)) : NVSHMEMX_ERROR_INVALID_VALUE;     \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int expar_nv_barrier##scope(nvshmem_team_t team)                                                   \
    {                                                                                                                  \
        (void)expar_kernel_quiet##scope(EXPAR_NV_WORLD); /* puts were made with that handle */                         \
        return expar_nv_sync##scope(team);                                                                             \
    }
EXPAR_NV_BARRIERS_IN()
EXPAR_NV_BARRIERS_IN(_warp)
EXPAR_NV_BARRIERS_IN(_block)
#define EXPAR_NV_BARRIERS_OF(scope)                                                                                    \
    EXPAR_NV_KERNEL void nvshmemx_barrier_all##scope(void)                                                             \
    {                                                                                                                  \
        (void)expar_nv_barrier##scope(NVSHMEM_TEAM_WORLD);                                                             \
    }                                                                                                                  \
    EXPAR_NV_KERNEL void nvshmemx_sync_all##scope(void)                                                                \
    {                                                                                                                  \
        (void)expar_nv_sync##scope(NVSHMEM_TEAM_WORLD);                                                                \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int nvshmemx_barrier##scope(nvshmem_team_t team)                                                   \
    {                                                                                                                  \
        return expar_nv_barrier##scope(team);                                                                          \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int nvshmemx_sync##scope(nvshmem_team_t team)                                                      \
    {                                                                                                                  \
        return expar_nv_sync##scope(team);                                                                             \
    }                                                                                                                  \
    EXPAR_NV_KERNEL int nvshmemx_team_sync##scope(nvshmem_team_t team)                                                 \
    {                                                                                                                  \
        return expar_nv_sync##scope(team);                                                                             \
    }
EXPAR_NV_BARRIERS_OF(_warp)
EXPAR_NV_BARRIERS_OF(_block)
#endif

EXPAR_NV_CALL void nvshmem_barrier_all(void)
{
    (void)EXPAR_NV_BODY(expar_nv_barrier(NVSHMEM_TEAM_WORLD), expar_nvshmem_barrier(NVSHMEM_TEAM_WORLD));
}
EXPAR_NV_CALL void nvshmem_sync_all(void)
{
    (void)EXPAR_NV_BODY(expar_nv_sync(NVSHMEM_TEAM_WORLD), expar_nvshmem_sync(NVSHMEM_TEAM_WORLD));
}
EXPAR_NV_CALL int nvshmem_barrier(nvshmem_team_t team)
{
    return EXPAR_NV_BODY(expar_nv_barrier(team), expar_nvshmem_barrier(team));
}
EXPAR_NV_CALL int nvshmem_sync(nvshmem_team_t team)
{
    return EXPAR_NV_BODY(expar_nv_sync(team), expar_nvshmem_sync(team));
}
EXPAR_NV_CALL int nvshmem_team_sync(nvshmem_team_t team)
{
    return EXPAR_NV_BODY(expar_nv_sync(team), expar_nvshmem_sync(team));
}

#ifndef __CUDACC_RTC__
EXPAR_NV_HOST void nvshmemx_quiet_on_stream(cudaStream_t cstrm)
{
    expar_nvshmem_must(expar_quiet_on_stream(expar_nvshmem_group(), cstrm));
}
EXPAR_NV_HOST void nvshmemx_barrier_all_on_stream(cudaStream_t cstrm)
{
    expar_nvshmem_must(expar_barrier_all_on_stream(expar_nvshmem_group(), cstrm));
}
EXPAR_NV_HOST void nvshmemx_sync_all_on_stream(cudaStream_t cstrm)
{
    expar_nvshmem_must(expar_sync_all_on_stream(expar_nvshmem_group(), cstrm));
}
EXPAR_NV_HOST int nvshmemx_barrier_on_stream(nvshmem_team_t team, cudaStream_t cstrm)
{
    return expar_nv_done(expar_team_barrier_on_stream(expar_nvshmem_team(team), cstrm));
}
EXPAR_NV_HOST int nvshmemx_sync_on_stream(nvshmem_team_t team, cudaStream_t cstrm)
{
    return expar_nv_done(expar_team_sync_on_stream(expar_nvshmem_team(team), cstrm));
}
EXPAR_NV_HOST int nvshmemx_team_sync_on_stream(nvshmem_team_t team, cudaStream_t cstrm)
{
    return expar_nv_done(expar_team_sync_on_stream(expar_nvshmem_team(team), cstrm));
}
#endif

#endif
