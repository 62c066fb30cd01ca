/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces that peers send. */
#include "stream.h"
#include "boot/wire/wire.h"
#include "fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES = 4 };

bool stream_next(stream *self, piece *out)
{
    if (self->bytes < HEAD_BYTES) return false;
    const size_t wanted = (size_t)self->data[2] | (size_t)self->data[3] << 8, left = self->bytes - HEAD_BYTES;
    *out = (piece){.peer = self->data[0],
                   .how = self->data[1],
                   .data = self->data + HEAD_BYTES,
                   .bytes = wanted < left ? wanted : left};
    self->data += HEAD_BYTES + out->bytes;
    self->bytes = left - out->bytes;
    return true;
}

void stream_add(uint8_t *seed, size_t *used, uint8_t peer, uint8_t how, const void *data, size_t bytes)
{
    const uint8_t head[HEAD_BYTES] = {peer, how, (uint8_t)bytes, (uint8_t)(bytes >> 8)};
    fuzz_must(*used + sizeof head + bytes <= FUZZ_SEED_BYTES);
    memcpy(seed + *used, head, sizeof head);
    if (bytes > 0) memcpy(seed + *used + sizeof head, data, bytes);
    *used += sizeof head + bytes;
}

void stream_connect(int ends[2])
{
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
}

static void send_with_descriptor(int fd, const piece *one)
{
    const int carried = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct iovec part = {.iov_base = (void *)(uintptr_t)one->data, .iov_len = one->bytes};
    union {
        struct cmsghdr align;
        unsigned char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *item = CMSG_FIRSTHDR(&message);
    *item = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(item), &carried, sizeof carried);
    (void)sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(carried);
}

void stream_send(int *fd, const piece *one)
{
    size_t moved = 0;
    if (*fd < 0) return;
    if (one->how & PIECE_BRINGS_FD && one->bytes > 0)
        send_with_descriptor(*fd, one);
    else
        (void)wire_push(*fd, one->data, one->bytes, &moved);
    if (one->how & PIECE_CLOSES) wire_close(fd);
}
