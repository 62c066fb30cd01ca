/* SPDX-License-Identifier: Apache-2.0 */
/* address: naming of sockets, listening and connecting. */
#include "base/shown.h"
#include "boot/bounded.h"
#include "boot/wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

bool address_from_unix_name(const char *name, address *out)
{
    size_t length = strlen(name);
    if (length == 0 || length >= ADDRESS_UNIX_BYTES) return false;
    *out = (address){0};
    struct sockaddr_un *local = (struct sockaddr_un *)&out->storage;
    local->sun_family = AF_UNIX;
    /* sun_path[0] stays 0: the abstract namespace. */
    memcpy(local->sun_path + 1, name, length);
    out->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    return true;
}

void address_random_unix_name(char name[ADDRESS_UNIX_BYTES])
{
    unsigned char random[16];
    char digits[2 * sizeof random + 1];
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(digits, sizeof digits, random, sizeof random);
    snprintf(name, ADDRESS_UNIX_BYTES, "expar-%s", digits);
}

/* The resolver would take any number and cut it. */
static bool is_port(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits <= 5 && text[digits] == 0 && strtol(text, NULL, 10) <= UINT16_MAX;
}

/* Returns 0, or the error of getaddrinfo. */
static int look_up(const char *host, const char *port, int flags, address *out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV}, *found = NULL;
    int failure = getaddrinfo(host, port, &hints, &found);
    if (failure != 0) return failure;
    *out = (address){.bytes = found->ai_addrlen};
    memcpy(&out->storage, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

/* A resolver may wait without limit for a server that does not answer, so a separate thread asks it. */
typedef struct lookup {
    bounded bound;
    char host[ADDRESS_TEXT], port[8];
    int failure;
    address found;
} lookup;

static void run_lookup(bounded *bound)
{
    lookup *self = (lookup *)bound;
    self->failure = look_up(self->host, self->port, 0, &self->found);
}

static void dispose_lookup(bounded *bound)
{
    free(bound);
}

static expar_status resolve(const char *host, const char *port, int64_t deadline_ns, address *out)
{
    lookup *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "no memory to resolve \"%s\"", SHOWN(host));
    snprintf(self->host, sizeof self->host, "%s", host);
    snprintf(self->port, sizeof self->port, "%s", port);
    expar_status status = bounded_start(&self->bound, run_lookup, dispose_lookup);
    if (status != EXPAR_OK) return status;
    if (!bounded_wait(&self->bound, deadline_ns))
        status = error_set(EXPAR_ERR_BOOTSTRAP, "the name of host \"%s\" was not resolved in time", SHOWN(host));
    else if (self->failure != 0)
        status = error_set(EXPAR_ERR_BOOTSTRAP, "no address for host \"%s\" port \"%s\": %s", SHOWN(host), port,
                           gai_strerror(self->failure));
    else
        *out = self->found;
    bounded_drop(&self->bound);
    return status;
}

/* Parses "HOST:PORT"; a colon within HOST (IPv6) needs no brackets but may have them. */
static expar_status parse_tcp(const char *text, int64_t deadline_ns, address *out)
{
    char host[ADDRESS_TEXT];
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof host || !is_port(colon + 1))
        return error_set(EXPAR_ERR_ARGUMENT, "\"tcp:%s\" is not tcp:HOST:PORT", SHOWN(text));
    size_t length = (size_t)(colon - text);
    bool brackets = length > 2 && text[0] == '[' && text[length - 1] == ']';
    memcpy(host, text + brackets, length - 2 * brackets);
    host[length - 2 * brackets] = 0;

    if (look_up(host, colon + 1, AI_NUMERICHOST, out) == 0) return EXPAR_OK;
    return resolve(host, colon + 1, deadline_ns, out);
}

expar_status address_parse(const char *text, int64_t deadline_ns, address *out)
{
    if (strncmp(text, "tcp:", 4) == 0) return parse_tcp(text + 4, deadline_ns, out);
    if (strncmp(text, "unix:", 5) == 0 && address_from_unix_name(text + 5, out)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "\"%s\" is neither unix:NAME nor tcp:HOST:PORT", SHOWN(text));
}

void address_format(const address *self, char text[ADDRESS_TEXT])
{
    if (address_is_unix(self)) {
        const struct sockaddr_un *local = (const struct sockaddr_un *)&self->storage;
        int length = (int)(self->bytes - offsetof(struct sockaddr_un, sun_path)) - 1;
        snprintf(text, ADDRESS_TEXT, "unix:%.*s", length, local->sun_path + 1);
        return;
    }
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)&self->storage, self->bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, ADDRESS_TEXT, "tcp:?");
    else
        snprintf(text, ADDRESS_TEXT, "tcp:%.100s:%.8s", host, port);
}

static bool is_wildcard(const address *self)
{
    address_ip ip;
    address_to_ip(self, &ip);
    static const unsigned char zeros[16];
    return memcmp(ip.bytes, zeros, sizeof zeros) == 0;
}

