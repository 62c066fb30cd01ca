/* SPDX-License-Identifier: Apache-2.0 */
/* An inquiry finds the state of the awaited ranks. Private to boot. wait.c makes one from time to time, inquiry_chain.c
 * follows which rank waits for which, and inquiry_late.c finds the late ones. */
#ifndef EXPAR_BOOT_INQUIRY_H
#define EXPAR_BOOT_INQUIRY_H

#include "boot/boot.h"

#define NS_PER_MS ((int64_t)1000000)
#define ANSWER    (50 * NS_PER_MS) /* how long a look waits for answers */

typedef struct inquiry {
    boot_wait *wait;
    /* [size] to the wait's own topic */
    boot_answer *answers;
    int64_t now_ns;
    /* how long the wait had lasted at its last look without success */
    int64_t waited_ns;
    /* the last of the ranks that wait in the topic for each other, or the one that does not come; -1: none */
    int32_t end;
    /* a rank that does not come any more; -1: none */
    int32_t ended;
    /* the answer of that rank */
    boot_answer left;
    /* the wait has failed with `status` */
    bool failed;
    expar_status status;
} inquiry;

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */
int64_t inquiry_timeout_ns(const inquiry *q);
/* Returns whether the wait is for the rank. */
bool inquiry_misses(const boot_wait *wait, int32_t rank);
/* Ends the wait, with this thread's last error. */
void inquiry_fail(inquiry *q, boot_verdict verdict, int32_t culprit, expar_status status);
/* Ends the wait because the rank has said that it does not come. */
void inquiry_ended(inquiry *q, int32_t rank, const boot_answer *answer);
/* Chooses the missed rank that the wait names. */
void boot_wait_find_awaited(boot_wait *wait);

/* ---- inquiry_chain.c --------------------------------------------------------------------------------------------- */
bool boot_same_topic(const boot_topic *a, const boot_topic *b);
void inquiry_find_reason(inquiry *q);
void inquiry_follow_chain(inquiry *q);
void inquiry_find_broken_circle(const inquiry *q);

/* ---- inquiry_late.c ---------------------------------------------------------------------------------------------- */
/* Returns 0 if there is no limit. */
int64_t boot_wait_late_limit_ms(const boot_wait *wait);
void inquiry_judge_lateness(inquiry *q);
void inquiry_log(inquiry *q);

#endif
