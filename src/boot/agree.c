/* SPDX-License-Identifier: Apache-2.0 */
/* agree: one allgather of records (reason, fields, payload) brings all ranks to one answer. */
#include "boot/boot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Head of a record; the fields' slots and the payload follow. */
typedef struct record_head {
    uint32_t subject; /* what the agreement is about; records of one size may be of several subjects */
    int32_t status;   /* expar_status: why the rank cannot take part, or EXPAR_OK */
    char reason[BOOT_REASON_TEXT];
} record_head;

typedef struct agreement {
    const boot *self;
    const boot_matter *matter;
    const error_kept *own;
    size_t payload_at, record_bytes;
    unsigned char *records; /* [size] of record_bytes */
} agreement;

/* ---- records ----------------------------------------------------------------------------------------------------- */

static size_t slot_bytes(const boot_field *field)
{
    return field->text ? BOOT_FIELD_TEXT : sizeof field->value;
}

static void agreement_lay_out(agreement *a)
{
    a->payload_at = sizeof(record_head);
    for (size_t i = 0; i < a->matter->num_fields; i++)
        a->payload_at += slot_bytes(&a->matter->fields[i]);
    /* Aligns the head of every record. */
    a->record_bytes = align_up(a->payload_at + a->matter->bytes, _Alignof(record_head));
}

