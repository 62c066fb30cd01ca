/* SPDX-License-Identifier: Apache-2.0 */
/* threads: the boot of ranks that are threads of one process: a shared block under one lock.
 *
 * In a collective each rank copies its record into a staging buffer of the block and comes to a barrier. Then it copies
 * the other records out and comes to a second barrier. Staging buffers belong to the block and are written again only
 * after that. So a rank that gives up in between leaves no dangling pointer to the others. */
#include "base/interrupt.h"
#include "boot/boot.h"
#include "boot/place.h"
#include "boot/registry.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The contribution of a rank to the running collective. Its thread writes it before the first barrier, the others read
   it between the two barriers; the barrier's lock orders that. */
typedef struct slot {
    const char *call; /* a literal of this file: equal calls have equal pointers or equal text */
    size_t bytes;     /* record size */
    int32_t root;
    unsigned char *staging; /* [staging_bytes] owned by the block */
    size_t staging_bytes;
} slot;

/* All members are guarded by `lock`. */
typedef struct member {
    uint64_t arrivals; /* number of barriers to which this rank has come */
    bool left, aborted;
    boot_gone_fn gone; /* NULL: it does not watch */
    void *gone_context;
} member;

typedef struct block {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t size, users;
    member *members;         /* [size] */
    slot *slots;             /* [size] */
    boot_registry *registry; /* [size], not guarded by the lock */
    error_kept broken;       /* a barrier failed, so all later ones do */
} block;

typedef struct boot_thread {
    boot base;
    block *shared;
    uint64_t exchanges; /* number of exchanges to which this rank has come; only the owner's thread */
} boot_thread;

static boot_thread *thread_of(boot *self)
{
    return (boot_thread *)self;
}

/* ---- the barrier ------------------------------------------------------------------------------------------------- */

/* Returns a missing rank that has left and so will never come. -1: none. */
static int32_t find_absent(const block *shared, uint64_t arrivals, bool *awaited)
{
    int32_t absent = -1;
    for (int32_t rank = 0; rank < shared->size; rank++) {
        awaited[rank] = shared->members[rank].arrivals < arrivals;
        if (awaited[rank] && shared->members[rank].left && absent < 0) absent = rank;
    }
    return absent;
}

static bool anybody(const bool *set, int32_t size)
{
    for (int32_t rank = 0; rank < size; rank++) {
        if (set[rank]) return true;
    }
    return false;
}

/* Tells the others this rank's error; or, if no other rank is at fault, that this rank does not come. */
static expar_status break_block(boot *self, const char *call, expar_status status)
{
    error_kept own;
    error_keep(&own, status);
    if (status != EXPAR_ERR_PEER)
        error_set(EXPAR_ERR_PEER, "%s: rank %d does not come any more: %s: %s", call, self->rank,
                  expar_status_string(status), own.text);
    error_keep(&thread_of(self)->shared->broken, EXPAR_ERR_PEER);
    return error_restore(&own);
}

static bool is_awaited(const void *context, int32_t rank)
{
    return ((const bool *)context)[rank];
}

/* Looks at the awaited ranks. The caller holds the lock, which is released meanwhile. */
static expar_status look_at_awaited(block *shared, boot_wait *wait)
{
    pthread_mutex_unlock(&shared->lock);
    expar_status status = boot_wait_look(wait);
    pthread_mutex_lock(&shared->lock);
    return status;
}

/* Waits until all ranks have come as often as this one. The caller holds the lock. awaited: [size], scratch. */
static expar_status await_all(boot *self, boot_wait *wait, uint64_t arrivals, bool *awaited)
{
    block *shared = thread_of(self)->shared;
    const char *call = wait->what;
    expar_status looked = EXPAR_OK;
    for (bool waited = false;; waited = true) {
        int32_t absent = find_absent(shared, arrivals, awaited);
        if (!anybody(awaited, shared->size)) return EXPAR_OK;
        if (shared->members[self->rank].aborted) return error_set(EXPAR_ERR_ABORTED, "%s: the group was aborted", call);
        if (shared->broken.status != EXPAR_OK) return error_restore(&shared->broken);
        if (absent >= 0)
            return break_block(self, call, error_set(EXPAR_ERR_PEER, "%s: rank %d has left the group", call, absent));
        if (looked != EXPAR_OK) return break_block(self, call, looked);
        if (waited) looked = look_at_awaited(shared, wait);
        if (looked == EXPAR_OK && find_absent(shared, arrivals, awaited) < 0 && anybody(awaited, shared->size))
            interrupt_cond_wait(&shared->changed, &shared->lock);
    }
}

