/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of one result: bytes from rank to rank, choices of experts, and where the time goes. */
#include "page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes from rank to rank ------------------------------------------------------------------------------------- */

enum {
    SIDE = 300,       /* of a map, without its labels */
    MARGIN = 40,      /* of the labels */
    MOST_CELLS = 32,  /* a side; more ranks share cells */
    MOST_WRITTEN = 8, /* cells a side that are large enough for a number */
    MOST_RANKS = 65536
};

struct map {
    const char *class;
    int ranks, each; /* ranks in a cell */
    int cells;       /* a side */
    double *bytes;   /* [cells][cells] */
    double most;
};

static int rank_of(const json_t *link, const char *name)
{
    const double rank = html_real(link, name);
    return rank >= 0 && rank < MOST_RANKS ? (int)rank : -1;
}

static int ranks_of(const json_t *links)
{
    const json_t *link;
    size_t i;
    int most = -1;
    json_array_foreach(links, i, link)
    {
        const int from = rank_of(link, "from"), to = rank_of(link, "to");
        most = from > most ? from : most;
        most = to > most ? to : most;
    }
    return most + 1;
}

static void fill(struct map *map, const json_t *links)
{
    const json_t *link;
    size_t i;
    json_array_foreach(links, i, link)
    {
        const int from = rank_of(link, "from"), to = rank_of(link, "to");
        const double bytes = html_real(link, "bytes");
        if (from < 0 || to < 0 || !(bytes >= 0) || strcmp(html_string(link, "class", ""), map->class) != 0) continue;
        double *cell = &map->bytes[from / map->each * map->cells + to / map->each];
        *cell += bytes;
        if (*cell > map->most) map->most = *cell;
    }
}

/* Writes bytes as "14.7 MB". */
static void write_bytes(FILE *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    for (; bytes >= 1000 && unit < 4; unit++)
        bytes /= 1000;
    fprintf(out, "%.*f %s", unit > 0 && bytes < 10 ? 1 : 0, bytes, units[unit]);
}

struct unit {
    double bytes;
    const char *name;
};

/* Returns the power of bytes in which a map has its numbers. */
static const struct unit *unit_of(const struct map *map)
{
    static const struct unit units[] = {{1, "Bytes"}, {1e3, "kB"}, {1e6, "MB"}, {1e9, "GB"}};
    const struct unit *unit = units;
    while (unit < units + 3 && map->most >= 1000 * unit->bytes)
        unit++;
    return unit;
}

static void draw_cell(FILE *out, const struct map *map, int from, int to)
{
    const double bytes = map->bytes[from * map->cells + to], size = (double)SIDE / map->cells;
    const double share = map->most > 0 ? bytes / map->most : 0, x = MARGIN + to * size, y = MARGIN + from * size;
    if (bytes <= 0) return;
    fprintf(out, "<rect class='heat' x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill-opacity='%.2f'/>", x, y, size,
            size, 0.08 + 0.92 * share);
    if (map->cells > MOST_WRITTEN) return;
    fprintf(out, "<text class='%s' x='%.1f' y='%.1f' text-anchor='middle'>", share > 0.55 ? "on" : "off", x + size / 2,
            y + size / 2 + 4);
    const double number = bytes / unit_of(map)->bytes;
    fprintf(out, "%.*f</text>", number < 10 ? 1 : 0, number);
}

static void draw_labels(FILE *out, const struct map *map)
{
    const double size = (double)SIDE / map->cells;
    const int step = (map->cells + MOST_WRITTEN - 1) / MOST_WRITTEN;
    for (int i = 0; i < map->cells; i += step) {
        fprintf(out, "<text x='%.1f' y='%d' text-anchor='middle'>%d</text>", MARGIN + (i + 0.5) * size, MARGIN - 6,
                i * map->each);
        fprintf(out, "<text x='%d' y='%.1f' text-anchor='end'>%d</text>", MARGIN - 6, MARGIN + (i + 0.5) * size + 4,
                i * map->each);
    }
    fprintf(out, "<text x='%d' y='10' text-anchor='middle'>to rank</text>", MARGIN + SIDE / 2);
    fprintf(out, "<text transform='translate(13 %d) rotate(-90)' text-anchor='middle'>from rank</text>",
            MARGIN + SIDE / 2);
    fprintf(out, "<rect class='frame' x='%d' y='%d' width='%d' height='%d'/>", MARGIN, MARGIN, SIDE, SIDE);
}

