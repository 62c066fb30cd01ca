/* SPDX-License-Identifier: Apache-2.0 */
/* group: the object of an expar_group: it joins (boot), finds the nodes (topology), owns the symmetric memory (shmem).
 *
 * Called by the public calls, ep and pgas; calls boot, shmem, net, mem and base. It owns everything that lives as long
 * as the group: boot and sym by name, and the objects that layers above attach to it (group_keep). */
#ifndef EXPAR_GROUP_GROUP_H
#define EXPAR_GROUP_GROUP_H

#include "base/base.h"
#include "base/life.h"
#include "boot/boot.h"
#include "shmem/sym.h"
#include <expar/group.h>

/* An object that a layer above attaches to the group, such as its table of teams. The group knows only how it ends. */
typedef struct group_attachment {
    /* Frees the object. By then the group has left its peers, its transports are closed and its heap is gone, so
       nothing else refers to the object. The function also tells one kind from another: a group keeps one object of
       each. */
    void (*end)(struct group_attachment *self);
    /* NULL, or a function that is called once before `end`, when no call on the group runs any more. Boot, transports
       and heaps are still there. It must not wait for other ranks. */
    void (*leave)(struct group_attachment *self);
    /* the object that was attached before it; set by group_keep */
    struct group_attachment *next;
} group_attachment;

#define GROUP_MAGIC 0x70756f7267707865u
struct expar_group {
    /* GROUP_MAGIC. References: one of the owner, one for each buffer, and one for each call by group_enter */
    life_record life;
    /* pid of the process that made the group: a child of fork is no rank */
    int32_t pid;
    /* A thread that destroys or abandons the group first sets this (compare-swap, relaxed: references order the rest).
       Destroy clears it again if it is rejected. group_enter reads it. */
    atomic_bool ended;
    boot *boot;
    sym *sym;
    /* number of this object in the process, from 1; no other object ever has it */
    uint64_t number;
    int32_t rank, size;
    int32_t num_nodes, ranks_per_node;
    /* [size] node of each rank; ranks are numbered node by node */
    int32_t *nodes;
    /* ranks of this group on this host */
    int32_t host_ranks;
    /* cores that this process may use */
    int32_t host_cores;
    /* Number of EP buffers that were asked for so far, made or not: the same on all ranks. Only creation of buffers
       writes it. */
    uint32_t num_buffers;
    /* number of living EP buffers; creation and destruction of buffers write it, destruction of the group reads it */
    _Atomic int32_t users;
    /* shared by thread ranks, else NULL */
    struct group_threads *threads;
    /* The object that was attached last. group_keep writes it (release), each search reads it (acquire), so that the
       object's contents are visible, too. */
    _Atomic(group_attachment *) attachments;
};

/* Ends a public call on a group: call_ended with this rank. group may be NULL. */
static inline expar_status group_ended(const expar_group *group, expar_status status)
{
    return status == EXPAR_OK ? status : error_tell(group ? group->rank : -1, status);
}

/* Takes a reference. False: the group has been destroyed or abandoned, and the last error says so for `call`. */
bool group_enter(expar_group *group, const char *call);
/* Drops the reference; the last one frees the memory of an abandoned group. */
void group_leave(expar_group *group);

/* EXPAR_OK in the process that made the group. A child of fork must not end what the ranks share; it gets
   EXPAR_ERR_STATE, with a text for `call`. */
expar_status group_check_process(const expar_group *group, const char *call);

/* Attaches the object. The group ends it when it ends itself, the last attached one first. */
void group_keep(expar_group *group, group_attachment *attachment);
/* Returns the attached object of this kind; NULL: there is none yet. */
group_attachment *group_kept(const expar_group *group, void (*end)(group_attachment *self));

#endif