static bool reaches_out(const struct sockaddr *at, sa_family_t family)
{
    if (!at || at->sa_family != family) return false;
    if (family == AF_INET) return true;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at;
    return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

/* An interface that is down is not found. */
static bool find_interface(const char *name, sa_family_t family, address *out)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0) return false;
    for (struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        if (strcmp(one->ifa_name, name) != 0 || !(one->ifa_flags & IFF_UP)) continue;
        if (!reaches_out(one->ifa_addr, family)) continue;
        out->bytes = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memcpy(&out->storage, one->ifa_addr, out->bytes);
        found = true;
    }
    freeifaddrs(all);
    return found;
}

bool boot_interface_ip(const char *name, char text[BOOT_IP_TEXT])
{
    address found = {0};
    if (!find_interface(name, AF_INET, &found) && !find_interface(name, AF_INET6, &found)) return false;
    return getnameinfo((const struct sockaddr *)&found.storage, found.bytes, text, BOOT_IP_TEXT, NULL, 0,
                       NI_NUMERICHOST) == 0;
}

expar_status address_of_interface(const char *what, const char *text, address *out)
{
    address found = {0};
    address_ip ip = {.family = 4};
    if (inet_pton(AF_INET, text, ip.bytes) == 1) {
        address_from_ip(&ip, &found);
    } else if (inet_pton(AF_INET6, text, ip.bytes) == 1) {
        ip.family = 6;
        address_from_ip(&ip, &found);
    } else if (!find_interface(text, AF_INET, &found) && !find_interface(text, AF_INET6, &found)) {
        return error_set(EXPAR_ERR_ARGUMENT, "%s=%s: %s, and this is no IP address itself", what, SHOWN(text),
                         if_nametoindex(text) ? "the interface is down, or has no address that other hosts could reach"
                                              : "no such interface");
    }
    if (is_wildcard(&found))
        return error_set(EXPAR_ERR_ARGUMENT, "%s=%s: expected one interface or address that the other ranks can reach",
                         what, SHOWN(text));
    *out = found;
    return EXPAR_OK;
}

bool address_from_ip(const address_ip *ip, address *out)
{
    *out = (address){0};
    if (ip->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)&out->storage;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(ip->port)};
        memcpy(&v4->sin_addr, ip->bytes, sizeof v4->sin_addr);
        out->bytes = sizeof *v4;
    } else if (ip->family == 6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->storage;
        *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(ip->port)};
        memcpy(&v6->sin6_addr, ip->bytes, sizeof v6->sin6_addr);
        out->bytes = sizeof *v6;
    }
    return out->bytes != 0;
}

void address_ip_format(const address_ip *ip, char text[BOOT_IP_TEXT])
{
    int family = ip->family == 4 ? AF_INET : AF_INET6;
    if (ip->family == 0 || !inet_ntop(family, ip->bytes, text, BOOT_IP_TEXT)) text[0] = 0;
}

void address_to_ip(const address *self, address_ip *ip)
{
    *ip = (address_ip){0};
    if (self->storage.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&self->storage;
        *ip = (address_ip){.family = 4, .port = ntohs(v4->sin_port)};
        memcpy(ip->bytes, &v4->sin_addr, sizeof v4->sin_addr);
    } else if (self->storage.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&self->storage;
        *ip = (address_ip){.family = 6, .port = ntohs(v6->sin6_port)};
        memcpy(ip->bytes, &v6->sin6_addr, sizeof v6->sin6_addr);
    }
}

bool address_is_loopback(const address *self)
{
    address_ip ip;
    address_to_ip(self, &ip);
    static const unsigned char one[16] = {[15] = 1};
    return ip.family == 4 ? ip.bytes[0] == 127 : ip.family == 6 && memcmp(ip.bytes, one, sizeof one) == 0;
}

bool address_is_unix(const address *self)
{
    return self->storage.ss_family == AF_UNIX;
}

static int open_socket(const address *self)
{
    return socket(self->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

/* Frames are small and answer each other, so waiting for more to send would only delay them. */
static void set_nodelay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int address_listen(const address *self)
{
    int fd = open_socket(self);
    if (fd < 0) return -1;
    int one = 1;
    address_ip ip;
    address_to_ip(self, &ip);
    /* For a fixed port only: with any port, two processes might get the same one, and listen() would fail. */
    if (ip.port != 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&self->storage, self->bytes) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int address_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) set_nodelay(fd);
    return fd;
}

int address_connect(const address *self)
{
    int fd = open_socket(self);
    if (fd < 0) return -1;
    if (!address_is_unix(self)) set_nodelay(fd);
    if (connect(fd, (const struct sockaddr *)&self->storage, self->bytes) == 0 || errno == EINPROGRESS) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int address_connect_error(int fd)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) return errno;
    return error;
}

bool address_local(int fd, address *out)
{
    *out = (address){.bytes = sizeof out->storage};
    return getsockname(fd, (struct sockaddr *)&out->storage, &out->bytes) == 0;
}

bool address_same_user(int fd)
{
    address self;
    if (!address_local(fd, &self)) return false;
    if (!address_is_unix(&self)) return true;
    struct ucred other;
    socklen_t bytes = sizeof other;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0) return false;
    return other.uid == geteuid();
}
