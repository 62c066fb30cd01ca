/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with a GPU but without NVRTC: the kernels that the build made ready serve, or it is said
 * what is missing. */
#include "cuda/gpus.h"
#include "cuda/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cuda_device *device;

static const cuda_source *some_kernel(void)
{
    for (size_t i = 0; i < cuda_num_sources; i++)
        if (strstr(cuda_sources[i].name, ".cu")) return &cuda_sources[i];
    return NULL;
}

static bool has_ready_kernel(void)
{
    const cuda_source *source = some_kernel();
    return source && source->cubin && device->major == CUDA_READY_ARCH / 10;
}

static void ready_kernels_serve(void **state)
{
    (void)state;
    const cuda_source *source = some_kernel();
    cuda_program *program = NULL, *same = NULL;
    assert_non_null(source);
    if (!has_ready_kernel()) skip();
    if (cuda_program_make(device, source, &(cuda_macro){"ANY", 1}, 1, &program) != EXPAR_OK)
        fail_msg("%s", expar_last_error());
    assert_true(cuda_program_is_generic(program));
    /* Macros mean nothing to it, so there is only one. */
    assert_int_equal(cuda_program_make(device, source, &(cuda_macro){"ANY", 2}, 1, &same), EXPAR_OK);
    assert_ptr_equal(program, same);
    cuda_program_release(same);
    cuda_program_release(program);
}

static void without_ready_kernels_it_says_what_to_install(void **state)
{
    (void)state;
    const cuda_source none = {.name = "tests/none.cu", .text = "extern \"C\" __global__ void none() {}\n"};
    cuda_program *program = NULL;
    assert_int_equal(cuda_program_make(device, &none, NULL, 0, &program), EXPAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(expar_last_error(), "no kernels for GPU 0"));
    assert_non_null(strstr(expar_last_error(), "EXPAR_NVRTC"));
    assert_null(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ready_kernels_serve),
        cmocka_unit_test(without_ready_kernels_it_says_what_to_install),
    };
    setenv("EXPAR_NVRTC", "/nowhere", 1);
    if (gpus_count(1) < 1) return GPUS_SKIP;
    if (cuda_device_open(0, &device) != EXPAR_OK) {
        printf("%s\n", expar_last_error());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    const bool served = has_ready_kernel();
    cuda_device_close(device);
    if (failed || served) return failed;
    printf("SKIPPED: this build has no ready kernels for GPU 0\n");
    return GPUS_SKIP;
}
