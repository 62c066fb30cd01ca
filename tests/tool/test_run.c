/* SPDX-License-Identifier: Apache-2.0 */
/* expar run: environment, output, exit codes, deaths, and that nothing is left behind. */
#include "shell.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- environment and streams ------------------------------------------------------------------------------------- */

static void ranks_know_who_they_are(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 3 -- sh -c 'echo $EXPAR_RANK of $EXPAR_SIZE, local $EXPAR_LOCAL_RANK of "
                 "$EXPAR_LOCAL_SIZE, ${#EXPAR_UNIQUE_ID}, nodes ${EXPAR_RANKS_PER_NODE:-none}' | sort",
                 0,
                 "[0] 0 of 3, local 0 of 3, 256, nodes none\n[1] 1 of 3, local 1 of 3, 256, nodes none\n"
                 "[2] 2 of 3, local 2 of 3, 256, nodes none\n",
                 NULL);
    shell_expect("$EXPAR run -n 4 --nodes 2 -- sh -c 'echo $EXPAR_RANKS_PER_NODE'", 0, "[3] 2\n", NULL);
}

static void outer_environment_is_replaced(void **state)
{
    (void)state;
    shell_expect("EXPAR_RANK=7 $EXPAR run -n 1 -- sh -c 'env | grep -c ^EXPAR_RANK'", 0, "[0] 1\n", NULL);
}

static void ranks_per_node_is_handed_on(void **state)
{
    (void)state;
    shell_expect("EXPAR_RANKS_PER_NODE=2 $EXPAR run -n 4 -- " GROUPS_PROGRAM " nodes", 0, "[3] node 1 of 2\n", NULL);
    shell_expect("EXPAR_RANKS_PER_NODE=2 $EXPAR run -n 4 --nodes 4 -- " GROUPS_PROGRAM " nodes", 0, "[3] node 3 of 4\n",
                 NULL);
    shell_expect("EXPAR_RANKS_PER_NODE=2 $EXPAR run -n 4 --nodes 1 -- " GROUPS_PROGRAM " nodes", 0, "[3] node 0 of 1\n",
                 NULL);
    shell_expect("EXPAR_RANKS_PER_NODE=3 $EXPAR run -n 4 -- true", 64, "",
                 "EXPAR_RANKS_PER_NODE=3: a divisor of -n 4 is expected");
    shell_expect("EXPAR_RANKS_PER_NODE=$(printf '2\\033[m') $EXPAR run -n 4 -- true", 64, "",
                 "EXPAR_RANKS_PER_NODE=2\\x1b[m: a divisor");
    shell_expect("$EXPAR run -n 4 --nodes $(printf '2\\033[m') -- true", 64, "",
                 "--nodes '2\\x1b[m': a number of nodes");
}

static void variables_are_set_for_all_ranks(void **state)
{
    (void)state;
    shell_expect("WORD=old OWN=mine $EXPAR run -n 2 --env WORD=new=1 --env EMPTY= --env OWN -- "
                 "sh -c 'echo $WORD ${EMPTY-unset} $OWN; env | grep -c ^WORD=' | sort",
                 0, "[1] 1\n[1] new=1 mine\n", NULL);
    shell_expect("$EXPAR run -n 1 --env EXPAR_RANK=5 -- sh -c 'echo $EXPAR_RANK'", 0, "[0] 0\n", NULL);
    shell_expect("$EXPAR run -n 1 --env NOT_SET_ANYWHERE -- true", 64, "", "--env 'NOT_SET_ANYWHERE': NAME=VALUE");
    shell_expect("$EXPAR run -n 1 --env =x -- true", 64, "", "--env '=x'");
}

