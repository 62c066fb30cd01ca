/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the files. */
#include "weights_file.h"

#include "cmocka_headers.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILES = 16 };

static char folder[] = "/tmp/expar-demo-XXXXXX";
static char written[MAX_FILES][64];
static int num_written;

int scratch_create(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

int scratch_remove(void **state)
{
    (void)state;
    for (int i = 0; i < num_written; i++)
        unlink(scratch_path(written[i]));
    return rmdir(folder);
}

const char *scratch_path(const char *name)
{
    static char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void remember(const char *name)
{
    for (int i = 0; i < num_written; i++)
        if (strcmp(written[i], name) == 0) return;
    assert_true(num_written < MAX_FILES);
    snprintf(written[num_written++], sizeof written[0], "%s", name);
}

void scratch_write(const char *name, const void *bytes, size_t count)
{
    remember(name);
    FILE *file = fopen(scratch_path(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void weights_write(const char *name, uint64_t header_length, const char *header, size_t data_bytes)
{
    size_t header_bytes = strlen(header), total = 8 + header_bytes + data_bytes;
    uint8_t *bytes = malloc(total);
    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(header_length >> 8 * i);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + header_bytes + i] = i % 2 ? 0x3f : (uint8_t)i;
    scratch_write(name, bytes, total);
    free(bytes);
}
