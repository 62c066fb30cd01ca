/* SPDX-License-Identifier: Apache-2.0 */
/* shown: a value from outside (environment, command line) as messages show it: short, and without control characters,
 * which a terminal would obey. The tool and the benchmarks include this, too. */
#ifndef EXPAR_BASE_SHOWN_H
#define EXPAR_BASE_SHOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define SHOWN_MOST  64u                          /* the most bytes of a value that are shown */
#define SHOWN_BYTES (4 * SHOWN_MOST + 2 * 3 + 1) /* each as \xNN, an ellipsis, the end */

/* Returns true for control characters of ASCII, and for bytes that can begin or be one in a terminal that does not read
   UTF-8. */
static inline bool shown_is_control(unsigned char c, bool after_c2)
{
    return c < 0x20 || c == 0x7f || (after_c2 && c >= 0x80 && c < 0xa0);
}

static inline bool shown_is_inside(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* Writes at most SHOWN_MOST bytes of the text, control characters as \xNN, and "…" where more follows. A character of
   several bytes is not cut. Returns `shown`. */
static inline const char *shown_text(const char *text, char shown[SHOWN_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t length = strnlen(text, SHOWN_MOST + 1), used = 0;
    const bool cut = length > SHOWN_MOST;
    if (cut) length = SHOWN_MOST;
    while (cut && length > SHOWN_MOST - 3 && shown_is_inside((unsigned char)text[length]))
        length--;
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        const bool after_c2 = i > 0 && (unsigned char)text[i - 1] == 0xc2;
        if (!shown_is_control(c, after_c2)) {
            shown[used++] = (char)c;
            continue;
        }
        shown[used++] = '\\';
        shown[used++] = 'x';
        shown[used++] = digits[c >> 4];
        shown[used++] = digits[c & 15];
    }
    memcpy(shown + used, cut ? "…" : "", cut ? sizeof "…" : 1);
    return shown;
}

/* For arguments of a message: lives as long as the block around the call. */
#define SHOWN(text) shown_text(text, (char[SHOWN_BYTES]){0})

#endif
