/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for words of one's own, and testing them: the public calls of expar/wait.h. */
#include "pgas/target.h"
#include "pgas/words.h"
#include <expar/wait.h>

#include <stdio.h>
#include <stdlib.h>

/* Words of this rank and what they are compared with. */
typedef struct word_set {
    const char *call, *name; /* for error texts */
    const void *words;
    size_t count;
    words_type type;
    const int *skip; /* NULL: none is left out */
    expar_cmp cmp;
    uint64_t value;     /* sign-extended when signed */
    const void *values; /* instead, one a word; else NULL */
    kinds_place place;  /* of the words, once checked */
    void *image;        /* device words: a copy of all of them, renewed before each look; else NULL */
} word_set;

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static uint64_t load_word(const word_set *set, size_t i)
{
    return words_load(set->type, set->image ? set->image : set->words, i);
}

static uint64_t value_of(const word_set *set, size_t i)
{
    return set->values ? words_load(set->type, set->values, i) : set->value;
}

static bool word_holds(const word_set *set, size_t i, uint64_t *seen)
{
    *seen = load_word(set, i);
    return words_hold(set->type, *seen, set->cmp, value_of(set, i));
}

static bool takes_part(const word_set *set, size_t i)
{
    return !set->skip || set->skip[i] == 0;
}

static bool is_empty(const word_set *set)
{
    size_t i = 0;
    while (i < set->count && !takes_part(set, i))
        i++;
    return i == set->count;
}

/* ---- looking at a set -------------------------------------------------------------------------------------------- */

/* The result of a look, for all, any and some; the looker finds out which of them it is. */
typedef struct find {
    size_t first;    /* all: the first word that may not hold yet; any: the word that holds */
    size_t *indices; /* some: where to write */
    size_t found;
    uint64_t seen; /* one: the value that held */
} find;
typedef bool (*look)(const word_set *set, find *result);

static bool look_one(const word_set *set, find *result)
{
    return word_holds(set, 0, &result->seen);
}

/* A word that has held once need not hold any more. */
static bool look_all(const word_set *set, find *result)
{
    uint64_t seen;
    while (result->first < set->count && (!takes_part(set, result->first) || word_holds(set, result->first, &seen)))
        result->first++;
    return result->first == set->count;
}

/* The start of this thread's next search for any word: after the last one found, so that no word starves. */
static _Thread_local size_t any_start;

static bool look_any(const word_set *set, find *result)
{
    uint64_t seen;
    for (size_t step = 0; step < set->count; step++) {
        size_t i = (any_start + step) % set->count;
        if (!takes_part(set, i) || !word_holds(set, i, &seen)) continue;
        result->first = i;
        any_start = i + 1;
        return true;
    }
    return false;
}

static bool look_some(const word_set *set, find *result)
{
    uint64_t seen;
    result->found = 0;
    for (size_t i = 0; i < set->count; i++)
        if (takes_part(set, i) && word_holds(set, i, &seen)) result->indices[result->found++] = i;
    return result->found > 0;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static expar_status check_skip(const expar_group *group, const word_set *set)
{
    return group && set->count > 0 ? target_check_host(set->call, group, "skip", set->skip) : EXPAR_OK;
}

static expar_status check_set(expar_group *group, word_set *set)
{
    size_t bytes;
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", set->call);
    if (!words_sign(set->cmp))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: cmp %d, expected EXPAR_CMP_EQ to EXPAR_CMP_LE", set->call,
                         (int)set->cmp);
    if (set->count == 0) return sym_check_self(group->sym, set->call);
    if (size_mul_overflows(set->count, set->type.bytes, &bytes))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: count %zu, expected at most %zu words", set->call, set->count,
                         SIZE_MAX / set->type.bytes);
    expar_status status = target_check_word(set->call, group, set->name, set->words, set->type.bytes, &set->place);
    if (status == EXPAR_OK) status = target_check_place(set->call, group, set->name, set->words, bytes, &set->place);
    if (status == EXPAR_OK) status = check_skip(group, set);
    if (status == EXPAR_OK) status = target_check_host(set->call, group, "values", set->values);
    return status == EXPAR_OK ? sym_check_self(group->sym, set->call) : status;
}

/* Results that a call writes by the CPU; NULL is allowed. */
static expar_status check_result(const expar_group *group, const word_set *set, const char *name, const void *result)
{
    return group ? target_check_host(set->call, group, name, result) : EXPAR_OK;
}

