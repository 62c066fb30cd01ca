/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to an mlx5 device's firmware (devx): where fields lie in their bytes, big-endian, the first bit first. The
 * layouts are those that rdma-core's own driver and that of Linux have. */
#ifndef EXPAR_NET_GDA_COMMAND_H
#define EXPAR_NET_GDA_COMMAND_H

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

enum { COMMAND_QUERY_CAPABILITIES = 0x100 };

/* All commands and answers */
#define COMMAND_OPCODE   COMMAND_FIELD(0x00, 16)
#define COMMAND_MODE     COMMAND_FIELD(0x30, 16)
#define COMMAND_STATUS   COMMAND_FIELD(0x00, 8)
#define COMMAND_SYNDROME COMMAND_FIELD(0x20, 32)

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
/* Among the capabilities of atomics */
#define CAPABILITY_OPERATIONS COMMAND_FIELD(0x90, 16) /* bits 2 and 3: masked ones */
#define CAPABILITY_SIZES      COMMAND_FIELD(0xb0, 16) /* bits 2 and 3: of 4 and 8 bytes */

#endif
