/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Sends a row to the right neighbour, and tells it by a signal; both are symmetric. */
expar_status pass_on(expar_group *group, float *inbox, const float *row, uint64_t *signal, size_t count)
{
    int32_t right = (expar_group_rank(group) + 1) % expar_group_size(group);
    expar_status status = expar_put_signal(group, inbox, row, count * sizeof *row, signal, 1, EXPAR_SIGNAL_ADD, right);
    if (status == EXPAR_OK) status = expar_signal_wait_until(group, signal, EXPAR_CMP_GE, 1, NULL);
    return status;
}
