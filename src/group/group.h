/* SPDX-License-Identifier: Apache-2.0 */
/* group: the object behind expar_group: it joins (boot), finds the nodes (topology), owns the symmetric memory (shmem).
 *
 * Called by the public calls and by ep; calls boot, shmem, mem and base. */
#ifndef EXPAR_GROUP_GROUP_H
#define EXPAR_GROUP_GROUP_H

#include "base/base.h"
#include "boot/boot.h"
#include "shmem/sym.h"
#include <expar/group.h>

struct expar_group {
    boot *boot;
    sym *sym;
    int32_t rank, size;
    int32_t num_nodes, ranks_per_node;
    int32_t *nodes;        /* [size] node of each rank; ranks are numbered node by node */
    int32_t host_ranks;    /* ranks of this group on this host */
    int32_t host_cores;    /* cores that this process may use */
    _Atomic int32_t users; /* EP buffers alive; written by create and destroy of buffers, read by group destroy */
    struct group_threads *threads; /* shared by thread ranks, else NULL */
};

#endif
