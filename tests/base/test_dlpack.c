/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors from and to DLPack. */
#include <expar/python.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <string.h>

static int released;

static void count_release(void *context)
{
    released += *(int *)context;
}

static const struct {
    expar_dtype dtype;
    uint8_t code, bits;
} dtypes[] = {{EXPAR_BF16, 4, 16}, {EXPAR_F16, 2, 16}, {EXPAR_F32, 2, 32}, {EXPAR_I32, 0, 32},
              {EXPAR_I64, 0, 64},  {EXPAR_U8, 1, 8},   {EXPAR_I8, 0, 8},   {EXPAR_F8E4M3, 10, 8}};

static void every_dtype_goes_out_and_comes_back(void **state)
{
    (void)state;
    int64_t data[8] = {0};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        expar_tensor made = expar_tensor_2d(data, dtypes[i].dtype, 2, 3), back;
        made.strides[0] = 4;
        made.device = (expar_device){EXPAR_CUDA, 5};
        void *out = NULL;
        int one = 1;
        released = 0;
        assert_int_equal(expar_tensor_to_dlpack(&made, EXPAR_DLPACK_VERSION(1, 1), count_release, &one, &out),
                         EXPAR_OK);
        expar_dl_versioned *dl = out;
        assert_int_equal(dl->major, 1);
        assert_int_equal(dl->minor, 1);
        assert_int_equal(dl->flags, 0);
        assert_ptr_equal(dl->tensor.data, data);
        assert_int_equal(dl->tensor.byte_offset, 0);
        assert_int_equal(dl->tensor.device.device_type, EXPAR_DL_CUDA);
        assert_int_equal(dl->tensor.device.device_id, 5);
        assert_int_equal(dl->tensor.dtype.code, dtypes[i].code);
        assert_int_equal(dl->tensor.dtype.bits, dtypes[i].bits);
        assert_int_equal(dl->tensor.dtype.lanes, 1);
        assert_int_equal(dl->tensor.shape[1], 3);
        assert_int_equal(dl->tensor.strides[0], 4);
        assert_int_equal(expar_tensor_from_dlpack(out, EXPAR_DLPACK_VERSION(1, 1), 1, &back), EXPAR_OK);
        assert_memory_equal(&back, &made, sizeof back);
        assert_int_equal(released, 0);
        dl->deleter(dl);
        assert_int_equal(released, 1);
    }
}

static void consumers_get_the_version_that_they_read(void **state)
{
    (void)state;
    float data[6];
    static const struct {
        uint32_t asked, major, minor;
    } versions[] = {
        {EXPAR_DLPACK_VERSION(1, 0), 1, 0}, {EXPAR_DLPACK_VERSION(1, 1), 1, 1}, {EXPAR_DLPACK_VERSION(1, 7), 1, 1}};
    const expar_tensor made = expar_tensor_1d(data, EXPAR_F32, 6);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        void *out;
        assert_int_equal(expar_tensor_to_dlpack(&made, versions[i].asked, NULL, NULL, &out), EXPAR_OK);
        expar_dl_versioned *dl = out;
        assert_int_equal(dl->major, versions[i].major);
        assert_int_equal(dl->minor, versions[i].minor);
        dl->deleter(dl);
    }
    void *old;
    int one = 1;
    released = 0;
    assert_int_equal(expar_tensor_to_dlpack(&made, EXPAR_DLPACK_UNVERSIONED, count_release, &one, &old), EXPAR_OK);
    expar_dl_managed *managed = old;
    assert_ptr_equal(managed->tensor.data, data);
    assert_int_equal(managed->tensor.ndim, 1);
    assert_int_equal(managed->tensor.shape[0], 6);
    assert_int_equal(managed->tensor.device.device_type, EXPAR_DL_CPU);
    managed->deleter(managed);
    assert_int_equal(released, 1);
}

