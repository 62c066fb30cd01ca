/* SPDX-License-Identifier: Apache-2.0 */
/* Locks shared by all ranks (model: OpenSHMEM 1.5, section 9.12): fair, held by a rank. */
#ifndef EXPAR_LOCK_H
#define EXPAR_LOCK_H

#include <expar/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `lock` is a symmetric word. It is zero on all ranks at first, and only these calls may touch it. Ranks get the lock
   in the order in which they ask; a waiting rank sleeps. A rank that gets it sees the puts of the previous holder. Not
   for two threads of one rank at once. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ADDRESS, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_UNSUPPORTED; clear: EXPAR_ERR_STATE when no rank holds it.

   A set ends without the lock when its turn has not come by the group's late limit, when some rank is lost, or when it
   is interrupted. It returns EXPAR_ERR_PEER or EXPAR_ERR_INTERRUPTED, but its rank keeps its place: its next set waits
   there. If the turn comes before that, it goes to the next waiting rank, and the rank's next set asks anew. Until then
   the rank's test finds the lock taken, and its clear is EXPAR_ERR_STATE. If the holder of a lock is lost, or a rank
   that waits for it, no rank can get the lock again. Interrupts end waits for the turn, but not the operations on words
   of other ranks before and after that wait. */
EXPAR_API expar_status expar_lock_set(expar_group *group, uint64_t *lock);
/* Tries to take the lock: *taken is 1 when this rank now holds it, 0 when another rank had it. */
EXPAR_API expar_status expar_lock_test(expar_group *group, uint64_t *lock, int *taken);
EXPAR_API expar_status expar_lock_clear(expar_group *group, uint64_t *lock);

#ifdef __cplusplus
}
#endif
#endif
