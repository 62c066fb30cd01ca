/* SPDX-License-Identifier: Apache-2.0 */
/* EXPAR_LOG_FILE: which files there are, what is in them, and what becomes of lines that cannot go there. */
#include "base/base.h"
#include "base/log_child.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

static char folder[] = "/tmp/expar-log-XXXXXX";
/* The child's file, found by its name alone. */
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

/* ---- FIFOs ------------------------------------------------------------------------------------------------------- */

static void fifo_make(const char *name)
{
    unlink(name);
    assert_int_equal(mkfifo(name, 0600), 0);
    setenv("EXPAR_LOG_FILE", name, 1);
}

static void no_reader_no_wait(void **state)
{
    (void)state;
    char text[4096];
    fifo_make("fifo");
    log_of_child(NULL, log_twice, text, sizeof text);
    assert_int_equal(count_lines(text), 3);
    assert_non_null(strstr(text, "EXPAR_LOG_FILE: cannot open fifo: nobody reads this FIFO; lines go to stderr\n"));
    assert_non_null(strstr(text, " first\n"));
    assert_non_null(strstr(text, " second\n"));
}

/* The reader is this process itself: what it does not read stays in the FIFO. */
static int reader_open(void)
{
    int reader = open("fifo", O_RDONLY | O_NONBLOCK);
    if (reader < 0) _exit(1);
    return reader;
}

static void log_to_a_reader(void)
{
    char text[4096];
    int reader = reader_open();
    log_twice();
    read_all(reader, text, sizeof text);
    if (count_lines(text) != 2 || !strstr(text, " first\n") || !strstr(text, " second\n")) _exit(2);
}

static void a_reader_gets_the_lines(void **state)
{
    (void)state;
    char text[4096];
    fifo_make("fifo");
    log_of_child(NULL, log_to_a_reader, text, sizeof text);
    assert_string_equal(text, "");
}

/* A FIFO holds 64 KiB. */
#define MANY_LINES 2000

static int count_fifo_lines(int reader)
{
    char text[4096];
    int lines = 0;
    ssize_t got;
    while ((got = read(reader, text, sizeof text - 1)) > 0) {
        text[got] = '\0';
        lines += count_lines(text);
    }
    return lines;
}

static void log_more_than_is_read(void)
{
    int reader = reader_open();
    for (int i = 0; i < MANY_LINES; i++)
        LOG(LOG_WARN, "a line of the many that a reader who sleeps does not read");
    int in_fifo = count_fifo_lines(reader);
    if (in_fifo == 0 || in_fifo == MANY_LINES) _exit(2);
    LOG(LOG_WARN, "there is room again");
    if (count_fifo_lines(reader) != 1) _exit(3);
    dprintf(STDERR_FILENO, "in the FIFO: %d\n", in_fifo);
}

/* Each line is in one of the two places. */
static void a_slow_reader_stops_nobody(void **state)
{
    (void)state;
    static char text[MANY_LINES * 200];
    fifo_make("fifo");
    log_of_child(NULL, log_more_than_is_read, text, sizeof text);
    const char *in_fifo = strstr(text, "in the FIFO: ");
    assert_non_null(in_fifo);
    assert_int_equal(count_lines(text) - 2 + atoi(in_fifo + strlen("in the FIFO: ")), MANY_LINES);
    assert_non_null(strstr(text, "EXPAR_LOG_FILE=fifo: cannot write: its reader is too slow"));
    assert_null(strstr(text, "room again"));
}

static void log_after_the_reader(void)
{
    sigset_t pending;
    int reader = reader_open();
    signal(SIGPIPE, SIG_DFL);
    LOG(LOG_WARN, "before");
    close(reader);
    log_twice();
    sigpending(&pending);
    if (sigismember(&pending, SIGPIPE)) _exit(2);
}

/* Nor does the signal come later. */
static void a_reader_that_goes_ends_nobody(void **state)
{
    (void)state;
    char text[4096];
    fifo_make("fifo");
    log_of_child(NULL, log_after_the_reader, text, sizeof text);
    assert_int_equal(count_lines(text), 3);
    assert_non_null(strstr(text, "EXPAR_LOG_FILE=fifo: cannot write: its reader is gone, and lines go to stderr\n"));
    assert_non_null(strstr(text, " first\n"));
    assert_non_null(strstr(text, " second\n"));
}

static volatile sig_atomic_t num_signals;

static void count_signal(int number)
{
    (void)number;
    num_signals = num_signals + 1;
}

/* A SIGPIPE that the program blocks, and that was raised before, is still there. */
static void log_with_a_signal_pending(void)
{
    sigset_t pipe;
    int reader = reader_open();
    signal(SIGPIPE, count_signal);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    raise(SIGPIPE);
    LOG(LOG_WARN, "before");
    close(reader);
    log_twice();
    if (num_signals != 0) _exit(2);
    pthread_sigmask(SIG_UNBLOCK, &pipe, NULL);
    if (num_signals != 1) _exit(3);
    log_twice();
    if (num_signals != 1) _exit(4);
}

static void the_programs_own_signals_stay(void **state)
{
    (void)state;
    char text[4096];
    fifo_make("fifo");
    log_of_child(NULL, log_with_a_signal_pending, text, sizeof text);
    assert_int_equal(count_lines(text), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_a_rank),
        cmocka_unit_test(one_file_for_all),
        cmocka_unit_test(one_file_a_process),
        cmocka_unit_test(what_cannot_be_opened_is_told_once),
        cmocka_unit_test(no_reader_no_wait),
        cmocka_unit_test(a_reader_gets_the_lines),
        cmocka_unit_test(a_slow_reader_stops_nobody),
        cmocka_unit_test(a_reader_that_goes_ends_nobody),
        cmocka_unit_test(the_programs_own_signals_stay),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
