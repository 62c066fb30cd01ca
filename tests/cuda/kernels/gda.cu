/* SPDX-License-Identifier: Apache-2.0 */
/* The producers' side of gda, by one thread of each warp: a put with a signal, a get, an atomic, quiet.
 *
 * gda_post_warps does the same by whole warps.
 *
 * One block or more; threads of warps other than the first lane do nothing. Requests go to queue q by block. No shared
 * memory. Each posting thread adds what it fetched to out[block], and the number of calls that failed to failed[0]. */
#include "link/device/gda.h"

extern "C" __global__ void gda_post_all(gda_queue *queues, const gda_keys *keys, uint64_t offset, uint64_t address,
                                        uint64_t bytes, unsigned long long *out, int *failed)
{
    if (threadIdx.x % 32) return;
    gda_queue *queue = &queues[blockIdx.x];
    uint64_t end = 0, old = 0;
    gda_request add = {GDA_ADD_64, 0, keys->remotes[queue->pe], 0, keys->rkeys[0], 0, 0, 0, 1, 0, 0, 0, {0}};
    gda_to_sink(queue, &add);
    int ok = gda_transfer(queue, keys, GDA_WRITE, offset, address, bytes, &add, &end) &&
             gda_transfer(queue, keys, GDA_READ, offset, address, bytes, 0, &end) && gda_poll(queue, end) &&
             gda_fetch(queue, &add, &old) && gda_quiet(queue);
    if (!ok) atomicAdd(failed, 1);
    atomicAdd(&out[blockIdx.x], (unsigned long long)old);
}

extern "C" __global__ void gda_post_warps(gda_queue *queues, uint32_t num_queues, const gda_keys *keys, uint64_t offset,
                                          uint64_t address, uint64_t bytes, unsigned long long *out, int *failed)
{
    gda_queue *queue = &queues[gda_pick_here(GDA_BY_WARP, num_queues)];
    uint64_t end = 0, old = 0;
    gda_request add = {GDA_ADD_64, 0, keys->remotes[queue->pe], 0, keys->rkeys[0], 0, 0, 0, 1, 0, 0, 0, {0}};
    gda_to_sink(queue, &add);
    int ok = gda_transfer_warp(queue, keys, GDA_WRITE, offset, address, bytes, &add, &end) &&
             gda_transfer_warp(queue, keys, GDA_READ, offset, address, bytes, 0, &end) && gda_poll_warp(queue, end) &&
             gda_fetch_warp(queue, threadIdx.x % 2, &add, &old) && gda_quiet_warp(queue);
    if (!ok) atomicAdd(failed, 1);
    atomicAdd(&out[blockIdx.x], (unsigned long long)old);
}
