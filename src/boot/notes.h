/* SPDX-License-Identifier: Apache-2.0 */
/* notes: what a rank says of its own waits, for peers who ask (boot_ops.ask). */
#ifndef EXPAR_BOOT_NOTES_H
#define EXPAR_BOOT_NOTES_H

#include "boot/boot.h"
#include <stdatomic.h>

/* Each word stands by itself, so relaxed order is enough. */
struct boot_notes {
    /* By subject: boot_doing << 32 | rank. Written by the rank's thread that waits; read by its monitor (thread ranks:
       by whoever asks). */
    _Atomic uint64_t words[BOOT_SUBJECTS];
    /* 0, or 1 + the first rank that this one gave up. Written once by any thread of the rank; read as the words. */
    _Atomic uint64_t blamed;
};

/* Fills in what the rank answers. */
void notes_read(const boot_notes *self, int32_t subject, boot_answer *out);

#endif
