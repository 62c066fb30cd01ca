/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the GPU that simt.c simulates. */
#ifndef TESTS_CUDA_SIMT_LAUNCH_H
#define TESTS_CUDA_SIMT_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct simt_launch {
    void (*kernel)(const void *arguments);
    const void *arguments;
    uint32_t blocks, threads; /* threads of a block: whole warps */
    size_t shared_bytes;
} simt_launch;

/* Kernels hold threads back at random from now on, by that seed; 0: they do not. */
void simt_delay(uint32_t seed);
/* Where the delays of all modules are counted, 8 bytes. */
void *simt_delays_place(void);
/* Carries the kernel out, to its end, in threads of its own. Bytes of rows that it has stored. */
uint64_t simt_trial(const simt_launch *launch);

/* Is asked about each address before an ordered load of a kernel; NULL: nobody is. */
extern void (*_Atomic simt_watch_load)(const void *address);
/* The number in its block of the thread whose turn it is. */
uint32_t simt_thread(void);

#endif
