/* SPDX-License-Identifier: Apache-2.0 */
/* The recorded routing, read from its .npy file (format: NumPy enhancement proposal 1: magic, version, length of the
   header, header text, data). */
#include "routings.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDED_VALUES (ROUTING_RECORDED_LAYERS * ROUTING_RECORDED_TOKENS * ROUTING_RECORDED_TOPK)
static char recorded_path[4096];
static const char recorded_shape[] = "(4, 32768, 4)";

/* Where the repository was when the test was built, or, on another machine, where EXPAR_TEST_DATA says. */
static void find_file(void)
{
    const char *folder = getenv("EXPAR_TEST_DATA");
    snprintf(recorded_path, sizeof recorded_path, "%s/routing_topk_idx.npy", folder ? folder : EXPAR_TEST_DATA);
}

static void reject(const char *reason)
{
    fprintf(stderr, "%s: %s\n", recorded_path, reason);
    exit(EXIT_FAILURE);
}

static void check_header(FILE *file)
{
    unsigned char start[10];
    char text[256];
    if (fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, "\x93NUMPY\x01", 7) != 0)
        reject("not an .npy file of version 1");
    size_t text_bytes = start[8] | (size_t)start[9] << 8;
    if (text_bytes >= sizeof text || fread(text, 1, text_bytes, file) != text_bytes)
        reject("its header is cut or too long");
    text[text_bytes] = '\0';
    if (!strstr(text, "'<i2'") || !strstr(text, "'fortran_order': False") || !strstr(text, recorded_shape))
        reject("not int16 in the recorded shape");
}

static void check_values(const int16_t *values)
{
    for (int64_t i = 0; i < RECORDED_VALUES; i++)
        if (values[i] < 0 || values[i] >= ROUTING_RECORDED_EXPERTS) reject("an expert is out of range");
}

const int16_t *routing_recorded(void)
{
    static int16_t values[RECORDED_VALUES];
    static bool loaded;
    if (loaded) return values;
    find_file();
    FILE *file = fopen(recorded_path, "rb");
    if (!file) reject("cannot be opened");
    check_header(file);
    if (fread(values, sizeof values[0], RECORDED_VALUES, file) != RECORDED_VALUES) reject("is cut short");
    fclose(file);
    check_values(values);
    loaded = true;
    return values;
}
