/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as a process of its own. It sees the memory that was passed to it by file descriptors, and nothing
 * else of the ranks: registered memory, queues with their completions, records and registers.
 *
 *     orders.h    the messages
 *     letter.c    sends and receives them
 *     process.c   the rank's side: it starts the process, passes memory and queues, and notices the process's end
 *     serve.c     the device's side
 *     main.c      the program gda-nic, which a rank starts
 *
 * The program is started anew (posix_spawn), and is no copy of the rank. So it has none of the rank's memory, and ranks
 * with threads may start it. It ends when the rank closes the socket or dies. It watches the rank by a pidfd, because
 * a child that the rank has forked may keep the socket open. PR_SET_PDEATHSIG would end it with the thread that has
 * started it. */
#ifndef EXPAR_NET_GDA_NIC_PROCESS_H
#define EXPAR_NET_GDA_NIC_PROCESS_H

#include "net/gda/nic/nic.h"

/* Serves a socket of the kind SOCK_SEQPACKET until its other end is closed, or `parent` can be read, which is a pidfd;
   -1: there is none. For the process of the device. */
expar_status nic_serve(int socket, int parent);

/* ---- the rank's side --------------------------------------------------------------------------------------------- */

typedef struct nic_process nic_process;

typedef struct nic_process_plan {
    const char *program; /* path of gda-nic */
    nic_faults faults;
    int64_t late_ms; /* a process that owes an answer for so long is killed */
    int64_t spin_ns; /* as nic_start has it */
} nic_process_plan;

/* Starts the program; the device runs when this returns. EXPAR_ERR_SYSTEM: it cannot be started. */
expar_status nic_process_start(const nic_process_plan *plan, nic_process **out);
/* Ends the process, and returns when it has ended: it touches no memory any more. No other call is in progress. */
void nic_process_end(nic_process *p);
/* Returns EXPAR_ERR_PEER once the process has ended, with a text that says how. Any thread. */
expar_status nic_process_check(nic_process *p);
/* Returns its number. */
int nic_process_id(const nic_process *p);

/* Any thread may pass memory and queues. Errors of all these calls: those of nic.h, with the device's text;
   EXPAR_ERR_PEER as nic_process_check. After EXPAR_ERR_PEER the process touches no memory any more. */

/* Passes memory of `bytes` bytes that the descriptor maps, which stays the caller's. The file may grow to that length
   later. *region is its number in later calls; it stays mapped until the process ends. */
expar_status nic_pass_region(nic_process *p, int fd, uint64_t bytes, uint32_t *region);
/* Registers memory that lies at the offset of a region; `base` is ignored. Its file has grown so far. */
expar_status nic_pass_memory(nic_process *p, const nic_memory *memory, uint32_t region, uint64_t offset);
expar_status nic_pass_memory_removal(nic_process *p, uint32_t port, uint32_t key);

/* Offsets in a region of what nic_queue has addresses of. The register may lie in another region. */
typedef struct nic_places {
    uint32_t doorbell_region;
    uint64_t blocks, record, doorbell, cqes, cq_record, receive_cqes;
} nic_places;
/* Adds a queue whose other parts lie in one region; the addresses in `queue` are ignored. */
expar_status nic_pass_queue(nic_process *p, const nic_queue *queue, uint32_t region, const nic_places *places);
expar_status nic_pass_queue_removal(nic_process *p, uint32_t port, uint32_t qpn);
expar_status nic_pass_count(nic_process *p, nic_counts *counts);

#endif
