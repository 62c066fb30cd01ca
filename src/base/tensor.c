/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the public tensor struct. */
#include <expar/tensor.h>

static const expar_device cpu = {EXPAR_CPU, 0};

expar_tensor expar_tensor_1d_on(expar_device device, void *data, expar_dtype dtype, int64_t n)
{
    return (expar_tensor){.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .strides = {1}, .device = device};
}

expar_tensor expar_tensor_2d_on(expar_device device, void *data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    return (expar_tensor){
        .data = data, .dtype = dtype, .ndim = 2, .shape = {rows, columns}, .strides = {columns, 1}, .device = device};
}

/* Sizes may wrap, as if the tensor had more elements than 63 bits can count: calls reject such tensors. */
expar_tensor expar_tensor_3d_on(expar_device device, void *data, expar_dtype dtype, int64_t blocks, int64_t rows,
                                int64_t columns)
{
    const int64_t block = (int64_t)((uint64_t)rows * (uint64_t)columns);
    return (expar_tensor){.data = data,
                          .dtype = dtype,
                          .ndim = 3,
                          .shape = {blocks, rows, columns},
                          .strides = {block, columns, 1},
                          .device = device};
}

expar_tensor expar_tensor_1d(void *data, expar_dtype dtype, int64_t n)
{
    return expar_tensor_1d_on(cpu, data, dtype, n);
}

expar_tensor expar_tensor_2d(void *data, expar_dtype dtype, int64_t rows, int64_t columns)
{
    return expar_tensor_2d_on(cpu, data, dtype, rows, columns);
}

expar_tensor expar_tensor_3d(void *data, expar_dtype dtype, int64_t blocks, int64_t rows, int64_t columns)
{
    return expar_tensor_3d_on(cpu, data, dtype, blocks, rows, columns);
}

size_t expar_dtype_bytes(expar_dtype dtype)
{
    switch (dtype) {
    case EXPAR_BF16:
    case EXPAR_F16:
        return 2;
    case EXPAR_F32:
    case EXPAR_I32:
        return 4;
    case EXPAR_I64:
        return 8;
    case EXPAR_U8:
    case EXPAR_F8E4M3:
    case EXPAR_I8:
        return 1;
    }
    return 0;
}

const char *expar_dtype_string(expar_dtype dtype)
{
    switch (dtype) {
    case EXPAR_BF16:
        return "bf16";
    case EXPAR_F16:
        return "f16";
    case EXPAR_F32:
        return "f32";
    case EXPAR_I32:
        return "i32";
    case EXPAR_I64:
        return "i64";
    case EXPAR_U8:
        return "u8";
    case EXPAR_F8E4M3:
        return "f8e4m3";
    case EXPAR_I8:
        return "i8";
    }
    return "?";
}
