/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU: its facts, kernels from source to launch, where addresses point, and errors that leave it usable. */
#include "cuda/gpus.h"
#include "cuda/parts.h"
#include "mem/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cuda_device *device;

static const cuda_source fill = {.name = "tests/fill.cu",
                                 .text = "extern \"C\" __global__ void fill(unsigned long long *out)\n"
                                         "{\n"
                                         "    extern __shared__ unsigned long long words[];\n"
                                         "    words[threadIdx.x] = FIRST + threadIdx.x;\n"
                                         "    __syncthreads();\n"
                                         "    unsigned int i = blockDim.x * blockIdx.x + threadIdx.x;\n"
                                         "    out[i] = words[blockDim.x - 1 - threadIdx.x];\n"
                                         "}\n"};
static const cuda_source bad = {.name = "tests/bad.cu", .text = "this is no program\n"};

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        expar_status status_of_call = (call);                                                                          \
        if (status_of_call != EXPAR_OK) fail_msg("%s: %s", #call, expar_last_error());                                 \
    } while (0)

static void facts_are_plausible(void **state)
{
    (void)state;
    assert_true(strlen(device->name) > 0);
    assert_true(device->major >= 7 && device->num_sms > 0 && device->shared_bytes >= 48 << 10);
    assert_true(device->memory_bytes > 1 << 30);
    assert_int_equal(cuda_device_find(&device->uuid), 0);
    assert_int_equal(cuda_device_find(&(cu_uuid){.bytes = {1}}), -1);
}

static void a_gpu_that_is_not_there_is_rejected(void **state)
{
    (void)state;
    cuda_device *other = NULL;
    assert_int_equal(cuda_device_open(1000, &other), EXPAR_ERR_RANGE);
    assert_non_null(strstr(expar_last_error(), "GPU 1000"));
    assert_int_equal(cuda_device_open(-1, &other), EXPAR_ERR_RANGE);
    assert_null(other);
}

static void a_gpu_reaches_itself(void **state)
{
    (void)state;
    cuda_link link = {0};
    ASSERT_OK(cuda_link_between(0, 0, &link));
    assert_true(link.access && link.atomics);
}

static void addresses_are_told_apart(void **state)
{
    (void)state;
    int here = 0;
    mem_pinned pinned;
    cu_address memory;
    ASSERT_OK(cuda_enter(device));
    ASSERT_OK(mem_pinned_create(4096, &pinned));
    ASSERT_OK(CUDA_CALL(MemAlloc, &memory, 4096));
    assert_int_equal(cuda_place_of(&here).kind, CUDA_PLACE_HOST);
    assert_int_equal(cuda_place_of(pinned.host).kind, CUDA_PLACE_HOST);
    cuda_place place = cuda_place_of((void *)(uintptr_t)memory);
    assert_int_equal(place.kind, CUDA_PLACE_DEVICE);
    assert_int_equal(place.device, 0);
    CUDA_CALL(MemFree, memory);
    mem_pinned_free(&pinned);
    cuda_leave();
}

/* Runs `fill` on two blocks and compares what it wrote. */
static void run_fill(cu_function kernel, int64_t first, bool cooperative)
{
    enum { THREADS = 64, BLOCKS = 2 };
    mem_pinned out;
    ASSERT_OK(cuda_enter(device));
    ASSERT_OK(mem_pinned_create(BLOCKS * THREADS * sizeof(uint64_t), &out));
    cuda_launch launch = {.function = kernel,
                          .blocks = BLOCKS,
                          .threads = THREADS,
                          .shared_bytes = THREADS * sizeof(uint64_t),
                          .cooperative = cooperative};
    ASSERT_OK(cuda_launch_kernel(&launch, (void *[]){&out.device}));
    ASSERT_OK(cuda_synchronize());
    const uint64_t *words = out.host;
    for (int i = 0; i < BLOCKS * THREADS; i++)
        assert_int_equal(words[i], first + THREADS - 1 - i % THREADS);
    mem_pinned_free(&out);
    cuda_leave();
}

static void a_kernel_runs(void **state)
{
    (void)state;
    cuda_program *program;
    cu_function kernel;
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 1000}, 1, &program));
    assert_false(cuda_program_is_generic(program));
    ASSERT_OK(cuda_program_kernel(program, "fill", device->shared_bytes, &kernel));
    run_fill(kernel, 1000, false);
    run_fill(kernel, 1000, true);
    assert_int_equal(cuda_program_kernel(program, "nothing", 0, &kernel), EXPAR_ERR_CUDA);
    assert_non_null(strstr(expar_last_error(), "nothing"));
    cuda_program_release(program);
}

