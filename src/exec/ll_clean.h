/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks that come to a clean of masks agree on who they are (ll_clean.c). Hosts do that by words in memory,
 * which all of them map or to which an executor brings them, whatever device the buffer's rows lie on: its executors
 * begin anew by what comes of it. */
#ifndef EXPAR_EXEC_LL_CLEAN_H
#define EXPAR_EXEC_LL_CLEAN_H

#include "exec/ll_cleaner.h"

/* Until the ranks that come have agreed. epochs: of the last call of each kind here; where no rank refuses those behind
   which calls go on, with the same halves, and view[r] is then the attempt in which rank r is in, or 0. What a rank
   says, this one among them, is in step->call.verdict. EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED. */
expar_status ll_clean_agree(ll_cleaner *cleaner, ll_clean_step *step, uint64_t epochs[LL_KINDS]);

#endif
