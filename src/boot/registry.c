/* SPDX-License-Identifier: Apache-2.0 */
/* The wait registry: the waits of this rank, and the operations in which it takes part no more, for peers that ask. */
#include "boot/registry.h"
#include "base/interrupt.h"

#include <stdio.h>
#include <string.h>

void registry_init(boot_registry *self)
{
    pthread_mutex_init(&self->lock, NULL);
}

void registry_destroy(boot_registry *self)
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
    boot_registry *registry = self->registry;
    const uint32_t thread = thread_number();
    write_call(&registry->calls[topic->kind][topic->object % REGISTRY_OBJECTS], topic, name, thread);
    write_call(&registry->last, topic, name, thread);
}

void boot_note_made(boot *self)
{
    boot_registry *registry = self->registry;
    for (int kind = 0; kind < BOOT_KINDS; kind++)
        for (int i = 0; i < REGISTRY_OBJECTS; i++)
            atomic_store_explicit(&registry->calls[kind][i].thread, 0, memory_order_relaxed);
    atomic_store_explicit(&registry->last.thread, 0, memory_order_relaxed);
}

static const note_call *call_of(const boot_registry *self, const boot_topic *topic)
{
    const note_call *call = &self->calls[topic->kind][topic->object % REGISTRY_OBJECTS];
    return atomic_load_explicit(&call->thread, memory_order_relaxed) ? call : &self->last;
}

