/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs that begin with nothing: records, rings and pools that grow with the calls, memory beside the pool,
 * captures that find no memory, and outputs that are read when buffer and group have gone. And how long it takes to
 * make such a buffer, which is printed. On thread ranks, or with `processes` on process ranks. */
#include "ep/ep.h"
#include "ep/ranks.h"
#include "exec/cuda/gpu.h"
#include "gpu/lap.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ranks_kind kind = RANKS_THREADS;

static bool begin_with(lap_pair *one, expar_group *group, void *shared, int64_t limit_bytes)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.pool_limit_bytes = limit_bytes;
    return lap_pair_open(one, group, shared, &config);
}

static uint64_t pool_bytes(const lap_pair *one)
{
    return device_heap_own_bytes(gpu_of(one->ep->exec)->heap);
}

/* Two outputs are alive at a time. By the fourth lap there is memory for both, and from then on nothing grows. */
static void play_growth(expar_group *group, void *shared)
{
    lap_pair one;
    uint64_t grown = 0;
    if (!begin_with(&one, group, shared, 0)) return;
    CHECK(!device_heap_grows(gpu_of(one.ep->exec)->heap) || pool_bytes(&one) == 0, "the pool begins with memory");
    for (int32_t i = 0; i < 8; i++) {
        const lap *p = &one.laps[i % 2];
        if (!lap_pair_go(&one, i % 2)) return;
        if (i < 4) continue;
        CHECK(p->result.path == EXPAR_PATH_DIRECT, "path %d in lap %d", (int)p->result.path, (int)i);
        if (i == 4) grown = pool_bytes(&one);
        CHECK(pool_bytes(&one) == grown, "the pool grew in lap %d", (int)i);
    }
    lap_pair_close(&one);
}

/* What does not fit the limit comes by the queue, into memory of the driver's. */
static void play_limit(expar_group *group, void *shared)
{
    lap_pair one;
    if (!begin_with(&one, group, shared, 128)) return;
    for (int32_t i = 0; i < 4; i++) {
        if (!lap_pair_go(&one, i % 2)) return;
        CHECK(one.laps[i % 2].result.path == EXPAR_PATH_QUEUE, "path %d", (int)one.laps[i % 2].result.path);
    }
    lap_pair_close(&one);
}

/* A captured call is refused before anything of it is in the graph, and the buffer serves on. */
static void play_capture(expar_group *group, void *shared)
{
    lap_pair one;
    cu_graph graph = NULL;
    if (!begin_with(&one, group, shared, 128) || !lap_pair_go(&one, 0)) return;
    const cu_stream stream = one.card.streams[1];
    lap *p = &one.laps[1];
    if (!lap_upload(p, one.in->t, one.in->a, stream)) return;
    p->worst = p->room;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, lap_dispatch(p, one.ep, one.in->t, stream));
    CHECK_TEXT("while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    p->worst = 0;
    CHECK_OK(expar_barrier_all(group));
    lap_pair_go(&one, 1);
    lap_pair_close(&one);
}

/* ---- lives ------------------------------------------------------------------------------------------------------- */

static _Thread_local expar_dispatch_result kept;
static _Thread_local size_t kept_bytes;
static _Thread_local void *kept_copy;
static _Thread_local int32_t kept_device;

static void leave_output(expar_group *group, void *shared)
{
    lap_pair one;
    if (!begin_with(&one, group, shared, 0)) return;
    for (int32_t i = 0; i < 2; i++)
        if (!lap_pair_go(&one, i)) return;
    kept = one.laps[1].result;
    kept_device = one.card.device->index;
    kept_bytes = (size_t)kept.recv_x.shape[0] * (size_t)kept.recv_x.shape[1] * expar_dtype_bytes(kept.recv_x.dtype);
    kept_copy = card_fetch(&kept.recv_x, one.card.streams[0]);
    one.laps[1].result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    lap_pair_close(&one);
}

static void read_output(expar_group *none, void *shared)
{
    cuda_device *device = NULL;
    (void)none, (void)shared;
    if (!kept.output) return;
    char *seen = malloc(kept_bytes + 1);
    if (seen && CHECK_OK(cuda_device_open(kept_device, &device)) && CHECK_OK(cuda_enter(device))) {
        CHECK_OK(CUDA_CALL(MemcpyDtoH, seen, (cu_address)(uintptr_t)kept.recv_x.data, kept_bytes));
        CHECK(!kept_copy || memcmp(seen, kept_copy, kept_bytes) == 0, "the output has changed");
        cuda_leave();
    }
    free(seen);
    free(kept_copy);
    expar_ep_handle_destroy(kept.handle);
    expar_ep_output_release(kept.output);
    cuda_later_await();
    cuda_device_close(device);
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

/* Kernels of the shape are in the cache from the first one on. */
static void play_set_up(expar_group *group, void *shared)
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

static void run_with(ranks_body body, ranks_body after)
{
    const ranks_plan ranks = {.kind = kind, .after = after};
    assert_true(laps_run(&ranks, 21, body));
}

static void test_growth(void **state)
{
    (void)state;
    run_with(play_growth, NULL);
}

static void test_limit(void **state)
{
    (void)state;
    run_with(play_limit, NULL);
}

static void test_capture_without_memory(void **state)
{
    (void)state;
    run_with(play_capture, NULL);
}

static void test_output_that_outlives_the_group(void **state)
{
    (void)state;
    run_with(leave_output, read_output);
}

static void test_set_up(void **state)
{
    (void)state;
    run_with(play_set_up, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_capture_without_memory),
        cmocka_unit_test(test_output_that_outlives_the_group),
        cmocka_unit_test(test_set_up),
    };
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
