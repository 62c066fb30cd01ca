/* SPDX-License-Identifier: Apache-2.0 */
/* Several programs at once. The compiler takes seconds for one, on one core, and threads do not wait for each other
 * there: so each program but the first has a thread, which ends with the call.
 *
 * But for ranks of one process that share a GPU (programs.c): all of them ask for the same programs, and who waits for
 * another one's may do so for as long as kernels run, and has to ask the program all the time whether it is to end. */
#include "base/interrupt.h"
#include "exec/cuda/core/gpu.h"

#include <pthread.h>
#include <signal.h>

typedef struct helper {
    const gpu_core *self;
    const gpu_wish *wish;
    const atomic_bool *in_vain; /* true: the caller's part has failed. By it, read by all threads (relaxed) */
    pthread_t thread;
    bool runs;
    error_kept ended; /* by the thread; read when that has ended */
} helper;

static expar_status grant(const gpu_core *self, const gpu_wish *wish)
{
    expar_status status = gpu_program_load(self, wish->source, wish->macros, wish->num_macros, wish->program);
    if (status != EXPAR_OK) return status;
    const int32_t shared_bytes = self->device->shared_bytes - GPU_STATIC_SHARED_BYTES;
    return cuda_program_kernel(*wish->program, wish->name, shared_bytes, wish->kernel);
}

/* Captures of other threads are in nobody's way, nor is this in theirs. */
static void *helper_main(void *argument)
{
    helper *one = argument;
    int unused;
    log_set_rank(one->self->place.rank);
    interrupt_follow(one->in_vain);
    expar_status status = gpu_leave_captures(&unused);
    if (status == EXPAR_OK) status = grant(one->self, one->wish);
    error_keep(&one->ended, status);
    return NULL;
}

/* Signals are for the threads of the program. Without a thread the caller does it. */
static void helper_start(helper *one)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    one->runs = pthread_create(&one->thread, NULL, helper_main, one) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

expar_status gpu_programs_wish(const gpu_core *self, const gpu_wish *wishes, size_t count)
{
    helper helpers[GPU_MOST_WISHES];
    atomic_bool in_vain = false;
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < count; i++) {
        helpers[i] = (helper){.self = self, .wish = &wishes[i], .in_vain = &in_vain};
        if (i > 0 && !self->shares_gpu) helper_start(&helpers[i]);
    }
    for (size_t i = 0; i < count && status == EXPAR_OK; i++)
        if (!helpers[i].runs) status = grant(self, &wishes[i]);
    atomic_store_explicit(&in_vain, status != EXPAR_OK, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        if (!helpers[i].runs) continue;
        pthread_join(helpers[i].thread, NULL);
        if (status == EXPAR_OK) status = error_restore(&helpers[i].ended);
    }
    return status;
}
