/* SPDX-License-Identifier: Apache-2.0 */
/* group: the object behind expar_group: it joins (boot), finds the nodes (topology), owns the symmetric memory (shmem).
 *
 * Called by the public calls, ep and pgas; calls boot, shmem, net, mem and base. It owns what lives as long as the
 * group: boot and sym by name, and whatever layers above leave with it (group_keep). */
#ifndef EXPAR_GROUP_GROUP_H
#define EXPAR_GROUP_GROUP_H

#include "base/base.h"
#include "base/life.h"
#include "boot/boot.h"
#include "shmem/sym.h"
#include <expar/group.h>

/* What a layer above keeps for as long as the group, such as its table of teams. The group knows no more of it than
   this: how it ends. */
typedef struct group_resident {
    /* Frees it. By then the group has left its peers, its transports are closed and its heap is gone: nobody else knows
       of the resident any more. Also tells one kind from another: a group keeps one of each. */
    void (*end)(struct group_resident *self);
    struct group_resident *next; /* the one that came before it; set by group_keep */
} group_resident;

#define GROUP_MAGIC 0x70756f7267707865u
struct expar_group {
    life_record life; /* GROUP_MAGIC: the owner's reference, and one for each buffer and for each call by group_enter */
    int32_t pid;      /* of the process that made it: a child of fork is no rank */
    /* Who destroys or abandons it sets it first (compare-swap, relaxed: references order the rest); destroy takes it
       back where it is refused. Read by group_enter. */
    atomic_bool ended;
    boot *boot;
    sym *sym;
    uint64_t number; /* of this object in the process, from 1; no other one has it, earlier or later */
    int32_t rank, size;
    int32_t num_nodes, ranks_per_node;
    int32_t *nodes;     /* [size] node of each rank; ranks are numbered node by node */
    int32_t host_ranks; /* ranks of this group on this host */
    int32_t host_cores; /* cores that this process may use */
    /* EP buffers that were asked for so far, made or not: the same on all ranks. By create of buffers. */
    uint32_t num_buffers;
    _Atomic int32_t users; /* EP buffers alive; written by create and destroy of buffers, read by group destroy */
    struct group_threads *threads; /* shared by thread ranks, else NULL */
    /* The last that came. Written by group_keep (release), read by whoever looks for one (acquire), so that it is there
       with all that was put into it before. */
    _Atomic(group_resident *) residents;
};

/* How a public call on a group ends: call_ended with this rank. group may be NULL. */
static inline expar_status group_ended(const expar_group *group, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(group ? group->rank : -1, status);
}

/* One more reference; false: the group has been destroyed or abandoned, and the last error says so of `call`. */
bool group_enter(expar_group *group, const char *call);
/* Gives it back; the last one frees what an abandoned group has. */
void group_leave(expar_group *group);

/* EXPAR_OK in the process that made it. In a child of fork, which must end nothing that the ranks have together,
   EXPAR_ERR_STATE with a text of `call`. */
expar_status group_check_process(const expar_group *group, const char *call);

/* The group takes the resident over, and ends it when it ends itself, those that came last first. */
void group_keep(expar_group *group, group_resident *resident);
/* The one of this kind; NULL: none has come yet. */
group_resident *group_kept(const expar_group *group, void (*end)(group_resident *self));

#endif
