/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning of UTF-8 (well-formed sequences: The Unicode Standard, table 3-7). */
#include "utf8.h"

#include <stdbool.h>
#include <string.h>

/* Length of the character that starts with this byte; 0 for a byte that starts none. */
static size_t character_length(uint8_t first)
{
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

/* The second byte excludes overlong forms, surrogates, and numbers beyond U+10FFFF. */
static bool second_fits(uint8_t first, uint8_t second)
{
    uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= low && second <= high;
}

/* Bytes of the valid character at the start of text; 0 when there is none. */
static size_t valid_character(const uint8_t *text, size_t count)
{
    size_t length = character_length(text[0]);
    if (length == 0 || length > count || (length > 1 && !second_fits(text[0], text[1]))) return 0;
    for (size_t i = 2; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    return length;
}

size_t utf8_clean(const uint8_t *text, size_t count, char *out)
{
    size_t written = 0;
    for (size_t i = 0; i < count;) {
        size_t length = valid_character(text + i, count - i);
        if (length > 0) {
            memcpy(out + written, text + i, length);
            written += length;
            i += length;
        } else {
            memcpy(out + written, "\xef\xbf\xbd", UTF8_REPLACEMENT_BYTES);
            written += UTF8_REPLACEMENT_BYTES;
            i++;
        }
    }
    return written;
}
