/* SPDX-License-Identifier: Apache-2.0 */
/* Results as CSV, or tables for a person. */
#include "bench/frame/report.h"
#include "bench/frame/patterns.h"
#include "bench/frame/session.h"
#include "table.h"
#include <math.h>
#include <stdio.h>

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
           (bench_patterns_loop(options) ? WITH_LOOPS : 0) | (world->size > 1 ? WITH_TRIPS : 0) |
           (world->baseline ? WITH_MPI : 0);
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

/* Prints a table. It prints nothing if no result has the numbers that the table needs. */
static bool print_table(const struct report *report, const struct bench_table *form)
{
    struct table *table = table_new();
    bool any = false;
    for (const struct bench_field *field = form->fields; field->kind; field++)
        if (has_field(report, field))
            table_column(table, name_of(report, field),
                         field->kind == FIELD_WORD || field->kind == FIELD_FLAG ? TABLE_LEFT : TABLE_RIGHT);
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

static bool print_tables(const struct report *report)
{
    const struct bench_options *o = report->options;
    const struct bench_world *world = report->world;
    bool good = true;
    printf("%s%d ranks", report->mode->title, world->size);
    if (world->nodes > 1) printf(" on %d nodes", world->nodes);
    printf(", rows of %d elements, top-%d of %d experts, %s routing; median of %d iterations", o->hidden, o->topk,
           o->experts, o->routing, o->iters);
    if (bench_patterns_loop(o)) printf("; of patterns: a call's share of %d loops of as many calls", BENCH_LOOPS);
    printf("\n\n");
    for (int i = 0; i < report->mode->report->num_tables && good; i++)
        good = print_table(report, &report->mode->report->tables[i]);
    return good;
}

bool bench_report(const struct bench_world *world, const struct bench_options *options, const struct bench_mode *mode,
                  const struct bench_results *results)
{
    const struct report report = {world, options, mode, results, bench_report_run(world, options)};
    if (options->format == BENCH_TABLE) return print_tables(&report);
    if (options->format == BENCH_CSV) return print_csv(&report);
    bench_report_json(world, options, mode, results);
    return true;
}
