/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of ranks in error texts, for tests that look for one rank among those that happened to be late. */
#ifndef TESTS_BASE_RANK_LIST_H
#define TESTS_BASE_RANK_LIST_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Whether the text holds the label, and the list after it, such as "0-2,5", the rank. */
static inline bool rank_list_has(const char *text, const char *label, long rank)
{
    const char *at = strstr(text, label);
    char *end;
    if (!at) return false;
    for (at += strlen(label);; at = end + 1) {
        long first = strtol(at, &end, 10);
        if (end == at) return false;
        long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (first <= rank && rank <= last) return true;
        if (*end != ',') return false;
    }
}

#endif
