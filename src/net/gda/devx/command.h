/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to an mlx5 device's firmware (devx): where fields lie in their bytes, big-endian, the first bit first. The
 * layouts are those that rdma-core's own driver and that of Linux have. */
#ifndef EXPAR_NET_GDA_DEVX_COMMAND_H
#define EXPAR_NET_GDA_DEVX_COMMAND_H

#include <stdint.h>

/* A field of `width` bits, at most 64, whose first one is bit `bit`. */
typedef struct command_field {
    uint16_t bit, width;
} command_field;

#define COMMAND_FIELD(bit, width) ((command_field){bit, width})

/* Stores a value. `base` is the first bit of the struct in which the field lies. */
static inline void command_set(uint8_t *bytes, uint32_t base, command_field field, uint64_t value)
{
    for (uint32_t i = 0; i < field.width; i++) {
        const uint32_t at = base + field.bit + i;
        const uint8_t mask = (uint8_t)(0x80 >> at % 8);
        if (value >> (field.width - 1 - i) & 1)
            bytes[at / 8] |= mask;
        else
            bytes[at / 8] &= (uint8_t)~mask;
    }
}
static inline uint64_t command_get(const uint8_t *bytes, uint32_t base, command_field field)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < field.width; i++) {
        const uint32_t at = base + field.bit + i;
        value = value << 1 | (bytes[at / 8] >> (7 - at % 8) & 1);
    }
    return value;
}

typedef enum command_opcode {
    COMMAND_QUERY_CAPABILITIES = 0x100,
    COMMAND_CREATE_CQ = 0x400,
    COMMAND_CREATE_QP = 0x500,
    COMMAND_RESET_TO_INIT = 0x502,
    COMMAND_INIT_TO_RTR = 0x503,
    COMMAND_RTR_TO_RTS = 0x504,
    COMMAND_TO_ERROR = 0x507
} command_opcode;

/* All commands and answers */
#define COMMAND_OPCODE    COMMAND_FIELD(0x00, 16)
#define COMMAND_MODE      COMMAND_FIELD(0x30, 16)
#define COMMAND_STATUS    COMMAND_FIELD(0x00, 8)
#define COMMAND_SYNDROME  COMMAND_FIELD(0x20, 32)
#define COMMAND_NUMBER    COMMAND_FIELD(0x48, 24) /* of the object: answers that create one, commands that change one */
#define COMMAND_OUT_BYTES 16                      /* of the answers to all of those below */

/* The answer about capabilities: 4096 bytes after a header. The mode is one of these, for the values in use. */
enum {
    CAPABILITIES_GENERAL = 0x01,
    CAPABILITIES_ATOMIC = 0x07,
    CAPABILITIES_AT = 0x80,
    CAPABILITIES_IN_BYTES = 16,
    CAPABILITIES_OUT_BYTES = 16 + 4096
};
#define CAPABILITY_LOG_QUEUE   COMMAND_FIELD(0x088, 8) /* most blocks of a send queue, as a power of two */
#define CAPABILITY_LOG_CQ      COMMAND_FIELD(0x0c8, 8)
#define CAPABILITY_CQE_VERSION COMMAND_FIELD(0x1fc, 4)
#define CAPABILITY_ATOMICS     COMMAND_FIELD(0x21e, 1)
#define CAPABILITY_OVERRUN     COMMAND_FIELD(0x220, 1) /* a completion queue may ignore overruns */
#define CAPABILITY_LOG_READS   COMMAND_FIELD(0x14a, 6) /* reads and atomics of a queue in flight, as a power of two */
#define CAPABILITY_LOG_SERVED  COMMAND_FIELD(0x15a, 6) /* the same, of those that a peer has sent */
#define CAPABILITY_PORTS       COMMAND_FIELD(0x1b8, 8)
/* Among the capabilities of atomics */
#define CAPABILITY_OPERATIONS COMMAND_FIELD(0x90, 16) /* bits 2 and 3: masked ones */
#define CAPABILITY_SIZES      COMMAND_FIELD(0xb0, 16) /* bits 2 and 3: of 4 and 8 bytes */

/* ---- CREATE_CQ --------------------------------------------------------------------------------------------------- */

