/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets at which a provider over TCP accepts connections. All ranks connect to each other in the self-test. Any
 * other process that connects takes a descriptor of the rank, so connections are accepted only during the self-test.
 * After it each rank ends those that no rank has made (strangers.c).
 *
 * libfabric does not show its listening socket, so this looks for it among the process's descriptors. A socket filter
 * then drops packets from new peers; existing connections have sockets of their own, without the filter. Shutting the
 * socket down instead would wake libfabric's queues without end. */
#include "net/fabric/fabric.h"

#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
    const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET) return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a->ss_family == AF_INET6 && a6->sin6_port == b6->sin6_port &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
}

/* A descriptor that is no socket, or that another thread is closing, does not listen. */
static bool listens_at(int fd, const struct sockaddr_storage *address)
{
    struct sockaddr_storage own = {0};
    int listens = 0;
    socklen_t bytes = sizeof listens, own_bytes = sizeof own;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens &&
           getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0 && same_address(&own, address);
}

static int find_listener(const struct sockaddr_storage *address)
{
    int found = -1;
    DIR *all = opendir("/proc/self/fd");
    if (!all) return -1;
    /* The stream is this call's own. */
    // cppcheck-suppress readdirCalled
    for (struct dirent *entry; found < 0 && (entry = readdir(all)) != NULL;) {
        int fd = atoi(entry->d_name); /* "." and ".." become 0, so descriptor 0 is checked twice more */
        if (listens_at(fd, address)) found = fd;
    }
    closedir(all);
    return found;
}

static bool is_over_ip(const fabric *f)
{
    const uint32_t format = f->info->addr_format;
    return format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
}

void fabric_admission_find(const fabric *f, fabric_channel *c)
{
    struct sockaddr_storage address = {0};
    size_t bytes = sizeof address;
    c->listener = -1;
    if (is_over_ip(f) && fi_getname(&c->ep->fid, &address, &bytes) == 0) c->listener = find_listener(&address);
    if (c->listener < 0)
        LOG(LOG_INFO,
            "fabric: provider %s shows no socket that listens: the number of strangers' connections is not bounded",
            f->info->fabric_attr->prov_name);
}

/* Drops every packet. */
static bool shut(int fd)
{
    struct sock_filter drop = {.code = BPF_RET | BPF_K, .k = 0};
    const struct sock_fprog program = {.len = 1, .filter = &drop};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

static bool open_again(int fd)
{
    const int unused = 0;
    return setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused) == 0;
}

void fabric_admission_drop(const fabric_channel *c)
{
    if (c->listener >= 0 && !shut(c->listener))
        LOG(LOG_INFO,
            "fabric: the number of strangers' connections is not bounded: the kernel rejected the socket filter: %s",
            strerror(errno));
}

void fabric_admission_open(const fabric *f)
{
    for (int32_t i = 0; i < f->num_channels; i++) {
        const int fd = f->channels[i].listener;
        if (fd >= 0 && !open_again(fd) && errno != ENOENT)
            LOG(LOG_WARN, "fabric: a socket filter cannot be taken away, so no rank can connect: %s", strerror(errno));
    }
}

void fabric_admission_shut(const fabric *f)
{
    for (int32_t i = 0; i < f->num_channels; i++)
        fabric_admission_drop(&f->channels[i]);
}
