/* SPDX-License-Identifier: Apache-2.0 */
/* Records that a rank reads while the group forms: frames of the rendezvous, its table and its reasons, and the names
 * of ranks on control sockets. The first byte says which. */
#include "boot/meet/meet.h"
#include "boot/meet/session.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { READS_TABLE, READS_VERDICT, READS_FRAMES, READS_NAMES, READS_ANSWER, READS_PROOF, READERS };
#define SIZE 8

/* ---- from the rendezvous ----------------------------------------------------------------------------------------- */

/* Uses each entry as the mesh does. */
static void use_entry(const handshake_entry *entry)
{
    char text[ADDRESS_TEXT], ip[BOOT_IP_TEXT];
    address where;
    if (address_from_unix_name(entry->contact.unix_name, &where)) {
        address_format(&where, text);
        fuzz_must(strncmp(text, "unix:", 5) == 0);
    }
    if (address_from_ip(&entry->contact.tcp, &where)) {
        address_format(&where, text);
        fuzz_must_be_shown(text);
        (void)address_is_loopback(&where);
    }
    address_ip_format(&entry->contact.tcp, ip);
    fuzz_must(strlen(ip) < sizeof ip && strlen(entry->place.nics) < sizeof entry->place.nics);
    if (entry->place.nics[0]) fuzz_must_be_shown(entry->place.nics);
}

static void read_table(const uint8_t *data, size_t bytes)
{
    if (bytes < 1) return;
    const int32_t size = 1 + data[0] % SIZE;
    if (!handshake_table_check(data + 1, bytes - 1, size)) return;
    fuzz_must(bytes - 1 == handshake_table_bytes(size));
    for (int32_t rank = 0; rank < size; rank++) {
        handshake_entry entry;
        memcpy(&entry, data + 1 + sizeof(handshake_table_head) + (size_t)rank * sizeof entry, sizeof entry);
        use_entry(&entry);
    }
    fuzz_accept();
}

static void read_verdict(const uint8_t *data, size_t bytes)
{
    handshake_verdict verdict;
    verdict_read(data, bytes, &verdict);
    fuzz_must(verdict.status > EXPAR_OK);
    fuzz_must(strcmp(expar_status_string((expar_status)verdict.status), "EXPAR_ERR_?") != 0);
    if (verdict.text[0]) fuzz_must_be_shown(verdict.text);
    if (bytes == sizeof verdict && verdict.text[0]) fuzz_accept();
}

/* ---- over a socket ----------------------------------------------------------------------------------------------- */

static void send_all(int fd, const uint8_t *data, size_t bytes)
{
    size_t moved = 0;
    fuzz_must(wire_push(fd, data, bytes, &moved) == WIRE_DONE);
}

static void read_frames(const uint8_t *data, size_t bytes)
{
    unsigned char payload[64];
    wire_inbox inbox = {.payload = payload, .limit_bytes = sizeof payload};
    wire_result result;
    int ends[2];
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    send_all(ends[0], data, bytes);
    wire_close(&ends[0]);
    while ((result = wire_inbox_pull(&inbox, ends[1])) == WIRE_DONE) {
        fuzz_must(inbox.header.bytes <= sizeof payload);
        wire_inbox_clear(&inbox);
        fuzz_accept();
    }
    fuzz_must(result == WIRE_BAD || result == WIRE_CLOSED);
    wire_close(&ends[1]);
}

/* The peer names itself after its proof; `side` is this rank's. */
static void read_names(auth_side side, const uint8_t *data, size_t bytes)
{
    static const auth_key key;
    const handshake_mesh names = {.magic = HANDSHAKE_MAGIC, .from = 2, .to = side == AUTH_CONNECTS ? 1 : -1};
    session one;
    auth proof;
    int ends[2];
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    session_start(&one, ends[1], side, &key, &names);
    auth_begin(&proof, &key, side == AUTH_CONNECTS ? AUTH_ACCEPTS : AUTH_CONNECTS, AUTH_MESH);
    fuzz_must(auth_step(&proof, ends[0]) == WIRE_AGAIN);
    fuzz_must(session_step(&one, SIZE) == WIRE_AGAIN);
    fuzz_must(auth_step(&proof, ends[0]) == WIRE_DONE);
    send_all(ends[0], data, bytes);
    if (session_step(&one, SIZE) == WIRE_DONE) {
        fuzz_must(bytes >= sizeof(handshake_mesh) && one.rank >= 0 && one.rank < SIZE && one.rank != 2);
        fuzz_must(side == AUTH_CONNECTS ? one.rank == 1 : one.rank > 2);
        fuzz_must(one.mine.line >= 0 && one.mine.line < BOOT_LINES);
        fuzz_accept();
    }
    wire_close(&ends[0]);
    wire_close(&ends[1]);
}

