/* SPDX-License-Identifier: Apache-2.0 */
/* The opened file: its table of tensors, look-up, and reading of values. Data is read when needed, not mapped. So a
 * file that shrinks while it is read gives an error message, not a SIGBUS. */
#include "safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct safetensors {
    int fd;
    char *path;
    safetensors_table table;
    uint64_t data_offset; /* where the tensors' data starts in the file */
};

/* Reads all bytes or fails. */
static bool read_exactly(int fd, const char *path, void *buffer, size_t bytes, uint64_t offset, demo_error *error)
{
    char *at = buffer;
    while (bytes > 0) {
        ssize_t got = pread(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return demo_fail(error, "%s: cannot read %zu bytes at %" PRIu64 ": %s", path, bytes, offset,
                             strerror(errno));
        if (got == 0) return demo_fail(error, "%s: the file ends %zu bytes too early", path, bytes);
        at += got;
        bytes -= (size_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

static bool open_regular(const char *path, int *fd, uint64_t *file_bytes, demo_error *error)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) return demo_fail(error, "%s: cannot open: %s", path, strerror(errno));
    struct stat facts;
    if (fstat(opened, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        close(opened);
        return demo_fail(error, "%s: not a regular file", path);
    }
    *fd = opened;
    *file_bytes = (uint64_t)facts.st_size;
    return true;
}

static uint64_t little_endian_u64(const unsigned char bytes[8])
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

/* Reads and checks the header of a file of file_bytes bytes. */
static bool read_header(safetensors *file, uint64_t file_bytes, demo_error *error)
{
    unsigned char prefix[8];
    if (file_bytes < sizeof prefix)
        return demo_fail(error,
                         "%s: %" PRIu64 " bytes are no safetensors file: it starts with 8 bytes of header length",
                         file->path, file_bytes);
    if (!read_exactly(file->fd, file->path, prefix, sizeof prefix, 0, error)) return false;
    uint64_t header_bytes = little_endian_u64(prefix);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES || header_bytes > file_bytes - sizeof prefix)
        return demo_fail(error,
                         "%s: header length %" PRIu64 " is wrong: the file has %" PRIu64 " bytes, and %d are allowed",
                         file->path, header_bytes, file_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    char *header = demo_alloc(error, header_bytes);
    if (!header) return false;
    file->data_offset = sizeof prefix + header_bytes;
    bool ok =
        read_exactly(file->fd, file->path, header, header_bytes, sizeof prefix, error) &&
        safetensors_table_parse(file->path, header, header_bytes, file_bytes - file->data_offset, &file->table, error);
    free(header);
    return ok;
}

bool safetensors_open(const char *path, safetensors **out, demo_error *error)
{
    safetensors *file = demo_calloc(error, 1, sizeof *file);
    if (!file) return false;
    uint64_t file_bytes = 0;
    file->fd = -1;
    file->path = strdup(path);
    bool opened = (file->path || demo_fail(error, "out of memory")) &&
                  open_regular(path, &file->fd, &file_bytes, error) && read_header(file, file_bytes, error);
    if (!opened) {
        safetensors_close(file);
        return false;
    }
    *out = file;
    return true;
}

void safetensors_close(safetensors *file)
{
    if (!file) return;
    safetensors_table_free(&file->table);
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    free(file);
}

static void format_shape(int32_t ndim, const int64_t *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int32_t d = 0; d < ndim && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, d ? ", " : "", shape[d]);
    if (used < size) snprintf(text + used, size - used, "]");
}

static bool same_shape(const safetensors_entry *entry, const tensor_spec *spec)
{
    return entry->ndim == spec->ndim && memcmp(entry->shape, spec->shape, sizeof(int64_t) * (size_t)spec->ndim) == 0;
}

/* Returns the entry that fits the spec, or NULL with a text that describes the mismatch. */
static const safetensors_entry *find(const safetensors *file, const tensor_spec *spec, demo_error *error)
{
    char wanted[96], came[96];
    format_shape(spec->ndim, spec->shape, wanted, sizeof wanted);
    const safetensors_entry *entry = safetensors_table_find(&file->table, spec->name);
    if (!entry) {
        demo_fail(error, "%s: tensor '%s' is missing: expected %s %s", file->path, spec->name, spec->dtype, wanted);
        return NULL;
    }
    if (strcmp(entry->dtype->name, spec->dtype) == 0 && same_shape(entry, spec)) return entry;
    format_shape(entry->ndim, entry->shape, came, sizeof came);
    demo_fail(error, "%s: tensor '%s' is %s %s: expected %s %s", file->path, spec->name, entry->dtype->name, came,
              spec->dtype, wanted);
    return NULL;
}

bool safetensors_check(const safetensors *file, const tensor_spec *spec, demo_error *error)
{
    return find(file, spec, error) != NULL;
}

static float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Widens BF16 that lies in the second half of `values`' memory, first to last: a value is written only after the two
   that its bytes held have been read. */
static void widen_in_place(float *values, int64_t count)
{
    const unsigned char *narrow = (const unsigned char *)values + (size_t)count * 2;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, narrow + i * 2, sizeof bits);
        values[i] = bf16_to_f32(bits);
    }
}

/* Adds the tensor's name to a text that does not have it yet. */
static bool fail_at(demo_error *error, const char *name)
{
    const demo_error reason = *error;
    return demo_fail(error, "%.400s, in tensor '%.64s'", reason.text, name);
}

bool safetensors_read(const safetensors *file, const tensor_spec *spec, int64_t first, int64_t count, float *values,
                      demo_error *error)
{
    const safetensors_entry *entry = find(file, spec, error);
    if (!entry) return false;
    size_t element_bytes = entry->dtype->bytes;
    uint64_t elements = (entry->end - entry->begin) / element_bytes;
    if (first < 0 || count < 0 || (uint64_t)first > elements || (uint64_t)count > elements - (uint64_t)first)
        return demo_fail(error, "%s: tensor '%s' has %" PRIu64 " elements: %" PRId64 " from %" PRId64 " were wanted",
                         file->path, spec->name, elements, count, first);
    bool narrow = element_bytes == 2;
    unsigned char *raw = (unsigned char *)values + (narrow ? (size_t)count * 2 : 0);
    if (!read_exactly(file->fd, file->path, raw, (size_t)count * element_bytes,
                      file->data_offset + entry->begin + (uint64_t)first * element_bytes, error))
        return fail_at(error, spec->name);
    if (narrow) widen_in_place(values, count);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return demo_fail(error, "%s: tensor '%s' has a value that is not finite at element %" PRId64, file->path,
                             spec->name, first + i);
    return true;
}
