/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* The largest of everybody's losses, on all members; both arrays are symmetric. */
expar_status largest(expar_team *team, float *all, float *mine)
{
    return expar_max_reduce_f32(team, all, mine, 1);
}
