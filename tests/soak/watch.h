/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a program's memory stays flat over very many calls: after a warm-up neither its resident pages nor its
 * allocated bytes may grow. Rank 0's process is watched. */
#ifndef TESTS_SOAK_WATCH_H
#define TESTS_SOAK_WATCH_H

#include <stdint.h>
#include <time.h>

typedef struct watch {
    int64_t rounds, next;
    int64_t warm_resident, warm_allocated; /* the most during warm-up */
    int64_t most_resident, most_allocated; /* the most after it */
    struct timespec begin;
} watch;

/* Before any thread starts: all of them are to allocate where the watch counts. */
void watch_begin(watch *w, int64_t rounds);
/* Between calls of rank 0, of which `calls` have been made: the other ranks may hold what a call or two need. Reports
   after the last round, and counts as failed checks what grew. */
void watch_look(void *watch, int64_t calls);

#endif
