/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs are slow: those below 0.8 of the median of their kind, inside a node or between nodes. */
#include "check.h"
#include <inttypes.h>
#include <stdlib.h>

enum pair_kind { PAIR_INSIDE, PAIR_BETWEEN, PAIR_KINDS };

/* One kind of pairs and one figure. Larger is better: latencies are given as their reciprocals. */
struct pair_series {
    const struct check_host *hosts;
    const struct check_pair *pairs;
    int32_t ranks;
    bool latency;
};

static double figure_of(const struct pair_series *series, int32_t from, int32_t to)
{
    const struct check_pair *pair = &series->pairs[(size_t)from * (size_t)series->ranks + (size_t)to];
    if (!series->latency) return pair->gbps;
    return pair->latency_us > 0 ? 1 / pair->latency_us : 0;
}

static enum pair_kind kind_of(const struct pair_series *series, int32_t from, int32_t to)
{
    return series->hosts->node[from] == series->hosts->node[to] ? PAIR_INSIDE : PAIR_BETWEEN;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double check_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return count ? values[count / 2] : 0;
}

static double median_of(const struct pair_series *series, enum pair_kind kind)
{
    const size_t ranks = (size_t)series->ranks;
    double *values = calloc(ranks * ranks + 1, sizeof *values), found;
    size_t count = 0;
    if (!values) return 0;
    for (int32_t from = 0; from < series->ranks; from++)
        for (int32_t to = from + 1; to < series->ranks; to++)
            if (kind_of(series, from, to) == kind && figure_of(series, from, to) > 0)
                values[count++] = figure_of(series, from, to);
    found = check_median(values, count);
    free(values);
    return found;
}

static double shown(const struct pair_series *series, double figure)
{
    return series->latency ? 1 / figure : figure;
}

static size_t name_slow(const struct pair_series *series, enum pair_kind kind, double middle, struct check_text *text)
{
    size_t count = 0;
    for (int32_t from = 0; from < series->ranks; from++)
        for (int32_t to = from + 1; to < series->ranks; to++) {
            const double figure = figure_of(series, from, to);
            if (kind_of(series, from, to) != kind || figure <= 0 || figure >= CHECK_LEAST_SHARE * middle) continue;
            if (count++ >= CHECK_MOST_NAMED) continue;
            check_text_add(text, "%s%d-%d", text->used ? ", " : "", from, to);
            if (kind == PAIR_BETWEEN)
                check_text_add(text, " (%s-%s)", series->hosts->names[from], series->hosts->names[to]);
            check_text_add(text, " %.3g", shown(series, figure));
        }
    if (count > CHECK_MOST_NAMED) check_text_add(text, " and %zu more", count - CHECK_MOST_NAMED);
    return count;
}

static void judge_series(const struct pair_series *series, json_t *rows)
{
    static const char *const places[] = {"inside a node", "between nodes"};
    const char *unit = series->latency ? "us" : "GB/s";
    struct check_text text = {0}, slow = {0};
    size_t count = 0;
    for (int kind = 0; kind < PAIR_KINDS; kind++) {
        const double middle = median_of(series, (enum pair_kind)kind);
        if (middle <= 0) continue;
        check_text_add(&text, "%s%.3g %s %s", text.used ? ", " : "median ", shown(series, middle), unit, places[kind]);
        count += name_slow(series, (enum pair_kind)kind, middle, &slow);
    }
    struct check_row row = {"group", series->latency ? "pair_latency" : "pair_rate", count ? CHECK_WARNING : CHECK_OK,
                            series->latency ? "each pair: at most 1.25 times the median of its kind"
                                            : "each pair: at least 0.8 of the median of its kind",
                            series->latency ? "numactl -H; mtr HOST   (then look at binding, and at the path)"
                                            : "expar check --long; ethtool DEV   (then look at links and counters)"};
    if (count)
        check_add(rows, &row, "%s; slow: %s", text.text, slow.text);
    else
        check_add(rows, &row, "%s", text.text);
}

void check_judge_pairs(const struct check_host *hosts, int32_t ranks, const struct check_pair *pairs, json_t *rows)
{
    struct pair_series series = {.hosts = hosts, .pairs = pairs, .ranks = ranks, .latency = true};
    judge_series(&series, rows);
    series.latency = false;
    judge_series(&series, rows);
}

void check_judge_load(const double *rates, size_t count, int64_t errors, json_t *rows)
{
    double *sorted = calloc(count + 1, sizeof *sorted), least;
    struct check_row row = {"group", "load", CHECK_OK, "steady: each second at least 0.8 of the median, no new errors",
                            "expar check --long   (again, with nothing else running; then look at heat and links)"};
    if (!sorted) return;
    for (size_t i = 0; i < count; i++)
        sorted[i] = rates[i];
    const double middle = check_median(sorted, count);
    least = sorted[0];
    free(sorted);
    if (least < CHECK_LEAST_SHARE * middle) row.status = CHECK_WARNING;
    if (errors > 0) {
        row.status = CHECK_FAILURE;
        row.remedy = "ethtool -S DEV; perfquery   (then change the cable, or the port)";
    }
    check_add(rows, &row, "%.3g GB/s of all ranks, %.3g in the slowest of %zu s, %" PRId64 " new errors", middle, least,
              count, errors);
}
