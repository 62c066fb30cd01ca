/* SPDX-License-Identifier: Apache-2.0 */
/* Curves of times: both axes are logarithmic. A picture is 360 wide, so that it can be read on a telephone. */
#include "page.h"
#include <math.h>
#include <string.h>

enum { WIDTH = 360, HEIGHT = 220, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 34, MOST_TICKS = 6 };

struct axes {
    double low_x, high_x, low_y, high_y; /* logarithms: of 2 and of 10 */
};

static double log_of_x(double x)
{
    return log2(x < 0.5 ? 0.5 : x);
}

static double place_x(const struct axes *axes, double x)
{
    return LEFT + (log_of_x(x) - axes->low_x) / (axes->high_x - axes->low_x) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct axes *axes, double us)
{
    return HEIGHT - BOTTOM - (log10(us) - axes->low_y) / (axes->high_y - axes->low_y) * (HEIGHT - TOP - BOTTOM);
}

static void extend(double value, double *low, double *high)
{
    if (value < *low) *low = value;
    if (value > *high) *high = value;
}

static struct axes axes_of(const struct panel *panel)
{
    struct axes axes = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (int i = 0; i < panel->count; i++) {
        const struct point *p = &panel->points[i];
        const double times[] = {p->median_us, p->limit_us, p->mpi_us};
        if (isnan(p->x)) continue;
        extend(log_of_x(p->x), &axes.low_x, &axes.high_x);
        for (int t = 0; t < 3; t++)
            if (times[t] > 0) extend(log10(times[t]), &axes.low_y, &axes.high_y);
    }
    if (axes.low_y > axes.high_y) axes.low_y = axes.high_y = 0;
    axes.low_y -= 0.1;
    axes.high_y += 0.1;
    if (axes.high_y - axes.low_y < 0.5) axes.high_y = axes.low_y + 0.5;
    return axes;
}

/* ---- ticks ------------------------------------------------------------------------------------------------------- */

/* Writes a number of tokens or bytes: 512, 4K, 1M. */
static void write_count(FILE *out, double x)
{
    const double kilo = 1024;
    if (x >= kilo * kilo && fmod(x, kilo * kilo) == 0)
        fprintf(out, "%.0fM", x / kilo / kilo);
    else if (x >= 2 * kilo && fmod(x, kilo) == 0)
        fprintf(out, "%.0fK", x / kilo);
    else
        fprintf(out, "%.0f", x);
}

static void draw_x_ticks(FILE *out, const struct axes *axes)
{
    const int first = (int)ceil(axes->low_x - 1e-9), last = (int)floor(axes->high_x + 1e-9);
    const int step = (last - first) / MOST_TICKS + 1;
    for (int power = first; power <= last; power += step) {
        const double at = place_x(axes, exp2(power));
        fprintf(out,
                "<line class='grid' x1='%.1f' x2='%.1f' y1='%d' y2='%d'/><text x='%.1f' y='%d' text-anchor='middle'>",
                at, at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 14);
        write_count(out, exp2(power));
        fputs("</text>", out);
    }
}

