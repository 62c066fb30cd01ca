/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says of the heap's size and of how long a PE waits for others. */
#include "openshmem/shm.h"

#include <stdlib.h>
#include <string.h>

/* NULL: not set, or empty. */
static const char *text_of(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* A number of bytes, perhaps with a fraction and a suffix K, M, G or T. */
static bool parse_bytes(const char *text, size_t *bytes)
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

/* 0: not said. */
static size_t heap_bytes(void)
{
    const char *text = text_of("SHMEM_SYMMETRIC_SIZE");
    size_t bytes;
    if (!text) return 0;
    if (!parse_bytes(text, &bytes))
        shm_fail("SHMEM_SYMMETRIC_SIZE is no number of bytes with an optional K, M, G or T");
    /* Room for what expar takes itself, beside what the program asks for. */
    return bytes + bytes / 8 + ((size_t)64 << 20);
}

/* The standard has no time-out: a PE may compute for as long as it likes while others wait for it, and one that dies is
   found by other means. A year, the most that expar takes; 0: what EXPAR_TIMEOUT says. */
static int64_t timeout_ms(void)
{
    return text_of("EXPAR_TIMEOUT") ? 0 : (int64_t)365 * 86400 * 1000;
}

void shm_environment_read(expar_group_options *options)
{
    options->heap_bytes = heap_bytes();
    options->timeout_ms = timeout_ms();
}
