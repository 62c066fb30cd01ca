/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel, compiled by NVRTC for each architecture, and under every macro set of variants.txt: without a warning,
 * without a register spilled, without local memory. The nights have all of that (EXPAR_TEST_ROUNDS). By day it is one
 * architecture under the first macro set of a few files, since the assembler takes minutes. It is without macros only
 * where there is no nvcc, which checks the same as it compiles (cmake/kernels.cmake for this architecture,
 * scripts/check_kernels.sh for the others). Needs no GPU. */
#include "cuda/parts.h"
#include "cuda/test_sources.h"
#include "cuda/without_nvrtc.h"
#ifdef HAVE_TOOL_KERNELS
#include "tool_kernels.h"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_MACROS 12
static const int32_t archs[] = {80, 90, 100};
#define ARCH_OF_DAYS 90

typedef struct variant {
    const cuda_source *source;
    cuda_macro macros[MAX_MACROS];
    size_t num_macros;
    char text[512]; /* the macros, to name it */
    char line[512]; /* what it was read from: the names lie here */
} variant;

/* ---- reading what the compiler says ------------------------------------------------------------------------------ */

/* "ptxas .   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"; the number stands before the words. */
static bool is_frame_line(const char *line, bool *clean)
{
    unsigned stack, stores, loads;
    const char *number = strstr(line, " bytes stack frame");
    while (number && number > line && number[-1] >= '0' && number[-1] <= '9')
        number--;
    if (!number || sscanf(number, "%u bytes stack frame, %u bytes spill stores, %u bytes spill loads", &stack, &stores,
                          &loads) != 3)
        return false;
    *clean = stack == 0 && stores == 0 && loads == 0;
    return true;
}

static bool is_harmless(const char *line)
{
    return line[strspn(line, " \t")] == 0 || strncmp(line, "ptxas info", 10) == 0;
}

