/* SPDX-License-Identifier: Apache-2.0 */
/* report: writes results of `expar bench --json` as one HTML page that needs neither scripts nor a network.
 *
 *   read.c        files of results              curves.c   times over tokens or bytes, as SVG
 *   panels.c      results that belong together  heat.c     bytes from rank to rank, as SVG
 *   page.c        the page, part by part        tables.c   values, comparison, environment
 *   html.c        escaped text and numbers      style.c    the style sheet
 *
 * Called by bench (--report). All that it prints of a file is escaped; members that are missing or of another type are
 * left out. */
#ifndef EXPAR_TOOL_REPORT_H
#define EXPAR_TOOL_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define REPORT_MOST_FILES 8

/* Results of one run. */
struct report_file {
    const char *name; /* what the reader sees: the file, or the library that was measured */
    json_t *json;     /* of bench --json, or of another library */
};

/* Returns the text "library" of results that another library gave; NULL: they are expar's. Its lines are drawn with
   expar's of the same operation. */
const char *report_library(const json_t *json);
/* Reads a file. False: `error` names the file and what is wrong. The caller drops json (json_decref). */
bool report_read(const char *path, struct report_file *file, char *error, size_t error_bytes);
/* Writes the page of 1 to REPORT_MOST_FILES runs. False: memory ran out. */
bool report_write(const struct report_file *files, int count, FILE *out);

#endif
