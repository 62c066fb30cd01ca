/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions that the files of this folder share. Private to group. */
#ifndef EXPAR_GROUP_PARTS_H
#define EXPAR_GROUP_PARTS_H

#include "group/group.h"

/* ---- settings (settings.c): the caller's options, completed from the environment --------------------------------- */

typedef struct group_settings {
    /* 0: by hosts */
    int32_t ranks_per_node;
    int64_t timeout_ms, bootstrap_timeout_ms;
    /* 0: none */
    int64_t late_limit_ms;
    /* as sym_patience.spin_ns */
    int64_t spin_us;
    size_t heap_bytes;
    bool fixed_heap, huge_heap;
} group_settings;

/* Copies the members that the caller's version of the struct has; options may be NULL. */
expar_status group_options_copy(const char *call, const expar_group_options *options, expar_group_options *out);
expar_status group_settings_read(const char *call, const expar_group_options *options, group_settings *out);

/* ---- topology (topology.c) --------------------------------------------------------------------------------------- */

typedef struct group_topology {
    int32_t num_nodes, ranks_per_node;
    int32_t host_ranks, host_cores;
} group_topology;

/* Fills nodes [size]. If hosts do not make equal nodes in the order of ranks, EXPAR_ERR_BOOTSTRAP names the ranks. */
expar_status group_topology_find(const boot *ctl, int32_t ranks_per_node, int32_t *nodes, group_topology *out);

/* ---- thread ranks (threads.c) ------------------------------------------------------------------------------------ */

/* The heaps of thread ranks: the process maps each heap once, so they live until the last rank has gone. */
typedef struct group_threads {
    int32_t size;
    /* [size] */
    mem_region *heaps;
    /* [size] the part that follows each heap; blocks of that rank's outputs keep it longer */
    mem_backing **backings;
    /* [size] pointers to heaps */
    const mem_region **pointers;
    /* ranks that have not gone; dropping the last reference frees (acquire and release) */
    _Atomic int32_t references;
} group_threads;

void group_threads_release(group_threads *threads);

/* ---- attached objects (attachments.c) ---------------------------------------------------------------------------- */

/* Calls `leave` of all objects that layers above have attached to the group, each once. */
void group_attachments_leave(expar_group *group);
/* Ends these objects. */
void group_attachments_end(expar_group *group);

/* ---- making and freeing (group.c) -------------------------------------------------------------------------------- */

/* Makes a group over `ctl`, which it owns on success. threads: the heaps of thread ranks, to which it takes over a
   reference on success; else NULL. Collective between processes. */
expar_status group_make(boot *ctl, const group_settings *settings, group_threads *threads, expar_group **out);
/* Leaves (if `sound`, after a barrier with the others) and frees. */
void group_free(expar_group *group, bool sound);

#endif
