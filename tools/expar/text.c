/* SPDX-License-Identifier: Apache-2.0 */
/* Reading numbers from option texts. */
#include "text.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

bool text_to_int(const char *text, int64_t low, int64_t high, int64_t *value)
{
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1]))) return false;
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || *end || number < low || number > high) return false;
    *value = number;
    return true;
}

bool text_to_seconds(const char *text, double *seconds)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') return false;
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || *end || !(number > 0) || !(number < 1e9)) return false;
    *seconds = number;
    return true;
}
