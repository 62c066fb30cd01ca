/* SPDX-License-Identifier: Apache-2.0 */
/* kinds: symmetric memory of the host, of GPUs (device), and pinned.
 *
 * pgas calls this folder by this header; it knows which heap an address is in. Each kind is a heap of its own: the
 * host's is that of sym.h, made with the group; device_heap.h and pinned_heap.h have the others. The first allocation
 * of a kind makes its heap on all ranks, and the group keeps it until its end. The first allocation of device or pinned
 * memory chooses each rank's GPU. Device memory needs pinned memory for messages (copies/copies.h).
 * Allocations and frees are collective; everything else may be called by any thread. */
#ifndef EXPAR_SHMEM_KINDS_H
#define EXPAR_SHMEM_KINDS_H

#include "mem/copier.h"
#include "shmem/device_heap.h"
#include "shmem/sym.h"

/* The largest alignment of blocks in device and pinned memory. */
#define KINDS_ALIGNMENT_MAX ((uint64_t)2 << 20)
/* The alignment of device blocks that is to be had in any case; more may be missing by CUDA IPC. */
#define KINDS_ALIGNMENT_DEVICE ((uint64_t)256)

/* Rows of words at the begin of device heaps of groups, for barriers of kernels: one for each team (pgas/device). */
#define KINDS_SYNC_ROWS ((uint64_t)64)

/* Ranges of registered memory. */
#define KINDS_MOST_REGISTERED DEVICE_HEAP_MOST_REGISTERED

/* Where an address lies: the kind, and the offset in the heap of that kind. */
typedef struct kinds_place {
    transport_memory memory;
    uint64_t offset;
} kinds_place;

/* Offsets in a heap. */
typedef struct kinds_range {
    uint64_t begin, end;
} kinds_range;

/* A rank asks for this. All ranks must ask for the same, except the GPU. */
typedef struct kinds_request {
    transport_memory memory;
    /* this rank's GPU, by its number in this process; device and pinned */
    int32_t device;
    uint64_t bytes, alignment;
    bool zeroed;
} kinds_request;

/* Collective. All ranks agree on the request, before anything is taken; own: why this rank rejects its arguments, with
   the last error's text. EXPAR_ERR_UNSUPPORTED on all ranks: one of them, which is named, has no GPU. */
expar_status kinds_agree(sym *sym, const char *what, const kinds_request *request, expar_status own);
/* Returns whether the group has memory of another kind than the host's. The same on all ranks. */
bool kinds_exist(const sym *sym);
/* Collective. All ranks agree on the block of a call: place NULL is none. own as in kinds_agree. */
expar_status kinds_agree_on_block(sym *sym, const char *what, const kinds_place *place, expar_status own);
/* Collective, after kinds_agree. Takes a block, whose bytes are not 0, and gives its address on this rank. If the
   memory is to be zero, it is so on all ranks when this returns. */
expar_status kinds_take(sym *sym, const char *what, const kinds_request *request, void **out);
/* Collective. Completes this rank's operations, and frees the block when all ranks have come. */
expar_status kinds_give(sym *sym, const char *what, const kinds_place *place);

/* Collective. Makes memory of the caller's, which cuMemCreate has made on this rank's GPU, symmetric device memory.
   *out is its symmetric address on this rank. All ranks agree on `bytes` first; own as in kinds_agree. It fails as
   device_heap_register does, and with EXPAR_ERR_UNSUPPORTED as kinds_agree. */
expar_status kinds_register(sym *sym, const char *what, const device_heap_memory *memory, expar_status own, void **out);
/* Collective, after kinds_agree_on_block. Completes this rank's operations, and ends the registration of the memory
   that begins at the place. */
expar_status kinds_unregister(sym *sym, const char *what, const kinds_place *place);
/* Returns whether the place is in memory of kinds_register, and its offsets. */
bool kinds_find_registered(const sym *sym, const kinds_place *place, kinds_range *out);
/* Registers memory of the caller's for this rank's own operations, or counts once more (mem_registry_add).
   EXPAR_ERR_ADDRESS: it is symmetric, or not of one kind. Any thread. */
expar_status kinds_register_own(sym *sym, const char *what, void *address, uint64_t bytes);
expar_status kinds_unregister_own(sym *sym, const char *what, const void *address);

/* Finds [address, address + bytes) in one of this rank's heaps. Returns false unless it is wholly in one. */
bool kinds_find(const sym *sym, const void *address, uint64_t bytes, kinds_place *out);
/* Returns whether a block starts there, and its size. */
bool kinds_block_bytes(sym *sym, const kinds_place *place, uint64_t *bytes);
/* Returns this rank's address of the place. */
void *kinds_at(const sym *sym, const kinds_place *place);
/* Returns where this rank loads and stores pe's copy: by its CPU, or for device memory by kernels of its GPU. NULL: it
   cannot. */
