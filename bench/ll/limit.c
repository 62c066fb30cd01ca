/* SPDX-License-Identifier: Apache-2.0 */
/* The copy limit: by several ways, each a contender. Lists of copies and sums are made before; a turn goes through
 * them. Nobody waits for anybody in it: slots and places have the same contents from turn to turn. */
#include "bench/ll/limit.h"
#include "bench/common/stream.h"
#include <stdlib.h>
#include <string.h>

struct ll_limit {
    struct limit_way *ways[LL_MAX_COPIES];
    int count;
};

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

static void copy_one(const struct limit_way *way, const struct limit_copy *copy, bool stream)
{
    if (stream && !copy->small)
        stream_copy(copy->target, copy->source, copy->bytes);
    else
        memcpy(copy->target, copy->source, copy->bytes);
    for (int w = 0; copy->scales && w < way->num_scales; w++)
        memcpy(copy->scales + w * way->session->layout->rows_per_expert, copy->source + copy->bytes + (size_t)w * 4, 4);
    if (copy->info) *copy->info = copy->token;
}

static void copy_list(const struct limit_way *way, const struct limit_list *list, bool stream)
{
    for (size_t i = 0; i < list->count; i++)
        copy_one(way, &list->items[i], stream);
    if (stream) stream_end();
}

static void add_list(const struct limit_way *way, const struct limit_sums *list)
{
    const struct problem *problem = way->session->problem;
    for (size_t i = 0; i < list->count; i++)
        ll_sum_rows(problem->dtype, list->items[i].rows, list->items[i].weights, list->items[i].count, problem->hidden,
                    list->items[i].out);
}

static bool way_run(void *context)
{
    const struct limit_way *way = context;
    copy_list(way, &way->messages, way->stream_messages);
    copy_list(way, &way->rows, way->stream_rows);
    add_list(way, &way->partial);
    add_list(way, &way->sums);
    return true;
}

int ll_limit_contenders(struct ll_limit *limit, struct contender *contenders)
{
    for (int i = 0; i < limit->count; i++)
        contenders[i] = (struct contender){.run = way_run, .context = limit->ways[i]};
    return limit->count;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

bool limit_list_make(struct limit_list *list, size_t room)
{
    list->items = calloc(room + 1, sizeof *list->items);
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

static void way_refill(struct limit_way *way)
{
    if (way->combine)
        limit_combine_refill(way);
    else
        limit_dispatch_refill(way);
}

/* All memory is touched at the end, so that no page fault is measured. */
static bool way_make(struct limit_way *way)
{
    const struct bench_world *world = way->session->world;
    bool good = (way->combine ? limit_combine_memory(way) : limit_dispatch_memory(way)) ||
                bench_complain(world, "out of memory for the copies");
    if (!bench_all_true(world, good)) return false;
    const size_t bytes = way->combine ? limit_combine_symmetric_bytes(way) : limit_dispatch_symmetric_bytes(way);
    good = bench_good(world, expar_malloc(world->group, bytes, &way->symmetric));
    if (!bench_all_true(world, good)) return false;
    good = way->combine ? limit_combine_fill(way) : limit_dispatch_fill(way);
    if (!good) bench_complain(world, "no pointer to a rank's memory for the copies");
    if (!bench_all_true(world, good)) return false;
    way_refill(way);
    return way_run(way);
}

static void way_free(struct limit_way *way, bool sound)
{
    const struct bench_world *world = way->session->world;
    if (sound) bench_good(world, expar_free(world->group, way->symmetric));
    free(way->messages.items);
    free(way->rows.items);
    sums_free(&way->partial);
    sums_free(&way->sums);
    free(way->sent);
    free(way->headers);
    free(way->coded);
    world->device->free(world, way->sum_rows);
    ll_unreserve(way->received, way->received_bytes);
    ll_unreserve(way->scales, way->scales_bytes);
    ll_unreserve(way->src_info, way->info_bytes);
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

/* Ways that would do the same as another one are left out; all where calls have more threads than a way. */
static struct ll_limit *limit_create(const struct limit_way *plan)
{
    struct ll_limit *limit = calloc(1, sizeof *limit);
    const int ways = plan->session->threads == 1 ? LL_MAX_COPIES : 0;
    bool good = bench_all_true(plan->session->world, limit != NULL);
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

struct ll_limit *ll_limit_dispatch(const struct ll_session *session)
{
    return limit_create(&(struct limit_way){.session = session});
}

struct ll_limit *ll_limit_combine(const struct ll_session *session, bool reduced)
{
    return limit_create(&(struct limit_way){.session = session, .combine = true, .reduced = reduced});
}

void ll_limit_refill(struct ll_limit *limit)
{
    for (int i = 0; i < limit->count; i++)
        way_refill(limit->ways[i]);
}

static bool way_verify(const struct limit_way *way, uint64_t salt)
{
    const struct ll_session *session = way->session;
    const struct ll_layout *layout = session->layout;
    if (way->combine) return ll_verify_combine(session, salt, way->reduced, false, way->sum_rows);
    const struct ll_rows rows = {
        .rows = way->received,
        .scales = way->scales,
        .scale_strides = {way->num_scales * layout->rows_per_expert, 1, layout->rows_per_expert},
        .counts = layout->counts + (ptrdiff_t)session->problem->rank * layout->local_experts,
        .src_info = way->src_info};
    return ll_verify_rows(session, salt, &rows);
}

bool ll_limit_verify(struct ll_limit *limit, uint64_t salt)
{
    for (int i = 0; i < limit->count; i++)
        if (!way_verify(limit->ways[i], salt)) return false;
    return true;
}

void ll_limit_free(struct ll_limit *limit, bool sound)
{
    if (!limit) return;
    for (int i = 0; i < limit->count; i++)
        way_free(limit->ways[i], sound);
    free(limit);
}
