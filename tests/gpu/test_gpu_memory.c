/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of buffers on GPUs, with rows: outputs in memory of the caller's allocator, and idle memory that goes and
 * comes again. Also pools that grow for calls which need not wait for their counts, and graphs after these. On thread
 * ranks, or with `processes` on process ranks. */
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <string.h>

#define ODD 1 /* the rank whose allocator gives nothing */

static ranks_kind kind = RANKS_THREADS;

/* The work of a rank's allocator; config.alloc_context. */
typedef struct store {
    bool gives_none;
    atomic_int taken, given; /* the latter by a thread of the library's */
} store;

static void *store_alloc(void *context, size_t bytes, size_t alignment, void *stream)
{
    store *self = context;
    cu_address at = 0;
    (void)alignment;
    CHECK(stream != NULL, "asked for no stream");
    if (self->gives_none || !CHECK_OK(CUDA_CALL(MemAllocAsync, &at, bytes, stream))) return NULL;
    atomic_fetch_add(&self->taken, 1);
    return (void *)(uintptr_t)at;
}

/* By then no call uses it: it may go at once, on any stream. */
static void store_free(void *context, void *data, size_t bytes, void *stream)
{
    store *self = context;
    (void)bytes;
    CHECK_OK(CUDA_CALL(MemFreeAsync, (cu_address)(uintptr_t)data, stream));
    atomic_fetch_add(&self->given, 1);
}

/* With the store as its allocator, which is asked for every output: none fits the limit. */
static bool begin_with(layer_pair *one, expar_group *group, void *shared, store *own)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    *own = (store){0};
    config.pool_limit_bytes = 128;
    config.alloc = store_alloc;
    config.free = store_free;
    config.alloc_context = own;
    return layer_pair_open(one, group, shared, &config);
}

static void end_with(layer_pair *one, store *own)
{
    layer_pair_close(one);
    CHECK(own->taken == own->given, "%d taken, %d given back", own->taken, own->given);
}

static bool begin(layer_pair *one, expar_group *group, void *shared)
{
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    return layer_pair_open(one, group, shared, &config);
}

static uint64_t reserved(const layer_pair *one)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one->ep, &stats));
    return stats.reserved_bytes;
}

/* By CUDA IPC nothing grows. */
static bool grows(const layer_pair *one)
{
    return device_heap_grows(gpu_of(one->ep->base.exec)->core.heap);
}

/* ---- the caller's allocator -------------------------------------------------------------------------------------- */

static void trial_allocator(expar_group *group, void *shared)
{
    layer_pair one;
    store own;
    if (!begin_with(&one, group, shared, &own)) return;
    for (int32_t i = 0; i < 6; i++) {
        if (!layer_pair_go(&one, i % 2)) return;
        CHECK(one.layers[i % 2].result.path == EXPAR_EP_PATH_QUEUE, "path %d", (int)one.layers[i % 2].result.path);
        CHECK(atomic_load(&own.taken) == i + 1, "%d taken in lap %d", own.taken, (int)i);
    }
    end_with(&one, &own);
}

/* The odd rank gets nothing: all are told, and the next round is as good. */
static void trial_rejections(expar_group *group, void *shared)
{
    layer_pair one;
    store own;
    const bool odd = expar_group_rank(group) == ODD;
    if (!begin_with(&one, group, shared, &own) || !layer_pair_go(&one, 0)) return;
    for (int32_t i = 0; i < 2; i++) {
        layer *p = &one.layers[1];
        own.gives_none = odd;
        layer_release(p);
        const expar_status status = layer_dispatch(p, one.ep, one.in->t, one.card.streams[0]);
        CHECK(status == (odd ? EXPAR_ERR_MEMORY : EXPAR_ERR_REMOTE), "%s: %s", expar_status_string(status),
              expar_last_error());
        CHECK_TEXT("config.alloc gave NULL");
        own.gives_none = false;
        if (!layer_pair_go(&one, 1)) return;
    }
    end_with(&one, &own);
}

/* ---- trim -------------------------------------------------------------------------------------------------------- */

#define SPARE_BYTES ((uint64_t)64 << 20)

