/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz: the frame of the fuzzers. A target is one file: it calls a reader of files or frames that others wrote, and
 * checks the result. It is built in two ways:
 *
 *   build/fuzz     with clang's libFuzzer, AddressSanitizer and UBSan: `make fuzz` searches for inputs that break it
 *   other builds   with replay.c: a test reads the seeds and the inputs that are kept in corpus/ once more
 *
 * An input that broke a reader stays in corpus/, so every finding is a test from then on. */
#ifndef EXPAR_TESTS_FUZZ_FUZZ_H
#define EXPAR_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FUZZ_SEED_BYTES 4096

/* ---- defined by each target -------------------------------------------------------------------------------------- */

/* Reads one input. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Writes the seed of that number: an input that the reader accepts. Seeds come from the structs and functions of today,
   so they remain valid when a record changes. Returns its bytes; 0: there are no more. */
size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES]);

/* ---- for targets (fuzz.c) ---------------------------------------------------------------------------------------- */

/* Runs once, before the first input. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
/* A target calls this when its reader has accepted the whole input. */
void fuzz_accept(void);
/* Returns whether that was so since the last call of this. */
bool fuzz_was_accepted(void);
/* Ends the process with the place if the condition does not hold. */
#define fuzz_must(condition) fuzz_check((condition), #condition, __FILE__, __LINE__)
void fuzz_check(bool holds, const char *condition, const char *file, int line);
/* A text that a user may see has an end, is not empty, and does not steer a terminal. */
void fuzz_must_be_shown(const char *text);
/* Returns how many descriptors are open. It is the same before and after an input that leaks none. */
int fuzz_count_descriptors(void);
/* Writes a file with these bytes, which has no name but the path that is returned, until fuzz_file_close. */
const char *fuzz_file(const uint8_t *data, size_t bytes);
void fuzz_file_close(void);

#endif
