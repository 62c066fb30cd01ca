/* SPDX-License-Identifier: Apache-2.0 */
/* A low-latency buffer across nodes on the simulated driver, with the library's kernels. A kernel of the program's
 * breaks the context of rank 0. Its call ends with EXPAR_ERR_CUDA, and the other rank's next one with EXPAR_ERR_PEER.
 */
#include "cuda/cuda.h"
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "oracle/unit.h"
#include <expar/expar.h>

#include <stdlib.h>

enum { RANKS = 2, TOKENS = 3, HIDDEN = 128 };

typedef struct bench {
    cuda_device *gpu;
    cu_stream stream;
    cu_address x, idx;
    expar_ll *ll;
} bench;

/* All tokens go to the other rank. */
static bool bench_begin(bench *b, expar_group *group)
{
    const int32_t other = 1 - expar_group_rank(group);
    const int32_t idx[TOKENS] = {other, other, other};
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    *b = (bench){.gpu = NULL};
    config.device.type = EXPAR_CUDA;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = 1;
    config.num_experts = RANKS;
    if (!CHECK_OK(cuda_device_open(0, &b->gpu)) || !CHECK_OK(cuda_enter(b->gpu))) return false;
    CHECK_OK(CUDA_CALL(StreamCreate, &b->stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(MemAlloc, &b->x, TOKENS * HIDDEN * sizeof(uint16_t)));
    CHECK_OK(CUDA_CALL(MemAlloc, &b->idx, sizeof idx));
    CHECK_OK(CUDA_CALL(MemcpyHtoD, b->idx, idx, sizeof idx));
    return CHECK_OK(expar_ll_create(group, &config, &b->ll));
}

static void bench_end(bench *b)
{
    CHECK_OK(expar_ll_destroy(b->ll));
    CHECK_OK(CUDA_CALL(MemFree, b->idx));
    CHECK_OK(CUDA_CALL(MemFree, b->x));
    CHECK_OK(CUDA_CALL(StreamDestroy, b->stream));
    cuda_leave();
    cuda_device_close(b->gpu);
}

/* The status of the call, or of its event. */
static expar_status dispatch(const bench *b)
{
    const expar_device gpu = {.type = EXPAR_CUDA};
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    expar_ll_dispatch_result result = EXPAR_LL_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d_on(gpu, (void *)(uintptr_t)b->x, EXPAR_BF16, TOKENS, HIDDEN);
    args.topk_idx = expar_tensor_2d_on(gpu, (void *)(uintptr_t)b->idx, EXPAR_I32, TOKENS, 1);
    args.stream = b->stream;
    args.async_finish = 1;
    expar_status status = expar_ll_dispatch(b->ll, &args, &result);
    if (status != EXPAR_OK) return status;
    status = expar_event_wait(result.event);
    expar_event_release(result.event);
    expar_ll_handle_release(result.handle);
    expar_ep_output_release(result.output);
    return status;
}

static void trial(expar_group *group, void *shared)
{
    bench b;
    (void)shared;
    if (!bench_begin(&b, group)) return;
    CHECK_OK(dispatch(&b));
    if (expar_group_rank(group) == 0) {
        setenv("FAKE_FAULT", "1", 1);
        CHECK_STATUS(EXPAR_ERR_CUDA, dispatch(&b));
        CHECK_TEXT("expar_ll_dispatch", "700");
        CHECK_STATUS(EXPAR_ERR_CUDA, dispatch(&b));
        CHECK_TEXT("poisoned", "700");
        unsetenv("FAKE_FAULT");
    } else {
        /* The kernel of rank 0 may still have sent its part. */
        const expar_status first = dispatch(&b);
        CHECK(first == EXPAR_OK || first == EXPAR_ERR_PEER, "the call gave %s", expar_status_string(first));
        CHECK_STATUS(EXPAR_ERR_PEER, dispatch(&b));
        CHECK_TEXT("expar_ll_dispatch", "rank 0", "700");
    }
    bench_end(&b);
}

static void test_lost_context(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = 1};
    assert_true(ranks_run(&plan, trial, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lost_context)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
