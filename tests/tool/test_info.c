/* SPDX-License-Identifier: Apache-2.0 */
/* The tool as a whole: help, version, unknown words, man pages, and expar info. */
#include "shell.h"
#include "terminal.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const subcommands[] = {"run", "bench", "info", "demo"};

static void help_has_all_subcommands(void **state)
{
    (void)state;
    struct shell_result result = shell("$EXPAR --help");
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        assert_non_null(strstr(result.out, subcommands[i]));
    shell_free(&result);
}

static void each_subcommand_has_help_with_examples(void **state)
{
    (void)state;
    char command[128], example[64];
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++) {
        snprintf(command, sizeof command, "$EXPAR %s --help", subcommands[i]);
        snprintf(example, sizeof example, "Examples:\n  expar %s", subcommands[i]);
        shell_expect(command, 0, example, "");
        /* No line is wider than a terminal, or ends with blanks. An example in full may be wider. */
        snprintf(command, sizeof command, "$EXPAR %s --help | grep -vE '^  expar ' | grep -nE ' $|.{81}'",
                 subcommands[i]);
        shell_expect(command, 1, "", "");
    }
}

static void version_is_printed(void **state)
{
    (void)state;
    shell_expect("$EXPAR --version", 0, "expar 0.", "");
}

static void lost_output_is_no_success(void **state)
{
    (void)state;
    shell_expect("$EXPAR --version > /dev/full", 74, "", "cannot write the output");
}

static void man_pages_are_clean(void **state)
{
    (void)state;
    char command[128], title[64];
    shell_expect("$EXPAR man > $TMP/expar.1 && mandoc -T lint $TMP/expar.1", 0, "", "");
    shell_expect("$EXPAR man", 0, "EXPAR_TIMEOUT", "");
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++) {
        snprintf(command, sizeof command,
                 "$EXPAR man %s > $TMP/page.1 && mandoc -T lint $TMP/page.1 && cat $TMP/page.1", subcommands[i]);
        snprintf(title, sizeof title, "\n.SH NAME\nexpar\\-%s \\- ", subcommands[i]);
        shell_expect(command, 0, title, "");
        const char *const sections[] = {"SYNOPSIS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES"};
        for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
            snprintf(title, sizeof title, "\n.SH %s\n", sections[s]);
            shell_expect("cat $TMP/page.1", 0, title, "");
            snprintf(title, sizeof title, "grep -qx '[.]SH %s' $TMP/expar.1", sections[s]);
            shell_expect(title, 0, "", "");
        }
    }
    shell_expect("$EXPAR man nothing", 64, "", "there is no subcommand 'nothing'");
}

static json_t *parse_output(const char *command)
{
    struct shell_result result = shell(command);
    json_error_t error;
    assert_int_equal(result.code, 0);
    json_t *json = json_loads(result.out, 0, &error);
    if (!json) fail_msg("`%s`: %s in line %d", command, error.text, error.line);
    shell_free(&result);
    return json;
}

static void info_as_json(void **state)
{
    (void)state;
    json_t *info = parse_output("$EXPAR info --json");
    json_t *cpu = json_object_get(info, "cpu"), *memory = json_object_get(info, "memory");
    assert_true(json_is_string(json_object_get(info, "version")));
    assert_true(json_integer_value(json_object_get(cpu, "cores")) >= 1);
    assert_true(json_integer_value(json_object_get(cpu, "usable_threads")) >= 1);
    assert_true(json_array_size(json_object_get(cpu, "numa_nodes")) >= 1);
    assert_true(json_is_array(json_object_get(cpu, "caches")));
    assert_true(json_integer_value(json_object_get(memory, "total_bytes")) > 0);
    assert_true(json_is_array(json_object_get(info, "launchers")));
    assert_true(json_is_array(json_object_get(info, "advice")));
    json_decref(info);
}

/* The operations of one rank on one PE by a transport of the list. */
static const char *cell(const json_t *transports, const char *name, size_t rank, size_t pe)
{
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(transports, "list"), i, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "name")), name)) continue;
        return json_string_value(json_array_get(json_array_get(json_object_get(entry, "matrix"), rank), pe));
    }
    return "none";
}

