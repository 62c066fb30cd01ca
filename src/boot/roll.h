/* SPDX-License-Identifier: Apache-2.0 */
/* roll: which ranks of a job on one host are there, when rank 0, who would know, is not. Each rank listens at an
 * abstract Unix name that follows from user, job and rank; nobody accepts, being there is all. */
#ifndef EXPAR_BOOT_ROLL_H
#define EXPAR_BOOT_ROLL_H

#include "boot/boot.h"

#define ROLL_TEXT 160

/* This rank is there, until roll_close; request->rank is set. */
void roll_answer(const char *job, boot_request *request);
/* "here: 1-2, not here: 0,3". Returns a little later than it has looked, so that those whose time-out ends a moment
   later still find this rank. */
void roll_call(const boot_request *request, char text[ROLL_TEXT]);
void roll_close(boot_request *request);

#endif
