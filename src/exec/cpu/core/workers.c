/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that run one function side by side. The caller is worker 0; with one worker there
 * are no threads. */
#include "exec/cpu/core/workers.h"
#include "base/interrupt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct worker {
    cpu_workers *pool;
    pthread_t thread;
    int32_t index;
    uint64_t seen;    /* the run that went on when it started */
    error_kept ended; /* the last run: written by the worker, read by the caller, both under the lock */
} worker;

struct cpu_workers {
    worker *workers[CPU_MOST_WORKERS]; /* the first num_workers are there; entry 0 is the caller's and has no thread */
    int32_t num_workers;
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    /* Guarded by lock: */
    uint64_t run;    /* counts runs; a worker that takes part starts when it sees a new one */
    int32_t active;  /* how many take part in it */
    int32_t running; /* workers that have not finished this run */
    bool closing;
    cpu_share_fn share;
    void *context;
    /* The caller's wait was interrupted, and so are the waits of its workers. The caller writes this, their waits read
       it (relaxed: nothing else goes with it). It is false again before the next run begins. */
    atomic_bool interrupted;
};

static void worker_finish(worker *self, expar_status status)
{
    cpu_workers *pool = self->pool;
    pthread_mutex_lock(&pool->lock);
    error_keep(&self->ended, status);
    if (--pool->running == 0) pthread_cond_signal(&pool->end);
    pthread_mutex_unlock(&pool->lock);
}

/* A worker that takes no part in a run may see only a later one. */
static void *worker_main(void *argument)
{
    worker *self = argument;
    cpu_workers *pool = self->pool;
    interrupt_follow(&pool->interrupted);
    for (uint64_t seen = self->seen;;) {
        pthread_mutex_lock(&pool->lock);
        while (pool->run == seen && !pool->closing)
            pthread_cond_wait(&pool->begin, &pool->lock);
        bool closing = pool->closing, takes_part = self->index < pool->active;
        seen = pool->run;
        cpu_share_fn share = pool->share;
        void *context = pool->context;
        pthread_mutex_unlock(&pool->lock);
        if (closing) return NULL;
        if (takes_part) worker_finish(self, share(context, self->index));
    }
}

/* Adds one more worker of so many, with its thread unless it is the first. */
static expar_status worker_add(cpu_workers *pool, int32_t wanted)
{
    const int32_t index = pool->num_workers;
    worker *self = calloc(1, sizeof *self);
    if (!self) return error_set(EXPAR_ERR_MEMORY, "worker threads: no memory for %d", wanted);
    *self = (worker){.pool = pool, .index = index, .seen = pool->run};
    int error = index > 0 ? pthread_create(&self->thread, NULL, worker_main, self) : 0;
    if (error) {
        free(self);
        return error_set(EXPAR_ERR_SYSTEM, "worker threads: cannot start number %d of %d: %s", index, wanted,
                         strerror(error));
    }
    pool->workers[pool->num_workers++] = self;
    return EXPAR_OK;
}

expar_status cpu_workers_create(int32_t num_workers, cpu_workers **out)
{
    cpu_workers *pool = calloc(1, sizeof *pool);
    if (!pool) return error_set(EXPAR_ERR_MEMORY, "worker threads: no memory");
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begin, NULL);
    interrupt_cond_init(&pool->end);
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK && pool->num_workers < num_workers)
        status = worker_add(pool, num_workers);
    if (status != EXPAR_OK) {
        cpu_workers_destroy(pool);
        return status;
    }
    *out = pool;
    return EXPAR_OK;
}

int32_t cpu_workers_grow(cpu_workers *pool, int32_t wanted)
{
    while (pool->num_workers < wanted && worker_add(pool, wanted) == EXPAR_OK) {
    }
    return wanted < pool->num_workers ? wanted : pool->num_workers;
}

void cpu_workers_destroy(cpu_workers *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 1; i < pool->num_workers; i++)
        pthread_join(pool->workers[i]->thread, NULL);
    for (int32_t i = 0; i < pool->num_workers; i++)
        free(pool->workers[i]);
    pthread_cond_destroy(&pool->end);
    pthread_cond_destroy(&pool->begin);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void run_begin(cpu_workers *pool, int32_t active, cpu_share_fn share, void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->share = share;
    pool->context = context;
    pool->active = active;
    pool->running = active - 1;
    atomic_store_explicit(&pool->interrupted, false, memory_order_relaxed);
    pool->run++;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
}

/* The caller holds the lock, which is released meanwhile. Waits for a while, or until the workers have finished. Asks
   for the caller whether to go on. */
static void run_await(cpu_workers *pool, int64_t *asked_ns)
{
    interrupt_cond_wait(&pool->end, &pool->lock);
    if (!pool->running) return;
    pthread_mutex_unlock(&pool->lock);
    if (interrupt_look(asked_ns, "worker threads") != EXPAR_OK)
        atomic_store_explicit(&pool->interrupted, true, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
}

/* Waits for the others; the first failure among them becomes the caller's. */
static expar_status run_end(cpu_workers *pool, expar_status own)
{
    error_kept kept;
    int64_t asked_ns = 0;
    error_keep(&kept, own);
    if (own == EXPAR_ERR_INTERRUPTED) atomic_store_explicit(&pool->interrupted, true, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    thread_rest_begin(); /* the workers look at the ranks that are awaited */
    while (pool->running)
        run_await(pool, &asked_ns);
    thread_rest_end();
    expar_status status = error_restore(&kept);
    for (int32_t i = 1; i < pool->active && status == EXPAR_OK; i++)
        status = error_restore(&pool->workers[i]->ended);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

expar_status cpu_workers_run(cpu_workers *pool, int32_t active, cpu_share_fn share, void *context)
{
    if (active == 1) return share(context, 0);
    run_begin(pool, active, share, context);
    return run_end(pool, share(context, 0));
}
