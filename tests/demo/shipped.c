/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a whole file. */
#include "shipped.h"

#include "cmocka_headers.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

void *shipped_read(const char *name, size_t *count)
{
    char path[512];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", MOE_LM_DIR, name);
    assert_int_equal(stat(path, &facts), 0);
    *count = (size_t)facts.st_size;
    void *bytes = malloc(*count);
    FILE *file = fopen(path, "rb");
    assert_true(bytes && file);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}
