/* SPDX-License-Identifier: Apache-2.0 */
/* Unique ids, as text and as bytes, and the texts that say where ranks meet. */
#include "boot/meet/meet.h"
#include "fuzz.h"

#include <ctype.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);

/* Names are not looked up: no server of names hears of these. */
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    if (!(hints->ai_flags & AI_NUMERICHOST)) return EAI_NONAME;
    return __real_getaddrinfo(host, port, hints, found);
}

static void use_id(const expar_unique_id *id)
{
    unique_id_parts parts;
    expar_unique_id again;
    address where;
    char text[ADDRESS_TEXT];
    if (unique_id_unpack(id, &parts) != EXPAR_OK) {
        fuzz_must_be_shown(expar_last_error());
        return;
    }
    unique_id_pack(&parts, &again);
    fuzz_must(unique_id_unpack(&again, &parts) == EXPAR_OK);
    if (!address_from_ip(&parts.ip, &where)) return;
    address_format(&where, text);
    fuzz_must_be_shown(text);
    (void)address_is_loopback(&where);
    fuzz_accept();
}

static void read_id_text(const char *text)
{
    char again[EXPAR_UNIQUE_ID_TEXT];
    expar_unique_id id;
    if (expar_unique_id_parse(text, &id) != EXPAR_OK) {
        fuzz_must_be_shown(expar_last_error());
        return;
    }
    expar_unique_id_format(&id, again);
    for (size_t i = 0; again[i]; i++)
        fuzz_must(again[i] == tolower((unsigned char)text[i]));
    fuzz_must(strlen(text) == strlen(again));
    use_id(&id);
}

static void read_meeting_text(const char *text)
{
    char formatted[ADDRESS_TEXT];
    address where;
    if (address_parse(text, INT64_MAX, &where) != EXPAR_OK) {
        fuzz_must_be_shown(expar_last_error());
        return;
    }
    address_format(&where, formatted);
    fuzz_must(strncmp(formatted, address_is_unix(&where) ? "unix:" : "tcp:", 4) == 0);
    if (address_is_unix(&where)) fuzz_must(strcmp(formatted, text) == 0);
    fuzz_accept();
}

/* Bytes with a right checksum get further than any that a fuzzer finds. */
static void read_parts(const uint8_t *data, size_t bytes)
{
    unique_id_parts parts;
    expar_unique_id id;
    if (bytes < sizeof parts) return;
    memcpy(&parts, data, sizeof parts);
    unique_id_pack(&parts, &id);
    use_id(&id);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    expar_unique_id id;
    char *text = malloc(bytes + 1);
    fuzz_must(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = 0;
    read_id_text(text);
    read_meeting_text(text);
    read_parts(data, bytes);
    if (bytes >= sizeof id) {
        memcpy(&id, data, sizeof id);
        use_id(&id);
    }
    free(text);
    return 0;
}

size_t fuzz_seed(unsigned number, uint8_t seed[FUZZ_SEED_BYTES])
{
    static const char *const meetings[] = {"unix:expar-job", "tcp:127.0.0.1:80", "tcp:[::1]:65535"};
    const unique_id_parts parts = {.secret = {1, 2, 3},
                                   .ip = {.family = number % 2 ? 4 : 6, .port = 80, .bytes = {127}}};
    expar_unique_id id;
    unique_id_pack(&parts, &id);
    if (number < 3) return strlen(strcpy((char *)seed, meetings[number]));
    if (number > 6) return 0;
    if (number < 5) {
        memcpy(seed, &id, sizeof id);
        return sizeof id;
    }
    expar_unique_id_format(&id, (char *)seed);
    return EXPAR_UNIQUE_ID_TEXT - 1;
}
