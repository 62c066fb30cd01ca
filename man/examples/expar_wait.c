/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Takes whichever of the neighbours' flags comes first; flags: symmetric, one a rank. */
expar_status take_next(expar_group *group, int32_t *flags, size_t *from)
{
    size_t count = (size_t)expar_group_size(group);
    expar_status status = expar_wait_until_any_i32(group, flags, count, NULL, EXPAR_CMP_NE, 0, from);
    if (status == EXPAR_OK) flags[*from] = 0;
    return status;
}
