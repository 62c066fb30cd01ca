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
    int code; /* EXIT_FAILURE, or EX_USAGE for what was typed; set with the text */
} demo_error;

/* Writes the text and returns false: `return demo_fail(error, "…");` */
bool demo_fail(demo_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, for arguments that were typed and cannot be used. */
bool demo_refuse(demo_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* True for EXPAR_OK; else the library's last error becomes the text, with the name of the call before it. */
bool demo_check(demo_error *error, const char *call, expar_status status);
/* malloc and calloc that leave a text when they fail. Sizes are bounded by the model's limits. */
void *demo_alloc(demo_error *error, size_t bytes);
void *demo_calloc(demo_error *error, size_t count, size_t bytes);

#endif
