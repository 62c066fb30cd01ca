/* SPDX-License-Identifier: Apache-2.0 */
/* The text of reports: escaped words, all parts, files that are cut short, and the size of many results. */
#include "html.h"
#include "report.h"
#include "shell.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *page_of(const char *const *documents, int count)
{
    struct report_file files[REPORT_MOST_FILES];
    char *text = NULL;
    size_t bytes = 0;
    static const char *const names[] = {"first.json", "<second>.json", "third.json"};
    for (int i = 0; i < count; i++) {
        json_error_t error;
        files[i] = (struct report_file){.name = names[i], .json = json_loads(documents[i], 0, &error)};
        if (!files[i].json) fail_msg("%s", error.text);
    }
    FILE *out = open_memstream(&text, &bytes);
    assert_true(out && report_write(files, count, out));
    fclose(out);
    for (int i = 0; i < count; i++)
        json_decref(files[i].json);
    return text;
}

static void assert_has(const char *page, const char *part)
{
    if (!strstr(page, part)) fail_msg("the page has no '%s':\n%s", part, page);
}

static void assert_lacks(const char *page, const char *part)
{
    const char *at = strstr(page, part);
    if (at) fail_msg("the page has '%s': %.80s", part, at);
}

#define SWEEP(factor)                                                                                                  \
    "{\"schema_version\": 1, \"date\": \"2026-01-02T03:04:05Z\", \"command\": \"expar bench all\","                    \
    "\"machine\": {\"cpu\": \"A CPU\", \"cores\": 4, \"load\": [0.5, 0, 0]}, \"config\": {\"ranks\": 2},"              \
    "\"expert_load\": {\"tokens\": 4, \"choices\": [3, 1, 0, 4]}, \"results\": ["                                      \
    "{\"op\": \"dispatch\", \"dtype\": \"bf16\", \"tokens\": 4, \"median_us\": " factor                                \
    "0, \"copy_limit_us\": 8, \"mpi_us\": 40, \"verified\": true, \"links\": ["                                        \
    "{\"class\": \"memory\", \"from\": 0, \"to\": 1, \"bytes\": 2048, \"messages\": 2}]},"                             \
    "{\"op\": \"dispatch\", \"dtype\": \"bf16\", \"tokens\": 8, \"median_us\": " factor                                \
    "2, \"copy_limit_us\": 9, \"mpi_us\": 40, \"verified\": true},"                                                    \
    "{\"op\": \"combine\", \"dtype\": \"bf16\", \"tokens\": 8, \"median_us\": 12.5, \"verified\": false,"              \
    "\"breakdown\": {\"open_us\": 1, \"rows_us\": 3, \"late_rank\": 1}}]}"

