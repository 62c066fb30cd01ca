/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of expar/stream.h. The stream waits for a word of the library's own, and the library's thread looks at the
 * caller's. So the thread can release the stream if a rank is lost. */
#include "base/knobs.h"
#include "pgas/stream/parts.h"
#include <expar/stream.h>

#include <stdio.h>

static stream_job *wait_of(cuda_command *command)
{
    return (stream_job *)(void *)command;
}

/* A stream that waits holds up others in its queue, and the library's copies have streams, too. If all queues hold such
   a stream, nothing moves until one of the waits ends. */
static void count_wait(stream_service *service)
{
    const int64_t waiting = atomic_fetch_add_explicit(&service->waiting, 1, memory_order_relaxed) + 1;
    if (waiting < service->queues || atomic_load_explicit(&service->told_of_many, memory_order_relaxed)) return;
    atomic_store_explicit(&service->told_of_many, true, memory_order_relaxed);
    LOG(LOG_WARN,
        "%lld streams of this rank wait at once, and the GPU has %lld queues for all streams of the process: copies of "
        "the library and other streams may wait for them, too. Set CUDA_DEVICE_MAX_CONNECTIONS to 32 before the "
        "process first uses CUDA",
        (long long)waiting, (long long)service->queues);
}

static void wait_begin(stream_job *job)
{
    count_wait(job->service);
    static const boot_topic none = {.kind = BOOT_KIND_NONE};
    sym *self = job->service->group->sym;
    if (!job->stream) job->tellings = atomic_load_explicit(&self->tellings, memory_order_relaxed);
    boot_wait_begin(&job->wait, self->boot, &none, job->name);
    job->look_ns = clock_ns() + knob(KNOB_STREAM_LOOK_NS);
    job->waits = true;
}

static void wait_end(stream_job *job)
{
    boot_wait_end(&job->wait);
    if (job->waits) atomic_fetch_sub_explicit(&job->service->waiting, 1, memory_order_relaxed);
    job->waits = false;
}

static expar_status wait_load(const stream_job *job, uint64_t *seen)
{
    uint64_t raw = 0;
    const words_type type = job->type;
    if (job->place.memory != TRANSPORT_DEVICE) {
        *seen = words_load(type, job->source, 0);
        return EXPAR_OK;
    }
    expar_status status = target_load(job->name, job->service->group, job->source, &raw, type.bytes);
    *seen = words_widen(type, raw);
    return status;
}

/* The loss of any rank ends the wait, since any may change the word. */
static expar_status wait_look(stream_job *job)
{
    sym *self = job->service->group->sym;
    const int64_t now_ns = clock_ns();
    if (atomic_load_explicit(&self->failure, memory_order_relaxed) != 0) {
        expar_status status = sym_check_losses(self, job->tellings, job->name);
        if (status != EXPAR_OK) return status;
    }
    if (now_ns < job->look_ns) return EXPAR_OK;
    job->look_ns = now_ns + knob(KNOB_STREAM_LOOK_NS);
    return sym_wait_look(self, &job->wait);
}

static expar_status wait_describe(const stream_job *job, uint64_t seen, expar_status status)
{
    words_text has, wants;
    char why[ERROR_TEXT_BYTES];
    snprintf(why, sizeof why, "%s", expar_last_error());
    return error_set(status,
                     "%s; the word at offset %llu of the heap holds %s, waited for %s %s: any rank may change it", why,
                     (unsigned long long)job->place.offset, words_show(job->type, seen, has), words_sign(job->cmp),
                     words_show(job->type, job->value, wants));
}

static bool wait_run(cuda_command *command)
{
    stream_job *job = wait_of(command);
    uint64_t seen = 0;
    if (!job->waits) wait_begin(job);
    expar_status status = wait_load(job, &seen);
    const bool holds = status == EXPAR_OK && words_hold(job->type, seen, job->cmp, job->value);
    if (!holds && status == EXPAR_OK && (status = wait_look(job)) != EXPAR_OK)
        status = wait_describe(job, seen, status);
    if (!holds && status == EXPAR_OK) return false;
    wait_end(job);
    if (holds)
        sym_behold(job->service->group->sym);
    else
        stream_job_fail(job, status);
    return true;
}

static void wait_stop(cuda_command *command)
{
    stream_job *job = wait_of(command);
    wait_end(job);
    stream_job_fail(job, error_set(EXPAR_ERR_ABORTED, "%s: the group ends", job->name));
}

static expar_status wait_begun(const stream_call *call, const void *word, words_type type, expar_cmp cmp,
                               uint64_t value)
{
    stream_job *job;
    kinds_place place;
    if (!words_sign(cmp))
        return error_set(EXPAR_ERR_ARGUMENT, "%s: cmp %d, expected EXPAR_CMP_EQ to EXPAR_CMP_LE", call->name, (int)cmp);
    expar_status status = target_check_word(call->name, call->group, "word", word, type.bytes, &place);
    if (status == EXPAR_OK) status = stream_job_make(call, NULL, &job);
    if (status != EXPAR_OK) return status;
    /* A loss after the call ends the wait, though others may be told of it before the stream comes there. Waits in
       graphs begin when the stream comes. */
    job->tellings = atomic_load_explicit(&call->group->sym->tellings, memory_order_relaxed);
    job->command.run = wait_run;
    job->command.stop = wait_stop;
    job->source = word;
    job->type = type;
    job->cmp = cmp;
    job->value = value;
    job->place = place;
    return stream_job_put(call, call->service->operations, job);
}

static expar_status wait_ended(stream_call *call, const void *word, words_type type, expar_cmp cmp, uint64_t value)
{
    expar_status status = stream_call_begin(call);
    if (status == EXPAR_OK) status = stream_call_end(call, wait_begun(call, word, type, cmp, value));
    return group_ended(call->group, status);
}

expar_status expar_signal_wait_until_on_stream(expar_group *group, const uint64_t *signal, expar_cmp cmp,
                                               uint64_t value, void *stream)
{
    STREAM_ON_GROUP("expar_signal_wait_until_on_stream");
    return wait_ended(&call, signal, (words_type){sizeof value, false}, cmp, value);
}

#define WAIT_DEFINE(T, S)                                                                                              \
    expar_status expar_wait_until_##S##_on_stream(expar_group *group, const T *word, expar_cmp cmp, T value,           \
                                                  void *stream)                                                        \
    {                                                                                                                  \
        STREAM_ON_GROUP("expar_wait_until_" #S "_on_stream");                                                          \
        return wait_ended(&call, word, (words_type){sizeof value, (T)-1 < (T)1}, cmp, (uint64_t)value);                \
    }
EXPAR_WAIT_TYPES(WAIT_DEFINE)
