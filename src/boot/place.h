/* SPDX-License-Identifier: Apache-2.0 */
/* place: where this process is (place.c), and what lies near it (devices.c). */
#ifndef EXPAR_BOOT_PLACE_H
#define EXPAR_BOOT_PLACE_H

#include "boot/boot.h"
#include <sched.h>

void place_find(boot_place *place);

#define PLACE_MAX_NUMA_NODES 64
/* Returns the NUMA node that holds all of the cores, as described below `sys` (/sys); -1: none does. */
int32_t place_numa_node(const char *sys, const cpu_set_t *cores);
/* Fills a text as boot_place.nics, with the RDMA devices below `sys`. */
void place_nics(const char *sys, char text[BOOT_NICS_TEXT]);

#endif
