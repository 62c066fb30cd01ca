/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or tables for a person. */
#include "bench/frame/report.h"
#include "base/shown.h"
#include "bench/frame/output.h"
#include "bench/frame/patterns.h"
#include "bench/frame/session.h"
#include "colour.h"
#include "table.h"
#include "text.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The results to print, and their run. */
struct report {
    const struct bench_world *world;
    const struct bench_options *options;
    const struct bench_mode *mode;
    const struct bench_results *results;
    unsigned run;
};

unsigned bench_report_run(const struct bench_world *world, const struct bench_options *options)
{
    return (options->cuda ? ON_GPU : ON_CPU) | (world->nodes > 1 ? ON_NODES : ON_NODE) |
           (bench_patterns_loop(options) ? WITH_LOOPS : 0) | (bench_patterns_period(options) ? WITH_PERIOD : 0) |
           (world->size > 1 ? WITH_TRIPS : 0) | (world->baseline ? WITH_MPI : 0);
}

static bool has_field(const struct report *report, const struct bench_field *field)
{
    return (field->when & report->run) == field->when;
}

static const char *name_of(const struct report *report, const struct bench_field *field)
{
    return field->name ? field->name : report->world->device->workers;
}

static void view_result(const struct report *report, int i, struct bench_view *view)
{
    bench_view_of(report->world, report->options, report->mode, &report->results->items[i], view);
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void print_csv_value(const struct bench_field *field, const struct bench_view *view)
{
    const char *word = field->kind == FIELD_WORD || field->kind == FIELD_QUOTED ? view->words[field->at] : NULL;
    if (field->kind == FIELD_QUOTED)
        printf("\"%s\"", word);
    else if (field->kind == FIELD_WORD)
        printf("%s", word ? word : "");
    else if (!isnan(view->numbers[field->at]))
        printf("%.*f", field->decimals, view->numbers[field->at]);
}

/* Prints a line of CSV. With view NULL it has the names. */
static void print_csv_line(const struct report *report, const struct bench_view *view)
{
    const char *before = "";
    for (const struct bench_field *field = report->mode->report->csv; field->kind; field++) {
        if (!has_field(report, field)) continue;
        printf("%s%s", before, view ? "" : name_of(report, field));
        if (view) print_csv_value(field, view);
        before = ",";
    }
    printf("\n");
}

static bool print_csv(const struct report *report)
{
    print_csv_line(report, NULL);
    for (int i = 0; i < report->results->count; i++) {
        struct bench_view view;
        view_result(report, i, &view);
        print_csv_line(report, &view);
    }
    return true;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void add_cell(struct table *table, const struct bench_field *field, const struct bench_view *view)
{
    const bool is_word = field->kind == FIELD_WORD;
    const double number = is_word ? 0 : view->numbers[field->at];
    if (is_word ? !view->words[field->at] : isnan(number))
        table_skip(table);
    else if (is_word)
        table_cell(table, "%s", view->words[field->at]);
    else if (field->kind == FIELD_FLAG)
        table_verdict(table, number > 0);
    else if (field->kind == FIELD_BAR)
        table_bar(table, number, (int)strlen(field->name));
    else if (field->kind == FIELD_PERCENT && number > BENCH_WIDE_SPREAD)
        table_warn(table, "%.*f", field->decimals, 100 * number);
    else if (field->kind == FIELD_PERCENT)
        table_cell(table, "%.*f", field->decimals, 100 * number);
    else
        table_cell(table, field->kind == FIELD_TIMES ? "%.*fx" : "%.*f", field->decimals, number);
}

static void add_row(const struct report *report, const struct bench_table *form, struct table *table,
                    const struct bench_view *view)
{
    table_row(table);
    for (const struct bench_field *field = form->fields; field->kind; field++)
        if (has_field(report, field)) add_cell(table, field, view);
}

static void add_limit(const struct report *report, const struct bench_table *form, struct table *table,
                      const struct bench_view *call)
{
    struct bench_view limit = {.result = call->result};
    for (int i = 0; i < VIEW_NUMBERS; i++)
        limit.numbers[i] = NAN;
    for (int i = AT_KERNEL; i < AT_KERNEL + AT_LIMIT; i++)
        limit.numbers[i] = call->numbers[AT_LIMIT + i];
    limit.numbers[AT_TOKENS] = call->numbers[AT_TOKENS];
    limit.numbers[AT_WORKERS] = call->numbers[AT_WORKERS];
    limit.words[WORD_OPERATION] = "copy limit";
    report->mode->report->view_limit(report->world, call, &limit);
    add_row(report, form, table, &limit);
}

static void add_column(const struct report *report, const struct bench_field *field, struct table *table)
{
    const bool left = field->kind == FIELD_WORD || field->kind == FIELD_FLAG || field->kind == FIELD_BAR;
    table_column(table, name_of(report, field), left ? TABLE_LEFT : TABLE_RIGHT);
    table_drop(table, field->drop);
    table_legend(table, field->legend);
}

/* Prints a table. It prints nothing if no result has the numbers that the table needs. */
static bool print_table(const struct report *report, const struct bench_table *form)
{
    struct table *table = table_new();
    bool any = false;
    for (const struct bench_field *field = form->fields; field->kind; field++)
        if (has_field(report, field)) add_column(report, field, table);
    for (int i = 0; i < report->results->count; i++) {
        struct bench_view view;
        view_result(report, i, &view);
        if (form->needs >= 0 && isnan(view.numbers[form->needs])) continue;
        any = true;
        add_row(report, form, table, &view);
        if (form->limits && view.result->limit.known) add_limit(report, form, table, &view);
    }
    if (any && form->heading) printf("\n%s\n\n", form->heading);
    return table_print(table, stdout);
}

/* Prints the line above the tables: what was measured. */
static void print_title(const struct report *report)
{
    const struct bench_options *o = report->options;
    const struct bench_world *world = report->world;
    const int columns = terminal_columns(STDOUT_FILENO);
    char nodes[32] = "", loops[80] = "", title[512];
    if (world->nodes > 1) snprintf(nodes, sizeof nodes, " on %d nodes", world->nodes);
    if (o->patterns & ~(unsigned)(BENCH_ISOLATED | BENCH_PERIOD))
        snprintf(loops, sizeof loops, "; of patterns: a call's share of %d loops of as many calls", BENCH_LOOPS);
    snprintf(title, sizeof title,
             "%s%d ranks%s, rows of %d elements, top-%d of %d experts, %s routing; median of %d iterations%s",
             report->mode->title, world->size, nodes, o->hidden, o->topk, o->experts, SHOWN(o->routing), o->iters,
             loops);
    text_wrap(stdout, title, 0, columns ? columns : INT_MAX);
    printf("\n");
}

static bool print_tables(const struct report *report)
{
    bool good = true;
    print_title(report);
    for (int i = 0; i < report->mode->report->num_tables && good; i++)
        good = print_table(report, &report->mode->report->tables[i]);
    if (good) bench_verdict(report->world, report->options, report->mode, report->results);
    return good;
}

/* ---- all forms --------------------------------------------------------------------------------------------------- */

static json_t *object_of(const void *results)
{
    const struct report *report = results;
    return bench_report_json(report->world, report->options, report->mode, report->results);
}

static bool print_others(const void *results)
{
    const struct report *report = results;
    return report->options->format == BENCH_CSV ? print_csv(report) : print_tables(report);
}

/* Finds the isolated calls whose iterations spread most, and warns if the times are noisy. */
static void warn(const struct report *report)
{
    struct bench_view view;
    double widest = 0;
    char operation[128] = "";
    for (int i = 0; i < report->results->count; i++) {
        const struct bench_result *result = &report->results->items[i];
        if (bench_is_loop(result) || result->expar.spread <= widest || !result->num_copies) continue;
        widest = result->expar.spread;
        view_result(report, i, &view);
        snprintf(operation, sizeof operation, "%s, T %lld", view.words[WORD_OPERATION], (long long)result->tokens);
    }
    bench_warn_of_noise(report->options, widest, operation);
}

bool bench_report(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                  const struct bench_results *results)
{
    const struct report report = {world, options, mode, results, bench_report_run(world, options)};
    const struct bench_printer printer = {.object = object_of, .print = print_others, .results = &report};
    warn(&report);
    return bench_output(options, &printer);
}
