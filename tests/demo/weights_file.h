/* SPDX-License-Identifier: Apache-2.0 */
/* Small safetensors files, good and broken, written to a temporary folder. */
#ifndef TESTS_DEMO_WEIGHTS_FILE_H
#define TESTS_DEMO_WEIGHTS_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Makes and removes the folder of one test program. */
int scratch_create(void **state);
int scratch_remove(void **state);

/* The path of a file of that name in the folder; static storage, overwritten by the next call. */
const char *scratch_path(const char *name);
void scratch_write(const char *name, const void *bytes, size_t count);

/* Writes header length, header and data_bytes bytes of data (a byte's value is its number, modulo 256, but 0x3f at odd
   places: so that BF16 values are finite). */
void weights_write(const char *name, uint64_t header_length, const char *header, size_t data_bytes);

#endif
