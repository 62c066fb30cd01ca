/* SPDX-License-Identifier: Apache-2.0 */
/* Where a function runs: on the host, in kernels, or in both. Kernels' forms stand on expar/device.h, the host's on the
 * calls of expar.h.
 *
 * Kernels find their handles in a variable of the module, which this header defines and the library fills. With
 * EXPAR_NVSHMEM_CPU_KERNELS kernels are threads of the CPU (expar/device.h, "The CPU"). */
#ifndef EXPAR_COMPAT_PARTS_TARGET_H
#define EXPAR_COMPAT_PARTS_TARGET_H

#include <expar/compat/parts/types.h>
#ifndef __CUDACC_RTC__
#include <expar/compat/parts/library.h>
#endif
#if defined(__CUDACC__) || defined(EXPAR_NVSHMEM_CPU_KERNELS)
#include <expar/device.h>
#define EXPAR_NV_HAS_KERNELS 1
#endif

/* EXPAR_NV_CALL begins functions of host and kernels, EXPAR_NV_KERNEL those of kernels, EXPAR_NV_HOST the host's. */
#define EXPAR_NV_HOST static inline
#if defined(__CUDACC_RTC__)
#define EXPAR_NV_CALL   static inline __device__
#define EXPAR_NV_KERNEL static inline __device__
#elif defined(__CUDACC__)
#define EXPAR_NV_CALL   static inline __host__ __device__
#define EXPAR_NV_KERNEL static inline __device__
#else
#define EXPAR_NV_CALL   static inline
#define EXPAR_NV_KERNEL static inline
#endif

/* One of two bodies. */
#if defined(__CUDA_ARCH__)
#define EXPAR_NV_BODY(kernel, host) kernel
#else
#define EXPAR_NV_BODY(kernel, host) host
#endif

/* A size that overflows is beyond every heap. */
EXPAR_NV_CALL size_t expar_nv_bytes(size_t count, size_t width)
{
    return count > ~(size_t)0 / width ? ~(size_t)0 : count * width;
}

/* Ends the job if the call failed; gives what calls of the host return that have a number. */
#ifndef __CUDACC_RTC__
EXPAR_NV_HOST int expar_nv_done(expar_status status)
{
    expar_nvshmem_must(status);
    return 0;
}
#endif

#ifdef EXPAR_NV_HAS_KERNELS

/* The state of kernels. The library writes it before kernels run; `teams` are this PE's, in device memory, [team]. */
typedef struct expar_nv_state {
    expar_device_handle world;
    const expar_device_handle *teams;
} expar_nv_state;

#ifdef __CUDACC__
#if defined(__CUDACC_RTC__)
extern "C" __constant__ expar_nv_state expar_nvshmem_state;
__constant__ expar_nv_state expar_nvshmem_state;
#elif defined(__CUDACC_RDC__)
static __constant__ expar_nv_state expar_nvshmem_state;
#else
__constant__ expar_nv_state expar_nvshmem_state;
#endif
#define EXPAR_NV_WORLD (&expar_nvshmem_state.world)
/* The handle of a team; NULL: there is no such team. */
EXPAR_NV_KERNEL const expar_device_handle *expar_nv_team(nvshmem_team_t team)
{
    if (team == NVSHMEM_TEAM_WORLD) return EXPAR_NV_WORLD;
    if (team < 0 || team >= EXPAR_NV_TEAMS || !expar_nvshmem_state.teams) return 0;
    const expar_device_handle *handle = expar_nvshmem_state.teams + team;
    return expar_kernel_n_pes(handle) > 0 ? handle : 0;
}
#else
#define EXPAR_NV_WORLD      expar_nvshmem_cpu_handle(NVSHMEM_TEAM_WORLD)
#define expar_nv_team(team) expar_nvshmem_cpu_handle(team)
#endif

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
static int expar_nv_device(void)
{
    int device = -1;
    return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}
static int expar_nv_fill(const void *state, size_t bytes)
{
    return (int)cudaMemcpyToSymbol(expar_nvshmem_state, state, bytes);
}
/* Registers the module of this file. */
static struct expar_nv_registration {
    expar_nvshmem_module module;
    expar_nv_registration()
    {
        module.version = EXPAR_DEVICE_VERSION;
        module.device = expar_nv_device;
        module.fill = expar_nv_fill;
        module.next = nullptr;
        expar_nvshmem_module_add(&module);
    }
} expar_nv_registered;
#endif

#endif
#endif
