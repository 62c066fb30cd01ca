/* SPDX-License-Identifier: Apache-2.0 */
/* Messages with space for one descriptor, over a socket of the kind SOCK_SEQPACKET. */
#include "net/gda/nic/orders.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct nic_letter {
    struct msghdr header;
    struct iovec part;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
} nic_letter;

static void letter_begin(nic_letter *letter, void *data, size_t bytes)
{
    memset(letter, 0, sizeof *letter);
    letter->part = (struct iovec){.iov_base = data, .iov_len = bytes};
    letter->header.msg_iov = &letter->part;
    letter->header.msg_iovlen = 1;
    letter->header.msg_control = letter->control;
    letter->header.msg_controllen = sizeof letter->control;
}

bool nic_letter_send(int socket, const void *data, size_t bytes, int fd)
{
    nic_letter letter;
    letter_begin(&letter, (void *)(uintptr_t)data, bytes);
    if (fd < 0) {
        letter.header.msg_control = NULL;
        letter.header.msg_controllen = 0;
    } else {
        struct cmsghdr *control = CMSG_FIRSTHDR(&letter.header);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &letter.header, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes;
}

ssize_t nic_letter_receive(int socket, void *data, size_t bytes, int *fd)
{
    nic_letter letter;
    letter_begin(&letter, data, bytes);
    *fd = -1;
    ssize_t got;
    do {
        got = recvmsg(socket, &letter.header, MSG_CMSG_CLOEXEC | MSG_TRUNC);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return got;
    const struct cmsghdr *control = CMSG_FIRSTHDR(&letter.header);
    if (control && control->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(control), sizeof *fd);
    return got;
}
