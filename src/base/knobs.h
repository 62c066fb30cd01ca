/* SPDX-License-Identifier: Apache-2.0 */
/* knobs: tuning constants, which change how fast the library is and never what it does. knobs_table.h has all of them.
 *
 * Called by all layers, and by expar info; calls nothing. Otherwise private to the library. */
#ifndef EXPAR_BASE_KNOBS_H
#define EXPAR_BASE_KNOBS_H

#include "base/knobs_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNOB_ID(id, name, value, least, most, unit, meaning) KNOB_##id,
typedef enum knob_id { KNOBS_TABLE(KNOB_ID) KNOB_COUNT } knob_id;
#undef KNOB_ID

/* [KNOB_COUNT] Constant: any thread reads them. If a later version changes one, it must do so before any thread
   reads. */
extern const int64_t knob_values[];

/* Loops over rows read a knob once, before they begin. */
static inline int64_t knob(knob_id id)
{
    return knob_values[id];
}
/* For counts, which all fit into 32 bits. */
static inline uint32_t knob_count(knob_id id)
{
    return (uint32_t)knob_values[id];
}

/* A row of the table. */
typedef struct knob_entry {
    const char *name;
    int64_t value, least, most; /* value: the default */
    const char *unit, *meaning;
} knob_entry;
/* Returns [*count], in the order of ids. */
const knob_entry *knob_table(size_t *count);
/* False: no knob has this name. */
bool knob_find(const char *name, knob_id *id);

#endif
