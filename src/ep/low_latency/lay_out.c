/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a buffer that was made without one: each rank sets it by itself. All ranks choose the same K, because it
   follows from the reserve and the rest of the shape alone, whichever call they make first. */
#include "ep/low_latency/ll.h"

static const char laying_out[] = "expar_ll_set_shape";

static expar_status check_reserve(const expar_ll *ll)
{
    if (ll->reserve.bytes == 0)
        return error_set(EXPAR_ERR_STATE,
                         "config.reserve_bytes was 0; expected a buffer that was made without a shape");
    if (ll->shape.tokens > 0)
        return error_set(
            EXPAR_ERR_STATE,
            "the buffer has its shape, with max_tokens %d, hidden %d, max_topk %d, num_experts %d; expected "
            "one without",
            ll->shape.tokens, ll->shape.hidden, ll->shape.topk, ll->shape.local_experts * ll->shape.ranks);
    return EXPAR_OK;
}

/* The caller's, as a config of this buffer. */
static expar_status read_shape(const expar_ll *ll, const expar_ll_config *config, ll_shape *shape)
{
    expar_ll_config given, full;
    expar_status status = ep_copy_struct("config", &given, sizeof given, config);
    if (status != EXPAR_OK) return status;
    const expar_ll_config ours = {.struct_size = sizeof ours,
                                  .max_tokens = given.max_tokens,
                                  .hidden = given.hidden,
                                  .max_topk = given.max_topk,
                                  .num_experts = given.num_experts,
                                  .max_row_bytes = given.max_row_bytes,
                                  .sums = given.sums,
                                  .device = ll->base.device,
                                  .masking = 1,
                                  .unmapped = ll->shape.unmapped};
    return ll_shape_make(&ours, ll->shape.ranks, &full, shape);
}

static bool topk_fits(const expar_ll *ll, const ll_shape *shape)
{
    executor *exec = ll->base.exec;
    if (!ll_reserved_holds(&ll->reserve, shape)) return false;
    return !exec->ll->fits || exec->ll->fits(exec, shape);
}

/* Finds the largest K that fits, which is at least the caller's. A device for which that is too large returns an
   error. */
static expar_status choose_topk(const expar_ll *ll, ll_shape *shape)
{
    const ll_reserved *reserve = &ll->reserve;
    const int32_t experts = shape->local_experts * shape->ranks, least = shape->topk;
    const int32_t most = experts < LL_MOST_TOPK ? experts : LL_MOST_TOPK;
    shape->topk = most < least ? least : most;
    while (shape->topk > least && !topk_fits(ll, shape))
        shape->topk--;
    if (ll_reserved_holds(reserve, shape)) return EXPAR_OK;
    return error_set(EXPAR_ERR_LIMIT,
                     "the shape takes %llu bytes with max_topk %d; expected at most the %llu of the reserve",
                     (unsigned long long)ll_space_of(shape).total_bytes, least, (unsigned long long)reserve->bytes);
}

expar_status expar_ll_set_shape(expar_ll *ll, const expar_ll_config *config, int32_t *max_topk)
{
    ll_shape made;
    expar_status status = ll_take(ll, laying_out, false);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    status = check_reserve(ll);
    if (status == EXPAR_OK) status = read_shape(ll, config, &made);
    if (status == EXPAR_OK) status = choose_topk(ll, &made);
    if (status == EXPAR_OK) status = ll->base.exec->ll->lay_out(ll->base.exec, &made);
    if (status == EXPAR_OK) {
        ll->shape = made;
        if (max_topk) *max_topk = made.topk;
    } else {
        error_prefix(status, "%s", laying_out);
    }
    return ll_ended(ll, ep_buffer_give(&ll->base, status));
}
