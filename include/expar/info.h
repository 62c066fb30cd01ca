/* SPDX-License-Identifier: Apache-2.0 */
/* Facts for tools that show them: the library's variables and structs, places of ranks, transports, the GPUs that it
 * could use. */
#ifndef EXPAR_INFO_H
#define EXPAR_INFO_H

#include <expar/group.h>
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

/* The structs and enumerations of the public headers as this library was built with them, as JSON, for bindings of
   other languages to check theirs against: "version" and "pointer_bytes"; in "structs" for each its size, alignment and
   members, with name, offset, size (bytes) and type as C has it; in "enums" for each its size and the values of its
   names. Installed as share/expar/abi.json, too. Static storage. Any thread. */
EXPAR_API const char *expar_abi(void);

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Where a rank is, and what lies near it; every rank knows that of all. */
typedef struct expar_group_place {
    /* set by EXPAR_GROUP_PLACE_INIT */
    size_t struct_size;
    int32_t node;
    /* that it may run on */
    int32_t cores;
    /* of all of these cores; -1: they are of several, or it is not known */
    int32_t numa_node;
    /* RDMA devices of its host, or where there are none interfaces that are up, with commas between */
    char nics[64];
} expar_group_place;
#define EXPAR_GROUP_PLACE_INIT EXPAR_STRUCT_INIT(expar_group_place)
/* Fills as much as place->struct_size says that there is. EXPAR_ERR_NULL, EXPAR_ERR_RANGE (no such rank),
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

/* Transport number `index` of a group (0, 1, … in the order of preference): its name (static storage), and one line on
   what it runs on and what its self-test found, "" where there is nothing to tell, cut to text_bytes. False when there
   are no more; nothing is written then. name and text may be NULL. Any thread. */
EXPAR_API bool expar_transport_describe(const expar_group *group, int32_t index, const char **name, char *text,
                                        size_t text_bytes);
/* Whom that transport reaches, and by what, in one line; NULL where there is none. Static storage. Any thread. */
EXPAR_API const char *expar_transport_summary(const expar_group *group, int32_t index);
/* Why a transport that the group could have used is not there; NULL: none is missing. Lives as long as the group. */
EXPAR_API const char *expar_transport_missing(const expar_group *group);
/* The set of expar_reach that `rank` has to pe by a transport; every rank knows that of all. 0: none, or no such
   transport or rank. */
EXPAR_API unsigned expar_transport_reach(const expar_group *group, int32_t index, int32_t rank, int32_t pe);
/* What this rank uses that transport for with pe; a set of expar_reach. */
EXPAR_API unsigned expar_transport_selected(const expar_group *group, int32_t index, int32_t pe);

/* What this rank has handed to a network since its group was formed, counted where the network's library is called: the
   library's own messages (barriers, teams, signals) are among it, the self-test is not, and nothing that loads and
   stores carry out. An operation may be cut into several. */
typedef struct expar_network_stats {
    /* set by EXPAR_NETWORK_STATS_INIT */
    size_t struct_size;
    uint64_t puts, put_bytes;
    uint64_t gets, get_bytes;
    /* signals and flags are atomics, too; the bytes are those of the words */
    uint64_t atomics, atomic_bytes;
} expar_network_stats;
#define EXPAR_NETWORK_STATS_INIT EXPAR_STRUCT_INIT(expar_network_stats)
/* Fills as much as stats->struct_size says that there is; zeros where the group uses no network. EXPAR_ERR_NULL;
   EXPAR_ERR_ARGUMENT when stats->struct_size is not set. Any thread. */
EXPAR_API expar_status expar_network_get_stats(const expar_group *group, expar_network_stats *stats);

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

/* The driver: what CUDA version it supports (13000 for 13.0), and how many GPUs this process sees. Either may be NULL.
   EXPAR_ERR_UNSUPPORTED: there is none, or no GPU; the text says what to install. Starts the driver: a process that has
   called this must not fork children that use CUDA. */
EXPAR_API expar_status expar_cuda_get_driver(int32_t *version, int32_t *num_gpus);
/* The compiler of kernels, NVRTC: its version and file (static storage). Either may be NULL. EXPAR_ERR_UNSUPPORTED: it
   was not found; the text says where it was looked for and how to get it. */
EXPAR_API expar_status expar_cuda_get_compiler(int32_t *version, const char **path);
/* Compute capability, times ten, of the GPUs for which this library carries ready kernels, for machines without NVRTC;
   0: it was built without nvcc and carries none. GPUs of the same major version run them. */
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
    /* 1: its memory can be shared with other processes, as buffers on it need */
    int32_t shareable;
} expar_cuda_gpu;
#define EXPAR_CUDA_GPU_INIT EXPAR_STRUCT_INIT(expar_cuda_gpu)
/* EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size), EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_RANGE (no such GPU),
   EXPAR_ERR_CUDA. */
EXPAR_API expar_status expar_cuda_get_gpu(int32_t index, expar_cuda_gpu *gpu);
/* How a kernel on GPU `from` reaches the memory of GPU `to`. *access: 1 by loads and stores. *rank: the driver's order
   of performance among such pairs, 0 is the best. *atomics: 1 when the link carries out atomic operations. Any may be
   NULL. */
EXPAR_API expar_status expar_cuda_get_link(int32_t from, int32_t to, int32_t *access, int32_t *rank, int32_t *atomics);

#ifdef __cplusplus
}
#endif
#endif
