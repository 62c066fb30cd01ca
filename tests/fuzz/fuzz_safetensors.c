/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of the demo's model: a safetensors file with its JSON header. */
#include "fuzz.h"
#include "safetensors.h"

#include <math.h>
#include <string.h>

static const tensor_spec specs[] = {
    {"w", "F32", 1, {3}}, {"w", "F32", 2, {1, 3}},  {"b", "BF16", 1, {4}},
    {"b", "F32", 0, {0}}, {"e", "BF16", 2, {0, 5}},
};

/* Returns whether all values came. */
static bool read_tensor(const safetensors *file, const tensor_spec *spec, demo_error *error)
{
    float values[4];
    int64_t count = 1;
    for (int32_t d = 0; d < spec->ndim; d++)
        count *= spec->shape[d];
    if (!safetensors_read(file, spec, 0, count, values, error)) return false;
    for (int64_t i = 0; i < count; i++)
        fuzz_must(isfinite(values[i]));
    fuzz_must(!safetensors_read(file, spec, 1, count, values, error));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    demo_error error = {.text = ""};
    safetensors *file = NULL;
    const int before = fuzz_count_descriptors();
    if (safetensors_open(fuzz_file(data, bytes), &file, &error)) {
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
            const bool fits = safetensors_check(file, &specs[i], &error);
            if (read_tensor(file, &specs[i], &error)) fuzz_must(fits);
            fuzz_must_be_shown(error.text);
        }
        safetensors_close(file);
        fuzz_accept();
    } else {
        fuzz_must_be_shown(error.text);
    }
    fuzz_file_close();
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const struct {
        const char *header;
        size_t bytes;
    } files[] = {
        {"{}", 0},
        {"{\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}", 12},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[12,20]},"
         "\"w\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[0,12]}}",
         20},
        {"{\"e\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[0,0]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
         4},
    };
    if (number >= sizeof files / sizeof *files) return 0;
    const size_t length = strlen(files[number].header);
    memset(seed, 0, FUZZ_SEED_BYTES);
    seed[0] = (uint8_t)length;
    memcpy(seed + 8, files[number].header, length);
    return 8 + length + files[number].bytes;
}
