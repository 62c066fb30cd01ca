/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch across nodes.
 *
 * Sender: a token that has targets on another node goes there once, as a record for the rank of this rail. Records of a
 * channel and node go in token order. Forwarder: reads each record once. It writes rows to their final places at the
 * ranks in its mask, or puts them into the rings towards those, in the name of the token's source. A lane does both for
 * its channels, nodes in turn, and never waits for one of them alone. */
#include "exec/cpu/nodes/rails.h"

#include <string.h>

void rail_dispatch_begin(const cpu_dispatch_run *run)
{
    const ep_dispatch_step *step = run->step;
    const ep_rail_slot slot =
        ep_rail_slot_of(run->routing->rails->kept_words, step->row_bytes, step->form.scales, step->form.topk);
    rail_begin(run->self, &slot, run->routing, run->joined, false);
}

/* Returns the records of the ring's channels, by a local rank's prefix. */
static uint32_t records_of(const cpu_dispatch_run *run, const int32_t *prefix, int32_t channel)
{
    return (uint32_t)ep_rows_of_ring(prefix, run->routing->channels, run->joined, channel);
}

/* ---- sender ------------------------------------------------------------------------------------------------------ */

static void fill_mask(const cpu_rails *rails, uint8_t *slot, const ep_target *target, const ep_target *end)
{
    uint64_t *mask = (uint64_t *)slot;
    for (; target < end; target++) {
        const int32_t local = ep_local_of(&rails->shape, target->rank);
        mask[local / 64] |= (uint64_t)1 << (local % 64);
    }
}

/* Fills in the words that the forwarder keeps: the mask, and the ranks of the token's slots as this rank's handle has
   them. */
static void fill_kept(const cpu_dispatch_run *run, uint8_t *slot, int64_t token, const ep_target *target,
                      const ep_target *end)
{
    const cpu_rails *rails = run->self->rails;
    const ep_routing *routing = run->routing;
    const size_t topk = (size_t)routing->topk, after_mask = 8 * (size_t)ep_mask_words(rails->shape.each);
    memset(slot, 0, 8 * (size_t)routing->rails->kept_words);
    fill_mask(rails, slot, target, end);
    if (routing->keeps_slots)
        memcpy(slot + after_mask, routing->owners + (size_t)token * topk, topk * sizeof *routing->owners);
}

/* Copies all parts as the caller gave them. */
static void fill_record(const cpu_dispatch_run *run, uint8_t *slot, int64_t token, int32_t lane)
{
    const ep_dispatch_step *step = run->step;
    const ep_rail_slot *at = &run->self->rails->slot;
    const ep_route_view *route = &step->route;
    const size_t topk = (size_t)run->routing->topk;
    const int32_t number = (int32_t)token;
    memcpy(slot + at->number, &number, sizeof number);
    const uint8_t *x = (const uint8_t *)step->x + token * step->x_pitch_bytes;
    if (run->carrier)
        run->carrier->ops->copy(run->carrier, lane, slot + at->x, x, step->row_bytes);
    else
        cpu_copy_row(slot + at->x, x, (size_t)step->row_bytes, false);
    const uint32_t *scales = step->scales ? step->scales + token * step->scales_row_pitch : NULL;
    for (int32_t i = 0; i < step->form.scales; i++)
        ((uint32_t *)(slot + at->scales))[i] = scales[i * step->scales_column_pitch];
    if (step->form.idx_dtype)
        memcpy(slot + at->idx, (const uint8_t *)route->idx + token * route->idx_pitch * route->idx_bytes,
               topk * (size_t)route->idx_bytes);
    if (step->form.weights)
        memcpy(slot + at->weights, route->weights + token * route->weights_pitch, topk * sizeof(float));
}

/* Sends the channel's records to the node until there is no place; returns true if any went. */
static bool send_records(const cpu_dispatch_run *run, int32_t channel, int32_t node, cpu_lane_turn *turn)
{
    cpu_executor *self = run->self;
    const ep_routing *routing = run->routing;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint32_t before = ring->put;
    const bool went_on = rail_slot_go_on(self, run->step->epoch, channel, node, &turn->status);
    for (; ring->put < ring->goes && turn->status == EXPAR_OK; ring->token++) {
        const ep_target *end, *target = rail_targets(routing, ring->token, node, &end);
        if (!target) continue;
        uint8_t *slot = rail_slot_free(self, run->step->epoch, channel, node, &turn->status);
        if (!slot) break;
        fill_kept(run, slot, ring->token, target, end);
        fill_record(run, slot, ring->token, cpu_worker_of(self, channel));
        turn->status = rail_slot_push(self, run->step->epoch, channel, node);
    }
    turn->open += rail_slots_left(ring);
    return went_on || ring->put != before;
}

/* ---- forwarder --------------------------------------------------------------------------------------------------- */

/* Keeps the record's mask and slots, or checks that they are the known ones. Impossible masks are the peer's fault.
   Slots may have any value, since they are only compared. */
static expar_status learn_record(const cpu_dispatch_run *run, int32_t channel, int32_t node, const uint8_t *slot)
{
    const cpu_rails *rails = run->self->rails;
    const int32_t words = ep_mask_words(rails->shape.each), tail = rails->shape.each % 64;
    const int32_t all = run->routing->rails->kept_words;
    const int64_t record = (int64_t)ep_rows_before_ring(rail_records_in(run->routing, node), run->joined, channel) +
                           rail_ring_of(run->self, channel, node)->taken;
    const uint64_t *mask = (const uint64_t *)slot;
    _Atomic uint64_t *known = rail_mask_at(run->routing->rails, node, record);
    const bool checks = rail_masks_are_known(run->routing);
    bool sound = !tail || mask[words - 1] >> tail == 0;
    for (int32_t i = 0; i < all && sound; i++) {
        if (checks)
            sound = atomic_load_explicit(&known[i], memory_order_relaxed) == mask[i];
        else
            atomic_store_explicit(&known[i], mask[i], memory_order_relaxed);
    }
    if (sound) return EXPAR_OK;
    return error_set(EXPAR_ERR_PEER, "rank %d has sent a record for ranks that it cannot be for (%#llx)",
                     ep_rail_of(&rails->shape, node, run->self->sym->rank), (unsigned long long)mask[words - 1]);
}

