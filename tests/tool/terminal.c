/* SPDX-License-Identifier: Apache-2.0 */
/* Output on a pseudo-terminal, or through a pipe. */
#include "terminal.h"
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST_BYTES (1 << 18)

struct reader {
    int source;
    char *text;
};

/* Beside the printing, which would wait once the kernel's buffer is full. A pseudo-terminal whose other end is closed
   gives an error, a pipe nothing. */
static void *read_all(void *argument)
{
    struct reader *reader = argument;
    size_t bytes = 0;
    ssize_t count;
    while ((count = read(reader->source, reader->text + bytes, MOST_BYTES - 1 - bytes)) > 0)
        bytes += (size_t)count;
    return NULL;
}

/* Prints to ends[1], and reads ends[0]. */
static char *capture(int ends[2], void (*print)(void *argument), void *argument)
{
    pthread_t thread;
    struct reader reader = {.source = ends[0], .text = calloc(MOST_BYTES, 1)};
    assert_non_null(reader.text);
    assert_int_equal(pthread_create(&thread, NULL, read_all, &reader), 0);
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    assert_true(kept >= 0 && dup2(ends[1], STDOUT_FILENO) >= 0);
    close(ends[1]);
    print(argument);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    pthread_join(thread, NULL);
    close(ends[0]);
    return reader.text;
}

char *terminal_capture(bool terminal, void (*print)(void *argument), void *argument)
{
    int ends[2];
    assert_int_equal(terminal ? openpty(&ends[0], &ends[1], NULL, NULL, NULL) : pipe(ends), 0);
    return capture(ends, print, argument);
}

char *terminal_capture_wide(int columns, void (*print)(void *argument), void *argument)
{
    int ends[2];
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    assert_int_equal(openpty(&ends[0], &ends[1], NULL, NULL, &size), 0);
    return capture(ends, print, argument);
}
