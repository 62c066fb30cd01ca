/* SPDX-License-Identifier: Apache-2.0 */
/* `worker` objects and buffers of the mirror. */
#include "gpu/worker.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWN_BYTES     ((size_t)32 << 20)
#define UNIT_BYTES    256
#define STAGING_BYTES ((size_t)1 << 20)
#define MOST_GPUS     16
#define SPOILT_BYTE   0xc3

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static worker *idle;    /* guarded by lock */
static buffer *buffers; /* guarded by lock */

/* The way back from a GPU, one copy at a time: streams that share a queue to the GPU hold each other up, so they are
   few. */
typedef struct way_back {
    pthread_mutex_t lock;
    cu_stream stream; /* this and the next guarded by lock; made with the first thread state */
    mem_pinned staging;
} way_back;
static way_back ways[MOST_GPUS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static _Thread_local worker *mine;

void mirror_need(expar_status status, const char *what)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "mirror: %s: %s\n", what, expar_last_error());
    abort();
}

bool worker_is_host(void)
{
    const char *device = getenv("EXPAR_TEST_DEVICE");
    return device && strcmp(device, "cpu") == 0;
}

expar_device worker_device(int32_t rank)
{
    int32_t count = 0;
    if (worker_is_host()) return (expar_device){.type = EXPAR_CPU};
    mirror_need(cuda_device_count(&count), "count GPUs");
    return (expar_device){.type = EXPAR_CUDA, .index = rank % count};
}

/* ---- thread state ------------------------------------------------------------------------------------------------ */

static void put_back(void *value)
{
    worker *h = value;
    pthread_mutex_lock(&lock);
    h->next = idle;
    idle = h;
    pthread_mutex_unlock(&lock);
}

static void make_once(void)
{
    if (pthread_key_create(&key, put_back)) abort();
    for (int i = 0; i < MOST_GPUS; i++)
        pthread_mutex_init(&ways[i].lock, NULL);
}

static bool is_for(const worker *h, int32_t device)
{
    return !h->device || h->device->index == device;
}

