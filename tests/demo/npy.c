/* SPDX-License-Identifier: Apache-2.0 */
/* The .npy reader: 6 bytes of magic, 2 of version, 2 of header length, the header's text, the data. */
#include "npy.h"

#include "cmocka_headers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *npy_reference(const char *name, const char *dtype, const char *shape, size_t bytes)
{
    char path[512], wanted[128], header[512] = {0};
    unsigned char start[10];
    snprintf(path, sizeof path, "%s/reference/%s.npy", MOE_LM_DIR, name);
    snprintf(wanted, sizeof wanted, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", dtype, shape);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fread(start, 1, sizeof start, file), sizeof start);
    assert_memory_equal(start, "\x93NUMPY\1\0", 8);
    size_t header_bytes = start[8] | (size_t)start[9] << 8;
    assert_true(header_bytes < sizeof header);
    assert_int_equal(fread(header, 1, header_bytes, file), header_bytes);
    if (strncmp(header, wanted, strlen(wanted))) fail_msg("%s is %s, expected %s", path, header, wanted);
    void *data = malloc(bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
    return data;
}