static void logs_hold_each_ranks_lines(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 --log-dir $TMP/logs -- sh -c 'echo out $EXPAR_RANK; echo err $EXPAR_RANK >&2; "
                 "printf end'",
                 0, "[1] out 1\n", "[0] err 0\n");
    shell_expect("sort $TMP/logs/rank-0001.log; ls $TMP/logs", 0, "end\nerr 1\nout 1\nrank-0000.log\nrank-0001.log\n",
                 NULL);
    shell_expect("$EXPAR run -n 1 --log-dir $TMP/logs -- echo again; cat $TMP/logs/rank-0000.log", 0,
                 "[0] again\nagain\n", NULL);
    shell_expect("$EXPAR run -n 1 --log-dir /nowhere/logs -- true", 125, "",
                 "cannot write /nowhere/logs/rank-0000.log");
    shell_expect("$EXPAR run -n 1 --log-dir x --no-prefix -- true", 64, "", "--log-dir and --no-prefix exclude");
}

/* The job goes on, and a message says what is missing. */
static void a_full_log_is_reported(void **state)
{
    (void)state;
    shell_expect("mkdir $TMP/full && ln -s /dev/full $TMP/full/rank-0000.log && "
                 "$EXPAR run -n 1 --log-dir $TMP/full -- sh -c 'echo one; echo two'",
                 0, "[0] one\n[0] two\n", "cannot write its log file: No space left");
}

static void agents_are_for_launchers(void **state)
{
    (void)state;
    shell_expect("$EXPAR run-agent surplus </dev/null", 64, "", "by `expar run --hosts` alone");
    shell_expect("$EXPAR run-agent </dev/null", 125, "", "the order was cut short");
    shell_expect("printf 'version=0.0.0\\0\\0' | $EXPAR run-agent", 125, "", "the launcher has version 0.0.0");
    shell_expect("head -c 100000 /dev/urandom | $EXPAR run-agent", 125, "", "the order ");
    shell_expect("$EXPAR run --hosts -x -n 1 -- true", 64, "", "--hosts '-x': a host");
    shell_expect("$EXPAR run --ssh ssh -n 1 -- true", 64, "", "--ssh and --expar need --hosts");
    shell_expect("$EXPAR run --hosts a --ssh ' ' -n 1 -- true", 64, "", "--ssh ' '");
}

static void input_goes_to_rank_0(void **state)
{
    (void)state;
    struct shell_result result = shell("echo hello | $EXPAR run -n 3 -- cat");
    assert_int_equal(result.code, 0);
    assert_string_equal(result.out, "[0] hello\n");
    shell_free(&result);
}

static void streams_stay_apart(void **state)
{
    (void)state;
    struct shell_result result = shell("$EXPAR run -n 1 -- sh -c 'echo out; echo err >&2'");
    assert_string_equal(result.out, "[0] out\n");
    assert_string_equal(result.err, "[0] err\n");
    shell_free(&result);
}

static void last_line_without_end_is_written(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 1 -- printf 'one\\ntwo'", 0, "[0] one\n[0] two\n", NULL);
}

static void no_prefix_leaves_output_alone(void **state)
{
    (void)state;
    struct shell_result result = shell("$EXPAR run -n 1 --no-prefix -- printf raw");
    assert_string_equal(result.out, "raw");
    shell_free(&result);
}

/* Four ranks write 2000 lines each at once, in pieces that do not end with lines; every line arrives whole and in
 * order. */
static void lines_are_never_torn(void **state)
{
    (void)state;
    struct shell_result result =
        shell("$EXPAR run -n 4 -- sh -c 'i=0; while [ $i -lt 2000 ]; do printf \"rank $EXPAR_RANK \"; "
              "printf \"line $i\\n\"; i=$((i+1)); done'");
    int next[4] = {0}, rank, again, number, used;
    assert_int_equal(result.code, 0);
    for (const char *line = result.out; *line; line += used) {
        assert_int_equal(sscanf(line, "[%d] rank %d line %d%n", &rank, &again, &number, &used), 3);
        assert_int_equal(line[used++], '\n');
        assert_in_range(rank, 0, 3);
        assert_int_equal(rank, again);
        assert_int_equal(number, next[rank]++);
    }
    for (rank = 0; rank < 4; rank++)
        assert_int_equal(next[rank], 2000);
    shell_free(&result);
}

