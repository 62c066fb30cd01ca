/* SPDX-License-Identifier: Apache-2.0 */
/* The shipped files as bytes, to be damaged. */
#ifndef TESTS_DEMO_SHIPPED_H
#define TESTS_DEMO_SHIPPED_H

#include <stddef.h>

/* All of data/moe-lm/<name>; the caller frees. Fails the running test when it cannot be read. */
void *shipped_read(const char *name, size_t *count);

#endif
