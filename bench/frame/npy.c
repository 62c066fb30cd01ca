/* SPDX-License-Identifier: Apache-2.0 */
/* Reading .npy files: a fixed preamble, a header that is a Python dict in text, then the elements. Every number is
 * checked before it is used. */
#include "bench/frame/npy.h"
#include "base/shown.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_HEADER_BYTES 65536
#define MAX_VALUES       (INT64_C(1) << 30)

struct reader {
    const char *path;
    FILE *file;
    char *error;
    size_t error_bytes;
    int element_bytes;
};

static bool reject(struct reader *reader, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool reject(struct reader *reader, const char *format, ...)
{
    char what[256];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(reader->error, reader->error_bytes, "%s: %s", reader->path, what);
    return false;
}

/* Preamble: "\x93NUMPY", major, minor, length of the header (2 bytes, from 2.0 on 4), little endian. */
static bool read_preamble(struct reader *reader, size_t *header_bytes)
{
    unsigned char bytes[12];
    if (fread(bytes, 1, 10, reader->file) != 10 || memcmp(bytes, "\x93NUMPY", 6))
        return reject(reader, "not a .npy file (its first bytes are not \\x93NUMPY)");
    int major = bytes[6];
    if (major != 1 && major != 2) return reject(reader, "format version %d.%d is not supported", major, bytes[7]);
    *header_bytes = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (major == 2) {
        if (fread(bytes + 10, 1, 2, reader->file) != 2) return reject(reader, "the file ends within its preamble");
        *header_bytes |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    }
    if (*header_bytes > MAX_HEADER_BYTES) return reject(reader, "a header of %zu bytes is too long", *header_bytes);
    return true;
}

/* Returns the text after 'key': in the header; NULL when the key is missing. */
static const char *value_of(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *found = strstr(header, quoted);
    if (!found) return NULL;
    found += strlen(quoted);
    return found + strspn(found, " ");
}

static bool parse_descr(struct reader *reader, const char *header)
{
    const char *value = value_of(header, "descr");
    if (!value) return reject(reader, "the header has no 'descr'");
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"'<i2'", 2}, {"'<i4'", 4}, {"'<i8'", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strncmp(value, types[i].name, 5)) reader->element_bytes = types[i].bytes;
    if (reader->element_bytes) return true;
    char type[SHOWN_MOST];
    snprintf(type, sizeof type, "%.*s", (int)strcspn(value, ","), value);
    return reject(reader, "elements of type %s; little-endian int16, int32 or int64 is expected", SHOWN(type));
}

static bool parse_shape(struct reader *reader, const char *header, struct npy *array)
{
    const char *value = value_of(header, "shape");
    if (!value || *value != '(') return reject(reader, "the header has no 'shape'");
    array->count = 1;
    for (value++; *value != ')';) {
        char *end;
        if (*value < '0' || *value > '9') return reject(reader, "the shape in the header cannot be read");
        long long extent = strtoll(value, &end, 10);
        if (array->num_dims == NPY_MAX_DIMS) return reject(reader, "more than %d dimensions", NPY_MAX_DIMS);
        if (extent > MAX_VALUES || __builtin_mul_overflow(array->count, (int64_t)extent, &array->count) ||
            array->count > MAX_VALUES)
            return reject(reader, "more than 2^30 elements");
        array->shape[array->num_dims++] = extent;
        value = end + strspn(end, ", ");
    }
    return true;
}

static bool parse_header(struct reader *reader, const char *header, struct npy *array)
{
    const char *order = value_of(header, "fortran_order");
    if (header[0] != '{') return reject(reader, "the header is no dict");
    if (!order || strncmp(order, "False", 5)) return reject(reader, "C order is expected ('fortran_order': False)");
    return parse_descr(reader, header) && parse_shape(reader, header, array);
}

static bool read_header(struct reader *reader, struct npy *array, size_t *start)
{
    size_t bytes = 0;
    if (!read_preamble(reader, &bytes)) return false;
    char *header = calloc(bytes + 1, 1);
    if (!header) return reject(reader, "out of memory");
    bool good = fread(header, 1, bytes, reader->file) == bytes;
    if (!good)
        reject(reader, "the file ends within its header");
    else if (strlen(header) != bytes)
        good = reject(reader, "the header holds a zero byte");
    else
        good = parse_header(reader, header, array);
    free(header);
    *start = (size_t)ftell(reader->file);
    return good;
}

static bool check_size(struct reader *reader, const struct npy *array, size_t start)
{
    struct stat stat;
    if (fstat(fileno(reader->file), &stat)) return reject(reader, "its size cannot be told");
    int64_t expected = (int64_t)start + array->count * reader->element_bytes;
    if (stat.st_size != expected)
        return reject(reader, "%lld bytes where its header promises %lld", (long long)stat.st_size,
                      (long long)expected);
    return true;
}

static bool read_value(struct reader *reader, int32_t *value)
{
    unsigned char bytes[8];
    if (fread(bytes, (size_t)reader->element_bytes, 1, reader->file) != 1) return reject(reader, "cannot be read");
    int16_t narrow;
    int64_t wide;
    memcpy(&narrow, bytes, sizeof narrow);
    memcpy(value, bytes, sizeof *value);
    memcpy(&wide, bytes, sizeof wide);
    if (reader->element_bytes == 2) *value = narrow;
    if (reader->element_bytes == 8) {
        if (wide < INT32_MIN || wide > INT32_MAX) return reject(reader, "a value of %lld is no index", (long long)wide);
        *value = (int32_t)wide;
    }
    return true;
}

static bool read_values(struct reader *reader, struct npy *array)
{
    array->values = malloc(((size_t)array->count + 1) * sizeof *array->values);
    if (!array->values) return reject(reader, "out of memory");
    for (int64_t i = 0; i < array->count; i++)
        if (!read_value(reader, &array->values[i])) {
            npy_free(array);
            return false;
        }
    return true;
}

bool npy_read(const char *path, struct npy *array, char *error, size_t error_bytes)
{
    struct reader reader = {.path = path, .error = error, .error_bytes = error_bytes};
    struct npy read = {0};
    size_t start = 0;
    reader.file = fopen(path, "rbe");
    if (!reader.file) return reject(&reader, "cannot be opened");
    bool good = read_header(&reader, &read, &start) && check_size(&reader, &read, start) && read_values(&reader, &read);
    fclose(reader.file);
    if (good) *array = read;
    return good;
}

void npy_free(struct npy *array)
{
    free(array->values);
    array->values = NULL;
}