uint32_t registry_caller(const boot_registry *self, const boot_topic *topic)
{
    return atomic_load_explicit(&call_of(self, topic)->thread, memory_order_relaxed);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static bool is_of(const boot_topic *topic, uint32_t kind, uint32_t object)
{
    return topic->kind == kind && topic->object == object;
}

/* Each rank counts the collectives that it has rejected since all ranks last met. The record has the count. Only ranks
   with a lower count are told of the rejection. */
static bool is_collective(uint32_t kind)
{
    return kind == BOOT_KIND_CONTROL || kind == BOOT_KIND_TEAM;
}

/* Returns whether the topics share a record. Teams that share a slot have a record each. */
static bool share_note(const boot_topic *a, const boot_topic *b)
{
    return is_of(a, b->kind, b->object) && (a->kind != BOOT_KIND_TEAM || a->number == b->number);
}

/* Returns how many records are in use. The caller holds the lock. */
static uint32_t count_ended(const boot_registry *self)
{
    const uint32_t ever = atomic_load_explicit(&self->num_ended, memory_order_relaxed);
    return ever < REGISTRY_ENDED ? ever : REGISTRY_ENDED;
}

/* Returns the topic's record; NULL: none. The caller holds the lock. */
static note_ended *find_ended(boot_registry *self, const boot_topic *topic)
{
    for (uint32_t i = 0; i < count_ended(self); i++)
        if (share_note(&self->ended[i].topic, topic)) return &self->ended[i];
    return NULL;
}

/* Returns an unused record, or else the oldest one. The caller holds the lock. */
static note_ended *oldest_end(boot_registry *self)
{
    return &self->ended[atomic_fetch_add_explicit(&self->num_ended, 1, memory_order_relaxed) % REGISTRY_ENDED];
}

/* Stores a record, unless an earlier one of the topic stays. A record stays if it is neither passing nor of a
   rejection. A record of a rejection stays if the new one is passing. When a passing record is replaced, the new one
   takes over what it says of the wait. The caller holds the lock. */
static void keep_end(boot_registry *self, note_ended end, const char *reason)
{
    note_ended *one = find_ended(self, &end.topic);
    const bool told = one && one->status != EXPAR_OK;
    if (told && !one->passing && (!one->rejected || end.passing)) return;
    if (told && one->passing) {
        end.culprit = one->culprit;
        end.awaited = one->awaited;
        end.waited_in = one->waited_in;
    }
    memcpy(end.reason, reason, strnlen(reason, sizeof end.reason - 1));
    if (!one) one = oldest_end(self);
    *one = end;
}

static note_ended make_end(const boot_topic *topic, expar_status status)
{
    return (note_ended){.topic = *topic, .status = status, .culprit = -1, .awaited = -1};
}

void boot_note_ended(boot *self, const boot_topic *topic, expar_status status, const char *reason)
{
    pthread_mutex_lock(&self->registry->lock);
    keep_end(self->registry, make_end(topic, status), reason);
    pthread_mutex_unlock(&self->registry->lock);
}

static void keep_wait_end(boot_registry *self, const boot_wait *wait, note_ended end, const char *reason)
{
    if (wait->circled) end.awaited = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    end.waited_in = wait->topic;
    pthread_mutex_lock(&self->lock);
    keep_end(self, end, reason);
    pthread_mutex_unlock(&self->lock);
}

void registry_failed(boot_registry *self, const boot_wait *wait, expar_status status, const char *reason)
{
    note_ended end = make_end(&wait->topic, status);
    end.passing = true;
    end.culprit = wait->culprit;
    keep_wait_end(self, wait, end, reason);
}

void registry_broke(boot_registry *self, const boot_wait *wait, expar_status status, const char *reason)
{
    keep_wait_end(self, wait, make_end(&wait->circle, status), reason);
}

/* The caller holds the lock. */
static uint32_t count_rejected(boot_registry *self, const boot_topic *topic)
{
    const note_ended *one = find_ended(self, topic);
    return one ? one->rejected : 0;
}

void boot_note_rejected(boot *self, const boot_topic *topic, expar_status status, const char *reason)
{
    boot_registry *registry = self->registry;
    note_call *calls = &registry->calls[topic->kind][topic->object % REGISTRY_OBJECTS];
    note_ended end = make_end(topic, status);
    pthread_mutex_lock(&registry->lock);
    if (is_collective(topic->kind))
        end.rejected = count_rejected(registry, topic) + 1;
    else
        end.rejected = atomic_fetch_add_explicit(&calls->rejected, 1, memory_order_relaxed) + 1;
    keep_end(registry, end, reason);
    pthread_mutex_unlock(&registry->lock);
}

/* Limits the count to the largest one that a topic can hold. */
static uint16_t rejected_within(uint32_t rejected)
{
    return rejected < UINT16_MAX ? (uint16_t)rejected : UINT16_MAX;
}

uint16_t registry_rejected(boot_registry *self, const boot_topic *topic)
{
    if (!is_collective(topic->kind)) return 0;
    pthread_mutex_lock(&self->lock);
    const uint32_t rejected = count_rejected(self, topic);
    pthread_mutex_unlock(&self->lock);
    return rejected_within(rejected);
}

/* Selects what to forget: `others` are records of rejections, `for_good` are all other records. `counted` also sets the
   number of rejections to 0. */
typedef struct forgetting {
    bool for_good, others, counted;
} forgetting;

static void forget_end(boot_registry *self, const boot_topic *topic, forgetting what)
{
    if (atomic_load_explicit(&self->num_ended, memory_order_relaxed) == 0) return;
    pthread_mutex_lock(&self->lock);
    note_ended *one = find_ended(self, topic);
    if (one && (one->rejected ? what.others : what.for_good)) one->status = EXPAR_OK;
    if (one && what.counted) one->rejected = 0;
    pthread_mutex_unlock(&self->lock);
}

void boot_note_new(boot *self, const boot_topic *topic)
{
    forget_end(self->registry, topic, (forgetting){.for_good = true, .others = true});
}

void boot_note_came(boot *self, boot_kind kind, uint32_t object)
{
    const boot_topic topic = {.kind = (uint16_t)kind, .object = object};
    forget_end(self->registry, &topic, (forgetting){.others = true});
}

void boot_note_met(boot *self, const boot_topic *topic)
{
    forget_end(self->registry, topic, (forgetting){.others = true, .counted = true});
}

/* This bit marks the topic number of calls in graphs. The bits below it say how many calls the rank has rejected. */
#define OF_GRAPHS (UINT64_C(1) << 63)

uint64_t boot_graph_number(const boot *self, boot_kind kind, uint32_t object)
{
    const note_call *calls = &self->registry->calls[kind][object % REGISTRY_OBJECTS];
    return OF_GRAPHS | atomic_load_explicit(&calls->rejected, memory_order_relaxed);
}

/* Returns whether a record of the topic's object concerns the rank that asks about the topic. If a rank has broken off
   a collective of a team, that concerns all teams that share the slot: they are out of step. */
static bool concerns(const note_ended *one, const boot_topic *topic)
{
    if (!one->rejected) return topic->kind == BOOT_KIND_TEAM || one->topic.number <= topic->number;
    if (is_collective(topic->kind))
        return share_note(&one->topic, topic) && rejected_within(one->rejected) > topic->rejected;
    if (topic->number & OF_GRAPHS) return one->rejected > (topic->number & ~OF_GRAPHS);
    return one->topic.number == topic->number;
}

void boot_note_blamed(boot *self, int32_t rank)
{
    uint64_t none = 0;
    const bool first = atomic_compare_exchange_strong_explicit(&self->registry->blamed, &none, (uint64_t)rank + 1,
                                                               memory_order_relaxed, memory_order_relaxed);
    if (first && self->ops->tell_blame) self->ops->tell_blame(self, rank);
}

int32_t registry_blamed(const boot_registry *self)
{
    return (int32_t)atomic_load_explicit(&self->blamed, memory_order_relaxed) - 1;
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

void registry_add(boot_registry *self, boot_wait *wait)
{
    pthread_mutex_lock(&self->lock);
    wait->next = self->waits;
    self->waits = wait;
    pthread_mutex_unlock(&self->lock);
}

void registry_remove(boot_registry *self, boot_wait *wait)
{
    pthread_mutex_lock(&self->lock);
    boot_wait **place = &self->waits;
    while (*place != wait)
        place = &(*place)->next;
    *place = wait->next;
    pthread_mutex_unlock(&self->lock);
}

/* For two topics of one object: returns whether a wait in the first topic keeps this rank from the other. */
static bool comes_first(const boot_topic *one, const boot_topic *other)
{
    return one->kind == BOOT_KIND_TEAM || one->number <= other->number;
}

/* Returns the wait that must end before this rank comes to the topic, or goes on in it. If there is a wait on the same
   object, for this call or an earlier one, it is the one for the earliest call. Else it is a wait of the thread that
   made the last call there. If that thread rests meanwhile, it may also be a wait of another thread that carries out a
   call for it. NULL: none is known, so this rank may come at any time. The caller holds the lock. */
static const boot_wait *find_hindrance(const boot_registry *self, const boot_topic *topic)
{
    const boot_wait *found = NULL;
    for (const boot_wait *w = self->waits; w; w = w->next)
        if (is_of(&w->topic, topic->kind, topic->object) && comes_first(&w->topic, topic) &&
            (!found || w->topic.number <= found->topic.number))
            found = w;
    if (found || topic->kind == BOOT_KIND_NONE) return found;
    const uint32_t caller = registry_caller(self, topic);
    for (const boot_wait *w = self->waits; w && caller != 0; w = w->next)
        if (w->caller == caller && (w->thread == caller || thread_is_resting(caller))) found = w;
    return found;
}

int64_t registry_looked_for_ns(const boot_wait *wait)
{
    return atomic_load_explicit(&wait->looked_ns, memory_order_relaxed) -
           atomic_load_explicit(&wait->since_ns, memory_order_relaxed);
}

int64_t registry_waited_ns(const boot_wait *wait, int64_t timeout_ns)
{
    const int64_t looked_ns = atomic_load_explicit(&wait->looked_ns, memory_order_relaxed);
    return clock_ns() - looked_ns < REGISTRY_FRESH_NS(timeout_ns) ? registry_looked_for_ns(wait) : 0;
}

/* From this number on, a buffer's topics stand for calls that hosts do not count: calls in graphs, calls that kernels
   count, and cleans. */
#define UNCOUNTED (UINT64_C(1) << 62)

static int describe_object(const boot_topic *topic, char *text, size_t bytes)
{
    const bool buffer = topic->kind == BOOT_KIND_BUFFER || topic->kind == BOOT_KIND_LOW_LATENCY;
    const uint64_t number = topic->kind == BOOT_KIND_LOW_LATENCY ? topic->number / 2 : topic->number;
    if (topic->kind == BOOT_KIND_END || (buffer && topic->number >= UNCOUNTED))
        return snprintf(text, bytes, " (buffer %u)", topic->object);
    if (buffer) return snprintf(text, bytes, " (call %llu on buffer %u)", (unsigned long long)number, topic->object);
    if (topic->kind == BOOT_KIND_BARRIER)
        return snprintf(text, bytes, " (number %llu)", (unsigned long long)topic->number);
    text[0] = '\0';
    return 0;
}

/* Writes a text like "expar_ep_combine: … (call 7 on buffer 1)". The call's name comes first for calls on a
   buffer, ends of buffers, and collectives over control sockets. Otherwise the name of the wait stands alone. */
static void describe_call(const boot_registry *self, const boot_wait *wait, char *text, size_t bytes)
{
    const uint32_t kind = wait->topic.kind;
    const bool part =
        kind == BOOT_KIND_BUFFER || kind == BOOT_KIND_LOW_LATENCY || kind == BOOT_KIND_END || kind == BOOT_KIND_CONTROL;
    const char *name = atomic_load_explicit(&call_of(self, &wait->topic)->name, memory_order_relaxed);
    if (!part || !name || strcmp(name, wait->what) == 0) name = "";
    int length = snprintf(text, bytes, "%s%s%s", name, name[0] ? ": " : "", wait->what);
    if (length > 0 && (size_t)length < bytes) describe_object(&wait->topic, text + length, bytes - (size_t)length);
}

void registry_describe(const boot_registry *self, const boot_wait *wait, char *text, size_t bytes)
{
    char call[BOOT_DOING_TEXT];
    const int32_t rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
    describe_call(self, wait, call, sizeof call);
    if (rank >= 0)
        snprintf(text, bytes, "in %s, waiting for rank %d", call, rank);
    else
        snprintf(text, bytes, "in %s, waiting", call);
}

static void describe_idle(const boot_registry *self, char *text, size_t bytes)
{
    const char *name = atomic_load_explicit(&self->last.name, memory_order_relaxed);
    if (name)
        snprintf(text, bytes, "waiting for no rank; it last called %s", name);
    else
        snprintf(text, bytes, "waiting for no rank");
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static bool concerns_all(const note_ended *one, const boot_topic *topic)
{
    return one->topic.kind == BOOT_KIND_ALL || (one->topic.kind == BOOT_KIND_MEETINGS && topic->kind != BOOT_KIND_NONE);
}

/* Returns a record that concerns the rank that asks about the topic; NULL: none. The caller holds the lock. */
static const note_ended *find_concerning(const boot_registry *self, const boot_topic *topic)
{
    const note_ended *found = NULL;
    for (uint32_t i = 0; i < count_ended(self); i++) {
        const note_ended *one = &self->ended[i];
        if (one->status == EXPAR_OK) continue;
        if (concerns_all(one, topic)) return one;
        if (is_of(&one->topic, topic->kind, topic->object) && concerns(one, topic)) found = one;
    }
    return found;
}

/* Fills in the part of the answer that records give. The caller holds the lock. */
static void read_ended(const boot_registry *self, const boot_topic *topic, boot_answer *out)
{
    const note_ended *one = find_concerning(self, topic);
    if (!one) return;
    out->ended = one->status;
    if (out->blamed < 0) out->blamed = one->culprit;
    out->rank = one->awaited;
    out->topic = one->waited_in;
    memcpy(out->reason, one->reason, sizeof out->reason);
}

void registry_read(boot_registry *self, const boot_topic *topic, int64_t timeout_ms, boot_answer *out)
{
    *out = (boot_answer){.asked = true, .came = true, .rank = -1};
    out->blamed = registry_blamed(self);
    pthread_mutex_lock(&self->lock);
    read_ended(self, topic, out);
    const boot_wait *wait = out->rank >= 0 ? NULL : find_hindrance(self, topic);
    out->waits = wait != NULL;
    if (wait) {
        out->topic = wait->topic;
        out->rank = atomic_load_explicit(&wait->awaited, memory_order_relaxed);
        out->waited_ns = registry_waited_ns(wait, timeout_ms * 1000000);
        registry_describe(self, wait, out->doing, sizeof out->doing);
    } else {
        describe_idle(self, out->doing, sizeof out->doing);
    }
    pthread_mutex_unlock(&self->lock);
}
