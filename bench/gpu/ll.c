/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency mode on GPUs. The GPUs of all ranks reach its memory. One kernel of as many SMs as the calls have makes
 * turns of the copy roofline. Others make round trips of a flag between two GPUs, and an empty launch. */
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/forms.h"
#include "bench/low_latency/limit.h"
#include "ep/low_latency/tools.h"
#include "tool_kernels.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The library's default (docs/internals/low-latency.md). */
#define DEFAULT_SMS 128
#define TRIPS       16 /* in a turn */

expar_status gpu_ll_load(struct gpu_rank *rank)
{
    expar_status status = tool_kernel_load(rank->device, "bench/gpu/kernels/ll_limit.cu", &rank->ll_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->ll_program, "bench_ll_turn", 0, &rank->ll_turn);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->ll_program, "bench_ll_trip", 0, &rank->ll_trip);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->ll_program, "bench_ll_nothing", 0, &rank->ll_nothing);
    return status;
}

static int default_sms_of_call(const struct bench_world *world)
{
    const struct gpu_rank *rank = world->gpu;
    const int gpus = rank->crew->options->num_gpus, sharers = (world->size + gpus - 1) / gpus;
    const int most = rank->device->num_sms / sharers;
    return most < DEFAULT_SMS ? most : DEFAULT_SMS;
}

/* Returns the number of ways: one, by a kernel of as many SMs. */
static int one_way(int sms)
{
    (void)sms;
    return 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static expar_status share_bytes(const struct gpu_rank *rank, size_t bytes, uint64_t *rounded)
{
    uint64_t unit = 0;
    expar_status status = mem_chunk_granularity(rank->device, &unit);
    if (status == EXPAR_OK) *rounded = ((uint64_t)bytes + unit) / unit * unit;
    return status;
}

/* Allocates memory that is mapped for all GPUs. Removing the mapping frees it. */
static expar_status map_for_all(const struct gpu_rank *rank, uint64_t bytes, cu_address *at)
{
    const int32_t count = rank->crew->options->num_gpus;
    int32_t *devices = calloc((size_t)count, sizeof *devices);
    mem_chunk chunk = {0};
    expar_status status = devices ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < count && devices; i++)
        devices[i] = i;
    if (status == EXPAR_OK) status = mem_chunk_create(rank->device, bytes, &chunk);
    if (status == EXPAR_OK) status = mem_range_reserve(bytes, at);
    if (status == EXPAR_OK) {
        status = mem_chunk_map(&chunk, *at, devices, count);
        if (status != EXPAR_OK) mem_range_free(*at, bytes);
    }
    mem_chunk_release(&chunk);
    free(devices);
    return status;
}

static void *gpu_share(const struct bench_world *world, size_t bytes, uint8_t **bases)
{
    const struct gpu_rank *rank = world->gpu;
    uint64_t rounded = 0;
    cu_address at = 0;
    expar_status status = share_bytes(rank, bytes, &rounded);
    if (status == EXPAR_OK) status = map_for_all(rank, rounded, &at);
    if (!bench_all_true(world, bench_good(world, status))) return NULL;
    bool good = bench_good(world, CUDA_CALL(MemsetD8Async, at, 0, rounded, world->stream)) &&
                bench_good(world, CUDA_CALL(StreamSynchronize, world->stream));
    uint8_t *own = (uint8_t *)(uintptr_t)at;
    if (!bench_all_true(world, good) ||
        !bench_good(world, expar_group_allgather(world->group, &own, bases, sizeof own)))
        return NULL;
    return own;
}

/* Frees shared memory. After the ranks have met, no kernel of any rank uses it. */
static void gpu_unshare(const struct bench_world *world, void *data, size_t bytes, bool sound)
{
    uint64_t rounded = 0;
    if (!data || !sound) return;
    bool good = bench_good(world, CUDA_CALL(StreamSynchronize, world->stream));
    if (!bench_all_true(world, good) || !bench_good(world, share_bytes(world->gpu, bytes, &rounded))) return;
    mem_chunk_unmap((cu_address)(uintptr_t)data, rounded);
    mem_range_free((cu_address)(uintptr_t)data, rounded);
}

static void *gpu_reserve(const struct bench_world *world, size_t bytes)
{
    return world->device->alloc(world, bytes);
}

