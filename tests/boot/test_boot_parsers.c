/* SPDX-License-Identifier: Apache-2.0 */
/* Random and damaged bytes into everything that parses what a peer or the environment says. */
#include "boot/meet/handshake.h"
#include "boot/meet/peer.h"
#include "boot/meet/session.h"
#include "boot/ranks.h"
#include "boot/sockets/ask.h"
#include "boot/unit.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS 20000

static unsigned seed;

static size_t random_below(size_t limit)
{
    return (size_t)rand_r(&seed) % limit;
}

static void random_bytes(unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)rand_r(&seed);
}

/* Changes a few bits of something valid: gets further in than noise does. */
static void damage(unsigned char *data, size_t bytes)
{
    for (size_t count = 1 + random_below(4); count > 0; count--)
        data[random_below(bytes)] ^= (unsigned char)(1u << random_below(8));
}

static bool is_sane(const handshake *greeting)
{
    return greeting->prefix.size >= 1 && greeting->prefix.size <= BOOT_MAX_RANKS && greeting->prefix.rank >= 0 &&
           greeting->prefix.rank < greeting->prefix.size && greeting->timeout_ms >= 1 &&
           memchr(greeting->contact.unix_name, 0, sizeof greeting->contact.unix_name) &&
           memchr(greeting->place.nics, 0, sizeof greeting->place.nics);
}

/* Accepted values are valid; a rejection has a status and a text. */
static void check_handshake(const unsigned char *payload, size_t bytes)
{
    handshake out;
    handshake_verdict verdict = {0};
    if (handshake_check(payload, bytes, &out, &verdict)) {
        assert_true(is_sane(&out));
    } else {
        assert_int_not_equal(verdict.status, EXPAR_OK);
        assert_true(strnlen(verdict.text, sizeof verdict.text) < sizeof verdict.text);
        assert_string_not_equal(verdict.text, "");
    }
}

static void handshakes(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        /* On the heap and of exact size, so that the sanitizer sees a read beyond. */
        size_t bytes = random_below(HANDSHAKE_LIMIT_BYTES);
        unsigned char *payload = malloc(bytes + 1);
        random_bytes(payload, bytes);
        check_handshake(payload, bytes);
        free(payload);
        handshake greeting = peer_handshake((int32_t)random_below(8), 8);
        damage((unsigned char *)&greeting, sizeof greeting);
        check_handshake((unsigned char *)&greeting, sizeof greeting);
    }
}

static void verdicts(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char payload[sizeof(handshake_verdict) + 8];
        handshake_verdict verdict;
        size_t bytes = round % 2 ? sizeof verdict : random_below(sizeof payload);
        random_bytes(payload, sizeof payload);
        verdict_read(payload, bytes, &verdict);
        assert_string_not_equal(expar_status_string((expar_status)verdict.status), "EXPAR_ERR_?");
        assert_int_not_equal(verdict.status, EXPAR_OK);
        for (const char *c = verdict.text; *c; c++)
            assert_false(iscntrl((unsigned char)*c));
    }
}

static void tables(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        int32_t size = 1 + (int32_t)random_below(4);
        size_t bytes = round % 2 ? handshake_table_bytes(size) : random_below(handshake_table_bytes(4));
        unsigned char *payload = malloc(bytes + 1);
        handshake_table_head head = {.size = size};
        random_bytes(payload, bytes);
        if (bytes >= sizeof head && round % 4) memcpy(payload, &head, sizeof head);
        bool good = handshake_table_check(payload, bytes, size);
        if (good) assert_int_equal(bytes, handshake_table_bytes(size));
        free(payload);
    }
}

static void unique_ids(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        expar_unique_id id, before;
        unique_id_parts parts = {.ip = {.family = 4, .port = 5}};
        unique_id_pack(&parts, &id);
        before = id;
        damage(id.bytes, sizeof id.bytes);
        /* An even number of flips of one bit leaves it as it was. */
        bool same = memcmp(&id, &before, sizeof id) == 0;
        assert_int_equal(unique_id_unpack(&id, &parts), same ? EXPAR_OK : EXPAR_ERR_ARGUMENT);
    }
}