static void transports_of_one_node(void **state)
{
    (void)state;
    json_t *info = parse_output("$EXPAR info -n 3 --nodes 1 --json");
    const json_t *transports = json_object_get(info, "transports");
    assert_int_equal(json_array_size(json_object_get(transports, "list")), 1);
    for (size_t i = 0; i < 9; i++)
        assert_string_equal(cell(transports, "p2p", i / 3, i % 3), "MPGA");
    assert_true(json_is_null(json_object_get(transports, "missing")));
    json_decref(info);
}

/* How a transport reaches memory of that kind. */
static const char *way_to(const json_t *transports, const char *name, const char *kind)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(transports, "list"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "name")), name) == 0)
            return json_string_value(json_object_get(json_object_get(one, "memory"), kind));
    }
    return "no such transport";
}

static void ways_to_kinds_of_memory(void **state)
{
    (void)state;
    json_t *info = parse_output("$EXPAR info -n 2 --nodes 2 --json");
    const json_t *transports = json_object_get(info, "transports");
    assert_string_equal(way_to(transports, "p2p", "host"), "loads and stores");
    assert_string_equal(way_to(transports, "p2p", "pinned"), "loads and stores");
    assert_string_equal(way_to(transports, "p2p", "device"), "copies by the driver");
#ifdef HAVE_FABRIC
    assert_string_equal(way_to(transports, "fabric", "host"), "network");
    assert_string_equal(way_to(transports, "fabric", "pinned"), "network");
    assert_string_equal(way_to(transports, "fabric", "device"), "staged in pinned memory");
#endif
    json_decref(info);
    info = parse_output("EXPAR_STAGE=1 $EXPAR info -n 2 --json");
    transports = json_object_get(info, "transports");
    assert_string_equal(way_to(transports, "p2p", "pinned"), "loads and stores");
    assert_string_equal(way_to(transports, "p2p", "device"), "staged in pinned memory");
    json_decref(info);
    shell_expect("$EXPAR info | grep -Eq 'host, pinned memory +loads and stores'", 0, "", "");
    shell_expect("$EXPAR info | grep -Eq 'device memory +copies by the driver'", 0, "", "");
}

static void transports_of_two_nodes(void **state)
{
    (void)state;
    json_t *info = parse_output("$EXPAR info -n 4 --nodes 2 --json");
    const json_t *transports = json_object_get(info, "transports");
    assert_int_equal(json_integer_value(json_object_get(transports, "ranks")), 4);
    assert_string_equal(cell(transports, "p2p", 0, 1), "MPGA");
    assert_string_equal(cell(transports, "p2p", 2, 3), "MPGA");
    const json_t *place = json_object_get(transports, "place");
    assert_true(json_integer_value(json_object_get(place, "cores")) >= 1);
    assert_true(json_is_string(json_object_get(place, "nics")));
    shell_expect("$EXPAR info", 0, "NUMA node", "");
    assert_string_equal(cell(transports, "p2p", 0, 2), "----");
    shell_expect("$EXPAR info", 0, "ranks of one host, by loads and stores in shared memory", "");
#ifdef HAVE_FABRIC
    assert_string_equal(cell(transports, "fabric", 0, 2), "-PGA");
    assert_string_equal(cell(transports, "fabric", 3, 0), "-PGA");
    assert_string_equal(cell(transports, "fabric", 0, 1), "-pga");
    shell_expect("$EXPAR info", 0, "self-test: puts, gets and atomics right", "");
    shell_expect("$EXPAR info", 0, "all ranks, by libfabric", "");
    shell_expect("$EXPAR info --env", 0, "separated by commas; default: p2p,fabric", "");
    shell_expect("EXPAR_TRANSPORTS=fabric $EXPAR info -n 2 --nodes 1", 0, "-PGA -PGA", "");
#endif
    json_decref(info);
    shell_expect("EXPAR_TRANSPORTS=p2p $EXPAR info", 0, "MPGA MPGA ---- ---- \n", "");
    shell_expect("EXPAR_TRANSPORTS=ether $EXPAR info", 0, "EXPAR_TRANSPORTS names 'ether'", "");
    /* No package helps against that. */
    shell_expect("EXPAR_TRANSPORTS=ether $EXPAR info | grep -c 'install libfabric1'", 1, "0\n", "");
    shell_expect("$EXPAR info -n 4 --nodes 3", 64, "", "--nodes 3 does not divide -n 4");
    shell_expect("$EXPAR info -n 0", 64, "", "-n '0'");
}

