/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of made-up results as a terminal of 40, 80 and 200 columns shows them, and a pipe: snapshots/ has what is
 * expected. The judgement below them, and the warning of a busy machine. */
#include "bench/bench.h"
#include "bench/rma/rma.h"
#include "bench/setup/setup.h"
#include "terminal.h"
#include "text.h"
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct bench_options options_of(void)
{
    struct bench_options options;
    bench_options_init(&options);
    options.topk = 8;
    options.experts = 64;
    options.load[0] = 0;
    return options;
}

static const struct bench_link links[] = {{"memory", 0, 1, 1835008, 128}, {"memory", 1, 0, 1820672, 127}};

static struct bench_result result_of(const char *op, int64_t tokens, double median_us, double limit_us)
{
    return (struct bench_result){
        .op = op,
        .path = "direct",
        .phase = "call",
        .format = "bf16",
        .sum = op[0] == 'c' ? "exact" : NULL,
        .dtype = EXPAR_BF16,
        .workers = 1,
        .tokens = tokens,
        .expar = {median_us, median_us * 0.9, median_us * 1.5, 0.12, median_us * 0.98, median_us * 0.95, 3},
        .copies = {{limit_us * 1.25}, {limit_us}},
        .num_copies = 2,
        .has_mpi = true,
        .mpi = {median_us * 3.42},
        .verified = true,
        .bytes = (double)tokens * 28000,
        .messages = (double)tokens * 3,
        .has_trip = true,
        .trip_us = 1.25,
        .has_raw_trip = true,
        .raw_trip_us = 0.75,
        .links = {.known = true, .items = (struct bench_link *)(uintptr_t)links, .count = 2, .most_bytes = 1835008}};
}

struct shown {
    const struct bench_mode *mode;
    bool wrong;
};

static void print_results(void *argument)
{
    const struct shown *shown = argument;
    const struct bench_options options = options_of();
    const struct bench_baseline baseline = {0};
    const struct bench_world world = {.size = 8, .nodes = 1, .each = 8, .device = &bench_cpu, .baseline = &baseline};
    struct bench_result items[] = {result_of("dispatch", 256, 190.04, 199.5), result_of("dispatch", 16, 25.5, 20.6),
                                   result_of("combine", 256, 1234.5, 700), result_of("combine", 16, 40.25, 30.5)};
    items[0].cached = true;
    items[2].expar.spread = 0.75;
    items[3].verified = !shown->wrong;
    const struct bench_results results = {.items = items, .count = 4};
    assert_true(bench_report(&world, &options, shown->mode, &results));
}

static void print_rma(void *argument)
{
    (void)argument;
    struct bench_options options = options_of();
    options.num_ranks = 2;
    static const struct rma_transport_note notes[] = {{"p2p", "loads and stores in mapped memory"}, {NULL, ""}};
    static const struct rma_result results[] = {
        {.op = "put",
         .metric = "latency",
         .transport = "p2p",
         .baseline = "memcpy",
         .bytes = 8,
         .moved_bytes = 8,
         .expar = {0.125, 0.1, 0.2},
         .base = {0.1, 0.09, 0.2},
         .flag = {0.05, 0.04, 0.1},
         .has_base = true,
         .has_flag = true,
         .verified = true},
        {.op = "barrier", .metric = "latency", .transport = "p2p", .expar = {1.5, 1.25, 4}, .verified = true},
    };
    const struct rma_results all = {.notes = notes, .list = results, .count = 2};
    assert_true(rma_report(&options, &all));
}

static void print_setup(void *argument)
{
    (void)argument;
    const struct bench_options options = options_of();
    const struct bench_world world = {.size = 8, .nodes = 1};
    static const struct setup_result results[] = {{.what = "group", .times = {1500, 1400, 3000}, .verified = true}};
    assert_true(setup_report(&world, &options, results, 1));
}

static char *read_snapshot(const char *name)
{
    char path[512], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/%s.txt", SNAPSHOTS, name);
    FILE *file = fopen(path, "re");
    if (!file) return strdup("");
    if (getdelim(&text, &bytes, '\0', file) < 0) text[0] = '\0';
    fclose(file);
    return text;
}

static void keep(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.txt", SNAPSHOTS, name);
    FILE *file = fopen(path, "we");
    if (file) fputs(text, file), fclose(file);
}