static void addresses(void **state)
{
    (void)state;
    static const char alphabet[] = "tcpunix:::[]0123456789.ab-%/ ";
    for (int round = 0; round < ROUNDS; round++) {
        char text[160] = {0}, formatted[ADDRESS_TEXT];
        address parsed;
        size_t length = random_below(sizeof text);
        for (size_t i = 0; i < length; i++)
            text[i] = alphabet[random_below(sizeof alphabet - 1)];
        /* No name service for noise: only what is not TCP, and numeric hosts below. */
        if (strncmp(text, "tcp:", 4) == 0) continue;
        if (address_parse(text, INT64_MAX, &parsed) == EXPAR_OK) {
            address_format(&parsed, formatted);
            assert_string_equal(formatted, text);
        }
    }
    address parsed;
    char formatted[ADDRESS_TEXT];
    assert_int_equal(address_parse("tcp:127.0.0.1:80", INT64_MAX, &parsed), EXPAR_OK);
    address_format(&parsed, formatted);
    assert_string_equal(formatted, "tcp:127.0.0.1:80");
    assert_int_equal(address_parse("tcp:[::1]:80", INT64_MAX, &parsed), EXPAR_OK);
    assert_int_equal(address_parse("tcp::80", INT64_MAX, &parsed), EXPAR_ERR_ARGUMENT);
    assert_int_equal(address_parse("tcp:127.0.0.1", INT64_MAX, &parsed), EXPAR_ERR_ARGUMENT);
    assert_int_not_equal(address_parse("tcp:127.0.0.1:99999999", INT64_MAX, &parsed), EXPAR_OK);
    assert_int_equal(address_parse("unix:", INT64_MAX, &parsed), EXPAR_ERR_ARGUMENT);
}

/* ---- over a socket ----------------------------------------------------------------------------------------------- */

static void socket_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
}

static void inboxes(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS / 4; round++) {
        unsigned char stream[256], payload[64];
        wire_inbox inbox = {.payload = payload, .limit_bytes = sizeof payload};
        wire_header header = {.kind = (uint32_t)random_below(9), .bytes = (uint32_t)random_below(80)};
        size_t moved = 0;
        int ends[2];
        socket_pair(ends);
        random_bytes(stream, sizeof stream);
        if (round % 4) memcpy(stream, &header, sizeof header);
        assert_int_equal(wire_push(ends[0], stream, sizeof stream, &moved), WIRE_DONE);
        wire_close(&ends[0]);
        wire_result result;
        while ((result = wire_inbox_pull(&inbox, ends[1])) == WIRE_DONE) {
            assert_true(inbox.header.bytes <= sizeof payload);
            wire_inbox_clear(&inbox);
        }
        assert_true(result == WIRE_BAD || result == WIRE_CLOSED);
        wire_close(&ends[1]);
    }
}

/* Nobody without the secret gets past the proof, whatever the bytes; and no more than those of a proof are read. */
static void sessions(void **state)
{
    (void)state;
    auth_key key;
    handshake_mesh names = {.magic = HANDSHAKE_MAGIC, .from = 0, .to = -1};
    memset(&key, 3, sizeof key);
    for (int round = 0; round < ROUNDS / 4; round++) {
        unsigned char stream[256];
        session one;
        size_t moved = 0, bytes = random_below(sizeof stream);
        int ends[2];
        socket_pair(ends);
        random_bytes(stream, sizeof stream);
        assert_int_equal(wire_push(ends[0], stream, bytes, &moved), WIRE_DONE);
        session_start(&one, ends[1], AUTH_ACCEPTS, &key, &names);
        wire_result result = session_step(&one, 8);
        bool whole = bytes >= AUTH_NONCE_BYTES + AUTH_PROOF_BYTES;
        assert_int_equal(result, whole ? WIRE_BAD : WIRE_AGAIN);
        assert_int_equal(one.state, SESSION_AUTH);
        wire_close(&ends[0]);
        wire_close(&ends[1]);
    }
}

