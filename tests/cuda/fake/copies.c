/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the simulated driver, and the pinned memory that they read and write while the caller runs. Of other host
 * memory the driver has taken what it needs when a call returns, and its results have come. */
#include "fake.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- pinned memory ----------------------------------------------------------------------------------------------- */

typedef struct pinned {
    struct pinned *next;
    char *at;
    size_t bytes;
    bool registered;            /* the caller's memory */
    unsigned long long context; /* that pinned it */
} pinned;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pinned *all; /* guarded by lock */

static bool is_pinned(const void *data)
{
    const uintptr_t at = (uintptr_t)data;
    pthread_mutex_lock(&lock);
    const pinned *one = all;
    while (one && (at < (uintptr_t)one->at || at - (uintptr_t)one->at >= one->bytes))
        one = one->next;
    pthread_mutex_unlock(&lock);
    return one != NULL;
}

/* Streams write words of pinned memory only where their own context has pinned it, even if it is pinned for all. */
static bool is_foreign(const void *word, cu_stream stream)
{
    const unsigned long long context = context_number(lane_of(stream).device);
    const uintptr_t at = (uintptr_t)word;
    pthread_mutex_lock(&lock);
    const pinned *one = all;
    while (one && (at < (uintptr_t)one->at || at - (uintptr_t)one->at >= one->bytes))
        one = one->next;
    const bool foreign = one && one->context != context;
    pthread_mutex_unlock(&lock);
    return foreign;
}

/* A copy that leaves the registration in which one of its ends lies is invalid. */
static bool crosses_registration(const void *data, size_t bytes)
{
    const uintptr_t first = (uintptr_t)data, last = first + bytes - 1;
    bool crosses = false;
    pthread_mutex_lock(&lock);
    for (const pinned *one = all; one && bytes && !crosses; one = one->next) {
        const uintptr_t begin = (uintptr_t)one->at;
        crosses = one->registered && (first - begin < one->bytes) != (last - begin < one->bytes);
    }
    pthread_mutex_unlock(&lock);
    return crosses;
}

/* Without the lock, since kernels that poll ask: pieces that were given back stay among them. */
#define MOST_RANGES 256
static struct {
    _Atomic uintptr_t begin, end; /* end last (release) */
} ranges[MOST_RANGES];
static atomic_int num_ranges;

static void note_range(const void *data, size_t bytes)
{
    const int at = atomic_fetch_add(&num_ranges, 1);
    if (at >= MOST_RANGES) return;
    atomic_store(&ranges[at].begin, (uintptr_t)data);
    atomic_store(&ranges[at].end, (uintptr_t)data + bytes);
}

bool fake_knows_host(const void *address)
{
    return is_pinned(address);
}

bool fake_is_pinned(const void *address)
{
    const uintptr_t at = (uintptr_t)address;
    const int count = atomic_load(&num_ranges);
    for (int i = 0; i < count && i < MOST_RANGES; i++)
        if (at < atomic_load_explicit(&ranges[i].end, memory_order_relaxed) &&
            at >= atomic_load_explicit(&ranges[i].begin, memory_order_relaxed))
            return true;
    return false;
}

