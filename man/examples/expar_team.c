/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* The ranks with even numbers; NULL on the others. */
expar_status split_even(expar_group *group, expar_team **even)
{
    expar_team *world;
    expar_status status = expar_team_get_world(group, &world);
    if (status != EXPAR_OK) return status;
    return expar_team_split_strided(world, 0, 2, (expar_group_size(group) + 1) / 2, NULL, even);
}