static json_int_t member(const json_t *heap, const char *key)
{
    return json_integer_value(json_object_get(heap, key));
}

/* Blocks of 2 MiB, of which the middle one of three was freed. Other programs of this machine may be listed, too. */
static void heaps_of_running_programs(void **state)
{
    (void)state;
    const json_int_t block = 2 << 20;
    char line[32];
    size_t i, found = 0;
    json_t *heap;
    struct shell_result result =
        shell("$EXPAR run -n 2 -- " HEAP_PROGRAM " \"$EXPAR info --heap --json > $TMP/heaps.json\"");
    assert_int_equal(result.code, 0);
    json_t *heaps = parse_output("cat $TMP/heaps.json");
    json_array_foreach(heaps, i, heap)
    {
        snprintf(line, sizeof line, "pid %d\n", (int)member(heap, "pid"));
        if (!strstr(result.out, line)) continue;
        found++;
        assert_string_equal(json_string_value(json_object_get(heap, "program")), "heap_program");
        assert_int_equal(member(heap, "ranks"), 2);
        assert_in_range(member(heap, "used_bytes"), 2 * block, 3 * block - 1);
        assert_in_range(member(heap, "high_water_bytes"), 3 * block, member(heap, "grown_bytes"));
        assert_in_range(member(heap, "limit_bytes"), member(heap, "grown_bytes"), INT64_MAX);
        assert_true(member(heap, "chunks") >= 1);
        assert_int_equal(member(heap, "holes"), 1);
        assert_int_equal(member(heap, "hole_bytes"), block);
        assert_int_equal(member(heap, "largest_hole_bytes"), block);
    }
    assert_int_equal(found, 2);
    json_decref(heaps);
    shell_free(&result);
    shell_expect("$EXPAR run -n 1 -- " HEAP_PROGRAM " \"$EXPAR info --heap\"", 0, "heap_program        0 of 1", NULL);
}

/* With the GPUs hidden a machine that has some looks like one that has none. */
static void info_without_a_gpu(void **state)
{
    (void)state;
    json_t *info = parse_output("CUDA_VISIBLE_DEVICES= $EXPAR info --json");
    json_t *cuda = json_object_get(info, "cuda"), *driver = json_object_get(cuda, "driver");
    assert_true(json_is_null(json_object_get(driver, "version")));
    assert_non_null(strstr(json_string_value(json_object_get(driver, "missing")), "CUDA is not available"));
    assert_int_equal(json_array_size(json_object_get(cuda, "gpus")), 0);
    const json_t *across = json_object_get(cuda, "across_nodes");
    assert_string_equal(json_string_value(json_object_get(json_object_get(across, "low_latency"), "way")), "proxy");
    assert_non_null(strstr(json_string_value(json_object_get(across, "reason")), "device memory"));
    const json_t *kernels = json_object_get(across, "kernels");
    assert_string_equal(json_string_value(json_object_get(kernels, "ways")), "mapped,gda,proxy");
    assert_string_equal(json_string_value(json_object_get(kernels, "atomics")), "auto");
    json_decref(info);
    info = parse_output("EXPAR_TRANSPORTS=p2p EXPAR_DEVICE_TRANSPORTS=proxy EXPAR_DEVICE_ATOMICS=owner "
                        "$EXPAR info --nodes 1 --json");
    kernels = json_object_get(json_object_get(json_object_get(info, "cuda"), "across_nodes"), "kernels");
    assert_string_equal(json_string_value(json_object_get(kernels, "ways")), "proxy");
    assert_string_equal(json_string_value(json_object_get(kernels, "atomics")), "owner");
    across = json_object_get(json_object_get(info, "cuda"), "across_nodes");
    assert_non_null(strstr(json_string_value(json_object_get(across, "reason")), "no transport reaches other nodes"));
    assert_true(json_is_null(json_object_get(kernels, "wrong")));
    json_decref(info);
    info = parse_output("EXPAR_DEVICE_TRANSPORTS=mapped $EXPAR info --json");
    across = json_object_get(json_object_get(info, "cuda"), "across_nodes");
    assert_string_equal(json_string_value(json_object_get(json_object_get(across, "low_latency"), "way")), "none");
    json_decref(info);
    shell_expect("EXPAR_DEVICE_TRANSPORTS=foo $EXPAR info", 0, "EXPAR_DEVICE_TRANSPORTS=foo: expected mapped", "");
    shell_expect("EXPAR_DEVICE_ATOMICS=gpu $EXPAR info", 0, "EXPAR_DEVICE_ATOMICS=gpu: expected auto, node or owner",
                 "");
    shell_expect("CUDA_VISIBLE_DEVICES= $EXPAR info", 0, "buffers and kernels on GPUs\n", "");
}

