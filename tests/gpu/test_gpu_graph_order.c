/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs and calls on streams that nothing orders but the library, while a gate keeps the first of them from running.
 * Later work on another stream follows it from its launch on. Each step is a dispatch and a combine of the results of
 * the step before it, so that one that ran too early gives other bytes. One rank a GPU, two at most: ranks of a process
 * that share a GPU wait on the host instead (docs/reference/gpu.md). */
#include "bench/gpu/kernels/forms.h"
#include "cuda/gpus.h"
#include "ep/harness/ranks.h"
#include "gpu/layer.h"
#include "mem/device.h"
#include "oracle/unit.h"
#include "tool_kernels.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENS 40
#define HIDDEN 64
#define TOPK   2
#define STEPS  3
/* Looks at steps that must not be through. */
#define LOOKS 50

#define UNWRITTEN 0x3c

typedef enum kind { CALL, GRAPH, GATED_GRAPH /* the gate stands between its calls, not before it */ } kind;

static int32_t ranks; /* one a GPU */

/* Work that is put on streams, in this order. */
typedef struct scenario {
    const char *name;
    int32_t steps;
    struct {
        kind kind;
        int stream;
    } step[STEPS];
} scenario;

static const scenario scenarios[] = {
    {"a call behind a graph", 2, {{GRAPH, 0}, {CALL, 1}}},
    {"a graph behind a call", 2, {{CALL, 0}, {GRAPH, 1}}},
    {"a graph behind a graph", 2, {{GRAPH, 0}, {GRAPH, 1}}},
    {"a call between graphs", 3, {{GRAPH, 0}, {CALL, 1}, {GRAPH, 2}}},
    {"a graph between calls", 3, {{CALL, 0}, {GRAPH, 1}, {CALL, 2}}},
    {"calls behind a graph, on its stream too", 3, {{GRAPH, 0}, {CALL, 1}, {GRAPH, 0}}},
    {"a call behind the last call of a graph", 2, {{GATED_GRAPH, 0}, {CALL, 1}}},
    {"a graph behind the last call of a graph", 2, {{GATED_GRAPH, 0}, {GRAPH, 1}}},
};

/* In pinned memory. */
typedef struct words {
    _Atomic uint64_t turn;    /* 1: the gate is open. The host stores (release), the gate loads (acquire) */
    _Atomic uint32_t expired; /* 1: it was not opened in time; read after the stream */
} words;

typedef struct actor {
    int32_t rank, ranks;
    card card;
    expar_ep *ep;
    cuda_program *program;
    cu_function gate;
    mem_pinned pinned;
    expar_tensor points[STEPS + 1], idx; /* step i goes from point i to the next */
    expar_ep_dispatch_result results[STEPS];
    cu_graph_exec execs[STEPS];
    cu_event passed[STEPS];       /* after a step */
    expar_event *ends[2 * STEPS]; /* of calls */
    int32_t num_ends;
} actor;

static words *words_of(const actor *one)
{
    return one->pinned.host;
}

/* ---- beginning and end ------------------------------------------------------------------------------------------- */

static bool fill(const actor *one)
{
    uint16_t x[TOKENS][HIDDEN];
    int64_t idx[TOKENS][TOPK];
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HIDDEN; h++)
            x[t][h] = (uint16_t)(0x3f80 + (t * 7 + h + one->rank) % 64); /* bf16, from 1 on */
        for (int k = 0; k < TOPK; k++)
            idx[t][k] = (t / (k + 1) + k) % (2 * one->ranks);
    }
    return card_put(&one->points[0], TOKENS, x, one->card.streams[0]) &&
           card_put(&one->idx, TOKENS, idx, one->card.streams[0]) &&
           CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[0]));
}

static bool take_memory(actor *one)
{
    bool taken = card_take(&one->card, &one->idx, EXPAR_I64, TOKENS, TOPK) &&
                 CHECK_OK(mem_pinned_create(sizeof(words), &one->pinned));
    for (int i = 0; taken && i <= STEPS; i++)
        taken = card_take(&one->card, &one->points[i], EXPAR_BF16, TOKENS, HIDDEN);
    for (int i = 0; taken && i < STEPS; i++)
        taken = CHECK_OK(CUDA_CALL(EventCreate, &one->passed[i], CU_EVENT_NO_TIMING));
    return taken && fill(one);
}

