/* SPDX-License-Identifier: Apache-2.0 */
/* The page, part by part. */
#include "page.h"
#include "report.h"
#include <math.h>
#include <string.h>

#define MOST_CARDS 12
#define MOST_MAPS  8 /* pairs of pictures a file, so that the page stays small */

/* ---- head and judgement ------------------------------------------------------------------------------------------ */

/* Names the processor, and the GPUs. */
static void write_machine(FILE *out, const json_t *machine)
{
    const json_t *gpus = json_object_get(machine, "gpus"), *first = json_array_get(gpus, 0);
    const char *cpu = html_string(machine, "cpu", NULL);
    const char *gpu = json_is_string(first) ? json_string_value(first) : html_string(first, "name", "GPU");
    html_text(out, cpu ? cpu : first ? "" : "a machine");
    if (!first) return;
    fprintf(out, "%s%zu \xc3\x97 ", cpu ? ", " : "", json_array_size(gpus));
    html_text(out, gpu);
}

static void write_head(const struct page *page)
{
    FILE *out = page->out;
    fprintf(out,
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,"
            "initial-scale=1'><meta http-equiv=Content-Security-Policy content=\"default-src 'none';style-src "
            "'unsafe-inline'\"><title>expar bench</title><style>%s</style><body%s>\n<h1>expar bench</h1><p>",
            style_sheet, page->num_files == 1 ? " class=one" : "");
    for (int file = 0; file < page->num_files; file++) {
        const json_t *json = page->files[file].json;
        if (file > 0) fputs("<br>", out);
        html_text(out, page->files[file].name);
        fputs(": ", out);
        write_machine(out, json_object_get(json, "machine"));
        fputs(", ", out);
        html_text(out, html_string(json, "date", "no date"));
        fputs(" ", out);
        html_command(out, html_string(json, "command", ""));
    }
    fputs("</p>\n", out);
}

static void warn_of_load(const struct page *page, int file)
{
    const json_t *machine = json_object_get(page->files[file].json, "machine");
    const double load = json_number_value(json_array_get(json_object_get(machine, "load"), 0));
    const double cores = html_real(machine, "cores");
    if (!(cores > 0) || load <= cores / 2) return;
    fputs("<p class=note>", page->out);
    html_text(page->out, page->files[file].name);
    fprintf(page->out,
            ": the machine was busy before the start, with a load of %.1f on %.0f cores. Compare times of "
            "this run only.</p>\n",
            load, cores);
}

struct range {
    double least, most;
};

static void extend(struct range *range, double number)
{
    if (!(number >= range->least)) range->least = isnan(number) ? range->least : number;
    if (!(number <= range->most)) range->most = isnan(number) ? range->most : number;
}

static void write_range(FILE *out, const struct range *range)
{
    fprintf(out, "%.2f", range->least);
    if (range->most - range->least >= 0.005) fprintf(out, "\xe2\x80\x93%.2f", range->most);
}

static bool panel_has_baseline(const struct panel *panel)
{
    return !isnan(html_real(panel->points->result, "baseline_us"));
}

/* Judges a panel of one file. */
static void write_card(const struct page *page, const struct panel *panel, int file)
{
    FILE *out = page->out;
    struct range share = {NAN, NAN}, faster = {NAN, NAN};
    int count = 0, wrong = 0;
    for (int i = 0; i < panel->count; i++) {
        const struct point *p = &panel->points[i];
        if (p->file != file) continue;
        count++;
        wrong += json_is_false(json_object_get(p->result, "verified"));
        if (p->median_us > 0) extend(&share, p->limit_us / p->median_us);
        if (p->median_us > 0) extend(&faster, p->mpi_us / p->median_us);
    }
    if (count == 0 || (isnan(share.least) && wrong == 0)) return;
    fputs("<div class=card>", out);
    if (!isnan(share.least)) {
        fputs("<b>", out);
        write_range(out, &share);
        fprintf(out, "</b>of the %s", panel_has_baseline(panel) ? "speed without expar" : "limit");
    }
    if (!isnan(faster.least)) {
        fputs(", ", out);
        write_range(out, &faster);
        fputs("\xc3\x97 as fast as Open MPI", out);
    }
    fputs("<small>", out);
    html_text(out, panel->title);
    if (page->num_files > 1) fputs(", ", out);
    if (page->num_files > 1) html_text(out, page->files[file].name);
    fprintf(out, "</small><small class=%s>%s</small></div>\n", wrong ? "bad" : "ok",
            wrong ? "WRONG BYTES" : "all bytes verified");
}

static void write_verdict(const struct page *page)
{
    fputs("<section><h2>Verdict</h2><div class=grid>\n", page->out);
    for (int i = 0; i < page->panels.count && i < MOST_CARDS; i++)
        for (int file = 0; file < page->num_files; file++)
            write_card(page, &page->panels.items[i], file);
    fputs("</div>", page->out);
    if (page->panels.count > MOST_CARDS)
        fprintf(page->out, "<p>The %d other operations are below.</p>", page->panels.count - MOST_CARDS);
    fputs("</section>\n", page->out);
}

/* ---- pictures ---------------------------------------------------------------------------------------------------- */

static void write_curves(const struct page *page)
{
    bool begun = false;
    for (int i = 0; i < page->panels.count; i++) {
        if (page->panels.items[i].num_x < 2) continue;
        if (!begun)
            fputs("<section><h2>Times</h2><p>Microseconds, median; the limit is what bare copies or puts of the same "
                  "rows "
                  "take in the same run. Both axes are logarithmic.</p><div class=grid>\n",
                  page->out);
        begun = true;
        curves_draw(page, &page->panels.items[i]);
    }
    if (begun) fputs("</div></section>\n", page->out);
}

