/* SPDX-License-Identifier: Apache-2.0 */
/* stream: an input as pieces that several peers send: a byte that names the peer, a byte that says how, two bytes of
 * length, then the bytes themselves. */
#ifndef EXPAR_TESTS_FUZZ_STREAM_H
#define EXPAR_TESTS_FUZZ_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PIECE_CLOSES = 1,     /* the peer closes its socket afterwards */
    PIECE_TAKES_TIME = 2, /* after it the time-out is over */
    PIECE_BRINGS_FD = 4   /* a descriptor travels with its first byte */
};

typedef struct stream {
    const uint8_t *data;
    size_t bytes;
} stream;

typedef struct piece {
    uint8_t peer, how;
    const uint8_t *data;
    size_t bytes;
} piece;

/* Takes the next piece; the last one may have fewer bytes than it says. False: there are no more. */
bool stream_next(stream *self, piece *out);
/* Adds a piece to a seed of *used bytes. */
void stream_add(uint8_t *seed, size_t *used, uint8_t peer, uint8_t how, const void *data, size_t bytes);
/* Makes two ends of a connection as boot has them. */
void stream_connect(int ends[2]);
/* Sends a piece. A peer that has closed cannot. */
void stream_send(int *fd, const piece *one);

#endif
