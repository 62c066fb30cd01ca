/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka, behind the headers that it needs and does not include itself. */
#ifndef TESTS_ORACLE_UNIT_H
#define TESTS_ORACLE_UNIT_H

/* clang-format off */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

/* The first elements of an array. */
#define ASSERT_ARRAY(actual, ...)                                                                                      \
    do {                                                                                                               \
        const __typeof__((actual)[0]) expected_[] = {__VA_ARGS__};                                                     \
        for (size_t i_ = 0; i_ < sizeof expected_ / sizeof expected_[0]; i_++)                                         \
            assert_int_equal((actual)[i_], expected_[i_]);                                                             \
    } while (0)

#endif
