/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* A mailbox of one number on every rank, and a look into that of the right neighbour. */
expar_status open_mailbox(expar_group *group, int64_t **mailbox, int64_t **neighbours)
{
    void *block;
    expar_status status = expar_calloc(group, 1, sizeof **mailbox, &block);
    if (status != EXPAR_OK) return status;
    *mailbox = block;
    *neighbours = expar_ptr(group, block, (expar_group_rank(group) + 1) % expar_group_size(group));
    return EXPAR_OK; /* *neighbours is NULL on another node */
}