static void a_program_is_loaded_once(void **state)
{
    (void)state;
    cuda_program *one, *same, *other;
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 1}, 1, &one));
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 1}, 1, &same));
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 2}, 1, &other));
    assert_ptr_equal(one, same);
    assert_ptr_not_equal(one, other);
    cuda_program_release(one);
    cu_function kernel;
    ASSERT_OK(cuda_program_kernel(same, "fill", 0, &kernel));
    run_fill(kernel, 1, false);
    cuda_program_release(same);
    cuda_program_release(other);
}

/* The second load in this process comes from the disk: its content is replaced by that of another program first. */
static void a_program_comes_from_the_disk(void **state)
{
    (void)state;
    cuda_program *program;
    cuda_options options;
    cuda_key key;
    const char *path;
    int32_t version;
    void *data;
    size_t bytes;
    cu_function kernel;
    ASSERT_OK(cuda_nvrtc_find(&path, &version));
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 5}, 1, &program));
    cuda_program_release(program);
    ASSERT_OK(cuda_options_make(device->major * 10 + device->minor, &(cuda_macro){"FIRST", 5}, 1, &options));
    ASSERT_OK(cuda_key_make(&fill, &options, version, cuda_driver_version(), &key));
    cuda_options_free(&options);
    assert_true(cuda_cache_load(&key, &data, &bytes));
    free(data);
    ASSERT_OK(cuda_options_make(device->major * 10 + device->minor, &(cuda_macro){"FIRST", 6}, 1, &options));
    ASSERT_OK(cuda_source_compile(&fill, &options, &data, &bytes, NULL));
    cuda_options_free(&options);
    cuda_cache_store(&key, data, bytes);
    free(data);
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 5}, 1, &program));
    ASSERT_OK(cuda_program_kernel(program, "fill", 0, &kernel));
    run_fill(kernel, 6, false);
    cuda_program_release(program);
}

static void a_source_that_does_not_compile_is_an_error(void **state)
{
    (void)state;
    cuda_program *program = NULL;
    assert_int_equal(cuda_program_make(device, &bad, NULL, 0, &program), EXPAR_ERR_CUDA);
    assert_non_null(strstr(expar_last_error(), "tests/bad.cu"));
    assert_null(program);
}

static void too_much_memory_says_what_is_free(void **state)
{
    (void)state;
    mem_chunk chunk = {0};
    uint64_t unit;
    ASSERT_OK(mem_chunk_granularity(device, &unit));
    assert_int_equal(mem_chunk_create(device, align_up(2 * device->memory_bytes, unit), &chunk), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "MiB are free"));
    assert_int_equal(chunk.bytes, 0);
}

static void a_launch_that_does_not_fit_leaves_the_gpu_usable(void **state)
{
    (void)state;
    cuda_program *program;
    cu_function kernel;
    ASSERT_OK(cuda_program_make(device, &fill, &(cuda_macro){"FIRST", 3}, 1, &program));
    ASSERT_OK(cuda_program_kernel(program, "fill", 0, &kernel));
    ASSERT_OK(cuda_enter(device));
    cu_address nowhere = 0;
    cuda_launch launch = {.function = kernel, .blocks = 1, .threads = 1 << 20};
    assert_int_equal(cuda_launch_kernel(&launch, (void *[]){&nowhere}), EXPAR_ERR_CUDA);
    assert_non_null(strstr(expar_last_error(), "cuLaunchKernelEx: CUDA_ERROR_"));
    cuda_leave();
    run_fill(kernel, 3, false);
    cuda_program_release(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_are_plausible),
        cmocka_unit_test(a_gpu_that_is_not_there_is_rejected),
        cmocka_unit_test(a_gpu_reaches_itself),
        cmocka_unit_test(addresses_are_told_apart),
        cmocka_unit_test(a_kernel_runs),
        cmocka_unit_test(a_program_is_loaded_once),
        cmocka_unit_test(a_program_comes_from_the_disk),
        cmocka_unit_test(a_source_that_does_not_compile_is_an_error),
        cmocka_unit_test(too_much_memory_says_what_is_free),
        cmocka_unit_test(a_launch_that_does_not_fit_leaves_the_gpu_usable),
    };
    char root[] = "/tmp/expar-device-XXXXXX", remove[64];
    if (gpus_count(1) < 1) return GPUS_SKIP;
    if (!mkdtemp(root)) return 1;
    setenv("XDG_CACHE_HOME", root, 1);
    if (cuda_device_open(0, &device) != EXPAR_OK) {
        printf("%s\n", expar_last_error());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda_device_close(device);
    snprintf(remove, sizeof remove, "rm -r %s", root);
    return system(remove) || failed;
}