/* Draws ticks at 1, 2 and 5 times powers of 10, or at powers alone where these are many. */
static void draw_y_ticks(FILE *out, const struct axes *axes)
{
    static const double parts[] = {1, 2, 5};
    const double decades = axes->high_y - axes->low_y;
    const int step = (int)(decades / MOST_TICKS) + 1, each = decades > 2 ? 1 : 3;
    for (int power = (int)floor(axes->low_y); power <= (int)ceil(axes->high_y); power += step)
        for (int i = 0; i < each; i++) {
            const double us = parts[i] * pow(10, power), at = place_y(axes, us);
            if (at < TOP || at > HEIGHT - BOTTOM) continue;
            fprintf(out,
                    "<line class='grid' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/><text x='%d' y='%.1f' text-anchor='end'>%g"
                    "</text>",
                    LEFT, WIDTH - RIGHT, at, at, LEFT - 5, at + 4, us);
        }
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

enum kind { MEDIAN, LIMIT, MPI };

static double time_of(const struct point *point, enum kind kind)
{
    return kind == MEDIAN ? point->median_us : kind == LIMIT ? point->limit_us : point->mpi_us;
}

static void draw_marker(FILE *out, int file, double x, double y)
{
    static const char *const shapes[] = {"M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
                                         "M-3-3h6v6h-6z",
                                         "M0-4l4 7h-8z",
                                         "M0-4l4 4-4 4-4-4z",
                                         "M-4-3h8l-4 7z",
                                         "M-4-1h3v-3h2v3h3v2h-3v3h-2v-3h-3z",
                                         "M-4 0l4-2 4 2-4 2z",
                                         "M0-4l2 4-2 4-2-4z"};
    fprintf(out, "<path class='mark s%d' transform='translate(%.1f %.1f)' d='%s'/>", file, x, y,
            shapes[file % (int)(sizeof shapes / sizeof *shapes)]);
}

static void draw_line(FILE *out, const struct axes *axes, const struct panel *panel, int file, enum kind kind)
{
    static const char *const classes[] = {"median", "limit", "mpi"};
    bool begun = false;
    for (int i = 0; i < panel->count; i++) {
        const struct point *p = &panel->points[i];
        const double us = time_of(p, kind);
        if (p->file != file || isnan(p->x) || !(us > 0)) continue;
        if (!begun) fprintf(out, "<path class='%s s%d' d='", classes[kind], file);
        fprintf(out, "%c%.1f %.1f", begun ? 'L' : 'M', place_x(axes, p->x), place_y(axes, us));
        begun = true;
    }
    if (begun) fputs("'/>", out);
    for (int i = 0; i < panel->count && kind == MEDIAN; i++) {
        const struct point *p = &panel->points[i];
        if (p->file == file && !isnan(p->x) && p->median_us > 0)
            draw_marker(out, file, place_x(axes, p->x), place_y(axes, p->median_us));
    }
}

static bool has(const struct panel *panel, enum kind kind)
{
    for (int i = 0; i < panel->count; i++)
        if (time_of(&panel->points[i], kind) > 0) return true;
    return false;
}

static bool has_file(const struct panel *panel, int file)
{
    for (int i = 0; i < panel->count; i++)
        if (panel->points[i].file == file) return true;
    return false;
}

static void draw_key(FILE *out, int file, const char *class)
{
    fprintf(out, "<span><svg class=key viewBox='0 0 26 10' aria-hidden=true><path class='%s s%d' d='M1 5h24'/>", class,
            file);
    if (!strcmp(class, "median")) draw_marker(out, file, 13, 5);
    fputs("</svg>", out);
}

/* Explains the lines, below the picture. */
static void draw_keys(const struct page *page, const struct panel *panel)
{
    FILE *out = page->out;
    const int first = panel->points->file;
    fputs("<figcaption>", out);
    for (int file = 0; file < page->num_files; file++) {
        if (!has_file(panel, file)) continue;
        draw_key(out, file, "median");
        html_text(out, page->num_files == 1 ? "expar, median" : page->files[file].name);
        fputs("</span> ", out);
    }
    if (has(panel, LIMIT)) {
        draw_key(out, first, "limit");
        fprintf(out, "%s</span> ", panel->by_bytes ? "without expar" : "limit");
    }
    if (has(panel, MPI)) {
        draw_key(out, first, "mpi");
        fputs("Open MPI</span> ", out);
    }
    fputs("</figcaption>", out);
}

void curves_draw(const struct page *page, const struct panel *panel)
{
    FILE *out = page->out;
    const struct axes axes = axes_of(panel);
    fputs("<figure><h3>", out);
    html_text(out, panel->title);
    fprintf(out, "</h3><svg viewBox='0 0 %d %d' role='img'><title>", WIDTH, HEIGHT);
    html_text(out, panel->title);
    fprintf(out, ": microseconds over %s</title>", panel->by_bytes ? "bytes" : "tokens");
    draw_x_ticks(out, &axes);
    draw_y_ticks(out, &axes);
    fprintf(out, "<text x='%d' y='%d' text-anchor='middle'>%s</text>", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4,
            panel->by_bytes ? "bytes of an operation" : "tokens of a rank");
    fprintf(out, "<text transform='translate(10 %d) rotate(-90)' text-anchor='middle'>\xc2\xb5s</text>",
            (TOP + HEIGHT - BOTTOM) / 2);
    for (int kind = MPI; kind >= MEDIAN; kind--)
        for (int file = 0; file < page->num_files; file++)
            draw_line(out, &axes, panel, file, (enum kind)kind);
    fputs("</svg>", out);
    draw_keys(page, panel);
    fputs("</figure>\n", out);
}