/* FNV-1a. */
static uint32_t hash_text(uint32_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

static uint32_t subject_of(const boot_matter *matter)
{
    uint32_t hash = hash_text(2166136261u, matter->rejected ? matter->rejected : "");
    for (size_t i = 0; i < matter->num_fields; i++)
        hash = hash_text(hash, matter->fields[i].name);
    return hash;
}

static unsigned char *record_of(const agreement *a, int32_t rank)
{
    return a->records + (size_t)rank * a->record_bytes;
}

static const record_head *head_of(const agreement *a, int32_t rank)
{
    return (const record_head *)(const void *)record_of(a, rank);
}

/* Writes as much of a text as fits; the rest of the bytes is zero already. */
static void write_text(void *spare, size_t bytes, const char *text)
{
    memcpy(spare, text, strnlen(text, bytes - 1));
}

static void write_own(const agreement *a)
{
    unsigned char *record = record_of(a, a->self->rank), *slot = record + sizeof(record_head);
    record_head head = {.subject = subject_of(a->matter), .status = (int32_t)a->own->status};
    write_text(head.reason, sizeof head.reason, a->own->text);
    memcpy(record, &head, sizeof head);
    for (size_t i = 0; i < a->matter->num_fields; i++) {
        const boot_field *field = &a->matter->fields[i];
        if (field->text)
            write_text(slot, BOOT_FIELD_TEXT, field->text);
        else
            memcpy(slot, &field->value, sizeof field->value);
        slot += slot_bytes(field);
    }
    if (a->matter->bytes > 0) memcpy(slot, a->matter->mine, a->matter->bytes);
}

static void agreement_hand_out(const agreement *a)
{
    for (int32_t r = 0; r < a->self->size && a->matter->bytes > 0; r++)
        memcpy((unsigned char *)a->matter->all + (size_t)r * a->matter->bytes, record_of(a, r) + a->payload_at,
               a->matter->bytes);
}

/* ---- result ------------------------------------------------------------------------------------------------------ */

static bool is_common(const agreement *a, int32_t status)
{
    return a->matter->common != EXPAR_OK && status == (int32_t)a->matter->common;
}

/* Returns the lowest rank that cannot take part, for a common reason or for its own; -1: none. */
static int32_t find_rejection(const agreement *a, bool common)
{
    for (int32_t r = 0; r < a->self->size; r++) {
        const int32_t status = head_of(a, r)->status;
        if (status != EXPAR_OK && is_common(a, status) == common) return r;
    }
    return -1;
}

static expar_status agreement_tell(const agreement *a, expar_status status, const char *text)
{
    return a->matter->what ? error_set(status, "%s: %s", a->matter->what, text) : error_set(status, "%s", text);
}

static expar_status judge_reasons(const agreement *a, bool common)
{
    char text[ERROR_TEXT_BYTES];
    const int32_t rank = find_rejection(a, common);
    if (rank < 0) return EXPAR_OK;
    if (a->own->status != EXPAR_OK && is_common(a, a->own->status) == common) return error_restore(a->own);
    const record_head *head = head_of(a, rank);
    const expar_status reason = (expar_status)head->status;
    snprintf(text, sizeof text, "rank %d %s: %s (%s)%s%.*s", rank, common ? a->matter->lacks : a->matter->rejected,
             expar_status_string(reason), expar_status_text(reason), head->reason[0] ? ": " : "", BOOT_REASON_TEXT - 1,
             head->reason);
    return agreement_tell(a, common ? reason : EXPAR_ERR_REMOTE, text);
}

static bool is_known(const boot_field *field, const unsigned char *slot)
{
    uint64_t value;
    if (field->text) return slot[0] != '\0';
    memcpy(&value, slot, sizeof value);
    return value != BOOT_UNKNOWN;
}

static void format_slot(const boot_field *field, const unsigned char *slot, char text[BOOT_FIELD_TEXT])
{
    uint64_t value;
    if (field->text) {
        snprintf(text, BOOT_FIELD_TEXT, "%.*s", BOOT_FIELD_TEXT - 1, (const char *)slot);
        return;
    }
    memcpy(&value, slot, sizeof value);
    snprintf(text, BOOT_FIELD_TEXT, "%llu", (unsigned long long)value);
}

static expar_status fields_differ(const agreement *a, const boot_field *field, size_t at, int32_t rank, int32_t first)
{
    char its[BOOT_FIELD_TEXT], firsts[BOOT_FIELD_TEXT], text[ERROR_TEXT_BYTES];
    format_slot(field, record_of(a, rank) + at, its);
    format_slot(field, record_of(a, first) + at, firsts);
    snprintf(text, sizeof text, "%s is %s on rank %d and %s on rank %d; expected the same", field->name, its, rank,
             firsts, first);
    return agreement_tell(a, EXPAR_ERR_MISMATCH, text);
}

static expar_status judge_field(const agreement *a, const boot_field *field, size_t at)
{
    int32_t first = -1;
    for (int32_t r = 0; r < a->self->size; r++) {
        const unsigned char *slot = record_of(a, r) + at;
        if (!is_known(field, slot)) continue;
        if (first < 0) first = r;
        if (memcmp(slot, record_of(a, first) + at, slot_bytes(field)) != 0)
            return fields_differ(a, field, at, r, first);
    }
    return EXPAR_OK;
}

static expar_status judge_fields(const agreement *a)
{
    expar_status status = EXPAR_OK;
    size_t at = sizeof(record_head);
    for (size_t i = 0; i < a->matter->num_fields && status == EXPAR_OK; i++) {
        status = judge_field(a, &a->matter->fields[i], at);
        at += slot_bytes(&a->matter->fields[i]);
    }
    return status;
}

static expar_status judge_subjects(const agreement *a)
{
    char text[64];
    int32_t r = 1;
    while (r < a->self->size && head_of(a, r)->subject == head_of(a, 0)->subject)
        r++;
    if (r >= a->self->size) return EXPAR_OK;
    snprintf(text, sizeof text, "rank %d is in another call than rank 0", r);
    return agreement_tell(a, EXPAR_ERR_MISMATCH, text);
}

static expar_status agreement_judge(const agreement *a)
{
    expar_status status = judge_subjects(a);
    if (status == EXPAR_OK) status = judge_reasons(a, false);
    if (status == EXPAR_OK) status = judge_fields(a);
    return status == EXPAR_OK ? judge_reasons(a, true) : status;
}

expar_status boot_agree(boot *self, const boot_matter *matter, expar_status own, bool *out_of_step)
{
    error_kept kept;
    agreement a = {.self = self, .matter = matter, .own = &kept};
    bool unasked;
    if (!out_of_step) out_of_step = &unasked;
    error_keep(&kept, own);
    agreement_lay_out(&a);
    *out_of_step = true;
    a.records = calloc((size_t)self->size, a.record_bytes);
    if (!a.records) return error_set(EXPAR_ERR_MEMORY, "no memory for the records of %d ranks", self->size);
    write_own(&a);
    const char *call = self->call;
    if (!call) self->call = matter->what;
    expar_status status = self->ops->allgather(self, record_of(&a, self->rank), a.records, a.record_bytes);
    self->call = call;
    *out_of_step = status != EXPAR_OK;
    if (status == EXPAR_OK) status = agreement_judge(&a);
    if (status == EXPAR_OK) agreement_hand_out(&a);
    free(a.records);
    return status;
}
