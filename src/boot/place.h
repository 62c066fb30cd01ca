/* SPDX-License-Identifier: Apache-2.0 */
/* place: where this process is. */
#ifndef EXPAR_BOOT_PLACE_H
#define EXPAR_BOOT_PLACE_H

#include "boot/boot.h"

void place_find(boot_place *place);

#endif
