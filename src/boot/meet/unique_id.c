/* SPDX-License-Identifier: Apache-2.0 */
/* unique_id: the public calls on ids, and the list of the ids that this process serves.
 *
 * Bytes of an id: 0…7 a mark, 8…23 the secret, 24…25 family and 26…27 port (big endian), 28…43 the address, 44…111
 * zero. Bytes 112…127 are a checksum over all before, which shows a torn or mistyped id before any rank connects. */
#include "base/shown.h"
#include "boot/meet/meet.h"
#include "boot/meet/server.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const unsigned char mark[8] = {'e', 'x', 'p', 'a', 'r', 'i', 'd', '1'};
enum { SECRET_AT = 8, FAMILY_AT = 24, PORT_AT = 26, ADDRESS_AT = 28, CHECKSUM_AT = 112, CHECKSUM_BYTES = 16 };

static void put_u16(unsigned char *at, uint16_t value)
{
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

static uint16_t get_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void checksum_of(const expar_unique_id *id, unsigned char checksum[CHECKSUM_BYTES])
{
    crypto_generichash(checksum, CHECKSUM_BYTES, id->bytes, CHECKSUM_AT, NULL, 0);
}

void unique_id_pack(const unique_id_parts *parts, expar_unique_id *id)
{
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, mark, sizeof mark);
    memcpy(id->bytes + SECRET_AT, parts->secret, sizeof parts->secret);
    put_u16(id->bytes + FAMILY_AT, parts->ip.family);
    put_u16(id->bytes + PORT_AT, parts->ip.port);
    memcpy(id->bytes + ADDRESS_AT, parts->ip.bytes, sizeof parts->ip.bytes);
    checksum_of(id, id->bytes + CHECKSUM_AT);
}

expar_status unique_id_unpack(const expar_unique_id *id, unique_id_parts *parts)
{
    unsigned char checksum[CHECKSUM_BYTES];
    if (memcmp(id->bytes, mark, sizeof mark) != 0)
        return error_set(EXPAR_ERR_ARGUMENT, "unique id: these %d bytes are not an expar id", EXPAR_UNIQUE_ID_BYTES);
    checksum_of(id, checksum);
    if (memcmp(checksum, id->bytes + CHECKSUM_AT, sizeof checksum) != 0)
        return error_set(EXPAR_ERR_ARGUMENT, "unique id: the checksum does not fit: the id was torn or changed");
    memcpy(parts->secret, id->bytes + SECRET_AT, sizeof parts->secret);
    parts->ip = (address_ip){.family = get_u16(id->bytes + FAMILY_AT), .port = get_u16(id->bytes + PORT_AT)};
    memcpy(parts->ip.bytes, id->bytes + ADDRESS_AT, sizeof parts->ip.bytes);
    return EXPAR_OK;
}

/* ---- ids that this process serves -------------------------------------------------------------------------------- */

typedef struct served_id {
    expar_unique_id id;
    boot_server *server;
    pid_t pid; /* a forked child inherits the list but not the server's thread */
    struct served_id *next;
} served_id;

/* Process-wide because the public calls name an id by its bytes alone. */
static pthread_mutex_t served_lock = PTHREAD_MUTEX_INITIALIZER;
static served_id *served_ids;

/* Listens at the given interface, else at EXPAR_BOOTSTRAP_INTERFACE, else at loopback; at any free port. */
static expar_status listen_for_id(const char *call, const char *interface, int *listener, address_ip *ip)
{
    address local;
    const bool given = interface && *interface;
    if (!given) interface = env_string("EXPAR_BOOTSTRAP_INTERFACE");
    if (!interface) interface = "127.0.0.1";
    expar_status status = address_of_interface(
        given ? "expar_unique_id_create_on: interface" : "EXPAR_BOOTSTRAP_INTERFACE", interface, &local);
    if (status != EXPAR_OK) return status;
    int fd = address_listen(&local);
    if (fd < 0) return error_errno("%s: cannot listen on %s", call, SHOWN(interface));
    if (!address_local(fd, &local)) {
        wire_close(&fd);
        return error_errno("%s: getsockname", call);
    }
    address_to_ip(&local, ip);
    *listener = fd;
    return EXPAR_OK;
}