static void fp8_is_bytes_for_older_consumers(void **state)
{
    (void)state;
    uint8_t data[4];
    const expar_tensor made = expar_tensor_1d(data, EXPAR_F8E4M3, 4);
    void *out;
    assert_int_equal(expar_tensor_to_dlpack(&made, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &out), EXPAR_OK);
    expar_dl_versioned *dl = out;
    assert_int_equal(dl->tensor.dtype.code, EXPAR_DL_UINT);
    assert_int_equal(dl->tensor.dtype.bits, 8);
    dl->deleter(dl);
    assert_int_equal(expar_tensor_to_dlpack(&made, EXPAR_DLPACK_UNVERSIONED, NULL, NULL, &out), EXPAR_OK);
    expar_dl_managed *managed = out;
    assert_int_equal(managed->tensor.dtype.code, EXPAR_DL_UINT);
    managed->deleter(managed);
}

static expar_dl_versioned foreign(void *data, int64_t *shape)
{
    return (expar_dl_versioned){.major = 1,
                                .tensor = {.data = data,
                                           .device = {.device_type = EXPAR_DL_CPU},
                                           .ndim = 2,
                                           .dtype = {.code = EXPAR_DL_FLOAT, .bits = 32, .lanes = 1},
                                           .shape = shape}};
}

static void foreign_tensors_become_views(void **state)
{
    (void)state;
    float data[24];
    int64_t shape[] = {4, 5}, strides[] = {1, 4};
    expar_dl_versioned dl = foreign(data, shape);
    expar_tensor view;
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 1, &view), EXPAR_OK);
    assert_int_equal(view.strides[0], 5); /* none are given: contiguous */
    assert_int_equal(view.strides[1], 1);
    dl.tensor.strides = strides;
    dl.tensor.byte_offset = 8;
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 1, &view), EXPAR_OK);
    assert_int_equal(view.strides[0], 1);
    assert_int_equal(view.strides[1], 4);
    assert_ptr_equal(view.data, data + 2);
    dl.tensor.dtype = (expar_dl_dtype){.code = EXPAR_DL_BOOL, .bits = 8, .lanes = 1};
    dl.tensor.device = (expar_dl_device){.device_type = EXPAR_DL_CUDA_HOST, .device_id = 3};
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 1, &view), EXPAR_OK);
    assert_int_equal(view.dtype, EXPAR_U8);
    assert_int_equal(view.device.type, EXPAR_CPU);
    assert_int_equal(view.device.index, 0);
    dl.tensor.device.device_type = EXPAR_DL_CUDA_MANAGED;
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 1, &view), EXPAR_OK);
    assert_int_equal(view.device.type, EXPAR_CUDA);
    assert_int_equal(view.device.index, 3);
}

static void read_only_ones_are_read_only(void **state)
{
    (void)state;
    float data[20];
    int64_t shape[] = {4, 5};
    expar_dl_versioned dl = foreign(data, shape);
    expar_tensor view;
    dl.flags = EXPAR_DL_READ_ONLY;
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 0, &view), EXPAR_OK);
    assert_int_equal(expar_tensor_from_dlpack(&dl, EXPAR_DLPACK_VERSION(1, 0), 1, &view), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "read only"));
}

static void rejected(const expar_dl_versioned *dl, expar_status expected, const char *word)
{
    expar_tensor view = expar_tensor_1d(NULL, EXPAR_I8, 7), before = view;
    assert_int_equal(expar_tensor_from_dlpack(dl, EXPAR_DLPACK_VERSION(1, 1), 0, &view), expected);
    assert_non_null(strstr(expar_last_error(), word));
    assert_memory_equal(&view, &before, sizeof view);
}

