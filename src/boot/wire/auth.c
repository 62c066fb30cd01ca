/* SPDX-License-Identifier: Apache-2.0 */
/* auth: mutual challenge and response. */
#include "boot/wire/wire.h"

#include <poll.h>
#include <sodium.h>
#include <string.h>

_Static_assert(sizeof(auth_key) == crypto_auth_KEYBYTES, "the key is that of crypto_auth");
_Static_assert(AUTH_PROOF_BYTES == crypto_auth_BYTES, "the proof is that of crypto_auth");

#define MESSAGE_BYTES (2 + 2 * AUTH_NONCE_BYTES)

expar_status auth_ready(void)
{
    if (sodium_init() < 0) return error_set(EXPAR_ERR_SYSTEM, "libsodium cannot be initialised");
    return EXPAR_OK;
}

void auth_key_derive(const unsigned char secret[AUTH_SECRET_BYTES], auth_key *key)
{
    static const unsigned char label[] = "expar boot key 1";
    crypto_generichash(key->bytes, sizeof key->bytes, secret, AUTH_SECRET_BYTES, label, sizeof label - 1);
}

void auth_secret_from_text(const char *text, unsigned char secret[AUTH_SECRET_BYTES])
{
    crypto_generichash(secret, AUTH_SECRET_BYTES, (const unsigned char *)text, strlen(text), NULL, 0);
}

void auth_begin(auth *self, const auth_key *key, auth_side side, auth_purpose purpose)
{
    *self = (auth){.key = *key, .side = side, .purpose = purpose, .out_ready_bytes = AUTH_NONCE_BYTES};
    randombytes_buf(self->out, AUTH_NONCE_BYTES);
}

/* Builds the message that `side` signs. */
static void message_of(const auth *self, auth_side side, unsigned char message[MESSAGE_BYTES])
{
    const unsigned char *connects = self->side == AUTH_CONNECTS ? self->out : self->in;
    const unsigned char *accepts = self->side == AUTH_CONNECTS ? self->in : self->out;
    message[0] = (unsigned char)self->purpose;
    message[1] = (unsigned char)side;
    memcpy(message + 2, connects, AUTH_NONCE_BYTES);
    memcpy(message + 2 + AUTH_NONCE_BYTES, accepts, AUTH_NONCE_BYTES);
}

static void auth_answer(auth *self)
{
    unsigned char message[MESSAGE_BYTES];
    message_of(self, self->side, message);
    crypto_auth(self->out + AUTH_NONCE_BYTES, message, sizeof message, self->key.bytes);
    self->out_ready_bytes = sizeof self->out;
}

/* Compares in constant time. */
static bool proof_holds(const auth *self)
{
    unsigned char message[MESSAGE_BYTES];
    message_of(self, self->side == AUTH_CONNECTS ? AUTH_ACCEPTS : AUTH_CONNECTS, message);
    return crypto_auth_verify(self->in + AUTH_NONCE_BYTES, message, sizeof message, self->key.bytes) == 0;
}

wire_result auth_step(auth *self, int fd)
{
    wire_result sent = wire_push(fd, self->out, self->out_ready_bytes, &self->out_sent_bytes);
    if (sent == WIRE_CLOSED) return sent;
    wire_result received = wire_pull(fd, self->in, sizeof self->in, &self->in_bytes);
    if (self->in_bytes >= AUTH_NONCE_BYTES && self->out_ready_bytes == AUTH_NONCE_BYTES) {
        auth_answer(self);
        sent = wire_push(fd, self->out, self->out_ready_bytes, &self->out_sent_bytes);
    }
    /* Judge a complete proof before reporting a closed connection, so that a process with the wrong secret learns
       that. */
    if (received == WIRE_DONE && !proof_holds(self)) return WIRE_BAD;
    if (received != WIRE_DONE) return received;
    return sent;
}

bool auth_wants_to_write(const auth *self)
{
    return self->out_sent_bytes < self->out_ready_bytes;
}

wire_result auth_run(auth *self, int fd, int64_t deadline_ns)
{
    wire_result result;
    while ((result = auth_step(self, fd)) == WIRE_AGAIN) {
        short events = (short)(POLLIN | (auth_wants_to_write(self) ? POLLOUT : 0));
        if (!wire_wait(fd, events, deadline_ns)) return WIRE_AGAIN;
    }
    return result;
}
