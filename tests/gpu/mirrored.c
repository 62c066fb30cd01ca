/* SPDX-License-Identifier: Apache-2.0 */
/* Between host memory and the GPU. */
#include "gpu/mirrored.h"
#include "ep/harness/ranks.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* The most that a tensor of a test has. */
#define MOST_BYTES ((int64_t)64 << 20)
/* A step of a test's call takes milliseconds. */
#define LONG_MS 5000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mirrored *parked; /* guarded by lock */

bool mirrored_is_plain(void)
{
    const char *text = getenv("EXPAR_TEST_PLAIN");
    return text && (*text == '1' || *text == '2');
}

bool mirrored_is_plainest(void)
{
    const char *text = getenv("EXPAR_TEST_PLAIN");
    return text && *text == '2';
}

mirrored *mirrored_begin(buffer *b)
{
    mirrored *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->buffer = b;
    t->worker = worker_of(b->device);
    if (arena_begin(&t->worker->own)) t->worker->staged = 0;
    arena_begin(&b->shared);
    t->noted_ms = ranks_clock_ms();
    return t;
}

void mirrored_note(mirrored *t, const char *step)
{
    int64_t now_ms = ranks_clock_ms(), took_ms = now_ms - t->noted_ms;
    if (took_ms >= LONG_MS)
        fprintf(stderr, "mirror: rank %d: %s took %" PRId64 " ms\n", (int)t->buffer->rank, step, took_ms);
    t->noted_ms = now_ms;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* First byte against data, and how many there are; strides may be negative. */
static size_t extent(const expar_tensor *t, int64_t *first)
{
    int64_t ends[2] = {0, 0}, element = (int64_t)expar_dtype_bytes(t->dtype);
    *first = 0;
    if (t->ndim < 1 || t->ndim > EXPAR_TENSOR_MAX_DIMS) return 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t far;
        if (t->shape[i] < 1 || __builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &far) || far > MOST_BYTES ||
            far < -MOST_BYTES)
            return 0;
        ends[far > 0] += far;
    }
    *first = ends[0] * element;
    int64_t bytes = (ends[1] - ends[0] + 1) * element;
    return bytes > MOST_BYTES ? 0 : (size_t)bytes;
}

size_t mirrored_span_bytes(const expar_tensor *tensor)
{
    int64_t first;
    return extent(tensor, &first);
}

static arena *arena_for(const mirrored *t, const void *host)
{
    const buffer *b = t->buffer;
    bool symmetric = b->shared.bytes && expar_ptr(b->group, host, b->rank) != NULL;
    return symmetric ? &t->buffer->shared : &t->worker->own;
}

expar_tensor mirrored_give(mirrored *t, const expar_tensor *host)
{
    expar_tensor on = *host;
    int64_t first;
    const bool on_host = !t->worker->device;
    if (host->device.type == EXPAR_CUDA) {
        if (!on_host) on.device = (expar_device){.type = EXPAR_CPU};
        return on;
    }
    if (host->device.type == EXPAR_CPU && !on_host)
        on.device = (expar_device){.type = EXPAR_CUDA, .index = t->buffer->device};
    if (!host->data) return on;
    size_t bytes = extent(host, &first);
    const char *from = (const char *)host->data + first;
    cu_address at = arena_take(arena_for(t, host->data), bytes, from);
    on.data = (void *)(uintptr_t)(at - (cu_address)first);
    if (bytes) worker_send(t->worker, at, from, bytes);
    return on;
}

void mirrored_fetch(mirrored *t, const expar_tensor *from, void *to)
{
    if (!to || mirrored_span_bytes(from) == 0) return;
    if (t->num_fetches == MIRRORED_FETCHES) abort();
    t->fetches[t->num_fetches].from = *from;
    t->fetches[t->num_fetches++].to = to;
}

static void *give_counts(mirrored *t, void *host, expar_dtype dtype, int64_t count)
{
    const expar_tensor tensor = expar_tensor_2d(host, dtype, 1, count), on = mirrored_give(t, &tensor);
    mirrored_fetch(t, &on, host);
    return on.data;
}

