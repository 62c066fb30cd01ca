/* SPDX-License-Identifier: Apache-2.0 */
/* The host's waits for work on its GPU. It waits for the end of the rank's last call and for the end of a stream.
 * Before it enqueues work, it waits for kernels that may be waiting for a rank. */
#include "base/interrupt.h"
#include "base/knobs.h"
#include "exec/cuda/core/order.h"

#include <sched.h>
#include <time.h>

/* ---- beside captures --------------------------------------------------------------------------------------------- */

expar_status gpu_leave_captures(int *mode)
{
    *mode = CU_CAPTURE_RELAXED;
    return CUDA_CALL(ThreadExchangeStreamCaptureMode, mode);
}

void gpu_return_to_captures(int mode)
{
    cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
}

/* Returns whether the result says that a capture forbids the question. */
static bool is_of_capture(cu_result result)
{
    return result >= CU_ERROR_CAPTURE_UNSUPPORTED && result <= CU_ERROR_CAPTURE_WRONG_THREAD;
}

/* Asks whether the stream's work has ended; with NULL, whether the last call's event has passed. If a capture forbids
   the question, there is nothing to wait for, and *ended becomes true. */
static expar_status look_at(const gpu_core *self, const cu_stream *stream, bool *ended)
{
    int mode;
    expar_status status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = gpu_leave_captures(&mode);
    if (status == EXPAR_OK) {
        cu_result result = stream ? cuda_driver()->StreamQuery(*stream) : cuda_driver()->EventQuery(self->order->last);
        gpu_return_to_captures(mode);
        *ended = result != CU_ERROR_NOT_READY;
        if (result != CU_OK && *ended && !is_of_capture(result))
            status = cuda_status(result, __FILE__, __LINE__, stream ? "cuStreamQuery" : "cuEventQuery");
    }
    cuda_leave();
    return status;
}

expar_status gpu_order_look(const gpu_core *self)
{
    bool unused;
    return look_at(self, NULL, &unused);
}

expar_status gpu_order_query(const gpu_core *self, bool *ended)
{
    return look_at(self, NULL, ended);
}

void gpu_rest_between(int64_t looks)
{
    const int64_t yields = knob(KNOB_CUDA_STREAM_LOOKS), most_ns = knob(KNOB_CUDA_STREAM_MOST_SLEEP_NS);
    const int64_t rest_ns = knob(KNOB_CUDA_STREAM_SLEEP_NS) * (looks / yields);
    if (looks < yields)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = rest_ns < most_ns ? rest_ns : most_ns}, NULL);
}

static expar_status look_at_stream_of(const cuda_device *device, cu_stream stream, bool *ended)
{
    int mode;
    expar_status status = cuda_enter(device);
    if (status != EXPAR_OK) return status;
    status = gpu_leave_captures(&mode);
    if (status == EXPAR_OK) {
        const cu_result result = cuda_driver()->StreamQuery(stream);
        gpu_return_to_captures(mode);
        *ended = result == CU_OK;
        if (result != CU_ERROR_NOT_READY) status = cuda_status(result, __FILE__, __LINE__, "cuStreamQuery");
    }
    cuda_leave();
    return status;
}

expar_status gpu_stream_await(const cuda_device *device, cu_stream stream, const char *what)
{
    int64_t asked_ns = 0;
    bool ended = false;
    expar_status status = EXPAR_OK;
    for (int64_t looks = 0; status == EXPAR_OK && !ended; looks++) {
        if (looks > 0) gpu_rest_between(looks);
        status = look_at_stream_of(device, stream, &ended);
        if (status == EXPAR_OK && !ended) status = interrupt_look(&asked_ns, what);
    }
    return status;
}

/* If the program interrupts this wait, it makes kernels that wait for ranks leave, and then waits for their end. */
expar_status gpu_order_await(gpu_core *self)
{
    gpu_order *order = self->order;
    int64_t asked_ns = 0;
    if (!order) return EXPAR_OK;
    pthread_mutex_lock(&order->lock);
    bool ended = !order->has_last && !order->in_graphs;
    pthread_mutex_unlock(&order->lock);
    expar_status status = EXPAR_OK;
    for (int64_t looks = 0; status == EXPAR_OK && !ended; looks++) {
        status = look_at(self, NULL, &ended);
        if (status != EXPAR_OK || ended) continue;
        expar_status asked = interrupt_look(&asked_ns, "calls on the GPU");
        if (asked != EXPAR_OK) gpu_end_waits(self, asked);
        gpu_rest_between(looks);
    }
    return status;
}

expar_status gpu_await(executor *base, const char *what)
{
    expar_status status = gpu_order_await(gpu_core_of(base));
    return status == EXPAR_OK ? gpu_check(base, what) : status;
}

bool gpu_order_has_ended(const gpu_core *self, int64_t wait_ns)
{
    const int64_t end_ns = clock_ns() + wait_ns;
    bool ended = false;
    while (self->order && look_at(self, NULL, &ended) == EXPAR_OK && !ended && clock_ns() < end_ns)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return ended || !self->order;
}

/* ---- ranks that share a GPU -----------------------------------------------------------------------------------------
 *
 * All streams of a context share the queues to its GPU, and ranks of a process that share a GPU also share its context.
 * A kernel in such a queue may wait for another rank, and work after it in the queue then starts only when that wait
 * ends. If that work is the other rank's kernel, neither kernel can go on (docs/reference/gpu.md). So while a kernel of
 * theirs may be waiting, these ranks enqueue no kernel, copy or wait. In a graph they cannot avoid it. */

void gpu_order_note_wait(gpu_core *self, bool may_wait)
{
    self->order->may_wait = may_wait;
}

/* Returns whether to wait on. Work that the caller delays on the stream is awaited for the time-out at most. A kernel
   that waits for a rank is awaited as long as it waits. If the program interrupts this wait, the kernels leave, and the
   next call fails. */
static bool may_settle_later(gpu_core *self, int64_t end_ns, int64_t *asked_ns)
{
    expar_status asked = interrupt_look(asked_ns, "the call before");
    if (asked != EXPAR_OK) gpu_end_waits(self, asked);
    if (gpu_group_failed(self)) return false;
    return clock_ns() < end_ns || gpu_guard_sees_wait(self);
}

/* Waits until all work of this call on its stream has ended; if this call has put none there yet, until the previous
   call's work has ended. It returns early if the context or the group has failed: then the launch reports the error, or
   no kernel waits any more. */
static void await_last(gpu_core *self, const exec_call *call)
{
    const int64_t end_ns = clock_ns() + self->sym->timeout_ms * 1000000;
    const cu_stream stream = call->stream, *which = call->placed ? &stream : NULL;
    int64_t asked_ns = 0;
    bool ended = false;
    for (int64_t looks = 0; look_at(self, which, &ended) == EXPAR_OK && !ended; looks++) {
        if (!may_settle_later(self, end_ns, &asked_ns)) return;
        gpu_rest_between(looks);
    }
}

void gpu_order_settle(gpu_core *self, const exec_call *call)
{
    gpu_order *order = self->order;
    bool may_wait = order->may_wait || (order->in_graphs && !call->placed);
    if (!self->shares_gpu || call->captured || !may_wait) return;
    await_last(self, call);
    order->may_wait = false;
}
