/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing and checking of the header: JSON, dtypes, shapes, sizes, and that the tensors fill the data exactly. */
#include "safetensors_header.h"

#include "base/shown.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const safetensors_dtype dtypes[] = {
    {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
    {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

static const safetensors_dtype *dtype_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

/* Reads a whole number ≥ 0. */
static bool json_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Fills ndim and shape, and the bytes that they amount to. */
static bool parse_shape(const char *path, const json_t *shape, safetensors_entry *entry, uint64_t *bytes,
                        demo_error *error)
{
    size_t ndim = json_array_size(shape);
    if (!json_is_array(shape) || ndim > SAFETENSORS_MAX_DIMS)
        return demo_fail(error, "%s: tensor '%s': shape must be a list of at most %d extents", path, SHOWN(entry->name),
                         SAFETENSORS_MAX_DIMS);
    entry->ndim = (int32_t)ndim;
    *bytes = entry->dtype->bytes;
    for (size_t d = 0; d < ndim; d++) {
        uint64_t extent;
        if (!json_u64(json_array_get(shape, d), &extent))
            return demo_fail(error, "%s: tensor '%s': extent %zu of its shape is no whole number ≥ 0", path,
                             SHOWN(entry->name), d);
        if (__builtin_mul_overflow(*bytes, extent, bytes))
            return demo_fail(error, "%s: tensor '%s': its shape overflows 64 bits", path, SHOWN(entry->name));
        entry->shape[d] = (int64_t)extent;
    }
    return true;
}

/* Fills begin and end, which must lie inside the data and hold exactly `bytes`. */
static bool parse_offsets(const char *path, const json_t *offsets, uint64_t bytes, uint64_t data_bytes,
                          safetensors_entry *entry, demo_error *error)
{
    if (json_array_size(offsets) != 2 || !json_u64(json_array_get(offsets, 0), &entry->begin) ||
        !json_u64(json_array_get(offsets, 1), &entry->end) || entry->begin > entry->end)
        return demo_fail(error, "%s: tensor '%s': data_offsets must be two rising whole numbers", path,
                         SHOWN(entry->name));
    if (entry->end - entry->begin != bytes)
        return demo_fail(error, "%s: tensor '%s' takes %" PRIu64 " bytes by its offsets, %" PRIu64 " by its shape",
                         path, SHOWN(entry->name), entry->end - entry->begin, bytes);
    if (entry->end > data_bytes)
        return demo_fail(error,
                         "%s: tensor '%s' ends at byte %" PRIu64 " of the data, but the file holds only %" PRIu64
                         ": it is truncated",
                         path, SHOWN(entry->name), entry->end, data_bytes);
    return true;
}

static bool parse_entry(const char *path, const char *name, const json_t *value, uint64_t data_bytes,
                        safetensors_entry *entry, demo_error *error)
{
    entry->name = strdup(name);
    if (!entry->name) return demo_fail(error, "out of memory");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    entry->dtype = dtype_find(dtype);
    if (!entry->dtype)
        return demo_fail(error, "%s: tensor '%s': dtype %s is not known", path, SHOWN(name),
                         dtype ? SHOWN(dtype) : "(none)");
    uint64_t bytes = 0;
    return parse_shape(path, json_object_get(value, "shape"), entry, &bytes, error) &&
           parse_offsets(path, json_object_get(value, "data_offsets"), bytes, data_bytes, entry, error);
}

static int compare_begin(const void *left, const void *right)
{
    const safetensors_entry *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

/* Checks that the tensors, ordered by place, follow each other without gap or overlap, up to the end. */
static bool check_cover(const char *path, const safetensors_table *table, uint64_t data_bytes, demo_error *error)
{
    uint64_t covered = 0;
    for (size_t i = 0; i < table->count; i++) {
        const safetensors_entry *entry = &table->entries[i];
        if (entry->begin < covered)
            return demo_fail(error, "%s: tensor '%s' overlaps tensor '%s'", path, SHOWN(entry->name),
                             SHOWN(table->entries[i - 1].name));
        if (entry->begin > covered)
            return demo_fail(error, "%s: %" PRIu64 " bytes before tensor '%s' belong to no tensor", path,
                             entry->begin - covered, SHOWN(entry->name));
        covered = entry->end;
    }
    if (covered != data_bytes)
        return demo_fail(error, "%s: %" PRIu64 " bytes after tensor '%s' belong to no tensor", path,
                         data_bytes - covered, table->count ? SHOWN(table->entries[table->count - 1].name) : "(none)");
    return true;
}

static bool parse_entries(const char *path, json_t *root, uint64_t data_bytes, safetensors_table *table,
                          demo_error *error)
{
    table->entries = demo_calloc(error, json_object_size(root), sizeof *table->entries);
    if (!table->entries) return false;
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        if (!parse_entry(path, name, value, data_bytes, &table->entries[table->count++], error)) return false;
    }
    qsort(table->entries, table->count, sizeof *table->entries, compare_begin);
    return check_cover(path, table, data_bytes, error);
}

bool safetensors_table_parse(const char *path, const char *json, size_t json_bytes, uint64_t data_bytes,
                             safetensors_table *table, demo_error *error)
{
    json_error_t trouble;
    json_t *root = json_loadb(json, json_bytes, JSON_REJECT_DUPLICATES, &trouble);
    if (!root)
        return demo_fail(error, "%s: the header is not JSON: %s at byte %d", path, SHOWN(trouble.text),
                         trouble.position);
    bool ok = json_is_object(root) ? parse_entries(path, root, data_bytes, table, error)
                                   : demo_fail(error, "%s: the header is no JSON object", path);
    json_decref(root);
    return ok;
}

void safetensors_table_free(safetensors_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free(table->entries[i].name);
    free(table->entries);
    *table = (safetensors_table){0};
}

const safetensors_entry *safetensors_table_find(const safetensors_table *table, const char *name)
{
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(table->entries[i].name, name) == 0) return &table->entries[i];
    return NULL;
}
