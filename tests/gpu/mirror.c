/* SPDX-License-Identifier: Apache-2.0 */
/* The library's calls, on the GPU. */
#include "gpu/mirror.h"
#include "ep/normal/normal.h"
#include "exec/cuda/kernels/normal/args.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/kept.h"
#include <stdlib.h>

/* On a GPU handles and maps lie in the pool, too; the size that the library chooses (0) fits them. */
#define MORE_POOL_BYTES ((int64_t)64 << 20)
#define SURE_POOL_BYTES ((int64_t)1 << 20)
#define SHARED_BYTES    ((size_t)16 << 20)
#define UNIT_BYTES      256

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Collective, as making a buffer is. Where the host carries calls out, peers reach no memory of the GPU's. */
static void take_shared(buffer *b, const expar_ep *ep)
{
    uint64_t offset;
    if (!ep->base.exec->ops->streams) return;
    if (device_heap_take(gpu_of(ep->base.exec)->core.heap, "mirror", SHARED_BYTES, UNIT_BYTES, &offset) != EXPAR_OK)
        return;
    b->shared.at = device_heap_at(gpu_of(ep->base.exec)->core.heap, offset);
    b->shared.bytes = SHARED_BYTES;
}

expar_status mirror_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep)
{
    bool sound = group && config && ep && config->struct_size == sizeof *config;
    if (!sound || worker_is_host()) return expar_ep_create(group, config, ep);
    expar_ep_config on_gpu = *config;
    on_gpu.device = worker_device(expar_group_rank(group));
    /* One below what the pool begins with is the library's to refuse. */
    if (config->pool_limit_bytes > 0 && config->pool_limit_bytes >= config->pool_bytes)
        on_gpu.pool_limit_bytes += MORE_POOL_BYTES;
    /* Where tests are sure of space, they may begin with calls that wait for no counts, which let nothing grow. */
    if (config->pool_limit_bytes > SURE_POOL_BYTES && !config->pool_bytes) on_gpu.pool_bytes = on_gpu.pool_limit_bytes;
    worker_of(on_gpu.device.index);
    expar_status status = expar_ep_create(group, &on_gpu, ep);
    if (status == EXPAR_OK) take_shared(buffer_add(*ep, group, on_gpu.device.index), *ep);
    return status;
}

expar_status mirror_ep_destroy(expar_ep *ep)
{
    buffer *b = buffer_find(ep);
    expar_status status = expar_ep_destroy(ep);
    if (status != EXPAR_OK || !b) return status;
    mirrored_drop(b);
    buffer_drop(ep);
    return status;
}

/* ---- the end of a call ------------------------------------------------------------------------------------------- */

/* The events that a call waits for have happened before anything is copied for it; how it ended is the call's business.
   */
static void await(expar_event *event)
{
    if (event) (void)expar_event_wait(event);
}

/* The call is done at its event, and the test need not know that there was one. Without one the call has said how it
   went (`returned`), and what is left of it is on the stream. */
