/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks go to their hosts. */
#include "netns/netns.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool netns_on(void)
{
    return getenv(NETNS_VARIABLE) != NULL;
}

static int count_hosts(void)
{
    int count = 1;
    for (const char *at = strchr(getenv(NETNS_VARIABLE), ':'); at; at = strchr(at + 1, ':'))
        count++;
    return count;
}

int netns_host_of(int32_t rank, int32_t size, int32_t ranks_per_node)
{
    if (!netns_on()) return 0;
    int32_t each = ranks_per_node > 0 && size % ranks_per_node == 0 ? ranks_per_node : 1;
    return rank / each * count_hosts() / (size / each);
}

uint64_t netns_rounds(uint64_t rounds)
{
    return netns_on() ? rounds / 10 : rounds;
}

bool netns_enter(int32_t rank, int32_t size, int32_t ranks_per_node)
{
    const char *own = getenv(NETNS_VARIABLE);
    char path[64];
    if (!own) return true;
    for (int host = netns_host_of(rank, size, ranks_per_node); host > 0; host--)
        own = strchr(own, ':') + 1;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(own, ":"), own);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (!entered) perror(path);
    if (fd >= 0) close(fd);
    return entered;
}