static bool actor_begin(actor *one, expar_group *group)
{
    *one = (actor){.rank = expar_group_rank(group), .ranks = expar_group_size(group)};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.max_row_bytes = HIDDEN * 2;
    config.max_topk = TOPK;
    config.max_experts = 2 * one->ranks;
    config.pool_bytes = 8 << 20;
    if (!card_open(&one->card, one->rank)) return false;
    config = card_config(&one->card, &config);
    return CHECK_OK(tool_kernel_load(one->card.device, "bench/gpu/kernels/gate.cu", &one->program)) &&
           CHECK_OK(cuda_program_kernel(one->program, "bench_gate", 0, &one->gate)) && take_memory(one) &&
           CHECK_OK(expar_ep_create(group, &config, &one->ep));
}

static void actor_end(actor *one)
{
    CHECK_OK(expar_ep_destroy(one->ep));
    for (int i = 0; i <= STEPS; i++)
        card_give(&one->points[i]);
    for (int i = 0; i < STEPS; i++)
        CHECK_OK(CUDA_CALL(EventDestroy, one->passed[i]));
    card_give(&one->idx);
    mem_pinned_free(&one->pinned);
    cuda_program_release(one->program);
    card_close(&one->card);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static bool put_gate(const actor *one, cu_stream stream)
{
    const uintptr_t at = (uintptr_t)one->pinned.device;
    gate_call gate = {.turns = (const uint64_t *)(at + offsetof(words, turn)),
                      .turn = 1,
                      .timeout_ns = (uint64_t)RANKS_TIMEOUT_MS / 2 * 1000000,
                      .expired = (uint32_t *)(at + offsetof(words, expired)),
                      .ranks = 1};
    void *parameters[] = {&gate};
    const cuda_launch launch = {.function = one->gate, .stream = stream, .blocks = 1, .threads = 32};
    return CHECK_OK(cuda_launch_kernel(&launch, parameters));
}

/* async: with events, which are kept. */
static bool put_calls(actor *one, int i, cu_stream stream, bool async, bool gated)
{
    expar_ep_dispatch_args there = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    expar_ep_dispatch_result *came = &one->results[i];
    *came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    there.x = one->points[i];
    there.topk_idx = one->idx;
    there.num_experts = 2 * one->ranks;
    there.num_worst_tokens = (int64_t)TOKENS * one->ranks;
    there.stream = back.stream = stream;
    there.async_finish = back.async_finish = async;
    if (!CHECK_OK(expar_ep_dispatch(one->ep, &there, came)) || (gated && !put_gate(one, stream))) return false;
    if (async) one->ends[one->num_ends++] = came->event;
    back.x = came->recv_x;
    back.handle = came->handle;
    back.out_y = one->points[i + 1];
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    bool put = CHECK_OK(expar_ep_combine(one->ep, &back, &done));
    if (async && put) one->ends[one->num_ends++] = done.event;
    return put;
}

static bool capture(actor *one, int i, cu_stream stream, bool gated)
{
    cu_graph graph = NULL;
    bool good = CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL)) &&
                put_calls(one, i, stream, false, gated);
    good = CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph)) && good;
    good = good && CHECK_OK(CUDA_CALL(GraphInstantiate, &one->execs[i], graph, 0)) &&
           CHECK_OK(CUDA_CALL(GraphUpload, one->execs[i], stream)) && CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    return good;
}

/* Objects of steps that are kept. */
static void give_back(actor *one, int32_t steps)
{
    for (int32_t i = 0; i < one->num_ends; i++) {
        CHECK_OK(expar_event_wait(one->ends[i]));
        expar_event_release(one->ends[i]);
    }
    one->num_ends = 0;
    for (int32_t i = 0; i < steps; i++) {
        expar_ep_output_release(one->results[i].output);
        expar_ep_handle_release(one->results[i].handle);
        if (one->execs[i]) CHECK_OK(CUDA_CALL(GraphExecDestroy, one->execs[i]));
        one->execs[i] = NULL;
    }
}

