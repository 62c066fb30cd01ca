/* SPDX-License-Identifier: Apache-2.0 */
/* peer: a connection to the rendezvous made by hand, step by step, to stop or lie at any of them. */
#ifndef EXPAR_TESTS_BOOT_PEER_H
#define EXPAR_TESTS_BOOT_PEER_H

#include "boot/meet/meet.h"
#include "boot/meet/rendezvous.h"

/* Nonblocking; -1 on failure. */
int peer_connect(const expar_unique_id *id);
/* True when both sides have proved the secret of `id`. */
bool peer_prove(int fd, const expar_unique_id *id);
/* A greeting as this version sends it; to be changed and sent. */
handshake peer_handshake(int32_t rank, int32_t size);
bool peer_send_handshake(int fd, const handshake *greeting);
/* Connects, proves, sends the greeting and waits for the welcome. -1 on failure. */
int peer_enter(const expar_unique_id *id, int32_t rank, int32_t size);
/* Waits for the next frame other than a welcome. False when the connection ends first. */
bool peer_await_frame(int fd, wire_inbox *inbox);
/* Waits until the other side closes. False when it sends a frame instead. */
bool peer_await_close(int fd);

#define PEER_WAIT_NS ((int64_t)30 * 1000 * 1000 * 1000)

#endif
