/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as a process of its own. It sees the memory that was passed to it by file descriptors, and nothing
 * else of the ranks: registered memory, queues with their completions, records and registers.
 *
 * Each side has one end of a socket of the kind SOCK_SEQPACKET. The owner of the memory sends orders, and gets an
 * answer to each of them. The device runs from the start, and until the socket is closed. */
#ifndef EXPAR_NET_GDA_NIC_PROCESS_H
#define EXPAR_NET_GDA_NIC_PROCESS_H

#include "net/gda/nic/nic.h"

/* Serves a socket until its other end is closed; for the process of the device. `faults` are those of the device. */
expar_status nic_serve(int socket, const nic_faults *faults);

/* ---- the other side ---------------------------------------------------------------------------------------------- */

/* Passes memory of `bytes` bytes that the descriptor maps. *region is its number in later calls. Errors of all these
   calls: those of nic.h, with the device's text; EXPAR_ERR_PEER: the device's process is gone. */
expar_status nic_pass_region(int socket, int fd, uint64_t bytes, uint32_t *region);
/* Registers memory that lies at the offset of a region; `base` is ignored. */
expar_status nic_pass_memory(int socket, const nic_memory *memory, uint32_t region, uint64_t offset);
/* Removes registered memory. */
expar_status nic_pass_removal(int socket, uint32_t port, uint32_t key);

/* Offsets in a region of what nic_queue has addresses of. */
typedef struct nic_places {
    uint64_t blocks, record, doorbell, cqes, cq_record, receive_cqes;
} nic_places;
/* Adds a queue whose parts all lie in that region; the addresses in `queue` are ignored. */
expar_status nic_pass_queue(int socket, const nic_queue *queue, uint32_t region, const nic_places *places);

#endif
