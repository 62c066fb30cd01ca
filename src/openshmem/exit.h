/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a job with other libraries' names: by global exit, or by a call that fails. Each of the libraries has a
 * copy of exit.c, and begins its messages with its exit_library. */
#ifndef EXPAR_OPENSHMEM_EXIT_H
#define EXPAR_OPENSHMEM_EXIT_H

#include <expar/expar.h>

#include <stdbool.h>

extern const char exit_library[];

/* Watches for the exit of other PEs until exit_end. Collective. *watches is false if there is no thread to be had. */
expar_status exit_begin(expar_group *group, bool *watches);
void exit_end(void);

/* Ends all PEs with `status`. PEs that it does not reach are ended by the launcher. */
void exit_all(int status) __attribute__((noreturn));
/* Does nothing on success. If another PE has called exit_all, exits with its status. Otherwise says what went wrong and
   ends the job. */
void exit_must(expar_status status);
/* A mistake of the program that expar has not found. */
void exit_fail(const char *what) __attribute__((noreturn));

#endif
