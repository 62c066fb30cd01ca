/* SPDX-License-Identifier: Apache-2.0 */
/* Variables that look like expar's but are unknown. Most are misspelt, so they do not have the effect that the user
 * wants. */
#include "base/base.h"
#include "base/shown.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define PREFIX         "EXPAR_"
#define NAME_MAX_BYTES 64 /* bytes of a name that are compared and shown */
#define WORDS_AFTER    3  /* letters as which any words after a whole name count */

/* Names with these beginnings are ours, but tests, scripts and bindings read them, not the library. */
static const char *const of_others[] = {"EXPAR_TEST_", "EXPAR_REQUIRE_", "EXPAR_CALL_", "EXPAR_PYTHON_",
                                        "EXPAR_LIBRARY"};

/* Whether this process has looked. The first thread that looks writes it, all read it. Relaxed, because it orders
   nothing. */
static atomic_bool has_looked;

static bool name_known(const char *name)
{
    size_t count;
    const env_entry *table = env_table(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) return true;
    for (size_t i = 0; i < ARRAY_LENGTH(of_others); i++)
        if (strncmp(of_others[i], name, strlen(of_others[i])) == 0) return true;
    return false;
}

/* Returns how many letters must be added or removed to turn one name into the other. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_BYTES + 1]; /* distances from the part of a that was looked at to each beginning of b */
    const size_t length = strnlen(b, NAME_MAX_BYTES);
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 0; i < NAME_MAX_BYTES && a[i]; i++) {
        size_t before = row[0]++;
        for (size_t j = 1; j <= length; j++) {
            const size_t above = row[j], shorter = above < row[j - 1] ? above : row[j - 1];
            row[j] = a[i] == b[j - 1] ? before : shorter + 1;
            before = above;
        }
    }
    return row[length];
}

/* EXPAR_LOG_LEVEL is meant for EXPAR_LOG, though EXPAR_LOG_FILE needs fewer changes. */
static size_t distance_of_words(const char *name, const char *known)
{
    const size_t letters = distance(name, known), whole = strlen(known);
    const bool goes_on = strncmp(name, known, whole) == 0 && name[whole] == '_';
    return goes_on && letters > WORDS_AFTER ? WORDS_AFTER : letters;
}

const char *env_nearest(const char *name)
{
    size_t count, least = SIZE_MAX;
    const env_entry *table = env_table(&count);
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t far = distance_of_words(name, table[i].name);
        if (far >= least) continue;
        least = far;
        nearest = table[i].name;
    }
    return nearest;
}

/* Copies the unknown variable number `index` of the environment. False: there are no more. */
static bool find_unknown(size_t index, char name[NAME_MAX_BYTES])
{
    bool found = false;
    env_change_begin();
    for (char **at = environ; at && *at && !found; at++) {
        if (strncmp(*at, PREFIX, strlen(PREFIX)) != 0) continue;
        const size_t bytes = strcspn(*at, "="), kept = bytes < NAME_MAX_BYTES - 1 ? bytes : NAME_MAX_BYTES - 1;
        memcpy(name, *at, kept);
        name[kept] = '\0';
        found = !name_known(name) && index-- == 0;
    }
    env_change_end();
    return found;
}

void env_warn_unknown(void)
{
    char name[NAME_MAX_BYTES];
    if (atomic_exchange_explicit(&has_looked, true, memory_order_relaxed)) return;
    for (size_t i = 0; find_unknown(i, name); i++)
        LOG(LOG_WARN, "%s is set, but expar knows no such variable; the nearest that it knows is %s (expar info --env)",
            SHOWN(name), env_nearest(name));
}