static void long_lines_are_split(void **state)
{
    (void)state;
    struct shell_result result = shell("$EXPAR run -n 1 -- sh -c 'head -c 200000 /dev/zero | tr \"\\0\" x'");
    size_t letters = 0;
    assert_int_equal(result.code, 0);
    for (const char *line = result.out; *line; line = strchr(line, '\n') + 1) {
        assert_memory_equal(line, "[0] ", 4);
        letters += strspn(line + 4, "x");
    }
    assert_int_equal(letters, 200000);
    shell_free(&result);
}

static void bind_gives_one_core(void **state)
{
    (void)state;
    struct shell_result result =
        shell("$EXPAR run -n 3 --bind -- awk '/Cpus_allowed_list/ {print $2}' /proc/self/status");
    assert_int_equal(result.code, 0);
    int rank, core, used, lines = 0;
    for (const char *line = result.out; *line; line += used, lines++) {
        assert_int_equal(sscanf(line, "[%d] %d%n", &rank, &core, &used), 2);
        assert_int_equal(line[used++], '\n');
    }
    assert_int_equal(lines, 3);
    shell_free(&result);
}

/* ---- exit codes -------------------------------------------------------------------------------------------------- */

static void exit_code_is_that_of_the_first_failure(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 8 -- true", 0, "", "");
    shell_expect("$EXPAR run -n 3 -- sh -c '[ $EXPAR_RANK != 1 ] || exit 3; sleep 1000'", 3, NULL,
                 "exited with code 3; ending the others");
    shell_expect("$EXPAR run -n 4 -- sh -c '[ $EXPAR_RANK != 2 ] || kill -9 $$; sleep 1000'", 137, NULL,
                 "was killed by signal 9 (Killed); ending the others");
    shell_expect("$EXPAR run -n 4 -- sh -c '[ $EXPAR_RANK != 2 ] || kill -9 $$; sleep 1000'", 137, NULL,
                 "expar run: rank 2 (pid ");
}

/* Rank 1 leaves the group. All others get an error from the barrier, and exit with 3 while rank 1 still runs. */
static void the_rank_that_made_others_fail_is_named(void **state)
{
    (void)state;
    static const char leaves[] = "$EXPAR run -n 3 %s -- sh -c 'echo $$ >$TMP/pid.$EXPAR_RANK; " GROUPS_PROGRAM
                                 " leave && [ $EXPAR_RANK = 1 ] || exit 3; for r in 0 2; do "
                                 "while kill -0 $(cat $TMP/pid.$r); do sleep 0.01; done; done 2>/dev/null; %s'";
    char command[1024];
    snprintf(command, sizeof command, leaves, "", "exit 7");
    shell_expect(command, 7, "", "expar run: rank 1 (pid ");
    snprintf(command, sizeof command, leaves, "", "kill -9 $$");
    shell_expect(command, 137, "", "was killed by signal 9 (Killed)\n");
    snprintf(command, sizeof command, leaves, "--on-death=continue", "exit 7");
    shell_expect(command, 7, "", "exited with code 3 after an error that another rank caused; the others go on");
    snprintf(command, sizeof command, leaves, "", "exit 0");
    shell_expect(command, 3, "", "exited with code 3 after an error that another rank caused\n");
    snprintf(command, sizeof command, leaves, "", "sleep 1000");
    shell_expect(command, 3, "", "exited with code 3 after an error that another rank caused; ending the others");
    snprintf(command, sizeof command, leaves, "--timeout 2", "sleep 1000");
    shell_expect(command, 3, "", "exited with code 3 after an error that another rank caused; ending the others");
}

static void program_that_cannot_run(void **state)
{
    (void)state;
    struct shell_result result = shell("$EXPAR run -n 4 -- no-such-program");
    assert_int_equal(result.code, 127);
    assert_string_equal(result.err,
                        "expar run: cannot find the program 'no-such-program' in PATH; for one in this folder "
                        "write './NAME'\n");
    shell_free(&result);
    shell_expect("touch $TMP/plain; $EXPAR run -n 2 -- $TMP/plain", 126, "", "cannot execute");
    shell_expect("$EXPAR run -n 2 -- $TMP/absent", 127, "", "cannot find the program");
}