static void draw_map(const struct page *page, const struct map *map, const char *title)
{
    FILE *out = page->out;
    fputs("<figure><h3>", out);
    html_text(out, title);
    fputs(": ", out);
    html_text(out, map->class);
    fprintf(out, "</h3><svg viewBox='0 0 %d %d' role='img'><title>bytes from rank to rank</title>", MARGIN + SIDE + 4,
            MARGIN + SIDE + 4);
    for (int cell = 0; cell < map->cells * map->cells; cell++)
        draw_cell(out, map, cell / map->cells, cell % map->cells);
    draw_labels(out, map);
    fprintf(out, "</svg><figcaption>%s of a call; the strongest colour is ",
            map->cells > MOST_WRITTEN ? "Bytes" : unit_of(map)->name);
    write_bytes(out, map->most);
    if (map->each > 1) fprintf(out, ", and a cell is %d \xc3\x97 %d ranks", map->each, map->each);
    fputs("</figcaption></figure>\n", out);
}

static bool draw_class(const struct page *page, const json_t *links, const char *class, const char *title)
{
    struct map map = {.class = class, .ranks = ranks_of(links)};
    map.each = (map.ranks + MOST_CELLS - 1) / MOST_CELLS;
    if (map.ranks == 0) return true;
    map.cells = (map.ranks + map.each - 1) / map.each;
    map.bytes = calloc((size_t)map.cells * (size_t)map.cells, sizeof *map.bytes);
    if (!map.bytes) return false;
    fill(&map, links);
    draw_map(page, &map, title);
    free(map.bytes);
    return true;
}

static bool is_first_of_class(const json_t *links, size_t index, const char *class)
{
    for (size_t i = 0; i < index; i++)
        if (!strcmp(html_string(json_array_get(links, i), "class", ""), class)) return false;
    return true;
}

