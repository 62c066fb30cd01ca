/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines for tests of the tool. */
#include "shell.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DEADLINE_S 60

int shell_setup(void **state)
{
    (void)state;
    char folder[] = "/tmp/expar-test-XXXXXX";
    if (!mkdtemp(folder)) return -1;
    setenv("TMP", folder, 1);
    setenv("EXPAR", EXPAR_PROGRAM, 1);
    return 0;
}

int shell_teardown(void **state)
{
    (void)state;
    return system("rm -r \"$TMP\"");
}

pid_t shell_start(const char *command)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return pid;
}

int shell_finish(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static char *read_file(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", getenv("TMP"), name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = NULL;
    size_t bytes = 0;
    if (getdelim(&text, &bytes, '\0', file) < 0) {
        free(text);
        text = strdup("");
    }
    fclose(file);
    return text;
}

struct shell_result shell(const char *command)
{
    char whole[4096];
    int length = snprintf(whole, sizeof whole, "{ %s\n} >\"$TMP/out\" 2>\"$TMP/err\"", command);
    assert_true(length > 0 && (size_t)length < sizeof whole);
    struct shell_result result = {.code = shell_finish(shell_start(whole))};
    result.out = read_file("out");
    result.err = read_file("err");
    return result;
}

void shell_free(struct shell_result *result)
{
    free(result->out);
    free(result->err);
}

static bool contains(const char *text, const char *part)
{
    return !part || strstr(text, part);
}

void shell_expect(const char *command, int code, const char *out_part, const char *err_part)
{
    struct shell_result result = shell(command);
    if (result.code != code || !contains(result.out, out_part) || !contains(result.err, err_part))
        fail_msg("`%s` gave %d instead of %d\nexpected out: %s\nexpected err: %s\nout: %s\nerr: %s", command,
                 result.code, code, out_part ? out_part : "anything", err_part ? err_part : "anything", result.out,
                 result.err);
    shell_free(&result);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static int try_read_pids(const char *name, pid_t *pids, int most)
{
    char path[256];
    int number, count = 0;
    snprintf(path, sizeof path, "%s/%s", getenv("TMP"), name);
    FILE *file = fopen(path, "r");
    while (file && count < most && fscanf(file, "%d", &number) == 1)
        pids[count++] = number;
    if (file) fclose(file);
    return count;
}

void shell_read_pids(const char *name, pid_t *pids, int most)
{
    for (time_t start = time(NULL); time(NULL) < start + DEADLINE_S; nap())
        if (try_read_pids(name, pids, most) == most) return;
    fail_msg("%s: fewer than %d process ids", name, most);
}

/* 'Z' in /proc/PID/stat: ended, and not yet reaped by the process that inherited it. */
static bool is_zombie(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return true;
    int fields = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return fields == 1 && state == 'Z';
}

void shell_assert_gone(pid_t pid)
{
    for (time_t start = time(NULL); time(NULL) < start + DEADLINE_S; nap())
        if (is_zombie(pid)) return;
    fail_msg("process %d is still there", (int)pid);
}