const expar_ep_recv_counts *mirrored_give_counts(mirrored *t, const expar_ep_recv_counts *host, int32_t experts,
                                                 expar_ep_recv_counts *spare)
{
    const int32_t ranks = expar_group_size(t->buffer->group), locals = experts > 0 ? experts / ranks : 0;
    if (!host || host->struct_size != sizeof *host) return host;
    *spare = *host;
    spare->tokens_per_expert = give_counts(t, host->tokens_per_expert, EXPAR_I32, locals);
    spare->expert_prefix = give_counts(t, host->expert_prefix, EXPAR_I32, locals + 1);
    spare->rank_prefix = give_counts(t, host->rank_prefix, EXPAR_I32, ranks);
    spare->num_recv_tokens = give_counts(t, host->num_recv_tokens, EXPAR_I64, 1);
    spare->expert_ends = give_counts(t, host->expert_ends, EXPAR_I32, locals);
    return spare;
}

const int32_t *mirrored_give_numbers(mirrored *t, const int32_t *host, int32_t experts)
{
    const expar_tensor numbers = expar_tensor_2d((int32_t *)(uintptr_t)host, EXPAR_I32, 1, experts);
    if (!host || experts < 1 || t->buffer->rank % 2 == 0) return host;
    return mirrored_give(t, &numbers).data;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* The call has written them. */
static void fetch_all(const mirrored *t)
{
    for (int i = 0; i < t->num_fetches; i++) {
        int64_t first;
        size_t bytes = extent(&t->fetches[i].from, &first);
        if (!t->fetches[i].to) continue;
        worker_fetch(t->worker, (char *)t->fetches[i].to + first,
                     (cu_address)(uintptr_t)t->fetches[i].from.data + (cu_address)first, bytes);
    }
}

void mirrored_end(mirrored *t, bool arrived)
{
    if (arrived) {
        t->noted_ms = ranks_clock_ms(); /* one that was parked has waited for the test */
        fetch_all(t);
        mirrored_note(t, "copying back");
    }
    arena_end(&t->worker->own);
    arena_end(&t->buffer->shared);
    free(t);
}

void mirrored_park(mirrored *t, const void *key)
{
    t->key = key;
    pthread_mutex_lock(&lock);
    t->next = parked;
    parked = t;
    pthread_mutex_unlock(&lock);
}

static mirrored *unpark(const void *key)
{
    pthread_mutex_lock(&lock);
    mirrored **place = &parked;
    while (*place && (*place)->key != key)
        place = &(*place)->next;
    mirrored *t = *place;
    if (t) *place = t->next;
    pthread_mutex_unlock(&lock);
    return t;
}

const mirrored *mirrored_find(const void *key)
{
    pthread_mutex_lock(&lock);
    const mirrored *t = parked;
    while (t && t->key != key)
        t = t->next;
    pthread_mutex_unlock(&lock);
    return t;
}

void mirrored_land(const void *key, expar_status status)
{
    mirrored *t = unpark(key);
    if (t) mirrored_end(t, t->partly || status == EXPAR_OK || status == EXPAR_ERR_DROPPED);
}

void mirrored_lose(const void *key)
{
    mirrored *t = unpark(key);
    if (t) mirrored_end(t, false);
}

void mirrored_forget(const void *to)
{
    pthread_mutex_lock(&lock);
    for (mirrored *t = parked; t; t = t->next)
        for (int i = 0; i < t->num_fetches; i++)
            if (t->fetches[i].to == to) t->fetches[i].to = NULL;
    pthread_mutex_unlock(&lock);
}

void mirrored_drop(const buffer *b)
{
    mirrored *dropped = NULL;
    pthread_mutex_lock(&lock);
    for (mirrored **place = &parked; *place;) {
        mirrored *t = *place;
        if (t->buffer != b) {
            place = &t->next;
            continue;
        }
        *place = t->next;
        t->next = dropped;
        dropped = t;
    }
    pthread_mutex_unlock(&lock);
    while (dropped) {
        mirrored *next = dropped->next;
        mirrored_end(dropped, dropped->partly);
        dropped = next;
    }
}
