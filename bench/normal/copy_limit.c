/* SPDX-License-Identifier: Apache-2.0 */
/* The copy roofline on the CPU: the least that an operation must move, by bare copies with as many threads as the
 * library uses. The list of copies is made before; a copy is a loop over it, shared out among the threads.
 *
 * Dispatch (push): each row of x is copied to its place on each rank that must have it, token by token.
 * Combine (pull): each row that belongs to a token is read where its holder keeps it, and one row is written for the
 * token. By memcpy all of a token's rows go into its row of y, one over the other, which stays in the cache meanwhile.
 * The non-temporal way copies all but the last into a scratch row in the cache, and the last one to y. */
#include "bench/frame/measure.h"
#include "bench/frame/stream.h"
#include "bench/normal/mode.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct copy_item {
    const unsigned char *source;
    unsigned char *target;
    bool last; /* of the rows that go into one target */
};

struct copy_limit {
    struct copy_item *items;
    size_t num_items;
    size_t row_bytes;
    int threads;
    size_t *first;               /* [threads + 1] items of each thread */
    unsigned char *scratch;      /* [threads][row_bytes] */
    struct copy_worker *workers; /* [threads - 1] all threads but the caller's */
    int num_started;
    /* The caller and its workers meet before and after each copy. What the caller writes before a meeting (mode, stop)
       the workers read after it; the barrier orders both. */
    pthread_barrier_t meeting;
    bool has_meeting, nontemporal, stop;
};

struct copy_worker {
    struct copy_limit *limit;
    pthread_t thread;
    int number;
};

/* ---- the copies -------------------------------------------------------------------------------------------------- */

static void copy_share(struct copy_limit *limit, int thread)
{
    unsigned char *scratch = limit->scratch + (size_t)thread * limit->row_bytes;
    for (size_t i = limit->first[thread]; i < limit->first[thread + 1]; i++) {
        const struct copy_item *item = &limit->items[i];
        if (!limit->nontemporal)
            memcpy(item->target, item->source, limit->row_bytes);
        else if (item->last)
            bench_stream_copy(item->target, item->source, limit->row_bytes);
        else
            memcpy(scratch, item->source, limit->row_bytes);
    }
    stream_end();
}

static void *worker_run(void *argument)
{
    struct copy_worker *worker = argument;
    struct copy_limit *limit = worker->limit;
    for (;;) {
        pthread_barrier_wait(&limit->meeting);
        if (limit->stop) return NULL;
        copy_share(limit, worker->number);
        pthread_barrier_wait(&limit->meeting);
    }
}

static bool copy_all(struct copy_limit *limit, bool nontemporal)
{
    limit->nontemporal = nontemporal;
    if (limit->has_meeting) pthread_barrier_wait(&limit->meeting);
    copy_share(limit, 0);
    if (limit->has_meeting) pthread_barrier_wait(&limit->meeting);
    return true;
}

static bool by_memcpy(void *limit)
{
    return copy_all(limit, false);
}

static bool by_nontemporal(void *limit)
{
    return copy_all(limit, true);
}

/* ---- making the list --------------------------------------------------------------------------------------------- */

static unsigned char *rows_of(const struct bench_session *session, int rank)
{
    return session->rows ? expar_ptr(session->world->group, session->rows, rank) : NULL;
}

/* Appends the copies of one token. */
static bool add_token(struct copy_limit *limit, const struct bench_session *session, int64_t token, bool push)
{
    const struct problem *problem = session->problem;
    size_t own = (size_t)token * problem->row_bytes;
    for (int rank = 0; rank < problem->num_ranks; rank++) {
        int64_t position = problem->position[token * problem->num_ranks + rank];
        unsigned char *rows = position < 0 ? NULL : rows_of(session, rank);
        if (position < 0) continue;
        if (!rows) return false;
        unsigned char *remote = rows + (size_t)position * problem->row_bytes;
        struct copy_item *item = &limit->items[limit->num_items++];
        if (push)
            *item = (struct copy_item){.source = (unsigned char *)session->x + own, .target = remote, .last = true};
        else
            *item = (struct copy_item){.source = remote, .target = (unsigned char *)session->y + own};
    }
    if (!push && limit->num_items > 0) limit->items[limit->num_items - 1].last = true;
    return true;
}

