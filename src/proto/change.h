/* SPDX-License-Identifier: Apache-2.0 */
/* change: the argument of the kernel that changes a word of a GPU's memory for the host (shmem/changer.c). */
#ifndef EXPAR_PROTO_CHANGE_H
#define EXPAR_PROTO_CHANGE_H

#include <stdint.h>

/* The numbers are those of transport_atomic_op. */
typedef enum change_op {
    CHANGE_SWAP = 2,
    CHANGE_COMPARE_SWAP = 3,
    CHANGE_ADD = 4,
    CHANGE_AND = 5,
    CHANGE_OR = 6,
    CHANGE_XOR = 7
} change_op;

/* The kernel's text has the offsets of the members. */
typedef struct change_args {
    /* addresses for kernels: the word, and 8 bytes of pinned memory. The kernel writes the former word there; the host
       reads it when the kernel has ended. */
    uint64_t word, former;
    uint64_t operand, compare;
    uint32_t bytes; /* of the word: 4 or 8 */
    uint32_t op;    /* change_op */
} change_args;

#endif
