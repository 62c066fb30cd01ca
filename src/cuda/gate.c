/* SPDX-License-Identifier: Apache-2.0 */
/* Gates: streams wait at a gate until a host thread opens it. They do so by words in pinned memory, which the streams
 * poll. A word is never reset, since a stream may reach its wait long after the gate was opened and given back. Each
 * gate that uses a word opens at the next number. */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define PAGE_GATES 64
#define LINE_BYTES 64

struct cuda_gate {
    /* In pinned memory: the number of the last opened gate of this word. The thread that opens writes it (release),
       streams read it (>=, cyclic). */
    _Atomic uint32_t *word;
    uint32_t number; /* of the present gate; only its holder uses it */
    cuda_gate *next; /* while it is free */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_gate *unused; /* guarded by lock */

/* With the lock held and a context current. The page is pinned for all contexts, and kept until the process ends. */
static expar_status add_page(void)
{
    void *words = NULL;
    cuda_gate *gates = calloc(PAGE_GATES, sizeof *gates);
    if (!gates) return error_set(EXPAR_ERR_MEMORY, "no memory for an event");
    expar_status status =
        CUDA_CALL(MemHostAlloc, &words, (size_t)PAGE_GATES * LINE_BYTES, CU_HOST_PORTABLE | CU_HOST_MAPPED);
    if (status != EXPAR_OK) {
        free(gates);
        return status;
    }
    for (int i = 0; i < PAGE_GATES; i++) {
        gates[i].word = (_Atomic uint32_t *)(void *)((char *)words + (size_t)i * LINE_BYTES);
        atomic_init(gates[i].word, 0);
        gates[i].next = unused;
        unused = &gates[i];
    }
    return EXPAR_OK;
}

static expar_status gate_take(cuda_gate **out)
{
    pthread_mutex_lock(&lock);
    expar_status status = unused ? EXPAR_OK : add_page();
    if (status == EXPAR_OK) {
        *out = unused;
        unused = unused->next;
        (*out)->number++;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* A context must be current. */
static expar_status gate_hold(const cuda_gate *self, void *stream)
{
    cu_address word = 0;
    expar_status status = CUDA_CALL(MemHostGetDevicePointer, &word, self->word, 0);
    if (status != EXPAR_OK) return status;
    cu_result result = cuda_driver()->StreamWaitValue(stream, word, self->number, CU_WAIT_AT_LEAST);
    if (result == CU_ERROR_NOT_SUPPORTED)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "the GPU's streams cannot wait for a word of the host's (cuStreamWaitValue32); "
                         "expected an event that lies on a stream, or expar_event_wait");
    return cuda_status(result, __FILE__, __LINE__, "cuStreamWaitValue32");
}

static expar_status hold_entered(cuda_gate **gate, void *stream)
{
    unsigned long long capture;
    expar_status status = cuda_stream_capture(stream, &capture);
    if (status != EXPAR_OK) return status;
    if (capture)
        return error_set(EXPAR_ERR_STATE,
                         "the stream is being captured, and the event does not lie on a stream; expected "
                         "one that has happened: it happens once, and a graph runs many times");
    if (!*gate) status = gate_take(gate);
    return status == EXPAR_OK ? gate_hold(*gate, stream) : status;
}

expar_status cuda_gate_hold(cuda_gate **gate, void *stream)
{
    expar_status status = cuda_enter_stream(stream);
    if (status != EXPAR_OK) return status;
    status = hold_entered(gate, stream);
    cuda_leave();
    return status;
}

void cuda_gate_open(cuda_gate *self)
{
    if (self) atomic_store_explicit(self->word, self->number, memory_order_release);
}

void cuda_gate_give(cuda_gate *self)
{
    if (!self) return;
    cuda_gate_open(self);
    pthread_mutex_lock(&lock);
    self->next = unused;
    unused = self;
    pthread_mutex_unlock(&lock);
}
