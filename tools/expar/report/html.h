/* SPDX-License-Identifier: Apache-2.0 */
/* html: text and numbers for the page. */
#ifndef EXPAR_TOOL_REPORT_HTML_H
#define EXPAR_TOOL_REPORT_HTML_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes text for a page. Characters of markup are escaped, control characters become U+FFFD, and text of more than
   HTML_MOST_TEXT bytes is cut. */
#define HTML_MOST_TEXT 2000
void html_text(FILE *out, const char *text);
/* Writes a command in the same way. Lines break between words only, not inside of an option. */
void html_command(FILE *out, const char *text);
/* Writes a time or a rate with three digits that matter, such as 0.123, 12.3 and 12300. NAN: a dash. */
void html_number(FILE *out, double number);
/* Writes any JSON value as text. */
void html_json(FILE *out, const json_t *value);

/* Returns a member that is a number; NAN: there is none. */
double html_real(const json_t *object, const char *name);
/* Returns a member that is a text; `otherwise`: there is none. */
const char *html_string(const json_t *object, const char *name, const char *otherwise);

#endif
