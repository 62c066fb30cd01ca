/* SPDX-License-Identifier: Apache-2.0 */
/* Loads several programs at once. The compiler takes seconds for one program, on one core, and its threads do not wait
 * for each other. So each program but the first gets a thread, which ends with the call.
 *
 * Ranks of one process that share a GPU (programs.c) do without these threads. All of them ask for the same programs,
 * and a rank that waits for another one's may wait as long as kernels run. Such a rank must ask the program all the
 * time whether to end. */
#include "base/interrupt.h"
#include "exec/cuda/core/gpu.h"

#include <pthread.h>
#include <signal.h>

typedef struct helper {
    const gpu_core *self;
    const gpu_request *request;
    /* True: the caller's part has failed. The caller sets it, all threads read it (relaxed). */
    const atomic_bool *in_vain;
    pthread_t thread;
    bool runs;
    error_kept ended; /* written by the thread; read after that has ended */
} helper;

static expar_status grant(const gpu_core *self, const gpu_request *request)
{
    expar_status status =
        gpu_program_load(self, request->source, request->macros, request->num_macros, request->program);
    if (status != EXPAR_OK) return status;
    const int32_t shared_bytes = self->device->shared_bytes - GPU_STATIC_SHARED_BYTES;
    return cuda_program_kernel(*request->program, request->name, shared_bytes, request->kernel);
}

/* Captures of other threads do not disturb this one, and it does not disturb them. */
static void *helper_main(void *argument)
{
    helper *one = argument;
    int unused;
    log_set_rank(one->self->place.rank);
    interrupt_follow(one->in_vain);
    expar_status status = gpu_leave_captures(&unused);
    if (status == EXPAR_OK) status = grant(one->self, one->request);
    error_keep(&one->ended, status);
    return NULL;
}

/* Blocks signals in the new thread: they are for the program's threads. If no thread starts, the caller does the
   work. */
static void helper_start(helper *one)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    one->runs = pthread_create(&one->thread, NULL, helper_main, one) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

expar_status gpu_programs_request(const gpu_core *self, const gpu_request *requests, size_t count)
{
    helper helpers[GPU_MOST_REQUESTS];
    atomic_bool in_vain = false;
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < count; i++) {
        helpers[i] = (helper){.self = self, .request = &requests[i], .in_vain = &in_vain};
        if (i > 0 && !self->shares_gpu) helper_start(&helpers[i]);
    }
    for (size_t i = 0; i < count && status == EXPAR_OK; i++)
        if (!helpers[i].runs) status = grant(self, &requests[i]);
    atomic_store_explicit(&in_vain, status != EXPAR_OK, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        if (!helpers[i].runs) continue;
        pthread_join(helpers[i].thread, NULL);
        if (status == EXPAR_OK) status = error_restore(&helpers[i].ended);
    }
    return status;
}
