/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that run one function side by side. The caller is worker 0; with one worker there
 * are no threads. */
#include "exec/cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct worker {
    cpu_workers *pool;
    pthread_t thread;
    int32_t index;
    error_kept ended; /* the last run: written by the worker, read by the caller, both under the lock */
} worker;

struct cpu_workers {
    int32_t num_workers, num_started;
    worker *workers; /* [num_workers]; entry 0 has no thread */
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    /* Guarded by lock: */
    uint64_t run;    /* counts runs; a worker starts when it has seen one less */
    int32_t running; /* workers that have not finished this run */
    bool closing;
    cpu_share_fn share;
    void *context;
};

static void worker_finish(worker *self, expar_status status)
{
    cpu_workers *pool = self->pool;
    pthread_mutex_lock(&pool->lock);
    error_keep(&self->ended, status);
    if (--pool->running == 0) pthread_cond_signal(&pool->end);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument)
{
    worker *self = argument;
    cpu_workers *pool = self->pool;
    for (uint64_t seen = 0;; seen++) {
        pthread_mutex_lock(&pool->lock);
        while (pool->run == seen && !pool->closing)
            pthread_cond_wait(&pool->begin, &pool->lock);
        bool closing = pool->closing;
        cpu_share_fn share = pool->share;
        void *context = pool->context;
        pthread_mutex_unlock(&pool->lock);
        if (closing) return NULL;
        worker_finish(self, share(context, self->index));
    }
}

expar_status cpu_workers_create(int32_t num_workers, cpu_workers **out)
{
    cpu_workers *pool = calloc(1, sizeof *pool);
    if (!pool) return error_set(EXPAR_ERR_MEMORY, "worker threads: no memory");
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begin, NULL);
    pthread_cond_init(&pool->end, NULL);
    pool->num_workers = num_workers;
    pool->workers = calloc((size_t)num_workers, sizeof *pool->workers);
    if (!pool->workers) {
        cpu_workers_destroy(pool);
        return error_set(EXPAR_ERR_MEMORY, "worker threads: no memory for %d", num_workers);
    }
    for (int32_t i = 1; i < num_workers; i++) {
        pool->workers[i].pool = pool;
        pool->workers[i].index = i;
        int error = pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]);
        if (error) {
            cpu_workers_destroy(pool);
            return error_set(EXPAR_ERR_SYSTEM, "worker threads: cannot start number %d of %d: %s", i, num_workers,
                             strerror(error));
        }
        pool->num_started = i;
    }
    *out = pool;
    return EXPAR_OK;
}

void cpu_workers_destroy(cpu_workers *pool)
{
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 1; i <= pool->num_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->end);
    pthread_cond_destroy(&pool->begin);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

static void run_begin(cpu_workers *pool, cpu_share_fn share, void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->share = share;
    pool->context = context;
    pool->running = pool->num_workers - 1;
    pool->run++;
    pthread_cond_broadcast(&pool->begin);
    pthread_mutex_unlock(&pool->lock);
}

/* Waits for the others; the first failure among them becomes the caller's. */
static expar_status run_end(cpu_workers *pool, expar_status own)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->running)
        pthread_cond_wait(&pool->end, &pool->lock);
    expar_status status = own;
    for (int32_t i = 1; i < pool->num_workers && status == EXPAR_OK; i++)
        status = error_restore(&pool->workers[i].ended);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

expar_status cpu_workers_run(cpu_workers *pool, cpu_share_fn share, void *context)
{
    if (pool->num_workers == 1) return share(context, 0);
    run_begin(pool, share, context);
    return run_end(pool, share(context, 0));
}
