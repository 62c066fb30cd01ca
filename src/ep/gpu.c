/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs: their memory and executor, and how their calls begin and end on streams. */
#include "ep/ep.h"
#include "exec/event.h"

#include <stdlib.h>
#include <string.h>

/* Enough to saturate the links (docs/performance.md). */
#define DEFAULT_SMS 24

/* ---- making a buffer ---- */

/* All ranks learn whether all could; then uuids[r], where they are asked for, is that of rank r's GPU. */
static expar_status agree(const expar_ep *ep, expar_status own, cu_uuid *uuids)
{
    const boot_matter matter = {.what = "the buffer",
                                .refused = "could not make its part",
                                .mine = &device_heap_device(ep->gpu)->uuid,
                                .all = uuids,
                                .bytes = uuids ? sizeof *uuids : 0};
    return sym_agree(ep->group->sym, &matter, own);
}

/* How many ranks have this rank's GPU. Collective. */
static expar_status count_sharers(const expar_ep *ep, int32_t *sharers)
{
    const int32_t size = ep->group->size;
    cu_uuid *uuids = calloc((size_t)size, sizeof *uuids);
    if (!uuids) return sym_out_of_step(ep->group->sym, "the buffer", error_set(EXPAR_ERR_MEMORY, "no memory"));
    expar_status status = agree(ep, EXPAR_OK, uuids);
    *sharers = 0;
    for (int32_t r = 0; r < size && status == EXPAR_OK; r++)
        *sharers += memcmp(&uuids[r], &uuids[ep->group->rank], sizeof *uuids) == 0;
    free(uuids);
    return status;
}

/* Kernels of ranks on one GPU wait for each other, so they must run side by side. */
static expar_status choose_sms(const expar_ep *ep, int32_t asked, int32_t sharers, int32_t *chosen)
{
    int32_t all = device_heap_device(ep->gpu)->num_sms, most = all / sharers;
    *chosen = asked ? asked : most < DEFAULT_SMS ? most : DEFAULT_SMS;
    if (*chosen >= 1 && *chosen <= most) return EXPAR_OK;
    if (most < 1)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "%d ranks share GPU %d, which has %d SM%s; expected at most one rank an SM", sharers,
                         ep->device.index, all, all == 1 ? "" : "s");
    return error_set(EXPAR_ERR_ARGUMENT,
                     "config.num_sms is %d; expected 1 to %d, or 0 for the library's choice: GPU %d has %d SMs for %d "
                     "rank%s",
                     asked, most, ep->device.index, all, sharers, sharers == 1 ? "" : "s");
}

/* Memory of the heap may have served another buffer: flags of old epochs must go before anybody can post. */
static expar_status clear_records(const expar_ep *ep)
{
    expar_status status = cuda_enter(device_heap_device(ep->gpu));
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8, device_heap_at(ep->gpu, ep->buffer), 0, ep->space.slots);
    if (status == EXPAR_OK)
        status = cuda_status(cuda_driver()->CtxSynchronize(), __FILE__, __LINE__, "cuCtxSynchronize");
    cuda_leave();
    return status;
}

/* Streams of one process share the queues to a GPU, 8 unless its environment says more: kernels in one queue would wait
   for those behind them. */
static expar_status check_queues(const expar_ep *ep, int32_t sharers)
{
    const char *text = env_foreign("CUDA_DEVICE_MAX_CONNECTIONS");
    int32_t queues = text ? atoi(text) : 8;
    if (!ep->group->threads || sharers <= queues) return EXPAR_OK;
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "%d ranks of this process share GPU %d, but its streams only %d queues; set "
                     "CUDA_DEVICE_MAX_CONNECTIONS to %d or more (32 at most) before the process first uses CUDA",
                     sharers, ep->device.index, queues, sharers);
}

static expar_status make_parts(expar_ep *ep, int32_t asked_sms, int32_t sharers)
{
    executor_cuda_share share = {.with_threads = ep->group->threads && sharers > 1};
    ep->shares_gpu = share.with_threads;
    expar_status status = check_queues(ep, sharers);
    if (status == EXPAR_OK) status = choose_sms(ep, asked_sms, sharers, &share.num_sms);
    if (status == EXPAR_OK)
        status = executor_cuda_create(ep->gpu, ep->group->sym, &ep->shape, ep->buffer, &share, &ep->exec);
    if (status == EXPAR_OK)
        status = mem_pool_create((void *)(uintptr_t)device_heap_at(ep->gpu, 0), ep->buffer + ep->space.pool,
                                 ep->shape.pool_bytes, &ep->pool);
    return status == EXPAR_OK ? clear_records(ep) : status;
}

static void close_parts(expar_ep *ep)
{
    if (ep->exec) ep->exec->ops->destroy(ep->exec);
    mem_pool_close(ep->pool);
    ep->exec = NULL;
    ep->pool = NULL;
}

/* On all ranks alike: no kernel has used the memory yet. Returns status, its text kept. */
static expar_status unmake(expar_ep *ep, expar_status status)
{
    error_kept kept;
    error_keep(&kept, status);
    close_parts(ep);
    device_heap_destroy(ep->gpu, true);
    ep->gpu = NULL;
    return error_restore(&kept);
}

