/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/stream.h>

/* Gives a block to the next rank in the order of a CUDA stream. Then the stream waits for the block of the rank before.
   inbox and arrived are symmetric, and round counts from 1. */
expar_status give_to_next(expar_group *group, const void *block, void *inbox, size_t bytes, uint64_t *arrived,
                          uint64_t round, void *stream)
{
    const int32_t next = (expar_group_rank(group) + 1) % expar_group_size(group);
    expar_status status =
        expar_put_signal_on_stream(group, inbox, block, bytes, arrived, round, EXPAR_SIGNAL_SET, next, stream);
    if (status != EXPAR_OK) return status;
    return expar_signal_wait_until_on_stream(group, arrived, EXPAR_CMP_GE, round, stream);
}
