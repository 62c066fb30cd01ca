/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark rejects these GPUs before anything is measured, by a device that was made up. */
#include "bench/bench.h"
#include "bench/gpu/gpu.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool is_taken(int major, int hidden, expar_dtype dtype)
{
    struct bench_options options;
    cuda_device device = {.major = major, .shared_bytes = 227 * 1024};
    struct gpu_rank rank = {.device = &device};
    const struct bench_world world = {.size = 1, .gpu = &rank};
    bench_options_init(&options);
    options.hidden = hidden;
    options.dtypes[0] = dtype;
    return gpu_copy_check(&world, &options);
}

/* The kernel of the copy roofline passes rows through shared memory, on GPUs that have bulk copies. */
static void rows_must_fit_into_shared_memory(void **state)
{
    (void)state;
    assert_true(is_taken(9, 7168, EXPAR_BF16));
    assert_true(is_taken(9, 115000, EXPAR_BF16));
    assert_false(is_taken(9, 116000, EXPAR_BF16));
    assert_true(is_taken(9, 116000, EXPAR_F8E4M3));
    assert_false(is_taken(9, 1 << 20, EXPAR_F8E4M3));
    assert_true(is_taken(8, 1 << 20, EXPAR_BF16));
}

static bool are_taken(int ranks, int topk)
{
    struct bench_options options;
    cuda_device device = {.major = 9, .shared_bytes = 227 * 1024};
    struct gpu_rank rank = {.device = &device};
    const struct bench_world world = {.size = ranks, .gpu = &rank};
    bench_options_init(&options);
    options.topk = topk;
    return gpu_copy_check(&world, &options);
}

/* A row goes to as many ranks as there are, and at most to as many as it has experts. */
static void places_must_have_a_lane_each(void **state)
{
    (void)state;
    assert_true(are_taken(32, 128));
    assert_true(are_taken(64, 32));
    assert_false(are_taken(33, 33));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_must_fit_into_shared_memory),
                                       cmocka_unit_test(places_must_have_a_lane_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