static expar_status come_together(boot *self, boot_wait *wait)
{
    block *shared = thread_of(self)->shared;
    const char *call = wait->what;
    member *own = &shared->members[self->rank];
    expar_status status;
    bool *awaited = calloc((size_t)self->size, sizeof *awaited);
    wait->context = awaited;
    pthread_mutex_lock(&shared->lock);
    if (!awaited) {
        status = break_block(self, call, error_set(EXPAR_ERR_MEMORY, "%s: out of memory", call));
    } else if (own->aborted) {
        status = error_set(EXPAR_ERR_ABORTED, "%s: the group was aborted", call);
    } else if (shared->broken.status != EXPAR_OK) {
        status = error_restore(&shared->broken);
    } else {
        own->arrivals++;
        pthread_cond_broadcast(&shared->changed);
        status = await_all(self, wait, own->arrivals, awaited);
    }
    pthread_mutex_unlock(&shared->lock);
    free(awaited);
    return status;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static expar_status bring(boot *self, const char *call, const void *data, size_t data_bytes, size_t bytes, int32_t root)
{
    slot *own = &thread_of(self)->shared->slots[self->rank];
    if (bytes > EXPAR_CONTROL_MAX_BYTES)
        return error_set(EXPAR_ERR_RANGE, "%s: rank %d gives %zu bytes, expected at most %d", call, self->rank, bytes,
                         EXPAR_CONTROL_MAX_BYTES);
    if (data_bytes > own->staging_bytes) {
        unsigned char *larger = realloc(own->staging, data_bytes);
        if (!larger) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for %zu bytes", call, data_bytes);
        own->staging = larger;
        own->staging_bytes = data_bytes;
    }
    if (data_bytes > 0) memcpy(own->staging, data, data_bytes);
    own->call = call;
    own->bytes = bytes;
    own->root = root;
    return EXPAR_OK;
}

/* Every rank compares all slots, so that all get the same result. */
static expar_status slots_compare(const boot *self, const slot *slots)
{
    for (int32_t rank = 1; rank < self->size; rank++) {
        const slot *a = &slots[0], *b = &slots[rank];
        if (strcmp(a->call, b->call) != 0 || a->bytes != b->bytes || a->root != b->root)
            return error_set(EXPAR_ERR_MISMATCH,
                             "rank 0 is in %s of %zu bytes (root %d), rank %d in %s of %zu bytes (root %d)", a->call,
                             a->bytes, a->root, rank, b->call, b->bytes, b->root);
    }
    return EXPAR_OK;
}

/* Copies record `from_index` of every rank's staging to receive + r·stride; with only_from ≠ -1, only of that rank. */
static void take_records(const boot *self, const slot *slots, unsigned char *receive, size_t stride, size_t from_index,
                         int32_t only_from)
{
    size_t bytes = slots[self->rank].bytes;
    for (int32_t rank = 0; receive && bytes > 0 && rank < self->size; rank++) {
        if (only_from < 0 || only_from == rank)
            memcpy(receive + (size_t)rank * stride, slots[rank].staging + from_index * bytes, bytes);
    }
}

/* The two barriers, and the copying between them. */
static expar_status slots_exchange(boot *self, const char *call, unsigned char *receive, size_t stride,
                                   size_t from_index, int32_t only_from)
{
    const slot *slots = thread_of(self)->shared->slots;
    const boot_topic topic = {.kind = BOOT_KIND_CONTROL, .number = ++thread_of(self)->exchanges};
    boot_wait wait;
    expar_status agreed = EXPAR_OK;
    atomic_fetch_add_explicit(&self->inside, 1, memory_order_relaxed);
    boot_note_new(self, &topic);
    boot_note_call(self, &topic, self->call ? self->call : call);
    boot_wait_begin(&wait, self, &topic, call);
    wait.misses = is_awaited;
    expar_status status = come_together(self, &wait);
    if (status == EXPAR_OK) {
        agreed = slots_compare(self, slots);
        if (agreed == EXPAR_OK) take_records(self, slots, receive, stride, from_index, only_from);
        boot_wait_progress(&wait);
        status = come_together(self, &wait);
    }
    boot_wait_end(&wait);
    if (status == EXPAR_OK)
        boot_note_met(self, &topic);
    else
        boot_note_ended(self, &topic, status, expar_last_error());
    atomic_fetch_sub_explicit(&self->inside, 1, memory_order_release);
    return status != EXPAR_OK ? status : agreed;
}

static expar_status threads_allgather(boot *self, const void *mine, void *all, size_t bytes)
{
    expar_status status = bring(self, "allgather", mine, bytes, bytes, 0);
    return status != EXPAR_OK ? status : slots_exchange(self, "allgather", all, bytes, 0, -1);
}

static expar_status threads_alltoall(boot *self, const void *send, void *receive, size_t bytes)
{
    /* If the size is out of range, bring() rejects it before it uses the product. */
    expar_status status = bring(self, "alltoall", send, (size_t)self->size * bytes, bytes, 0);
    return status != EXPAR_OK ? status : slots_exchange(self, "alltoall", receive, bytes, (size_t)self->rank, -1);
}

static expar_status threads_broadcast(boot *self, void *data, size_t bytes, int32_t root)
{
    if (root < 0 || root >= self->size)
        return error_set(EXPAR_ERR_RANGE, "broadcast: root is %d, expected 0 to %d", root, self->size - 1);
    expar_status status = bring(self, "broadcast", data, self->rank == root ? bytes : 0, bytes, root);
    return status != EXPAR_OK ? status : slots_exchange(self, "broadcast", data, 0, 0, root);
}

static expar_status threads_barrier(boot *self)
{
    expar_status status = bring(self, "barrier", NULL, 0, 0, 0);
    return status != EXPAR_OK ? status : slots_exchange(self, "barrier", NULL, 0, 0, -1);
}

static expar_status threads_exchange_fds(boot *self, int fd, int *fds)
{
    (void)fd;
    (void)fds;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "exchange of descriptors: rank %d is a thread, whose peers have them already", self->rank);
}

