/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a group: checked, and completed from the environment and the defaults. */
#include "group/parts.h"

#include <string.h>

#define DEFAULT_TIMEOUT_MS 30000
#define MAX_TIMEOUT_MS     ((int64_t)1000 * 86400 * 365)
#define DEFAULT_HEAP_BYTES ((uint64_t)16 << 30)
#define MIN_HEAP_BYTES     ((uint64_t)1 << 20)
#define MAX_HEAP_BYTES     ((uint64_t)1 << 46)
#define HEAP_GRAIN_BYTES   ((uint64_t)2 << 20)

expar_status group_options_copy(const char *call, const expar_group_options *options, expar_group_options *out)
{
    expar_group_options copy = EXPAR_GROUP_OPTIONS_INIT;
    if (options && (options->struct_size == 0 || options->struct_size > sizeof copy))
        return error_set(EXPAR_ERR_ARGUMENT,
                         "%s: options.struct_size %zu, expected 1 to %zu (EXPAR_GROUP_OPTIONS_INIT)", call,
                         options->struct_size, sizeof copy);
    if (options) memcpy(&copy, options, options->struct_size);
    *out = copy;
    return EXPAR_OK;
}

static expar_status read_timeout(const char *call, const char *name, int64_t given_ms, const char *variable,
                                 int64_t *out_ms)
{
    if (given_ms < 0 || given_ms > MAX_TIMEOUT_MS)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.%s %lld, expected 0 (default) to %lld", call, name,
                         (long long)given_ms, (long long)MAX_TIMEOUT_MS);
    *out_ms = DEFAULT_TIMEOUT_MS;
    if (given_ms == 0) return env_seconds_ms(variable, out_ms);
    *out_ms = given_ms;
    return EXPAR_OK;
}

static expar_status read_heap_kind(const char *call, expar_heap_kind given, bool *fixed)
{
    const char *name = env_string("EXPAR_HEAP_KIND");
    if (given != EXPAR_HEAP_DEFAULT && given != EXPAR_HEAP_DYNAMIC && given != EXPAR_HEAP_STATIC)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.heap_kind %d, expected EXPAR_HEAP_DYNAMIC or _STATIC", call,
                         (int)given);
    *fixed = given == EXPAR_HEAP_STATIC;
    if (given != EXPAR_HEAP_DEFAULT || !name) return EXPAR_OK;
    *fixed = strcmp(name, "static") == 0;
    if (*fixed || strcmp(name, "dynamic") == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: EXPAR_HEAP_KIND=\"%.64s\", expected dynamic or static", call, name);
}

static expar_status read_heap_pages(const char *call, expar_heap_pages given, bool *huge)
{
    const char *name = env_string("EXPAR_HEAP_PAGES");
    if (given != EXPAR_PAGES_DEFAULT && given != EXPAR_PAGES_SYSTEM && given != EXPAR_PAGES_HUGE)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.heap_pages %d, expected EXPAR_PAGES_SYSTEM or _HUGE", call,
                         (int)given);
    *huge = given == EXPAR_PAGES_HUGE;
    if (given != EXPAR_PAGES_DEFAULT || !name) return EXPAR_OK;
    *huge = strcmp(name, "huge") == 0;
    if (*huge || strcmp(name, "system") == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: EXPAR_HEAP_PAGES=\"%.64s\", expected system or huge", call, name);
}

static expar_status read_heap_bytes(const char *call, size_t given_bytes, bool fixed, size_t *out_bytes)
{
    uint64_t bytes = given_bytes;
    expar_status status = EXPAR_OK;
    if (bytes == 0) {
        bytes = fixed ? 0 : DEFAULT_HEAP_BYTES;
        status = env_bytes("EXPAR_HEAP_SIZE", MIN_HEAP_BYTES, MAX_HEAP_BYTES, &bytes);
    }
    if (status != EXPAR_OK) return status;
    if (bytes == 0)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: a static heap needs a size: options.heap_bytes or EXPAR_HEAP_SIZE",
                         call);
    if (bytes < MIN_HEAP_BYTES || bytes > MAX_HEAP_BYTES)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.heap_bytes %llu, expected 0 (default) or %llu to %llu", call,
                         (unsigned long long)bytes, (unsigned long long)MIN_HEAP_BYTES,
                         (unsigned long long)MAX_HEAP_BYTES);
    *out_bytes = (size_t)align_up(bytes, HEAP_GRAIN_BYTES);
    return EXPAR_OK;
}

static expar_status read_ranks_per_node(const char *call, int32_t given, int32_t *out)
{
    int64_t value = given;
    if (given < 0)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.ranks_per_node %d, expected 0 (found out) or more", call,
                         given);
    expar_status status = given == 0 ? env_int("EXPAR_RANKS_PER_NODE", 1, INT32_MAX, &value) : EXPAR_OK;
    if (status == EXPAR_OK) *out = (int32_t)value;
    return status;
}

/* Every name is that of a transport of this build. */
static expar_status check_transports(const char *call)
{
    const char *names = env_string("EXPAR_TRANSPORTS");
    while (names && *names) {
        size_t length = strcspn(names, ",");
        if (!transport_find(names, length))
            return error_set(EXPAR_ERR_UNSUPPORTED, "%s: EXPAR_TRANSPORTS names '%.*s', this build has %s", call,
                             (int)length, names, transport_names());
        names += length;
        names += *names == ',';
    }
    return EXPAR_OK;
}

expar_status group_settings_read(const char *call, const expar_group_options *options, group_settings *out)
{
    group_settings read;
    expar_status status = read_ranks_per_node(call, options->ranks_per_node, &read.ranks_per_node);
    if (status == EXPAR_OK)
        status = read_timeout(call, "timeout_ms", options->timeout_ms, "EXPAR_TIMEOUT", &read.timeout_ms);
    if (status == EXPAR_OK)
        status = read_timeout(call, "bootstrap_timeout_ms", options->bootstrap_timeout_ms, "EXPAR_BOOTSTRAP_TIMEOUT",
                              &read.bootstrap_timeout_ms);
    if (status == EXPAR_OK) status = read_heap_kind(call, options->heap_kind, &read.fixed_heap);
    if (status == EXPAR_OK) status = read_heap_bytes(call, options->heap_bytes, read.fixed_heap, &read.heap_bytes);
    if (status == EXPAR_OK) status = read_heap_pages(call, options->heap_pages, &read.huge_heap);
    if (status == EXPAR_OK) status = check_transports(call);
    if (status == EXPAR_OK) *out = read;
    return status;
}
