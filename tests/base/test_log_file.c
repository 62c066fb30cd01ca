/* SPDX-License-Identifier: Apache-2.0 */
/* EXPAR_LOG_FILE: which files there are, what is in them, and what becomes of lines that cannot go there. */
#include "base/base.h"
#include "base/log_child.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>

static char folder[] = "/tmp/expar-log-XXXXXX";
/* Of the child, which says it by its name alone. */
static char child_pid_file[64];

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return chdir("/") == 0 ? system(command) : -1;
}

static void file_read(const char *name, char *text, size_t capacity)
{
    int fd = open(name, O_RDONLY);
    if (fd < 0) print_error("there is no %s\n", name);
    assert_true(fd >= 0);
    read_all(fd, text, capacity);
    close(fd);
}

static void assert_file_has(const char *name, int lines, const char *words)
{
    char text[4096];
    file_read(name, text, sizeof text);
    assert_int_equal(count_lines(text), lines);
    assert_non_null(strstr(text, words));
}

static void *log_as_rank_one(void *argument)
{
    log_set_rank(1);
    LOG(LOG_WARN, "of rank one");
    return argument;
}

static void log_as_several(void)
{
    pthread_t thread;
    LOG(LOG_WARN, "of nobody");
    log_set_rank(0);
    LOG(LOG_WARN, "of rank nought");
    if (pthread_create(&thread, NULL, log_as_rank_one, NULL) != 0) _exit(1);
    pthread_join(thread, NULL);
    LOG(LOG_WARN, "again");
}

static void one_file_a_rank(void **state)
{
    (void)state;
    char text[4096];
    setenv("EXPAR_LOG_FILE", "of-%r-100%%", 1);
    log_of_child(NULL, log_as_several, text, sizeof text);
    assert_string_equal(text, "");
    assert_file_has("of-none-100%", 1, "of nobody");
    assert_file_has("of-0-100%", 2, "of rank nought");
    assert_file_has("of-1-100%", 1, "of rank one");
    /* Another process adds to what is there. */
    log_of_child(NULL, log_as_several, text, sizeof text);
    assert_file_has("of-0-100%", 4, "again");
}

static void one_file_for_all(void **state)
{
    (void)state;
    char text[4096];
    setenv("EXPAR_LOG_FILE", "all", 1);
    log_of_child(NULL, log_as_several, text, sizeof text);
    assert_string_equal(text, "");
    assert_file_has("all", 4, "[rank 1] warn  ");
}

static void log_and_fork(void)
{
    LOG(LOG_WARN, "of the parent");
    pid_t child = fork();
    if (child == 0) {
        LOG(LOG_WARN, "of the child");
        _exit(0);
    }
    waitpid(child, NULL, 0);
    snprintf(child_pid_file, sizeof child_pid_file, "of-%d", (int)child);
    if (rename(child_pid_file, "child") != 0) _exit(1);
    snprintf(child_pid_file, sizeof child_pid_file, "of-%d", (int)getpid());
    if (rename(child_pid_file, "parent") != 0) _exit(1);
}

static void one_file_a_process(void **state)
{
    (void)state;
    char text[4096];
    setenv("EXPAR_LOG_FILE", "of-%p", 1);
    log_of_child(NULL, log_and_fork, text, sizeof text);
    assert_file_has("parent", 1, "of the parent");
    assert_file_has("child", 1, "of the child");
}

static void log_twice(void)
{
    LOG(LOG_WARN, "first");
    LOG(LOG_WARN, "second");
}

/* The lines are not lost, and the reason is said once. */
static void what_cannot_be_opened_is_told_once(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"no/such/folder/log", "EXPAR_LOG_FILE: cannot open no/such/folder/log: No such file or directory"},
        {"of-%d", "EXPAR_LOG_FILE=of-%d: expected a path with %r (rank), %p (process) or %%"},
        {"/dev/full", "EXPAR_LOG_FILE=/dev/full: cannot write: No space left on device"}};
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        char text[4096];
        setenv("EXPAR_LOG_FILE", cases[i][0], 1);
        log_of_child(NULL, log_twice, text, sizeof text);
        assert_int_equal(count_lines(text), 3);
        assert_non_null(strstr(text, cases[i][1]));
        assert_non_null(strstr(text, " first\n"));
        assert_non_null(strstr(text, " second\n"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_a_rank),
        cmocka_unit_test(one_file_for_all),
        cmocka_unit_test(one_file_a_process),
        cmocka_unit_test(what_cannot_be_opened_is_told_once),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
