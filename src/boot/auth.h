/* SPDX-License-Identifier: Apache-2.0 */
/* auth: both ends of a connection prove that they know the group's secret, before either parses anything.
 *
 *   connecting side                      accepting side
 *      nonce c  ──────────►     ◄──────────  nonce s          32 random bytes each, sent at once
 *      HMAC(key, purpose 'C' c s)  ───►  ◄───  HMAC(key, purpose 'S' c s)
 *
 * The secret itself never travels; the side's letter stops a proof from being sent back to its author, and the purpose
 * stops one made for the rendezvous from serving at a control socket. Exactly 64 bytes are read. */
#ifndef EXPAR_BOOT_AUTH_H
#define EXPAR_BOOT_AUTH_H

#include "boot/wire.h"

#define AUTH_SECRET_BYTES 16
#define AUTH_NONCE_BYTES  32
#define AUTH_PROOF_BYTES  32

typedef struct auth_key {
    unsigned char bytes[32];
} auth_key;

typedef enum auth_side { AUTH_CONNECTS = 'C', AUTH_ACCEPTS = 'S' } auth_side;
typedef enum auth_purpose { AUTH_RENDEZVOUS = 'R', AUTH_MESH = 'M' } auth_purpose;

/* One side of one handshake. */
typedef struct auth {
    auth_key key;
    auth_side side;
    auth_purpose purpose;
    unsigned char out[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    unsigned char in[AUTH_NONCE_BYTES + AUTH_PROOF_BYTES];
    size_t out_ready_bytes, out_sent_bytes, in_bytes;
} auth;

/* Prepares the cryptographic library; call before the others. EXPAR_ERR_SYSTEM. */
expar_status auth_ready(void);
void auth_key_derive(const unsigned char secret[AUTH_SECRET_BYTES], auth_key *key);
/* A secret of the right length from any text. */
void auth_secret_from_text(const char *text, unsigned char secret[AUTH_SECRET_BYTES]);

void auth_begin(auth *self, const auth_key *key, auth_side side, auth_purpose purpose);
/* WIRE_DONE: the other side knows the secret. WIRE_BAD: it does not. */
wire_result auth_step(auth *self, int fd);
/* True while bytes wait for room in the socket. */
bool auth_wants_to_write(const auth *self);
/* auth_step until it ends or the deadline passes (WIRE_AGAIN). */
wire_result auth_run(auth *self, int fd, int64_t deadline_ns);

#endif