static expar_status settle(mirrored *t, expar_event *event, expar_status returned)
{
    expar_status status = event ? expar_event_wait(event) : returned;
    if (!event) mirror_need(CUDA_CALL(StreamSynchronize, t->worker->stream), "wait for the call");
    mirrored_note(t, "the wait for the call");
    mirrored_end(t, status == EXPAR_OK || status == EXPAR_ERR_DROPPED);
    expar_event_release(event);
    return status;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* Memory of the host's symmetric heap that has no counterpart in the GPU's is the caller's own there. */
static expar_ep_path path_on_gpu(const buffer *b, expar_ep_path asked, const expar_tensor *rows)
{
    bool staged = !b->shared.bytes && rows->data && expar_ptr(b->group, rows->data, b->rank);
    return asked == EXPAR_EP_PATH_DIRECT && staged ? EXPAR_EP_PATH_AUTO : asked;
}

/* Does the CPU's part for a test whose own output is not where peers reach it. */
static expar_ep_path path_on_cpu(const buffer *b, const expar_ep_dispatch_args *args, expar_ep_path path)
{
    if (args->path != EXPAR_EP_PATH_AUTO) return args->path;
    bool own = args->out_x.ndim != 0 && !args->expert_major;
    return !own || expar_ptr(b->group, args->out_x.data, b->rank) ? path : EXPAR_EP_PATH_QUEUE;
}

/* The caller's own outputs, in one order. */
#define OUTPUTS 8
typedef struct outputs {
    expar_tensor *of[OUTPUTS];
} outputs;

static outputs outputs_of(expar_ep_dispatch_args *args)
{
    return (outputs){{&args->out_x, &args->out_scales, &args->out_topk_idx, &args->out_topk_weights, &args->out_row_map,
                      &args->out_src_token, &args->out_row_weights, &args->out_src_metadata}};
}

static void give_outputs(mirrored *t, const expar_ep_dispatch_args *args, expar_ep_dispatch_args *given)
{
    expar_ep_dispatch_args host = *args;
    outputs from = outputs_of(&host), to = outputs_of(given);
    for (int i = 0; i < OUTPUTS; i++)
        *to.of[i] = mirrored_give(t, from.of[i]);
}

/* The test is shown its own memory. */
static void fetch_outputs(mirrored *t, const expar_ep_dispatch_args *args, const expar_ep_dispatch_args *given,
                          expar_ep_dispatch_result *result)
{
    expar_ep_dispatch_args host = *args, gpu = *given;
    outputs to = outputs_of(&host), from = outputs_of(&gpu);
    expar_tensor *const got[OUTPUTS] = {
        &result->recv_x,       &result->recv_scales,    &result->recv_topk_idx,    &result->recv_topk_weights,
        &result->recv_row_map, &result->recv_src_token, &result->recv_row_weights, &result->recv_src_metadata};
    if (args->topk_idx_copy.ndim) mirrored_fetch(t, &given->topk_idx_copy, args->topk_idx_copy.data);
    for (int i = 0; i < OUTPUTS; i++) {
        if (!to.of[i]->ndim) continue;
        mirrored_fetch(t, from.of[i], to.of[i]->data);
        got[i]->data = to.of[i]->data;
        got[i]->device = (expar_device){.type = EXPAR_CPU};
    }
}

/* Numbers that were not known when the call returned. */
static void fill_counts(const worker *h, const expar_ep_dispatch_args *args, expar_ep_dispatch_result *result)
{
    const expar_ep_handle *handle = result->handle ? result->handle : args->handle;
    if (handle->recv_tokens >= 0) return;
    const ep_routing *r = &handle->routing;
    int32_t *counts = calloc((size_t)r->local_experts, sizeof *counts);
    int32_t unit = args->expert_alignment > 1 ? args->expert_alignment : 1;
    const int32_t came = mirror_fetch_counts(h, handle, counts);
    for (int32_t e = 0; e < r->local_experts; e++)
        counts[e] = (counts[e] + unit - 1) / unit * unit;
    result->num_recv_tokens = came < handle->rows ? came : handle->rows;
    result->num_dropped_tokens = came - result->num_recv_tokens;
    if (result->handle)
        result->recv_tokens_per_expert = kept_counts(result->output, counts);
    else
        free(counts);
}

static void give_up(expar_ep_dispatch_result *result)
{
    mirror_output_release(result->output);
    expar_ep_handle_release(result->handle);
}

/* The call was taken: to its end, or to the test with an event. */
static expar_status arrive(mirrored *t, const expar_ep_dispatch_args *args, const expar_ep_dispatch_args *given,
                           expar_status returned, expar_ep_dispatch_result *result)
{
    expar_event *event = result->event;
    const worker *h = t->worker;
    result->path = path_on_cpu(t->buffer, args, result->path);
    fetch_outputs(t, args, given, result);
    bool unknown = result->num_recv_tokens < 0;
    if (args->async_finish && !unknown) {
        mirrored_park(t, event);
        return EXPAR_OK;
    }
    expar_status status = args->async_finish ? expar_event_wait(event) : settle(t, event, returned);
    bool arrived = status == EXPAR_OK || status == EXPAR_ERR_DROPPED;
    if (arrived && unknown) fill_counts(h, args, result);
    if (args->async_finish) {
        /* How it ended is told by its event all the same. */
        mirrored_end(t, arrived);
        return EXPAR_OK;
    }
    result->event = NULL;
    if (!arrived) give_up(result);
    return status;
}

expar_status mirror_ep_dispatch(expar_ep *ep, const expar_ep_dispatch_args *args, expar_ep_dispatch_result *result)
{
    buffer *b = buffer_find(ep);
    if (!b || !args || args->struct_size != sizeof *args) return expar_ep_dispatch(ep, args, result);
    await(args->wait_event);
    mirrored *t = mirrored_begin(b);
    expar_ep_dispatch_args given = *args;
    given.x = mirrored_give(t, &args->x);
    given.topk_idx = mirrored_give(t, &args->topk_idx);
    given.topk_weights = mirrored_give(t, &args->topk_weights);
    given.x_scales = mirrored_give(t, &args->x_scales);
    given.token_in_rank = mirrored_give(t, &args->token_in_rank);
    given.topk_idx_copy = mirrored_give(t, &args->topk_idx_copy);
    give_outputs(t, args, &given);
    given.path = path_on_gpu(b, args->path, &args->out_x);
    given.path = path_on_gpu(b, given.path, &args->out_scales);
    given.path = path_on_gpu(b, given.path, &args->out_topk_idx);
    given.path = path_on_gpu(b, given.path, &args->out_topk_weights);
    given.path = path_on_gpu(b, given.path, &args->out_src_token);
    expar_ep_recv_counts counts;
    int32_t experts = args->handle ? args->handle->routing.experts : args->num_experts;
    given.recv_counts = mirrored_give_counts(t, args->recv_counts, experts, &counts);
    given.tokens_per_expert = mirrored_give_numbers(t, args->tokens_per_expert, args->num_experts);
    given.stream = t->worker->stream;
    /* The library rejects values other than 0 and 1. */
    if (args->async_finish == 0)
        given.async_finish = args->num_worst_tokens ? !mirrored_is_plainest() : !mirrored_is_plain();
    expar_ep_dispatch_result got = EXPAR_EP_DISPATCH_RESULT_INIT;
    bool sound = result && result->struct_size == sizeof *result;
    mirrored_note(t, "lending what is dispatched");
    expar_status status = expar_ep_dispatch(ep, &given, sound ? &got : result);
    mirrored_note(t, "expar_ep_dispatch");
    if (status != EXPAR_OK && status != EXPAR_ERR_DROPPED) {
        mirrored_end(t, false);
        return status;
    }
    kept_add(t, &got, args);
    status = arrive(t, args, &given, status, &got);
    if (status == EXPAR_OK || status == EXPAR_ERR_DROPPED) *result = got;
    return status;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

expar_status mirror_ep_combine(expar_ep *ep, const expar_ep_combine_args *args, expar_ep_combine_result *result)
{
    buffer *b = buffer_find(ep);
    expar_ep_combine_result got = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!b || !args || args->struct_size != sizeof *args || (result && result->struct_size != sizeof *result))
        return expar_ep_combine(ep, args, result);
    await(args->wait_event);
    mirrored *t = mirrored_begin(b);
    expar_ep_combine_args given = *args;
    given.x = kept_give(t, &args->x);
    given.topk_weights = mirrored_give(t, &args->topk_weights);
    given.expert_weights = mirrored_give(t, &args->expert_weights);
    given.bias[0] = mirrored_give(t, &args->bias[0]);
    given.bias[1] = mirrored_give(t, &args->bias[1]);
    given.out_y = mirrored_give(t, &args->out_y);
    given.out_topk_weights = mirrored_give(t, &args->out_topk_weights);
    given.path = path_on_gpu(b, args->path, &args->x);
    given.stream = t->worker->stream;
    if (args->async_finish == 0) given.async_finish = !mirrored_is_plain();
    mirrored_note(t, "lending what is combined");
    expar_status status = expar_ep_combine(ep, &given, args->async_finish && !result ? NULL : &got);
    mirrored_note(t, "expar_ep_combine");
    /* Refused: y must be as it was. */
    bool sound = args->out_y.device.type == EXPAR_CPU && (args->out_y.shape[1] <= 1 || args->out_y.strides[1] == 1);
    if (status == EXPAR_OK || sound) mirrored_fetch(t, &given.out_y, args->out_y.data);
    if (status != EXPAR_OK) {
        worker_wait(t->worker);
        mirrored_end(t, true);
        return status;
    }
    mirrored_fetch(t, &given.out_topk_weights, args->out_topk_weights.data);
    mirrored_fetch(t, &given.x, args->x.data);
    if (!args->async_finish) return settle(t, got.event, status);
    mirrored_park(t, got.event);
    *result = got;
    return EXPAR_OK;
}