static expar_status id_serve(const char *call, const unique_id_parts *parts, int listener)
{
    served_id *entry = calloc(1, sizeof *entry);
    if (!entry) {
        wire_close(&listener);
        return error_set(EXPAR_ERR_MEMORY, "%s: out of memory", call);
    }
    unique_id_pack(parts, &entry->id);
    entry->pid = getpid();
    expar_status status = boot_server_start(listener, parts->secret, &entry->server);
    if (status != EXPAR_OK) {
        free(entry);
        return status;
    }
    pthread_mutex_lock(&served_lock);
    entry->next = served_ids;
    served_ids = entry;
    pthread_mutex_unlock(&served_lock);
    return EXPAR_OK;
}

static expar_status id_create(const char *call, const char *interface, expar_unique_id *id)
{
    unique_id_parts parts;
    int listener = -1;
    if (!id) return error_set(EXPAR_ERR_NULL, "%s: id is NULL", call);
    expar_status status = auth_ready();
    if (status == EXPAR_OK) status = listen_for_id(call, interface, &listener, &parts.ip);
    if (status != EXPAR_OK) return status;
    randombytes_buf(parts.secret, sizeof parts.secret);
    status = id_serve(call, &parts, listener);
    if (status == EXPAR_OK) unique_id_pack(&parts, id);
    return status;
}

expar_status expar_unique_id_create(expar_unique_id *id)
{
    env_warn_unknown();
    return call_ended(id_create("expar_unique_id_create", NULL, id));
}

expar_status expar_unique_id_create_on(const char *interface, expar_unique_id *id)
{
    env_warn_unknown();
    return call_ended(id_create("expar_unique_id_create_on", interface, id));
}

expar_status expar_unique_id_retire(const expar_unique_id *id)
{
    if (!id) return call_ended(error_set(EXPAR_ERR_NULL, "expar_unique_id_retire: id is NULL"));
    pthread_mutex_lock(&served_lock);
    served_id **link = &served_ids, *entry;
    while ((entry = *link) && (entry->pid != getpid() || memcmp(&entry->id, id, sizeof *id) != 0))
        link = &entry->next;
    if (entry) *link = entry->next;
    pthread_mutex_unlock(&served_lock);
    if (!entry)
        return call_ended(error_set(EXPAR_ERR_ARGUMENT, "expar_unique_id_retire: this process does not serve that id"));
    boot_server_stop(entry->server);
    free(entry);
    return EXPAR_OK;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

void expar_unique_id_format(const expar_unique_id *id, char text[EXPAR_UNIQUE_ID_TEXT])
{
    if (text && id) {
        sodium_bin2hex(text, EXPAR_UNIQUE_ID_TEXT, id->bytes, sizeof id->bytes);
        return;
    }
    if (text) text[0] = 0;
    call_ended(error_set(EXPAR_ERR_NULL, "expar_unique_id_format: %s is NULL", text ? "id" : "text"));
}

expar_status expar_unique_id_parse(const char *text, expar_unique_id *id)
{
    expar_unique_id parsed;
    unique_id_parts parts;
    size_t bytes = 0;
    if (!text || !id)
        return call_ended(error_set(EXPAR_ERR_NULL, "expar_unique_id_parse: %s is NULL", text ? "id" : "text"));
    size_t length = strnlen(text, EXPAR_UNIQUE_ID_TEXT);
    if (length != EXPAR_UNIQUE_ID_TEXT - 1)
        return call_ended(error_set(
            EXPAR_ERR_ARGUMENT, "expar_unique_id_parse: text has %s %d characters, expected %d hexadecimal digits",
            length < EXPAR_UNIQUE_ID_TEXT - 1 ? "only" : "more than",
            length < EXPAR_UNIQUE_ID_TEXT - 1 ? (int)length : EXPAR_UNIQUE_ID_TEXT - 1, EXPAR_UNIQUE_ID_TEXT - 1));
    if (sodium_hex2bin(parsed.bytes, sizeof parsed.bytes, text, length, NULL, &bytes, NULL) != 0 ||
        bytes != sizeof parsed.bytes)
        return call_ended(
            error_set(EXPAR_ERR_ARGUMENT, "expar_unique_id_parse: text has a character that is no hexadecimal digit"));
    expar_status status = unique_id_unpack(&parsed, &parts);
    if (status == EXPAR_OK) *id = parsed;
    return call_ended(status);
}
