/* SPDX-License-Identifier: Apache-2.0 */
/* place: where this process is (place.c), and what lies near it (devices.c). */
#ifndef EXPAR_BOOT_PLACE_H
#define EXPAR_BOOT_PLACE_H

#include "boot/boot.h"
#include <sched.h>

void place_find(boot_place *place);

#define PLACE_MAX_NUMA_NODES 64
/* The NUMA node that holds all of the cores, by what stands below `sys` (/sys); -1: none does. */
int32_t place_numa_node(const char *sys, const cpu_set_t *cores);
/* As boot_place.nics; RDMA devices from below `sys`. */
void place_nics(const char *sys, char text[BOOT_NICS_TEXT]);

#endif
