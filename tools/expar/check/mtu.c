/* SPDX-License-Identifier: Apache-2.0 */
/* The largest packet: the same on all hosts, and true along the path. The first rank of each host sends datagrams that
 * may not be fragmented to the first ranks of all others: small ones, and ones as large as its interface allows. The
 * receivers say by the control sockets what they got, so a lost answer misleads nobody. */
#include "base/shown.h"
#include "check.h"
#include "group/tools.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* Each datagram is sent so often, since single ones may be lost. */
#define COPIES       3
#define SMALL_BYTES  64
#define MOST_BYTES   65536
#define PATIENCE_MS  1000
#define IPV4_HEADERS 28
#define IPV6_HEADERS 48

enum { GOT_NOTHING, GOT_SMALL, GOT_FULL };

/* The address of a host's first rank, as all ranks get it. */
struct mtu_end {
    struct sockaddr_storage at;
    socklen_t bytes;
    int32_t mtu; /* 0: not known */
};

/* The start of each datagram. */
struct mtu_mark {
    uint64_t nonce;
    int32_t from;
    int32_t full;
};

struct mtu_probe {
    expar_group *group;
    const struct check_host *hosts;
    int32_t host; /* this rank's; -1: another rank of it takes part */
    int fd;
    uint64_t nonce;
    struct mtu_end *ends; /* [hosts->count] */
    uint8_t *got;         /* [hosts->count], row of this host as a receiver */
    char *buffer;         /* [MOST_BYTES] */
};

static bool same_ip(const struct sockaddr *a, const struct sockaddr *b)
{
    if (!a || a->sa_family != b->sa_family) return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)(const void *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Returns the MTU of the interface that has the address; 0: none has. */
static int32_t mtu_of(int fd, const struct sockaddr_storage *at)
{
    struct ifaddrs *all = NULL;
    struct ifreq request = {0};
    int32_t mtu = 0;
    if (getifaddrs(&all) != 0) return 0;
    for (const struct ifaddrs *one = all; one && mtu == 0; one = one->ifa_next) {
        if (!same_ip(one->ifa_addr, (const struct sockaddr *)at)) continue;
        snprintf(request.ifr_name, sizeof request.ifr_name, "%s", one->ifa_name);
        if (ioctl(fd, SIOCGIFMTU, &request) == 0) mtu = request.ifr_mtu;
    }
    freeifaddrs(all);
    return mtu;
}

/* Fills an address with any port. */
static void address_fill(const char *ip, struct mtu_end *end)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1) {
        memcpy(&end->at, &v4, sizeof v4);
        end->bytes = sizeof v4;
    } else if (inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1) {
        memcpy(&end->at, &v6, sizeof v6);
        end->bytes = sizeof v6;
    }
}

/* Opens a socket at the address by which the ranks met. Packets are sent whole or not at all. */
static void end_open(struct mtu_probe *probe, struct mtu_end *end)
{
    const int probing = IP_PMTUDISC_PROBE, probing6 = IPV6_PMTUDISC_PROBE;
    address_fill(group_ip(probe->group), end);
    if (end->bytes > 0) probe->fd = socket(end->at.ss_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe->fd < 0) return;
    if (end->at.ss_family == AF_INET)
        setsockopt(probe->fd, IPPROTO_IP, IP_MTU_DISCOVER, &probing, sizeof probing);
    else
        setsockopt(probe->fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probing6, sizeof probing6);
    if (bind(probe->fd, (const struct sockaddr *)&end->at, end->bytes) == 0 &&
        getsockname(probe->fd, (struct sockaddr *)&end->at, &end->bytes) == 0) {
        end->mtu = mtu_of(probe->fd, &end->at);
        return;
    }
    close(probe->fd);
    probe->fd = -1;
    *end = (struct mtu_end){0};
}

/* ---- datagrams --------------------------------------------------------------------------------------------------- */

