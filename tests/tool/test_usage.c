/* SPDX-License-Identifier: Apache-2.0 */
/* Usage errors: they are named, nothing is done, and the exit code is 64. -np is right. */
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void unknown_words_are_corrected(void **state)
{
    (void)state;
    shell_expect("$EXPAR bnech", 64, "", "did you mean 'bench'?");
    shell_expect("$EXPAR inf", 64, "", "did you mean 'info'?");
    shell_expect("$EXPAR dmeo", 64, "", "did you mean 'demo'?");
    shell_expect("$EXPAR runn", 64, "", "did you mean 'run'?");
    shell_expect("$EXPAR quantum", 64, "", "`expar --help` lists them");
    shell_expect("$EXPAR", 64, "", "which subcommand?");
    shell_expect("$EXPAR info surplus", 64, "", "'surplus' is not expected");
}

/* A name may control a terminal. No message repeats it as it is. */
static void names_are_shown_harmless(void **state)
{
    (void)state;
    static const char *const typed[] = {"$EVIL",
                                        "run -n 1 -- /absent/$EVIL",
                                        "bench --report /dev/null /absent/$EVIL.json",
                                        "bench dispatch -n 2 --routing $EVIL.npy",
                                        "bench --output /absent/$EVIL",
                                        "demo --file /absent/$EVIL",
                                        "demo --model /absent/$EVIL",
                                        "check $EVIL"};
    char command[256];
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        snprintf(command, sizeof command, "EVIL=$(printf 'a\\033[2J'); $EXPAR %s", typed[i]);
        struct shell_result result = shell(command);
        assert_int_not_equal(result.code, 0);
        assert_string_equal(result.out, "");
        if (strchr(result.err, '\033')) fail_msg("`%s` says %s", typed[i], result.err);
        assert_non_null(strstr(result.err, "[2J"));
        shell_free(&result);
    }
}

static void other_words_are_not_corrected(void **state)
{
    (void)state;
    static const char *const words[] = {
        "bin", "to", "in", "x", "mend", "fun-and-games", "beech-tree", "a-word-that-is-longer-than-any-subcommand"};
    char command[64];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(command, sizeof command, "$EXPAR %s", words[i]);
        shell_expect(command, 64, "", "`expar --help` lists them");
    }
}

/* Subcommands, options, operands and values; on stdout nothing, on stderr what was wrong. */
static void wrong_usage_ends_with_64(void **state)
{
    (void)state;
    static const struct {
        const char *typed, *says;
    } cases[] = {
        {"--nonsense", "there is no subcommand '--nonsense'"},
        {"man nothing", "there is no subcommand 'nothing'"},
        {"man run info", "'info' is not expected here"},
        {"run", "-n N is missing"},
        {"run -n", "requires an argument -- 'n'"},
        {"run -np", "requires an argument -- 'np'"},
        {"run -n p -- true", "-n 'p'"},
        {"run -np x -- true", "-n 'x'"},
        {"run -n 2", "which program?"},
        {"run -n 2 --", "which program?"},
        {"run -n 4 --nodes 3 -- true", "--nodes 3 does not divide"},
        {"run -n 2 --nodes -- true", "--nodes '--'"},
        {"run -n 2 --timeout never -- true", "--timeout 'never'"},
        {"run -n 2 --on-death=faint -- true", "--on-death 'faint'"},
        {"run -n 2 --bind=yes -- true", "'--bind' doesn't allow an argument"},
        {"info --nonsense", "unrecognized option '--nonsense'"},
        {"info surplus", "'surplus' is not expected"},
        {"info -n 65", "-n '65'"},
        {"info --nodes 0", "--nodes '0'"},
        {"info --nodes", "'--nodes' requires an argument"},
        {"info -n 4 --nodes 3", "--nodes 3 does not divide -n 4"},
        {"info --json=yes", "'--json' doesn't allow an argument"},
        {"info --env --heap", "--env, --knobs and --heap"},
        {"info --knobs --env", "--env, --knobs and --heap"},
        {"bench --nonsense", "unrecognized option '--nonsense'"},
        {"bench -n", "requires an argument -- 'n'"},
        {"bench --tokens", "'--tokens' requires an argument"},
        {"demo --nonsense", "unrecognized option '--nonsense'"},
        {"demo surplus", "'surplus' is no option"},
        {"demo -n 0", "-n '0'"},
        {"demo -n 3", "must divide 32"},
        {"demo --nodes 3", "--nodes 3: the 8 ranks are shared out evenly"},
        {"demo --nodes x", "--nodes 'x'"},
        {"demo --device abacus", "--device 'abacus'"},
        {"demo --path copy_engine", "--path 'copy_engine'"},
        {"demo --decode fast", "--decode 'fast'"},
        {"demo --bytes 0", "--bytes '0'"},
        {"demo --bytes 496", "context of 512"},
        {"demo --prompt ''", "empty prompt"},
        {"demo --file /nonexistent", "No such file"},
        {"demo --file /dev/null", "empty file"},
        {"demo --model /nonexistent", "no config.json"},
    };
    char command[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "$EXPAR %s", cases[i].typed);
        struct shell_result result = shell(command);
        if (result.code != 64 || *result.out || !strstr(result.err, cases[i].says))
            fail_msg("`%s` gave %d\nexpected err: %s\nout: %s\nerr: %s", command, result.code, cases[i].says,
                     result.out, result.err);
        shell_free(&result);
    }
}

