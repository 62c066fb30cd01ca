/* SPDX-License-Identifier: Apache-2.0 */
/* Standard streams that are kept in files for a while. */
#include "capture.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

char *capture(int fd, const struct bench_options *options, int *code)
{
    FILE *file = tmpfile();
    fflush(NULL);
    int kept = dup(fd);
    assert_true(file && kept >= 0 && dup2(fileno(file), fd) >= 0);
    *code = bench_gpu_main(options);
    fflush(NULL);
    dup2(kept, fd);
    close(kept);
    fseek(file, 0, SEEK_END);
    long bytes = ftell(file);
    char *text = calloc((size_t)bytes + 1, 1);
    rewind(file);
    assert_true(text && fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    fclose(file);
    return text;
}

json_t *capture_json(const struct bench_options *options)
{
    int code;
    json_error_t error;
    char *text = capture(STDOUT_FILENO, options, &code);
    json_t *json = json_loads(text, 0, &error);
    if (code != 0 || !json) fail_msg("exit code %d: %s", code, text);
    free(text);
    return json;
}
