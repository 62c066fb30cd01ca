/* SPDX-License-Identifier: Apache-2.0 */
/* The settings for operations of programs' kernels (expar/device.h): by what they go, and what changes words.
 *
 * The device heap reads them when it is made, and pgas for each handle; they call base. `expar info` includes this
 * header, too. */
#ifndef EXPAR_SHMEM_KERNEL_WAYS_H
#define EXPAR_SHMEM_KERNEL_WAYS_H

#include "base/base.h"

/* EXPAR_DEVICE_TRANSPORTS: the ways, in order of preference. */
typedef enum kernel_way { KERNEL_WAY_NONE = 0, KERNEL_WAY_MAPPED, KERNEL_WAY_GDA, KERNEL_WAY_PROXY } kernel_way;
#define KERNEL_WAYS         3
#define KERNEL_WAYS_DEFAULT "mapped,gda,proxy"
typedef struct kernel_ways {
    /* KERNEL_WAY_NONE after the last one */
    kernel_way list[KERNEL_WAYS];
} kernel_ways;
/* EXPAR_ERR_ARGUMENT: the text names the word, and those that are expected. */
expar_status kernel_ways_read(kernel_ways *out);
bool kernel_ways_have(const kernel_ways *ways, kernel_way way);
/* Returns the first way of the settings that is there; KERNEL_WAY_NONE: none of them is. */
kernel_way kernel_ways_choose(const kernel_ways *ways, bool mapped, bool gda, bool proxy);
const char *kernel_way_name(kernel_way way);
/* Writes the ways as EXPAR_DEVICE_TRANSPORTS names them. */
enum { KERNEL_WAYS_BYTES = 32 };
void kernel_ways_text(const kernel_ways *ways, char text[KERNEL_WAYS_BYTES]);

/* EXPAR_DEVICE_ATOMICS: what changes words of device memory for kernels. */
typedef enum kernel_atomics {
    /* kernels, if those of all ranks reach all words; else the owners' CPUs */
    KERNEL_ATOMICS_AUTO = 0,
    /* kernels; no rank changes words of another node */
    KERNEL_ATOMICS_NODE,
    /* the owners' CPUs, so the host's atomics need no SM */
    KERNEL_ATOMICS_OWNER,
    KERNEL_ATOMICS
} kernel_atomics;
/* EXPAR_ERR_ARGUMENT: as above. */
expar_status kernel_atomics_read(kernel_atomics *out);
const char *kernel_atomics_name(kernel_atomics atomics);

#endif