/* In a job that has another number of ranks than was typed. */
static void a_number_that_is_not_the_jobs_is_wrong_usage(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 -- $EXPAR demo -n 4", 64, "", "-n 4 was given inside a group of 2 ranks");
    shell_expect("$EXPAR run -n 2 -- $EXPAR bench dispatch -n 4", 64, "", "-n 4, but this job has 2 ranks");
}

/* As users of MPI's launchers type it, wherever ranks are counted, and wherever it stands. */
static void np_is_taken_as_n(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -np 3 -- echo rank", 0, "[2] rank\n", "");
    shell_expect("$EXPAR run --no-prefix -np 2 echo -np 7", 0, "-np 7\n-np 7\n", "");
    shell_expect("$EXPAR info --json -np 6 --nodes 3", 0, "\"ranks\": 6", "");
    shell_expect("$EXPAR demo -np 2 --bytes 5 --json", 0, "\"ranks\": 2", "");
    shell_expect("$EXPAR bench dispatch -np 2 layout --tokens 4 --hidden 64 --topk 2 --experts 4 --iters 2 --json", 0,
                 "\"ranks\": 2", NULL);
#ifdef HAVE_MPI
    /* Open MPI keeps memory to its end. */
    shell_expect("LSAN_OPTIONS=detect_leaks=0 $EXPAR bench dispatch --mpi -np 2 --tokens 4 --hidden 64 --topk 2 "
                 "--experts 4 --iters 2 --json",
                 0, "\"ranks\": 2", NULL);
#endif
    /* A value that only looks like it. */
    shell_expect("$EXPAR demo -n 1 --bytes 5 --json --prompt -np", 0, "\"text\": \"-np", "");
}

/* A page of help fits a terminal of 24 lines and 80 columns. */
static void assert_fits_screen(const char *command)
{
    struct shell_result result = shell(command);
    int lines = 0;
    assert_int_equal(result.code, 0);
    assert_string_equal(result.err, "");
    for (const char *line = result.out; *line; line += strcspn(line, "\n") + 1, lines++)
        if (strcspn(line, "\n") > 80) fail_msg("`%s`: more than 80 columns: %s", command, line);
    if (lines > 24) fail_msg("`%s`: %d lines:\n%s", command, lines, result.out);
    shell_free(&result);
}

static void help_by_operation_fits_a_screen(void **state)
{
    (void)state;
    static const struct {
        const char *words, *has, *lacks;
    } cases[] = {
        {"", "  rma ", "--transports"},     {"dispatch", "--cached", "--sizes"}, {"combine layout", "--path", "--hook"},
        {"ll dispatch", "--hook", "--ops"}, {"rma", "--sizes", "--tokens"},      {"setup", "-n N", "--tokens"},
    };
    char command[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(command, sizeof command, "$EXPAR bench %s --help", cases[i].words);
        assert_fits_screen(command);
        shell_expect(command, 0, cases[i].has, "");
        struct shell_result result = shell(command);
        if (strstr(result.out, cases[i].lacks)) fail_msg("`%s` has %s", command, cases[i].lacks);
        shell_free(&result);
    }
    shell_expect("$EXPAR bench --help=rma", 0, "expar bench rma", "");
    shell_expect("$EXPAR bench --help=full", 0, "--transports=NAMES", "");
    shell_expect("$EXPAR bench --help=full", 0, "--color=WHEN", "");
    shell_expect("$EXPAR bench --help=nothing", 64, "", "'--help' doesn't allow an argument");
}

static void colour_is_an_option_of_all(void **state)
{
    (void)state;
    shell_expect("$EXPAR info --color=always --device-gpu", 64, "", "unrecognized option");
    shell_expect("$EXPAR info --color sometimes", 64, "", "--color 'sometimes': one of auto|always|never is expected");
    shell_expect("NO_COLOR=1 $EXPAR info --color=always", 0, "\033[", "");
    shell_expect("$EXPAR man bench", 0, "\\-\\-color", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_words_are_corrected),
        cmocka_unit_test(names_are_shown_harmless),
        cmocka_unit_test(other_words_are_not_corrected),
        cmocka_unit_test(wrong_usage_ends_with_64),
        cmocka_unit_test(a_number_that_is_not_the_jobs_is_wrong_usage),
        cmocka_unit_test(np_is_taken_as_n),
        cmocka_unit_test(help_by_operation_fits_a_screen),
        cmocka_unit_test(colour_is_an_option_of_all),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
