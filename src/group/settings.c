/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a group: checked, and completed from the environment and the defaults. */
#include "base/shown.h"
#include "group/parts.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 30000
#define MAX_TIMEOUT_MS     ((int64_t)1000 * 86400 * 365)
#define DEFAULT_SPIN_US    50 /* more gains nothing, half of it loses a lot (docs/internals/measurements/cpu.md) */
#define MAX_SPIN_US        1000000
#define DEFAULT_HEAP_BYTES ((uint64_t)16 << 30)
#define MIN_HEAP_BYTES     ((uint64_t)1 << 20)
#define MAX_HEAP_BYTES     ((uint64_t)1 << 46)
#define HEAP_GRAIN_BYTES   ((uint64_t)2 << 20)

expar_status group_options_copy(const char *call, const expar_group_options *options, expar_group_options *out)
{
    expar_group_options copy = EXPAR_GROUP_OPTIONS_INIT;
    if (options && (options->struct_size < sizeof options->struct_size || options->struct_size > sizeof copy))
        return error_set(EXPAR_ERR_ARGUMENT,
                         "%s: options.struct_size %zu, expected %zu to %zu (EXPAR_GROUP_OPTIONS_INIT)", call,
                         options->struct_size, sizeof options->struct_size, sizeof copy);
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

/* 0 means none, in the variable too. */
static expar_status read_late_limit(const char *call, int64_t given_ms, int64_t *out_ms)
{
    const char *text = env_string("EXPAR_LATE_LIMIT");
    if (given_ms < 0 || given_ms > MAX_TIMEOUT_MS)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.late_limit_ms %lld, expected 0 (default) to %lld", call,
                         (long long)given_ms, (long long)MAX_TIMEOUT_MS);
    *out_ms = given_ms;
    if (given_ms != 0 || !text || strcmp(text, "0") == 0) return EXPAR_OK;
    expar_status status = env_seconds_ms("EXPAR_LATE_LIMIT", out_ms);
    return status == EXPAR_OK ? EXPAR_OK : error_set(status, "%s, or 0: no limit", expar_last_error());
}

/* An option with two values, 1 and 2. With 0 a variable decides, which has a word for each value. */
typedef struct choice {
    const char *option, *variable, *words[2];
} choice;
static const choice heap_kind = {"heap_kind", "EXPAR_HEAP_KIND", {"dynamic", "static"}};
static const choice heap_pages = {"heap_pages", "EXPAR_HEAP_PAGES", {"system", "huge"}};

static expar_status read_choice(const char *call, const choice *c, int given, bool *second)
{
    const char *name = env_string(c->variable);
    if (given < 0 || given > 2)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.%s %d, expected 0 (default), 1 (%s) or 2 (%s)", call,
                         c->option, given, c->words[0], c->words[1]);
    *second = given == 2;
    if (given != 0 || !name) return EXPAR_OK;
    *second = strcmp(name, c->words[1]) == 0;
    if (*second || strcmp(name, c->words[0]) == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: %s=%s: expected %s or %s", call, c->variable, SHOWN(name), c->words[0],
                     c->words[1]);
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

static expar_status no_transport(const char *call, const char *name, size_t length)
{
    char one[SHOWN_MOST + 2];
    snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : sizeof one), name);
    return error_set(EXPAR_ERR_UNSUPPORTED, "%s: EXPAR_TRANSPORTS names '%s', this build has %s", call, SHOWN(one),
                     transport_names());
}

/* Checks that every name is that of a transport of this build. */
static expar_status check_transports(const char *call)
{
    const char *names = env_string("EXPAR_TRANSPORTS");
    while (names && *names) {
        size_t length = strcspn(names, ",");
        if (!transport_find(names, length)) return no_transport(call, names, length);
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
    if (status == EXPAR_OK) status = read_late_limit(call, options->late_limit_ms, &read.late_limit_ms);
    if (status == EXPAR_OK) status = read_choice(call, &heap_kind, (int)options->heap_kind, &read.fixed_heap);
    if (status == EXPAR_OK) status = read_heap_bytes(call, options->heap_bytes, read.fixed_heap, &read.heap_bytes);
    if (status == EXPAR_OK) status = read_choice(call, &heap_pages, (int)options->heap_pages, &read.huge_heap);
    read.spin_us = DEFAULT_SPIN_US;
    if (status == EXPAR_OK) status = env_int("EXPAR_SPIN", 0, MAX_SPIN_US, &read.spin_us);
    if (status == EXPAR_OK) status = check_transports(call);
    if (status == EXPAR_OK) *out = read;
    return status;
}