static void all_parts_are_there(void **state)
{
    (void)state;
    const char *const documents[] = {SWEEP("1")};
    char *page = page_of(documents, 1);
    static const char *const parts[] = {"<h2>Verdict",
                                        "<h2>Times",
                                        "<h2>Single results",
                                        "<h2>Bytes from rank to rank",
                                        "<h2>Experts",
                                        "<h2>Where",
                                        "<h2>Environment",
                                        "<h2>All values",
                                        "0.75",
                                        "WRONG BYTES",
                                        "<span>expar</span> <span>bench</span> <span>all</span>",
                                        "A CPU",
                                        "2026-01-02",
                                        "rows_us",
                                        "Expert 3 has the most: 4, which is 2.00 times"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_has(page, parts[i]);
    assert_lacks(page, "<h2>Comparison");
    assert_lacks(page, "the machine was busy");
    assert_lacks(page, "nan");
    assert_lacks(page, "inf");
    free(page);
}

static void files_are_compared(void **state)
{
    (void)state;
    const char *const documents[] = {SWEEP("1"), SWEEP("2"), "{\"results\": []}"};
    char *page = page_of(documents, 3);
    assert_has(page, "<h2>Comparison");
    assert_has(page, "<td class=slower>2.00\xc3\x97"); /* 20 of 10 */
    assert_has(page, "<td class=same>1.00\xc3\x97");
    assert_has(page, "&lt;second&gt;.json");
    free(page);
    page = page_of((const char *const[]){SWEEP("1"), "{\"results\": []}"}, 2);
    assert_has(page, "<h2>Comparison</h2><p>The files have no results of the same operations and sizes.");
    free(page);
}

static int count_of(const char *page, const char *part)
{
    int count = 0;
    for (const char *at = page; (at = strstr(at, part)); at++)
        count++;
    return count;
}

/* Another library's results share the picture and the comparison of their operation, whatever path and workers expar
   has there. An operation that expar has not is a picture of its own. */
static void other_libraries_are_peers(void **state)
{
    (void)state;
#define OWN                                                                                                            \
    "{\"results\": [{\"op\": \"dispatch\", \"dtype\": \"bf16\", \"path\": \"direct\", \"sms\": 24, \"tokens\": 4,"     \
    "\"median_us\": 10}, {\"op\": \"dispatch\", \"dtype\": \"bf16\", \"path\": \"direct\", \"sms\": 24, \"tokens\": "  \
    "8,"                                                                                                               \
    "\"median_us\": 20}]}"
#define PEER                                                                                                           \
    "{\"library\": \"A <Peer> 1.2\", \"results\": [{\"op\": \"dispatch\", \"dtype\": \"bf16\", \"tokens\": 4,"         \
    "\"median_us\": 30}, {\"op\": \"dispatch\", \"dtype\": \"bf16\", \"tokens\": 8, \"median_us\": 20}%s]}"
    char peer[512], more[512];
    snprintf(peer, sizeof peer, PEER, "");
    snprintf(more, sizeof more, PEER, ", {\"op\": \"expand\", \"tokens\": 8, \"median_us\": 1}");
    for (int first = 0; first < 2; first++) {
        char *page = page_of((const char *const[]){first ? peer : OWN, first ? OWN : peer}, 2);
        assert_int_equal(count_of(page, "<figure><h3>dispatch, bf16, direct, 24 SMs"), 1);
        assert_int_equal(count_of(page, "<figure><h3>dispatch, bf16</h3>"), 0);
        assert_has(page, first ? "<td class=faster>0.33" : "<td class=slower>3.00\xc3\x97");
        assert_has(page, "<td class=same>1.00\xc3\x97");
        free(page);
    }
    char *page = page_of((const char *const[]){OWN, more}, 2);
    assert_has(page, "expand");
    free(page);
    /* A name of another type, none, or expar's own is no other library. */
    static const char *const names[] = {"5", "\"\"", "\"expar\"", "null"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"library\": %s, \"results\": []}", names[i]);
        json_t *json = json_loads(text, 0, NULL);
        assert_non_null(json);
        assert_null(report_library(json));
        json_decref(json);
    }
}

