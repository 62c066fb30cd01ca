/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs beyond the pool: the caller's allocator, what it may do wrong, statistics, and memory that is given back. */
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RANKS        3
#define BYTES_BEFORE 128

static ranks_kind kind;

/* The work of a rank's allocator; config.alloc_context. */
typedef struct store {
    bool gives_none, gives_odd;
    atomic_int taken, given;
    size_t bytes;
} store;

static void *store_alloc(void *context, size_t bytes, size_t alignment, void *stream)
{
    store *self = context;
    CHECK(alignment == 128 && !stream, "alignment %zu, stream %p", alignment, stream);
    if (self->gives_none) return NULL;
    uint8_t *data = aligned_alloc(alignment, (bytes + BYTES_BEFORE + alignment - 1) / alignment * alignment);
    atomic_fetch_add(&self->taken, 1);
    self->bytes = bytes;
    return data + (self->gives_odd ? 16 : BYTES_BEFORE);
}

static void store_free(void *context, void *data, size_t bytes, void *stream)
{
    store *self = context;
    CHECK(bytes == self->bytes && !stream, "%zu bytes given back of %zu", bytes, self->bytes);
    atomic_fetch_add(&self->given, 1);
    free((uint8_t *)data - (self->gives_odd ? 16 : BYTES_BEFORE));
}

typedef struct load {
    traffic *traffic;
    answers *answers;
} load;

/* A buffer whose pool holds nothing, with an allocator of its own on each rank. */
static expar_ep *make_buffer(stage *s, const load *l, store *own)
{
    expar_ep *ep = NULL;
    expar_ep_config config = stage_plan_for(l->traffic, kind).config;
    config.pool_limit_bytes = 128;
    config.alloc = store_alloc;
    config.free = store_free;
    config.alloc_context = own;
    CHECK_OK(expar_ep_create(s->group, &config, &ep));
    return ep;
}

static expar_ep_stats stats_of(expar_ep *ep)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(ep, &stats));
    return stats;
}

static const trial_choice plain = {0};

/* Rows come by the queue, to memory that outlives the buffer and is given back once. */
static void allocate(stage *s, void *shared)
{
    const load *l = shared;
    store own = {0};
    trial_arrival arrival;
    expar_ep *ep = make_buffer(s, l, &own);
    if (!ep) return;
    trial_dispatch(ep, l->traffic, s->rank, &plain, &s->area, NULL, &arrival);
    CHECK(arrival.result.path == EXPAR_EP_PATH_QUEUE, "path is %d", (int)arrival.result.path);
    CHECK(own.taken == 1 && own.given == 0, "%d taken, %d given back", own.taken, own.given);
    expar_ep_stats stats = stats_of(ep);
    CHECK(stats.queue_calls == 1 && stats.direct_calls == 0 && stats.other_blocks == 1 && stats.used_bytes == 0,
          "other statistics");
    trial_combine(ep, l->traffic, l->answers, s->rank, &plain, &s->area, arrival.handle, &arrival);
    CHECK_OK(expar_ep_destroy(ep));
    CHECK(own.given == 0, "memory of a living output was given back");
    trial_release(&arrival, false);
    CHECK(own.given == 1, "%d given back", own.given);
}