/* One who knows the secret but names itself wrongly. */
static void session_names(void **state)
{
    (void)state;
    auth_key key;
    handshake_mesh mine = {.magic = HANDSHAKE_MAGIC, .from = 2, .to = -1};
    memset(&key, 3, sizeof key);
    for (int round = 0; round < ROUNDS / 8; round++) {
        handshake_mesh theirs = {.magic = HANDSHAKE_MAGIC,
                                 .from = 3 + (int32_t)random_below(5),
                                 .to = 2,
                                 .line = (int32_t)random_below(BOOT_LINES)};
        handshake_mesh valid = theirs;
        session accepts;
        auth proof;
        size_t moved = 0;
        int ends[2];
        socket_pair(ends);
        if (round % 8) damage((unsigned char *)&theirs, sizeof theirs);
        bool in_range = theirs.from > 2 && theirs.from < 8;
        if (theirs.line >= 0 && theirs.line < BOOT_LINES) valid.line = theirs.line;
        valid.from = theirs.from;
        bool fits = in_range && memcmp(&valid, &theirs, sizeof valid) == 0;
        session_start(&accepts, ends[1], AUTH_ACCEPTS, &key, &mine);
        auth_begin(&proof, &key, AUTH_CONNECTS, AUTH_MESH);
        assert_int_equal(auth_step(&proof, ends[0]), WIRE_AGAIN);
        assert_int_equal(session_step(&accepts, 8), WIRE_AGAIN);
        assert_int_equal(auth_step(&proof, ends[0]), WIRE_DONE);
        assert_int_equal(wire_push(ends[0], &theirs, sizeof theirs, &moved), WIRE_DONE);
        assert_int_equal(session_step(&accepts, 8), fits ? WIRE_DONE : WIRE_BAD);
        if (fits) assert_int_equal(accepts.rank, theirs.from);
        if (fits) assert_int_equal(accepts.mine.line, theirs.line);
        wire_close(&ends[0]);
        wire_close(&ends[1]);
    }
}

/* A proof for the rendezvous is none for a control socket. */
static void purposes_differ(void **state)
{
    (void)state;
    auth_key key;
    auth a, b;
    int ends[2];
    memset(&key, 3, sizeof key);
    socket_pair(ends);
    auth_begin(&a, &key, AUTH_CONNECTS, AUTH_MESH);
    auth_begin(&b, &key, AUTH_ACCEPTS, AUTH_RENDEZVOUS);
    assert_int_equal(auth_step(&a, ends[0]), WIRE_AGAIN);
    assert_int_equal(auth_step(&b, ends[1]), WIRE_AGAIN);
    assert_int_equal(auth_step(&a, ends[0]), WIRE_BAD);
    assert_int_equal(auth_step(&b, ends[1]), WIRE_BAD);
    wire_close(&ends[0]);
    wire_close(&ends[1]);
}

static ask_record random_record(int32_t size)
{
    static const uint32_t kinds[] = {ASK_QUESTION, ASK_ANSWER, ASK_DEATH, ASK_BLAME};
    const uint32_t kind = kinds[random_below(4)];
    ask_record record = {.mark = ASK_MARK | kind,
                         .serial = (uint32_t)random_below(3),
                         .topic = {.kind = (uint32_t)random_below(BOOT_KINDS),
                                   .object = (uint32_t)random_below(5),
                                   .number = random_below(1000)},
                         .waits = (uint32_t)random_below(2),
                         .ended = (uint32_t)random_below((size_t)EXPAR_ERR_INTERRUPTED + 1),
                         .rank = kind >= ASK_DEATH ? (int32_t)random_below((size_t)size)
                                                   : (int32_t)random_below((size_t)size + 1) - 1,
                         .blamed = (int32_t)random_below((size_t)size + 1) - 1,
                         .waited_ns = (int64_t)random_below(1000)};
    memset(record.doing, 'd', random_below(sizeof record.doing));
    memset(record.reason, 'r', random_below(sizeof record.reason));
    return record;
}

static bool ends(const char *text, size_t bytes)
{
    return memchr(text, 0, bytes) != NULL;
}

static bool record_is_sane(const ask_record *record, int32_t size)
{
    bool marked = record->mark == (ASK_MARK | ASK_QUESTION) || record->mark == (ASK_MARK | ASK_ANSWER) ||
                  record->mark == (ASK_MARK | ASK_BYE);
    bool of_death = record->mark == (ASK_MARK | ASK_DEATH) && record->rank >= 0;
    bool of_blame = record->mark == (ASK_MARK | ASK_BLAME) && record->rank >= 0;
    return (marked || of_death || of_blame) && record->topic.kind <= BOOT_KIND_ALL && record->waits < 2 &&
           record->ended <= EXPAR_ERR_INTERRUPTED && record->rank >= -1 && record->rank < size &&
           record->blamed >= -1 && record->blamed < size && record->waited_ns >= 0 &&
           ends(record->doing, sizeof record->doing) && ends(record->reason, sizeof record->reason);
}