/* columns 0: a pipe. A terminal's carriage returns are left out. */
static void assert_snapshot(const char *name, int columns, void (*print)(void *), void *argument)
{
    char *text = columns ? terminal_capture_wide(columns, print, argument) : terminal_capture(false, print, argument);
    char *to = text;
    for (const char *from = text; *from; from++)
        if (*from != '\r') *to++ = *from;
    *to = '\0';
    char *expected = read_snapshot(name);
    if (getenv("BENCH_SNAPSHOTS")) keep(name, text);
    if (strcmp(text, expected) != 0) fail_msg("%s.txt:\n%s\nis now:\n%s", name, expected, text);
    free(expected);
    free(text);
}

static void snapshots(void **state)
{
    (void)state;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) skip();
    struct shown normal = {.mode = &normal_mode}, ll = {.mode = &ll_mode}, wrong = {&normal_mode, true};
    assert_snapshot("normal_40", 40, print_results, &normal);
    assert_snapshot("normal_80", 80, print_results, &normal);
    assert_snapshot("normal_200", 200, print_results, &normal);
    assert_snapshot("normal_pipe", 0, print_results, &normal);
    assert_snapshot("wrong_80", 80, print_results, &wrong);
    assert_snapshot("low_latency_80", 80, print_results, &ll);
    assert_snapshot("low_latency_200", 200, print_results, &ll);
    assert_snapshot("rma_80", 80, print_rma, NULL);
    assert_snapshot("rma_200", 200, print_rma, NULL);
    assert_snapshot("setup_80", 80, print_setup, NULL);
    setlocale(LC_CTYPE, "C");
    assert_snapshot("ascii_80", 80, print_results, &normal);
}

/* No line is wider than the terminal, whatever it is. */
static void no_line_wraps(void **state)
{
    (void)state;
    struct shown normal = {.mode = &normal_mode}, ll = {.mode = &ll_mode};
    if (!setlocale(LC_CTYPE, "C.UTF-8")) skip();
    setenv("NO_COLOR", "1", 1);
    for (int columns = 40; columns <= 220; columns += 9)
        for (int i = 0; i < 2; i++) {
            char *text = terminal_capture_wide(columns, print_results, i ? &ll : &normal);
            for (char *rest = text, *line; (line = strsep(&rest, "\r\n"));)
                if (text_columns(line) > columns) fail_msg("%d columns: %s", columns, line);
            free(text);
        }
    unsetenv("NO_COLOR");
}

/* ---- stderr ------------------------------------------------------------------------------------------------------ */

struct noise {
    double load, spread;
    int iters;
};

static void print_noise(void *argument)
{
    const struct noise *noise = argument;
    struct bench_options options = options_of();
    options.load[0] = noise->load;
    options.iters = noise->iters;
    const int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(STDOUT_FILENO, STDERR_FILENO) >= 0);
    bench_warn_of_noise(&options, noise->spread, "dispatch, T 256");
    dup2(kept, STDERR_FILENO);
    close(kept);
}

static void busy_machines_are_named(void **state)
{
    (void)state;
    const double cores = (double)sysconf(_SC_NPROCESSORS_ONLN);
    const struct {
        struct noise noise;
        const char *says; /* NULL: nothing */
    } cases[] = {
        {{0, 0.1, 50}, NULL},
        {{-1, 0.5, 50}, NULL},
        {{cores * 0.5, 0, 50}, NULL},
        {{0, 0.9, 9}, NULL},
        {{cores * 0.75, 0, 50}, "this machine is busy: the load was "},
        {{0, 0.63, 50}, "busy: the times of dispatch, T 256 spread by 63 %"},
        {{cores, 0.63, 50}, "before the start, and the times of dispatch, T 256 spread by 63 %. Compare"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = terminal_capture(false, print_noise, (void *)(uintptr_t)&cases[i].noise);
        if (cases[i].says ? !strstr(text, cases[i].says) : *text) fail_msg("case %zu: '%s'", i, text);
        free(text);
    }
}

static void spread_is_that_of_the_middle(void **state)
{
    (void)state;
    double times[11] = {100, 3, 1, 4, 2, 10, 9, 8, 7, 6, 5}, one[] = {4}, zeros[] = {0, 0};
    const struct bench_times figures = bench_summary(times, 11);
    assert_true(figures.median_us == 6 && figures.min_us == 1 && figures.p99_us == 100);
    assert_true(figures.spread > 1.33 && figures.spread < 1.34); /* (10 - 2) / 6 */
    assert_true(bench_summary(one, 1).spread == 0 && bench_summary(one, 1).p99_us == 4);
    assert_true(bench_summary(zeros, 2).spread == 0);
}

int main(void)
{
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
    setenv("TERM", "xterm", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots),
        cmocka_unit_test(no_line_wraps),
        cmocka_unit_test(busy_machines_are_named),
        cmocka_unit_test(spread_is_that_of_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