/* Rank 1 gets nothing that it can use: all are told why, and the next call works. */
static void allocate_badly(stage *s, const load *l, bool none, expar_status status, const char *text)
{
    store own = {.gives_none = none && s->rank == 1, .gives_odd = !none && s->rank == 1};
    trial_arrival arrival;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep *ep = make_buffer(s, l, &own);
    if (!ep) return;
    expar_ep_dispatch_args args = trial_dispatch_args(l->traffic, s->rank, &plain, &s->area, NULL);
    CHECK_STATUS(s->rank == 1 ? status : EXPAR_ERR_REMOTE, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", text);
    if (s->rank != 1) CHECK_TEXT("rank 1", expar_status_string(status));
    trial_dispatch_args_free(&args);
    CHECK(own.taken == own.given, "%d taken, %d given back", own.taken, own.given);
    own.gives_none = own.gives_odd = false;
    trial_dispatch(ep, l->traffic, s->rank, &plain, &s->area, NULL, &arrival);
    trial_release(&arrival, false);
    CHECK(own.taken == own.given, "%d taken, %d given back", own.taken, own.given);
    CHECK_OK(expar_ep_destroy(ep));
}

static void allocate_none(stage *s, void *shared)
{
    allocate_badly(s, shared, true, EXPAR_ERR_MEMORY, "config.alloc gave NULL for ");
}

static void allocate_odd(stage *s, void *shared)
{
    allocate_badly(s, shared, false, EXPAR_ERR_ALIGNMENT, "; expected a multiple of 128");
}

/* One function without the other, on one rank. */
static void half_an_allocator(stage *s, void *shared)
{
    const load *l = shared;
    expar_ep *ep = NULL;
    for (int i = 0; i < 2; i++) {
        expar_ep_config config = stage_plan_for(l->traffic, kind).config;
        if (s->rank == 1 && i == 0) config.alloc = store_alloc;
        if (s->rank == 1 && i == 1) config.free = store_free;
        CHECK_STATUS(s->rank == 1 ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_ep_create(s->group, &config, &ep));
        CHECK_TEXT("expar_ep_create", i ? "config.alloc is NULL, but config.free is given"
                                        : "config.free is NULL, but config.alloc is given");
    }
}

/* The numbers of a direct round; and idle memory goes when asked, but for what the buffer began with. */
static void look_and_trim(stage *s, void *shared)
{
    const load *l = shared;
    expar_ep *ep = NULL;
    trial_arrival arrival;
    expar_ep_config config = {0};
    config = (expar_ep_config)EXPAR_EP_CONFIG_INIT;
    config.pool_bytes = 1 << 20;
    if (!CHECK_OK(expar_ep_create(s->group, &config, &ep))) return;
    expar_ep_stats before = stats_of(ep);
    CHECK(before.reserved_bytes >= 1 << 20 && before.used_bytes == 0 && before.growths == 0, "at first");
    trial_dispatch(ep, l->traffic, s->rank, &plain, &s->area, NULL, &arrival);
    expar_ep_stats with = stats_of(ep);
    CHECK(with.direct_calls == 1 && with.queue_calls == 0 && with.growths == 1 && with.other_blocks == 0, "calls");
    CHECK(with.used_bytes > 0 && with.used_bytes == with.used_high_bytes, "used");
    CHECK(with.group_used_bytes >= with.used_bytes && with.reserved_bytes >= with.group_used_bytes, "reserved");
    CHECK_OK(expar_ep_trim(ep));
    trial_check_arrival(&arrival, s->rank);
    expar_ep_output *spare = NULL;
    CHECK_OK(expar_ep_alloc(ep, (size_t)30 << 20, &spare));
    const uint64_t large = stats_of(ep).reserved_bytes;
    CHECK(large >= (uint64_t)30 << 20, "%llu bytes reserved", (unsigned long long)large);
    expar_ep_output_release(spare);
    CHECK(stats_of(ep).reserved_bytes == large, "memory did not stay warm");
    CHECK_OK(expar_ep_trim(ep));
    expar_ep_stats after = stats_of(ep);
    CHECK(after.reserved_bytes <= large - ((uint64_t)28 << 20), "%llu bytes reserved after trim",
          (unsigned long long)after.reserved_bytes);
    CHECK(after.reserved_bytes >= 1 << 20 && after.reserved_high_bytes >= large, "what it began with");
    trial_check_arrival(&arrival, s->rank);
    trial_combine(ep, l->traffic, l->answers, s->rank, &plain, &s->area, arrival.handle, &arrival);
    trial_release(&arrival, false);
    CHECK_OK(expar_ep_destroy(ep));
}

static void misuse(stage *s, void *shared)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_trim(NULL));
    CHECK_TEXT("expar_ep_trim: ep is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_get_stats(NULL, &stats));
    CHECK_TEXT("expar_ep_get_stats: ep is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_get_stats(s->ep, NULL));
    CHECK_TEXT("expar_ep_get_stats: stats is NULL");
    stats.struct_size = 0;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_stats(s->ep, &stats));
    CHECK_TEXT("expar_ep_get_stats: stats.struct_size 0, expected 8 to", "EXPAR_EP_STATS_INIT");
}

static void run(stage_body body)
{
    static const int64_t num_tokens[RANKS] = {40, 30, 57};
    random_source random = random_start(17);
    const traffic_plan plan = {
        .num_ranks = RANKS, .hidden = 512, .topk = 3, .num_experts = 6, .with_weights = true, .num_tokens = num_tokens};
    load l = {.traffic = traffic_make(&plan, &random)};
    l.answers = answers_make(l.traffic, true, &random);
    stage_plan setting = stage_plan_for(l.traffic, kind);
    setting.spare_heap_bytes = (size_t)32 << 20;
    const bool passed = stage_run(&setting, body, &l);
    answers_free(l.answers);
    traffic_free(l.traffic);
    assert_true(passed);
}

#define TEST(body)                                                                                                     \
    static void test_##body(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        run(body);                                                                                                     \
    }
TEST(allocate)
TEST(allocate_none)
TEST(allocate_odd)
TEST(half_an_allocator)
TEST(look_and_trim)
TEST(misuse)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocate),      cmocka_unit_test(test_allocate_none),
        cmocka_unit_test(test_allocate_odd),  cmocka_unit_test(test_half_an_allocator),
        cmocka_unit_test(test_look_and_trim), cmocka_unit_test(test_misuse),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