static void ask_records(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        ask_record record;
        random_bytes((unsigned char *)&record, sizeof record);
        assert_false(ask_record_check(&record, 8) && !record_is_sane(&record, 8));
        record = random_record(8);
        assert_true(ask_record_check(&record, 8));
        damage((unsigned char *)&record, sizeof record);
        assert_int_equal(ask_record_check(&record, 8), record_is_sane(&record, 8));
    }
}

/* A line of good records in parts, then a damaged one: an answer to each question, the first death that is told passed
   on, and nothing of what is damaged. */
static void lines(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS / 8; round++) {
        boot_registry registry = {0};
        const boot self = {.size = 2, .registry = &registry, .timeout_ms = 1000};
        ask_record sent[8], damaged, came;
        asker *own;
        int ends[2], questions = 0, deaths = 0, pair[2] = {-1, -1};
        size_t moved = 0, got = 0, part = random_below(sizeof sent);
        registry_init(&registry);
        socket_pair(ends);
        pair[1] = ends[1];
        assert_int_equal(ask_open(&self, pair, &own), EXPAR_OK);
        for (size_t i = 0; i < 8; i++) {
            sent[i] = random_record(2);
            questions += sent[i].mark == (ASK_MARK | ASK_QUESTION);
            deaths |= sent[i].mark == (ASK_MARK | ASK_DEATH) && sent[i].rank == 1;
        }
        assert_int_equal(wire_push(ends[0], sent, part, &moved), WIRE_DONE);
        assert_true(ask_hear(own, 1));
        assert_int_equal(wire_push(ends[0], sent, sizeof sent, &moved), WIRE_DONE);
        assert_true(ask_hear(own, 1));
        damaged = random_record(2);
        damaged.mark ^= 1u << (8 + random_below(24));
        moved = 0;
        assert_int_equal(wire_push(ends[0], &damaged, sizeof damaged, &moved), WIRE_DONE);
        assert_false(ask_hear(own, 1));
        for (; questions + deaths > 0; got = 0) {
            assert_int_equal(wire_pull(ends[0], &came, sizeof came, &got), WIRE_DONE);
            questions -= came.mark == (ASK_MARK | ASK_ANSWER);
            deaths -= came.mark == (ASK_MARK | ASK_DEATH);
            assert_true(questions >= 0 && deaths >= 0);
        }
        assert_int_equal(wire_pull(ends[0], &came, sizeof came, &got), WIRE_AGAIN);
        ask_close(own);
        registry_destroy(&registry);
        wire_close(&ends[0]);
        wire_close(&ends[1]);
    }
}

static void rank_lists(void **state)
{
    (void)state;
    static const bool set[10] = {true, true, true, false, false, true, false, true, true, false};
    char text[64], narrow[10];
    assert_int_equal(ranks_format(set, true, 10, text, sizeof text), 6);
    assert_string_equal(text, "0-2,5,7-8");
    assert_int_equal(ranks_format(set, false, 10, text, sizeof text), 4);
    assert_string_equal(text, "3-4,6,9");
    assert_int_equal(ranks_format(set, true, 0, text, sizeof text), 0);
    assert_string_equal(text, "none");
    assert_int_equal(ranks_format(set, true, 10, narrow, sizeof narrow), 6);
    assert_string_equal(narrow, "0-2,5,…");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handshakes), cmocka_unit_test(verdicts),      cmocka_unit_test(tables),
        cmocka_unit_test(unique_ids), cmocka_unit_test(addresses),     cmocka_unit_test(inboxes),
        cmocka_unit_test(sessions),   cmocka_unit_test(session_names), cmocka_unit_test(purposes_differ),
        cmocka_unit_test(rank_lists), cmocka_unit_test(ask_records),   cmocka_unit_test(lines),
    };
    const char *text = getenv("EXPAR_TEST_SEED");
    seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)clock_ns();
    print_message("seed %u\n", seed);
    if (auth_ready() != EXPAR_OK) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
