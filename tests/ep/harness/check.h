/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that work on any thread and in forked processes, where cmocka's assertions do not: a failed check prints, is
 * counted for its thread, and gives false. The test itself asserts at the end that no rank counted any. */
#ifndef TESTS_EP_HARNESS_CHECK_H
#define TESTS_EP_HARNESS_CHECK_H

#include <expar/expar.h>
#include <stdbool.h>
#include <stddef.h>

/* Says as which rank this thread's checks print, and starts its count at 0. */
void check_begin(int32_t rank);
/* Failed checks of this thread since then. */
int64_t check_failures(void);

#define CHECK(condition, ...) check_that((condition), __FILE__, __LINE__, __VA_ARGS__)
bool check_that(bool holds, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The call returned `expected`; prints the library's error text when it did not. */
#define CHECK_STATUS(expected, call) check_status((expected), (call), #call, __FILE__, __LINE__)
#define CHECK_OK(call)               CHECK_STATUS(EXPAR_OK, call)
bool check_status(expar_status expected, expar_status got, const char *call, const char *file, int line);

/* The text of the last error holds each of the words. */
#define CHECK_TEXT(...) check_text(__FILE__, __LINE__, (const char *const[]){__VA_ARGS__, NULL})
bool check_text(const char *file, int line, const char *const *words);

/* Memory that a failing call has to leave alone: filled before it, and checked after it to be as it was. `call` is
   "a dispatch". A result's struct_size is the caller's to set. */
void check_fill(void *memory, size_t bytes);
void check_filled(const void *memory, size_t bytes, const char *call);
#define CHECK_RESULT_LEFT(result, call)                                                                                \
    check_filled(&(result)->struct_size + 1, sizeof *(result) - sizeof(result)->struct_size, call)

#endif
