/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: sets of ranks as text. */
#ifndef EXPAR_BOOT_RANKS_H
#define EXPAR_BOOT_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes the ranks r with set[r] == value as text: "0-2,5", or "none"; a long list ends in "…". Returns how many there
   are. */
int32_t ranks_format(const bool *set, bool value, int32_t size, char *text, size_t bytes);

#endif