static void what_is_not_known_is_rejected(void **state)
{
    (void)state;
    float data[20];
    int64_t shape[] = {4, 5}, negative[] = {4, -1};
    const expar_dl_versioned good = foreign(data, shape);
    expar_dl_versioned dl = good;
    dl.major = 2;
    rejected(&dl, EXPAR_ERR_VERSION, "2.0");
    dl = good;
    dl.tensor.ndim = 5;
    rejected(&dl, EXPAR_ERR_SHAPE, "ndim is 5");
    dl = good;
    dl.tensor.shape = negative;
    rejected(&dl, EXPAR_ERR_SHAPE, "shape[1] is -1");
    dl.tensor.shape = NULL;
    rejected(&dl, EXPAR_ERR_NULL, "shape");
    dl = good;
    dl.tensor.dtype.bits = 64;
    rejected(&dl, EXPAR_ERR_DTYPE, "64 bits");
    dl = good;
    dl.tensor.dtype.lanes = 2;
    rejected(&dl, EXPAR_ERR_DTYPE, "2 lanes");
    dl = good;
    dl.tensor.device.device_type = 10;
    rejected(&dl, EXPAR_ERR_DEVICE, "10");
    rejected(NULL, EXPAR_ERR_NULL, "managed");
    assert_int_equal(expar_tensor_from_dlpack(&good, EXPAR_DLPACK_VERSION(1, 0), 0, NULL), EXPAR_ERR_NULL);

    expar_tensor out = expar_tensor_1d(data, EXPAR_F32, 20);
    void *managed = &out;
    assert_int_equal(expar_tensor_to_dlpack(NULL, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_NULL);
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, NULL), EXPAR_ERR_NULL);
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(2, 0), NULL, NULL, &managed), EXPAR_ERR_VERSION);
    out.dtype = (expar_dtype)77;
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_DTYPE);
    out = expar_tensor_1d(data, EXPAR_F32, 20);
    out.ndim = 9;
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_SHAPE);
    out.ndim = 1;
    out.device.type = (expar_device_type)4;
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_DEVICE);
    out = expar_tensor_2d(data, EXPAR_F32, 4, -5);
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_SHAPE);
    assert_non_null(strstr(expar_last_error(), "tensor.shape[1] is -5; expected 0 or more"));
    out = expar_tensor_1d(NULL, EXPAR_F32, 20);
    assert_int_equal(expar_tensor_to_dlpack(&out, EXPAR_DLPACK_VERSION(1, 0), NULL, NULL, &managed), EXPAR_ERR_NULL);
    assert_non_null(strstr(expar_last_error(), "tensor.data is NULL"));
    assert_ptr_equal(managed, &out);
}

static void *delete_it(void *argument)
{
    expar_dl_versioned *dl = argument;
    dl->deleter(dl);
    return NULL;
}

static void deleters_run_on_any_thread(void **state)
{
    (void)state;
    float data[2];
    const expar_tensor made = expar_tensor_1d(data, EXPAR_F32, 2);
    void *out;
    pthread_t thread;
    int one = 1;
    released = 0;
    assert_int_equal(expar_tensor_to_dlpack(&made, EXPAR_DLPACK_VERSION(1, 0), count_release, &one, &out), EXPAR_OK);
    assert_int_equal(pthread_create(&thread, NULL, delete_it, out), 0);
    pthread_join(thread, NULL);
    assert_int_equal(released, 1);
}

/* ---- tensors of Python's: objects are what their views are, a tuple is an array of them -------------------------- */

static char none;

static void *item_of(void *tuple, ptrdiff_t index)
{
    return ((void **)tuple)[index];
}

/* One without a device type is no tensor. */
static int view_of(void *object, expar_dl_tensor *view)
{
    *view = *(const expar_dl_tensor *)object;
    return view->device.device_type ? 0 : -1;
}

/* The arguments of a call. */
typedef struct views {
    int32_t before, differing;
    expar_tensor first, between, second;
} views;

static const int32_t places[] = {offsetof(views, second), offsetof(views, first)};
static const expar_python_views python = {item_of, view_of, &none, places, 2, offsetof(views, differing)};

#define F32(memory, ...)                                                                                               \
    {                                                                                                                  \
        .data = (memory), .device = {EXPAR_DL_CUDA, 3}, .dtype = {EXPAR_DL_FLOAT, 32, 1}, __VA_ARGS__                  \
    }

