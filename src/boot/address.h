/* SPDX-License-Identifier: Apache-2.0 */
/* address: where sockets listen and connect: abstract Unix names (no file system) and TCP. */
#ifndef EXPAR_BOOT_ADDRESS_H
#define EXPAR_BOOT_ADDRESS_H

#include "boot/boot.h"
#include <sys/socket.h>

typedef struct address {
    struct sockaddr_storage storage;
    socklen_t bytes; /* 0: none */
} address;

#define ADDRESS_TEXT       160
#define ADDRESS_UNIX_BYTES 48 /* a name's characters, its end included */

/* "unix:NAME" or "tcp:HOST:PORT". EXPAR_ERR_ARGUMENT names the text. */
expar_status address_parse(const char *text, address *out);
void address_format(const address *self, char text[ADDRESS_TEXT]);
/* False when the name is too long. */
bool address_from_unix_name(const char *name, address *out);
/* A name that nobody can guess: "expar-" and 32 random hexadecimal digits. */
void address_random_unix_name(char name[ADDRESS_UNIX_BYTES]);
/* The address of an interface of this host ("eth0"), or an IP address, with port 0. Wildcards are refused. Of several
   addresses of an interface the first of IPv4 counts, then of IPv6 those that are not link-local: such a one means
   nothing on another host. */
expar_status address_of_interface(const char *text, address *out);

/* IP addresses as they travel: 4 or 16 bytes. family: AF_INET or AF_INET6 as 4 or 6; 0: none. */
typedef struct address_ip {
    uint16_t family, port;
    unsigned char bytes[16];
} address_ip;
bool address_from_ip(const address_ip *ip, address *out);
/* Without the port; "" for family 0. */
void address_ip_format(const address_ip *ip, char text[BOOT_IP_TEXT]);
/* family 0 for one that is not IP. */
void address_to_ip(const address *self, address_ip *ip);
bool address_is_loopback(const address *self);
bool address_is_unix(const address *self);

/* Nonblocking and close-on-exec. -1 and errno. */
int address_listen(const address *self);
int address_accept(int listener);
/* The connection may still be on its way (poll for POLLOUT, then address_connect_error). */
int address_connect(const address *self);
/* 0, or the errno with which connecting ended. */
int address_connect_error(int fd);
/* This end's address, port included. */
bool address_local(int fd, address *out);
/* True for TCP, and for a Unix socket whose other end runs as the same user. */
bool address_same_user(int fd);

#endif