static void a_compiler_that_is_not_there_is_named(void **state)
{
    (void)state;
    shell_expect("EXPAR_NVRTC=/nowhere $EXPAR info", 0, "EXPAR_NVRTC is /nowhere", "");
}

static void info_for_people(void **state)
{
    (void)state;
    shell_expect("$EXPAR info", 0, "processors\n", "");
    shell_expect("$EXPAR info", 0, "missing for faster paths\n", "");
    shell_expect("EXPAR_HEAP_SIZE=3G $EXPAR info", 0, "3G\n", "");
}

#define ERASED "\r\033[K"
#define RED    "\033[1;31m"
#define YELLOW "\033[33m"

static void run_line(void *command)
{
    assert_int_equal(system(command), 0);
}

/* Commands stay whole, since they are to be copied. They stand below what is missing. */
static void values_break_on_terminals(void **state)
{
    (void)state;
    static const char long_value[] = "EXPAR_NVRTC is /nowhere, which is no library of NVRTC 12 or newer";
    setenv("EXPAR_NVRTC", "/nowhere", 1);
    shell_expect("$EXPAR info", 0, long_value, "");
    char *text = terminal_capture_wide(80, run_line, "$EXPAR info --color never 2>/dev/null");
    unsetenv("EXPAR_NVRTC");
    char *end = strstr(text, "missing for faster paths");
    assert_non_null(end);
    *end = '\0';
    assert_null(strstr(text, long_value));
    assert_non_null(strstr(text, "EXPAR_NVRTC is /nowhere, which"));
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        if (strlen(line) > 81) fail_msg("too wide: '%s'", line); /* with the terminal's '\r' */
    free(text);
}

/* On a terminal a line says what takes its time, and is gone before the results come; nobody else sees it. */
static void waiting_is_shown_on_a_terminal(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    char *text = terminal_capture(true, run_line, "$EXPAR info 2>&1 >/dev/null");
    assert_string_equal(text, ERASED "expar info: looking at the processors ..." ERASED
                                     "expar info: asking the driver for GPUs ..." ERASED
                                     "expar info: trying the transports ..." ERASED);
    free(text);
    text = terminal_capture(true, run_line, "$EXPAR info --heap 2>&1 >/dev/null");
    assert_string_equal(text, ERASED "expar info: looking for heaps in all processes ..." ERASED);
    free(text);
    text = terminal_capture(true, run_line, "$EXPAR info 2>/dev/null");
    assert_null(strstr(text, " ..."));
    assert_memory_equal(text, "expar ", 6);
    free(text);
    static char *const silent[] = {"$EXPAR info 2>&1 >/dev/null | cat", "TERM=dumb $EXPAR info 2>&1 >/dev/null",
                                   "$EXPAR info --heap --json 2>&1 >/dev/null | cat",
                                   "$EXPAR info --env --json 2>&1 >/dev/null"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        text = terminal_capture(true, run_line, silent[i]);
        assert_string_equal(text, "");
        free(text);
    }
}