/* ---- leaving and watching ---------------------------------------------------------------------------------------- */

/* There is no monitor here: the leaving thread makes the call, under the lock, so that no watcher is freed
   meanwhile. */
static expar_status threads_watch(boot *self, boot_gone_fn gone, void *context)
{
    block *shared = thread_of(self)->shared;
    member *own = &shared->members[self->rank];
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&shared->lock);
    if (own->gone) {
        status = error_set(EXPAR_ERR_STATE, "boot: rank %d watches its peers already", self->rank);
    } else {
        own->gone = gone;
        own->gone_context = context;
        for (int32_t rank = 0; rank < shared->size; rank++) {
            if (shared->members[rank].left) gone(context, rank, true);
        }
    }
    pthread_mutex_unlock(&shared->lock);
    return status;
}

static int32_t threads_first_gone(boot *self, bool *clean)
{
    block *shared = thread_of(self)->shared;
    int32_t rank = 0;
    pthread_mutex_lock(&shared->lock);
    while (rank < shared->size && !shared->members[rank].left)
        rank++;
    pthread_mutex_unlock(&shared->lock);
    *clean = true;
    return rank < shared->size ? rank : -1;
}

/* Takes no lock: a rank that leaves holds it while it reports. */
static int32_t threads_blame_of(boot *self, int32_t rank)
{
    const int32_t blamed = registry_blamed(&thread_of(self)->shared->registry[rank]);
    return blamed == rank || blamed == self->rank ? -1 : blamed;
}

/* Threads of a running process are not silent, and need no other thread to answer for them. The wait registry stays
   until the last rank has gone. */
static void threads_ask(boot *self, const boot_topic *topic, boot_answer *answers, int64_t wait_ns)
{
    (void)wait_ns;
    block *shared = thread_of(self)->shared;
    for (int32_t rank = 0; rank < self->size; rank++) {
        const bool asked = answers[rank].asked;
        answers[rank] = (boot_answer){.asked = asked, .rank = -1, .blamed = -1};
        if (!asked) continue;
        pthread_mutex_lock(&shared->lock);
        const bool left = shared->members[rank].left;
        pthread_mutex_unlock(&shared->lock);
        if (!left) registry_read(&shared->registry[rank], topic, self->timeout_ms, &answers[rank]);
    }
}