static void time_limit(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 --timeout 0.2 -- sleep 1000", 124, "", "the time limit of 0.2 s is over");
}

/* However much the ranks write, and whether or not somebody reads it. */
static void time_limit_holds_under_a_flood(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 --timeout 0.3 -- yes >/dev/null", 124, "", "the time limit of 0.3 s is over");
    shell_expect("($EXPAR run -n 2 --timeout 3 -- yes; echo $? >$TMP/flood) | while [ ! -s $TMP/flood ]; do "
                 "sleep 0.02; done; cat $TMP/flood",
                 0, "124\n", "nobody reads the output");
}

static void signals_are_heard_under_a_flood(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 1 -- sh -c 'echo >$TMP/began; exec yes' >/dev/null & "
                 "while [ ! -s $TMP/began ]; do sleep 0.01; done; kill -TERM $!; wait $!; echo $?",
                 0, "143\n", "got signal 15");
}

/* The ranks have ended when the reader begins. */
static void slow_readers_get_all(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 -- sh -c 'seq 1500; echo end; echo >$TMP/wrote.$EXPAR_RANK' | "
                 "(while [ ! -s $TMP/wrote.0 ] || [ ! -s $TMP/wrote.1 ]; do sleep 0.01; done; wc -l)",
                 0, "3002\n", "");
}

static void others_may_go_on(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 3 --on-death=continue -- sh -c '[ $EXPAR_RANK != 0 ] || exit 5; "
                 "while [ ! -e $TMP/go ]; do sleep 0.01; [ $EXPAR_RANK = 2 ] && touch $TMP/go; done; echo survived'",
                 5, "[1] survived\n", "rank 0 (pid ");
    shell_expect("$EXPAR run -n 3 --on-death=continue -- sh -c 'exit 6' 2>&1 | grep -c 'exited with code 6'", 0, "3\n",
                 "");
}

/* ---- nothing is left --------------------------------------------------------------------------------------------- */

static void expect_gone(const char *name, int count)
{
    pid_t pids[16];
    shell_read_pids(name, pids, count);
    for (int i = 0; i < count; i++)
        shell_assert_gone(pids[i]);
}

static void deaf_ranks_are_killed(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 3 -- sh -c 'trap \"\" TERM; echo $$ >> $TMP/deaf; "
                 "if [ $EXPAR_RANK = 0 ]; then while [ $(wc -l < $TMP/deaf) -lt 3 ]; do sleep 0.01; done; exit 9; fi; "
                 "while :; do sleep 0.1; done'",
                 9, NULL, "exited with code 9");
    expect_gone("deaf", 3);
}

static void children_of_ranks_end_too(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 -- sh -c 'sleep 1000 & echo $! >> $TMP/grandchildren'", 0, NULL, NULL);
    expect_gone("grandchildren", 2);
}

static void stopped_ranks_are_killed(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 -- sh -c 'echo $$ >> $TMP/stopped; [ $EXPAR_RANK = 0 ] && kill -STOP $$; "
                 "while [ $(wc -l < $TMP/stopped) -lt 2 ]; do sleep 0.01; done; exit 4'",
                 4, NULL, NULL);
    expect_gone("stopped", 2);
}

/* Sends a signal to a launcher whose ranks are up. Returns its exit code. */
static int signal_launcher(const char *name, int signal_number)
{
    char command[512];
    pid_t pids[3];
    snprintf(command, sizeof command,
             "exec $EXPAR run -n 3 -- sh -c 'echo $$ >> $TMP/%s; while :; do sleep 0.1; done' 2>$TMP/%s.err", name,
             name);
    pid_t launcher = shell_start(command);
    shell_read_pids(name, pids, 3);
    kill(launcher, signal_number);
    int code = shell_finish(launcher);
    expect_gone(name, 3);
    return code;
}