bool heat_draw(const struct page *page, const struct point *point, const char *title)
{
    enum { MOST_CLASSES = 4 };
    const json_t *links = json_object_get(point->result, "links"), *link;
    size_t i;
    int classes = 0;
    json_array_foreach(links, i, link)
    {
        const char *class = html_string(link, "class", NULL);
        if (!class || classes == MOST_CLASSES || !is_first_of_class(links, i, class)) continue;
        classes++;
        if (!draw_class(page, links, class, title)) return false;
    }
    return true;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

enum { BARS_WIDTH = 360, BARS_HEIGHT = 200, BARS_LEFT = 44, BARS_BOTTOM = 30, MOST_BARS = 128 };

/* Returns how often the experts of a bar were chosen on average. */
static double mean_of(const json_t *choices, int first, int count)
{
    double sum = 0;
    for (int e = first; e < first + count; e++)
        sum += json_number_value(json_array_get(choices, (size_t)e));
    return sum / count;
}

/* Finds the most chosen expert, and the mean over all. */
static int find_most(const json_t *choices, double *most, double *mean)
{
    const int experts = (int)json_array_size(choices);
    int which = 0;
    *most = -1;
    for (int e = 0; e < experts; e++) {
        const double number = json_number_value(json_array_get(choices, (size_t)e));
        if (number > *most) which = e;
        if (number > *most) *most = number;
    }
    *mean = mean_of(choices, 0, experts);
    return which;
}

static void draw_bars(FILE *out, const json_t *choices, double top, double mean)
{
    const int experts = (int)json_array_size(choices), each = (experts + MOST_BARS - 1) / MOST_BARS;
    const double width = (double)(BARS_WIDTH - BARS_LEFT) / experts, height = BARS_HEIGHT - BARS_BOTTOM - 10;
    const double level = 10 + height * (1 - mean / top);
    for (int e = 0; e < experts; e += each) {
        const int count = experts - e < each ? experts - e : each;
        const double tall = height * mean_of(choices, e, count) / top;
        fprintf(out, "<rect class='bar' x='%.2f' y='%.1f' width='%.2f' height='%.1f'/>", BARS_LEFT + e * width,
                10 + height - tall, width * count * 0.85, tall);
    }
    for (int i = 0; i <= 4; i++) {
        const int e = (experts - 1) * i / 4;
        if (i > 0 && e == (experts - 1) * (i - 1) / 4) continue;
        fprintf(out, "<text x='%.1f' y='%d' text-anchor='%s'>%d</text>", BARS_LEFT + (e + 0.5) * width,
                BARS_HEIGHT - BARS_BOTTOM + 14, i == 4 ? "end" : "middle", e);
    }
    fprintf(out, "<line class='ideal' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>", BARS_LEFT, BARS_WIDTH, level, level);
    fprintf(out, "<text x='%d' y='14' text-anchor='end'>%.0f</text><text x='%d' y='%.1f' text-anchor='end'>0</text>",
            BARS_LEFT - 6, top, BARS_LEFT - 6, 10 + height);
    fprintf(out, "<text x='%d' y='%d' text-anchor='middle'>expert</text>", (BARS_LEFT + BARS_WIDTH) / 2,
            BARS_HEIGHT - 2);
}

void experts_draw(const struct page *page, int file)
{
    FILE *out = page->out;
    const json_t *load = json_object_get(page->files[file].json, "expert_load");
    const json_t *choices = json_object_get(load, "choices");
    double most, mean;
    if (json_array_size(choices) == 0 || json_array_size(choices) > MOST_RANKS) return;
    const int which = find_most(choices, &most, &mean);
    if (!(most > 0) || !isfinite(most)) return;
    fputs("<figure><h3>", out);
    html_text(out, page->files[file].name);
    fprintf(out, "</h3><svg viewBox='0 0 %d %d' role='img'><title>choices of each expert</title>", BARS_WIDTH,
            BARS_HEIGHT);
    draw_bars(out, choices, most, mean);
    fprintf(out,
            "</svg><figcaption>Choices of each expert by %.0f tokens of each rank; the line is the same for all, %.1f. "
            "Expert %d has the most: %.0f, which is %.2f times as many.</figcaption></figure>\n",
            html_real(load, "tokens"), mean, which, most, mean > 0 ? most / mean : 0);
}

/* ---- where the time goes ----------------------------------------------------------------------------------------- */

static double sum_of(json_t *spans)
{
    const char *name;
    const json_t *value;
    double sum = 0;
    json_object_foreach(spans, name, value) if (json_is_number(value) && json_number_value(value) > 0 &&
                                                strcmp(name, "late_rank") != 0 && strcmp(name, "start_us") != 0) sum +=
        json_number_value(value);
    return sum;
}

/* Returns the colour of a span: the same one in all rows. */
static int colour_of_span(const char *name)
{
    static const struct {
        const char *name;
        int colour;
    } spans[] = {{"layout_us", 1}, {"headers_us", 7}, {"wait_us", 6},  {"counts_us", 4}, {"gap_us", 6},
                 {"open_us", 5},   {"rows_us", 0},    {"warps_us", 4}, {"ranks_us", 3},  {"close_us", 2},
                 {"send_us", 0},   {"wire_us", 3},    {"place_us", 1}};
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        if (!strcmp(spans[i].name, name)) return spans[i].colour;
    return 6;
}

static void draw_spans(FILE *out, json_t *spans, double longest, const char *title)
{
    const char *name;
    const json_t *value;
    fputs("<tr><th>", out);
    html_text(out, title);
    fputs("<td><div class=stack>", out);
    json_object_foreach(spans, name, value)
    {
        const double us = json_is_number(value) ? json_number_value(value) : 0;
        if (!(us > 0) || !strcmp(name, "late_rank") || !strcmp(name, "start_us")) continue;
        fprintf(out, "<i class=b%d style='width:%.2f%%'></i>", colour_of_span(name), 100 * us / longest);
    }
    fputs("</div><small>", out);
    json_object_foreach(spans, name, value)
    {
        const double us = json_is_number(value) ? json_number_value(value) : 0;
        if (!(us > 0) || !strcmp(name, "late_rank") || !strcmp(name, "start_us")) continue;
        fprintf(out, "<span><i class='dot b%d'></i>", colour_of_span(name));
        html_text(out, name);
        fputs(" ", out);
        html_number(out, us);
        fputs("</span> ", out);
    }
    fputs("</small>\n", out);
}

void breakdown_draw(const struct page *page, const struct point *point, const char *title)
{
    json_t *own = json_object_get(point->result, "breakdown"),
           *limit = json_object_get(point->result, "copy_limit_breakdown");
    const double longest = fmax(sum_of(own), sum_of(limit));
    if (!(longest > 0)) return;
    if (sum_of(own) > 0) draw_spans(page->out, own, longest, title);
    if (sum_of(limit) > 0) draw_spans(page->out, limit, longest, "copy limit of it");
}
