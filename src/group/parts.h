/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share. Private to group. */
#ifndef EXPAR_GROUP_PARTS_H
#define EXPAR_GROUP_PARTS_H

#include "group/group.h"

/* ---- settings (settings.c): the caller's options, completed from the environment --------------------------------- */

typedef struct group_settings {
    int32_t ranks_per_node; /* 0: by hosts */
    int64_t timeout_ms, bootstrap_timeout_ms;
    int64_t late_limit_ms; /* 0: none */
    int64_t spin_us;       /* as sym_patience.spin_ns */
    size_t heap_bytes;
    bool fixed_heap, huge_heap;
} group_settings;

/* Copies what the caller's version of the struct has; options may be NULL. */
expar_status group_options_copy(const char *call, const expar_group_options *options, expar_group_options *out);
expar_status group_settings_read(const char *call, const expar_group_options *options, group_settings *out);

/* ---- topology (topology.c) --------------------------------------------------------------------------------------- */

typedef struct group_topology {
    int32_t num_nodes, ranks_per_node;
    int32_t host_ranks, host_cores;
} group_topology;

/* Fills nodes [size]. EXPAR_ERR_BOOTSTRAP names the ranks where hosts do not make equal nodes in the order of ranks. */
expar_status group_topology_find(const boot *ctl, int32_t ranks_per_node, int32_t *nodes, group_topology *out);

/* ---- thread ranks (threads.c) ------------------------------------------------------------------------------------ */

/* Their heaps: one process maps each once, so they live until the last rank has gone. */
typedef struct group_threads {
    int32_t size;
    mem_region *heaps;           /* [size] */
    mem_backing **backings;      /* [size] what lies behind each; kept longer by blocks of that rank's outputs */
    const mem_region **pointers; /* [size] to heaps */
    _Atomic int32_t references;  /* ranks that have not gone; the last one frees (acquire and release) */
} group_threads;

void group_threads_release(group_threads *threads);

/* ---- residents (residents.c) ------------------------------------------------------------------------------------- */

/* Ends them all. */
void group_residents_end(expar_group *group);

/* ---- making and freeing (group.c) -------------------------------------------------------------------------------- */

/* A group over `ctl`, which it owns on success. threads: the heaps of thread ranks, of which a reference is taken over
   on success; else NULL. Collective between processes. */
expar_status group_make(boot *ctl, const group_settings *settings, group_threads *threads, expar_group **out);
/* Leaves (when `sound` after a barrier with the others) and frees. */
void group_free(expar_group *group, bool sound);

#endif
