/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a run-time compiler if one is newer than the driver, which then would not load its output. On a
 * simulated driver (fake/fake.c), with simulated compilers (fake/nvrtc.c): NVRTC 13 where the loader looks, NVRTC 12 in
 * a toolkit. The search is made once in a process; the argument names the scene. */
#include "cuda/find_controls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const cuda_source plain = {.name = "tests/plain.cu", .text = "plain"};
static const cuda_source ready = {.name = "tests/ready.cu", .text = "ready", .cubin = "code"};

static cuda_device *gpu;

static int open_gpu(void **state)
{
    (void)state;
    return cuda_device_open(0, &gpu) != EXPAR_OK;
}

static int close_gpu(void **state)
{
    (void)state;
    cuda_device_close(gpu);
    return 0;
}

/* Skips the test where this machine has a compiler of its own that serves. */
static expar_status find_compiler(int32_t *version)
{
    const char *path = "";
    expar_status status = cuda_nvrtc_find(&path, version);
    if (status == EXPAR_OK && !strstr(path, "/fake_")) {
        print_message("the library found %s\n", path);
        skip();
    }
    return status;
}

static void make(const cuda_source *source, bool generic)
{
    cuda_program *program = NULL;
    assert_int_equal(cuda_program_make(gpu, source, NULL, 0, &program), EXPAR_OK);
    assert_int_equal(cuda_program_is_generic(program), generic);
    cuda_program_release(program);
}

static void the_newest_that_the_driver_takes(void **state)
{
    (void)state;
    int32_t version = 0;
    assert_int_equal(find_compiler(&version), EXPAR_OK);
    assert_int_equal(version / 1000, 13);
    make(&plain, false);
}

/* It comes after a newer one. */
static void the_one_that_fits_the_driver(void **state)
{
    (void)state;
    int32_t version = 0;
    assert_int_equal(find_compiler(&version), EXPAR_OK);
    assert_int_equal(version / 1000, 12);
    make(&ready, false);
}

static void assert_says_what_is_expected(void)
{
    static const char *const words[] = {"NVRTC 13.", " was found at /", "libnvrtc.so", "the driver is 12.4",
                                        "expected NVRTC 12 (or a newer driver)"};
    for (size_t i = 0; i < ARRAY_LENGTH(words); i++)
        if (!strstr(expar_last_error(), words[i])) fail_msg("no '%s' in: %s", words[i], expar_last_error());
}

/* Ready code serves, and else the error says why nothing compiles. */
static void none_but_a_newer_one(void **state)
{
    (void)state;
    int32_t version = 0;
    cuda_program *program = NULL;
    assert_int_equal(find_compiler(&version), EXPAR_ERR_UNSUPPORTED);
    assert_says_what_is_expected();
    assert_int_equal(cuda_program_make(gpu, &plain, NULL, 0, &program), EXPAR_ERR_UNSUPPORTED);
    assert_says_what_is_expected();
    make(&ready, true);
}

/* The user's word counts; the driver that does not load the code is explained. */
static void the_one_that_is_named(void **state)
{
    (void)state;
    int32_t version = 0;
    cuda_program *program = NULL;
    fake_controls *controls = controls_find();
    assert_non_null(controls);
    assert_int_equal(find_compiler(&version), EXPAR_OK);
    assert_int_equal(version / 1000, 13);
    atomic_store(&controls->rejections, 1);
    assert_int_equal(cuda_program_make(gpu, &ready, NULL, 0, &program), EXPAR_ERR_CUDA);
    assert_says_what_is_expected();
    assert_non_null(strstr(expar_last_error(), "tests/ready.cu: cuModuleLoadData"));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        struct CMUnitTest test;
    } scenes[] = {
        {"newest", cmocka_unit_test_setup_teardown(the_newest_that_the_driver_takes, open_gpu, close_gpu)},
        {"fitting", cmocka_unit_test_setup_teardown(the_one_that_fits_the_driver, open_gpu, close_gpu)},
        {"newer", cmocka_unit_test_setup_teardown(none_but_a_newer_one, open_gpu, close_gpu)},
        {"named", cmocka_unit_test_setup_teardown(the_one_that_is_named, open_gpu, close_gpu)},
    };
    for (size_t i = 0; argc > 1 && i < ARRAY_LENGTH(scenes); i++)
        if (strcmp(argv[1], scenes[i].name) == 0) {
            const struct CMUnitTest tests[] = {scenes[i].test};
            return cmocka_run_group_tests(tests, NULL, NULL);
        }
    printf("expected a scene\n");
    return EXIT_FAILURE;
}
