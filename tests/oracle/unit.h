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

#endif
