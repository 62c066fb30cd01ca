/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Adds to a list on rank 0 that only the holder of the lock may touch. */
expar_status add(expar_group *group, uint64_t *lock, int64_t *list, int64_t *length, int64_t value)
{
    int64_t used;
    expar_status status = expar_lock_set(group, lock);
    if (status != EXPAR_OK) return status;
    status = expar_g_i64(group, length, 0, &used);
    if (status == EXPAR_OK) status = expar_p_i64(group, &list[used], value, 0);
    if (status == EXPAR_OK) status = expar_p_i64(group, length, used + 1, 0);
    expar_status cleared = expar_lock_clear(group, lock);
    return status == EXPAR_OK ? cleared : status;
}