/* Device words are compared in a copy, which a look renews. */
static expar_status image_make(word_set *set)
{
    if (set->count == 0 || set->place.memory != TRANSPORT_DEVICE) return EXPAR_OK;
    set->image = malloc(set->count * set->type.bytes);
    if (set->image) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY, "%s: no memory for a copy of %zu words", set->call, set->count);
}

/* Adds the first word that is still waited for. */
static expar_status say_what_is_missing(const word_set *set, expar_status status)
{
    uint64_t seen;
    words_text has, wants;
    char why[ERROR_TEXT_BYTES];
    size_t i = 0;
    while (i + 1 < set->count && (!takes_part(set, i) || word_holds(set, i, &seen)))
        i++;
    snprintf(why, sizeof why, "%s", expar_last_error());
    return error_set(status, "%s; %s at offset %llu of the heap holds %s, waited for %s %s: any rank may change it",
                     why, set->name, (unsigned long long)(set->place.offset + i * set->type.bytes),
                     words_show(set->type, load_word(set, i), has), words_sign(set->cmp),
                     words_show(set->type, value_of(set, i), wants));
}

static expar_status look_at_set(expar_group *group, const word_set *set, look has_ended, find *result, bool *ended)
{
    expar_status status = EXPAR_OK;
    if (set->image) status = target_load(set->call, group, set->words, set->image, set->count * set->type.bytes);
    if (status == EXPAR_OK) *ended = has_ended(set, result);
    return status;
}

static expar_status wait_set(expar_group *group, const word_set *set, look has_ended, find *result)
{
    bool ended = false;
    sym_rest rest = sym_rest_begin_open(group->sym, set->call, set->place.offset, set->count * set->type.bytes);
    expar_status status = look_at_set(group, set, has_ended, result, &ended);
    while (status == EXPAR_OK && !ended && (status = sym_rest_turn(&rest)) == EXPAR_OK)
        status = look_at_set(group, set, has_ended, result, &ended);
    sym_rest_end(&rest);
    return rest.timed_out ? say_what_is_missing(set, status) : status;
}

/* The public calls differ in what ends the wait, and in whether they wait at all. */
typedef enum wait_kind { WAIT, TEST } wait_kind;

static expar_status run_set(expar_group *group, word_set *set, wait_kind how, look has_ended, find *result, bool *ended)
{
    expar_status status = check_set(group, set);
    if (status == EXPAR_OK) status = image_make(set);
    if (status != EXPAR_OK) return status;
    *ended = how == WAIT;
    if (how == WAIT)
        status = wait_set(group, set, has_ended, result);
    else
        status = look_at_set(group, set, has_ended, result, ended);
    if (how == TEST && *ended) sym_behold(group->sym);
    free(set->image);
    set->image = NULL;
    return status;
}

static expar_status null_output(const word_set *set, const char *name)
{
    return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", set->call, name);
}

/* A vector form without its vector would compare with nothing. */
static bool lacks_values(const word_set *set, bool vector)
{
    return vector && set->count > 0 && !set->values;
}

/* seen: the caller's, of whatever width. */
static expar_status run_one(expar_group *group, word_set *set, const void *seen, uint64_t *last)
{
    find result = {0};
    bool ended;
    expar_status status = check_result(group, set, "seen", seen);
    if (status == EXPAR_OK) status = run_set(group, set, WAIT, look_one, &result, &ended);
    if (status == EXPAR_OK) *last = result.seen;
    return status;
}

/* holds: where a test puts its answer; NULL when the call waits. */
static expar_status run_all(expar_group *group, word_set *set, bool vector, wait_kind how, int *holds)
{
    find result = {0};
    bool ended;
    if (how == TEST && !holds) return null_output(set, "holds");
    if (lacks_values(set, vector)) return null_output(set, "values");
    expar_status status = check_result(group, set, "holds", holds);
    if (status == EXPAR_OK) status = run_set(group, set, how, look_all, &result, &ended);
    if (status == EXPAR_OK && holds) *holds = ended;
    return status;
}

