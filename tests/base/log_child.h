/* SPDX-License-Identifier: Apache-2.0 */
/* Work that logs, in a child of its own, since what the log reads of the environment is read once a process. */
#ifndef TESTS_BASE_LOG_CHILD_H
#define TESTS_BASE_LOG_CHILD_H

#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef void (*log_work)(void);

static inline void read_all(int fd, char *text, size_t capacity)
{
    size_t used = 0;
    ssize_t got;
    while (used < capacity - 1 && (got = read(fd, text + used, capacity - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
}

/* Runs work in a child with EXPAR_LOG set to level (NULL: unset); text gets its stderr. */
static inline void log_of_child(const char *level, log_work work, char *text, size_t capacity)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        if (level)
            setenv("EXPAR_LOG", level, 1);
        else
            unsetenv("EXPAR_LOG");
        work();
        _exit(0);
    }
    close(ends[1]);
    read_all(ends[0], text, capacity);
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static inline int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static inline void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int result = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    if (result != 0) print_error("%s", text);
    assert_int_equal(result, 0);
}

#endif
