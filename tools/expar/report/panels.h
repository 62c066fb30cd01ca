/* SPDX-License-Identifier: Apache-2.0 */
/* panels: results that differ in the number of tokens or bytes, and in the file, alone. */
#ifndef EXPAR_TOOL_REPORT_PANELS_H
#define EXPAR_TOOL_REPORT_PANELS_H

#include "report.h"

#define PANEL_TITLE_BYTES 192

/* One result. */
struct point {
    const json_t *result;
    int file;
    double x; /* tokens of a rank, or bytes of an operation; NAN: neither */
    /* NAN: not there. limit_us: of copies, of the network, or of a baseline without expar. */
    double median_us, min_us, p99_us, limit_us, mpi_us;
};

struct panel {
    char title[PANEL_TITLE_BYTES];
    size_t operation_bytes; /* of the title: the operation, without expar's path, transport and workers */
    bool by_bytes;          /* x is bytes */
    struct point *points;   /* by file, then by x */
    int count;
    int num_x; /* different ones */
};

struct panels {
    struct panel *items; /* in the order of their first results */
    int count;
    struct point *points; /* of all panels */
};

/* Sorts the results of all files. False: memory ran out. The caller frees the panels in any case. */
bool panels_make(const struct report_file *files, int count, struct panels *panels);
void panels_free(struct panels *panels);

#endif
