/* SPDX-License-Identifier: Apache-2.0 */
/* changer: changes words of device memory by a kernel of one thread on this rank's GPU. Such changes are atomic with
 * those of kernels of all GPUs that map the memory; copies, by which the owner's CPU changes words otherwise, are not.
 *
 * The device heap makes one where kernels change words, and copies/transport.c uses it. It calls cuda and mem. A change
 * needs space for one thread on an SM, on a stream of the changer's own. All memory, the stream and the kernel are made
 * with the changer, because making them may wait for kernels. */
#ifndef EXPAR_SHMEM_CHANGER_H
#define EXPAR_SHMEM_CHANGER_H

#include "cuda/cuda.h"
#include "net/transport.h"

typedef struct changer changer;

/* The kernel, as the driver takes it (PTX); tests assemble it. */
extern const char changer_text[];

/* The device stays open as long as the changer. It fails if the driver cannot translate or load the kernel. */
expar_status changer_create(const cuda_device *device, changer **out);
/* No change is in progress any more. NULL is allowed. */
void changer_destroy(changer *changer);

/* Returns whether the operation needs a kernel. Reading and setting a word do not. */
bool changer_is_for(transport_atomic_op op);

/* A change of the word at that address, of 4 or 8 bytes. */
typedef struct changer_order {
    cu_address word;
    uint64_t bytes;
    transport_atomic_op op; /* changer_is_for */
    uint64_t operand, compare;
} changer_order;
/* Makes the change, and gives the former word. Any thread; while another one's change waits for an SM, this one
   waits, too. */
expar_status changer_change(changer *changer, const changer_order *order, uint64_t *former);

#endif