static void write_bar(FILE *out, double us, double longest, const char *class, const char *name)
{
    if (!(us > 0)) return;
    fprintf(out, "<tr><td class=word>%s<td>", name);
    html_number(out, us);
    fprintf(out, "<td style='width:60%%'><div class=track><i class=%s style='width:%.1f%%'></i></div>\n", class,
            100 * us / longest);
}

/* Draws a result that is alone with its number of tokens. */
static void write_bars_of(const struct page *page, const struct panel *panel)
{
    FILE *out = page->out;
    double longest = 0;
    for (int i = 0; i < panel->count; i++)
        longest =
            fmax(longest, fmax(panel->points[i].median_us, fmax(panel->points[i].limit_us, panel->points[i].mpi_us)));
    fputs("<figure><h3>", out);
    html_text(out, panel->title);
    if (!isnan(panel->points->x)) fprintf(out, ", %s %.0f", panel->by_bytes ? "bytes" : "T", panel->points->x);
    fputs("</h3><table style='width:100%'>\n", out);
    for (int i = 0; i < panel->count; i++) {
        const struct point *p = &panel->points[i];
        if (page->num_files > 1) {
            fputs("<tr><th class=word colspan=3>", out);
            html_text(out, page->files[p->file].name);
            fputs("\n", out);
        }
        write_bar(out, p->median_us, longest, "e", "expar");
        write_bar(out, p->limit_us, longest, "l", "limit");
        write_bar(out, p->mpi_us, longest, "m", "MPI");
    }
    fputs("</table></figure>\n", out);
}

static void write_bars(const struct page *page)
{
    bool begun = false;
    for (int i = 0; i < page->panels.count; i++) {
        if (page->panels.items[i].num_x >= 2) continue;
        if (!begun) fputs("<section><h2>Single results</h2><p>Microseconds, median.</p><div class=grid>\n", page->out);
        begun = true;
        write_bars_of(page, &page->panels.items[i]);
    }
    if (begun) fputs("</div></section>\n", page->out);
}

/* Returns the last result of a file in a panel, which has the most tokens; NULL: it has none. */
static const struct point *largest_of(const struct panel *panel, int file)
{
    const struct point *last = NULL;
    for (int i = 0; i < panel->count; i++)
        if (panel->points[i].file == file) last = &panel->points[i];
    return last;
}

/* Names a picture of one result. */
static void name_point(const struct page *page, const struct panel *panel, const struct point *point, char title[256])
{
    const bool several = page->num_files > 1;
    snprintf(title, 256, "%.140s, T %.0f%s%.80s", panel->title, point->x, several ? ", " : "",
             several ? page->files[point->file].name : "");
}

static bool write_maps(const struct page *page)
{
    bool good = true;
    int drawn = 0;
    fputs("<section><h2>Bytes from rank to rank</h2><p>What a call sends, by the class of link. A rank's own rows are "
          "not "
          "in it.</p><div class=grid>\n",
          page->out);
    for (int i = 0; i < page->panels.count && good; i++)
        for (int file = 0; file < page->num_files && good && drawn < MOST_MAPS; file++) {
            const struct point *point = largest_of(&page->panels.items[i], file);
            char title[256];
            if (!point || json_array_size(json_object_get(point->result, "links")) == 0) continue;
            drawn++;
            name_point(page, &page->panels.items[i], point, title);
            good = heat_draw(page, point, title);
        }
    fprintf(page->out, "</div>%s</section>\n", drawn ? "" : "<p>The results have no links between ranks.</p>");
    return good;
}

static void write_experts(const struct page *page)
{
    bool any = false;
    for (int file = 0; file < page->num_files; file++)
        any |= json_is_object(json_object_get(page->files[file].json, "expert_load"));
    if (!any) return;
    fputs("<section><h2>Experts</h2><div class=grid>\n", page->out);
    for (int file = 0; file < page->num_files; file++)
        experts_draw(page, file);
    fputs("</div></section>\n", page->out);
}

static void write_breakdown(const struct page *page)
{
    bool any = false;
    for (int i = 0; i < page->panels.count; i++)
        for (int file = 0; file < page->num_files; file++) {
            const struct point *point = largest_of(&page->panels.items[i], file);
            char title[256];
            if (!point || !json_is_object(json_object_get(point->result, "breakdown"))) continue;
            if (!any)
                fputs("<section><h2>Where the time goes</h2><p>Microseconds of the kernels, on all ranks.</p><table "
                      "class=spans>\n",
                      page->out);
            any = true;
            name_point(page, &page->panels.items[i], point, title);
            breakdown_draw(page, point, title);
        }
    if (any) fputs("</table></section>\n", page->out);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

bool report_write(const struct report_file *files, int count, FILE *out)
{
    struct page page = {.out = out, .files = files, .num_files = count};
    bool good = panels_make(files, count, &page.panels);
    if (good) {
        write_head(&page);
        for (int file = 0; file < count; file++)
            warn_of_load(&page, file);
        write_verdict(&page);
        write_curves(&page);
        write_bars(&page);
        tables_comparison(&page);
        good = write_maps(&page);
        write_experts(&page);
        write_breakdown(&page);
        tables_environment(&page);
        tables_values(&page);
        fputs("</body></html>\n", out);
    }
    panels_free(&page.panels);
    return good;
}
