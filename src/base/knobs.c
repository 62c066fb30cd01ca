/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning constants: their values, and the table for people. */
#include "base/knobs.h"
#include "base/base.h"

#include <assert.h>
#include <string.h>

#define KNOB_VALUE(id, name, value, least, most, unit, meaning) [KNOB_##id] = (value),
_Alignas(64) const int64_t knob_values[] = {KNOBS_TABLE(KNOB_VALUE)};
#undef KNOB_VALUE
static_assert(KNOB_WAIT_CROWDED_SPINS / 8 == KNOB_WAIT_MOST_SLEEP_NS / 8 &&
                  KNOB_CPU_CHECK_TURNS / 8 == KNOB_CPU_PACE_TIMED / 8,
              "what each call reads lies in two cache lines");

#define KNOB_ROW(id, name, value, least, most, unit, meaning) {name, value, least, most, unit, meaning},
static const knob_entry knobs[] = {KNOBS_TABLE(KNOB_ROW)};
#undef KNOB_ROW

#define KNOB_CHECK(id, name, value, least, most, unit, meaning)                                                        \
    static_assert((least) <= (value) && (value) <= (most), name ": the default lies within its bounds");
KNOBS_TABLE(KNOB_CHECK)
#undef KNOB_CHECK

const knob_entry *knob_table(size_t *count)
{
    *count = ARRAY_LENGTH(knobs);
    return knobs;
}

bool knob_find(const char *name, knob_id *id)
{
    for (size_t i = 0; i < ARRAY_LENGTH(knobs); i++) {
        if (strcmp(knobs[i].name, name) != 0) continue;
        *id = (knob_id)i;
        return true;
    }
    return false;
}
