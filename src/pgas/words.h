/* SPDX-License-Identifier: Apache-2.0 */
/* words: comparing words of symmetric memory with values, for waits of the host and on streams. Private to pgas. */
#ifndef EXPAR_PGAS_WORDS_H
#define EXPAR_PGAS_WORDS_H

#include <expar/wait.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The words' own kind of number: bytes is 2, 4 or 8. */
typedef struct words_type {
    size_t bytes;
    bool is_signed;
} words_type;

/* The comparison as a sign, for texts; NULL: there is no such comparison. */
const char *words_sign(expar_cmp cmp);
/* Widens the low bytes of `raw` to 64 bits. */
uint64_t words_widen(words_type type, uint64_t raw);
/* Loads word i. Acquire: what the writer did before its release of the word is seen after it. */
uint64_t words_load(words_type type, const void *words, size_t i);
/* Returns whether seen and value, both widened, compare as asked. */
bool words_hold(words_type type, uint64_t seen, expar_cmp cmp, uint64_t value);

/* A value as text, in its own kind of number. Returns `text`. */
typedef char words_text[24];
const char *words_show(words_type type, uint64_t value, words_text text);

#endif
