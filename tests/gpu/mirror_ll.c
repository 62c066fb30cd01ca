/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of low-latency mode, on the GPU. */
#include "gpu/mirror_ll.h"
#include "gpu/kept.h"
#include "gpu/mirror.h"
#include <stdlib.h>

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

expar_status mirror_ll_create(expar_group *group, const expar_ll_config *config, expar_ll **ll)
{
    if (!group || !config || !ll || config->struct_size != sizeof *config) return expar_ll_create(group, config, ll);
    expar_ll_config there = *config;
    there.device = worker_device(expar_group_rank(group));
    worker_of(there.device.index);
    expar_status status = expar_ll_create(group, &there, ll);
    if (status == EXPAR_OK) buffer_add(*ll, group, there.device.index)->ll = *ll;
    return status;
}

expar_status mirror_ll_destroy(expar_ll *ll)
{
    buffer *b = buffer_find(ll);
    expar_status status = expar_ll_destroy(ll);
    if (status != EXPAR_OK || !b) return status;
    mirrored_drop(b);
    buffer_drop(ll);
    return status;
}

/* ---- the end of a call ------------------------------------------------------------------------------------------- */

/* The stream has come past a call, or hook, without an event: now it is told how that went. */
static expar_status tell(const mirrored *t)
{
    worker_wait(t->worker);
    return expar_ll_query(t->buffer->ll);
}

/* The call is done at its event, and the test need not know that there was one. */
static expar_status ll_settle_mirrored(mirrored *t, expar_event *event)
{
    expar_status status = event ? expar_event_wait(event) : tell(t);
    worker_wait(t->worker);
    mirrored_note(t, "the wait for the call");
    mirrored_end(t, true);
    expar_event_release(event);
    return status;
}

/* Its stream is this thread's. */
expar_status mirror_ll_hook_call(expar_ll_hook *hook, void *stream)
{
    const mirrored *t = mirrored_find(hook);
    expar_status status = expar_ll_hook_call(hook, t ? t->worker->stream : stream);
    if (t && status == EXPAR_OK) status = tell(t);
    if (t) worker_wait(t->worker);
    mirrored_land(hook, status);
    return status;
}