static expar_status run_any(expar_group *group, word_set *set, bool vector, wait_kind how, size_t *index)
{
    find result = {0};
    bool ended;
    if (!index) return null_output(set, "index");
    if (lacks_values(set, vector)) return null_output(set, "values");
    expar_status status = check_result(group, set, "index", index);
    if (status == EXPAR_OK) status = check_skip(group, set);
    if (status == EXPAR_OK) status = run_set(group, set, is_empty(set) ? TEST : how, look_any, &result, &ended);
    if (status == EXPAR_OK) *index = ended ? result.first : EXPAR_NO_INDEX;
    return status;
}

static expar_status run_some(expar_group *group, word_set *set, bool vector, wait_kind how, size_t *indices,
                             size_t *found)
{
    find result = {.indices = indices};
    bool ended;
    if (!found) return null_output(set, "found");
    if (set->count > 0 && !indices) return null_output(set, "indices");
    if (lacks_values(set, vector)) return null_output(set, "values");
    expar_status status = check_result(group, set, "found", found);
    if (status == EXPAR_OK && set->count > 0) status = check_result(group, set, "indices", indices);
    if (status == EXPAR_OK) status = check_skip(group, set);
    if (status == EXPAR_OK) status = run_set(group, set, is_empty(set) ? TEST : how, look_some, &result, &ended);
    if (status == EXPAR_OK) *found = result.found;
    return status;
}

/* ---- the public calls -------------------------------------------------------------------------------------------- */

expar_status expar_signal_wait_until(expar_group *group, const uint64_t *signal, expar_cmp cmp, uint64_t value,
                                     uint64_t *seen)
{
    uint64_t last;
    word_set set = {.call = "expar_signal_wait_until",
                    .name = "signal",
                    .words = signal,
                    .count = 1,
                    .type = {.bytes = sizeof *signal},
                    .cmp = cmp,
                    .value = value};
    expar_status status = run_one(group, &set, seen, &last);
    if (status == EXPAR_OK && seen) *seen = last;
    return group_ended(group, status);
}

#define SET(T, call_name, words_, count_, skip_)                                                                       \
    word_set set = {.call = call_name,                                                                                 \
                    .name = #words_,                                                                                   \
                    .words = words_,                                                                                   \
                    .count = count_,                                                                                   \
                    .type = {sizeof(T), (T)-1 < (T)1},                                                                 \
                    .skip = skip_,                                                                                     \
                    .cmp = cmp}

