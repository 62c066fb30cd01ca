/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON header of a safetensors file as a checked table of tensors. Private to safetensors.c and its tests. */
#ifndef EXPAR_DEMO_SAFETENSORS_HEADER_H
#define EXPAR_DEMO_SAFETENSORS_HEADER_H

#include "safetensors.h"

/* The largest accepted header. The header of this model has 4 KB. */
#define SAFETENSORS_MAX_HEADER_BYTES (16 << 20)

typedef struct safetensors_dtype {
    const char *name;
    size_t bytes; /* of one element */
} safetensors_dtype;

typedef struct safetensors_entry {
    char *name;
    const safetensors_dtype *dtype;
    int32_t ndim;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* bytes, from the start of the data */
} safetensors_entry;

typedef struct safetensors_table {
    safetensors_entry *entries; /* by begin, ascending */
    size_t count;
} safetensors_table;

/* Fills *table, which must be zero. Free it also after a failure. data_bytes: the bytes of the file after the
   header. */
bool safetensors_table_parse(const char *path, const char *json, size_t json_bytes, uint64_t data_bytes,
                             safetensors_table *table, demo_error *error);
void safetensors_table_free(safetensors_table *table);
/* Finds a tensor by its name. NULL: there is none. */
const safetensors_entry *safetensors_table_find(const safetensors_table *table, const char *name);

#endif
