/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting results into panels. */
#include "panels.h"
#include "html.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Appends a word to a title, after a divider if it is not the first. */
static void add_word(char *title, const char *divider, const char *word)
{
    const size_t used = strlen(title);
    if (!word || !*word) return;
    snprintf(title + used, PANEL_TITLE_BYTES - used, "%s%s", used ? divider : "", word);
}

/* Cuts a character that the end of the title has cut in two. */
static void mend(char *title)
{
    size_t length = strlen(title);
    if (length < PANEL_TITLE_BYTES - 1) return;
    while (length > 0 && ((unsigned char)title[length - 1] & 0xc0) == 0x80)
        length--;
    title[length > 0 ? length - 1 : 0] = '\0';
}

static void add_workers(char *title, const json_t *result)
{
    char workers[48];
    const double threads = html_real(result, "threads"), sms = html_real(result, "sms");
    if (isnan(threads) && isnan(sms)) return;
    snprintf(workers, sizeof workers, "%.0f %s", isnan(sms) ? threads : sms, isnan(sms) ? "threads" : "SMs");
    add_word(title, ", ", !isnan(sms) || threads != 1 ? workers : "1 thread");
}

/* Names what the results of a panel have in common. Returns how many bytes of the title name the operation. */
static size_t write_title(const json_t *result, char *title)
{
    const char *phase = html_string(result, "phase", ""), *pattern = html_string(result, "pattern", "");
    const char *format = html_string(result, "format", html_string(result, "dtype", ""));
    title[0] = '\0';
    if (!strcmp(html_string(result, "mode", ""), "low_latency")) add_word(title, " ", "low-latency");
    add_word(title, " ", html_string(result, "op", html_string(result, "what", "result")));
    add_word(title, " ", html_string(result, "metric", NULL));
    if (json_is_true(json_object_get(result, "cached"))) add_word(title, " ", "cached");
    add_word(title, " ", html_string(result, "sum", NULL));
    if (strcmp(phase, "call") != 0) add_word(title, ", ", phase);
    if (strcmp(pattern, "isolated") != 0) add_word(title, ", ", pattern);
    add_word(title, ", ", format);
    const size_t operation_bytes = strlen(title);
    add_word(title, ", ", html_string(result, "path", NULL));
    add_word(title, ", ", html_string(result, "transport", NULL));
    add_workers(title, result);
    mend(title);
    return operation_bytes;
}

static double first_real(const json_t *result, const char *const *names)
{
    for (; *names; names++)
        if (!isnan(html_real(result, *names))) return html_real(result, *names);
    return NAN;
}

static struct point point_of(const json_t *result, int file)
{
    static const char *const limits[] = {"copy_limit_us", "network_limit_us", "baseline_us", NULL};
    const double tokens = html_real(result, "tokens");
    const bool sized = isnan(tokens) && html_real(result, "bytes") > 0;
    return (struct point){.result = result,
                          .file = file,
                          .x = sized ? html_real(result, "bytes") : tokens,
                          .median_us = html_real(result, "median_us"),
                          .min_us = html_real(result, "min_us"),
                          .p99_us = html_real(result, "p99_us"),
                          .limit_us = first_real(result, limits),
                          .mpi_us = html_real(result, "mpi_us")};
}

/* A point on its way to its panel. */
struct placed {
    struct point point;
    int panel, order;
};

static int compare(const void *a, const void *b)
{
    const struct placed *p = a, *q = b;
    if (p->panel != q->panel) return p->panel < q->panel ? -1 : 1;
    if (p->point.file != q->point.file) return p->point.file < q->point.file ? -1 : 1;
    if (p->point.x < q->point.x) return -1;
    if (p->point.x > q->point.x) return 1;
    return (p->order > q->order) - (p->order < q->order);
}

/* Finds the panel of a result, or makes one. Those of another library share the first one of their operation. */
static int panel_of(struct panels *panels, const json_t *result, bool other_library)
{
    char title[PANEL_TITLE_BYTES];
    const size_t operation_bytes = write_title(result, title);
    for (int i = 0; i < panels->count; i++) {
        const struct panel *panel = &panels->items[i];
        if (!strcmp(panel->title, title)) return i;
        if (other_library && panel->operation_bytes == operation_bytes && !memcmp(panel->title, title, operation_bytes))
            return i;
    }
    struct panel *panel = &panels->items[panels->count];
    *panel = (struct panel){.operation_bytes = operation_bytes,
                            .by_bytes = isnan(html_real(result, "tokens")) && html_real(result, "bytes") > 0};
    memcpy(panel->title, title, sizeof title);
    return panels->count++;
}

static int count_x(const struct panel *panel)
{
    int count = 0;
    for (int i = 0; i < panel->count; i++) {
        bool seen = isnan(panel->points[i].x);
        for (int j = 0; j < i && !seen; j++)
            seen = panel->points[j].x == panel->points[i].x;
        count += !seen;
    }
    return count;
}

static void deal(struct panels *panels, struct placed *all, size_t count)
{
    qsort(all, count, sizeof *all, compare);
    for (size_t i = 0; i < count; i++) {
        struct panel *panel = &panels->items[all[i].panel];
        panels->points[i] = all[i].point;
        if (panel->count++ == 0) panel->points = &panels->points[i];
    }
    for (int i = 0; i < panels->count; i++)
        panels->items[i].num_x = count_x(&panels->items[i]);
}

bool panels_make(const struct report_file *files, int count, struct panels *panels)
{
    size_t total = 0, next = 0, i;
    const json_t *result;
    for (int f = 0; f < count; f++)
        total += json_array_size(json_object_get(files[f].json, "results"));
    *panels = (struct panels){.items = calloc(total + 1, sizeof *panels->items),
                              .points = calloc(total + 1, sizeof *panels->points)};
    struct placed *all = calloc(total + 1, sizeof *all);
    const bool good = panels->items && panels->points && all;
    for (int turn = 0; turn < 2 && good; turn++)
        for (int f = 0; f < count; f++) {
            const bool other_library = report_library(files[f].json) != NULL;
            if (other_library != (turn == 1)) continue;
            json_array_foreach(json_object_get(files[f].json, "results"), i, result)
            {
                all[next] = (struct placed){point_of(result, f), panel_of(panels, result, other_library), (int)next};
                next++;
            }
        }
    if (good) deal(panels, all, total);
    free(all);
    return good;
}

void panels_free(struct panels *panels)
{
    free(panels->items);
    free(panels->points);
}