/* Counts lines that tell of kernels' frames; prints all that should not be there. */
static int read_log(char *log, int *num_bad)
{
    int frames = 0;
    char *rest = NULL;
    for (char *line = strtok_r(log, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        bool clean = true;
        if (is_frame_line(line, &clean))
            frames++;
        else
            clean = is_harmless(line);
        if (clean) continue;
        printf("    %s\n", line);
        (*num_bad)++;
    }
    return frames;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static void add_verbose(cuda_options *options)
{
    char **items = realloc(options->items, ((size_t)options->count + 1) * sizeof *items);
    assert_non_null(items);
    options->items = items;
    options->items[options->count] = strdup("--ptxas-options=-v");
    assert_non_null(options->items[options->count]);
    options->count++;
}

/* Number of complaints. */
static int compile(const variant *one, int32_t arch)
{
    cuda_options options;
    void *cubin = NULL;
    size_t bytes = 0;
    char *log = NULL;
    int bad = 0;
    assert_int_equal(cuda_options_make(arch, one->macros, one->num_macros, &options), EXPAR_OK);
    add_verbose(&options);
    printf("%s sm_%d %s\n", one->source->name, arch, one->text);
    expar_status status = cuda_source_compile(one->source, &options, &cubin, &bytes, &log);
    cuda_options_free(&options);
    if (status != EXPAR_OK) {
        printf("    %s\n%s\n", expar_last_error(), log ? log : "");
        bad++;
    } else if (read_log(log, &bad) == 0) {
        printf("    the compiler did not tell of stack frames and spills\n");
        bad++;
    }
    free(cubin);
    free(log);
    return bad;
}

static int compile_for(const variant *one, bool all)
{
    int bad = 0;
    for (size_t a = 0; a < ARRAY_LENGTH(archs); a++)
        if (all || archs[a] == ARCH_OF_DAYS) bad += compile(one, archs[a]);
    return bad;
}

static bool is_night(void)
{
    return getenv("EXPAR_TEST_ROUNDS") != NULL;
}

static int compile_plain(const variant *one)
{
#ifdef CHECKED_BY_NVCC
    return is_night() ? compile_for(one, true) : 0;
#else
    return compile_for(one, true);
#endif
}

/* ---- variants ---------------------------------------------------------------------------------------------------- */

static bool is_kernel(const cuda_source *source)
{
    size_t length = strlen(source->name);
    return length > 3 && strcmp(source->name + length - 3, ".cu") == 0;
}

/* "dispatch.cu  NAME=8 OTHER=2"; false for comments and empty lines. */
static bool parse(variant *one)
{
    char *rest = NULL, *equals;
    one->num_macros = 0;
    one->line[strcspn(one->line, "#\n")] = 0;
    char *word = strtok_r(one->line, " \t", &rest);
    if (!word) return false;
    snprintf(one->text, sizeof one->text, "%s", rest);
    one->source = cuda_source_find(word);
    if (!one->source) fail_msg("variants.txt names %s, which is no kernel file", word);
    while ((word = strtok_r(NULL, " \t", &rest)) != NULL) {
        if (!(equals = strchr(word, '='))) fail_msg("%s: expected NAME=VALUE, not %s", one->text, word);
        assert_true(one->num_macros < MAX_MACROS);
        *equals = 0;
        one->macros[one->num_macros++] = (cuda_macro){.name = word, .value = atoll(equals + 1)};
    }
    return true;
}

static int compile_table(const cuda_source *sources, size_t count)
{
    int bad = 0;
    for (size_t i = 0; i < count; i++)
        if (is_kernel(&sources[i])) bad += compile_plain(&(variant){.source = &sources[i]});
    return bad;
}

static void generic_variants_are_clean(void **state)
{
    (void)state;
    assert_int_equal(compile_table(cuda_sources, cuda_num_sources), 0);
}

#ifdef HAVE_TOOL_KERNELS
static void kernels_of_the_tool_are_clean(void **state)
{
    (void)state;
    assert_true(tool_num_kernels > 0);
    assert_int_equal(compile_table(tool_kernels, tool_num_kernels), 0);
}
#endif

/* And with them headers that no kernel of the library includes yet: the codec. */
static void kernels_of_tests_are_clean(void **state)
{
    (void)state;
    assert_true(test_num_sources > 0);
    assert_int_equal(compile_table(test_sources, test_num_sources), 0);
}

/* One file of each family: the others take the same macros by the same headers. A file's lines follow each other in the
   table, but for those of tests. */
static bool is_of_days(const variant *one, const cuda_source *before)
{
    static const char *const families[] = {"normal/layout.cu", "normal/dispatch.cu", "normal/combine.cu",
                                           "low_latency/ll_dispatch.cu", "low_latency/ll_combine.cu"};
    bool chosen = false;
    for (size_t i = 0; i < ARRAY_LENGTH(families); i++)
        chosen |= strstr(one->source->name, families[i]) != NULL;
    return chosen && one->source != before && one->macros[0].value == 8;
}

static void variants_of_the_table_are_clean(void **state)
{
    (void)state;
    int bad = 0;
    variant one;
    const cuda_source *before = NULL;
    FILE *table = fopen(KERNEL_VARIANTS, "r");
    assert_non_null(table);
    while (fgets(one.line, sizeof one.line, table)) {
        if (!parse(&one)) continue;
        if (is_night() || is_of_days(&one, before)) bad += compile_for(&one, is_night());
        before = one.source;
    }
    fclose(table);
    assert_int_equal(bad, 0);
}

/* All that ring.h and waits.h have for producers, in a kernel that issues all kinds of commands and waits for them. */
static void producers_of_the_proxy_are_clean(void **state)
{
    (void)state;
    const cuda_source issuer = {.name = "tests/issue.cu",
                                .text =
                                    "#include \"net/proxy/waits.h\"\n"
                                    "extern \"C\" __global__ void issue(proxy_port *port, int *failed, int patience)\n"
                                    "{\n"
                                    "    proxy_command command = {};\n"
                                    "    uint64_t first = 0, ended = 0;\n"
                                    "    command.kind = (uint8_t)(PROXY_PUT + threadIdx.x % PROXY_REST);\n"
                                    "    command.bytes = 8;\n"
                                    "    while (!proxy_try_issue(port, &command) && --patience > 0) {}\n"
                                    "    ended = proxy_await_slots(port, 2, &first);\n"
                                    "    if (!ended) {\n"
                                    "        proxy_publish(port, first, &command);\n"
                                    "        proxy_publish(port, first + 1, &command);\n"
                                    "        ended = proxy_await_done_to(port, command.pe, first + 2);\n"
                                    "    }\n"
                                    "    if (!ended) ended = proxy_await_done(port, proxy_head(port));\n"
                                    "    const uint64_t failure = ended ? ended : proxy_load(&port->failure);\n"
                                    "    if (proxy_failure_count(failure) != 0)\n"
                                    "        failed[proxy_failure_pe(failure)] = proxy_failure_status(failure);\n"
                                    "}\n"};
    assert_int_equal(compile_for(&(variant){.source = &issuer}, true), 0);
}

/* The producers of gda, too: no kernel of the library includes them yet. */
static void producers_of_gda_are_clean(void **state)
{
    (void)state;
    size_t i = 0;
    while (i < test_num_sources && strcmp(test_sources[i].name, "tests/cuda/kernels/gda.cu") != 0)
        i++;
    assert_true(i < test_num_sources);
    assert_int_equal(compile_for(&(variant){.source = &test_sources[i]}, is_night()), 0);
}

/* The check itself must see what it looks for: an array that is indexed at run time lies in local memory. */
static void local_memory_is_seen(void **state)
{
    (void)state;
    const cuda_source greedy = {.name = "tests/greedy.cu",
                                .text = "extern \"C\" __global__ void greedy(int *out, int n)\n"
                                        "{\n"
                                        "    int words[64];\n"
                                        "    for (int i = 0; i < 64; i++) words[i * n & 63] = i;\n"
                                        "    *out = words[n & 63];\n"
                                        "}\n"};
    assert_true(compile(&(variant){.source = &greedy}, 90) > 0);
}

static void warnings_are_seen(void **state)
{
    (void)state;
    const cuda_source careless = {.name = "tests/careless.cu",
                                  .text = "extern \"C\" __global__ void careless(int *out)\n"
                                          "{\n"
                                          "    int unused;\n"
                                          "    *out = 1;\n"
                                          "}\n"};
    assert_true(compile(&(variant){.source = &careless}, 90) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_memory_is_seen),
        cmocka_unit_test(warnings_are_seen),
        cmocka_unit_test(producers_of_the_proxy_are_clean),
        cmocka_unit_test(producers_of_gda_are_clean),
        cmocka_unit_test(generic_variants_are_clean),
#ifdef HAVE_TOOL_KERNELS
        cmocka_unit_test(kernels_of_the_tool_are_clean),
#endif
        cmocka_unit_test(kernels_of_tests_are_clean),
        cmocka_unit_test(variants_of_the_table_are_clean),
    };
    const char *path;
    int32_t version;
    if (cuda_nvrtc_find(&path, &version) != EXPAR_OK) return without_nvrtc();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
