/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, by which kernels put, get, signal and wait, and launches of such kernels: the calls of the host. The calls
 * of kernels are in expar/device.h, which has the members of a handle. docs/reference/device-memory.md
 * explains both. */
#ifndef EXPAR_DEVICE_HANDLE_H
#define EXPAR_DEVICE_HANDLE_H

#include <expar/context.h>
#include <expar/group.h>
#include <expar/team.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of handles. Kernels and the library must have the same: it changes with the layout of a handle, or of the
   memory that it names. */
#define EXPAR_DEVICE_VERSION 5

/* The state that kernels get, at most 128 bytes: pass it by value as an argument of the kernel, or put it into memory
   that the kernel reads. It holds no reference and needs no end. */
typedef struct expar_device_handle expar_device_handle;

/* The processor that runs the kernels. */
typedef enum expar_device_target {
    /* this rank's GPU: the one on which its device memory lies */
    EXPAR_DEVICE_GPU = 0,
    /* threads of this process, with expar/device.h compiled as C: for development and tests without a GPU */
    EXPAR_DEVICE_CPU = 1
} expar_device_target;

typedef struct expar_device_options {
    /* set by EXPAR_DEVICE_OPTIONS_INIT */
    size_t struct_size;
    /* EXPAR_DEVICE_VERSION of the header with which the kernels were compiled; set by EXPAR_DEVICE_OPTIONS_INIT */
    uint32_t version;
    expar_device_target target;
    /* The PEs of the handle: those of the team, or of the context's team. At most one of the two is set. Both NULL: all
       ranks of the group */
    expar_team *team;
    expar_ctx *ctx;
} expar_device_options;
#ifdef __cplusplus
#define EXPAR_DEVICE_OPTIONS_INIT                                                                                      \
    ([] {                                                                                                              \
        expar_device_options made{};                                                                                   \
        made.struct_size = sizeof made;                                                                                \
        made.version = EXPAR_DEVICE_VERSION;                                                                           \
        return made;                                                                                                   \
    }())
#else
#define EXPAR_DEVICE_OPTIONS_INIT                                                                                      \
    {                                                                                                                  \
        .struct_size = sizeof(expar_device_options), .version = EXPAR_DEVICE_VERSION                                   \
    }
#endif

/* Fills a handle for kernels of this rank. With options NULL it is for all ranks and the GPU. The handle is good until
 * its group, team or context ends, also for memory that is allocated later. Afterwards calls with it do nothing, and
 * expar_device_get_error says so. Each handle has its own order (fence, quiet) and its own error. A team has one
 * barrier for kernels of each target, whatever the number of handles.
 *
 * A handle for the GPU needs device memory: call expar_memory_alloc for EXPAR_MEMORY_DEVICE before. Get handles before
 * kernels that wait are launched, since this call allocates memory of the GPU. The first handle without a team is
 * collective over the group if no call on teams was made before (expar_team_get_world), others are not. Any thread.
 *
 * *handle is set on success only. EXPAR_ERR_NULL. EXPAR_ERR_ARGUMENT: the text names the member. EXPAR_ERR_VERSION: the
 * header of the kernels is too old or too new. EXPAR_ERR_STATE: the rank has no device memory. EXPAR_ERR_HANDLE: the
 * team or context has ended, or is of another group. EXPAR_ERR_LIMIT: the process has too many handles.
 * EXPAR_ERR_MEMORY, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_device_get(expar_group *group, const expar_device_options *options,
                                        expar_device_handle *handle);

/* The first error in the calls of kernels with a handle. */
typedef struct expar_device_error {
    /* set by EXPAR_DEVICE_ERROR_INIT */
    size_t struct_size;
    /* EXPAR_OK: nothing so far, and the other members mean nothing. EXPAR_ERR_HANDLE: the handle's group, team or
       context has ended. EXPAR_ERR_RANGE: there is no such PE. EXPAR_ERR_ADDRESS: the address is not in memory that
       both sides of the handle load and store, or the block leaves the heap. EXPAR_ERR_UNSUPPORTED: no way leads there.
       EXPAR_ERR_ALIGNMENT. EXPAR_ERR_PEER, EXPAR_ERR_ABORTED: a wait ended in vain, or something was not delivered to
       the PE. EXPAR_ERR_CUDA: the host's threads carry nothing any more */
    expar_status status;
    /* of the handle; -1: the call names none */
    int32_t pe;
    /* what was called, as "put_signal"; static storage */
    const char *operation;
    /* EXPAR_ERR_ADDRESS, EXPAR_ERR_ALIGNMENT: the address. Otherwise the offset in its heap */
    uint64_t offset;
    /* waits: the word's last value, and the value with which it was compared */
    uint64_t seen, awaited;
    /* one line that says all this; a wait's also says why it ended */
    char text[512];
} expar_device_error;
#define EXPAR_DEVICE_ERROR_INIT EXPAR_STRUCT_INIT(expar_device_error)

/* Fills as many members as error->struct_size covers, with the first error of the handle. It waits for nothing, also
   while kernels run. Not collective. Any thread. EXPAR_ERR_NULL; EXPAR_ERR_ARGUMENT: struct_size, or the handle is none
   of this process. */
EXPAR_API expar_status expar_device_get_error(const expar_device_handle *handle, expar_device_error *error);

/* ---- launches ---------------------------------------------------------------------------------------------------- */

typedef struct expar_launch_args {
    /* set by EXPAR_LAUNCH_ARGS_INIT */
    size_t struct_size;
    /* CUfunction; cudaGetFuncBySymbol gives one for a kernel of the CUDA runtime */
    void *function;
    /* blocks of the grid; 0: as many as run on the GPU at the same time */
    uint32_t blocks;
    /* of a block, 1 or more */
    uint32_t threads;
    /* dynamic shared memory of a block in bytes. More than 48 KiB must have been allowed for the function */
    uint32_t shared_bytes;
    /* [number of the kernel's arguments] addresses of the arguments, as of cuLaunchKernel */
    void **arguments;
    /* CUstream; NULL: the default stream */
    void *stream;
} expar_launch_args;
#define EXPAR_LAUNCH_ARGS_INIT EXPAR_STRUCT_INIT(expar_launch_args)

/* Launches a kernel on this rank's GPU so that all its blocks run at the same time. Kernels whose blocks wait for each
   other, or for other ranks, need that. Ranks that share a GPU divide its space by themselves. *blocks (may be NULL)
   gets the blocks of the grid. Not collective; follows the stream. Any thread. EXPAR_ERR_NULL.
   EXPAR_ERR_ARGUMENT: the text names the member. EXPAR_ERR_LIMIT: more blocks than run at the same time; the text has
   both numbers. EXPAR_ERR_STATE: the group has no device memory, and so no GPU. EXPAR_ERR_ABORTED, EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_launch(expar_group *group, const expar_launch_args *args, uint32_t *blocks);

#ifdef __cplusplus
}
#endif
#endif
