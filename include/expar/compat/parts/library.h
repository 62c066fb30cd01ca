/* SPDX-License-Identifier: Apache-2.0 */
/* The host's functions of libexpar-nvshmem, by which inline functions reach the group of the program. Programs call
 * those that begin with nvshmem alone. */
#ifndef EXPAR_COMPAT_PARTS_LIBRARY_H
#define EXPAR_COMPAT_PARTS_LIBRARY_H

#include <expar/compat/parts/types.h>
#include <expar/device_handle.h>
#include <expar/expar.h>
#include <expar/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's types; a program needs no header of CUDA for them. */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;

/* ---- start and end ----------------------------------------------------------------------------------------------- */

/* Joins all PEs, as expar_group_create(NULL) does. Calls after the first one do nothing until nvshmem_finalize. A call
   that fails says why on stderr and ends the job. */
EXPAR_API void nvshmem_init(void);
/* Collective. Completes everything. The memory that was allocated and the teams are gone. */
EXPAR_API void nvshmem_finalize(void);
EXPAR_API void nvshmem_global_exit(int status) __attribute__((noreturn));
EXPAR_API void nvshmem_info_get_version(int *major, int *minor);
EXPAR_API void nvshmem_info_get_name(char *name);
/* The same as nvshmem_init, with rank, size and meeting place from the caller. */
EXPAR_API void expar_nvshmem_start(const expar_unique_id *id, int rank, int size);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Collective. The memory is this PE's GPU's: the device that is current in the thread when it first allocates. If some
   PE has no GPU, all memory is the host's. NULL: the size is 0, or the memory is full on some PE. */
EXPAR_API void *nvshmem_malloc(size_t size);
EXPAR_API void *nvshmem_calloc(size_t count, size_t size);
EXPAR_API void *nvshmem_align(size_t alignment, size_t size);
EXPAR_API void nvshmem_free(void *ptr);
/* Register memory outside the heap for this PE's own operations, which need no registration, but may copy less then.
   Return 0, or another number if the memory cannot be registered. */
EXPAR_API int nvshmemx_buffer_register(void *addr, size_t length);
EXPAR_API int nvshmemx_buffer_unregister(void *addr);
EXPAR_API void nvshmemx_buffer_unregister_all(void);
/* Collective. Gives the caller's memory of the GPU a symmetric address (expar_register_symmetric says which memory).
   NULL: it cannot. flags are ignored. */
EXPAR_API void *nvshmemx_buffer_register_symmetric(void *buf_ptr, size_t size, int flags);
/* Collective. */
EXPAR_API int nvshmemx_buffer_unregister_symmetric(void *mmap_ptr, size_t size);

/* ---- teams ------------------------------------------------------------------------------------------------------- */

/* Return 0, or another number if a member is not in the parent, or if there are too many teams. PEs that are not
   members get NVSHMEM_TEAM_INVALID. config may be NULL. */
EXPAR_API int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size,
                                         const nvshmem_team_config_t *config, long config_mask,
                                         nvshmem_team_t *new_team);
EXPAR_API int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *xaxis_config,
                                    long xaxis_mask, nvshmem_team_t *xaxis_team,
                                    const nvshmem_team_config_t *yaxis_config, long yaxis_mask,
                                    nvshmem_team_t *yaxis_team);
EXPAR_API int nvshmem_team_get_config(nvshmem_team_t team, nvshmem_team_config_t *config);
EXPAR_API void nvshmem_team_destroy(nvshmem_team_t team);

/* ---- for inline functions ---------------------------------------------------------------------------------------- */

EXPAR_API expar_group *expar_nvshmem_group(void);
/* NULL: there is no such team. */
EXPAR_API expar_team *expar_nvshmem_team(nvshmem_team_t team);
EXPAR_API int expar_nvshmem_translate(nvshmem_team_t source, int pe, nvshmem_team_t dest);
EXPAR_API void *expar_nvshmem_ptr(const void *address, int pe);
/* Does nothing on success, else says what went wrong and ends the job. */
EXPAR_API void expar_nvshmem_must(expar_status status);
/* Says what the program did wrong and returns `result`. */
EXPAR_API int expar_nvshmem_rejects(const char *what, int result);
/* Ends the job if a kernel's call has failed, or if there is no such team. */
EXPAR_API void expar_nvshmem_quiet(void);
EXPAR_API int expar_nvshmem_sync(nvshmem_team_t team);
EXPAR_API int expar_nvshmem_barrier(nvshmem_team_t team);
/* Collective: prepares kernels' calls, as the first allocation does. */
EXPAR_API void expar_nvshmem_prepare(void);
/* The handle of a team for kernels that are threads of the CPU; NULL: there is no such team. */
EXPAR_API const expar_device_handle *expar_nvshmem_cpu_handle(nvshmem_team_t team);

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* A module of kernels has a variable with what kernels need. nvcc's code registers it when the program starts. */
typedef struct expar_nvshmem_module {
    /* EXPAR_DEVICE_VERSION of the module's header */
    uint32_t version;
    /* Gives the calling thread's GPU; -1: none. */
    int (*device)(void);
    /* Copies `state` to the variable; 0: done. */
    int (*fill)(const void *state, size_t bytes);
    struct expar_nvshmem_module *next;
} expar_nvshmem_module;
/* The module is filled when kernels' calls are prepared, at once if they are. It lies in static storage. */
EXPAR_API void expar_nvshmem_module_add(expar_nvshmem_module *module);
/* For modules that the program loads by the driver: fills the variable expar_nvshmem_state of the module, or will when
   kernels' calls are prepared. Return 0, or another number if there is no such variable. */
EXPAR_API int nvshmemx_cumodule_init(CUmodule module);
EXPAR_API int nvshmemx_culibrary_init(CUlibrary library);
/* Ends that; the variable stays as it is. */
EXPAR_API int nvshmemx_cumodule_finalize(CUmodule module);
EXPAR_API int nvshmemx_culibrary_finalize(CUlibrary library);

#ifdef __cplusplus
}
#endif
#endif
