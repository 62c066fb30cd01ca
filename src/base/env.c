/* SPDX-License-Identifier: Apache-2.0 */
/* The environment: the table of variables, and lookups that reject bad values with a text. */
#include "base/base.h"
#include "base/env_table.h"
#include "base/shown.h"

#include <assert.h>
#include <errno.h>
#include <expar/info.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ENV_ROW(name, values, fallback, meaning) {name, values, fallback, meaning},
static const env_entry entries[] = {ENV_TABLE(ENV_ROW)};
#undef ENV_ROW

/* getenv reads a table that setenv may move. So a thread that looks a variable up here holds this lock, and so does a
   thread that changes one. */
static pthread_mutex_t changes = PTHREAD_MUTEX_INITIALIZER;

const env_entry *env_table(size_t *count)
{
    *count = ARRAY_LENGTH(entries);
    return entries;
}

bool expar_env_describe(size_t index, const char **name, const char **values, const char **fallback,
                        const char **meaning)
{
    if (index >= ARRAY_LENGTH(entries)) return false;
    if (name) *name = entries[index].name;
    if (values) *values = entries[index].values;
    if (fallback) *fallback = entries[index].fallback;
    if (meaning) *meaning = entries[index].meaning;
    return true;
}

static bool is_listed(const char *name)
{
    for (size_t i = 0; i < ARRAY_LENGTH(entries); i++) {
        if (strcmp(entries[i].name, name) == 0) return true;
    }
    return false;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

void env_change_begin(void)
{
    pthread_mutex_lock(&changes);
}

void env_change_end(void)
{
    pthread_mutex_unlock(&changes);
}

const char *env_foreign(const char *name)
{
    pthread_mutex_lock(&changes);
    const char *text = getenv(name);
    pthread_mutex_unlock(&changes);
    return text && *text ? text : NULL;
}

const char *env_string(const char *name)
{
    assert(is_listed(name) && "a variable that is not in env_table.h");
    return env_foreign(name);
}

/* Accepts digits, perhaps after '-': strtoll would take blanks and '+', too. */
static bool parse_int(const char *text, int64_t *value)
{
    if (!is_digit(text[text[0] == '-'])) return false;
    char *end;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    if (*end || errno == ERANGE) return false;
    *value = number;
    return true;
}

static expar_status read_int(const char *name, const char *text, int64_t low, int64_t high, int64_t *value)
{
    int64_t number;
    if (!text) return EXPAR_OK;
    if (!parse_int(text, &number) || number < low || number > high)
        return error_set(EXPAR_ERR_ARGUMENT, "%s=%s: expected a whole number from %" PRId64 " to %" PRId64, name,
                         SHOWN(text), low, high);
    *value = number;
    return EXPAR_OK;
}

expar_status env_int(const char *name, int64_t low, int64_t high, int64_t *value)
{
    return read_int(name, env_string(name), low, high, value);
}

expar_status env_foreign_int(const char *name, int64_t low, int64_t high, int64_t *value)
{
    return read_int(name, env_foreign(name), low, high, value);
}

/* Reads "512", "64K", …. Returns false for other texts and for numbers that do not fit. strtoull would take a sign. */
static bool env_parse_bytes(const char *text, uint64_t *value)
{
    static const char suffixes[] = "KMGT";
    if (!is_digit(text[0])) return false;
    char *end;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (errno == ERANGE) return false;
    uint64_t unit = 1;
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;
    if (suffix) {
        unit <<= 10 * (suffix - suffixes + 1);
        end++;
    }
    return !*end && !size_mul_overflows(number, unit, value);
}

expar_status env_bytes(const char *name, uint64_t low, uint64_t high, uint64_t *value)
{
    const char *text = env_string(name);
    if (!text) return EXPAR_OK;
    uint64_t number;
    if (!env_parse_bytes(text, &number) || number < low || number > high) {
        return error_set(EXPAR_ERR_ARGUMENT,
                         "%s=%s: expected bytes from %" PRIu64 " to %" PRIu64 ", with or without a suffix K, M, G, T",
                         name, SHOWN(text), low, high);
    }
    *value = number;
    return EXPAR_OK;
}

#define SECONDS_MAX 1000000000

/* Written by hand, since strtod takes the decimal point from the program's locale. Digits past milliseconds are
   dropped. */
static bool parse_seconds(const char *text, int64_t *milliseconds)
{
    if (!is_digit(text[0])) return false;
    int64_t total = 0;
    for (; is_digit(*text); text++) {
        total = total * 10 + (*text - '0');
        if (total > SECONDS_MAX) return false;
    }
    total *= 1000;
    if (*text == '.') {
        text++;
        for (int64_t unit = 100; is_digit(*text); text++, unit /= 10)
            total += (*text - '0') * unit;
    }
    *milliseconds = total;
    return !*text;
}

expar_status env_seconds_ms(const char *name, int64_t *milliseconds)
{
    const char *text = env_string(name);
    if (!text) return EXPAR_OK;
    int64_t number;
    if (!parse_seconds(text, &number) || number < 1) {
        return error_set(EXPAR_ERR_ARGUMENT, "%s=%s: expected seconds from 0.001 to %d", name, SHOWN(text),
                         SECONDS_MAX);
    }
    *milliseconds = number;
    return EXPAR_OK;
}
