/* SPDX-License-Identifier: Apache-2.0 */
/* The copy roofline, or across nodes the network limit, by several ways. Each way is a contender. Lists of copies and
 * sums are made before the measurement, and a turn runs through them. No rank waits for another one in a turn: slots
 * and places have the same contents in every turn. */
#include "bench/low_latency/limit.h"
#include "bench/frame/network.h"
#include <stdlib.h>

struct ll_limit {
    const struct bench_world *world;
    struct limit_way *ways[LL_COPIES];
    int count;
    struct network_limit *network; /* across nodes, in place of the ways */
};

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static const struct ll_place *place_of_way(const struct limit_way *way)
{
    return way->session->world->device->ll;
}

/* Runs after a turn, as bench_late_note does after a call. */
static bool way_after(void *context, bool check)
{
    struct limit_way *way = context;
    struct bench_moments *at = check ? NULL : bench_late_next(&way->late);
    if (at && !place_of_way(way)->way_moments(way, at)) *at = (struct bench_moments){0};
    return true;
}

int ll_limit_contenders(struct ll_limit *limit, struct contender *contenders)
{
    if (limit->network) return network_limit_contenders(limit->network, contenders);
    for (int i = 0; i < limit->count; i++) {
        struct limit_way *way = limit->ways[i];
        contenders[i] = (struct contender){
            .run = place_of_way(way)->way_run, .after = way_after, .context = way, .late = &way->late};
    }
    return limit->count;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

bool limit_list_make(struct limit_list *list, size_t spare)
{
    list->items = calloc(spare + 1, sizeof *list->items);
    return list->items != NULL;
}

struct limit_copy *limit_list_add(struct limit_list *list, const void *source, void *target, size_t bytes)
{
    struct limit_copy *copy = &list->items[list->count++];
    *copy = (struct limit_copy){.source = source, .target = target, .bytes = bytes};
    return copy;
}

static void sums_free(struct limit_sums *list)
{
    free(list->items);
    free(list->rows);
    free(list->weights);
}

/* ---- ways -------------------------------------------------------------------------------------------------------- */

static bool way_refill(struct limit_way *way)
{
    return way->combine ? limit_combine_refill(way) : limit_dispatch_refill(way);
}

/* Makes a way. All memory is touched at the end, so that no page fault is measured. */
static bool way_make(struct limit_way *way)
{
    const struct bench_world *world = way->session->world;
    const struct ll_place *place = place_of_way(way);
    way->bases = calloc((size_t)world->size, sizeof *way->bases);
    bool good = (way->bases && (way->combine ? limit_combine_memory(way) : limit_dispatch_memory(way))) ||
                bench_complain(world, "out of memory for the copies");
    good = bench_late_open(&way->late, way->session) && good;
    if (!bench_all_true(world, good)) return false;
    way->symmetric_bytes = way->combine ? limit_combine_symmetric_bytes(way) : limit_dispatch_symmetric_bytes(way);
    way->symmetric = place->share(world, way->symmetric_bytes, way->bases);
    if (!bench_all_true(world, way->symmetric != NULL)) return false;
    if (way->combine)
        limit_combine_fill(way);
    else
        limit_dispatch_fill(way);
    good = place->way_open(way) && way_refill(way) && place->way_run(way);
    return bench_all_true(world, good);
}

static void way_free(struct limit_way *way, bool sound)
{
    const struct bench_world *world = way->session->world;
    const struct ll_place *place = place_of_way(way);
    place->way_close(way);
    bench_late_close(&way->late);
    place->unshare(world, way->symmetric, way->symmetric_bytes, sound);
    free(way->bases);
    free(way->messages.items);
    free(way->rows.items);
    sums_free(&way->partial);
    sums_free(&way->sums);
    free(way->sent);
    world->device->free(world, way->headers);
    world->device->free(world, way->coded);
    world->device->free(world, way->sum_rows);
    place->unreserve(world, way->received, way->received_bytes);
    place->unreserve(world, way->scales, way->scales_bytes);
    place->unreserve(world, way->src_info, way->info_bytes);
    free(way);
}

/* ---- all ways ---------------------------------------------------------------------------------------------------- */

static bool add_way(struct ll_limit *limit, const struct limit_way *plan)
{
    struct limit_way *way = calloc(1, sizeof *way);
    if (!bench_all_true(plan->session->world, way != NULL)) {
        free(way);
        return false;
    }
    *way = *plan;
    limit->ways[limit->count++] = way;
    return way_make(way);
}

/* Makes puts of rows only, each with a signal. The other bytes of a message are the library's. */
static struct network_limit *bare_puts(const struct limit_way *plan)
{
    const struct bench_session *session = plan->session;
    const struct bench_world *world = session->world;
    const size_t row_bytes = ll_wire_bytes(session);
    size_t *bytes = calloc((size_t)world->size, sizeof *bytes);
    for (int rank = 0; rank < world->size && bytes; rank++)
        bytes[rank] = row_bytes * (size_t)(plan->combine ? ll_far_rows_back(session, rank, plan->reduced)
                                                         : ll_far_messages(session, rank));
    struct network_limit *limit = NULL;
    if (bench_all_true(world, bytes || bench_complain(world, "out of memory for bare puts")))
        limit = network_limit_create(world, bytes, row_bytes);
    free(bytes);
    return limit;
}

/* Makes the ways of a limit. It leaves out ways that would do the same as another one. It makes none if they do not
   compare with calls of so many workers. */
static struct ll_limit *limit_create(const struct limit_way *plan)
{
    const struct bench_world *world = plan->session->world;
    struct ll_limit *limit = calloc(1, sizeof *limit);
    const int ways = world->nodes > 1 ? 0 : place_of_way(plan)->num_ways(plan->session->workers);
    bool good = bench_all_true(world, limit != NULL);
    if (good) limit->world = world;
    if (good && world->nodes > 1) good = (limit->network = bare_puts(plan)) != NULL;
    for (int i = 0; i < ways && good; i++) {
        struct limit_way way = *plan;
        way.stream_messages = i == LL_LIMIT_STREAMED;
        way.stream_rows = i != LL_LIMIT_MEMCPY;
        if (plan->reduced && i != LL_LIMIT_MEMCPY) continue;
        if (plan->combine && i == LL_LIMIT_ROWS_STREAMED) continue;
        good = add_way(limit, &way);
    }
    if (good) return limit;
    ll_limit_free(limit, false);
    return NULL;
}

struct ll_limit *ll_limit_create(const struct bench_session *session, const struct bench_kind *kind)
{
    return limit_create(&(struct limit_way){.session = session, .combine = kind->combines, .reduced = kind->reduced});
}

bool ll_limit_refill(struct ll_limit *limit)
{
    bool good = true;
    for (int i = 0; i < limit->count && good; i++)
        good = way_refill(limit->ways[i]);
    return good;
}

static bool way_verify(const struct limit_way *way, uint64_t salt)
{
    const struct bench_session *session = way->session;
    const struct ll_layout *layout = session->layout;
    if (way->combine) return ll_verify_combine(session, salt, way->reduced, false, way->sum_rows);
    struct ll_rows seen;
    const struct ll_rows rows = {
        .rows = way->received,
        .scales = way->scales,
        .scale_strides = {ll_format_scale_words(session->format, way->num_scales, layout->rows_per_expert), 1,
                          ll_format_scale_stride(session->format, layout->rows_per_expert)},
        .src_info = way->src_info};
    if (!ll_look(session, &rows, &seen)) return false;
    seen.counts = layout->counts + (ptrdiff_t)session->problem->rank * layout->local_experts;
    bool good = ll_verify_rows(session, salt, &seen);
    seen.counts = NULL;
    ll_unlook(session, &seen);
    return good;
}

bool ll_limit_verify(struct ll_limit *limit, uint64_t salt)
{
    if (limit->network) return network_limit_verify(limit->network);
    for (int i = 0; i < limit->count; i++)
        if (!way_verify(limit->ways[i], salt)) return false;
    return true;
}

void ll_limit_free(struct ll_limit *limit, bool sound)
{
    if (!limit) return;
    for (int i = 0; i < limit->count; i++)
        way_free(limit->ways[i], sound);
    network_limit_free(limit->network, sound);
    /* Freeing memory may wait for all kernels on a GPU. So no kernel that waits for this rank may be running then. */
    if (sound) bench_all_true(limit->world, true);
    free(limit);
}
