/* SPDX-License-Identifier: Apache-2.0 */
/* wire: bytes and frames through nonblocking sockets. */
#include "boot/wire/wire.h"
#include "base/interrupt.h"
#include "base/shown.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK;
}

wire_result wire_push(int fd, const void *data, size_t bytes, size_t *moved)
{
    while (*moved < bytes) {
        ssize_t count = send(fd, (const unsigned char *)data + *moved, bytes - *moved, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count >= 0)
            *moved += (size_t)count;
        else if (would_block(errno))
            return WIRE_AGAIN;
        else if (errno != EINTR)
            return WIRE_CLOSED;
    }
    return WIRE_DONE;
}

wire_result wire_pull(int fd, void *data, size_t bytes, size_t *moved)
{
    while (*moved < bytes) {
        ssize_t count = recv(fd, (unsigned char *)data + *moved, bytes - *moved, MSG_DONTWAIT);
        if (count > 0) {
            *moved += (size_t)count;
        } else if (count == 0) {
            errno = 0;
            return WIRE_CLOSED;
        } else if (would_block(errno)) {
            return WIRE_AGAIN;
        } else if (errno != EINTR) {
            return WIRE_CLOSED;
        }
    }
    return WIRE_DONE;
}

wire_result wire_inbox_pull(wire_inbox *inbox, int fd)
{
    if (inbox->have_bytes < sizeof inbox->header) {
        wire_result result = wire_pull(fd, &inbox->header, sizeof inbox->header, &inbox->have_bytes);
        if (result != WIRE_DONE) return result;
    }
    if (inbox->header.bytes > inbox->limit_bytes) return WIRE_BAD;
    size_t moved = inbox->have_bytes - sizeof inbox->header;
    wire_result result = wire_pull(fd, inbox->payload, inbox->header.bytes, &moved);
    inbox->have_bytes = sizeof inbox->header + moved;
    return result;
}

void wire_inbox_clear(wire_inbox *inbox)
{
    inbox->have_bytes = 0;
}

bool wire_outbox_add(wire_outbox *outbox, wire_kind kind, const void *payload, size_t bytes)
{
    wire_header header = {.kind = kind, .bytes = (uint32_t)bytes};
    unsigned char *data = realloc(outbox->data, outbox->bytes + sizeof header + bytes);
    if (!data) return false;
    memcpy(data + outbox->bytes, &header, sizeof header);
    if (bytes > 0) memcpy(data + outbox->bytes + sizeof header, payload, bytes);
    outbox->data = data;
    outbox->bytes += sizeof header + bytes;
    return true;
}

wire_result wire_outbox_push(wire_outbox *outbox, int fd)
{
    wire_result result = wire_push(fd, outbox->data, outbox->bytes, &outbox->sent_bytes);
    if (result == WIRE_DONE) wire_outbox_free(outbox);
    return result;
}

void wire_outbox_free(wire_outbox *outbox)
{
    free(outbox->data);
    *outbox = (wire_outbox){0};
}

#define LONGEST_MS ((int)(INTERRUPT_NS / 1000000))

int wire_poll_ms(int64_t deadline_ns)
{
    const int64_t hour_ms = 3600 * 1000;
    int64_t left_ns = deadline_ns - clock_ns();
    if (left_ns <= 0) return 0;
    int64_t left_ms = left_ns / 1000000 + 1;
    return (int)(left_ms < hour_ms ? left_ms : hour_ms);
}

bool wire_wait(int fd, short events, int64_t deadline_ns)
{
    for (;;) {
        struct pollfd entry = {.fd = fd, .events = events};
        int wait_ms = wire_poll_ms(deadline_ns);
        if (poll(&entry, 1, wait_ms < LONGEST_MS ? wait_ms : LONGEST_MS) > 0) return true;
        if (wait_ms == 0 || interrupt_came()) return false;
    }
}

wire_result wire_send_frame(int fd, wire_kind kind, const void *payload, size_t bytes, int64_t deadline_ns)
{
    wire_outbox outbox = {0};
    if (!wire_outbox_add(&outbox, kind, payload, bytes)) return WIRE_BAD;
    wire_result result;
    while ((result = wire_outbox_push(&outbox, fd)) == WIRE_AGAIN && wire_wait(fd, POLLOUT, deadline_ns))
        continue;
    wire_outbox_free(&outbox);
    return result;
}

wire_result wire_receive_frame(int fd, wire_inbox *inbox, int64_t deadline_ns)
{
    wire_result result;
    while ((result = wire_inbox_pull(inbox, fd)) == WIRE_AGAIN && wire_wait(fd, POLLIN, deadline_ns))
        continue;
    return result;
}

void wire_keep_alive(int fd, int64_t limit_ms)
{
    const int one = 1, tries = 5, user_ms = (int)limit_ms;
    const int interval_s = (int)(limit_ms / 10000), idle_s = (int)(limit_ms / 1000) - tries * interval_s;
    if (setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) != 0) return; /* this is not TCP */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof user_ms);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
}

static bool is_control(const char *text, const char *at)
{
    return shown_is_control((unsigned char)*at, at > text && (unsigned char)at[-1] == 0xc2);
}

void wire_text_clean(char *text)
{
    for (char *at = text; *at; at++)
        if (is_control(text, at)) *at = '?';
}

bool wire_text_fits(const char *text, size_t bytes)
{
    if (strnlen(text, bytes) == bytes) return false;
    for (const char *at = text; *at; at++)
        if (is_control(text, at)) return false;
    return true;
}

void wire_close(int *fd)
{
    if (*fd < 0) return;
    shutdown(*fd, SHUT_RDWR);
    close(*fd);
    *fd = -1;
}