static void gpu_unreserve(const struct bench_world *world, void *data, size_t bytes)
{
    (void)bytes;
    world->device->free(world, data);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Arrays on the GPU, as the host's lists have them. */
#define MOST_ARRAYS  8
#define TURN_THREADS 1024 /* of a block */
struct gpu_turn {
    const struct gpu_rank *rank;
    ll_turn turn;
    uint32_t blocks;
    struct kernel_stamps stamps;
    void *arrays[MOST_ARRAYS];
    int num_arrays;
};

static void *upload(struct gpu_turn *self, const void *from, size_t count, size_t item_bytes)
{
    const struct bench_world *world = &self->rank->world;
    void *array = world->device->alloc(world, count * item_bytes);
    if (!array) return NULL;
    self->arrays[self->num_arrays++] = array;
    void *draft = world->device->draft(world, array, count * item_bytes);
    if (!draft) return NULL;
    memcpy(draft, from, count * item_bytes);
    return world->device->commit(world, array, draft, count * item_bytes) ? array : NULL;
}

static bool put_copies(struct gpu_turn *self, const struct limit_list *list, const ll_copy **items, int64_t *count,
                       int64_t *most_bytes)
{
    ll_copy *copies = calloc(list->count + 1, sizeof *copies);
    for (size_t i = 0; copies && i < list->count; i++) {
        const struct limit_copy *from = &list->items[i];
        copies[i] = (ll_copy){.source = from->source,
                              .target = from->target,
                              .bytes = (int64_t)from->bytes,
                              .scales = from->scales,
                              .info = from->info,
                              .token = from->token};
        if (copies[i].bytes > *most_bytes) *most_bytes = copies[i].bytes;
    }
    *count = (int64_t)list->count;
    *items = copies ? upload(self, copies, list->count, sizeof *copies) : NULL;
    free(copies);
    return *items != NULL;
}

static bool put_sums(struct gpu_turn *self, const struct limit_sums *list, ll_sums *out)
{
    ll_sum *sums = calloc(list->count + 1, sizeof *sums);
    const bool weighted = list->count > 0 && list->items[0].weights;
    for (size_t i = 0; sums && i < list->count; i++)
        sums[i] = (ll_sum){
            .first = list->items[i].rows - list->rows, .count = list->items[i].count, .out = list->items[i].out};
    out->count = (int64_t)list->count;
    out->items = sums ? upload(self, sums, list->count, sizeof *sums) : NULL;
    out->rows = upload(self, list->rows, list->num_rows, sizeof *list->rows);
    out->weights = weighted ? upload(self, list->weights, list->num_rows, sizeof *list->weights) : NULL;
    free(sums);
    return out->items && out->rows && (!weighted || out->weights);
}

static bool open_stamps(struct gpu_turn *self, const struct bench_session *session)
{
    const size_t warps = (size_t)self->blocks * (TURN_THREADS / 32);
    if (session->options->unstamped) return true;
    if (!kernel_stamps_open(&self->stamps, session->world, LL_GPU_MOMENTS, warps)) return false;
    self->turn.stamps = self->stamps.words;
    return true;
}

static bool gpu_way_open(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    struct gpu_turn *self = calloc(1, sizeof *self);
    if (!self) return bench_complain(session->world, "out of memory");
    way->kept = self;
    self->rank = session->world->gpu;
    self->blocks = (uint32_t)session->workers;
    ll_turn *turn = &self->turn;
    turn->scale_stride = ll_format_scale_stride(session->format, session->layout->rows_per_expert);
    turn->num_scales = way->num_scales;
    turn->row_bytes = (int64_t)session->problem->row_bytes;
    turn->dtype = (int32_t)session->problem->dtype;
    return (open_stamps(self, session) &&
            put_copies(self, &way->messages, &turn->messages, &turn->num_messages, &turn->most_message_bytes) &&
            put_copies(self, &way->rows, &turn->rows, &turn->num_rows, &turn->most_row_bytes) &&
            put_sums(self, &way->partial, &turn->partial) && put_sums(self, &way->sums, &turn->sums)) ||
           bench_complain(session->world, "no memory for the lists of copies");
}

static void gpu_way_close(struct limit_way *way)
{
    struct gpu_turn *self = way->kept;
    for (int i = 0; self && i < self->num_arrays; i++)
        self->rank->world.device->free(&self->rank->world, self->arrays[i]);
    if (self) kernel_stamps_close(&self->stamps);
    free(self);
    way->kept = NULL;
}

static bool launch_turn(const struct gpu_turn *self, const ll_turn *turn)
{
    void *parameters[] = {(void *)(uintptr_t)turn};
    const cuda_launch launch = {
        .function = self->rank->ll_turn, .stream = self->rank->stream, .blocks = self->blocks, .threads = TURN_THREADS};
    return bench_good(&self->rank->world, cuda_launch_kernel(&launch, parameters));
}

static bool gpu_way_run(void *context)
{
    const struct limit_way *way = context;
    const struct gpu_turn *self = way->kept;
    return launch_turn(self, &self->turn);
}

static bool gpu_way_copy(struct limit_way *way, size_t bytes)
{
    const struct gpu_turn *self = way->kept;
    const ll_turn turn = {.messages = self->turn.messages,
                          .num_messages = self->turn.num_messages,
                          .most_message_bytes = (int64_t)bytes,
                          .all_bytes = (int64_t)bytes};
    return launch_turn(self, &turn) && bench_good(&self->rank->world, CUDA_CALL(StreamSynchronize, self->rank->stream));
}

/* ---- round trips, launches --------------------------------------------------------------------------------------- */

struct gpu_trip {
    const struct gpu_rank *rank;
    uint64_t *words; /* shared */
    uint8_t *bases[2];
    uint64_t trips;
};

static void *gpu_trip_create(const struct bench_world *world)
{
    struct gpu_trip *trip = calloc(1, sizeof *trip);
    uint8_t **bases = calloc((size_t)world->size, sizeof *bases);
    if (!bench_all_true(world, trip && bases)) {
        free(trip);
        free(bases);
        return NULL;
    }
    trip->rank = world->gpu;
    trip->words = gpu_share(world, sizeof *trip->words, bases);
    for (int i = 0; i < 2; i++)
        trip->bases[i] = bases[i];
    free(bases);
    if (bench_all_true(world, trip->words != NULL)) return trip;
    free(trip);
    return NULL;
}

static void gpu_trip_free(void *self, bool sound)
{
    struct gpu_trip *trip = self;
    if (trip) gpu_unshare(&trip->rank->world, trip->words, sizeof *trip->words, sound);
    free(trip);
}

static bool gpu_trip_run(void *context)
{
    struct gpu_trip *trip = context;
    const struct gpu_rank *rank = trip->rank;
    if (rank->world.rank > 1) return true;
    ll_trip_call call = {.own = trip->words,
                         .peers = (uint64_t *)(void *)trip->bases[1 - rank->world.rank],
                         .first = trip->trips + 1,
                         .timeout_ns = GPU_TURN_TIMEOUT_NS,
                         .expired = gpu_expired(rank),
                         .trips = TRIPS,
                         .rank = rank->world.rank};
    void *parameters[] = {&call};
    const cuda_launch launch = {.function = rank->ll_trip, .stream = rank->stream, .blocks = 1, .threads = 32};
    trip->trips += TRIPS;
    return bench_good(&rank->world, cuda_launch_kernel(&launch, parameters));
}

static int gpu_trip_contenders(void *trip, struct contender *contenders)
{
    const struct gpu_trip *self = trip;
    contenders[0] = (struct contender){.run = gpu_trip_run, .context = trip, .untimed = self->rank->world.rank != 0};
    return 1;
}

/* Computes the time of a round trip. A turn's time includes one launch. */
static void gpu_trip_times(const struct contender *contenders, struct bench_result *result)
{
    result->has_raw_trip = true;
    result->raw_trip_us = fmax(contenders[0].times.median_us - result->launch_us, 0) / TRIPS;
}

static bool launch_nothing(void *context)
{
    const struct bench_world *world = context;
    const struct gpu_rank *rank = world->gpu;
    const cuda_launch launch = {.function = rank->ll_nothing, .stream = rank->stream, .blocks = 1, .threads = 32};
    ll_nothing call = {{0}};
    void *parameters[] = {&call};
    return bench_good(world, cuda_launch_kernel(&launch, parameters));
}

/* ---- clocks read in the kernels ---------------------------------------------------------------------------------- */

static bool gpu_clocks(const struct bench_session *session, bool wanted)
{
    return bench_good(session->world, ll_times_take(session->ll, wanted));
}

static bool gpu_moments(const struct bench_session *session, struct bench_moments *out)
{
    ll_times times;
    if (!ll_times_last(session->ll, &times)) return false;
    *out = gpu_moments_of_turn(&times);
    return true;
}

static bool gpu_way_moments(const struct limit_way *way, struct bench_moments *out)
{
    const struct gpu_turn *self = way->kept;
    return kernel_stamps_of_turn(&self->stamps, out);
}

#define PLACE                                                                                                          \
    .share = gpu_share, .unshare = gpu_unshare, .reserve = gpu_reserve, .unreserve = gpu_unreserve,                    \
    .num_ways = one_way, .way_open = gpu_way_open, .way_run = gpu_way_run, .way_close = gpu_way_close,                 \
    .way_copy = gpu_way_copy, .way_moments = gpu_way_moments, .launch = launch_nothing

const struct ll_place ll_cuda = {PLACE, .trip_create = gpu_trip_create, .trip_free = gpu_trip_free,
                                 .trip_contenders = gpu_trip_contenders, .trip_times = gpu_trip_times};
/* Between nodes a flag goes by the host's puts, as on the CPU: kernels do not reach it. */
const struct ll_place ll_cuda_nodes = {PLACE, .trip_create = ll_trip_create, .trip_free = ll_trip_free,
                                       .trip_contenders = ll_trip_contenders, .trip_times = ll_trip_times};

const struct bench_site gpu_ll_site = {
    .default_workers = default_sms_of_call,
    .open = ll_site_open,
    .close = ll_site_close,
    .clocks = gpu_clocks,
    .moments = gpu_moments,
};
const struct bench_site gpu_ll_nodes_site = {
    .default_workers = default_sms_of_call,
    .open = ll_site_open,
    .close = ll_site_close,
    .clocks = gpu_clocks,
    .moments = gpu_moments,
    .traffic = ll_traffic,
};
