/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the tensor struct. */
#include <expar/tensor.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void views_are_contiguous_cpu_memory(void **state)
{
    (void)state;
    int32_t data[12];
    expar_tensor line = expar_tensor_1d(data, EXPAR_I32, 12);
    assert_ptr_equal(line.data, data);
    assert_int_equal(line.dtype, EXPAR_I32);
    assert_int_equal(line.ndim, 1);
    assert_int_equal(line.shape[0], 12);
    assert_int_equal(line.strides[0], 1);
    assert_int_equal(line.device.type, EXPAR_CPU);
    assert_int_equal(line.device.index, 0);

    expar_tensor table = expar_tensor_2d(data, EXPAR_F32, 3, 4);
    assert_ptr_equal(table.data, data);
    assert_int_equal(table.dtype, EXPAR_F32);
    assert_int_equal(table.ndim, 2);
    assert_int_equal(table.shape[0], 3);
    assert_int_equal(table.shape[1], 4);
    assert_int_equal(table.strides[0], 4);
    assert_int_equal(table.strides[1], 1);
    assert_int_equal(table.device.type, EXPAR_CPU);

    expar_tensor cube = expar_tensor_3d(data, EXPAR_BF16, 2, 3, 4);
    assert_ptr_equal(cube.data, data);
    assert_int_equal(cube.dtype, EXPAR_BF16);
    assert_int_equal(cube.ndim, 3);
    assert_int_equal(cube.shape[0], 2);
    assert_int_equal(cube.shape[1], 3);
    assert_int_equal(cube.shape[2], 4);
    assert_int_equal(cube.strides[0], 12);
    assert_int_equal(cube.strides[1], 4);
    assert_int_equal(cube.strides[2], 1);
    assert_int_equal(cube.device.type, EXPAR_CPU);
}

/* But for the device a view is the one of CPU memory. */
static void views_of_a_device_say_so(void **state)
{
    (void)state;
    int32_t data[24];
    const expar_device gpu = {EXPAR_CUDA, 3};
    expar_tensor views[] = {expar_tensor_1d(data, EXPAR_I32, 24), expar_tensor_2d(data, EXPAR_I32, 4, 6),
                            expar_tensor_3d(data, EXPAR_I32, 2, 3, 4)};
    const expar_tensor there[] = {expar_tensor_1d_on(gpu, data, EXPAR_I32, 24),
                                  expar_tensor_2d_on(gpu, data, EXPAR_I32, 4, 6),
                                  expar_tensor_3d_on(gpu, data, EXPAR_I32, 2, 3, 4)};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        views[i].device = gpu;
        assert_memory_equal(&views[i], &there[i], sizeof views[i]);
    }
}

static void none_is_no_data_and_no_dimensions(void **state)
{
    (void)state;
    expar_tensor none = EXPAR_TENSOR_NONE;
    assert_null(none.data);
    assert_int_equal(none.ndim, 0);
}

static void dtypes_have_bytes_and_names(void **state)
{
    (void)state;
    const struct {
        expar_dtype dtype;
        size_t bytes;
        const char *name;
    } rows[] = {{EXPAR_BF16, 2, "bf16"}, {EXPAR_F16, 2, "f16"},   {EXPAR_F32, 4, "f32"},    {EXPAR_I32, 4, "i32"},
                {EXPAR_I64, 8, "i64"},   {EXPAR_U8, 1, "u8"},     {(expar_dtype)0, 0, "?"}, {EXPAR_F8E4M3, 1, "f8e4m3"},
                {EXPAR_I8, 1, "i8"},     {(expar_dtype)9, 0, "?"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(expar_dtype_bytes(rows[i].dtype), rows[i].bytes);
        assert_string_equal(expar_dtype_string(rows[i].dtype), rows[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_are_contiguous_cpu_memory),
        cmocka_unit_test(views_of_a_device_say_so),
        cmocka_unit_test(none_is_no_data_and_no_dimensions),
        cmocka_unit_test(dtypes_have_bytes_and_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
