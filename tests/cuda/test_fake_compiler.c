/* SPDX-License-Identifier: Apache-2.0 */
/* A source that the compiler rejects, for a GPU that fake/fake.c simulates: its log is worth reading once. */
#include "cuda/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* The output of the calls on stderr. */
static char *log_of(void (*body)(cuda_device *), cuda_device *device)
{
    static char text[1 << 16];
    int file = memfd_create("log", 0), saved = dup(STDERR_FILENO);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    body(device);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    close(file);
    close(saved);
    return text;
}

static void compile_nonsense(cuda_device *device)
{
    const cuda_source nonsense = {.name = "tests/nonsense.cu", .text = "this is no kernel\n"};
    cuda_program *program = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cuda_program_make(device, &nonsense, NULL, 0, &program), EXPAR_ERR_CUDA);
        assert_non_null(strstr(expar_last_error(), "tests/nonsense.cu: nvrtcCompileProgram"));
    }
}

static void the_compilers_log_comes_once(void **state)
{
    (void)state;
    const char *path;
    int32_t version;
    cuda_device *device = NULL;
    if (cuda_nvrtc_find(&path, &version) != EXPAR_OK) skip();
    assert_int_equal(cuda_device_open(0, &device), EXPAR_OK);
    const char *first = strstr(log_of(compile_nonsense, device), "compiling tests/nonsense.cu");
    assert_non_null(first);
    assert_non_null(strstr(first, "error"));
    assert_null(strstr(first + 1, "compiling tests/nonsense.cu"));
    cuda_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_compilers_log_comes_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
