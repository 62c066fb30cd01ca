/* SPDX-License-Identifier: Apache-2.0 */
/* Files of NumPy, which `expar bench --routing FILE.npy` reads. */
#include "bench/frame/npy.h"
#include "fuzz.h"

#include <string.h>

static void check_array(const struct npy *array)
{
    int64_t count = 1, sum = 0;
    fuzz_must(array->num_dims >= 0 && array->num_dims <= NPY_MAX_DIMS);
    for (int d = 0; d < array->num_dims; d++) {
        fuzz_must(array->shape[d] >= 0);
        count *= array->shape[d];
    }
    fuzz_must(count == array->count);
    for (int64_t i = 0; i < array->count; i++)
        sum += array->values[i];
    fuzz_must(sum <= count * INT32_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char error[256] = "";
    struct npy array;
    const int before = fuzz_count_descriptors();
    if (npy_read(fuzz_file(data, bytes), &array, error, sizeof error)) {
        check_array(&array);
        npy_free(&array);
        fuzz_accept();
    } else {
        fuzz_must_be_shown(error);
    }
    fuzz_file_close();
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const struct {
        int major;
        const char *header;
        size_t bytes;
    } files[] = {
        {1, "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }\n", 24},
        {1, "{'descr': '<i2', 'fortran_order': False, 'shape': (5,), }\n", 10},
        {2, "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2, 1, 1), }\n", 16},
        {1, "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 7), }\n", 0},
        {1, "{'descr': '<i4', 'fortran_order': False, 'shape': (), }\n", 4},
    };
    if (number >= sizeof files / sizeof *files) return 0;
    const size_t length = strlen(files[number].header), preamble = files[number].major == 1 ? 10 : 12;
    memset(seed, 0, FUZZ_SEED_BYTES);
    memcpy(seed, "\x93NUMPY", 6);
    seed[6] = (uint8_t)files[number].major;
    seed[8] = (uint8_t)length;
    memcpy(seed + preamble, files[number].header, length);
    return preamble + length + files[number].bytes;
}
