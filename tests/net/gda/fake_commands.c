/* SPDX-License-Identifier: Apache-2.0 */
/* Commands are taken apart field by field. What no field has taken must be 0. */
#include "fake.h"
#include "fake_prm.h"

#include <infiniband/mlx5dv.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 272

/* A command that is read: taken fields are 0 in the copy, and `wrong` is the first field that was wrong. */
typedef struct reading {
    uint32_t words[MOST_BYTES / 4];
    const char *wrong;
} reading;

static reading begin(const void *in, size_t bytes)
{
    reading r = {.wrong = NULL};
    memcpy(r.words, in, bytes);
    return r;
}

static uint32_t take_bits(reading *r, size_t bit, size_t width)
{
    const uint32_t value = _devx_get(r->words, bit, width);
    _devx_set(r->words, 0, bit, width);
    return value;
}

static uint64_t take_wide(reading *r, size_t bit)
{
    const uint64_t value = (uint64_t)take_bits(r, bit, 32) << 32;
    return value | take_bits(r, bit + 32, 32);
}

static void want(reading *r, const char *field, uint64_t value, uint64_t expected)
{
    if (value != expected && !r->wrong) r->wrong = field;
}

#define TAKE(kind, r, field)         take_bits(r, __devx_bit_off(kind, field), __devx_bit_sz(kind, field))
#define TAKE_WIDE(kind, r, field)    take_wide(r, __devx_bit_off(kind, field))
#define WANT(kind, r, field, number) want(r, #field, TAKE(kind, r, field), number)

static const char *end(reading *r)
{
    for (size_t i = 0; i < ARRAY_LENGTH(r->words) && !r->wrong; i++)
        if (r->words[i]) r->wrong = "a field that must be 0";
    return r->wrong;
}

/* The value of an option of gda, which a test may have set. */
static uint32_t option(const char *name, uint32_t standard)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : standard;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t fake_opcode(const void *in)
{
    return DEVX_GET(fake_qp, in, opcode);
}

