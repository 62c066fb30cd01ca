/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of every call asks where its address points. The driver is looked for in the file system no more than
 * once as long as no library is loaded, and found once it is. The looks are counted by way of the linker. */
#include "cuda/parts.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int looks; /* calls of dlopen */

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);

void *__wrap_dlopen(const char *path, int flags)
{
    looks++;
    return __real_dlopen(path, flags);
}

static void a_driver_that_is_not_loaded_is_looked_for_once(void **state)
{
    (void)state;
    int here = 0;
    looks = 0;
    for (int i = 0; i < 100; i++)
        assert_int_equal(cuda_place_of(&here).kind, CUDA_PLACE_HOST);
    assert_int_equal(looks, 1);
}

static void a_driver_that_is_loaded_later_is_found(void **state)
{
    (void)state;
    int here = 0;
    cu_address there = 0;
    cuda_device *device = NULL;
    assert_int_equal(cuda_device_open(0, &device), EXPAR_OK); /* opens the driver */
    assert_int_equal(cuda_enter(device), EXPAR_OK);
    assert_int_equal(CUDA_CALL(MemAlloc, &there, 64), EXPAR_OK);
    looks = 0;
    for (int i = 0; i < 100; i++) {
        cuda_place place = cuda_place_of((const void *)(uintptr_t)there);
        assert_int_equal(place.kind, CUDA_PLACE_DEVICE);
        assert_int_equal(place.device, 0);
        assert_int_equal(cuda_place_of(&here).kind, CUDA_PLACE_HOST);
    }
    assert_int_equal(looks, 1);
    assert_int_equal(CUDA_CALL(MemFree, there), EXPAR_OK);
    cuda_leave();
    cuda_device_close(device);
}

/* A rank's network device is chosen by the GPU whose context is current. */
static void the_current_gpu_has_an_address(void **state)
{
    (void)state;
    char bus_id[32] = "";
    cuda_device *device = NULL;
    assert_false(cuda_current_bus_id(bus_id));
    assert_int_equal(cuda_device_open(1, &device), EXPAR_OK);
    assert_int_equal(cuda_enter(device), EXPAR_OK);
    assert_true(cuda_current_bus_id(bus_id));
    assert_string_equal(bus_id, device->bus_id);
    assert_string_equal(bus_id, "0000:02:00.0");
    cuda_leave();
    assert_false(cuda_current_bus_id(bus_id));
    cuda_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_driver_that_is_not_loaded_is_looked_for_once),
        cmocka_unit_test(a_driver_that_is_loaded_later_is_found),
        cmocka_unit_test(the_current_gpu_has_an_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
