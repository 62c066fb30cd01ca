/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric device heap: GPU memory that has the same offset on every rank of a group.
 *
 * Called by exec/cuda (buffers on GPUs); calls mem, cuda and boot. Each rank has one GPU; several ranks may share one.
 * Every PE's heap is a range of addresses on every rank, equally long; memory is mapped into it chunk by chunk as it is
 * taken. Kernels find PE r's copy of an offset at bases[r] + offset. Ranks that are processes send each other
 * descriptors; ranks that are threads of one process share the mapping. Take and give are collective: all ranks make
 * the same calls in the same order, as for the host's heap.
 *
 * After the symmetric part each PE's range has a second part. Each rank asks for as much memory there as it wants
 * (device_heap_grow); it is the rank's pool, from which it allocates blocks by itself. An offset there is reached like
 * any other, but each rank uses it in its own way.
 *
 * If processes get no descriptors (or EXPAR_CUDA_IPC is 1), they share memory by CUDA IPC. Then the first take fixes
 * the heap's size and its bases, and there is no second part. */
#ifndef EXPAR_SHMEM_DEVICE_HEAP_H
#define EXPAR_SHMEM_DEVICE_HEAP_H

#include "mem/device.h"
#include "shmem/kernel_ways.h"
#include "shmem/sym.h"

typedef struct device_heap device_heap;

/* Collective. Opens GPU `index` of this process for this rank, and reserves addresses for all PEs' heaps; takes no
   memory yet. All ranks return the same status: EXPAR_ERR_UNSUPPORTED (no CUDA; ranks on several hosts; two GPUs
   without peer access, both named), EXPAR_ERR_REMOTE when only another rank could not. */
expar_status device_heap_create(sym *sym, int32_t index, device_heap **out);
/* The same for a heap of which a rank may reach only some PEs. It does not reach PEs of other nodes, nor those whose
   GPU it does not see or has no peer access to. Their bases are 0. The symmetric part takes its memory in larger chunks
   than it needs; by CUDA IPC it takes EXPAR_DEVICE_HEAP_SIZE at once. Its first block has words for barriers of
   kernels: KINDS_SYNC_ROWS rows of a flag for each PE, and as many rows of counts. They are zero before any PE uses
   them. */
expar_status device_heap_create_for_node(sym *sym, int32_t index, device_heap **out);
/* Collective while the group is sound. quiet: no kernel of any rank uses the heap any more; all ranks pass the same
   value, which device_heap_give returns. If not quiet, or if the group has failed, some memory stays. Memory that other
   ranks of this process may still use stays until the last heap of the process is destroyed. Memory that other
   processes may use stays until this process ends. NULL is allowed. */
void device_heap_destroy(device_heap *heap, bool quiet);

/* Collective. The memory's content is undefined. alignment: a power of two up to 2 MiB. EXPAR_ERR_MEMORY on all ranks
   says which rank's GPU lacks how much. */
expar_status device_heap_take(device_heap *heap, const char *what, uint64_t bytes, uint64_t alignment,
                              uint64_t *offset);
/* Collective; returns when all ranks have come. The heap keeps the memory for later takes; if not all ranks are quiet,
   it is not used again while the heap lives. On entry *quiet (NULL: true) says whether this rank knows that none of its
   kernels uses the heap any more. On return it says whether this holds for all ranks; false on failure. */
expar_status device_heap_give(device_heap *heap, const char *what, uint64_t offset, bool *quiet);
/* Takes part in the other ranks' device_heap_give, and makes it fail on all ranks for this reason, which it returns. */
expar_status device_heap_reject(device_heap *heap, const char *what, expar_status reason);

/* Encloses calls of the driver that map and unmap memory of the heap, which may wait for kernels. It must not wait for
   other ranks. */
typedef struct device_heap_gate {
    void (*close)(void *context);
    void (*open)(void *context);
    void *context;
} device_heap_gate;
/* Comes before the heap grows, on the thread that lets it grow. The heap keeps a copy. */
void device_heap_guard(device_heap *heap, const device_heap_gate *gate);

/* ---- the second part --------------------------------------------------------------------------------------------- */

/* Returns whether there is a second part. The same on all ranks. */
bool device_heap_grows(const device_heap *heap);
/* Collective. Adds at least `bytes` to this rank's second part, rounded up to the driver's granularity; 0 is allowed,
   and ranks may pass different numbers. Either all ranks get what they asked for, mapped everywhere, or none gets any.
   All return the same status: EXPAR_ERR_MEMORY says which rank's GPU lacks how much. No kernel may be waiting for a
   rank that is in this call. */
expar_status device_heap_grow(device_heap *heap, const char *what, uint64_t bytes);
/* Collective. Frees whole pieces from the end of this rank's second part, which keeps at least `keep_bytes`. When this
   returns, no rank maps them any more. No kernel of any rank may be using them: each rank says by `quiet` whether its
   own have ended, and nothing is freed unless all have. */
expar_status device_heap_shrink(device_heap *heap, const char *what, uint64_t keep_bytes, bool quiet);
/* Returns how many bytes of its second part this rank would keep. */
uint64_t device_heap_own_kept(const device_heap *heap, uint64_t keep_bytes);
/* Where the second part begins (the same offset on all ranks), how many addresses it has, and how many of them have
   memory. */