void *kinds_peer_at(const sym *sym, const kinds_place *place, int32_t pe);
/* Returns where kernels of this rank's GPU load and store pe's copy. NULL: they cannot, or it is the host's. */
void *kinds_peer_on_device(const sym *sym, const kinds_place *place, int32_t pe);
/* Returns where copies and words of this rank's streams reach pe's copy. NULL: they do not, or the settings send data
   there another way. */
void *kinds_peer_on_stream(const sym *sym, const kinds_place *place, int32_t pe);
/* The same for words that a stream writes: its own GPU must have registered pinned memory. */
void *kinds_peer_word_on_stream(const sym *sym, const kinds_place *place, int32_t pe);
/* Returns the GPU on which this rank has its memory of the kind, or by which it is registered; -1: none. */
int32_t kinds_device(const sym *sym, transport_memory memory);
/* The same as an object, which stays open until the group ends; NULL: none. */
const cuda_device *kinds_gpu(const sym *sym, transport_memory memory);
/* Collective for device memory. Copies between two blocks of one kind on each rank; OK on all ranks, or on none. */
expar_status kinds_copy(sym *sym, const char *what, const kinds_place *dest, const kinds_place *source, uint64_t bytes);
/* Fills the members that the kind has. All are 0 if it has no heap yet. */
void kinds_get_stats(sym *sym, transport_memory memory, struct expar_heap_stats *out);

/* Gives where users' memory of a kind is. Returns false if the group has no heap of that kind yet, or no memory in
   it. */
bool kinds_users_range(const sym *sym, transport_memory memory, kinds_range *out);
/* The same for memory of kinds_register, by number below KINDS_MOST_REGISTERED; false: there is none of that number. */
bool kinds_registered_range(const sym *sym, int32_t number, kinds_range *out);
/* Returns whether kernels change words of device memory, and not the owners' CPUs. Then the GPUs of all ranks reach the
   device memory of all ranks with atomics, and the settings permit it. The same on all ranks. */
bool kinds_kernels_meet(const sym *sym);
/* Returns EXPAR_DEVICE_ATOMICS of all ranks; KERNEL_ATOMICS_AUTO without device memory. */
kernel_atomics kinds_atomics_by(const sym *sym);
/* Returns whether atomics of this rank's GPU on that memory of pe are atomic with those of all others: for device
   memory, of kernels; for pinned memory, of CPUs, too. */
bool kinds_has_gpu_atomics(const sym *sym, transport_memory memory, int32_t pe);

/* Returns whether kernels of any rank may reach these bytes of device memory by messages: users' memory, and the flags
   of barriers. */
bool kinds_serves_device(const sym *sym, uint64_t offset, uint64_t bytes);
/* Returns whether [address, address + bytes) is symmetric, or was registered for own operations. *on_device: it is
   memory of a GPU. Unlike kinds_is_device it takes any address. */
bool kinds_knows(const sym *sym, const void *address, uint64_t bytes, bool *on_device);

bool kinds_points_to_device(const sym *sym, const void *address);
/* Returns whether the address is memory of a GPU, of the group or any other: no CPU may touch it. Groups without device
   and pinned memory do not ask the driver, and find none. */
static inline bool kinds_is_device(const sym *self, const void *address)
{
    /* Relaxed: a group's address got to its thread after the heap was made. */
    return atomic_load_explicit(&self->copier, memory_order_relaxed) && kinds_points_to_device(self, address);
}
/* Returns the copier of this rank's GPU; NULL: the group has neither device nor pinned memory. */
static inline mem_copier *kinds_copier(const sym *self)
{
    return atomic_load_explicit(&self->copier, memory_order_acquire);
}
/* Carries a put or a get between memory of this rank's GPU (request->on_device) and memory that transports reach. It
   passes through pinned pieces, and is complete when this returns (copies/pieces.c). */
expar_status kinds_carry_pieces(sym *sym, const transport_request *request);
/* Describes an address for the copier. device: kinds_is_device holds for it. */
mem_side kinds_side(const sym *sym, const void *address, uint64_t bytes, bool device);

/* Ends the use of GPUs; call it before the transports close. together: collective, all kernels of all ranks have ended.
   Otherwise, some memory that other ranks may still use stays. */
void kinds_end(sym *sym, bool together);
/* Frees what is left, after the transports have closed. */
void kinds_free(sym *sym);

#endif