static bool fill(struct copy_limit *limit, const struct bench_session *session, bool push)
{
    int64_t tokens = session->problem->tokens;
    int thread = 0;
    for (int64_t token = 0; token < tokens; token++) {
        while (thread < limit->threads && token >= tokens * thread / limit->threads)
            limit->first[thread++] = limit->num_items;
        if (!add_token(limit, session, token, push)) return false;
    }
    while (thread <= limit->threads)
        limit->first[thread++] = limit->num_items;
    return true;
}

static bool start_workers(struct copy_limit *limit)
{
    if (limit->threads == 1) return true;
    if (pthread_barrier_init(&limit->meeting, NULL, (unsigned)limit->threads)) return false;
    limit->has_meeting = true;
    for (int i = 1; i < limit->threads; i++) {
        struct copy_worker *worker = &limit->workers[limit->num_started];
        *worker = (struct copy_worker){.limit = limit, .number = i};
        if (pthread_create(&worker->thread, NULL, worker_run, worker)) return false;
        limit->num_started++;
    }
    return true;
}

/* Lets the workers at the meeting end. If not all could be started, they are cancelled there. */
static void stop_workers(struct copy_limit *limit)
{
    bool complete = limit->num_started == limit->threads - 1;
    limit->stop = true;
    if (complete) pthread_barrier_wait(&limit->meeting);
    for (int i = 0; i < limit->num_started && complete; i++)
        pthread_join(limit->workers[i].thread, NULL);
    if (complete) pthread_barrier_destroy(&limit->meeting);
}

static void limit_free(struct copy_limit *limit)
{
    if (!limit) return;
    if (limit->has_meeting) stop_workers(limit);
    free(limit->items);
    free(limit->first);
    free(limit->workers);
    free(limit->scratch);
    free(limit);
}

static struct copy_limit *create(const struct bench_session *session, bool push)
{
    const struct problem *problem = session->problem;
    struct copy_limit *limit = calloc(1, sizeof *limit);
    if (!limit) return NULL;
    limit->row_bytes = problem->row_bytes;
    limit->threads = session->workers;
    limit->items = calloc((size_t)problem->num_sent + 1, sizeof *limit->items);
    limit->first = calloc((size_t)limit->threads + 1, sizeof *limit->first);
    limit->workers = calloc((size_t)limit->threads, sizeof *limit->workers);
    limit->scratch = aligned_alloc(64, ((size_t)limit->threads * limit->row_bytes + 63) / 64 * 64);
    bool made = limit->items && limit->first && limit->workers && limit->scratch;
    if (made && fill(limit, session, push) && start_workers(limit)) return limit;
    limit_free(limit);
    return NULL;
}

/* ---- the site ---------------------------------------------------------------------------------------------------- */

/* The copies of both operations. */
struct cpu_copies {
    struct copy_limit *push, *pull;
};

static bool cpu_open(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    size_t bytes = (size_t)(session->problem->most_received + 1) * session->problem->row_bytes;
    void *rows;
    if (!bench_good(world, expar_malloc(world->group, bytes, &rows))) return false;
    memset(rows, 0, bytes);
    session->rows = session->pushed = rows;
    struct cpu_copies *copies = calloc(1, sizeof *copies);
    if (!copies) return bench_complain(world, "out of memory");
    session->copies = copies;
    copies->push = create(session, true);
    copies->pull = create(session, false);
    return (copies->push && copies->pull) || bench_complain(world, "cannot prepare the copies");
}

static void cpu_close(struct bench_session *session, bool sound)
{
    struct cpu_copies *copies = session->copies;
    if (copies) {
        limit_free(copies->pull);
        limit_free(copies->push);
        free(copies);
    }
    if (sound) bench_good(session->world, expar_free(session->world->group, session->rows));
}

static int cpu_add_copies(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct cpu_copies *copies = session->copies;
    struct copy_limit *limit = combine ? copies->pull : copies->push;
    contenders[0] = (struct contender){.run = by_memcpy, .context = limit};
    contenders[1] = (struct contender){.run = by_nontemporal, .context = limit};
    return 2;
}

const struct bench_site normal_cpu_site = {
    .default_workers = bench_cpu_threads, .open = cpu_open, .close = cpu_close, .add_copies = cpu_add_copies};
