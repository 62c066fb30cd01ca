/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric device heap: GPU memory that has the same offset on every rank of a group.
 *
 * Called by exec/cuda (buffers on GPUs); calls mem, cuda and boot. Each rank has one GPU, several ranks may have the
 * same one. Every PE's heap is a range of addresses on every rank, equally long; memory is put behind it chunk by
 * chunk as it is taken. Kernels find PE r's copy of an offset at bases[r] + offset. Ranks that are processes hand each
 * other descriptors; ranks that are threads of one process share the mapping. Take and give are collective: the same
 * calls in the same order on all ranks, as in the host's heap.
 *
 * Behind the symmetric part each PE's range has a second one, of which every rank has as much as it asked for
 * (device_heap_grow): its pool, whose blocks it hands out by itself. An offset there is reached like any other; what
 * lies at it is that rank's affair.
 *
 * Where processes get no descriptors (or EXPAR_CUDA_IPC is 1) they share memory by CUDA IPC: then the first take fixes
 * the heap's size and its bases, and there is no second part. */
#ifndef EXPAR_SHMEM_DEVICE_HEAP_H
#define EXPAR_SHMEM_DEVICE_HEAP_H

#include "mem/device.h"
#include "shmem/sym.h"

typedef struct device_heap device_heap;

/* Collective. Opens GPU `index` of this process for this rank, and addresses for all PEs' heaps; takes no memory yet.
   All ranks return the same status: EXPAR_ERR_UNSUPPORTED (no CUDA; ranks on several hosts; two GPUs without peer
   access, both named), EXPAR_ERR_REMOTE when only another rank could not. */
expar_status device_heap_create(sym *sym, int32_t index, device_heap **out);
/* Collective while all is sound. quiet: no kernel of any rank uses it any more; the same on all ranks, as
   device_heap_give tells. Else (and where the group has failed) what other ranks of this process may still use stays
   until the last heap of the process goes, and what other processes may use until this one ends. NULL is allowed. */
void device_heap_destroy(device_heap *heap, bool quiet);

/* Collective. The memory's content is undefined. alignment: a power of two up to 2 MiB. EXPAR_ERR_MEMORY on all ranks
   says which rank's GPU lacks how much. */
expar_status device_heap_take(device_heap *heap, const char *what, uint64_t bytes, uint64_t alignment,
                              uint64_t *offset);
/* Collective; returns when all ranks have come. The memory stays with the heap for later takes, or where not all ranks
   are quiet for nobody, as long as the heap lives. *quiet (NULL: true)
   says whether this rank knows that no kernel of its own uses the heap any more, and then whether all ranks do: false
   on failure. */
expar_status device_heap_give(device_heap *heap, const char *what, uint64_t offset, bool *quiet);

/* ---- the part behind --------------------------------------------------------------------------------------------- */

/* Whether there is one. The same on all ranks. */
bool device_heap_grows(const device_heap *heap);
/* Collective. Puts at least `bytes` more behind what this rank's second part has, in whole units; 0 is allowed, and
   ranks may say different numbers. All ranks have what they asked for, mapped everywhere, or none has any, and all
   return the same status: EXPAR_ERR_MEMORY says which rank's GPU lacks how much. No kernel may be waiting for a rank
   that is in here. */
expar_status device_heap_grow(device_heap *heap, const char *what, uint64_t bytes);
/* Collective. Gives back whole pieces from the end of this rank's second part, as long as it keeps `keep_bytes`: when
   this returns no rank maps them any more. No kernel of any rank may be using them: each says by `quiet` whether its
   own have ended, and nothing is done unless all have. */
expar_status device_heap_shrink(device_heap *heap, const char *what, uint64_t keep_bytes, bool quiet);
/* What that would leave this rank. */
uint64_t device_heap_own_kept(const device_heap *heap, uint64_t keep_bytes);
/* Where the second part begins; its addresses; how many have memory. The same offset on all ranks. */
uint64_t device_heap_own_offset(const device_heap *heap);
uint64_t device_heap_own_room(const device_heap *heap);
uint64_t device_heap_own_bytes(const device_heap *heap);

/* This rank's memory, for who still uses it when the heap has gone: the second part then stays where it is, readable by
   this process, until the last holder drops it. By CUDA IPC all of the heap does. Dropping calls the driver: not from a
   function that the driver calls. NULL is allowed. */
typedef struct device_part device_part;
device_part *device_heap_hold(device_heap *heap);
void device_part_drop(device_part *part);

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* This rank's GPU; lives as long as the heap. */
const cuda_device *device_heap_device(const device_heap *heap);
/* GPUs of this process whose ranks map what this rank maps, its own first; *count of them. */
const int32_t *device_heap_devices(const device_heap *heap, int32_t *count);
/* [size]: where each PE's heap begins, for kernels of this rank's GPU. Fixed from the first take on. */
const cu_address *device_heap_bases(const device_heap *heap);
/* This rank's copy of an offset. */
cu_address device_heap_at(const device_heap *heap, uint64_t offset);
/* Offset of an address in this rank's heap; false when [address, address + bytes) is not wholly in taken memory. */
bool device_heap_offset(const device_heap *heap, cu_address address, uint64_t bytes, uint64_t *offset);

#endif
