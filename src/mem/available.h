/* SPDX-License-Identifier: Apache-2.0 */
/* available: how much memory is left to this process. Tools include it, too: bench checks its memory at the start. */
#ifndef EXPAR_MEM_AVAILABLE_H
#define EXPAR_MEM_AVAILABLE_H

#include <stdint.h>

#define MEM_AVAILABLE_TEXT 160
typedef struct mem_available {
    /* UINT64_MAX: no limit is known */
    uint64_t bytes;
    /* what sets the limit, for error texts */
    char limit[MEM_AVAILABLE_TEXT];
} mem_available;
/* Finds how much memory is left. It is the minimum of what the machine has available and what the memory cgroups of
   this process leave (versions 1 and 2). Page cache that can be dropped counts as free. `root` stands before /proc and
   /sys; only tests give one. */
void mem_available_find(const char *root, mem_available *out);

#endif
