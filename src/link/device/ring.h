/* SPDX-License-Identifier: Apache-2.0 */
/* link/device, by the proxy: kernels pass operations on a peer's memory to a ring (net/proxy/ring.h), whose thread on
 * the host posts them. The port lies in this GPU's memory, the ring in pinned memory; proxy_serve_gpu makes both.
 *
 * A command names the address of its source or destination as the host knows it. For pinned memory that was registered
 * in place, it is the address that kernels use, too. The payload must be written before the command is issued: by the
 * issuing thread, or by threads that met it at a barrier.
 *
 * Each call returns 0, or why the ring has ended (proxy_failure). Then nothing was issued. A command that fails later
 * is counted in port->failure, which is read after a wait. Waits are those of net/proxy/waits.h; nothing else ends
 * them. */
#ifndef EXPAR_LINK_DEVICE_RING_H
#define EXPAR_LINK_DEVICE_RING_H

#include "link/device/ptx.h"

#define PROXY_BETWEEN_POLLS()     between_polls()
#define PROXY_BETWEEN_STEPS(port) ((void)(port), hold_back())
#include "net/proxy/waits.h"

/* ---- one thread -------------------------------------------------------------------------------------------------- */

/* Issues the command. It is complete when the counter of its PE, or `done`, has reached *after. */
GPU_FUNC uint64_t ring_issue(proxy_port *port, const proxy_command *command, uint64_t *after)
{
    uint64_t number = 0;
    const uint64_t ended = proxy_await_slots(port, 1, &number);
    if (ended) return ended;
    proxy_publish(port, number, command);
    *after = number + 1;
    return 0;
}

/* Later commands are sent to a PE when all before have been delivered there. */
GPU_FUNC uint64_t ring_fence(proxy_port *port)
{
    proxy_command fence = {0};
    uint64_t after = 0;
    fence.kind = PROXY_FENCE;
    return ring_issue(port, &fence, &after);
}

/* Waits for all commands that were issued before, by any thread that this one has met. */
GPU_FUNC uint64_t ring_quiet(proxy_port *port)
{
    return proxy_await_done(port, proxy_head(port));
}

/* A call that the host has announced (proxy_expect) issues no more commands on this ring. */
GPU_FUNC uint64_t ring_rest(proxy_port *port)
{
    proxy_command rest = {0};
    uint64_t after = 0;
    rest.kind = PROXY_REST;
    return ring_issue(port, &rest, &after);
}

/* ---- a warp: all 32 lanes call ----------------------------------------------------------------------------------- */

/* Issues the commands of the lanes with `wants`, in the order of lanes, by one claim. What any lane has written before
   arrives before them. All are complete when `done` has reached *after. The ring must have 32 slots. */
GPU_FUNC uint64_t ring_issue_warp(proxy_port *port, int32_t wants, const proxy_command *command, uint64_t *after)
{
    const uint32_t lane = threadIdx.x % 32, wanting = __ballot_sync(0xffffffffu, wants);
    uint64_t first = 0, ended = 0;
    if (!wanting) return 0;
    if (lane == 0) ended = proxy_await_slots(port, (uint64_t)__popc(wanting), &first);
    ended = __shfl_sync(0xffffffffu, ended, 0);
    if (ended) return ended;
    first = __shfl_sync(0xffffffffu, first, 0);
    __syncwarp();
    if (wants) proxy_publish(port, first + (uint64_t)__popc(wanting & ((1u << lane) - 1)), command);
    *after = first + (uint64_t)__popc(wanting);
    return 0;
}

GPU_FUNC uint64_t ring_quiet_warp(proxy_port *port)
{
    uint64_t ended = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) ended = ring_quiet(port);
    ended = __shfl_sync(0xffffffffu, ended, 0);
    __syncwarp();
    return ended;
}

#endif
