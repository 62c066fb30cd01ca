/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of ranks to the rendezvous, from peers that have proved the secret: greetings, words that sockets stand,
 * rejections, in any order, by several peers, in parts. */
#include "boot/meet/attempt.h"
#include "fuzz.h"
#include "stream.h"

#include <string.h>

#define CLIENTS      4
#define ANSWER_BYTES (sizeof(handshake_table_head) + CLIENTS * sizeof(handshake_entry) + sizeof(handshake_verdict))

typedef struct scene {
    attempt attempt;
    client *clients[CLIENTS];
    int ends[CLIENTS]; /* the peers' */
    wire_inbox answers[CLIENTS];
    unsigned char payloads[CLIENTS][ANSWER_BYTES];
} scene;

static void slot_open(scene *self, int slot)
{
    static const auth_key key;
    int ends[2];
    if (self->clients[slot]) return;
    wire_close(&self->ends[slot]);
    stream_connect(ends);
    self->ends[slot] = ends[0];
    self->clients[slot] = client_create(ends[1], &key);
    fuzz_must(self->clients[slot] != NULL);
    self->clients[slot]->state = CLIENT_KNOWN;
    self->answers[slot] = (wire_inbox){.payload = self->payloads[slot], .limit_bytes = ANSWER_BYTES};
}

static void slot_drop(scene *self, int slot)
{
    if (!self->clients[slot]) return;
    attempt_lost(&self->attempt, self->clients[slot]);
    client_destroy(self->clients[slot]);
    self->clients[slot] = NULL;
}

static void check_answer(const wire_inbox *answer)
{
    handshake_table_head head;
    handshake_verdict verdict;
    fuzz_must(answer->header.kind != WIRE_HANDSHAKE && answer->header.kind != WIRE_STANDS);
    if (answer->header.kind == WIRE_GO) fuzz_accept();
    if (answer->header.kind == WIRE_TABLE) {
        memcpy(&head, answer->payload, sizeof head);
        fuzz_must(handshake_table_check(answer->payload, answer->header.bytes, head.size));
    } else if (answer->header.kind == WIRE_REJECTED) {
        fuzz_must(answer->header.bytes == sizeof verdict);
        verdict_read(answer->payload, answer->header.bytes, &verdict);
        fuzz_must_be_shown(verdict.text);
    } else {
        fuzz_must(answer->header.kind <= WIRE_LATER && answer->header.bytes == 0);
    }
}

static void hear_answers(scene *self)
{
    for (int slot = 0; slot < CLIENTS; slot++) {
        if (self->ends[slot] < 0) continue;
        wire_result result;
        while ((result = wire_inbox_pull(&self->answers[slot], self->ends[slot])) == WIRE_DONE) {
            check_answer(&self->answers[slot]);
            wire_inbox_clear(&self->answers[slot]);
        }
        fuzz_must(result != WIRE_BAD);
    }
}

static void check_attempt(const attempt *self)
{
    int32_t came = 0, standing = 0;
    fuzz_must((self->size > 0) == (self->members != NULL));
    for (int32_t rank = 0; rank < self->size; rank++) {
        came += self->came[rank];
        standing += self->stands[rank];
        fuzz_must(!self->members[rank] || (self->members[rank]->rank == rank && self->came[rank]));
        fuzz_must(!self->members[rank] || self->members[rank]->state == CLIENT_MEMBER);
    }
    fuzz_must(came == self->num_came && standing == self->num_standing);
    fuzz_must(self->size == 0 || standing < self->size);
}

static void serve(scene *self, bool leaving)
{
    for (int slot = 0; slot < CLIENTS; slot++) {
        client *one = self->clients[slot];
        if (!one || (leaving && one->state != CLIENT_LEAVING)) continue;
        if (!attempt_serve(&self->attempt, one)) slot_drop(self, slot);
    }
}

static void take(scene *self, const piece *one)
{
    const int slot = one->peer % CLIENTS;
    slot_open(self, slot);
    stream_send(&self->ends[slot], one);
    serve(self, false);
    if (one->how & PIECE_TAKES_TIME) attempt_check_time(&self->attempt, INT64_MAX);
    serve(self, true); /* a frame of one, or the time, may have ended the try for all */
    check_attempt(&self->attempt);
    hear_answers(self);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static scene self;
    stream from = {.data = data, .bytes = bytes};
    const int before = fuzz_count_descriptors();
    piece one;
    memset(&self, 0, sizeof self);
    for (int slot = 0; slot < CLIENTS; slot++)
        self.ends[slot] = -1;
    while (stream_next(&from, &one))
        take(&self, &one);
    attempt_close(&self.attempt);
    hear_answers(&self);
    for (int slot = 0; slot < CLIENTS; slot++) {
        if (self.clients[slot]) client_destroy(self.clients[slot]);
        wire_close(&self.ends[slot]);
    }
    fuzz_must(fuzz_count_descriptors() == before);
    return 0;
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

static void add_frame(uint8_t *seed, size_t *used, int32_t peer, wire_kind kind, const void *payload, size_t bytes)
{
    unsigned char frame[sizeof(wire_header) + HANDSHAKE_LIMIT_BYTES];
    const wire_header header = {.kind = kind, .bytes = (uint32_t)bytes};
    memcpy(frame, &header, sizeof header);
    if (bytes > 0) memcpy(frame + sizeof header, payload, bytes);
    stream_add(seed, used, (uint8_t)peer, 0, frame, sizeof header + bytes);
}

static void add_handshake(uint8_t *seed, size_t *used, int32_t rank, int32_t size, uint64_t heap_bytes)
{
    static const boot_place place = {.host = 1, .machine = 1, .pid = 7, .num_cores = 2, .nics = "mlx5_0"};
    static const handshake_contact contact = {.unix_name = "a-name", .tcp = {.family = 4, .port = 80}};
    const boot_request request = {.rank = rank, .size = size, .timeout_ms = 20000, .heap_bytes = heap_bytes};
    handshake greeting;
    handshake_fill(&request, &place, &contact, &greeting);
    add_frame(seed, used, rank, WIRE_HANDSHAKE, &greeting, sizeof greeting);
}

static void add_group(uint8_t *seed, size_t *used, int32_t size)
{
    for (int32_t rank = 0; rank < size; rank++)
        add_handshake(seed, used, rank, size, 1 << 20);
    for (int32_t rank = 0; rank < size; rank++)
        add_frame(seed, used, rank, WIRE_STANDS, NULL, 0);
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const handshake_verdict trouble = {.status = EXPAR_ERR_BOOTSTRAP, .text = "no control socket"};
    size_t used = 0;
    if (number > 4) return 0;
    if (number == 2) { /* ranks disagree, and come again */
        add_handshake(seed, &used, 0, 2, 1 << 20);
        add_handshake(seed, &used, 1, 2, 2 << 20);
    }
    if (number == 3) { /* a rank rejects */
        add_handshake(seed, &used, 1, 3, 1 << 20);
        add_frame(seed, &used, 1, WIRE_REJECTED, &trouble, sizeof trouble);
    }
    if (number == 4) { /* a rank leaves; one comes twice; the time is over */
        add_handshake(seed, &used, 2, 3, 1 << 20);
        stream_add(seed, &used, 2, PIECE_CLOSES, NULL, 0);
        add_handshake(seed, &used, 0, 2, 1 << 20);
        stream_add(seed, &used, 0, PIECE_TAKES_TIME, NULL, 0);
    }
    add_group(seed, &used, number < 2 ? (int32_t)number + 1 : 2);
    return used;
}