/* The pools of all ranks hold that much more: each misses it once, and the next round grows. */
static bool grow(layer_pair *one)
{
    mem_block *spare = NULL;
    if (mem_pool_take(one->ep->base.exec->pool, SPARE_BYTES, &spare) == EXPAR_OK) mem_block_release(spare);
    return layer_pair_go(one, 0) && CHECK(reserved(one) >= SPARE_BYTES, "the pool has not grown");
}

/* After a round that is alive; with rows in memory that has come again. */
static void trial_trim(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    for (int32_t i = 0; i < 3 && grows(&one); i++) {
        if (!layer_pair_go(&one, 0) || !layer_pair_go(&one, 1) || !grow(&one)) return;
        const uint64_t before = reserved(&one);
        CHECK_OK(expar_ep_trim(one.ep));
        if (!layer_pair_go(&one, 0)) return;
        CHECK(reserved(&one) + SPARE_BYTES / 2 <= before, "%llu of %llu bytes stayed",
              (unsigned long long)reserved(&one), (unsigned long long)before);
        CHECK(layer_verify(&one.layers[1], one.in->t, one.in->a, one.card.streams[0]),
              "a lap that is alive has changed");
    }
    layer_pair_close(&one);
}

/* ---- calls that need not wait ------------------------------------------------------------------------------------ */

/* Two worst-case outputs are alive at a time: soon there is memory for both. */
static void trial_worst(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    for (int32_t i = 0; i < 12 && grows(&one); i++) {
        layer *p = &one.layers[i % 2];
        p->worst = p->spare;
        if (!layer_pair_go(&one, i % 2)) return;
        CHECK(i < 6 || p->result.path == EXPAR_EP_PATH_DIRECT, "path %d in lap %d", (int)p->result.path, (int)i);
    }
    layer_pair_close(&one);
}

/* Memory that has grown outside serves a capture, whose rows come at every launch. */
static void trial_graph(expar_group *group, void *shared)
{
    layer_pair one;
    cu_graph graph = NULL;
    cu_graph_exec launched = NULL;
    if (!begin(&one, group, shared)) return;
    layer *p = &one.layers[0];
    const cu_stream stream = one.card.streams[1];
    p->worst = one.layers[1].worst = p->spare;
    for (int32_t i = 0; i < 4; i++)
        if (!layer_pair_go(&one, 1)) return;
    if (!layer_pair_go(&one, 0)) return;
    layer_release(&one.layers[1]);
    layer_release(p);
    CHECK_OK(expar_ep_trim(one.ep));
    if (!layer_upload(p, one.in->t, one.in->a, stream)) return;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    const bool captured = layer_call(p, one.ep, one.in->t, stream);
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (!captured || !CHECK_OK(CUDA_CALL(GraphInstantiate, &launched, graph, 0))) return;
    for (int32_t i = 0; i < 3; i++) {
        /* Memory goes beside it, but not what it uses. */
        CHECK_OK(expar_ep_trim(one.ep));
        one.layers[1].worst = 0;
        if (!layer_pair_go(&one, 1)) return;
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.card.streams[0]));
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(CUDA_CALL(GraphLaunch, launched, stream));
        if (!layer_verify(p, one.in->t, one.in->a, stream)) return;
    }
    CHECK_OK(CUDA_CALL(GraphExecDestroy, launched));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    layer_pair_close(&one);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void run(ranks_body body)
{
    const ranks_plan ranks = {.kind = kind};
    assert_true(layers_run(&ranks, 33, body));
}

static void test_allocator(void **state)
{
    (void)state;
    run(trial_allocator);
}

static void test_allocator_that_gives_nothing(void **state)
{
    (void)state;
    run(trial_rejections);
}

static void test_trim(void **state)
{
    (void)state;
    run(trial_trim);
}

static void test_worst_cases(void **state)
{
    (void)state;
    run(trial_worst);
}

static void test_graph_after_worst_cases(void **state)
{
    (void)state;
    run(trial_graph);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocator),
        cmocka_unit_test(test_allocator_that_gives_nothing),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_worst_cases),
        cmocka_unit_test(test_graph_after_worst_cases),
    };
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