static void threads_abort(boot *self)
{
    block *shared = thread_of(self)->shared;
    pthread_mutex_lock(&shared->lock);
    shared->members[self->rank].aborted = true;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

static void block_free(block *shared)
{
    for (int32_t rank = 0; shared->slots && rank < shared->size; rank++)
        free(shared->slots[rank].staging);
    for (int32_t rank = 0; shared->registry && rank < shared->size; rank++)
        registry_destroy(&shared->registry[rank]);
    pthread_cond_destroy(&shared->changed);
    pthread_mutex_destroy(&shared->lock);
    free(shared->slots);
    free(shared->members);
    free(shared->registry);
    free(shared);
}

static void boot_free(boot *self)
{
    free(self->places);
    free(self);
}

static expar_status threads_finish(boot *self)
{
    block *shared = thread_of(self)->shared;
    pthread_mutex_lock(&shared->lock);
    shared->members[self->rank].gone = NULL;
    pthread_mutex_unlock(&shared->lock);
    return threads_barrier(self);
}

/* The caller holds the lock, so that no watcher is freed meanwhile. */
static void tell_of_leaving(block *shared, int32_t rank)
{
    member *own = &shared->members[rank];
    if (own->left) return;
    own->left = true;
    own->gone = NULL;
    pthread_cond_broadcast(&shared->changed);
    for (int32_t r = 0; r < shared->size; r++) {
        const member *other = &shared->members[r];
        if (other->gone) other->gone(other->gone_context, rank, true);
    }
}

static void threads_part(boot *self)
{
    block *shared = thread_of(self)->shared;
    pthread_mutex_lock(&shared->lock);
    tell_of_leaving(shared, self->rank);
    pthread_mutex_unlock(&shared->lock);
}

/* Does nothing: no other process knows of these threads. */
static void threads_forsake(boot *self)
{
    (void)self;
}

static void threads_leave(boot *self, bool sound)
{
    block *shared = thread_of(self)->shared;
    if (sound && threads_finish(self) != EXPAR_OK) LOG(LOG_INFO, "leaving: %s", expar_last_error());
    pthread_mutex_lock(&shared->lock);
    shared->members[self->rank].gone = NULL;
    tell_of_leaving(shared, self->rank);
    bool last = --shared->users == 0;
    pthread_mutex_unlock(&shared->lock);
    if (last) block_free(shared);
    boot_free(self);
}

static const boot_ops threads_ops = {
    .name = "threads",
    .allgather = threads_allgather,
    .alltoall = threads_alltoall,
    .broadcast = threads_broadcast,
    .barrier = threads_barrier,
    .exchange_fds = threads_exchange_fds,
    .watch = threads_watch,
    .first_gone = threads_first_gone,
    .blame_of = threads_blame_of,
    .ask = threads_ask,
    .finish = threads_finish,
    .part = threads_part,
    .forsake = threads_forsake,
    .leave = threads_leave,
    .abort = threads_abort,
};

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static block *block_create(int32_t size)
{
    block *shared = calloc(1, sizeof *shared);
    if (!shared) return NULL;
    pthread_mutex_init(&shared->lock, NULL);
    interrupt_cond_init(&shared->changed);
    shared->size = shared->users = size;
    shared->members = calloc((size_t)size, sizeof *shared->members);
    shared->slots = calloc((size_t)size, sizeof *shared->slots);
    shared->registry = calloc((size_t)size, sizeof *shared->registry);
    for (int32_t rank = 0; shared->registry && rank < size; rank++)
        registry_init(&shared->registry[rank]);
    if (shared->members && shared->slots && shared->registry) return shared;
    block_free(shared);
    return NULL;
}

static boot *rank_create(block *shared, int32_t rank, int64_t timeout_ms, const boot_place *place)
{
    boot_thread *self = calloc(1, sizeof *self);
    boot_place *places = calloc((size_t)shared->size, sizeof *places);
    if (!self || !places) {
        free(self);
        free(places);
        return NULL;
    }
    for (int32_t other = 0; other < shared->size; other++)
        places[other] = *place;
    self->shared = shared;
    self->base = (boot){.ops = &threads_ops,
                        .rank = rank,
                        .size = shared->size,
                        .timeout_ms = timeout_ms,
                        .places = places,
                        .registry = &shared->registry[rank],
                        .threads = true};
    return &self->base;
}

expar_status boot_join_threads(int32_t size, int64_t timeout_ms, boot **outs)
{
    boot_place place;
    if (size < 1 || size > BOOT_MAX_RANKS)
        return error_set(EXPAR_ERR_RANGE, "join: size is %d, expected 1 to %d", size, BOOT_MAX_RANKS);
    if (timeout_ms < 1 || timeout_ms > BOOT_MAX_TIMEOUT_MS)
        return error_set(EXPAR_ERR_RANGE, "join: timeout_ms is %lld, expected 1 to %lld", (long long)timeout_ms,
                         (long long)BOOT_MAX_TIMEOUT_MS);
    boot **ranks = calloc((size_t)size, sizeof(boot *));
    block *shared = block_create(size);
    bool complete = ranks && shared;
    place_find(&place);
    for (int32_t rank = 0; complete && rank < size; rank++) {
        ranks[rank] = rank_create(shared, rank, timeout_ms, &place);
        complete = ranks[rank] != NULL;
    }
    if (complete) {
        memcpy(outs, ranks, (size_t)size * sizeof(boot *));
    } else {
        for (int32_t rank = 0; ranks && rank < size && ranks[rank]; rank++)
            boot_free(ranks[rank]);
        if (shared) block_free(shared);
    }
    free(ranks);
    return complete ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "join: no memory for %d thread ranks", size);
}
