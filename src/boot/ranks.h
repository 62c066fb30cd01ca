/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: sets of ranks as text. */
#ifndef EXPAR_BOOT_RANKS_H
#define EXPAR_BOOT_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The ranks r with set[r] == value, "0-2,5", "none" when there is none; a long list ends in "…". Returns how many. */
int32_t ranks_format(const bool *set, bool value, int32_t size, char *text, size_t bytes);

#endif
