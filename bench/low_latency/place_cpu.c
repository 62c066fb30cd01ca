/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU: shared memory is the symmetric heap's, other memory the process's own, copies are loads and stores. */
#include "bench/frame/stream.h"
#include "bench/low_latency/limit.h"
#include <string.h>
#include <sys/mman.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *cpu_share(const struct bench_world *world, size_t bytes, uint8_t **bases)
{
    void *data = NULL;
    if (!bench_all_true(world, bench_good(world, expar_calloc(world->group, 1, bytes, &data)))) return NULL;
    for (int r = 0; r < world->size; r++) {
        bases[r] = expar_ptr(world->group, data, r);
        if (bases[r]) continue;
        bench_complain(world, "no pointer to a rank's memory for the copies");
        return NULL;
    }
    return data;
}

static void cpu_unshare(const struct bench_world *world, void *data, size_t bytes, bool sound)
{
    (void)bytes;
    if (data && sound) bench_good(world, expar_free(world->group, data));
}

void *ll_reserve(size_t bytes)
{
    void *data = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return NULL;
    return data;
}

void ll_unreserve(void *data, size_t bytes)
{
    if (data) munmap(data, bytes + 1);
}

static void *cpu_reserve(const struct bench_world *world, size_t bytes)
{
    (void)world;
    return ll_reserve(bytes);
}

static void cpu_unreserve(const struct bench_world *world, void *data, size_t bytes)
{
    (void)world;
    ll_unreserve(data, bytes);
}

static int one_thread(const struct bench_world *world)
{
    (void)world;
    return 1;
}

/* Returns the number of ways. A way uses one thread. */
static int ways_of(int threads)
{
    return threads == 1 ? LL_COPIES : 0;
}

/* ---- a turn of the copy roofline --------------------------------------------------------------------------------- */

static void copy_one(const struct limit_way *way, const struct limit_copy *copy, bool stream)
{
    if (stream && !copy->small)
        bench_stream_copy(copy->target, copy->source, copy->bytes);
    else
        memcpy(copy->target, copy->source, copy->bytes);
    const int64_t stride = ll_format_scale_stride(way->session->format, way->session->layout->rows_per_expert);
    for (int w = 0; copy->scales && w < way->num_scales; w++)
        memcpy(copy->scales + w * stride, copy->source + copy->bytes + (size_t)w * 4, 4);
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

static bool cpu_run(void *context)
{
    const struct limit_way *way = context;
    copy_list(way, &way->messages, way->stream_messages);
    copy_list(way, &way->rows, way->stream_rows);
    add_list(way, &way->partial);
    add_list(way, &way->sums);
    return true;
}

static bool cpu_open(struct limit_way *way)
{
    (void)way;
    return true;
}

static void cpu_close(struct limit_way *way)
{
    (void)way;
}

static bool cpu_copy(struct limit_way *way, size_t bytes)
{
    for (size_t i = 0; i < way->messages.count; i++)
        memcpy(way->messages.items[i].target, way->messages.items[i].source, bytes);
    return true;
}

const struct ll_place ll_cpu = {
    .share = cpu_share,
    .unshare = cpu_unshare,
    .reserve = cpu_reserve,
    .unreserve = cpu_unreserve,
    .num_ways = ways_of,
    .way_open = cpu_open,
    .way_run = cpu_run,
    .way_close = cpu_close,
    .way_copy = cpu_copy,
    .trip_create = ll_trip_create,
    .trip_free = ll_trip_free,
    .trip_contenders = ll_trip_contenders,
    .trip_times = ll_trip_times,
};

const struct bench_site ll_cpu_site = {.default_workers = one_thread, .open = ll_site_open, .close = ll_site_close};
const struct bench_site ll_nodes_site = {
    .default_workers = one_thread, .open = ll_site_open, .close = ll_site_close, .traffic = ll_traffic};
