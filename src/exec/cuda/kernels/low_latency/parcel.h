/* SPDX-License-Identifier: Apache-2.0 */
/* A parcel: data for a rank, and a word that comes after the data. Kernels send one for each message header, message
 * and row.
 *
 * Each way to a rank that is not mapped (far_ring.h, far_gda.h) has the same operations on it. Each way numbers what
 * was issued to a rank in its own manner, ascending; 0 stands before all of it.
 *
 *     issue      passes a parcel on, and returns the number after it; 0: nothing was issued
 *     has_ended  says whether all before a number is known to have ended, by a quick look
 *     await      waits until it has */
#ifndef EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PARCEL_H
#define EXPAR_EXEC_CUDA_KERNELS_LOW_LATENCY_PARCEL_H

#include "exec/cuda/kernels/low_latency/masks.h"

/* A thread sends it to a rank. It has data that this thread has written, or threads that it has met, and a word that
   comes after the data. */
typedef struct ll_parcel {
    const uint8_t *data; /* where it was written */
    uint64_t to, bytes;  /* its offset in the rank's buffer; 0 bytes: there is only the word */
    uint64_t at, word;   /* the word, and its offset there */
} ll_parcel;

#endif
