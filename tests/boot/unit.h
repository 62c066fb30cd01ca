/* SPDX-License-Identifier: Apache-2.0 */
/* Includes cmocka after the headers that it needs. */
#ifndef EXPAR_TESTS_BOOT_UNIT_H
#define EXPAR_TESTS_BOOT_UNIT_H

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