static void send_to(const struct mtu_probe *probe, int32_t to)
{
    const struct mtu_end *mine = &probe->ends[probe->host], *end = &probe->ends[to];
    const int32_t headers = mine->at.ss_family == AF_INET ? IPV4_HEADERS : IPV6_HEADERS;
    if (end->bytes == 0 || end->at.ss_family != mine->at.ss_family || mine->mtu < SMALL_BYTES + headers) return;
    int32_t full = mine->mtu - headers;
    /* The loopback's MTU exceeds what one datagram carries. */
    if (full > MOST_BYTES - 1 - IPV6_HEADERS) full = MOST_BYTES - 1 - IPV6_HEADERS;
    for (int copy = 0; copy < COPIES; copy++)
        for (int32_t is_full = 0; is_full < 2; is_full++) {
            struct mtu_mark mark = {.nonce = probe->nonce, .from = probe->host, .full = is_full};
            memcpy(probe->buffer, &mark, sizeof mark);
            /* A datagram that cannot be sent does not arrive, which the receiver tells. */
            if (sendto(probe->fd, probe->buffer, (size_t)(is_full ? full : SMALL_BYTES), 0,
                       (const struct sockaddr *)&end->at, end->bytes) < 0)
                continue;
        }
}

static bool all_came(const struct mtu_probe *probe)
{
    for (int32_t host = 0; host < probe->hosts->count; host++)
        if (host != probe->host && probe->got[host] != GOT_FULL) return false;
    return true;
}