void fake_answer(void *out, size_t bytes, uint32_t syndrome, uint32_t number)
{
    memset(out, 0, bytes);
    const uint32_t status = fake_is("exhausted") ? 8 : fake_is("firmware_busy") ? 6 : 3;
    DEVX_SET(fake_out, out, status, syndrome ? status : 0);
    DEVX_SET(fake_out, out, syndrome, syndrome);
    DEVX_SET(fake_out, out, number, number);
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

const char *fake_read_cq(const void *in, size_t bytes, fake_cq_command *out)
{
    if (bytes != MOST_BYTES) return "the size of the command";
    reading r = begin(in, bytes);
    WANT(fake_cq, &r, opcode, 0x400);
    WANT(fake_cq, &r, record_in_umem, 1);
    WANT(fake_cq, &r, in_umem, 1);
    WANT(fake_cq, &r, eqn, FAKE_EQN);
    out->collapsed = TAKE(fake_cq, &r, collapsed);
    WANT(fake_cq, &r, ignores_overrun, out->collapsed);
    out->umem = TAKE(fake_cq, &r, umem);
    out->offset = TAKE_WIDE(fake_cq, &r, umem_offset);
    out->record_umem = TAKE(fake_cq, &r, record_umem);
    out->record_offset = TAKE_WIDE(fake_cq, &r, record_offset);
    out->uar = TAKE(fake_cq, &r, uar);
    out->log_entries = TAKE(fake_cq, &r, log_entries);
    return end(&r);
}

const char *fake_read_qp(const void *in, size_t bytes, fake_qp_command *out)
{
    if (bytes != MOST_BYTES) return "the size of the command";
    reading r = begin(in, bytes);
    WANT(fake_qp, &r, opcode, 0x500);
    WANT(fake_qp, &r, migration, 3);
    WANT(fake_qp, &r, receive_kind, 3);
    WANT(fake_qp, &r, record_in_umem, 1);
    WANT(fake_qp, &r, in_umem, 1);
    out->pd = TAKE(fake_qp, &r, pd);
    out->uar = TAKE(fake_qp, &r, uar);
    out->cqn = TAKE(fake_qp, &r, cqn);
    out->receive_cqn = TAKE(fake_qp, &r, receive_cqn);
    out->log_blocks = TAKE(fake_qp, &r, log_blocks);
    out->umem = TAKE(fake_qp, &r, umem);
    out->offset = TAKE_WIDE(fake_qp, &r, umem_offset);
    out->record_umem = TAKE(fake_qp, &r, record_umem);
    out->record_offset = TAKE_WIDE(fake_qp, &r, record_offset);
    return end(&r);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void read_rights(reading *r)
{
    WANT(fake_qp, r, rre, 1);
    WANT(fake_qp, r, rwe, 1);
    WANT(fake_qp, r, rae, 1);
    WANT(fake_qp, r, atomic_mode, 3);
}

static void read_mac(reading *r, uint8_t mac[6])
{
    const uint32_t high = TAKE(fake_qp, r, path.mac_high), low = TAKE(fake_qp, r, path.mac_low);
    const uint64_t whole = (uint64_t)high << 32 | low;
    for (int i = 0; i < 6; i++)
        mac[i] = (uint8_t)(whole >> (40 - 8 * i));
}

static void read_path(reading *r, bool ethernet, fake_step_command *out)
{
    const uint32_t class = option("EXPAR_GDA_TRAFFIC_CLASS", 0), level = option("EXPAR_GDA_SERVICE_LEVEL", 0);
    out->port = TAKE(fake_qp, r, path.port);
    out->has_grh = ethernet || TAKE(fake_qp, r, path.grh);
    if (out->has_grh) {
        out->gid_index = TAKE(fake_qp, r, path.gid_index);
        for (size_t i = 0; i < 16; i++)
            out->gid[i] = (uint8_t)take_bits(r, __devx_bit_off(fake_qp, path.gid) + 8 * i, 8);
        WANT(fake_qp, r, path.hop_limit, option("EXPAR_GDA_HOP_LIMIT", 255));
        WANT(fake_qp, r, path.traffic_class, class);
    }
    if (ethernet) {
        read_mac(r, out->mac);
        WANT(fake_qp, r, path.udp_port, FAKE_UDP_PORT);
        WANT(fake_qp, r, path.priority, level & 7);
        WANT(fake_qp, r, path.dscp, class >> 2);
    } else {
        out->lid = TAKE(fake_qp, r, path.lid);
        WANT(fake_qp, r, path.service_level, level);
    }
}

static void read_to_receive(reading *r, bool ethernet, fake_step_command *out)
{
    const uint32_t reads = option("EXPAR_GDA_READS", 16);
    out->mtu = TAKE(fake_qp, r, mtu);
    out->peer = TAKE(fake_qp, r, peer);
    WANT(fake_qp, r, log_message, 30);
    WANT(fake_qp, r, log_served, least((uint32_t)__builtin_ctz(reads), FAKE_LOG_SERVED));
    WANT(fake_qp, r, rnr_timer, option("EXPAR_GDA_RNR_TIMER", 12));
    read_rights(r);
    read_path(r, ethernet, out);
}

const char *fake_read_step(const void *in, size_t bytes, bool ethernet, fake_step_command *out)
{
    const uint32_t opcode = fake_opcode(in);
    if (bytes != (opcode == 0x507 ? 16 : MOST_BYTES)) return "the size of the command";
    reading r = begin(in, bytes);
    out->opcode = TAKE(fake_qp, &r, opcode);
    out->qpn = TAKE(fake_qp, &r, qpn);
    if (opcode == 0x502) {
        WANT(fake_qp, &r, migration, 3);
        read_rights(&r);
        out->port = TAKE(fake_qp, &r, path.port);
    } else if (opcode == 0x503) {
        read_to_receive(&r, ethernet, out);
    } else if (opcode == 0x504) {
        WANT(fake_qp, &r, log_reads, least((uint32_t)__builtin_ctz(option("EXPAR_GDA_READS", 16)), FAKE_LOG_READS));
        WANT(fake_qp, &r, retries, option("EXPAR_GDA_RETRIES", 7));
        WANT(fake_qp, &r, rnr_retries, option("EXPAR_GDA_RNR_RETRIES", 7));
        WANT(fake_qp, &r, path.ack_timeout, option("EXPAR_GDA_ACK_TIMEOUT", 20));
    } else if (opcode != 0x507) {
        return "opcode";
    }
    return end(&r);
}
