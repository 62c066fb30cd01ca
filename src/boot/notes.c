/* SPDX-License-Identifier: Apache-2.0 */
/* notes: what a rank says of its own waits, and of calls that it comes to no more. */
#include "boot/notes.h"
#include "base/interrupt.h"

#include <stdio.h>
#include <string.h>

void notes_init(boot_notes *self)
{
    pthread_mutex_init(&self->lock, NULL);
}

void notes_destroy(boot_notes *self)
{
    pthread_mutex_destroy(&self->lock);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void write_call(note_call *call, const boot_topic *topic, const char *name, uint32_t thread)
{
    atomic_store_explicit(&call->name, name, memory_order_relaxed);
    atomic_store_explicit(&call->number, topic->number, memory_order_relaxed);
    atomic_store_explicit(&call->thread, thread, memory_order_relaxed);
}

void boot_note_call(boot *self, const boot_topic *topic, const char *name)
{
    boot_notes *notes = self->notes;
    const uint32_t thread = thread_number();
    write_call(&notes->calls[topic->kind][topic->object % NOTES_OBJECTS], topic, name, thread);
    write_call(&notes->last, topic, name, thread);
}

void boot_note_made(boot *self)
{
    boot_notes *notes = self->notes;
    for (int kind = 0; kind < BOOT_KINDS; kind++)
        for (int i = 0; i < NOTES_OBJECTS; i++)
            atomic_store_explicit(&notes->calls[kind][i].thread, 0, memory_order_relaxed);
    atomic_store_explicit(&notes->last.thread, 0, memory_order_relaxed);
}

static const note_call *call_of(const boot_notes *self, const boot_topic *topic)
{
    const note_call *call = &self->calls[topic->kind][topic->object % NOTES_OBJECTS];
    return atomic_load_explicit(&call->thread, memory_order_relaxed) ? call : &self->last;
}

uint32_t notes_caller(const boot_notes *self, const boot_topic *topic)
{
    return atomic_load_explicit(&call_of(self, topic)->thread, memory_order_relaxed);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static bool is_of(const boot_topic *topic, uint32_t kind, uint32_t object)
{
    return topic->kind == kind && topic->object == object;
}

/* The caller holds the lock. */
static note_ended *find_ended(boot_notes *self, uint32_t kind, uint32_t object)
{
    const uint32_t ever = atomic_load_explicit(&self->num_ended, memory_order_relaxed);
    const uint32_t count = ever < NOTES_ENDED ? ever : NOTES_ENDED;
    for (uint32_t i = 0; i < count; i++)
        if (self->ended[i].status != EXPAR_OK && is_of(&self->ended[i].topic, kind, object)) return &self->ended[i];
    return NULL;
}

/* The caller holds the lock. */
static note_ended *oldest_end(boot_notes *self)
{
    return &self->ended[atomic_fetch_add_explicit(&self->num_ended, 1, memory_order_relaxed) % NOTES_ENDED];
}

/* One that is for good stays; another makes room, but not for one in passing. */
static void keep_end(boot_notes *self, note_ended end, const char *reason)
{
    pthread_mutex_lock(&self->lock);
    note_ended *one = find_ended(self, end.topic.kind, end.topic.object);
    if (!one || one->passing || (one->refused && !end.passing)) {
        if (one && one->passing) end.culprit = one->culprit;
        memcpy(end.reason, reason, strnlen(reason, sizeof end.reason - 1));
        if (!one) one = oldest_end(self);
        *one = end;
    }
    pthread_mutex_unlock(&self->lock);
}

void boot_note_ended(boot *self, const boot_topic *topic, expar_status status, const char *reason)
{
    keep_end(self->notes, (note_ended){.topic = *topic, .status = status, .culprit = -1}, reason);
}

void notes_failed(boot_notes *self, const boot_wait *wait, expar_status status, const char *reason)
{
    const note_ended end = {.topic = wait->topic, .status = status, .passing = true, .culprit = wait->culprit};
    keep_end(self, end, reason);
}

void boot_note_refused(boot *self, const boot_topic *topic, expar_status status, const char *reason)
{
    note_call *calls = &self->notes->calls[topic->kind][topic->object % NOTES_OBJECTS];
    const uint32_t refused = atomic_fetch_add_explicit(&calls->refused, 1, memory_order_relaxed) + 1;
    const note_ended end = {.topic = *topic, .status = status, .refused = refused, .culprit = -1};
    keep_end(self->notes, end, reason);
}

/* As a topic has room for; who has refused more has refused that many. */
static uint16_t refused_within(uint32_t refused)
{
    return refused < UINT16_MAX ? (uint16_t)refused : UINT16_MAX;
}

uint16_t notes_refused(const boot_notes *self, const boot_topic *topic)
{
    const note_call *calls = &self->calls[topic->kind][topic->object % NOTES_OBJECTS];
    return refused_within(atomic_load_explicit(&calls->refused, memory_order_relaxed));
}

/* all: also one that is for good. */
static void forget_end(boot_notes *self, boot_kind kind, uint32_t object, bool all)
{
    if (atomic_load_explicit(&self->num_ended, memory_order_relaxed) == 0) return;
    pthread_mutex_lock(&self->lock);
    note_ended *one = find_ended(self, kind, object);
    if (one && (all || one->refused)) one->status = EXPAR_OK;
    pthread_mutex_unlock(&self->lock);
}

void boot_note_new(boot *self, boot_kind kind, uint32_t object)
{
    forget_end(self->notes, kind, object, true);
}

void boot_note_came(boot *self, boot_kind kind, uint32_t object)
{
    forget_end(self->notes, kind, object, false);
}

void boot_note_met(boot *self, boot_kind kind, uint32_t object)
{
    note_call *calls = &self->notes->calls[kind][object % NOTES_OBJECTS];
    forget_end(self->notes, kind, object, false);
    if (atomic_load_explicit(&calls->refused, memory_order_relaxed) > 0)
        atomic_store_explicit(&calls->refused, 0, memory_order_relaxed);
}

/* In a number of graphs' calls; below it, how many calls this rank has refused. */
#define OF_GRAPHS (UINT64_C(1) << 63)

uint64_t boot_graph_number(const boot *self, boot_kind kind, uint32_t object)
{
    const note_call *calls = &self->notes->calls[kind][object % NOTES_OBJECTS];
    return OF_GRAPHS | atomic_load_explicit(&calls->refused, memory_order_relaxed);
}

/* Whether it is for who asks about the topic. */
static bool concerns(const note_ended *one, const boot_topic *topic)
{
    if (!one->refused) return one->topic.number <= topic->number;
    if (topic->kind == BOOT_KIND_CONTROL || topic->kind == BOOT_KIND_TEAM)
        return refused_within(one->refused) > topic->refused;
    if (topic->number & OF_GRAPHS) return one->refused > (topic->number & ~OF_GRAPHS);
    return one->topic.number == topic->number;
}

void boot_note_blamed(boot *self, int32_t rank)
{
    uint64_t none = 0;
    atomic_compare_exchange_strong_explicit(&self->notes->blamed, &none, (uint64_t)rank + 1, memory_order_relaxed,
                                            memory_order_relaxed);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

void notes_add(boot_notes *self, boot_wait *wait)
{
    pthread_mutex_lock(&self->lock);
    wait->next = self->waits;
    self->waits = wait;
    pthread_mutex_unlock(&self->lock);
}

void notes_remove(boot_notes *self, boot_wait *wait)
{
    pthread_mutex_lock(&self->lock);
    boot_wait **place = &self->waits;
    while (*place != wait)
        place = &(*place)->next;
    *place = wait->next;
    pthread_mutex_unlock(&self->lock);
}

/* What has to end before the rank comes to the topic, or goes on in it: a wait on the same object, for an earlier
   call or this one; else one of the thread that calls there, which may have left it to another thread. NULL: nothing
   that is known, so that the rank may come at any time. The caller holds the lock. */
static const boot_wait *find_hindrance(const boot_notes *self, const boot_topic *topic)
{
    const boot_wait *found = NULL;
    for (const boot_wait *w = self->waits; w; w = w->next)
        if (is_of(&w->topic, topic->kind, topic->object) && w->topic.number <= topic->number &&
            (!found || w->topic.number <= found->topic.number))
            found = w;
    if (found || topic->kind == BOOT_KIND_NONE) return found;
    const uint32_t caller = notes_caller(self, topic);
    for (const boot_wait *w = self->waits; w && caller != 0; w = w->next)
        if (w->caller == caller && (w->thread == caller || thread_is_resting(caller))) found = w;
    return found;
}

/* How long it has been looked for in vain; 0 where who waits has not looked of late, since it was stopped: what it
   waits for may have come. */
static int64_t waited_ns(const boot_wait *wait, int64_t timeout_ns)
{
    const int64_t looked_ns = atomic_load_explicit(&wait->looked_ns, memory_order_relaxed);
    const int64_t since_ns = atomic_load_explicit(&wait->since_ns, memory_order_relaxed);
    return clock_ns() - looked_ns < timeout_ns / 2 ? looked_ns - since_ns : 0;
}

static int describe_object(const boot_topic *topic, char *text, size_t bytes)
{
    if (topic->kind == BOOT_KIND_BUFFER)
        return snprintf(text, bytes, " (call %llu on buffer %u)", (unsigned long long)topic->number, topic->object);
    if (topic->kind == BOOT_KIND_LOW_LATENCY)
        return snprintf(text, bytes, " (call %llu on buffer %u)", (unsigned long long)topic->number / 2, topic->object);
    if (topic->kind == BOOT_KIND_END) return snprintf(text, bytes, " (buffer %u)", topic->object);
    if (topic->kind == BOOT_KIND_BARRIER)
        return snprintf(text, bytes, " (number %llu)", (unsigned long long)topic->number);
    text[0] = '\0';
    return 0;
}

/* "expar_combine: offers (call 7 on buffer 1)". Of calls on a buffer, its end included, and over control sockets, what
   is known of the wait is a part of the call. */
static void describe_call(const boot_notes *self, const boot_wait *wait, char *text, size_t bytes)
{
    const uint32_t kind = wait->topic.kind;
    const bool part =
        kind == BOOT_KIND_BUFFER || kind == BOOT_KIND_LOW_LATENCY || kind == BOOT_KIND_END || kind == BOOT_KIND_CONTROL;
    const char *name = atomic_load_explicit(&call_of(self, &wait->topic)->name, memory_order_relaxed);
    if (!part || !name || strcmp(name, wait->what) == 0) name = "";
    int length = snprintf(text, bytes, "%s%s%s", name, name[0] ? ": " : "", wait->what);
    if (length > 0 && (size_t)length < bytes) describe_object(&wait->topic, text + length, bytes - (size_t)length);
}

void notes_describe(const boot_notes *self, const boot_wait *wait, char *text, size_t bytes)
{
    char call[BOOT_DOING_TEXT];
    const int32_t rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    describe_call(self, wait, call, sizeof call);
    if (rank >= 0)
        snprintf(text, bytes, "in %s, waiting for rank %d", call, rank);
    else
        snprintf(text, bytes, "in %s, waiting", call);
}

static void describe_idle(const boot_notes *self, char *text, size_t bytes)
{
    const char *name = atomic_load_explicit(&self->last.name, memory_order_relaxed);
    if (name)
        snprintf(text, bytes, "waiting for nobody; it last called %s", name);
    else
        snprintf(text, bytes, "waiting for nobody");
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static void read_ended(boot_notes *self, const boot_topic *topic, boot_answer *out)
{
    const note_ended *one = find_ended(self, BOOT_KIND_ALL, 0);
    if (!one) one = find_ended(self, topic->kind, topic->object);
    if (!one || !concerns(one, topic)) return;
    out->ended = one->status;
    if (out->blamed < 0) out->blamed = one->culprit;
    memcpy(out->reason, one->reason, sizeof out->reason);
}

void notes_read(boot_notes *self, const boot_topic *topic, int64_t timeout_ms, boot_answer *out)
{
    *out = (boot_answer){.asked = true, .came = true, .rank = -1};
    out->blamed = (int32_t)atomic_load_explicit(&self->blamed, memory_order_relaxed) - 1;
    pthread_mutex_lock(&self->lock);
    read_ended(self, topic, out);
    const boot_wait *wait = find_hindrance(self, topic);
    out->waits = wait != NULL;
    if (wait) {
        out->topic = wait->topic;
        out->rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
        out->waited_ns = waited_ns(wait, timeout_ms * 1000000);
        notes_describe(self, wait, out->doing, sizeof out->doing);
    } else {
        describe_idle(self, out->doing, sizeof out->doing);
    }
    pthread_mutex_unlock(&self->lock);
}
