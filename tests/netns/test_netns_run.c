/* SPDX-License-Identifier: Apache-2.0 */
/* expar run --hosts between two network namespaces: by OpenSSH's server where it can run, and by a stand-in for ssh. */
#include "netns/netns.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define HOSTS "198.18.0.1,198.18.0.2"

static char folder[] = "/tmp/expar-run-XXXXXX";

/* The output of a command, both streams, and its exit code. */
struct output {
    char text[16384];
    int code;
};

/* Runs a command line, in which $RUN is expar run, $SSH the stand-in and $TMP a folder. */
static struct output run(const char *command)
{
    struct output output = {.text = ""};
    char whole[2048];
    snprintf(whole, sizeof whole, "{ %s\n} 2>&1", command);
    FILE *pipe = popen(whole, "r");
    assert_non_null(pipe);
    const size_t used = fread(output.text, 1, sizeof output.text - 1, pipe);
    output.text[used] = 0;
    const int status = pclose(pipe);
    output.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return output;
}

static void expect(const char *command, int code, const char *part)
{
    const struct output output = run(command);
    if (output.code != code || !strstr(output.text, part))
        fail_msg("`%s` gave %d instead of %d; '%s' is expected in: %s", command, output.code, code, part, output.text);
}

/* Waits until no process has the word on its command line. */
static void expect_gone(const char *word)
{
    char command[256];
    snprintf(
        command, sizeof command,
        "i=0; while pgrep -f '^[^ ]*sleep %s$' >/dev/null; do i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done",
        word);
    expect(command, 0, "");
}

/* ---- what ranks get ---------------------------------------------------------------------------------------------- */

static void ranks_know_their_hosts(void **state)
{
    (void)state;
    const struct output output = run("$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" --env WORD='two words' -- sh -c 'echo "
                                     "$EXPAR_RANK of $EXPAR_SIZE, $EXPAR_LOCAL_RANK of $EXPAR_LOCAL_SIZE, $WORD, "
                                     "$(ip -4 -o addr show dev net0 | grep -o 198.18.0..)' | sort");
    assert_string_equal(output.text,
                        "[0] 0 of 4, 0 of 2, two words, 198.18.0.1\n[1] 1 of 4, 1 of 2, two words, 198.18.0.1\n"
                        "[2] 2 of 4, 0 of 2, two words, 198.18.0.2\n[3] 3 of 4, 1 of 2, two words, 198.18.0.2\n");
    assert_int_equal(output.code, 0);
}

static void hosts_may_have_counts(void **state)
{
    (void)state;
    expect(
        "$RUN --hosts 198.18.0.1:1,198.18.0.2:3 --ssh \"$SSH\" -- sh -c 'echo $EXPAR_RANK: $EXPAR_LOCAL_SIZE' | sort",
        0, "[0] 0: 1\n[1] 1: 3\n[2] 2: 3\n[3] 3: 3\n");
}

static void ranks_form_a_group(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- " GROUPS_PROGRAM " nodes | sort", 0, "[3] node 1 of 2\n");
}

/* The meeting place lies on the way to the hosts, though nobody names an interface. */
static void the_interface_need_not_be_named(void **state)
{
    (void)state;
    expect("unset EXPAR_BOOTSTRAP_INTERFACE; $RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- " GROUPS_PROGRAM
           " nodes | sort",
           0, "[3] node 1 of 2\n");
}

static void hosts_without_addresses_are_named(void **state)
{
    (void)state;
    expect("unset EXPAR_BOOTSTRAP_INTERFACE; $RUN --hosts nowhere.invalid -n 1 --ssh \"$SSH\" -- true", 125,
           "EXPAR_BOOTSTRAP_INTERFACE must name");
}

static void the_secret_is_on_no_command_line(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 2 --ssh \"$SSH\" -- sh -c 'echo rank; for f in /proc/[0-9]*/cmdline; do "
           "case $(tr \"\\0\" \" \" <$f 2>/dev/null) in *$EXPAR_UNIQUE_ID*) echo LEAK $f;; esac; done' | sort -u | tr "
           "'\\n' ' '",
           0, "[0] rank [1] rank ");
}

static void input_is_empty(void **state)
{
    (void)state;
    expect("echo text | $RUN --hosts " HOSTS " -n 2 --ssh \"$SSH\" -- sh -c 'cat; echo end' | sort", 0,
           "[0] end\n[1] end\n");
}

static void logs_are_written(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS
           " -n 2 --ssh \"$SSH\" --log-dir $TMP/logs -- sh -c 'echo out $EXPAR_RANK; echo err >&2'",
           0, "out 1");
    expect("cat $TMP/logs/rank-0001.log | sort; ls $TMP/logs", 0, "err\nout 1\nrank-0000.log\nrank-0001.log\n");
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void a_failed_rank_is_named_with_its_host(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- sh -c 'test $EXPAR_RANK != 3 || exit 9; exec sleep 7001'", 9,
           "expar run: host 198.18.0.2: rank 3 (pid ");
    expect_gone("7001");
}

/* Rank 0 exits at once, because rank 3 fails. Rank 3 exits a second later, and is the first that failed. */
static void the_first_failure_counts_across_hosts(void **state)
{
    (void)state;
    const struct output output =
        run("$RUN --hosts " HOSTS " -n 2 --ssh \"$SSH\" -- sh -c 'if test $EXPAR_RANK = 0; then "
            "printf \"\\001\" | dd of=$EXPAR_JOB_FLAGS bs=1 conv=notrunc 2>/dev/null; exit 5; "
            "fi; sleep 1; exit 6'");
    if (output.code != 6 || !strstr(output.text, "host 198.18.0.2: rank 1"))
        fail_msg("%d: %s", output.code, output.text);
}

