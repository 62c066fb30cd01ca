/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables of the standard (its section 8), by their names and by the deprecated ones, and how long a
 * PE waits for others. */
#include "openshmem/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct variable {
    const char *name, *old_name, *values, *meaning;
} variable;
enum { SYMMETRIC_SIZE, VERSION, INFO, DEBUG, VARIABLES };
static const variable variables[VARIABLES] = {
    [SYMMETRIC_SIZE] = {"SHMEM_SYMMETRIC_SIZE", "SMA_SYMMETRIC_SIZE", "bytes, or with K, M, G, T",
                        "space in the symmetric heap of each PE"},
    [VERSION] = {"SHMEM_VERSION", "SMA_VERSION", "any", "print the library's version at the start"},
    [INFO] = {"SHMEM_INFO", "SMA_INFO", "any", "print these lines at the start"},
    [DEBUG] = {"SHMEM_DEBUG", "SMA_DEBUG", "any", "EXPAR_LOG=debug, where that is not set"},
};

/* NULL: not set, or empty. */
static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* The name of the two that is set; NULL: neither. */
static const char *name_in_use(const variable *v)
{
    if (text_of(v->name)) return v->name;
    return text_of(v->old_name) ? v->old_name : NULL;
}

/* ---- what they ask for ------------------------------------------------------------------------------------------- */

/* A number of bytes, perhaps with a fraction and a suffix K, M, G or T. */
static bool variable_parse_bytes(const char *text, size_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end) : NULL;
    if (end == text || (*end && (!unit || end[1]))) return false;
    for (const char *u = units; unit && u <= unit; u++)
        value *= 1024;
    if (!(value >= 1) || value > 1e15) return false;
    *bytes = (size_t)value;
    return true;
}

/* Ends the job: the variable's value is not what is expected. */
static void variable_fail(const char *name, const char *expected)
{
    char wrong[160];
    snprintf(wrong, sizeof wrong, "%s=%.64s: expected %s", name, getenv(name), expected);
    for (char *c = wrong; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?'; /* a terminal would obey it */
    shm_fail(wrong);
}

/* 0: not said. */
static size_t heap_bytes(void)
{
    const char *name = name_in_use(&variables[SYMMETRIC_SIZE]);
    size_t bytes = 0;
    if (!name) return 0;
    if (!variable_parse_bytes(getenv(name), &bytes))
        variable_fail(name, "a number of bytes, perhaps followed by K, M, G or T");
    /* Memory that expar takes itself, beside the program's. */
    return bytes + bytes / 8 + ((size_t)64 << 20);
}

/* The standard has no time-out: a PE may compute for as long as it likes while others wait for it, and one that dies is
   found by other means. A year, the most that expar takes; 0: what EXPAR_TIMEOUT says. */
static int64_t variable_timeout_ms(void)
{
    return text_of("EXPAR_TIMEOUT") ? 0 : (int64_t)365 * 86400 * 1000;
}

expar_memory_kind shm_environment_memory(void)
{
    const char *text = text_of("EXPAR_SHMEM_MEMORY");
    if (!text || !strcmp(text, "host")) return EXPAR_MEMORY_HOST;
    if (strcmp(text, "pinned")) variable_fail("EXPAR_SHMEM_MEMORY", "host or pinned");
    return EXPAR_MEMORY_PINNED;
}

void shm_environment_read(expar_group_options *options)
{
    options->heap_bytes = heap_bytes();
    options->timeout_ms = variable_timeout_ms();
    if (name_in_use(&variables[DEBUG]) && !text_of("EXPAR_LOG")) setenv("EXPAR_LOG", "debug", 1);
}

/* ---- what they print --------------------------------------------------------------------------------------------- */

static void print_variables(void)
{
    for (int i = 0; i < VARIABLES; i++) {
        const variable *v = &variables[i];
        const char *name = name_in_use(v);
        fprintf(stderr, "shmem: %s (%s; deprecated name %s): %s; %s%s\n", v->name, v->values, v->old_name, v->meaning,
                name ? "now " : "not set", name ? getenv(name) : "");
    }
    fprintf(stderr, "shmem: EXPAR_TIMEOUT (seconds): how long a PE waits for others; %s\n",
            text_of("EXPAR_TIMEOUT") ? text_of("EXPAR_TIMEOUT") : "not set, there is no limit");
}

void shm_environment_print(void)
{
    if (name_in_use(&variables[VERSION]))
        fprintf(stderr, "shmem: %s %s, OpenSHMEM %d.%d\n", SHMEM_VENDOR_STRING, expar_version(), SHMEM_MAJOR_VERSION,
                SHMEM_MINOR_VERSION);
    if (name_in_use(&variables[INFO])) print_variables();
}
