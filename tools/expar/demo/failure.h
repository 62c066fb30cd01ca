/* SPDX-License-Identifier: Apache-2.0 */
/* Why a step of the demo failed: one line of text, passed up to the function that prints it, and the exit code that
 * goes with it. */
#ifndef EXPAR_DEMO_FAILURE_H
#define EXPAR_DEMO_FAILURE_H

#include <expar/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct demo_error {
    char text[512];
    int code; /* EXIT_FAILURE, or EX_USAGE for wrong arguments; set with the text */
} demo_error;

/* Writes the text and returns false: `return demo_fail(error, "…");` */
bool demo_fail(demo_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Does the same for wrong arguments of the user. */
bool demo_reject(demo_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Returns true for EXPAR_OK. Otherwise the text is the name of the call and the library's last error. */
bool demo_check(demo_error *error, const char *call, expar_status status);
/* malloc and calloc, which leave a text when they fail. Sizes are bounded by the model's limits. */
void *demo_alloc(demo_error *error, size_t bytes);
void *demo_calloc(demo_error *error, size_t count, size_t bytes);

#endif
