/* SPDX-License-Identifier: Apache-2.0 */
/* utf8: makes valid UTF-8, which JSON requires, from the bytes of the model. */
#ifndef EXPAR_DEMO_UTF8_H
#define EXPAR_DEMO_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The largest number of bytes that replace one byte. */
#define UTF8_REPLACEMENT_BYTES 3

/* Copies text, with U+FFFD for each byte that is not part of a valid character; returns the bytes written, at most
   UTF8_REPLACEMENT_BYTES · count. */
size_t utf8_clean(const uint8_t *text, size_t count, char *out);

#endif