static void launcher_passes_signals_on(void **state)
{
    (void)state;
    assert_int_equal(signal_launcher("terminated", SIGTERM), 128 + SIGTERM);
    assert_int_equal(signal_launcher("interrupted", SIGINT), 128 + SIGINT);
    shell_expect("cat $TMP/interrupted.err", 0, "got signal 2 (Interrupt); ending the ranks", NULL);
}

static void ranks_die_with_their_launcher(void **state)
{
    (void)state;
    assert_int_equal(signal_launcher("orphaned", SIGKILL), 128 + SIGKILL);
}

static void closed_output_ends_the_job(void **state)
{
    (void)state;
    shell_expect("{ $EXPAR run -n 2 -- sh -c 'echo $$ >> $TMP/piped; while [ $(wc -l < $TMP/piped) -lt 2 ]; do sleep "
                 "0.01; done; while :; do echo y; done'; echo code $? >&2; } | "
                 "head -n 3",
                 0, "y\n", "code 141");
    expect_gone("piped", 2);
}

/* ---- groups and options ------------------------------------------------------------------------------------------ */

static void a_program_may_form_groups_one_after_another(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 4 -- " GROUPS_PROGRAM, 0, "[3] rank 3 of 4, twice\n", NULL);
    shell_expect("$EXPAR run -n 4 --nodes 2 -- " GROUPS_PROGRAM " nodes", 0, "[3] node 1 of 2\n", NULL);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -- true", 64, "", "-n N is missing");
    shell_expect("$EXPAR run -n 2", 64, "", "which program?");
    shell_expect("$EXPAR run -n 0 -- true", 64, "", "-n '0': a number of ranks from 1 to 1024");
    shell_expect("$EXPAR run -n 2x -- true", 64, "", "-n '2x'");
    shell_expect("$EXPAR run -n 4 --nodes 3 -- true", 64, "", "--nodes 3 does not divide -n 4");
    shell_expect("$EXPAR run -n 1 --on-death=faint -- true", 64, "", "'kill' or 'continue'");
    shell_expect("$EXPAR run -n 1 --timeout=-1 -- true", 64, "", "--timeout '-1'");
    shell_expect("$EXPAR run -n 1 --nonsense -- true", 64, "", "--nonsense");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_know_who_they_are),
        cmocka_unit_test(outer_environment_is_replaced),
        cmocka_unit_test(ranks_per_node_is_handed_on),
        cmocka_unit_test(variables_are_set_for_all_ranks),
        cmocka_unit_test(logs_hold_each_ranks_lines),
        cmocka_unit_test(a_full_log_is_reported),
        cmocka_unit_test(agents_are_for_launchers),
        cmocka_unit_test(input_goes_to_rank_0),
        cmocka_unit_test(streams_stay_apart),
        cmocka_unit_test(last_line_without_end_is_written),
        cmocka_unit_test(no_prefix_leaves_output_alone),
        cmocka_unit_test(lines_are_never_torn),
        cmocka_unit_test(long_lines_are_split),
        cmocka_unit_test(bind_gives_one_core),
        cmocka_unit_test(exit_code_is_that_of_the_first_failure),
        cmocka_unit_test(the_rank_that_made_others_fail_is_named),
        cmocka_unit_test(program_that_cannot_run),
        cmocka_unit_test(time_limit),
        cmocka_unit_test(time_limit_holds_under_a_flood),
        cmocka_unit_test(signals_are_heard_under_a_flood),
        cmocka_unit_test(slow_readers_get_all),
        cmocka_unit_test(others_may_go_on),
        cmocka_unit_test(deaf_ranks_are_killed),
        cmocka_unit_test(children_of_ranks_end_too),
        cmocka_unit_test(stopped_ranks_are_killed),
        cmocka_unit_test(launcher_passes_signals_on),
        cmocka_unit_test(ranks_die_with_their_launcher),
        cmocka_unit_test(closed_output_ends_the_job),
        cmocka_unit_test(a_program_may_form_groups_one_after_another),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
