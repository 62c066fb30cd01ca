/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of expar/stream.h: expar_put_signal_on_stream and expar_signal_op_on_stream. A stream stores a signal; it
 * cannot add to one, so the library's thread does. A stored signal wakes no rank that waits for it on the host, so the
 * thread is asked to. */
#include "pgas/stream/parts.h"
#include <expar/stream.h>

static expar_status job_carry_signal(stream_job *job)
{
    const ops_origin from = stream_job_origin(job);
    return stream_job_settle(job,
                             ops_put_signal_from(&from, job->dest, job->source, job->bytes, &job->signal, job->pe));
}

static expar_status signal_job(const stream_call *call, void *dest, const void *source, size_t bytes,
                               const ops_signal *signal, int32_t pe, stream_job **out)
{
    expar_status status = stream_job_make(call, job_carry_signal, out);
    if (status != EXPAR_OK) return status;
    stream_job *job = *out;
    job->dest = dest;
    job->source = source;
    job->bytes = bytes;
    job->signal = *signal;
    job->pe = pe;
    return EXPAR_OK;
}

static expar_status carry_ring(stream_job *job)
{
    sym_ring(job->service->group->sym, job->pe);
    return EXPAR_OK;
}

/* The stream does not wait for it. */
static expar_status ring_job(const stream_call *call, int32_t pe, stream_job **out)
{
    expar_status status = stream_job_make(call, carry_ring, out);
    if (status != EXPAR_OK) return status;
    (*out)->command.waits = false;
    (*out)->pe = pe;
    return EXPAR_OK;
}

/* Where a stream reaches data and signal; NULL: it does not. */
typedef struct signal_aim {
    void *data, *word;
} signal_aim;

static expar_status signal_check(const stream_call *call, const void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe, signal_aim *out)
{
    kinds_place data, word;
    link_peer peer;
    const sym *self = call->group->sym;
    const ops_origin from = {.call = call->name, .group = call->group};
    expar_status status = target_check_pe(call->name, call->group, pe);
    if (status == EXPAR_OK && signal->op != EXPAR_SIGNAL_SET && signal->op != EXPAR_SIGNAL_ADD)
        status = error_set(EXPAR_ERR_ARGUMENT, "%s: op %d, expected EXPAR_SIGNAL_SET or EXPAR_SIGNAL_ADD", call->name,
                           (int)signal->op);
    if (status == EXPAR_OK && bytes > 0 && !source)
        status = error_set(EXPAR_ERR_NULL, "%s: source is NULL", call->name);
    if (status == EXPAR_OK && bytes > 0)
        status = target_check_place(call->name, call->group, "dest", dest, bytes, &data);
    if (status == EXPAR_OK)
        status = target_check_word(call->name, call->group, "signal", signal->address, sizeof *signal->address, &word);
    if (status != EXPAR_OK) return status;
    if (bytes == 0) data = word;
    status = target_link(&from, pe, data.memory, LINK_DATA, bytes > 0 ? source : NULL, &peer);
    if (status == EXPAR_OK) status = link_aim_words(&peer, word.memory);
    if (status != EXPAR_OK) return status;
    out->data = kinds_peer_on_stream(self, &data, pe);
    if (bytes > 0 && !stream_reaches(call, source, bytes)) out->data = NULL;
    out->word = kinds_peer_word_on_stream(self, &word, pe);
    return EXPAR_OK;
}

/* The job has its place before anything is put on the stream. */
static expar_status signal_begun(const stream_call *call, void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe)
{
    signal_aim aim;
    stream_job *job;
    cuda_server *server = call->service->operations;
    expar_status status = signal_check(call, dest, source, bytes, signal, pe, &aim);
    if (status != EXPAR_OK) return status;
    const bool copies = aim.data != NULL, stores = copies && aim.word && signal->op == EXPAR_SIGNAL_SET;
    if (stores)
        status = ring_job(call, pe, &job);
    else if (copies)
        status = signal_job(call, NULL, NULL, 0, signal, pe, &job);
    else
        status = signal_job(call, dest, source, bytes, signal, pe, &job);
    if (status == EXPAR_OK) status = stream_job_prepare(call, server, job);
    if (status != EXPAR_OK) return status;
    if (copies && bytes > 0) status = stream_copy(call, aim.data, source, bytes);
    if (status == EXPAR_OK && stores) status = stream_store(call, aim.word, signal->value, sizeof signal->value);
    if (status == EXPAR_OK) return stream_job_put(call, server, job);
    stream_job_cancel(job);
    return status;
}

static expar_status signal_ended(stream_call *call, void *dest, const void *source, size_t bytes,
                                 const ops_signal *signal, int32_t pe)
{
    expar_status status = stream_call_begin(call);
    if (status == EXPAR_OK) status = stream_call_end(call, signal_begun(call, dest, source, bytes, signal, pe));
    return group_ended(call->group, status);
}

#define SIGNAL_DEFINE(P, O, ON)                                                                                        \
    expar_status P##put_signal_on_stream(O, void *dest, const void *source, size_t bytes, uint64_t *signal,            \
                                         uint64_t value, expar_signal_op op, int32_t pe, void *stream)                 \
    {                                                                                                                  \
        ON(#P "put_signal_on_stream");                                                                                 \
        return signal_ended(&call, dest, source, bytes, &(ops_signal){signal, value, op}, pe);                         \
    }                                                                                                                  \
    expar_status P##signal_op_on_stream(O, uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe,           \
                                        void *stream)                                                                  \
    {                                                                                                                  \
        ON(#P "signal_op_on_stream");                                                                                  \
        return signal_ended(&call, NULL, NULL, 0, &(ops_signal){signal, value, op}, pe);                               \
    }
SIGNAL_DEFINE(expar_, expar_group *group, STREAM_ON_GROUP)
SIGNAL_DEFINE(expar_ctx_, expar_ctx *ctx, STREAM_ON_CTX)
