/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the suite that every transport passes (test_transport.c). */
#ifndef TESTS_NET_SUITE_H
#define TESTS_NET_SUITE_H

#include "stage.h"

/* Until the word is at least so much; false: the wait has failed. */
bool suite_await_word(expar_group *group, const _Atomic uint64_t *word, uint64_t least);

/* Shared by all ranks: a subject. */
void suite_posts(expar_group *group, void *shared);
void suite_signalled_puts(expar_group *group, void *shared);
void suite_flagged_puts(expar_group *group, void *shared);
void suite_leading_puts(expar_group *group, void *shared);
void suite_joined_puts(expar_group *group, void *shared);
void suite_full_queue(expar_group *group, void *shared);
void suite_segments(expar_group *group, void *shared);
#define SUITE_MOST_RANKS 8

#endif
