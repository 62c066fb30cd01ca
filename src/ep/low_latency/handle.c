/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: where the rows of one dispatch came from, for combines. */
#include "base/dlpack.h"
#include "ep/low_latency/ll.h"

#include <stdlib.h>

static const life_kind handles = {LL_HANDLE_MAGIC, "handle", "retained"};
static life_spent spent = LIFE_SPENT_NONE;

static void ll_handle_end(void *object)
{
    expar_ll_handle *handle = object;
    mem_block_release(handle->routing.block);
    life_keep(&spent, handle);
}

expar_status ll_handle_make(expar_ll *ll, int32_t tokens, int32_t topk, bool weights, expar_ll_handle **out)
{
    const ll_route_map map = ll_route_map_of(&ll->shape);
    expar_ll_handle *handle = life_renew(&spent, sizeof *handle);
    if (!handle) return error_set(EXPAR_ERR_MEMORY, "no memory for a handle");
    expar_status status = ll->base.exec->ops->take(ll->base.exec, NULL, map.total_bytes, &handle->routing.block);
    if (status != EXPAR_OK) {
        free(handle);
        return status;
    }
    uint8_t *data = handle->routing.block->data;
    handle->life = life_begin(LL_HANDLE_MAGIC, ll_handle_end);
    handle->origin = ep_origin_of(&ll->base);
    handle->era = ll->era;
    handle->buffer = ll->base.number;
    handle->ranks = ll->shape.ranks;
    handle->max_tokens = ll->shape.tokens;
    handle->hidden = ll->shape.hidden;
    handle->local_experts = ll->shape.local_experts;
    handle->experts = ll->shape.local_experts * ll->shape.ranks;
    handle->routing.tokens = tokens;
    handle->routing.topk = topk;
    handle->routing.weights = weights;
    handle->routing.range = (int64_t *)(data + map.range);
    handle->routing.src_info = (int32_t *)(data + map.src_info);
    handle->routing.messages = (int32_t *)(data + map.messages);
    handle->routing.idx = (int32_t *)(data + map.idx);
    handle->routing.headers = data + map.headers;
    handle->routing.returns = (int32_t *)(data + map.returns);
    *out = handle;
    return EXPAR_OK;
}

expar_ll_handle *ll_handle_hold(const expar_ll_handle *handle)
{
    expar_ll_handle *held = (expar_ll_handle *)handle;
    life_hold(&held->life);
    return held;
}

static expar_status check_living(const expar_ll_handle *handle)
{
    if (!handle) return error_set(EXPAR_ERR_NULL, "handle is NULL");
    if (life_alive(&handle->life, LL_HANDLE_MAGIC)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "handle is not a living handle of low-latency mode");
}

expar_status ll_handle_check_own(const expar_ll *ll, const expar_ll_handle *handle)
{
    expar_status status = check_living(handle);
    if (status != EXPAR_OK) return status;
    if (handle->origin.group != ll->base.group->number || handle->buffer != ll->base.number)
        return error_set(EXPAR_ERR_HANDLE, "handle was made on another buffer, or by another rank of this one");
    if (!atomic_load_explicit(&handle->filled, memory_order_acquire))
        return error_set(EXPAR_ERR_HANDLE,
                         "handle is of a dispatch that was not received whole; expected its hook, or event, to have "
                         "ended well before");
    return EXPAR_OK;
}

expar_status expar_ll_handle_retain(expar_ll_handle *handle)
{
    static const char name[] = "expar_ll_handle_retain";
    expar_status status = check_living(handle);
    if (status == EXPAR_OK && !life_hold(&handle->life)) status = check_living(handle);
    return call_ended(status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", name));
}

void expar_ll_handle_release(expar_ll_handle *handle)
{
    life_release(&handles, "expar_ll_handle_release", handle);
}

static expar_tensor src_info_tensor(const expar_ll_handle *handle)
{
    return expar_tensor_2d_on(handle->origin.device, handle->routing.src_info, EXPAR_I32, handle->local_experts,
                              (int64_t)handle->ranks * handle->max_tokens);
}

static expar_tensor range_tensor(const expar_ll_handle *handle)
{
    return expar_tensor_2d_on(handle->origin.device, handle->routing.range, EXPAR_I64, handle->local_experts,
                              handle->ranks);
}

expar_status expar_ll_handle_get_info(const expar_ll_handle *handle, expar_ll_handle_info *info)
{
    static const char name[] = "expar_ll_handle_get_info";
    expar_status status = check_living(handle);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "%s", name));
    const expar_ll_handle_info full = {.src_info = src_info_tensor(handle),
                                       .range = range_tensor(handle),
                                       .num_tokens = handle->routing.tokens,
                                       .max_tokens = handle->max_tokens,
                                       .hidden = handle->hidden,
                                       .num_topk = handle->routing.topk,
                                       .num_experts = handle->experts};
    return call_ended(struct_give(name, "info", "EXPAR_LL_HANDLE_INFO_INIT", &full, sizeof full, info));
}

/* Releases an exported tensor: any thread, any time. */
static void handle_let_go(void *context)
{
    expar_ll_handle_release(context);
}

expar_status ll_handle_put_in_list(const char *call, expar_ll_handle *handle, const expar_python_objects *python,
                                   void *list, int32_t first)
{
    expar_status status = dlpack_check_python(call, python, list);
    const expar_tensor tensors[] = {src_info_tensor(handle), range_tensor(handle)};
    for (int32_t i = 0; i < (int32_t)ARRAY_LENGTH(tensors) && status == EXPAR_OK; i++) {
        ll_handle_hold(handle);
        status = dlpack_put_in_list(call, &tensors[i], handle_let_go, handle, python, list, first + i);
    }
    return status;
}

expar_status expar_python_put_ll_handle(expar_ll_handle *handle, const expar_python_objects *python, void *list)
{
    static const char name[] = "expar_python_put_ll_handle";
    expar_status status = check_living(handle);
    if (status != EXPAR_OK) return call_ended(error_prefix(status, "%s", name));
    return call_ended(ll_handle_put_in_list(name, handle, python, list, 0));
}
