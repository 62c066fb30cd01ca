/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy reader: good files of each type, each kind of broken file, and many mutated ones. */
#include "bench/frame/npy.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/expar-npy-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

/* A whole file in memory. */
struct image {
    unsigned char bytes[1024];
    size_t count;
};

static struct image image_of(int major, const char *header, const void *data, size_t data_bytes)
{
    struct image image = {.count = major == 1 ? 10 : 12};
    size_t length = strlen(header);
    memcpy(image.bytes, "\x93NUMPY", 6);
    image.bytes[6] = (unsigned char)major;
    image.bytes[8] = (unsigned char)(length & 255);
    image.bytes[9] = (unsigned char)(length >> 8);
    memcpy(image.bytes + image.count, header, length);
    memcpy(image.bytes + image.count + length, data, data_bytes);
    image.count += length + data_bytes;
    return image;
}

static bool read_image(const struct image *image, struct npy *array, char error[256])
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(image->bytes, 1, image->count, file), image->count);
    assert_int_equal(fclose(file), 0);
    return npy_read(path, array, error, 256);
}

static void expect_rejection(struct image image, const char *part)
{
    struct npy array = {.num_dims = -7};
    char error[256] = "";
    assert_false(read_image(&image, &array, error));
    if (!strstr(error, part) || !strstr(error, path)) fail_msg("'%s' does not say '%s'", error, part);
    assert_int_equal(array.num_dims, -7); /* outputs are set on success only */
}

static void all_integer_types_are_read(void **state)
{
    (void)state;
    static const int16_t narrow[6] = {0, 1, -1, 300, 5, 6};
    static const int32_t plain[6] = {0, 1, -1, 70000, 5, 6};
    static const int64_t wide[6] = {0, 1, -1, INT32_MAX, INT32_MIN, 6};
    struct image images[3] = {
        image_of(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", narrow, sizeof narrow),
        image_of(2, "{'shape': (2, 3), 'descr': '<i4', 'fortran_order': False, }\n", plain, sizeof plain),
        image_of(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3)}", wide, sizeof wide)};
    for (int i = 0; i < 3; i++) {
        struct npy array;
        char error[256] = "";
        if (!read_image(&images[i], &array, error)) fail_msg("%s", error);
        assert_int_equal(array.num_dims, 2);
        assert_int_equal(array.shape[0], 2);
        assert_int_equal(array.shape[1], 3);
        assert_int_equal(array.count, 6);
        for (int j = 0; j < 6; j++)
            assert_int_equal(array.values[j], i == 0 ? narrow[j] : i == 1 ? plain[j] : (int32_t)wide[j]);
        npy_free(&array);
    }
}

static void broken_files_are_rejected(void **state)
{
    (void)state;
    static const int32_t data[2] = {1, 2};
    static const int64_t large[1] = {INT64_C(1) << 40};
    static const char good[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }\n";
    struct image image = image_of(1, good, data, sizeof data);
    image.bytes[0] = 'x';
    expect_rejection(image, "not a .npy file");
    image = image_of(1, good, data, sizeof data);
    image.count = 5;
    expect_rejection(image, "not a .npy file");
    image.count = 30;
    expect_rejection(image, "ends within its header");
    expect_rejection(image_of(3, good, data, sizeof data), "version 3.0");
    expect_rejection(image_of(1, good, data, 4), "where its header promises");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }\n", data, 8), "promises");
    expect_rejection(image_of(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n", data, 8), "'<f4'");
    expect_rejection(image_of(1, "{'descr': '>i4', 'fortran_order': False, 'shape': (2,), }\n", data, 8), "'>i4'");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2,), }\n", data, 8), "C order");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, }\n", data, 8), "no 'shape'");
    expect_rejection(image_of(1, "{'fortran_order': False, 'shape': (2,), }\n", data, 8), "no 'descr'");
    expect_rejection(image_of(1, "['descr']\n", data, 8), "no dict");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2, -1), }\n", data, 8),
                     "the shape");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2", data, 0), "the shape");
    expect_rejection(
        image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", data, 8), "2^30");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999999999999,)}", data, 8),
                     "2^30");
    expect_rejection(image_of(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,1,1,1,2)}", data, 8),
                     "dimensions");
    expect_rejection(image_of(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", large, 8), "is no index");
}

/* Whatever the bytes, the reader says yes or no, and a yes has as many values as its shape. Replay: the seed is the
 * round. */
static void mutated_files_are_survived(void **state)
{
    (void)state;
    static const int16_t data[6] = {1, 2, 3, 4, 5, 6};
    struct image good = image_of(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }\n", data, sizeof data);
    int rejected = 0;
    for (unsigned round = 0; round < 2000; round++) {
        struct image image = good;
        struct npy array;
        char error[256] = "";
        srand(round);
        for (int edits = 1 + rand() % 4; edits > 0; edits--)
            image.bytes[(size_t)rand() % image.count] = (unsigned char)rand();
        if (rand() % 4 == 0) image.count = (size_t)rand() % image.count;
        if (!read_image(&image, &array, error)) {
            assert_true(strlen(error) > strlen(path));
            rejected++;
            continue;
        }
        int64_t count = 1;
        for (int i = 0; i < array.num_dims; i++)
            count *= array.shape[i];
        assert_int_equal(array.count, count);
        npy_free(&array);
    }
    assert_true(rejected > 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_integer_types_are_read),
        cmocka_unit_test(broken_files_are_rejected),
        cmocka_unit_test(mutated_files_are_survived),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