/* Every word of a file may be hostile, and every member of another type. */
static void words_are_escaped(void **state)
{
    (void)state;
#define EVIL "\"<script>alert('1')</script>&\\u0001\\u001b\\\"\""
    const char *const documents[] = {
        "{\"date\": " EVIL ", \"command\": " EVIL ", \"machine\": {\"cpu\": " EVIL ", \"<i>\": " EVIL
        "}, \"config\": [" EVIL "], \"results\": [{\"op\": " EVIL ", \"dtype\": " EVIL ", \"path\": " EVIL
        ", \"pattern\": " EVIL ", \"tokens\": 1, \"median_us\": 1, \"links\": [{\"class\": " EVIL
        ", \"from\": 0, \"to\": 1, \"bytes\": 1}]},"
        "{\"op\": " EVIL ", \"tokens\": 2, \"median_us\": 2, \"breakdown\": {" EVIL ": 1}}]}"};
    struct report_file file = {.name = "<x>"};
    json_error_t error;
    file.json = json_loads(documents[0], 0, &error);
    if (!file.json) fail_msg("%s", error.text);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(report_write(&file, 1, out));
    fclose(out);
    assert_lacks(text, "<script");
    assert_lacks(text, "<i>");
    assert_lacks(text, "<x>");
    assert_null(strchr(text, '\033'));
    assert_has(text, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;");
    json_decref(file.json);
    free(text);
}

static void odd_documents_are_no_failure(void **state)
{
    (void)state;
    static const char *const odd[] = {
        "{\"results\": []}",
        "{\"results\": [1, null, [], \"x\", {}]}",
        "{\"results\": [{\"op\": 5, \"median_us\": \"x\", \"tokens\": -4, \"links\": 7, \"breakdown\": []}]}",
        "{\"results\": [{\"op\": \"d\", \"median_us\": -1, \"tokens\": 0}, {\"op\": \"d\", \"median_us\": 1e308, "
        "\"tokens\": 1e300}]}",
        "{\"results\": [{\"links\": [{\"class\": \"a\", \"from\": 4000000000, \"to\": -1, \"bytes\": 1}, "
        "{\"class\": \"b\", \"from\": 0, \"to\": 1, \"bytes\": -5}, 3]}], \"expert_load\": {\"choices\": [\"x\", -1]}}",
        "{\"results\": [{\"links\": [{\"class\": \"a\", \"from\": 65535, \"to\": 0, \"bytes\": 1e300}]}], "
        "\"expert_load\": 5, \"machine\": [], \"config\": \"\"}",
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *page = page_of(&odd[i], 1);
        assert_has(page, "</html>");
        free(page);
    }
}

static void numbers_are_short(void **state)
{
    (void)state;
    static const struct {
        double number;
        const char *text;
    } cases[] = {{0, "0"},       {0.1234, "0.123"}, {1.234, "1.23"}, {12.34, "12.3"},
                 {123.4, "123"}, {12345, "12345"},  {-2.5, "-2.50"}, {NAN, "\xe2\x80\x93"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32] = "";
        FILE *out = fmemopen(text, sizeof text, "w");
        html_number(out, cases[i].number);
        fclose(out);
        assert_string_equal(text, cases[i].text);
    }
}

/* A text of two-byte characters is cut between two of them. */
static void long_text_is_cut(void **state)
{
    (void)state;
    char *text = calloc(1, 2 * HTML_MOST_TEXT + 2), *made = NULL;
    size_t bytes = 0;
    text[0] = 'x';
    for (int i = 0; i < HTML_MOST_TEXT; i++)
        memcpy(text + 1 + 2 * i, "\xc3\xa4", 2);
    FILE *out = open_memstream(&made, &bytes);
    html_text(out, text);
    fclose(out);
    assert_true(bytes <= HTML_MOST_TEXT + 3);
    assert_memory_equal(made + bytes - 5, "\xc3\xa4\xe2\x80\xa6", 5);
    free(made);
    free(text);
}

/* Lines break between words: each is in an element of its own. */
static void words_of_commands_stay_whole(void **state)
{
    (void)state;
    static const struct {
        const char *command, *made;
    } cases[] = {{"expar bench --json", "<code><span>expar</span> <span>bench</span> <span>--json</span></code>"},
                 {" a  <b ", "<code> <span>a</span>  <span>&lt;b</span> </code>"},
                 {"", "<code></code>"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128] = "";
        FILE *out = fmemopen(text, sizeof text, "w");
        html_command(out, cases[i].command);
        fclose(out);
        assert_string_equal(text, cases[i].made);
    }
}

static void a_thousand_results_stay_small(void **state)
{
    (void)state;
    json_t *json = json_pack("{s:[]}", "results");
    for (int i = 0; i < 1000; i++)
        json_array_append_new(json_object_get(json, "results"),
                              json_pack("{s:o, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "op",
                                        json_sprintf("dispatch %d", i / 10), "dtype", "bf16", "tokens", 1 << i % 10,
                                        "median_us", 123.4 * i, "min_us", 1.0, "p99_us", 1e6, "copy_limit_us", 100.0,
                                        "mpi_us", 1e5, "gbps", 1.0, "bus_gbps", 1.0, "verified", 1));
    const struct report_file file = {.name = "many.json", .json = json};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_true(report_write(&file, 1, out));
    fclose(out);
    assert_true(bytes > 100000 && bytes <= 2 << 20);
    json_decref(json);
    free(text);
}

/* ---- as users call it -------------------------------------------------------------------------------------------- */

/* Results of another library stand under its name, escaped, and not under that of the file. */
static void libraries_are_named(void **state)
{
    (void)state;
    shell_expect("echo '{\"results\": [{\"op\": \"dispatch\", \"tokens\": 4, \"median_us\": 1}]}' >$TMP/own.json;"
                 "echo '{\"library\": \"A <Peer> 1.2\", \"results\": []}' >$TMP/peer.json;"
                 "$EXPAR bench --report $TMP/p.html $TMP/own.json $TMP/peer.json; grep -c 'peer.json' $TMP/p.html;"
                 "grep -o 'A &lt;Peer&gt; 1.2' $TMP/p.html | head -1; rm $TMP/p.html",
                 0, "0\nA &lt;Peer&gt; 1.2\n", "");
}

static void files_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int code;
        const char *says;
    } cases[] = {
        {"$EXPAR bench --report $TMP/r.html $TMP/absent.json", 1, "absent.json: No such file or directory"},
        {"echo '{\"results\": [' >$TMP/cut.json; $EXPAR bench --report $TMP/r.html $TMP/cut.json", 1,
         "cut.json: line 2"},
        {"echo '{}' >$TMP/no.json; $EXPAR bench --report $TMP/r.html $TMP/no.json", 1, "a list 'results'"},
        {": >$TMP/e.json; $EXPAR bench --report $TMP/r.html $TMP/e.json", 1,
         "e.json: line 1: '[' or '{' expected near end of file: what `expar bench --json` prints is expected"},
        {"$EXPAR bench $TMP/no.json", 64, "--report FILE is expected with files"},
        {"$EXPAR bench all --report $TMP/r.html $TMP/no.json", 64, "nothing is measured with files"},
        {"$EXPAR bench -n 2 --report $TMP/r.html $TMP/no.json", 64, "nothing is measured with files"},
        {"$EXPAR bench --json --report $TMP/r.html $TMP/no.json", 64, "nothing is measured with files"},
        {"$EXPAR bench --report $TMP/absent/r.html $TMP/no.json", 64, "absent/r.html: No such file or directory"},
        {"$EXPAR bench --report $TMP/r.html 1.json 2.json 3.json 4.json 5.json 6.json 7.json 8.json 9.json", 64,
         "more than 8 files"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        shell_expect(cases[i].line, cases[i].code, "", cases[i].says);
    shell_expect("test ! -e $TMP/r.html", 0, "", "");
}

static void a_run_has_a_report(void **state)
{
    (void)state;
    static const char run[] = "$EXPAR bench all -n 2 --tokens 1,8 --hidden 64 --topk 2 --experts 4 --iters 2 --report "
                              "$TMP/run.html --json --output $TMP/run.json && cat $TMP/run.html";
    shell_expect(run, 0, "<h2>Bytes from rank to rank", NULL);
    shell_expect("$EXPAR bench --report $TMP/again.html $TMP/run.json $TMP/run.json && cat $TMP/again.html", 0,
                 "<td class=same>1.00", "");
    shell_expect(
        "$EXPAR bench rma --sizes 8,64 --ops put --transports p2p --iters 2 --report $TMP/rma.html >$TMP/none &&"
        " cat $TMP/rma.html",
        0, "of the speed without expar", NULL);
    shell_expect("$EXPAR bench setup -n 2 --iters 2 --report $TMP/setup.html >$TMP/none && cat $TMP/setup.html", 0,
                 "group and buffer", NULL);
}

static void the_gallery_can_be_made(void **state)
{
    (void)state;
    shell_expect("ls " GALLERY "/*.json && $EXPAR bench --report $TMP/gallery.html " GALLERY
                 "/*.json && cat $TMP/gallery.html",
                 0, "</html>", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_parts_are_there),
        cmocka_unit_test(files_are_compared),
        cmocka_unit_test(other_libraries_are_peers),
        cmocka_unit_test(words_are_escaped),
        cmocka_unit_test(odd_documents_are_no_failure),
        cmocka_unit_test(numbers_are_short),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(words_of_commands_stay_whole),
        cmocka_unit_test(a_thousand_results_stay_small),
        cmocka_unit_test(libraries_are_named),
        cmocka_unit_test(files_are_checked),
        cmocka_unit_test(a_run_has_a_report),
        cmocka_unit_test(the_gallery_can_be_made),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