static cpu_token token_in(const cpu_rails *rails, const uint8_t *slot, const ep_route_view *route, int32_t lane)
{
    cpu_token token = {.x = slot + rails->slot.x,
                       .scales = (const uint32_t *)(slot + rails->slot.scales),
                       .scales_pitch = 1,
                       .route = route,
                       .lane = lane};
    memcpy(&token.number, slot + rails->slot.number, sizeof token.number);
    return token;
}

/* Sends the row to a local rank. Returns false if there is no place for it now. */
static bool forward_row(const cpu_dispatch_run *run, const cpu_token *token, int32_t channel, int32_t node,
                        int32_t local, expar_status *status)
{
    cpu_executor *self = run->self;
    const int32_t rank = self->near_first + local, *prefix = rail_rows_in(run->routing, node, local);
    const int64_t first = ep_rows_before_ring(prefix, run->joined, channel);
    int32_t *next = &rail_next_of(self, channel, node)[local];
    if (*next - first >= (int64_t)records_of(run, prefix, channel)) {
        *status = error_set(EXPAR_ERR_PEER, "rank %d has sent more rows for rank %d than it has told of",
                            ep_rail_of(&self->rails->shape, node, self->sym->rank), rank);
        return false;
    }
    if (cpu_dispatch_advert(run, rank)->mode == EP_MODE_DIRECT)
        cpu_token_put(run, token, rank, (int64_t)rail_first_row(run->routing, node, local) + *next);
    else if (!cpu_token_queue(run, token, channel, rank, ep_rail_of(&self->rails->shape, node, rank)))
        return false;
    (*next)++;
    return true;
}

/* Sends all of the record's rows that have not gone. Returns false if not all could go. */
static bool forward_record(const cpu_dispatch_run *run, int32_t channel, int32_t node, const uint8_t *slot,
                           expar_status *status)
{
    const cpu_rails *rails = run->self->rails;
    const uint64_t *mask = (const uint64_t *)slot;
    const ep_route_view route = {.idx = slot + rails->slot.idx,
                                 .idx_bytes = run->step->route.idx_bytes,
                                 .weights = (const float *)(slot + rails->slot.weights)};
    const cpu_token token = token_in(rails, slot, &route, cpu_worker_of(run->self, channel));
    rail_ring *ring = rail_ring_of(run->self, channel, node);
    if (ring->target == 0) *status = learn_record(run, channel, node, slot);
    for (; ring->target < rails->shape.each && *status == EXPAR_OK; ring->target++)
        if (mask[ring->target / 64] >> (ring->target % 64) & 1 &&
            !forward_row(run, &token, channel, node, ring->target, status))
            return false;
    return *status == EXPAR_OK;
}

/* All records have gone. Checks that each local rank has got as many rows of the channel as it was told, since it
   awaits no more. */
static expar_status check_forwarded(const cpu_dispatch_run *run, int32_t channel, int32_t node)
{
    const cpu_executor *self = run->self;
    for (int32_t l = 0; l < self->rails->shape.each; l++) {
        const int32_t *prefix = rail_rows_in(run->routing, node, l);
        const int64_t first = ep_rows_before_ring(prefix, run->joined, channel);
        const int64_t went = rail_next_of(self, channel, node)[l] - first, told = records_of(run, prefix, channel);
        if (went != told)
            return error_set(EXPAR_ERR_PEER, "rank %d has sent %lld rows for rank %d where it has told of %lld",
                             ep_rail_of(&self->rails->shape, node, self->sym->rank), (long long)went,
                             self->near_first + l, (long long)told);
    }
    return EXPAR_OK;
}

/* Forwards the records of the channel that have come from the node; returns true if any went. */
static bool forward_records(const cpu_dispatch_run *run, int32_t channel, int32_t node, cpu_lane_turn *turn)
{
    cpu_executor *self = run->self;
    rail_ring *ring = rail_ring_of(self, channel, node);
    const uint32_t before = ring->taken;
    while (turn->status == EXPAR_OK) {
        const uint8_t *slot = rail_slot_front(self, run->step->epoch, channel, node, &turn->status);
        if (!slot || !forward_record(run, channel, node, slot, &turn->status)) break;
        ring->target = 0;
        turn->status = rail_slot_pop(self, run->step->epoch, channel, node);
        if (ring->taken == ring->comes && turn->status == EXPAR_OK) turn->status = check_forwarded(run, channel, node);
    }
    turn->open += (ring->comes - ring->taken) + rail_places_held(ring);
    return ring->taken != before;
}

bool rail_dispatch_turn(const cpu_dispatch_run *run, int32_t channel, cpu_lane_turn *turn)
{
    const cpu_rails *rails = run->self->rails;
    bool moved = false;
    for (int32_t i = 0; i < rails->shape.nodes - 1 && turn->status == EXPAR_OK; i++) {
        const int32_t node = rail_node_in_turn(rails, i);
        moved |= send_records(run, channel, node, turn);
        if (turn->status == EXPAR_OK) moved |= forward_records(run, channel, node, turn);
    }
    return moved;
}
