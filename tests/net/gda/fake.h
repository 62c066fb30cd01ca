/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs and libmlx5 of a host that is simulated. One library has both names.
 *
 *     fake_verbs.c     devices, ports, capabilities (FAKE_VERBS says which)
 *     fake_objects.c   protection domains, memory, doorbells, completion queues and queue pairs
 *     fake_commands.c  reads the commands by the structs in fake_prm.h, and rejects a wrong field
 *     fake_wire.c      lets devices of several processes reach each other (FAKE_WIRE)
 *
 * A queue pair that is ready to send runs on a software NIC, which all devices of the process share. A program that
 * destroys an object in use, or leaves one behind, ends by abort(). */
#ifndef TESTS_NET_GDA_FAKE_H
#define TESTS_NET_GDA_FAKE_H

#include "base/base.h"

enum { FAKE_PORT_LID = 0x20, FAKE_GID_INDEX = 3, FAKE_EQN = 7, FAKE_LOG_READS = 3, FAKE_LOG_SERVED = 2 };

/* An open device; rdma-core's struct of it is opaque to users. */
typedef struct fake_context {
    const void *device;
    uint32_t number;  /* from 1 */
    uint32_t objects; /* that exist, of all kinds */
    uint32_t pages;   /* of doorbells, that were made */
} fake_context;

/* Returns whether FAKE_VERBS has that word. */
bool fake_is(const char *kind);
/* Returns whether a call finds the device busy: with `again` two of three calls do, with `busy` all that make something
   do. */
bool fake_is_busy(void);
bool fake_is_infiniband(void);
/* The ports of a device, and what an open device has there. */
uint32_t fake_ports(void);
uint32_t fake_mtu(uint32_t port);
uint16_t fake_lid(const fake_context *context, uint32_t port);
/* Says why, and returns the errno of a device that rejects a command. */
int fake_reject(const char *command, const char *why);
/* The GID of a port of an open device, and the address of its next hop on Ethernet. */
void fake_gid(const fake_context *context, uint32_t port, uint8_t gid[16]);
void fake_mac(const uint8_t gid[16], uint8_t mac[6]);
#define FAKE_UDP_PORT 0xc123
/* An open device begins to use the NIC, or ends. Aborts at the end if objects are left. */
void fake_attach(void);
void fake_detach(const fake_context *context);

/* ---- commands: the fields that vary, after all others were checked ----------------------------------------------- */

typedef struct fake_cq_command {
    uint32_t umem, record_umem, uar, log_entries;
    uint64_t offset, record_offset;
    bool collapsed;
} fake_cq_command;

typedef struct fake_qp_command {
    uint32_t pd, umem, record_umem, uar, cqn, receive_cqn, log_blocks;
    uint64_t offset, record_offset;
} fake_qp_command;

typedef struct fake_step_command {
    uint32_t opcode, qpn, port;
    /* to the state that receives */
    uint32_t peer, mtu, lid, gid_index;
    bool has_grh;
    uint8_t gid[16], mac[6];
} fake_step_command;

/* Each of them returns NULL, or the name of the field that is wrong. `ethernet`: of the queue pair's port. */
const char *fake_read_cq(const void *in, size_t bytes, fake_cq_command *out);
const char *fake_read_qp(const void *in, size_t bytes, fake_qp_command *out);
const char *fake_read_step(const void *in, size_t bytes, bool ethernet, fake_step_command *out);
uint32_t fake_opcode(const void *in);
/* Writes an answer. */
void fake_answer(void *out, size_t bytes, uint32_t syndrome, uint32_t number);

#endif
