/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text: all results, files beside each other, and the environment. */
#include "page.h"
#include <math.h>
#include <string.h>

static void cell(FILE *out, double number)
{
    fputs("<td>", out);
    html_number(out, number);
}

/* ---- all values -------------------------------------------------------------------------------------------------- */

static void write_head(const struct page *page, const struct panel *panel)
{
    fputs("<div class=scroll><table><caption>", page->out);
    html_text(page->out, panel->title);
    fprintf(page->out,
            "</caption><tr>%s<th>%s<th>median<th>min<th>p99<th>limit<th>of limit<th>MPI<th>rows GB/s<th>bus "
            "GB/s<th>bytes right\n",
            page->num_files > 1 ? "<th>file" : "", panel->by_bytes ? "bytes" : "tokens");
}

static void write_point(const struct page *page, const struct point *p)
{
    FILE *out = page->out;
    const json_t *verified = json_object_get(p->result, "verified");
    fputs("<tr>", out);
    if (page->num_files > 1) {
        fputs("<td class=word>", out);
        html_text(out, page->files[p->file].name);
    }
    fputs("<td>", out);
    if (!isnan(p->x)) fprintf(out, "%.0f", p->x);
    cell(out, p->median_us);
    cell(out, p->min_us);
    cell(out, p->p99_us);
    cell(out, p->limit_us);
    cell(out, p->median_us > 0 ? p->limit_us / p->median_us : NAN);
    cell(out, p->mpi_us);
    cell(out, html_real(p->result, "gbps"));
    cell(out, html_real(p->result, "bus_gbps"));
    fputs(json_is_true(verified) ? "<td>yes\n" : json_is_false(verified) ? "<td class=bad>NO\n" : "<td>\n", out);
}

void tables_values(const struct page *page)
{
    fputs("<section><h2>All values</h2><p>Times are in microseconds.</p>\n", page->out);
    for (int i = 0; i < page->panels.count; i++) {
        const struct panel *panel = &page->panels.items[i];
        write_head(page, panel);
        for (int j = 0; j < panel->count; j++)
            write_point(page, &panel->points[j]);
        fputs("</table></div>\n", page->out);
    }
    fputs("</section>\n", page->out);
}

/* ---- files beside each other ------------------------------------------------------------------------------------- */

static const struct point *point_at(const struct panel *panel, int file, double x)
{
    for (int i = 0; i < panel->count; i++)
        if (panel->points[i].file == file && (panel->points[i].x == x || (isnan(x) && isnan(panel->points[i].x))))
            return &panel->points[i];
    return NULL;
}

/* Writes the medians of all files at one place of the first file, and their ratios to it. */
static void compare_at(const struct page *page, const struct panel *panel, const struct point *first)
{
    FILE *out = page->out;
    fputs("<tr><td class=word>", out);
    html_text(out, panel->title);
    fputs("<td>", out);
    if (!isnan(first->x)) fprintf(out, "%.0f", first->x);
    cell(out, first->median_us);
    for (int file = 1; file < page->num_files; file++) {
        const struct point *other = point_at(panel, file, first->x);
        const double ratio = other && first->median_us > 0 ? other->median_us / first->median_us : NAN;
        cell(out, other ? other->median_us : NAN);
        fprintf(out, "<td class=%s>", ratio > 1.03 ? "slower" : ratio < 0.97 ? "faster" : "same");
        html_number(out, ratio);
        if (!isnan(ratio)) fputs("\xc3\x97", out);
    }
    fputs("\n", out);
}

/* Returns whether another file has a result at the same place. */
static bool is_compared(const struct page *page, const struct panel *panel, const struct point *point)
{
    bool found = false;
    for (int file = 1; file < page->num_files && point->file == 0; file++)
        found |= point_at(panel, file, point->x) != NULL;
    return found;
}

static void write_comparison_head(const struct page *page)
{
    FILE *out = page->out;
    fputs(
        "<section><h2>Comparison</h2><p>Medians in microseconds, and how many times as long they take as in the first "
        "file: below 1 is faster.</p><div class=scroll><table><tr><th class=word>operation<th>tokens, bytes",
        out);
    for (int file = 0; file < page->num_files; file++) {
        fputs("<th>", out);
        html_text(out, page->files[file].name);
        if (file > 0) fputs("<th>ratio", out);
    }
    fputs("\n", out);
}

void tables_comparison(const struct page *page)
{
    int rows = 0;
    if (page->num_files < 2) return;
    for (int i = 0; i < page->panels.count; i++)
        for (int j = 0; j < page->panels.items[i].count; j++) {
            const struct panel *panel = &page->panels.items[i];
            if (!is_compared(page, panel, &panel->points[j])) continue;
            if (rows++ == 0) write_comparison_head(page);
            compare_at(page, panel, &panel->points[j]);
        }
    fputs(rows ? "</table></div></section>\n"
               : "<section><h2>Comparison</h2><p>The files have no results of the same operations and sizes.</p>"
                 "</section>\n",
          page->out);
}

/* ---- environment ------------------------------------------------------------------------------------------------- */

static void write_members(FILE *out, json_t *object)
{
    const char *name;
    const json_t *value;
    json_object_foreach(object, name, value)
    {
        fputs("<tr><th>", out);
        html_text(out, name);
        fputs("<td class=word>", out);
        html_json(out, value);
        fputs("\n", out);
    }
}

void tables_environment(const struct page *page)
{
    FILE *out = page->out;
    fputs("<section><h2>Environment</h2><div class=grid>\n", out);
    for (int file = 0; file < page->num_files; file++) {
        const json_t *json = page->files[file].json;
        fputs("<div class=scroll><table class=pairs><caption>", out);
        html_text(out, page->files[file].name);
        fputs("</caption><tr><th>date<td class=word>", out);
        html_text(out, html_string(json, "date", "\xe2\x80\x93"));
        fputs("<tr><th>command<td class=word>", out);
        html_command(out, html_string(json, "command", "\xe2\x80\x93"));
        fputs("\n", out);
        write_members(out, json_object_get(json, "machine"));
        write_members(out, json_object_get(json, "config"));
        fputs("</table></div>\n", out);
    }
    fputs("</div></section>\n", out);
}
