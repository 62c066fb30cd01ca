/* SPDX-License-Identifier: Apache-2.0 */
/* page: the parts of the page know it by this. */
#ifndef EXPAR_TOOL_REPORT_PAGE_H
#define EXPAR_TOOL_REPORT_PAGE_H

#include "html.h"
#include "panels.h"

struct page {
    FILE *out;
    const struct report_file *files;
    int num_files;
    struct panels panels;
};

extern const char style_sheet[]; /* style.c */

/* ---- curves.c ---------------------------------------------------------------------------------------------------- */

/* Draws the times of a panel over its tokens or bytes. */
void curves_draw(const struct page *page, const struct panel *panel);

/* ---- heat.c ------------------------------------------------------------------------------------------------------ */

/* Draws what the links of a result carry, from rank to rank, a map for each class. False: memory ran out. */
bool heat_draw(const struct page *page, const struct point *point, const char *title);
/* Draws how often each expert of a run was chosen. */
void experts_draw(const struct page *page, int file);
/* Draws where the time of a result goes, if it says so. */
void breakdown_draw(const struct page *page, const struct point *point, const char *title);

/* ---- tables.c ---------------------------------------------------------------------------------------------------- */

/* Each writes a section, or nothing if there is nothing to say. */
void tables_values(const struct page *page);
void tables_comparison(const struct page *page);
void tables_environment(const struct page *page);

#endif
