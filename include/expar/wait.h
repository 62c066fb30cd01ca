/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for, and tests, words of this rank's own copy of the symmetric heap. Errors as in expar/rma.h. A wait ends with
 * EXPAR_ERR_PEER after a death, or at the group's late limit. It also does when some rank is silent for the group's
 * time-out ("silent: rank 2"; that rank is gone from then on). It ends with EXPAR_ERR_INTERRUPTED when it is
 * interrupted. The text then has the value of the word. At the late limit it also says what each rank is doing, as far
 * as that fits: the library does not know which rank will change the word. */
#ifndef EXPAR_WAIT_H
#define EXPAR_WAIT_H

#include <expar/memory.h>
#include <expar/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum expar_cmp {
    EXPAR_CMP_EQ = 0,
    EXPAR_CMP_NE,
    EXPAR_CMP_GT,
    EXPAR_CMP_GE,
    EXPAR_CMP_LT,
    EXPAR_CMP_LE
} expar_cmp;

/* Waits until this rank's own word compares as asked with `value`; it acquires what was written before it. *seen (may
   be NULL) gets the value that ended the wait. */
EXPAR_API expar_status expar_signal_wait_until(expar_group *group, const uint64_t *signal, expar_cmp cmp,
                                               uint64_t value, uint64_t *seen);

/* The index that the any forms and the tests give when no word is left to look at, or none holds. */
#define EXPAR_NO_INDEX SIZE_MAX

/* The words whose `skip` is 0 take part, out of `count` words (skip may be NULL: all do). The vector forms compare word
 * i with values[i].
 *   all:  until every word holds.
 *   any:  until one holds; *index says which. Words take turns: the search starts after the last one found.
 *   some: until at least one holds; *found says how many do, and indices[0 … *found) which.
 * The tests look once: *holds is 1 or 0; *index is EXPAR_NO_INDEX, or *found 0, when none holds. A set without words
 * ends at once: all holds, any gives EXPAR_NO_INDEX, some finds 0. */
#define EXPAR_WAIT_DECLARE(T, S)                                                                                       \
    EXPAR_API expar_status expar_wait_until_##S(expar_group *group, const T *word, expar_cmp cmp, T value, T *seen);   \
    EXPAR_API expar_status expar_wait_until_all_##S(expar_group *group, const T *words, size_t count, const int *skip, \
                                                    expar_cmp cmp, T value);                                           \
    EXPAR_API expar_status expar_wait_until_any_##S(expar_group *group, const T *words, size_t count, const int *skip, \
                                                    expar_cmp cmp, T value, size_t *index);                            \
    EXPAR_API expar_status expar_wait_until_some_##S(expar_group *group, const T *words, size_t count,                 \
                                                     size_t *indices, const int *skip, expar_cmp cmp, T value,         \
                                                     size_t *found);                                                   \
    EXPAR_API expar_status expar_wait_until_all_vector_##S(expar_group *group, const T *words, size_t count,           \
                                                           const int *skip, expar_cmp cmp, const T *values);           \
    EXPAR_API expar_status expar_wait_until_any_vector_##S(expar_group *group, const T *words, size_t count,           \
                                                           const int *skip, expar_cmp cmp, const T *values,            \
                                                           size_t *index);                                             \
    EXPAR_API expar_status expar_wait_until_some_vector_##S(expar_group *group, const T *words, size_t count,          \
                                                            size_t *indices, const int *skip, expar_cmp cmp,           \
                                                            const T *values, size_t *found);                           \
    EXPAR_API expar_status expar_test_##S(expar_group *group, const T *word, expar_cmp cmp, T value, int *holds);      \
    EXPAR_API expar_status expar_test_all_##S(expar_group *group, const T *words, size_t count, const int *skip,       \
                                              expar_cmp cmp, T value, int *holds);                                     \
    EXPAR_API expar_status expar_test_any_##S(expar_group *group, const T *words, size_t count, const int *skip,       \
                                              expar_cmp cmp, T value, size_t *index);                                  \
    EXPAR_API expar_status expar_test_some_##S(expar_group *group, const T *words, size_t count, size_t *indices,      \
                                               const int *skip, expar_cmp cmp, T value, size_t *found);                \
    EXPAR_API expar_status expar_test_all_vector_##S(expar_group *group, const T *words, size_t count,                 \
                                                     const int *skip, expar_cmp cmp, const T *values, int *holds);     \
    EXPAR_API expar_status expar_test_any_vector_##S(expar_group *group, const T *words, size_t count,                 \
                                                     const int *skip, expar_cmp cmp, const T *values, size_t *index);  \
    EXPAR_API expar_status expar_test_some_vector_##S(expar_group *group, const T *words, size_t count,                \
                                                      size_t *indices, const int *skip, expar_cmp cmp,                 \
                                                      const T *values, size_t *found);
EXPAR_WAIT_TYPES(EXPAR_WAIT_DECLARE)
#undef EXPAR_WAIT_DECLARE

#ifdef __cplusplus
}
#endif
#endif
