/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's context, and fresh ranks on it. */
#include "gpu/serves.h"
#include "ep/harness/stage.h"
#include "gpu/worker.h"

bool serves_context(int32_t device)
{
    unsigned char bytes[64] = {0};
    cu_address at;
    const worker *h = worker_of(device);
    return CHECK_OK(CUDA_CALL(MemAlloc, &at, sizeof bytes)) && CHECK_OK(CUDA_CALL(MemsetD8, at, 0x5a, sizeof bytes)) &&
           CHECK_OK(CUDA_CALL(MemcpyDtoH, bytes, at, sizeof bytes)) &&
           CHECK(bytes[0] == 0x5a && bytes[63] == 0x5a, "memory of the GPU reads %#x", bytes[0]) &&
           CHECK_OK(CUDA_CALL(MemFree, at)) && CHECK_OK(CUDA_CALL(StreamSynchronize, h->stream));
}

typedef struct round {
    const traffic *traffic;
    const answers *answers;
} round;

static void trial(stage *s, void *shared)
{
    const round *r = shared;
    stage_round_trip(s, r->traffic, r->answers, EXPAR_EP_PATH_AUTO);
    stage_round_trip(s, r->traffic, r->answers, EXPAR_EP_PATH_QUEUE);
}

bool serves_ranks(const traffic *t)
{
    random_source random = random_start(5);
    answers *a = answers_make(t, false, &random);
    round r = {.traffic = t, .answers = a};
    stage_plan plan = stage_plan_for(t, RANKS_THREADS);
    bool passed = stage_run(&plan, trial, &r);
    answers_free(a);
    return passed;
}