expar_status ep_gpu_fill_buffer(expar_ep *ep, int32_t num_sms)
{
    int32_t sharers;
    expar_status status = device_heap_create(ep->group->sym, ep->device.index, &ep->gpu);
    if (status == EXPAR_OK)
        status = device_heap_take(ep->gpu, "expar_ep_create", ep->space.total_bytes, 4096, &ep->buffer);
    if (status == EXPAR_OK) status = count_sharers(ep, &sharers);
    if (status == EXPAR_OK) status = agree(ep, make_parts(ep, num_sms, sharers), NULL);
    return status == EXPAR_OK ? EXPAR_OK : unmake(ep, status);
}

void ep_gpu_empty_buffer(expar_ep *ep, bool sound, bool quiet)
{
    close_parts(ep);
    /* Peers' kernels may still read here until all ranks have come, and waited for theirs. */
    bool all_quiet = sound && quiet;
    if (sound && device_heap_give(ep->gpu, "the buffer", ep->buffer, &all_quiet) != EXPAR_OK)
        LOG(LOG_WARN, "expar_ep_destroy: %s", expar_last_error());
    device_heap_destroy(ep->gpu, all_quiet);
    ep->gpu = NULL;
}

bool ep_in_heap(const expar_ep *ep, const void *data, uint64_t bytes, uint64_t *offset)
{
    if (ep->gpu) return device_heap_offset(ep->gpu, (cu_address)(uintptr_t)data, bytes, offset);
    return sym_offset(ep->group->sym, data, (size_t)bytes, offset);
}

/* ---- calls on streams ---- */

/* What this rank refused by itself it has returned. */
static bool is_told(const expar_ep *ep, const ep_verdict *verdict)
{
    return verdict->rank == ep->group->rank && verdict->reason.status == ep->own_refusal.status &&
           strcmp(verdict->reason.text, ep->own_refusal.text) == 0;
}

void ep_gpu_tell_untold(const ep_call *call)
{
    ep_call earlier = {.ep = call->ep, .name = "an earlier call, in a graph or with num_worst_tokens"};
    ep_verdict verdict;
    int32_t dropped = 0;
    if (!executor_cuda_untold(call->ep->exec, &verdict, &dropped) || is_told(call->ep, &verdict)) return;
    if (ep_call_verdict(&earlier, &verdict) != EXPAR_OK)
        LOG(LOG_WARN, "%s", expar_last_error());
    else
        LOG(LOG_WARN, "%s: %d rows were dropped", earlier.name, dropped);
}

expar_status ep_gpu_begin(expar_ep *ep, void *stream, bool asked)
{
    if (!ep->gpu) return EXPAR_OK;
    bool is_default = !stream || stream == CU_SHARED_STREAM;
    if (is_default && ep->group->threads && ep->group->size > 1)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "stream is the default one, which ranks of one process share; expected a stream of its own");
    ep->exec->stream = stream;
    expar_status status = executor_cuda_begin(ep->exec);
    ep->exec->untold = !asked || ep->exec->capturing;
    return status;
}

expar_status ep_gpu_check_capture(const expar_ep *ep, const expar_event *wait_event, bool async_finish)
{
    if (!ep->exec->capturing) return EXPAR_OK;
    const char *extra = wait_event ? "wait_event is given" : async_finish ? "async_finish is 1" : NULL;
    if (!extra) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s while the stream is being captured; a graph has its own order", extra);
}

/* What is left of a call when its stream comes to its end. */
typedef struct gpu_ending {
    ep_call call;
    expar_event *event;
} gpu_ending;

static void end_of_call(void *context, expar_status status, const ep_verdict *verdict, int32_t dropped)
{
    gpu_ending *end = context;
    if (status != EXPAR_OK)
        error_prefix(status, "%s", end->call.name);
    else
        status = ep_call_verdict(&end->call, verdict);
    if (status == EXPAR_OK && dropped > 0)
        status = error_set(EXPAR_ERR_DROPPED, "%s: %d rows were dropped: num_worst_tokens is too small", end->call.name,
                           dropped);
    event_finish(end->event, status);
    free(end);
}

expar_status ep_gpu_end(const ep_call *call, expar_event *event)
{
    executor *exec = call->ep->exec;
    expar_status status = event ? executor_cuda_mark(exec) : executor_cuda_end(exec);
    if (status != EXPAR_OK || !event) return ep_call_step(call, status);
    gpu_ending *end = malloc(sizeof *end);
    if (!end) return error_set(EXPAR_ERR_MEMORY, "%s: no memory for an asynchronous call", call->name);
    *end = (gpu_ending){.call = *call, .event = event};
    event_keeper keeper;
    status = executor_cuda_finish(exec, end_of_call, end, &keeper);
    if (status == EXPAR_OK) {
        event_keep(event, &keeper);
        return executor_cuda_end(exec);
    }
    free(end);
    return error_prefix(status, "%s", call->name);
}
