/* SPDX-License-Identifier: Apache-2.0 */
/* Facts for tools that show them: the library's variables and structs, places of ranks, transports, the GPUs that it
 * could use. */
#ifndef EXPAR_INFO_H
#define EXPAR_INFO_H

#include <expar/memory.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The environment variable number `index` (0, 1, …): its name, the values it takes, what holds when it is unset, and
   what it means. False when there are no more; nothing is written then. Any of the pointers may be NULL (not wanted).
   Static storage. Any thread. */
EXPAR_API bool expar_env_describe(size_t index, const char **name, const char **values, const char **fallback,
                                  const char **meaning);

/* Describes the structs and enumerations of the public headers as this library was built with them, in JSON. Bindings
   of other languages check theirs against it. It begins with "version" and "pointer_bytes". The member "structs" has
   the size, alignment and members of each struct; a member has name, offset, size (bytes) and its C type. The member
   "enums" has the size of each enumeration and the values of its names. The same text is installed as
   share/expar/abi.json. Static storage. Any thread. */
EXPAR_API const char *expar_abi(void);

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* The place of a rank, and the devices near it. Every rank knows this of all ranks. */
typedef struct expar_group_place {
    /* set by EXPAR_GROUP_PLACE_INIT */
    size_t struct_size;
    int32_t node;
    /* cores that it may run on */
    int32_t cores;
    /* NUMA node of all of these cores; -1: they are on several nodes, or it is not known */
    int32_t numa_node;
    /* RDMA devices of its host, separated by commas; on a host without any, the interfaces that are up */
    char nics[64];
} expar_group_place;
#define EXPAR_GROUP_PLACE_INIT EXPAR_STRUCT_INIT(expar_group_place)
/* Fills as many members as place->struct_size covers. EXPAR_ERR_NULL, EXPAR_ERR_RANGE (no such rank),
   EXPAR_ERR_ARGUMENT when place->struct_size is not set. Any thread. */
EXPAR_API expar_status expar_group_get_place(const expar_group *group, int32_t rank, expar_group_place *place);

/* ---- transports -------------------------------------------------------------------------------------------------- */

/* How a rank reaches a PE's memory; a set. */
typedef enum expar_reach {
    EXPAR_REACH_MAP = 1, /* loads and stores at expar_ptr() */
    EXPAR_REACH_PUT = 2,
    EXPAR_REACH_GET = 4,
    EXPAR_REACH_ATOMIC = 8
} expar_reach;

/* Describes transport number `index` of a group (0, 1, … in the order of preference). The pointer `name` gets its name
   (static storage). The buffer `text` gets one line about the provider and the result of its self-test, or "", cut to
   text_bytes. Returns false if there is no such transport; nothing is written then. name and text may be NULL. Any
   thread. */
EXPAR_API bool expar_transport_describe(const expar_group *group, int32_t index, const char **name, char *text,
                                        size_t text_bytes);
/* Says in one line which ranks that transport reaches, and by which operations; NULL if there is no such transport.
   Static storage. Any thread. */
EXPAR_API const char *expar_transport_summary(const expar_group *group, int32_t index);
/* Says why a transport that the group could have used is missing; NULL: none is missing. The text lives as long as the
   group. */
EXPAR_API const char *expar_transport_missing(const expar_group *group);
/* Returns the set of expar_reach by which `rank` reaches pe over a transport; every rank knows this of all ranks. 0:
   none, or no such transport or rank. */
EXPAR_API unsigned expar_transport_reach(const expar_group *group, int32_t index, int32_t rank, int32_t pe);
/* Returns the set of operations (expar_reach) for which this rank uses that transport with pe. */
EXPAR_API unsigned expar_transport_selected(const expar_group *group, int32_t index, int32_t pe);

/* Says how that transport carries data to and from memory of a kind: "loads and stores", "copies by the driver",
   "network", or "staged in pinned memory". Static storage. NULL: there is no such transport or kind. Any thread. */
EXPAR_API const char *expar_transport_way(const expar_group *group, int32_t index, expar_memory_kind kind);

/* Operations that this rank has passed to a network since its group was formed, counted where the network's library is
   called. They include the library's own messages (barriers, teams, signals), but not the self-test, and no loads and
   stores. One operation may be split into several. */
typedef struct expar_network_stats {
    /* set by EXPAR_NETWORK_STATS_INIT */
    size_t struct_size;
    uint64_t puts, put_bytes;
    uint64_t gets, get_bytes;
    /* signals and flags are atomics, too; the bytes are those of the words */
    uint64_t atomics, atomic_bytes;
    /* transport gda: requests that this rank's threads wrote for a network device, in blocks of 64 bytes, and their
       bytes; doorbells that were rung for them; completions */
    uint64_t requests, request_bytes;
    uint64_t doorbells, completions;
    /* a device in software: the time from the doorbell to the completion, for all completions together */
    uint64_t device_ns;
} expar_network_stats;
#define EXPAR_NETWORK_STATS_INIT EXPAR_STRUCT_INIT(expar_network_stats)
/* Fills as many members as stats->struct_size covers; zeros if the group uses no network. EXPAR_ERR_NULL;
   EXPAR_ERR_ARGUMENT when stats->struct_size is not set. Any thread. */
EXPAR_API expar_status expar_network_get_stats(const expar_group *group, expar_network_stats *stats);

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

/* Gets the CUDA version that the driver supports (13000 for 13.0), and the number of GPUs that this process sees.
   Either may be NULL. EXPAR_ERR_UNSUPPORTED: there is no driver or no GPU; the text says what to install. This starts
   the driver: a process that has called it must not fork children that use CUDA. */
EXPAR_API expar_status expar_cuda_get_driver(int32_t *version, int32_t *num_gpus);
/* Gets version and file (static storage) of NVRTC, the compiler of kernels. Either may be NULL. EXPAR_ERR_UNSUPPORTED:
   it was not found; the text says where the library looked for it and how to get it. */
EXPAR_API expar_status expar_cuda_get_compiler(int32_t *version, const char **path);
/* Returns the compute capability, times ten, of the GPUs for which this library has ready kernels, for machines without
   NVRTC. GPUs of the same major version run them. 0: the library was built without nvcc and has none. */
EXPAR_API int32_t expar_cuda_ready_kernels(void);

typedef struct expar_cuda_gpu {
    /* set by EXPAR_CUDA_GPU_INIT */
    size_t struct_size;
    char name[64];
    char bus_id[32];
    /* compute capability */
    int32_t major, minor;
    int32_t num_sms;
    int64_t memory_bytes;
    /* 1: its memory can be shared with other processes, which buffers on it need */
    int32_t shareable;
} expar_cuda_gpu;
#define EXPAR_CUDA_GPU_INIT EXPAR_STRUCT_INIT(expar_cuda_gpu)
/* EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size), EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_RANGE (no such GPU),
   EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_cuda_get_gpu(int32_t index, expar_cuda_gpu *gpu);
/* Says how a kernel on GPU `from` reaches the memory of GPU `to`. `access` gets 1 for loads and stores. `rank` gets the
   driver's order of performance among such pairs, 0 is the best. `atomics` gets 1 when the link carries out atomic
   operations. Each pointer may be NULL. */
EXPAR_API expar_status expar_cuda_get_link(int32_t from, int32_t to, int32_t *access, int32_t *rank, int32_t *atomics);

#ifdef __cplusplus
}
#endif
#endif
