/* SPDX-License-Identifier: Apache-2.0 */
/* A machine without CUDA, or with its GPUs hidden: every way in says so, and nothing else is different. */
#include "cuda/cuda.h"
#include "mem/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void opening_says_what_is_missing(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) { /* the second call tells the same, in this thread's words */
        assert_int_equal(cuda_open(), EXPAR_ERR_UNSUPPORTED);
        assert_non_null(strstr(expar_last_error(), "CUDA is not available"));
    }
}

static void devices_cannot_be_opened(void **state)
{
    (void)state;
    cuda_device *device = NULL;
    int32_t count = -1;
    assert_int_equal(cuda_device_open(0, &device), EXPAR_ERR_UNSUPPORTED);
    assert_null(device);
    assert_int_equal(cuda_device_count(&count), EXPAR_ERR_UNSUPPORTED);
    assert_int_equal(count, -1);
    cuda_link link;
    assert_int_equal(cuda_link_between(99, 99, &link), EXPAR_ERR_UNSUPPORTED);
}

static void no_device_is_found(void **state)
{
    (void)state;
    assert_int_equal(cuda_device_find(&(cu_uuid){.bytes = {1}}), -1);
}

static void all_memory_is_the_hosts(void **state)
{
    (void)state;
    int here = 0;
    cuda_place place = cuda_place_of(&here);
    assert_int_equal(place.kind, CUDA_PLACE_HOST);
    assert_int_equal(place.device, -1);
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    cuda_device_close(NULL);
    cuda_program_release(NULL);
    mem_chunk_release(&(mem_chunk){0});
    mem_pinned_free(&(mem_pinned){0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_says_what_is_missing), cmocka_unit_test(devices_cannot_be_opened),
        cmocka_unit_test(no_device_is_found),           cmocka_unit_test(all_memory_is_the_hosts),
        cmocka_unit_test(closing_nothing_is_allowed),
    };
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* for machines that have GPUs */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