uint64_t device_heap_own_offset(const device_heap *heap);
uint64_t device_heap_own_space(const device_heap *heap);
uint64_t device_heap_own_bytes(const device_heap *heap);

/* This rank's memory, for users that outlive the heap. The second part stays mapped, readable by this process, until
   the last holder drops it; with CUDA IPC the whole heap does. Dropping calls the driver, so do not drop in a callback
   of the driver. NULL is allowed. */
typedef struct device_part device_part;
device_part *device_heap_hold(device_heap *heap);
void device_part_drop(device_part *part);

/* ---- memory of the caller's -------------------------------------------------------------------------------------- */

/* Heaps of device_heap_create_for_node have memory of their callers in place of the second part. Its owner then has it
   twice: at the caller's address, and in the heap. */
#define DEVICE_HEAP_MOST_REGISTERED 16

/* Memory of this rank's. */
typedef struct device_heap_memory {
    cu_address address;
    /* the same on all ranks */
    uint64_t bytes;
} device_heap_memory;
/* Collective. Maps [address, address + bytes) of each rank into its heap at one offset, on all ranks that reach it. The
   memory begins with a chunk of the driver's virtual memory management, and whole chunks are mapped. It stays until
   device_heap_unregister, even if the caller unmaps it. EXPAR_ERR_ADDRESS: it is no such memory, or is registered
   already. EXPAR_ERR_LIMIT, EXPAR_ERR_UNSUPPORTED (CUDA IPC; chunks that processes cannot share), EXPAR_ERR_MEMORY. */
expar_status device_heap_register(device_heap *heap, const char *what, const device_heap_memory *memory,
                                  uint64_t *offset);
/* Collective. No kernel and no call of any rank uses the memory any more. EXPAR_ERR_ADDRESS: none is registered at the
   offset. If `own` is not EXPAR_OK, the memory stays registered on all ranks, and this rank returns it. */
expar_status device_heap_unregister(device_heap *heap, const char *what, uint64_t offset, expar_status own);
/* Gives the offsets of registered memory by number, from 0; false: there is none with this number. */
bool device_heap_registered(const device_heap *heap, int32_t number, uint64_t *begin, uint64_t *end);

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* Returns this rank's GPU, which lives as long as the heap. */
const cuda_device *device_heap_device(const device_heap *heap);
/* Returns the GPUs of this process whose ranks map what this rank maps, its own first; *count is their number. */
const int32_t *device_heap_devices(const device_heap *heap, int32_t *count);
/* Returns [size]: where each PE's heap begins, for kernels of this rank's GPU; 0: it does not reach the PE. Fixed after
   the first take. */
const cu_address *device_heap_bases(const device_heap *heap);
/* Returns the address of an offset in this rank's heap. */
cu_address device_heap_at(const device_heap *heap, uint64_t offset);
/* Gives the offset of an address in this rank's heap. Returns false unless [address, address + bytes) is wholly in
   taken memory. */
bool device_heap_offset(const device_heap *heap, cu_address address, uint64_t bytes, uint64_t *offset);
/* The same for the symmetric part alone, without its first block, and for registered memory. */
bool device_heap_finds(const device_heap *heap, cu_address address, uint64_t bytes, uint64_t *offset);
/* Returns whether other ranks may reach [offset, offset + bytes) by messages: what device_heap_finds finds, and the
   flags of barriers. */
bool device_heap_serves(const device_heap *heap, uint64_t offset, uint64_t bytes);
/* Returns whether the address is in any PE's symmetric part as this rank maps it. */
bool device_heap_maps(const device_heap *heap, cu_address address);
/* Returns whether a block of the symmetric part starts at the offset, and its size. */
bool device_heap_block_bytes(device_heap *heap, uint64_t offset, uint64_t *bytes);
/* Gives the offsets of the symmetric part, without its first block. */
void device_heap_users_range(const device_heap *heap, uint64_t *begin, uint64_t *end);
/* Returns whether atomics of kernels of this rank's GPU on pe's memory are atomic with those of other GPUs. */
bool device_heap_has_atomics(const device_heap *heap, int32_t pe);
/* Returns whether that holds for the GPUs of all ranks on the memory of all ranks, and the settings of all ranks leave
   atomics to kernels. The same on all ranks. */
bool device_heap_kernels_meet(const device_heap *heap);
/* Returns EXPAR_DEVICE_ATOMICS, which is the same on all ranks. */
kernel_atomics device_heap_atomics_by(const device_heap *heap);
/* Returns what changes words for this rank's host, where kernels change words. NULL: the owners' copies do, or with
   EXPAR_DEVICE_ATOMICS=node nothing can. */
struct changer *device_heap_changer(const device_heap *heap);
/* How full the symmetric part is. */
typedef struct device_heap_facts {
    mem_arena_stats arena;
    /* the arena's first block, which no caller gets */
    uint64_t first_bytes;
    /* memory that this rank has taken, in so many chunks, and the granularity of chunks */
    uint64_t mapped_bytes, chunks, unit_bytes;
} device_heap_facts;
void device_heap_get_facts(device_heap *heap, device_heap_facts *out);

#endif