cu_result cuMemHostAlloc(void **data, size_t bytes, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    (void)flags;
    if (atomic_load(&fake_controls_of()->no_pinned)) return CU_ERROR_OUT_OF_MEMORY;
    pinned *one = malloc(sizeof *one);
    const size_t pages = (bytes + 4095) / 4096 * 4096; /* the driver pins whole pages */
    *data = aligned_alloc(4096, pages);
    if (*data) memset(*data, 0, pages);
    if (!one || !*data) {
        free(one);
        free(*data);
        return CU_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *one = (pinned){.next = all, .at = *data, .bytes = bytes, .context = context_number(current_device())};
    all = one;
    pthread_mutex_unlock(&lock);
    note_range(*data, bytes);
    return CU_OK;
}
cu_result cuMemHostGetDevicePointer_v2(cu_address *address, void *data, unsigned int flags)
{
    (void)flags;
    *address = (cu_address)(uintptr_t)data;
    return CU_OK;
}
/* Removes the record of that memory; NULL: there is none. */
static pinned *forget_pinned(const void *data, bool registered)
{
    pthread_mutex_lock(&lock);
    pinned **place = &all, *found;
    while ((found = *place) && (found->at != data || found->registered != registered))
        place = &found->next;
    if (found) *place = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}
cu_result cuMemFreeHost(void *data)
{
    pinned *found = forget_pinned(data, false);
    if (!found) return INVALID_VALUE;
    free(found->at);
    free(found);
    return CU_OK;
}
/* Memory is registered once, in whole pages. */
cu_result cuMemHostRegister_v2(void *data, size_t bytes, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    const bool is_io = flags & CU_HOST_IOMEMORY;
    if (!data || !bytes || ((uintptr_t)data | bytes) % 4096 ||
        (flags & ~(unsigned int)CU_HOST_IOMEMORY) != (CU_HOST_PORTABLE | CU_HOST_MAPPED))
        return INVALID_VALUE;
    if (is_io && !setting("FAKE_IOMEMORY", 1)) return NOT_PERMITTED;
    if (!is_io && !setting("FAKE_REGISTERS", 1)) return NOT_PERMITTED;
    if (atomic_load(&fake_controls_of()->no_pinned)) return CU_ERROR_OUT_OF_MEMORY;
    if (is_pinned(data) || is_pinned((char *)data + bytes - 1)) return ALREADY_REGISTERED;
    pinned *one = malloc(sizeof *one);
    if (!one) return CU_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *one = (pinned){.next = all, .at = data, .bytes = bytes, .registered = true};
    one->context = context_number(current_device());
    all = one;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&fake_controls_of()->registered, 1);
    return CU_OK;
}
cu_result cuMemHostUnregister(void *data)
{
    if (!has_context()) return INVALID_CONTEXT;
    pinned *found = forget_pinned(data, true);
    if (!found) return INVALID_VALUE;
    free(found);
    atomic_fetch_sub(&fake_controls_of()->registered, 1);
    return CU_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

typedef struct copy {
    void *to;
    const void *from; /* NULL: the value, as often as bytes says */
    void *own;        /* what of `from` was the caller's to change; given back here */
    size_t bytes;
    unsigned char value;
    uint64_t word; /* is_word: it is stored whole, after what was before */
    bool is_word;
} copy;

/* A few aligned words are copied one by one, each whole, as GPUs do it: others may change them meanwhile. */
#define COPY_WORDS(T, to, from, bytes)                                                                                 \
    for (size_t at = 0; at < (bytes) / sizeof(T); at++)                                                                \
    atomic_store((_Atomic T *)(to) + at, atomic_load((const _Atomic T *)(from) + at))

static void copy_bytes(void *to, const void *from, size_t bytes)
{
    const uintptr_t bits = (uintptr_t)to | (uintptr_t)from | bytes;
    if (bytes > 256 || bits % 2 != 0)
        memcpy(to, from, bytes);
    else if (bits % 8 == 0)
        COPY_WORDS(uint64_t, to, from, bytes);
    else if (bits % 4 == 0)
        COPY_WORDS(uint32_t, to, from, bytes);
    else
        COPY_WORDS(uint16_t, to, from, bytes);
}

/* Copies as much as lies in one piece on both sides; returns how much that was. */
static size_t copy_piece(const copy *c, size_t at)
{
    size_t bytes = c->bytes - at;
    fake_reach((const char *)c->to + at, &bytes);
    if (c->from) fake_reach((const char *)c->from + at, &bytes);
    void *to = fake_reach((const char *)c->to + at, &bytes);
    if (c->from)
        copy_bytes(to, fake_reach((const char *)c->from + at, &bytes), bytes);
    else
        memset(to, c->value, bytes);
    if (c->from && c->bytes >= 4096 && at + bytes == c->bytes && setting("FAKE_FLIPS", 0)) ((char *)to)[bytes - 1]++;
    return bytes;
}

/* With FAKE_LINK_GBPS, timed events tell how long copies between GPUs take at that rate, and nothing else takes time.
   Those to the GPU FAKE_SLOW_GPU take ten times as long. */
static _Atomic uint64_t link_ns;

bool simulated_time(struct timespec *now)
{
    if (setting("FAKE_LINK_GBPS", 0) <= 0) return false;
    const uint64_t ns = atomic_load(&link_ns);
    *now = (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    return true;
}

static void take_time(const copy *c)
{
    const int gbps = setting("FAKE_LINK_GBPS", 0), to = fake_device_at((cu_address)(uintptr_t)c->to);
    if (gbps <= 0 || !c->from || fake_device_at((cu_address)(uintptr_t)c->from) == to) return;
    atomic_fetch_add(&link_ns, c->bytes / (size_t)gbps * (to == setting("FAKE_SLOW_GPU", -1) ? 10 : 1));
}

static void store_word(const copy *c)
{
    size_t bytes = c->bytes;
    void *to = fake_reach(c->to, &bytes);
    if (c->bytes == 8)
        atomic_store((_Atomic uint64_t *)to, c->word);
    else if (c->bytes == 4)
        atomic_store((_Atomic uint32_t *)to, (uint32_t)c->word);
    else
        atomic_store((_Atomic uint16_t *)to, (uint16_t)c->word);
}

static void carry_out(void *of)
{
    const copy *c = of;
    take_time(c);
    if (c->is_word) {
        store_word(c);
        return;
    }
    for (size_t at = 0; at < c->bytes;)
        at += copy_piece(c, at);
    free(c->own);
}

/* Where captures run kernels, they copy, too. */
static void put_copy(cu_stream stream, copy c)
{
    const stream_lane lane = lane_of(stream);
    const unsigned long long capture = capture_of(stream);
    if (capture) graph_add_copy(capture, carry_out, &c, sizeof c);
    if (capture && (c.is_word || !kernels_run_in_captures())) return;
    const queue_when when = c.is_word ? QUEUE_AFTER : QUEUE_APART;
    if (capture || !queue_put(&lane, when, carry_out, &c, sizeof c)) carry_out(&c);
}

static void await_stream(cu_stream stream)
{
    const stream_lane lane = lane_of(stream);
    if (streams_run_apart()) queue_await(&lane, queue_mark(&lane));
}

cu_result cuMemcpyHtoDAsync_v2(cu_address dest, const void *source, size_t bytes, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    copy c = {.to = (void *)(uintptr_t)dest, .from = source, .bytes = bytes};
    if (streams_run_apart() && bytes && !is_pinned(source) && !capture_of(stream)) {
        c.own = malloc(bytes);
        if (!c.own) return CU_ERROR_OUT_OF_MEMORY;
        c.from = memcpy(c.own, source, bytes);
    }
    put_copy(stream, c);
    return CU_OK;
}
cu_result cuMemcpyAsync(cu_address dest, cu_address source, size_t bytes, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    const void *from = (const void *)(uintptr_t)source;
    if (crosses_registration(from, bytes) || crosses_registration((const void *)(uintptr_t)dest, bytes))
        return INVALID_VALUE;
    note_other(false);
    if (atomic_load(&fake_controls_of()->broken)) return CU_OK; /* nothing runs any more */
    put_copy(stream, (copy){.to = (void *)(uintptr_t)dest, .from = from, .bytes = bytes});
    return CU_OK;
}
cu_result cuMemcpyDtoHAsync_v2(void *dest, cu_address source, size_t bytes, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    put_copy(stream, (copy){.to = dest, .from = (const void *)(uintptr_t)source, .bytes = bytes});
    if (!is_pinned(dest) && !capture_of(stream)) await_stream(stream);
    return CU_OK;
}
cu_result cuMemsetD8Async(cu_address dest, unsigned char value, size_t bytes, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    put_copy(stream, (copy){.to = (void *)(uintptr_t)dest, .value = value, .bytes = bytes});
    return CU_OK;
}

cu_result cuMemsetD16Async(cu_address dest, unsigned short value, size_t count, cu_stream stream)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    if (count != 1 || dest % sizeof value != 0) return INVALID_VALUE; /* all that the library asks for */
    put_copy(stream, (copy){.to = (void *)(uintptr_t)dest, .word = value, .bytes = sizeof value, .is_word = true});
    return CU_OK;
}

/* ---- words of streams -------------------------------------------------------------------------------------------- */

static cu_result put_word(cu_stream stream, cu_address word, uint64_t value, size_t bytes, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    if (flags != CU_WRITE_FENCED || word % bytes != 0) return INVALID_VALUE;
    if (is_foreign((const void *)(uintptr_t)word, stream)) return INVALID_VALUE;
    if (atomic_load(&fake_controls_of()->no_words) || !setting("FAKE_WORDS", 1)) return NOT_SUPPORTED;
    put_copy(stream, (copy){.to = (void *)(uintptr_t)word, .word = value, .bytes = bytes, .is_word = true});
    return CU_OK;
}
cu_result cuStreamWriteValue32_v2(cu_stream stream, cu_address word, uint32_t value, unsigned int flags)
{
    return put_word(stream, word, value, sizeof value, flags);
}
cu_result cuStreamWriteValue64_v2(cu_stream stream, cu_address word, uint64_t value, unsigned int flags)
{
    return put_word(stream, word, value, sizeof value, flags);
}

/* The next three: on the null stream, to their ends. */
cu_result cuMemcpyHtoD_v2(cu_address dest, const void *source, size_t bytes)
{
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    cu_result result = cuMemcpyHtoDAsync_v2(dest, source, bytes, NULL);
    if (result == CU_OK) await_stream(NULL);
    return result;
}
cu_result cuMemcpyDtoH_v2(void *dest, cu_address source, size_t bytes)
{
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    cu_result result = cuMemcpyDtoHAsync_v2(dest, source, bytes, NULL);
    if (result == CU_OK) await_stream(NULL);
    return result;
}
cu_result cuMemsetD8_v2(cu_address dest, unsigned char value, size_t bytes)
{
    if (context_is_lost()) return ILLEGAL_ADDRESS;
    cu_result result = cuMemsetD8Async(dest, value, bytes, NULL);
    if (result == CU_OK) await_stream(NULL);
    return result;
}
