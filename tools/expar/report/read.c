/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files of results. */
#include "base/shown.h"
#include "report.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* A larger file is no result of bench: 1000 results of 8 ranks take 2 MB. */
#define MOST_BYTES (256L << 20)

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool check(const char *path, const json_t *json, char *error, size_t error_bytes)
{
    if (json_is_array(json_object_get(json, "results"))) return true;
    snprintf(error, error_bytes, "%s: what `expar bench --json` prints is expected: an object with a list 'results'",
             path);
    return false;
}

const char *report_library(const json_t *json)
{
    const char *library = json_string_value(json_object_get(json, "library"));
    return library && *library && strcmp(library, "expar") != 0 ? library : NULL;
}

bool report_read(const char *path, struct report_file *file, char *error, size_t error_bytes)
{
    json_error_t at;
    FILE *in = fopen(path, "re");
    if (!in) {
        snprintf(error, error_bytes, "%s: %s", path, strerror(errno));
        return false;
    }
    const bool small = fseek(in, 0, SEEK_END) != 0 || ftell(in) <= MOST_BYTES;
    clearerr(in);
    rewind(in);
    json_t *json = small ? json_loadf(in, 0, &at) : NULL;
    fclose(in);
    if (!small)
        snprintf(error, error_bytes, "%s: more than 256 MB", path);
    else if (!json)
        snprintf(error, error_bytes, "%s: line %d: %s: what `expar bench --json` prints is expected", path, at.line,
                 SHOWN(at.text));
    if (!json) return false;
    if (!check(path, json, error, error_bytes)) {
        json_decref(json);
        return false;
    }
    const char *library = report_library(json);
    *file = (struct report_file){.name = library ? library : base_name(path), .json = json};
    return true;
}
