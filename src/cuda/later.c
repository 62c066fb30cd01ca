/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks that call the driver, from functions that must not, because the driver itself calls them. A thread of the
 * library runs the tasks; it exists as long as there are any. */
#include "cuda/cuda.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
/* Guarded by lock: */
static cuda_task *first, **end = &first;
static bool working; /* there is a thread, and it has not found the list empty yet */

static cuda_task *next_task(void)
{
    pthread_mutex_lock(&lock);
    cuda_task *task = first;
    if (task) {
        first = task->next;
        if (!first) end = &first;
    } else {
        working = false;
        pthread_cond_broadcast(&done);
    }
    pthread_mutex_unlock(&lock);
    return task;
}

static void *tasks_run(void *unused)
{
    cuda_task *task;
    (void)unused;
    while ((task = next_task()))
        task->run(task);
    return NULL;
}

static bool start_working(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attributes, tasks_run, NULL) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

void cuda_later(cuda_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&lock);
    *end = task;
    end = &task->next;
    /* There is no thread now: the next task may get one, for both. */
    if (!working) working = start_working();
    pthread_mutex_unlock(&lock);
}

void cuda_later_await(void)
{
    pthread_mutex_lock(&lock);
    while (working)
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}