static void tensors_of_python_are_put(void **state)
{
    (void)state;
    float data[40];
    int64_t shape[] = {5, 4}, apart[] = {8, 1}, one_row[] = {1, 4}, any[] = {77, 1};
    expar_dl_tensor wide = F32(data, .ndim = 2, .shape = shape, .strides = apart, .byte_offset = 8);
    expar_dl_tensor row = F32(data, .ndim = 2, .shape = one_row, .strides = any);
    void *both[] = {&wide, &row}, *one[] = {&none, &row};
    views args = {.before = 7, .between = {.ndim = 1}};
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_OK);
    assert_int_equal(args.differing, 2);
    assert_ptr_equal(args.second.data, (char *)data + 8);
    assert_int_equal(args.second.device.index, 3);
    assert_int_equal(args.second.strides[0], 8);
    assert_int_equal(args.first.strides[0], 4); /* of a contiguous one, whose strides say something else */
    assert_int_equal(args.first.dtype, EXPAR_F32);
    assert_true(args.before == 7 && args.between.ndim == 1 && !args.between.data);

    wide.data = data + 1;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_OK);
    assert_int_equal(args.differing, 0); /* in its address alone */
    assert_ptr_equal(args.second.data, (char *)data + 12);
    apart[0] = 9;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_OK);
    assert_int_equal(args.differing, 1);
    const expar_tensor before = args.second;
    one_row[1] = 3;
    assert_int_equal(expar_python_view_tensors(&python, one, &args), EXPAR_OK);
    assert_int_equal(args.differing, 1);
    assert_memory_equal(&args.second, &before, sizeof before);
}

static void what_is_no_tensor_of_python_puts_nothing(void **state)
{
    (void)state;
    float data[8];
    int64_t shape[] = {8};
    expar_dl_tensor good = F32(data, .ndim = 1, .shape = shape), bad = good;
    void *both[] = {&good, &bad};
    views args = {.differing = -5};
    const views before = args;
    bad.device.device_type = 0;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "expar_python_view_tensors: item 1 of the tuple is no tensor"));
    bad = good, bad.dtype.lanes = 2;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_ERR_DTYPE);
    bad = good, bad.device.device_type = 12;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_ERR_DEVICE);
    bad = good, bad.ndim = 5;
    assert_int_equal(expar_python_view_tensors(&python, both, &args), EXPAR_ERR_SHAPE);
    void *fewer[] = {&good, NULL};
    assert_int_equal(expar_python_view_tensors(&python, fewer, &args), EXPAR_ERR_ARGUMENT);
    expar_python_views other = python;
    other.count = EXPAR_PYTHON_MAX_VIEWS + 1;
    assert_int_equal(expar_python_view_tensors(&other, both, &args), EXPAR_ERR_LIMIT);
    assert_int_equal(expar_python_view_tensors(NULL, both, &args), EXPAR_ERR_NULL);
    assert_int_equal(expar_python_view_tensors(&python, NULL, &args), EXPAR_ERR_NULL);
    assert_int_equal(expar_python_view_tensors(&python, both, NULL), EXPAR_ERR_NULL);
    other = python, other.view = NULL;
    assert_int_equal(expar_python_view_tensors(&other, both, &args), EXPAR_ERR_NULL);
    other = python, other.offsets = NULL;
    assert_int_equal(expar_python_view_tensors(&other, both, &args), EXPAR_ERR_NULL);
    assert_memory_equal(&args, &before, sizeof args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_goes_out_and_comes_back),
        cmocka_unit_test(consumers_get_the_version_that_they_read),
        cmocka_unit_test(fp8_is_bytes_for_older_consumers),
        cmocka_unit_test(foreign_tensors_become_views),
        cmocka_unit_test(read_only_ones_are_read_only),
        cmocka_unit_test(what_is_not_known_is_rejected),
        cmocka_unit_test(deleters_run_on_any_thread),
        cmocka_unit_test(tensors_of_python_are_put),
        cmocka_unit_test(what_is_no_tensor_of_python_puts_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
