/* SPDX-License-Identifier: Apache-2.0 */
/* An inquiry: how those stand who are awaited. Private to boot. wait.c makes one from time to time, inquiry_chain.c
 * follows who waits for whom, and inquiry_late.c says who is late. */
#ifndef EXPAR_BOOT_INQUIRY_H
#define EXPAR_BOOT_INQUIRY_H

#include "boot/boot.h"

#define NS_PER_MS ((int64_t)1000000)
#define ANSWER    (50 * NS_PER_MS) /* what a look waits for answers */

typedef struct inquiry {
    boot_wait *wait;
    boot_answer *answers; /* [size] to the wait's own topic */
    int64_t now_ns;
    int64_t waited_ns; /* until it was last looked for in vain */
    int32_t end;       /* the last of those who wait in the topic for each other, or who does not come; -1: nobody */
    int32_t ended;     /* who does not come any more; -1: nobody */
    boot_answer left;  /* what that one has said */
    bool failed;       /* with status */
    expar_status status;
} inquiry;

/* ---- wait.c ------------------------------------------------------------------------------------------------------ */
int64_t inquiry_timeout_ns(const inquiry *q);
/* Whether the wait is for the rank. */
bool inquiry_misses(const boot_wait *wait, int32_t rank);
/* Ends the wait, with this thread's last error. */
void inquiry_fail(inquiry *q, boot_verdict verdict, int32_t culprit, expar_status status);
/* Ends it since the rank has said that it does not come. */
void inquiry_ended(inquiry *q, int32_t rank, const boot_answer *answer);
/* Whom the wait names, of those it misses. */
void boot_wait_find_awaited(boot_wait *wait);

/* ---- inquiry_chain.c --------------------------------------------------------------------------------------------- */
bool boot_same_topic(const boot_topic *a, const boot_topic *b);
void inquiry_find_reason(inquiry *q);
void inquiry_follow_chain(inquiry *q);
void inquiry_find_broken_circle(const inquiry *q);

/* ---- inquiry_late.c ---------------------------------------------------------------------------------------------- */
/* 0: none. */
int64_t boot_wait_late_limit_ms(const boot_wait *wait);
void inquiry_judge_lateness(inquiry *q);
void inquiry_log(inquiry *q);

#endif
