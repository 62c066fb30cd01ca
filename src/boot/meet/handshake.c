/* SPDX-License-Identifier: Apache-2.0 */
/* handshake.c: records of the rendezvous and their checks. */
#include "boot/meet/handshake.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void verdict_set(handshake_verdict *verdict, expar_status status, const char *format, ...)
{
    va_list arguments;
    *verdict = (handshake_verdict){.status = (int32_t)status};
    va_start(arguments, format);
    vsnprintf(verdict->text, sizeof verdict->text, format, arguments);
    va_end(arguments);
}

static bool is_failure(int32_t status)
{
    return status > EXPAR_OK && status <= EXPAR_ERR_UNSUPPORTED;
}

void verdict_read(const void *payload, size_t bytes, handshake_verdict *verdict)
{
    if (bytes != sizeof *verdict) {
        verdict_set(verdict, EXPAR_ERR_BOOTSTRAP,
                    "the rendezvous rejected this rank, in a form that this version does not know");
        return;
    }
    memcpy(verdict, payload, sizeof *verdict);
    if (!is_failure(verdict->status)) verdict->status = EXPAR_ERR_BOOTSTRAP;
    verdict->text[sizeof verdict->text - 1] = 0;
    wire_text_clean(verdict->text);
}

void handshake_fill(const boot_request *request, const boot_place *place, const handshake_contact *contact,
                    handshake *out)
{
    memset(out, 0, sizeof *out);
    out->prefix.magic = HANDSHAKE_MAGIC;
    out->prefix.protocol = BOOT_PROTOCOL;
    snprintf(out->prefix.version, sizeof out->prefix.version, "%s", expar_version());
    out->prefix.rank = request->rank;
    out->prefix.size = request->size;
    out->ranks_per_node = request->ranks_per_node;
    out->heap_bytes = request->heap_bytes;
    out->timeout_ms = request->timeout_ms;
    out->place = *place;
    out->contact = *contact;
}

static bool prefix_check(const handshake_prefix *prefix, handshake_verdict *verdict)
{
    if (prefix->magic != HANDSHAKE_MAGIC) {
        verdict_set(verdict, EXPAR_ERR_VERSION,
                    "the first message of a peer starts with %08" PRIx32 ", expected %08" PRIx32
                    " (another byte order, or not expar)",
                    prefix->magic, HANDSHAKE_MAGIC);
        return false;
    }
    if (prefix->protocol != BOOT_PROTOCOL) {
        verdict_set(verdict, EXPAR_ERR_VERSION,
                    "rank %" PRId32 " speaks protocol %" PRIu32 " (expar %.23s), this group protocol %d (expar %s)",
                    prefix->rank, prefix->protocol, prefix->version, BOOT_PROTOCOL, expar_version());
        return false;
    }
    if (prefix->size < 1 || prefix->size > BOOT_MAX_RANKS || prefix->rank < 0 || prefix->rank >= prefix->size) {
        verdict_set(verdict, EXPAR_ERR_RANGE,
                    "a peer says it is rank %" PRId32 " of %" PRId32 ", expected 0 ≤ rank < size ≤ %d", prefix->rank,
                    prefix->size, BOOT_MAX_RANKS);
        return false;
    }
    return true;
}

static bool texts_fit(const handshake_contact *contact, const boot_place *place)
{
    return wire_text_fits(contact->unix_name, sizeof contact->unix_name) &&
           wire_text_fits(place->nics, sizeof place->nics);
}

bool handshake_check(const void *payload, size_t bytes, handshake *out, handshake_verdict *verdict)
{
    handshake_prefix prefix;
    handshake whole;
    out->prefix = (handshake_prefix){.rank = -1};
    if (bytes < sizeof prefix) {
        verdict_set(verdict, EXPAR_ERR_VERSION, "the first message of a peer has %zu bytes, expected %zu", bytes,
                    sizeof whole);
        return false;
    }
    memcpy(&prefix, payload, sizeof prefix);
    prefix.version[sizeof prefix.version - 1] = 0;
    wire_text_clean(prefix.version);
    if (prefix.magic == HANDSHAKE_MAGIC) out->prefix = prefix;
    if (!prefix_check(&prefix, verdict)) return false;
    if (bytes != sizeof whole) {
        verdict_set(verdict, EXPAR_ERR_VERSION,
                    "the first message of rank %" PRId32 " (expar %s) has %zu bytes, expected %zu", prefix.rank,
                    prefix.version, bytes, sizeof whole);
        return false;
    }
    memcpy(&whole, payload, sizeof whole);
    if (!texts_fit(&whole.contact, &whole.place) || whole.timeout_ms < 1 || whole.timeout_ms > BOOT_MAX_TIMEOUT_MS) {
        verdict_set(verdict, EXPAR_ERR_VERSION, "the first message of rank %" PRId32 " has values out of range",
                    prefix.rank);
        return false;
    }
    *out = whole;
    out->prefix = prefix;
    return true;
}

static bool agree_on(const handshake *group, const handshake *rank, const char *field, uint64_t expected,
                     uint64_t given, handshake_verdict *verdict)
{
    if (expected == given) return true;
    verdict_set(verdict, EXPAR_ERR_MISMATCH,
                "rank %" PRId32 " joins with %s %" PRIu64 ", rank %" PRId32 " with %" PRIu64, rank->prefix.rank, field,
                given, group->prefix.rank, expected);
    return false;
}

bool handshake_agree(const handshake *group, const handshake *rank, handshake_verdict *verdict)
{
    return agree_on(group, rank, "size", (uint64_t)group->prefix.size, (uint64_t)rank->prefix.size, verdict) &&
           agree_on(group, rank, "ranks_per_node", (uint64_t)group->ranks_per_node, (uint64_t)rank->ranks_per_node,
                    verdict) &&
           agree_on(group, rank, "heap_bytes", group->heap_bytes, rank->heap_bytes, verdict);
}

bool handshake_table_check(const void *payload, size_t bytes, int32_t size)
{
    handshake_table_head head;
    if (bytes < sizeof head) return false;
    memcpy(&head, payload, sizeof head);
    if (head.size != size || bytes != handshake_table_bytes(size)) return false;
    const unsigned char *entries = (const unsigned char *)payload + sizeof head;
    for (int32_t rank = 0; rank < size; rank++) {
        handshake_entry entry;
        memcpy(&entry, entries + (size_t)rank * sizeof entry, sizeof entry);
        if (!texts_fit(&entry.contact, &entry.place)) return false;
    }
    return true;
}