static void a_host_that_cannot_be_reached_is_named(void **state)
{
    (void)state;
    expect("$RUN --hosts 198.18.0.1,198.18.9.9 -n 2 --ssh \"$SSH\" -- sleep 7002", 255,
           "host 198.18.9.9: ssh ended with code 255");
    expect_gone("7002");
}

static void a_missing_program_is_named(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 2 --ssh \"$SSH\" -- ./nowhere", 127, "cannot find the program './nowhere'");
    expect("$RUN --hosts " HOSTS " -n 2 --ssh $TMP/no-ssh -- true", 125, "no-ssh': No such file");
    expect("$RUN --hosts " HOSTS " -n 2 --ssh \"$SSH\" --expar $TMP/no-expar -- true", 127, "no-expar");
}

static void signals_end_all_ranks(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- sleep 7003 & sleep 1; kill -INT $!; wait $!", 130,
           "got signal 2");
    expect_gone("7003");
}

/* Ranks that ignore SIGTERM are killed. */
static void stubborn_ranks_are_killed(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 2 --timeout 1 --ssh \"$SSH\" -- sh -c 'trap \"\" TERM; sleep 7004; sleep 7004'",
           124, "the time limit of 1 s is over");
    expect_gone("7004");
}

static void ranks_end_with_a_killed_launcher(void **state)
{
    (void)state;
    expect("$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- sleep 7005 & sleep 1; kill -KILL $!; wait $!", 137, "");
    expect_gone("7005");
}

/* ---- OpenSSH ----------------------------------------------------------------------------------------------------- */

/* Starts a server on a host, with keys of its own. False if there is none, or it does not start. */
static bool server_start(const netns *net, int host)
{
    return netns_command(
        net, host,
        "cd %s && S=$(command -v sshd || echo /usr/sbin/sshd) && test -x $S && mkdir -p /run/sshd && "
        "{ test -f host || ssh-keygen -q -t ed25519 -N '' -f host; } && "
        "{ test -f user || ssh-keygen -q -t ed25519 -N '' -f user; } && "
        "$S -o ListenAddress=198.18.0.%d -p 2222 -h %s/host -f /dev/null -o UsePAM=no -o StrictModes=no "
        "-o PermitRootLogin=yes -o AuthorizedKeysFile=%s/user.pub -o PidFile=%s/pid%d",
        folder, host + 1, folder, folder, folder, host);
}

static void openssh_starts_and_ends_ranks(void **state)
{
    bool started = true;
    for (int host = 0; host < 2; host++)
        started = started && server_start(*state, host);
    if (!started) {
        fprintf(stderr, "no server of OpenSSH can run here: this test needs root and openssh-server\n");
        assert_false(getenv("EXPAR_REQUIRE_NETNS") && geteuid() == 0);
        skip();
    }
    setenv("SSH",
           "ssh -T -p 2222 -i user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
           "-o LogLevel=ERROR",
           1);
    const char *const enter = "cd $TMP; chmod 700 user*; ";
    char command[1024];
    snprintf(command, sizeof command, "%s$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- " GROUPS_PROGRAM " nodes | sort",
             enter);
    expect(command, 0, "[3] node 1 of 2\n");
    snprintf(command, sizeof command,
             "%s$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- sh -c 'test $EXPAR_RANK != 2 || exit 9; exec sleep 7006'",
             enter);
    expect(command, 9, "host 198.18.0.2: rank 2 (pid ");
    expect_gone("7006");
    snprintf(command, sizeof command,
             "%s$RUN --hosts " HOSTS " -n 4 --ssh \"$SSH\" -- sleep 7007 & sleep 2; kill -KILL $!; wait $!", enter);
    expect(command, 137, "");
    expect_gone("7007");
    expect("kill $(cat $TMP/pid0) $(cat $TMP/pid1)", 0, "");
}

static int make(void **state)
{
    static netns net;
    *state = &net;
    if (!mkdtemp(folder) || !netns_make(&net)) return -1;
    setenv("TMP", folder, 1);
    setenv("RUN", EXPAR_PROGRAM " run", 1);
    setenv("SSH", SSH_STAND_IN, 1);
    return 0;
}

static int drop(void **state)
{
    netns_drop(*state);
    return system("rm -r \"$TMP\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_know_their_hosts),
        cmocka_unit_test(hosts_may_have_counts),
        cmocka_unit_test(ranks_form_a_group),
        cmocka_unit_test(the_interface_need_not_be_named),
        cmocka_unit_test(hosts_without_addresses_are_named),
        cmocka_unit_test(the_secret_is_on_no_command_line),
        cmocka_unit_test(input_is_empty),
        cmocka_unit_test(logs_are_written),
        cmocka_unit_test(a_failed_rank_is_named_with_its_host),
        cmocka_unit_test(the_first_failure_counts_across_hosts),
        cmocka_unit_test(a_host_that_cannot_be_reached_is_named),
        cmocka_unit_test(a_missing_program_is_named),
        cmocka_unit_test(signals_end_all_ranks),
        cmocka_unit_test(stubborn_ranks_are_killed),
        cmocka_unit_test(ranks_end_with_a_killed_launcher),
        cmocka_unit_test(openssh_starts_and_ends_ranks),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    return cmocka_run_group_tests(tests, make, drop);
}