/* ---- one scenario ------------------------------------------------------------------------------------------------ */

static bool forget_points(const actor *one)
{
    const cu_stream stream = one->card.streams[0];
    for (int i = 1; i <= STEPS; i++)
        if (!CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)one->points[i].data, UNWRITTEN,
                                (size_t)TOKENS * HIDDEN * 2, stream)))
            return false;
    return CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
}

/* Step by step, each waited for: what has to come out. To be freed. */
static void *trial_in_turn(actor *one, int32_t steps)
{
    const cu_stream stream = one->card.streams[0];
    bool good = forget_points(one);
    for (int i = 0; good && i < steps; i++)
        good = put_calls(one, i, stream, true, false) && CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    give_back(one, steps);
    return card_fetch(&one->points[steps], stream);
}

static bool put_step(actor *one, const scenario *s, int i)
{
    const cu_stream stream = one->card.streams[s->step[i].stream];
    bool put = s->step[i].kind == CALL ? put_calls(one, i, stream, true, false)
                                       : CHECK_OK(CUDA_CALL(GraphLaunch, one->execs[i], stream));
    return put && CHECK_OK(CUDA_CALL(EventRecord, one->passed[i], stream));
}

/* While the gate is closed. */
static void check_all_wait(const actor *one, const scenario *s)
{
    for (int look = 0; look < LOOKS && !check_failures(); look++) {
        for (int i = 0; i < s->steps; i++)
            CHECK(cuda_driver()->EventQuery(one->passed[i]) == CU_ERROR_NOT_READY, "step %d is through", i);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void trial_after_the_gate(actor *one, const scenario *s)
{
    bool good = true;
    atomic_store_explicit(&words_of(one)->turn, 0, memory_order_relaxed);
    for (int i = 0; good && i < s->steps; i++)
        if (s->step[i].kind != CALL)
            good = capture(one, i, one->card.streams[s->step[i].stream], s->step[i].kind == GATED_GRAPH);
    good = good && forget_points(one);
    if (s->step[0].kind != GATED_GRAPH) good = good && put_gate(one, one->card.streams[s->step[0].stream]);
    for (int i = 0; good && i < s->steps; i++)
        good = put_step(one, s, i);
    if (good) check_all_wait(one, s);
    atomic_store_explicit(&words_of(one)->turn, 1, memory_order_release);
    for (int i = 0; i < CARD_STREAMS; i++)
        CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[i]));
    CHECK(!atomic_load(&words_of(one)->expired), "the gate's deadline passed");
}

static void trial_scenario(actor *one, const scenario *s)
{
    void *expected = trial_in_turn(one, s->steps);
    trial_after_the_gate(one, s);
    void *got = card_fetch(&one->points[s->steps], one->card.streams[0]);
    CHECK(memcmp(got, expected, (size_t)TOKENS * HIDDEN * 2) == 0, "%s: other bytes", s->name);
    give_back(one, s->steps);
    free(got);
    free(expected);
}

static void trial(expar_group *group, void *shared)
{
    actor one;
    if (!actor_begin(&one, group)) return;
    trial_scenario(&one, shared);
    CHECK_OK(expar_barrier_all(group));
    actor_end(&one);
}

static void test_scenario(void **state)
{
    ranks_plan plan = {.kind = RANKS_THREADS, .size = ranks};
    assert_true(ranks_run(&plan, trial, *state));
}

int main(void)
{
    ranks = gpus_count(1) > 1 ? 2 : 1; /* before CUDA is opened here */
    struct CMUnitTest tests[sizeof scenarios / sizeof *scenarios];
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        tests[i] = (struct CMUnitTest){
            .name = scenarios[i].name, .test_func = test_scenario, .initial_state = (void *)(uintptr_t)&scenarios[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
