/* SPDX-License-Identifier: Apache-2.0 */
/* Reading numbers from option texts; running text and bars. */
#include "text.h"
#include "base/shown.h"
#include <ctype.h>
#include <errno.h>
#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

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

bool text_to_real(const char *text, double low, double high, double *value)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') return false;
    if (text[strspn(text, "0123456789.eE+-")]) return false; /* strtod would read hexadecimal numbers */
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || *end || !(number >= low) || !(number <= high)) return false;
    *value = number;
    return true;
}

bool text_to_seconds(const char *text, double *seconds)
{
    double number;
    if (!text_to_real(text, 0, 1e9, &number) || !(number > 0) || !(number < 1e9)) return false;
    *seconds = number;
    return true;
}

char *text_harmless(char *text)
{
    bool after_c2 = false;
    for (char *c = text; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        if (shown_is_control(byte, after_c2)) *c = '?';
        after_c2 = byte == 0xc2;
    }
    return text;
}

int text_columns(const char *text)
{
    wchar_t wide[2048];
    const size_t length = mbstowcs(wide, text, sizeof wide / sizeof *wide);
    const int columns = length < sizeof wide / sizeof *wide ? wcswidth(wide, length) : -1;
    return columns >= 0 ? columns : (int)strlen(text);
}

void text_wrap(FILE *out, const char *text, int indent, int columns)
{
    int at = indent;
    bool begun = false;
    while (*text) {
        char word[256];
        const size_t length = strcspn(text, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        const int width = text_columns(word);
        if (begun && at + 1 + width > columns) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
            begun = false;
        }
        at += fprintf(out, "%s", begun ? " " : "") + width;
        fwrite(text, 1, length, out);
        begun = true;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

const char *text_bar(char *bar, double share, int width)
{
    const bool blocks = !strcmp(nl_langinfo(CODESET), "UTF-8");
    const double limited = share > 1 ? 1 : share > 0 ? share : 0;
    const int filled = (int)(limited * width + 0.5);
    char *end = bar;
    for (int i = 0; i < filled && i < TEXT_BAR_MOST; i++)
        end = stpcpy(end, blocks ? "\xe2\x96\x88" : "#");
    *end = '\0';
    return bar;
}