static int count_of(const char *part, const char *text)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* On a terminal, and only there. What is optional is no alarm: launchers are plain, a driver and the advice are yellow.
 */
static void missing_paths_stand_out(void **state)
{
    (void)state;
    static char command[] = "CUDA_VISIBLE_DEVICES= PATH=/nowhere $EXPAR info 2>/dev/null";
    setenv("TERM", "xterm", 1);
    char *text = terminal_capture(true, run_line, command);
    assert_int_equal(count_of("  not here; optional\r\n", text), 3);
    assert_int_equal(count_of(YELLOW "  mpirun ", text), 1);
    assert_int_equal(count_of(YELLOW "CUDA is not available", text), 1);
    assert_int_equal(count_of(YELLOW "  CUDA ", text) + count_of(YELLOW "  a GPU that this process sees ", text), 1);
    assert_int_equal(count_of(RED, text), 0);
    free(text);
    text = terminal_capture(false, run_line, command);
    assert_int_equal(count_of("not here; optional\n", text), 3);
    assert_int_equal(count_of("\033", text), 0);
    free(text);
}

static void missing_mpirun_is_named(void **state)
{
    (void)state;
    shell_expect("PATH=/nowhere $EXPAR info", 0, "apt-get install openmpi-bin", "");
}

static void limited_address_space_is_named(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* sanitizers need unlimited addresses themselves */
#endif
    shell_expect("ulimit -v 20000000 && $EXPAR info", 0, "ulimit -v unlimited", "");
}

static void environment_is_described(void **state)
{
    (void)state;
    shell_expect("$EXPAR info --env", 0, "EXPAR_HEAP_SIZE\n", "");
    json_t *list = parse_output("$EXPAR info --env --json");
    assert_true(json_array_size(list) > 5);
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        assert_memory_equal(json_string_value(json_object_get(entry, "name")), "EXPAR_", 6);
        assert_true(strlen(json_string_value(json_object_get(entry, "meaning"))) > 0);
    }
    json_decref(list);
}

static void knobs_are_described(void **state)
{
    (void)state;
    shell_expect("$EXPAR info --knobs", 0, "wait.sleep\n", "");
    shell_expect("$EXPAR info --knobs", 0, "unit: count; value: 16; from 1 to 64\n", "");
    json_t *list = parse_output("$EXPAR info --knobs --json");
    assert_true(json_array_size(list) > 50);
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        assert_non_null(strchr(json_string_value(json_object_get(entry, "name")), '.'));
        assert_true(strlen(json_string_value(json_object_get(entry, "meaning"))) > 0);
        json_int_t value = json_integer_value(json_object_get(entry, "value"));
        assert_true(json_integer_value(json_object_get(entry, "least")) <= value);
        assert_true(value <= json_integer_value(json_object_get(entry, "most")));
    }
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_has_all_subcommands),
        cmocka_unit_test(each_subcommand_has_help_with_examples),
        cmocka_unit_test(version_is_printed),
        cmocka_unit_test(lost_output_is_no_success),
        cmocka_unit_test(man_pages_are_clean),
        cmocka_unit_test(info_as_json),
        cmocka_unit_test(transports_of_one_node),
        cmocka_unit_test(ways_to_kinds_of_memory),
        cmocka_unit_test(transports_of_two_nodes),
        cmocka_unit_test(heaps_of_running_programs),
        cmocka_unit_test(info_without_a_gpu),
        cmocka_unit_test(a_compiler_that_is_not_there_is_named),
        cmocka_unit_test(info_for_people),
        cmocka_unit_test(values_break_on_terminals),
        cmocka_unit_test(waiting_is_shown_on_a_terminal),
        cmocka_unit_test(missing_paths_stand_out),
        cmocka_unit_test(missing_mpirun_is_named),
        cmocka_unit_test(limited_address_space_is_named),
        cmocka_unit_test(environment_is_described),
        cmocka_unit_test(knobs_are_described),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