/* A peer without the secret does not get past the proof, and no more than a proof's bytes are read. */
static void read_proof(const uint8_t *data, size_t bytes)
{
    static const auth_key key = {{1}};
    const handshake_mesh names = {.magic = HANDSHAKE_MAGIC, .from = 0, .to = -1};
    session one;
    int ends[2];
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    send_all(ends[0], data, bytes);
    session_start(&one, ends[1], AUTH_ACCEPTS, &key, &names);
    const bool whole = bytes >= AUTH_NONCE_BYTES + AUTH_PROOF_BYTES;
    fuzz_must(session_step(&one, SIZE) == (whole ? WIRE_BAD : WIRE_AGAIN));
    fuzz_must(one.state == SESSION_AUTH && one.rank == -1);
    if (whole) fuzz_accept();
    wire_close(&ends[0]);
    wire_close(&ends[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 1 || bytes > 1 << 16) return 0;
    const int before = fuzz_count_descriptors();
    switch (data[0] % READERS) {
    case READS_TABLE:
        read_table(data + 1, bytes - 1);
        break;
    case READS_VERDICT:
        read_verdict(data + 1, bytes - 1);
        break;
    case READS_FRAMES:
        read_frames(data + 1, bytes - 1);
        break;
    case READS_NAMES:
        read_names(AUTH_ACCEPTS, data + 1, bytes - 1);
        break;
    case READS_ANSWER:
        read_names(AUTH_CONNECTS, data + 1, bytes - 1);
        break;
    default:
        read_proof(data + 1, bytes - 1);
    }
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

static size_t with_reader(uint8_t *seed, uint8_t reader, const void *data, size_t bytes)
{
    seed[0] = reader;
    memcpy(seed + 1, data, bytes);
    return 1 + bytes;
}

static size_t table_seed(uint8_t *seed, int32_t size)
{
    const handshake_table_head head = {.size = size};
    const handshake_entry entry = {.place = {.host = 1, .nics = "mlx5_0"},
                                   .contact = {.unix_name = "a-name", .tcp = {.family = size % 2 ? 4 : 6, .port = 80}}};
    seed[0] = READS_TABLE;
    seed[1] = (uint8_t)(size - 1);
    memcpy(seed + 2, &head, sizeof head);
    for (int32_t rank = 0; rank < size; rank++)
        memcpy(seed + 2 + sizeof head + (size_t)rank * sizeof entry, &entry, sizeof entry);
    return 2 + handshake_table_bytes(size);
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const handshake_verdict verdict = {.status = EXPAR_ERR_MISMATCH, .text = "rank 1 joins with size 3"};
    static const handshake_mesh names = {.magic = HANDSHAKE_MAGIC, .from = 5, .to = 2, .line = BOOT_LINE_ASK};
    static const handshake_mesh answer = {.magic = HANDSHAKE_MAGIC, .from = 1, .to = 2};
    static const struct {
        wire_header header;
        unsigned char payload[24];
    } frame = {{.kind = WIRE_TABLE, .bytes = 24}, {0}};
    static const unsigned char proof[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    switch (number) {
    case 0:
    case 1:
        return table_seed(seed, (int32_t)number + 1);
    case 2:
        return with_reader(seed, READS_VERDICT, &verdict, sizeof verdict);
    case 3:
        return with_reader(seed, READS_FRAMES, &frame, sizeof frame);
    case 4:
        return with_reader(seed, READS_NAMES, &names, sizeof names);
    case 5:
        return with_reader(seed, READS_ANSWER, &answer, sizeof answer);
    case 6:
        return with_reader(seed, READS_PROOF, proof, sizeof proof);
    default:
        return 0;
    }
}
