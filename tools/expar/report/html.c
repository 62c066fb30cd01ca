/* SPDX-License-Identifier: Apache-2.0 */
/* Escaped text, and numbers. */
#include "html.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns how much of a text is shown. No character is cut in two. */
static size_t shown_bytes(const char *text)
{
    size_t bytes = strnlen(text, HTML_MOST_TEXT + 1);
    if (bytes <= HTML_MOST_TEXT) return bytes;
    bytes = HTML_MOST_TEXT;
    while (bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80)
        bytes--;
    return bytes;
}

static void put_character(FILE *out, unsigned char c)
{
    switch (c) {
    case '&':
        fputs("&amp;", out);
        break;
    case '<':
        fputs("&lt;", out);
        break;
    case '>':
        fputs("&gt;", out);
        break;
    case '"':
        fputs("&quot;", out);
        break;
    case '\'':
        fputs("&#39;", out);
        break;
    default:
        if ((c < ' ' && c != '\n' && c != '\t') || c == 0x7f)
            fputs("\xef\xbf\xbd", out);
        else
            fputc(c, out);
    }
}

void html_text(FILE *out, const char *text)
{
    const size_t bytes = shown_bytes(text);
    for (size_t i = 0; i < bytes; i++)
        put_character(out, (unsigned char)text[i]);
    if (text[bytes]) fputs("\xe2\x80\xa6", out);
}

void html_command(FILE *out, const char *text)
{
    const size_t bytes = shown_bytes(text);
    bool inside = false;
    fputs("<code>", out);
    for (size_t i = 0; i < bytes; i++) {
        const bool blank = text[i] == ' ';
        if (blank == inside) fputs(blank ? "</span>" : "<span>", out);
        inside = !blank;
        put_character(out, (unsigned char)text[i]);
    }
    fprintf(out, "%s%s</code>", inside ? "</span>" : "", text[bytes] ? "\xe2\x80\xa6" : "");
}

void html_number(FILE *out, double number)
{
    const double size = fabs(number);
    if (isnan(number))
        fputs("\xe2\x80\x93", out);
    else
        fprintf(out, "%.*f", size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3, number);
}

void html_json(FILE *out, const json_t *value)
{
    char *text;
    if (json_is_string(value)) {
        html_text(out, json_string_value(value));
        return;
    }
    text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
    if (text) html_text(out, text);
    free(text);
}

double html_real(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) && isfinite(json_number_value(value)) ? json_number_value(value) : NAN;
}

const char *html_string(const json_t *object, const char *name, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : otherwise;
}
