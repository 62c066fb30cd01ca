/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs that begin with nothing: records, rings and pools that grow with the calls, memory beside the pool,
 * captures that find no memory. And how long it takes to make such a buffer, which is printed. On thread ranks, or with
 * `processes` on process ranks. */
#include "ep/harness/ranks.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ranks_kind kind = RANKS_THREADS;

static bool begin_with(layer_pair *one, expar_group *group, void *shared, int64_t limit_bytes)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.pool_limit_bytes = limit_bytes;
    return layer_pair_open(one, group, shared, &config);
}

static uint64_t pool_bytes(const layer_pair *one)
{
    return device_heap_own_bytes(gpu_of(one->ep->base.exec)->core.heap);
}

/* Two outputs are alive at a time. By the fourth round there is memory for both, and from then on nothing grows. */
static void trial_growth(expar_group *group, void *shared)
{
    layer_pair one;
    uint64_t grown = 0;
    if (!begin_with(&one, group, shared, 0)) return;
    CHECK(!device_heap_grows(gpu_of(one.ep->base.exec)->core.heap) || pool_bytes(&one) == 0,
          "the pool begins with memory");
    for (int32_t i = 0; i < 8; i++) {
        const layer *p = &one.layers[i % 2];
        if (!layer_pair_go(&one, i % 2)) return;
        if (i < 4) continue;
        CHECK(p->result.path == EXPAR_EP_PATH_DIRECT, "path %d in lap %d", (int)p->result.path, (int)i);
        if (i == 4) grown = pool_bytes(&one);
        CHECK(pool_bytes(&one) == grown, "the pool grew in lap %d", (int)i);
    }
    layer_pair_close(&one);
}

/* Rows beyond the limit come by the queue, into memory of the driver's. */
static void trial_limit(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin_with(&one, group, shared, 128)) return;
    for (int32_t i = 0; i < 4; i++) {
        if (!layer_pair_go(&one, i % 2)) return;
        CHECK(one.layers[i % 2].result.path == EXPAR_EP_PATH_QUEUE, "path %d", (int)one.layers[i % 2].result.path);
    }
    layer_pair_close(&one);
}

/* A captured call is refused before anything of it is in the graph, and the buffer serves on. */
static void trial_capture(expar_group *group, void *shared)
{
    layer_pair one;
    cu_graph graph = NULL;
    if (!begin_with(&one, group, shared, 128) || !layer_pair_go(&one, 0)) return;
    const cu_stream stream = one.card.streams[1];
    layer *p = &one.layers[1];
    if (!layer_upload(p, one.in->t, one.in->a, stream)) return;
    p->worst = p->spare;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, layer_dispatch(p, one.ep, one.in->t, stream));
    CHECK_TEXT("while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    p->worst = 0;
    CHECK_OK(expar_barrier_all(group));
    layer_pair_go(&one, 1);
    layer_pair_close(&one);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

/* Kernels of the shape are in the cache from the first one on. */
static void trial_set_up(expar_group *group, void *shared)
{
    card own;
    (void)shared;
    if (!card_open(&own, expar_group_rank(group))) return;
    for (int32_t i = 0; i < 3; i++) {
        expar_ep_config config = EXPAR_EP_CONFIG_INIT;
        expar_ep *ep = NULL;
        config = card_config(&own, &config);
        CHECK_OK(expar_barrier_all(group));
        const int64_t start_ns = clock_ns();
        if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
        const double seconds = (double)(clock_ns() - start_ns) / 1e9;
        if (expar_group_rank(group) == 0) printf("set-up %d of a buffer without limits: %.3f s\n", (int)i, seconds);
        CHECK_OK(expar_ep_destroy(ep));
    }
    card_close(&own);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void run(ranks_body body)
{
    const ranks_plan ranks = {.kind = kind};
    assert_true(layers_run(&ranks, 21, body));
}

static void test_growth(void **state)
{
    (void)state;
    run(trial_growth);
}

static void test_limit(void **state)
{
    (void)state;
    run(trial_limit);
}

static void test_capture_without_memory(void **state)
{
    (void)state;
    run(trial_capture);
}

static void test_set_up(void **state)
{
    (void)state;
    run(trial_set_up);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_capture_without_memory),
        cmocka_unit_test(test_set_up),
    };
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