void mirror_ll_hook_release(expar_ll_hook *hook)
{
    mirrored_lose(hook);
    expar_ll_hook_release(hook);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* The test is shown its own memory. */
static void show(const expar_tensor *own, expar_tensor *got)
{
    if (!own->ndim) return;
    got->data = own->data;
    got->device = own->device;
}

/* For a call that failed: whether its tensors are sound, and may have been written to. */
static bool rows_came(expar_status status)
{
    return status == EXPAR_ERR_INDEX || status == EXPAR_ERR_REMOTE || status == EXPAR_ERR_PEER;
}

/* Rows of a call that has sent and is to receive by a hook. */
static void spoil_sent(const mirrored *t, const expar_tensor *rows)
{
    size_t bytes = mirrored_span_bytes(rows);
    if (bytes) worker_spoil(t->worker, (cu_address)(uintptr_t)rows->data, bytes);
}

static expar_tensor *unless_own(const expar_tensor *own, expar_tensor *got)
{
    return own->ndim ? NULL : got;
}

expar_status mirror_ll_handle_get_info(const expar_ll_handle *handle, expar_ll_handle_info *info)
{
    expar_status status = expar_ll_handle_get_info(handle, info);
    if (status != EXPAR_OK) return status;
    expar_tensor *const parts[] = {&info->src_info, &info->range};
    for (int i = 0; i < 2; i++) {
        void *host = kept_host(handle, parts[i]->data);
        if (!host) continue;
        parts[i]->data = host;
        parts[i]->device = (expar_device){.type = EXPAR_CPU};
    }
    return status;
}

void mirror_ll_handle_release(expar_ll_handle *handle)
{
    kept_drop(handle);
    expar_ll_handle_release(handle);
}

static void keep_handle(mirrored *t, const expar_ll_handle *handle)
{
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    mirror_need(expar_ll_handle_get_info(handle, &info), "ask what a handle knows");
    kept_put(t, handle, (expar_tensor *const[KEPT_PARTS]){&info.src_info, &info.range});
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static void give_dispatch(mirrored *t, const expar_ll_dispatch_args *args, expar_ll_dispatch_args *given)
{
    *given = *args;
    given->x = mirrored_give(t, &args->x);
    given->topk_idx = mirrored_give(t, &args->topk_idx);
    given->topk_weights = mirrored_give(t, &args->topk_weights);
    given->global_scale = mirrored_give(t, &args->global_scale);
    given->out_x = mirrored_give(t, &args->out_x);
    given->out_scales = mirrored_give(t, &args->out_scales);
    given->out_count = mirrored_give(t, &args->out_count);
    given->expert_recv_stats = mirrored_give(t, &args->expert_recv_stats);
    given->wait_ns = mirrored_give(t, &args->wait_ns);
    given->stream = t->worker->stream;
    if (!args->hook && !args->async_finish && !mirrored_is_plain()) given->async_finish = 1;
}

/* The caller's own memory that the call writes. */
static void fetch_dispatch(mirrored *t, const expar_ll_dispatch_args *args, const expar_ll_dispatch_args *given)
{
    mirrored_fetch(t, &given->out_x, args->out_x.data);
    mirrored_fetch(t, &given->out_scales, args->out_scales.data);
    mirrored_fetch(t, &given->out_count, args->out_count.data);
    mirrored_fetch(t, &given->expert_recv_stats, args->expert_recv_stats.data);
    mirrored_fetch(t, &given->wait_ns, args->wait_ns.data);
}

static void show_dispatch(mirrored *t, const expar_ll_dispatch_args *args, expar_ll_dispatch_result *got)
{
    kept_put(t, got->output,
             (expar_tensor *const[KEPT_PARTS]){unless_own(&args->out_x, &got->recv_x),
                                               unless_own(&args->out_scales, &got->recv_scales),
                                               unless_own(&args->out_count, &got->recv_count)});
    keep_handle(t, got->handle);
    show(&args->out_x, &got->recv_x);
    show(&args->out_scales, &got->recv_scales);
    show(&args->out_count, &got->recv_count);
}

expar_status mirror_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args, expar_ll_dispatch_result *result)
{
    buffer *b = buffer_find(ll);
    bool sound = b && args && args->struct_size == sizeof *args && result && result->struct_size == sizeof *result;
    if (!sound) return expar_ll_dispatch(ll, args, result);
    mirrored *t = mirrored_begin(b);
    expar_ll_dispatch_args given;
    expar_ll_dispatch_result got = EXPAR_LL_DISPATCH_RESULT_INIT;
    t->partly = true;
    give_dispatch(t, args, &given);
    mirrored_note(t, "lending what is dispatched");
    expar_status status = expar_ll_dispatch(ll, &given, &got);
    mirrored_note(t, "expar_ll_dispatch");
    if (status == EXPAR_OK || rows_came(status)) fetch_dispatch(t, args, &given);
    if (status != EXPAR_OK) {
        worker_wait(t->worker);
        mirrored_end(t, true);
        return status;
    }
    show_dispatch(t, args, &got);
    if (got.hook) spoil_sent(t, &given.x);
    if (args->hook || args->async_finish) {
        mirrored_park(t, args->hook ? (const void *)got.hook : (const void *)got.event);
    } else {
        status = ll_settle_mirrored(t, got.event);
        got.event = NULL;
    }
    if (status == EXPAR_OK) {
        *result = got;
    } else {
        mirror_output_release(got.output);
        mirror_ll_handle_release(got.handle);
    }
    return status;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Rows in the memory of expar_ll_get_combine_buffer lie at the same place there. */
static expar_tensor give_rows(mirrored *t, const expar_tensor *host)
{
    const buffer *b = t->buffer;
    if (!b->rows || host->data != b->rows || host->device.type != EXPAR_CPU) return kept_give(t, host);
    expar_tensor on = *host;
    on.data = b->rows_on.data;
    on.device = b->rows_on.device;
    size_t bytes = mirrored_span_bytes(host);
    if (bytes) worker_send(t->worker, (cu_address)(uintptr_t)on.data, host->data, bytes);
    return on;
}

expar_status mirror_ll_combine(expar_ll *ll, const expar_ll_combine_args *args, expar_ll_combine_result *result)
{
    buffer *b = buffer_find(ll);
    bool sound = b && args && args->struct_size == sizeof *args && result && result->struct_size == sizeof *result;
    if (!sound) return expar_ll_combine(ll, args, result);
    mirrored *t = mirrored_begin(b);
    expar_ll_combine_args given = *args;
    expar_ll_combine_result got = EXPAR_LL_COMBINE_RESULT_INIT;
    t->partly = true;
    given.x = give_rows(t, &args->x);
    given.topk_idx = mirrored_give(t, &args->topk_idx);
    given.topk_weights = mirrored_give(t, &args->topk_weights);
    given.out_y = mirrored_give(t, &args->out_y);
    given.wait_ns = mirrored_give(t, &args->wait_ns);
    given.stream = t->worker->stream;
    if (!args->hook && !args->async_finish && !mirrored_is_plain()) given.async_finish = 1;
    mirrored_note(t, "lending what is combined");
    expar_status status = expar_ll_combine(ll, &given, &got);
    mirrored_note(t, "expar_ll_combine");
    if (status == EXPAR_OK || rows_came(status)) {
        mirrored_fetch(t, &given.out_y, args->out_y.data);
        mirrored_fetch(t, &given.wait_ns, args->wait_ns.data);
    }
    if (status != EXPAR_OK) {
        worker_wait(t->worker);
        mirrored_end(t, true);
        return status;
    }
    kept_put(t, got.output, (expar_tensor *const[KEPT_PARTS]){unless_own(&args->out_y, &got.y)});
    show(&args->out_y, &got.y);
    if (got.hook && args->x.data != b->rows) spoil_sent(t, &given.x);
    if (args->hook || args->async_finish) {
        mirrored_park(t, args->hook ? (const void *)got.hook : (const void *)got.event);
    } else {
        status = ll_settle_mirrored(t, got.event);
        got.event = NULL;
    }
    if (status == EXPAR_OK)
        *result = got;
    else
        mirror_output_release(got.output);
    return status;
}

/* The pitch of rows is one for all dtypes, in bytes; so is the memory. */
expar_status mirror_ll_get_combine_buffer(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype,
                                          expar_tensor *x)
{
    buffer *b = buffer_find(ll);
    expar_status status = expar_ll_get_combine_buffer(ll, handle, dtype, x);
    if (status != EXPAR_OK || !b) return status;
    if (!b->rows) {
        size_t bytes = (size_t)(x->shape[0] * x->strides[0]) * sizeof(float);
        b->rows = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!b->rows) abort();
        b->rows_on = *x;
    }
    x->data = b->rows;
    x->device = (expar_device){.type = EXPAR_CPU};
    return status;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

expar_status mirror_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream)
{
    buffer *b = buffer_find(ll);
    if (!b || !status) return expar_ll_mask_query(ll, status, stream);
    mirrored *t = mirrored_begin(b);
    const expar_tensor there = mirrored_give(t, status);
    expar_status ended = expar_ll_mask_query(ll, &there, t->worker->stream);
    worker_wait(t->worker);
    mirrored_fetch(t, &there, status->data);
    mirrored_end(t, ended == EXPAR_OK);
    return ended;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

expar_status mirror_ll_get_stats(expar_ll *ll, expar_ll_stats *stats)
{
    const buffer *b = buffer_find(ll);
    if (b) worker_wait(worker_of(b->device));
    return expar_ll_get_stats(ll, stats);
}
