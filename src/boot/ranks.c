/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: sets of ranks as text. */
#include "boot/ranks.h"

#include <stdio.h>
#include <string.h>

/* Adds "a" or "a-b". Returns false if the text is full. */
static bool add_run(char *text, size_t bytes, int32_t first, int32_t last)
{
    static const char dots[] = ",…";
    size_t used = strlen(text);
    const char *comma = used > 0 ? "," : "";
    char run[32];
    if (first == last)
        snprintf(run, sizeof run, "%s%d", comma, first);
    else
        snprintf(run, sizeof run, "%s%d-%d", comma, first, last);
    bool fits = used + strlen(run) + sizeof dots <= bytes;
    snprintf(text + used, bytes - used, "%s", fits ? run : dots);
    return fits;
}

int32_t ranks_format(const bool *set, bool value, int32_t size, char *text, size_t bytes)
{
    int32_t count = 0, first = -1;
    bool spare = true;
    text[0] = 0;
    for (int32_t rank = 0; rank <= size; rank++) {
        bool member = rank < size && set[rank] == value;
        count += member;
        if (member && first < 0) first = rank;
        if (!member && first >= 0) {
            spare = spare && add_run(text, bytes, first, rank - 1);
            first = -1;
        }
    }
    if (count == 0) snprintf(text, bytes, "none");
    return count;
}