/* Takes all datagrams that are there. Those of strangers lack the nonce. */
static void take_all(struct mtu_probe *probe)
{
    struct mtu_mark mark;
    ssize_t count;
    while ((count = recv(probe->fd, probe->buffer, MOST_BYTES, 0)) >= 0) {
        if ((size_t)count < sizeof mark) continue;
        memcpy(&mark, probe->buffer, sizeof mark);
        if (mark.nonce != probe->nonce || mark.from < 0 || mark.from >= probe->hosts->count) continue;
        const uint8_t came = mark.full ? GOT_FULL : GOT_SMALL;
        if (probe->got[mark.from] < came) probe->got[mark.from] = came;
    }
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void receive(struct mtu_probe *probe)
{
    const int64_t end_ms = now_ms() + PATIENCE_MS;
    struct pollfd polled = {.fd = probe->fd, .events = POLLIN};
    for (int64_t left = PATIENCE_MS; left > 0 && !all_came(probe); left = end_ms - now_ms())
        if (poll(&polled, 1, (int)left) > 0) take_all(probe);
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

/* Gathers an item of each host's first rank from the items of all ranks. */
static expar_status gather_firsts(const struct mtu_probe *probe, const void *mine, void *firsts, size_t bytes)
{
    const int32_t ranks = expar_group_size(probe->group);
    char *all = calloc((size_t)ranks, bytes);
    if (!all) return EXPAR_ERR_MEMORY;
    expar_status status = expar_group_allgather(probe->group, mine, all, bytes);
    for (int32_t host = 0; host < probe->hosts->count && status == EXPAR_OK; host++)
        memcpy((char *)firsts + (size_t)host * bytes, all + (size_t)probe->hosts->first[host] * bytes, bytes);
    free(all);
    return status;
}

static expar_status probe_run(struct mtu_probe *probe, uint8_t *came)
{
    struct mtu_end mine = {0};
    const size_t count = (size_t)probe->hosts->count;
    if (getrandom(&probe->nonce, sizeof probe->nonce, 0) < 0) probe->nonce = 1;
    if (probe->host >= 0) end_open(probe, &mine);
    expar_status status = gather_firsts(probe, &mine, probe->ends, sizeof mine);
    if (status == EXPAR_OK) status = expar_group_broadcast(probe->group, &probe->nonce, sizeof probe->nonce, 0);
    if (status == EXPAR_OK && probe->fd >= 0) {
        for (int32_t host = 0; host < probe->hosts->count; host++)
            if (host != probe->host) send_to(probe, host);
        receive(probe);
    }
    if (status == EXPAR_OK) status = gather_firsts(probe, probe->got, came, count);
    return status;
}

/* Turns what each host got into got[from·count + to]. */
static void judge(const struct mtu_probe *probe, const uint8_t *came, json_t *rows)
{
    const int32_t count = probe->hosts->count;
    int32_t *mtus = calloc((size_t)count, sizeof *mtus);
    uint8_t *got = calloc((size_t)count * (size_t)count, 1);
    for (int32_t from = 0; mtus && got && from < count; from++) {
        mtus[from] = probe->ends[from].mtu;
        for (int32_t to = 0; to < count; to++)
            got[from * count + to] = came[to * count + from];
    }
    if (mtus && got) check_judge_mtu(probe->hosts, mtus, got, rows);
    free(got);
    free(mtus);
}

/* True if no host lost full packets of another whose small ones came. */
static bool is_whole(const uint8_t *came, int32_t count)
{
    for (int32_t i = 0; i < count * count; i++)
        if (i / count != i % count && came[i] == GOT_SMALL) return false;
    return true;
}

expar_status check_mtu(expar_group *group, const struct check_host *hosts, bool *whole, json_t *rows)
{
    const int32_t rank = expar_group_rank(group), host = hosts->of[rank];
    const size_t count = (size_t)hosts->count;
    struct mtu_probe probe = {.group = group,
                              .hosts = hosts,
                              .fd = -1,
                              .host = hosts->first[host] == rank ? host : -1,
                              .ends = calloc(count, sizeof(struct mtu_end)),
                              .got = calloc(count, 1),
                              .buffer = calloc(MOST_BYTES, 1)};
    uint8_t *came = calloc(count * count, 1);
    expar_status status = EXPAR_ERR_MEMORY;
    if (probe.ends && probe.got && probe.buffer && came) status = probe_run(&probe, came);
    if (status == EXPAR_OK && rank == 0) judge(&probe, came, rows);
    if (status == EXPAR_OK) *whole = is_whole(came, hosts->count);
    if (probe.fd >= 0) close(probe.fd);
    free(came);
    free(probe.buffer);
    free(probe.got);
    free(probe.ends);
    return status;
}

/* ---- the judgement ----------------------------------------------------------------------------------------------- */

static void judge_equal(const struct check_host *hosts, const int32_t *mtus, json_t *rows)
{
    struct check_text text = {0};
    bool equal = true, known = true;
    char remedy[96];
    int32_t least = mtus[0];
    for (int32_t host = 0; host < hosts->count; host++) {
        equal = equal && mtus[host] == mtus[0];
        known = known && mtus[host] > 0;
        if (mtus[host] < least) least = mtus[host];
        check_text_add(&text, "%s%s %d", host ? ", " : "", hosts->names[hosts->first[host]], mtus[host]);
    }
    snprintf(remedy, sizeof remedy, "sudo ip link set DEV mtu %d   (one value on all hosts and switches)", least);
    struct check_row row = {"network", "mtu", CHECK_OK, "equal on all hosts", remedy};
    if (!known) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
    } else if (!equal) {
        row.status = CHECK_FAILURE;
    }
    if (known && equal)
        check_add(rows, &row, "%d on all %d hosts", mtus[0], hosts->count);
    else
        check_add(rows, &row, "%s", text.text);
}

void check_judge_mtu(const struct check_host *hosts, const int32_t *mtus, const uint8_t *got, json_t *rows)
{
    struct check_text lost = {0}, silent = {0};
    const int32_t count = hosts->count;
    judge_equal(hosts, mtus, rows);
    for (int32_t i = 0; i < count * count; i++) {
        const char *from = hosts->names[hosts->first[i / count]], *to = hosts->names[hosts->first[i % count]];
        if (i / count == i % count || got[i] == GOT_FULL) continue;
        struct check_text *text = got[i] == GOT_SMALL ? &lost : &silent;
        check_text_add(text, "%s%s to %s (%d bytes)", text->used ? ", " : "", from, to, mtus[i / count]);
    }
    struct check_row row = {
        "network", "mtu_path", CHECK_OK, "packets of full size arrive whole",
        "ping -M do -s SIZE HOST   (finds what fits; then raise the switch's MTU, or lower the hosts')"};
    if (lost.used) {
        row.status = CHECK_FAILURE;
        check_add(rows, &row, "full packets are lost from %s", lost.text);
    } else if (silent.used) {
        row.status = CHECK_SKIPPED;
        row.remedy = "allow UDP between the hosts, and check again";
        check_add(rows, &row, "no UDP arrives from %s", silent.text);
    } else {
        check_add(rows, &row, "between all %d hosts", count);
    }
}
