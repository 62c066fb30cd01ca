/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C, and SIGTERM, while the tool's ranks communicate: they end by themselves, and nothing is left behind. */
#include "shell.h"
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#define MOST_RANKS 3
#define DEADLINE_S 60

/* ---- what is seen of a process ----------------------------------------------------------------------------------- */

/* The rest of the line that begins so in /proc/PID/NAME; false: there is none. */
static bool proc_line(pid_t pid, const char *name, const char *begin, char *text, int bytes)
{
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(text, bytes, file))
        found = strncmp(text, begin, strlen(begin)) == 0;
    if (file) fclose(file);
    if (found) memmove(text, text + strlen(begin), strlen(text + strlen(begin)) + 1);
    return found;
}

/* It has handlers of its own for both signals. */
static bool listens(pid_t pid)
{
    char text[256];
    unsigned long long caught = 0, both = 1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1);
    return proc_line(pid, "status", "SigCgt:", text, sizeof text) && sscanf(text, "%llx", &caught) == 1 &&
           (caught & both) == both;
}

/* It has mapped the heaps of so many ranks. */
static bool has_joined(pid_t pid, int ranks)
{
    char path[64], text[512];
    int heaps = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(text, sizeof text, file))
        heaps += strstr(text, "memfd:expar") != NULL;
    if (file) fclose(file);
    return heaps >= ranks;
}

static int find_children(pid_t pid, pid_t *children, int most)
{
    char name[64], text[256] = "";
    int count = 0, used = 0, length, number;
    snprintf(name, sizeof name, "task/%d/children", (int)pid);
    if (!proc_line(pid, name, "", text, sizeof text)) return 0;
    while (count < most && sscanf(text + used, "%d%n", &number, &length) == 1) {
        children[count++] = number;
        used += length;
    }
    return count;
}

static bool all_have_joined(const pid_t *ranks, int count, int of)
{
    for (int i = 0; i < count; i++)
        if (!listens(ranks[i]) || !has_joined(ranks[i], of)) return false;
    return count == of;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Files of this library where all of the machine's processes can have shared memory. */
static int count_shared_files(void)
{
    int count = 0;
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *one; folder && (one = readdir(folder));)
        count += strstr(one->d_name, "expar") != NULL;
    if (folder) closedir(folder);
    return count;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* Far longer than any test. */
#define BENCH "bench dispatch combine -n 3 --tokens 1024 --hidden 2048 --iters 50000 --warmup 0"

/* Bytes of $TMP/NAME. */
static long file_bytes(const char *name)
{
    char path[512];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", getenv("TMP"), name);
    return stat(path, &facts) == 0 ? (long)facts.st_size : 0;
}

/* Once so many ranks have joined and, where `output` names a file of $TMP, that has something in it. */
static void stop_job(const char *command, int of, const char *output, int signal_number)
{
    pid_t ranks[MOST_RANKS];
    int count = 0;
    const int files = count_shared_files();
    pid_t launcher = shell_start(command);
    for (time_t start = time(NULL); !all_have_joined(ranks, count, of) && time(NULL) < start + DEADLINE_S; nap())
        count = find_children(launcher, ranks, MOST_RANKS);
    assert_true(all_have_joined(ranks, count, of));
    for (time_t start = time(NULL); output && file_bytes(output) == 0 && time(NULL) < start + DEADLINE_S; nap()) {
    }
    assert_true(!output || file_bytes(output) > 0);
    kill(launcher, signal_number);
    assert_int_equal(shell_finish(launcher), 128 + signal_number);
    for (int i = 0; i < count; i++)
        shell_assert_gone(ranks[i]);
    assert_int_equal(count_shared_files(), files);
}

static void a_benchmark_ends(void **state)
{
    (void)state;
    stop_job("exec $EXPAR " BENCH " 2>$TMP/bench.err", 3, NULL, SIGINT);
    shell_expect("cat $TMP/bench.err", 0, "got signal 2 (Interrupt); ending the ranks", NULL);
    stop_job("exec $EXPAR " BENCH " 2>$TMP/bench.err", 3, NULL, SIGTERM);
    stop_job("exec $EXPAR bench rma -n 3 --ops barrier --iters 50000 2>$TMP/rma.err", 3, NULL, SIGINT);
}

/* Text has begun to come, so all are in decode passes, hundreds of them yet, with rows for each other in all. */
static void a_demo_ends_while_it_decodes(void **state)
{
    static const char *const modes[] = {"low-latency", "normal"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char command[512];
        snprintf(
            command, sizeof command,
            "rm -f $TMP/demo.out; exec $EXPAR demo -n 2 --bytes 500 --decode %s $(printf ' --prompt %%d' $(seq 64)) "
            ">$TMP/demo.out 2>$TMP/demo.err",
            modes[i]);
        stop_job(command, 2, "demo.out", i == 0 ? SIGINT : SIGTERM);
        shell_expect("cat $TMP/demo.out", 0, modes[i], NULL);
        shell_expect("grep -c 'equals' $TMP/demo.out", 1, "0", NULL);
        shell_expect("cat $TMP/demo.err", 0, "ending the ranks", NULL);
    }
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

/* One that waits for another, which nobody has started. Not killed: it returns, with the code of who was. It meets at a
   port that no connection is given by itself: such a one is taken for a minute after its end. */
static void stop_rank(const char *command, int signal_number)
{
    int status = 0;
    pid_t rank = shell_start(command);
    for (time_t start = time(NULL); !listens(rank) && time(NULL) < start + DEADLINE_S; nap()) {
    }
    assert_true(listens(rank));
    kill(rank, signal_number);
    assert_int_equal(waitpid(rank, &status, 0), rank);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + signal_number);
}

static void a_rank_ends_by_itself(void **state)
{
    (void)state;
    stop_rank("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=17391 EXPAR_BOOTSTRAP_SECRET=stop exec $EXPAR "
              "bench dispatch 2>$TMP/err",
              SIGINT);
    stop_rank("RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=17391 EXPAR_BOOTSTRAP_SECRET=stop exec $EXPAR "
              "bench rma 2>$TMP/err",
              SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_benchmark_ends),
        cmocka_unit_test(a_demo_ends_while_it_decodes),
        cmocka_unit_test(a_rank_ends_by_itself),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