/* all, any and some of words, against one value: the waiting and the testing form. */
#define SCALAR_DEFINE(T, S)                                                                                            \
    expar_status expar_wait_until_all_##S(expar_group *group, const T *words, size_t count, const int *skip,           \
                                          expar_cmp cmp, T value)                                                      \
    {                                                                                                                  \
        SET(T, "expar_wait_until_all_" #S, words, count, skip);                                                        \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_all(group, &set, false, WAIT, NULL));                                            \
    }                                                                                                                  \
    expar_status expar_test_all_##S(expar_group *group, const T *words, size_t count, const int *skip, expar_cmp cmp,  \
                                    T value, int *holds)                                                               \
    {                                                                                                                  \
        SET(T, "expar_test_all_" #S, words, count, skip);                                                              \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_all(group, &set, false, TEST, holds));                                           \
    }                                                                                                                  \
    expar_status expar_wait_until_any_##S(expar_group *group, const T *words, size_t count, const int *skip,           \
                                          expar_cmp cmp, T value, size_t *index)                                       \
    {                                                                                                                  \
        SET(T, "expar_wait_until_any_" #S, words, count, skip);                                                        \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_any(group, &set, false, WAIT, index));                                           \
    }                                                                                                                  \
    expar_status expar_test_any_##S(expar_group *group, const T *words, size_t count, const int *skip, expar_cmp cmp,  \
                                    T value, size_t *index)                                                            \
    {                                                                                                                  \
        SET(T, "expar_test_any_" #S, words, count, skip);                                                              \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_any(group, &set, false, TEST, index));                                           \
    }                                                                                                                  \
    expar_status expar_wait_until_some_##S(expar_group *group, const T *words, size_t count, size_t *indices,          \
                                           const int *skip, expar_cmp cmp, T value, size_t *found)                     \
    {                                                                                                                  \
        SET(T, "expar_wait_until_some_" #S, words, count, skip);                                                       \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_some(group, &set, false, WAIT, indices, found));                                 \
    }                                                                                                                  \
    expar_status expar_test_some_##S(expar_group *group, const T *words, size_t count, size_t *indices,                \
                                     const int *skip, expar_cmp cmp, T value, size_t *found)                           \
    {                                                                                                                  \
        SET(T, "expar_test_some_" #S, words, count, skip);                                                             \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_some(group, &set, false, TEST, indices, found));                                 \
    }

/* The same against one value a word. */
#define VECTOR_DEFINE(T, S)                                                                                            \
    expar_status expar_wait_until_all_vector_##S(expar_group *group, const T *words, size_t count, const int *skip,    \
                                                 expar_cmp cmp, const T *values)                                       \
    {                                                                                                                  \
        SET(T, "expar_wait_until_all_vector_" #S, words, count, skip);                                                 \
        set.values = values;                                                                                           \
        return group_ended(group, run_all(group, &set, true, WAIT, NULL));                                             \
    }                                                                                                                  \
    expar_status expar_test_all_vector_##S(expar_group *group, const T *words, size_t count, const int *skip,          \
                                           expar_cmp cmp, const T *values, int *holds)                                 \
    {                                                                                                                  \
        SET(T, "expar_test_all_vector_" #S, words, count, skip);                                                       \
        set.values = values;                                                                                           \
        return group_ended(group, run_all(group, &set, true, TEST, holds));                                            \
    }                                                                                                                  \
    expar_status expar_wait_until_any_vector_##S(expar_group *group, const T *words, size_t count, const int *skip,    \
                                                 expar_cmp cmp, const T *values, size_t *index)                        \
    {                                                                                                                  \
        SET(T, "expar_wait_until_any_vector_" #S, words, count, skip);                                                 \
        set.values = values;                                                                                           \
        return group_ended(group, run_any(group, &set, true, WAIT, index));                                            \
    }                                                                                                                  \
    expar_status expar_test_any_vector_##S(expar_group *group, const T *words, size_t count, const int *skip,          \
                                           expar_cmp cmp, const T *values, size_t *index)                              \
    {                                                                                                                  \
        SET(T, "expar_test_any_vector_" #S, words, count, skip);                                                       \
        set.values = values;                                                                                           \
        return group_ended(group, run_any(group, &set, true, TEST, index));                                            \
    }                                                                                                                  \
    expar_status expar_wait_until_some_vector_##S(expar_group *group, const T *words, size_t count, size_t *indices,   \
                                                  const int *skip, expar_cmp cmp, const T *values, size_t *found)      \
    {                                                                                                                  \
        SET(T, "expar_wait_until_some_vector_" #S, words, count, skip);                                                \
        set.values = values;                                                                                           \
        return group_ended(group, run_some(group, &set, true, WAIT, indices, found));                                  \
    }                                                                                                                  \
    expar_status expar_test_some_vector_##S(expar_group *group, const T *words, size_t count, size_t *indices,         \
                                            const int *skip, expar_cmp cmp, const T *values, size_t *found)            \
    {                                                                                                                  \
        SET(T, "expar_test_some_vector_" #S, words, count, skip);                                                      \
        set.values = values;                                                                                           \
        return group_ended(group, run_some(group, &set, true, TEST, indices, found));                                  \
    }

#define SINGLE_DEFINE(T, S)                                                                                            \
    expar_status expar_wait_until_##S(expar_group *group, const T *word, expar_cmp cmp, T value, T *seen)              \
    {                                                                                                                  \
        uint64_t last;                                                                                                 \
        SET(T, "expar_wait_until_" #S, word, 1, NULL);                                                                 \
        set.value = (uint64_t)value;                                                                                   \
        expar_status status = run_one(group, &set, seen, &last);                                                       \
        if (status == EXPAR_OK && seen) *seen = (T)last;                                                               \
        return group_ended(group, status);                                                                             \
    }                                                                                                                  \
    expar_status expar_test_##S(expar_group *group, const T *word, expar_cmp cmp, T value, int *holds)                 \
    {                                                                                                                  \
        SET(T, "expar_test_" #S, word, 1, NULL);                                                                       \
        set.value = (uint64_t)value;                                                                                   \
        return group_ended(group, run_all(group, &set, false, TEST, holds));                                           \
    }

EXPAR_WAIT_TYPES(SINGLE_DEFINE)
EXPAR_WAIT_TYPES(SCALAR_DEFINE)
EXPAR_WAIT_TYPES(VECTOR_DEFINE)