enum { CQ_IN_BYTES = 272, CQ_CONTEXT_AT = 0x80 };
/* In the context */
#define CQ_RECORD_IN_UMEM COMMAND_FIELD(0x06, 1)
#define CQ_COLLAPSED      COMMAND_FIELD(0x0b, 1)
#define CQ_OVERRUN        COMMAND_FIELD(0x0e, 1) /* overruns are ignored */
#define CQ_RECORD_UMEM    COMMAND_FIELD(0x20, 32)
#define CQ_LOG_ENTRIES    COMMAND_FIELD(0x63, 5)
#define CQ_UAR            COMMAND_FIELD(0x68, 24)
#define CQ_EVENT_QUEUE    COMMAND_FIELD(0xb8, 8)
#define CQ_RECORD_OFFSET  COMMAND_FIELD(0x1c0, 64)
/* In the command */
#define CQ_UMEM_OFFSET COMMAND_FIELD(0x280, 64)
#define CQ_UMEM        COMMAND_FIELD(0x2c0, 32)
#define CQ_IN_UMEM     COMMAND_FIELD(0x2e0, 1)

/* ---- CREATE_QP, and the changes of its state --------------------------------------------------------------------- */

enum {
    QP_IN_BYTES = 272, /* of all these commands, but that to the state of error */
    QP_ERROR_IN_BYTES = 16,
    QP_CONTEXT_AT = 0xc0,
    QP_PATH_AT = QP_CONTEXT_AT + 0xc0
};
/* In the context. The kind 0 is a reliable connection. */
#define QP_MIGRATION      COMMAND_FIELD(0x13, 2)
#define QP_PD             COMMAND_FIELD(0x28, 24)
#define QP_MTU            COMMAND_FIELD(0x40, 3) /* 1 is 256 bytes, 5 is 4096 */
#define QP_LOG_MESSAGE    COMMAND_FIELD(0x43, 5)
#define QP_LOG_BLOCKS     COMMAND_FIELD(0x51, 4)
#define QP_UAR            COMMAND_FIELD(0x68, 24)
#define QP_PEER           COMMAND_FIELD(0xa8, 24)
#define QP_LOG_READS      COMMAND_FIELD(0x388, 3)
#define QP_RETRIES        COMMAND_FIELD(0x38d, 3)
#define QP_RNR_RETRIES    COMMAND_FIELD(0x390, 3)
#define QP_CQ             COMMAND_FIELD(0x3e8, 24)
#define QP_LOG_SERVED     COMMAND_FIELD(0x488, 3)
#define QP_ATOMIC_MODE    COMMAND_FIELD(0x48c, 4)
#define QP_REMOTE_READ    COMMAND_FIELD(0x490, 1)
#define QP_REMOTE_WRITE   COMMAND_FIELD(0x491, 1)
#define QP_REMOTE_ATOMIC  COMMAND_FIELD(0x492, 1)
#define QP_RNR_TIMER      COMMAND_FIELD(0x4a3, 5)
#define QP_RECEIVE_CQ     COMMAND_FIELD(0x4e8, 24)
#define QP_RECORD_OFFSET  COMMAND_FIELD(0x500, 64)
#define QP_RECEIVE_KIND   COMMAND_FIELD(0x565, 3)
#define QP_RECORD_IN_UMEM COMMAND_FIELD(0x683, 1)
#define QP_RECORD_UMEM    COMMAND_FIELD(0x720, 32)
enum { QP_MIGRATED = 3, QP_NO_RECEIVES = 3, QP_ATOMICS = 3, QP_LOG_MOST_BYTES = 30 };
/* In the path */
#define PATH_GRH           COMMAND_FIELD(0x28, 1)
#define PATH_LID           COMMAND_FIELD(0x30, 16)
#define PATH_ACK_TIMEOUT   COMMAND_FIELD(0x40, 5)
#define PATH_GID_INDEX     COMMAND_FIELD(0x48, 8)
#define PATH_HOP_LIMIT     COMMAND_FIELD(0x58, 8)
#define PATH_TRAFFIC_CLASS COMMAND_FIELD(0x64, 8)
#define PATH_GID_HIGH      COMMAND_FIELD(0x80, 64)
#define PATH_GID_LOW       COMMAND_FIELD(0xc0, 64)
#define PATH_DSCP          COMMAND_FIELD(0x10a, 6)
#define PATH_UDP_PORT      COMMAND_FIELD(0x110, 16)
#define PATH_PRIORITY      COMMAND_FIELD(0x121, 3) /* on Ethernet */
#define PATH_SERVICE_LEVEL COMMAND_FIELD(0x124, 4)
#define PATH_PORT          COMMAND_FIELD(0x128, 8)
#define PATH_MAC           COMMAND_FIELD(0x130, 48)
/* In CREATE_QP */
#define QP_UMEM_OFFSET COMMAND_FIELD(0x800, 64)
#define QP_UMEM        COMMAND_FIELD(0x840, 32)
#define QP_IN_UMEM     COMMAND_FIELD(0x860, 1)

#endif