static worker *take_idle(int32_t device)
{
    pthread_mutex_lock(&lock);
    worker **place = &idle;
    while (*place && !is_for(*place, device))
        place = &(*place)->next;
    worker *found = *place;
    if (found) *place = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

static void open_way_back(int32_t device)
{
    if (device >= MOST_GPUS) mirror_need(EXPAR_ERR_UNSUPPORTED, "work with so many GPUs");
    way_back *way = &ways[device];
    pthread_mutex_lock(&way->lock);
    if (!way->stream) {
        mirror_need(CUDA_CALL(StreamCreate, &way->stream, CU_STREAM_NON_BLOCKING), "make a stream");
        mirror_need(mem_pinned_create(STAGING_BYTES, &way->staging), "take host memory");
    }
    pthread_mutex_unlock(&way->lock);
}

static worker *make_for_host(void)
{
    worker *h = calloc(1, sizeof *h);
    void *memory = aligned_alloc(UNIT_BYTES, OWN_BYTES);
    if (!h || !memory) abort();
    h->own.bytes = OWN_BYTES;
    h->own.at = (cu_address)(uintptr_t)memory;
    return h;
}

static worker *make(int32_t device)
{
    if (worker_is_host()) return make_for_host();
    worker *h = calloc(1, sizeof *h);
    if (!h) abort();
    mirror_need(cuda_device_open(device, &h->device), "open the GPU");
    mirror_need(cuda_enter(h->device), "enter the GPU");
    mirror_need(CUDA_CALL(StreamCreate, &h->stream, CU_STREAM_NON_BLOCKING), "make a stream");
    h->own.bytes = OWN_BYTES;
    mirror_need(CUDA_CALL(MemAlloc, &h->own.at, h->own.bytes), "take memory");
    mirror_need(mem_pinned_create(OWN_BYTES, &h->stage), "take host memory");
    open_way_back(device);
    return h;
}

static void *host_at(cu_address at)
{
    return (void *)(uintptr_t)at;
}

void worker_send(worker *h, cu_address to, const void *from, size_t bytes)
{
    if (!h->device) {
        memcpy(host_at(to), from, bytes);
        return;
    }
    if (bytes > h->stage.bytes - h->staged) mirror_need(EXPAR_ERR_MEMORY, "the stage is too small");
    char *staged = (char *)h->stage.host + h->staged;
    h->staged += (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    memcpy(staged, from, bytes);
    mirror_need(CUDA_CALL(MemcpyHtoDAsync, to, staged, bytes, h->stream), "copy to the GPU");
}

void worker_fetch(const worker *h, void *to, cu_address from, size_t bytes)
{
    if (!h->device) {
        memcpy(to, host_at(from), bytes);
        return;
    }
    way_back *way = &ways[h->device->index];
    mirror_need(cuda_enter(h->device), "enter the GPU");
    pthread_mutex_lock(&way->lock);
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        mirror_need(CUDA_CALL(MemcpyDtoHAsync, way->staging.host, from + done, part, way->stream), "copy back");
        mirror_need(CUDA_CALL(StreamSynchronize, way->stream), "wait for the copy");
        memcpy((char *)to + done, way->staging.host, part);
    }
    pthread_mutex_unlock(&way->lock);
    cuda_leave();
}

void worker_spoil(const worker *h, cu_address at, size_t bytes)
{
    if (!h->device)
        memset(host_at(at), SPOILT_BYTE, bytes);
    else
        mirror_need(CUDA_CALL(MemsetD8Async, at, SPOILT_BYTE, bytes, h->stream), "overwrite");
}

void worker_wait(const worker *h)
{
    if (h->device) mirror_need(CUDA_CALL(StreamSynchronize, h->stream), "wait for the stream");
}

worker *worker_of(int32_t device)
{
    pthread_once(&once, make_once);
    if (mine && is_for(mine, device)) return mine;
    if (mine) put_back(mine);
    mine = take_idle(device);
    if (mine && mine->device) mirror_need(cuda_enter(mine->device), "enter the GPU");
    if (!mine) mine = make(device);
    pthread_setspecific(key, mine);
    return mine;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

buffer *buffer_add(const void *of, expar_group *group, int32_t device)
{
    buffer *b = calloc(1, sizeof *b);
    if (!b) abort();
    b->of = of;
    b->group = group;
    b->rank = expar_group_rank(group);
    b->device = device;
    pthread_mutex_lock(&lock);
    b->next = buffers;
    buffers = b;
    pthread_mutex_unlock(&lock);
    return b;
}

buffer *buffer_find(const void *of)
{
    pthread_mutex_lock(&lock);
    buffer *b = buffers;
    while (b && b->of != of)
        b = b->next;
    pthread_mutex_unlock(&lock);
    return b;
}

void buffer_drop(const void *of)
{
    pthread_mutex_lock(&lock);
    buffer **place = &buffers;
    while (*place && (*place)->of != of)
        place = &(*place)->next;
    buffer *b = *place;
    if (b) *place = b->next;
    pthread_mutex_unlock(&lock);
    if (b) free(b->rows);
    free(b);
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

cu_address arena_take(arena *from, size_t bytes, const void *host)
{
    size_t skew = (uintptr_t)host % UNIT_BYTES, spare = (bytes + skew) / UNIT_BYTES * UNIT_BYTES + UNIT_BYTES;
    if (spare > from->bytes - from->used) mirror_need(EXPAR_ERR_MEMORY, "the arena is too small");
    cu_address at = from->at + from->used + skew;
    from->used += spare;
    return at;
}

bool arena_begin(arena *of)
{
    bool anew = atomic_fetch_add(&of->calls, 1) == 0;
    if (anew) of->used = 0;
    return anew;
}

void arena_end(arena *of)
{
    atomic_fetch_sub(&of->calls, 1);
}
