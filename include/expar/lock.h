/* SPDX-License-Identifier: Apache-2.0 */
/* Locks shared by all ranks (model: OpenSHMEM 1.5, section 9.12): fair, held by a rank. */
#ifndef EXPAR_LOCK_H
#define EXPAR_LOCK_H

#include <expar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `lock` is a symmetric word, zero on all ranks at first, and touched by these calls alone. Ranks get the lock in
   the order in which they ask; a waiting rank sleeps. Whoever gets it sees what the holder before put. Not for two
   threads of one rank at once. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ADDRESS, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_UNSUPPORTED; clear: EXPAR_ERR_STATE when nobody holds it.

   A set whose turn has not come by the group's late limit, or that the loss of some rank or an interrupt ends, gives
   EXPAR_ERR_PEER or EXPAR_ERR_INTERRUPTED and has not got the lock, but its rank keeps its place: its next set waits
   there. Should the turn come before that, it goes to the next who waits, and the rank's next set asks anew. Until
   then the rank's test finds the lock taken, and its clear is EXPAR_ERR_STATE. A lock whose holder is lost, or a
   rank that waits for it, is not to be had again. Interrupts end waits for the turn, not the operations on words of
   other ranks before and behind it. */
EXPAR_API expar_status expar_lock_set(expar_group *group, uint64_t *lock);
/* *taken is 1 when the lock is now held, 0 when another rank had it. */
EXPAR_API expar_status expar_lock_test(expar_group *group, uint64_t *lock, int *taken);
EXPAR_API expar_status expar_lock_clear(expar_group *group, uint64_t *lock);

#ifdef __cplusplus
}
#endif
#endif
