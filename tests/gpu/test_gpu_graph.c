/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine inside CUDA graphs, captured once and replayed with other inputs. Two graphs of one buffer run
 * beside calls that are made, and two captures at a time. Also the limits of a graph, and what it holds as long as it
 * lives. */
#include "ep/harness/ranks.h"
#include "ep/low_latency/reach.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define RANKS  4
#define ROUNDS 50
/* Calls that the host carries out take longer. */
#define FAR_ROUNDS 8

/* More than all layers of a test take. */
#define SOME_POOL_BYTES (1 << 20)

/* Inputs of one shape. */
typedef struct inputs {
    traffic *t[ROUNDS];
    answers *a[ROUNDS];
} inputs;

static inputs inputs_make(void)
{
    static const int64_t tokens[RANKS] = {40, 1, 0, 33};
    traffic_plan plan = {.num_ranks = RANKS,
                         .ranks_per_node = reach_oracle_ranks(RANKS),
                         .hidden = 72,
                         .topk = 3,
                         .num_experts = 8,
                         .wide = true,
                         .with_weights = true,
                         .num_tokens = tokens};
    random_source random = random_start(random_test_seed("graphs"));
    inputs in;
    for (int i = 0; i < ROUNDS; i++) {
        in.t[i] = traffic_make(&plan, &random);
        in.a[i] = answers_make(in.t[i], true, &random);
    }
    return in;
}

static void inputs_free(inputs *in)
{
    for (int i = 0; i < ROUNDS; i++) {
        answers_free(in->a[i]);
        traffic_free(in->t[i]);
    }
}

/* One rank of a test. */
typedef struct actor {
    expar_group *group;
    int32_t rank;
    card card;
    expar_ep *ep;
    const inputs *in;
} actor;

static bool actor_begin(actor *one, expar_group *group, const inputs *in, int64_t pool_bytes)
{
    *one = (actor){.group = group, .rank = expar_group_rank(group), .in = in};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 40;
    config.max_row_bytes = 144;
    config.max_topk = 3;
    config.max_experts = 8;
    config.ring_slots = 3;
    config.num_channels = 3;
    config.pool_bytes = config.pool_limit_bytes = pool_bytes;
    /* Across nodes a pool without a size begins empty. */
    if (!pool_bytes && !reach_is_mapped()) config.pool_bytes = SOME_POOL_BYTES;
    if (!card_open(&one->card, one->rank)) return false;
    config = card_config(&one->card, &config);
    return CHECK_OK(expar_ep_create(group, &config, &one->ep));
}

static void actor_end(actor *one)
{
    CHECK_OK(expar_ep_destroy(one->ep));
    card_close(&one->card);
}

static void run(ranks_body body)
{
    inputs in = inputs_make();
    ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .ranks_per_node = reach_ranks_per_node(RANKS)};
    bool passed = ranks_run(&plan, body, &in);
    inputs_free(&in);
    assert_true(passed);
}

static int rounds(void)
{
    return reach_is_mapped() ? ROUNDS : FAR_ROUNDS;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Loads what a first launch would load, which may wait for kernels that wait for this rank. */
static void upload(cu_graph_exec exec, cu_stream stream)
{
    CHECK_OK(CUDA_CALL(GraphUpload, exec, stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
}

/* A `layer` made into a graph, whose output and handle the caller has given back: the graph holds what it needs. */
static cu_graph_exec capture(actor *one, layer *p, cu_stream stream)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    p->worst = p->spare;
    bool good = CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL)) &&
                layer_call(p, one->ep, one->in->t[0], stream);
    good = CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph)) && good;
    if (good && CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0))) upload(exec, stream);
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    layer_release(p);
    return exec;
}

static bool replay(actor *one, const layer *p, cu_graph_exec exec, int round, cu_stream stream)
{
    return layer_upload(p, one->in->t[round], one->in->a[round], stream) &&
           CHECK_OK(CUDA_CALL(GraphLaunch, exec, stream));
}

static bool check(actor *one, const layer *p, int round, cu_stream stream)
{
    return CHECK(layer_verify(p, one->in->t[round], one->in->a[round], stream), "in round %d", round);
}

/* ---- captured once, replayed often ------------------------------------------------------------------------------- */

static void trial_replays(expar_group *group, void *shared)
{
    static const expar_ep_path paths[] = {EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_QUEUE, EXPAR_EP_PATH_DIRECT};
    actor one;
    if (!actor_begin(&one, group, shared, 0)) return;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !check_failures(); i++) {
        layer p;
        cu_stream stream = one.card.streams[0];
        if (!layer_open(&p, &one.card, one.in->t[0], one.rank)) return;
        p.path = paths[i];
        cu_graph_exec exec = capture(&one, &p, stream);
        /* Taking and giving back memory may wait for kernels that wait for this rank. */
        CHECK_OK(expar_barrier_all(group));
        for (int round = 0; exec && round < rounds(); round++)
            if (!replay(&one, &p, exec, round, stream) || !check(&one, &p, round, stream)) break;
        CHECK_OK(expar_barrier_all(group));
        if (exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
        layer_close(&p);
    }
    actor_end(&one);
}

static void test_replays(void **state)
{
    (void)state;
    run(trial_replays);
}

/* ---- two graphs, and calls between them -------------------------------------------------------------------------- */

/* Three streams that nothing orders but the library. */
static bool trial_round(actor *one, layer layers[3], cu_graph_exec execs[2], int round)
{
    cu_stream *streams = one->card.streams;
    int inputs_of[3] = {round, (round + 1) % ROUNDS, (round + 2) % ROUNDS};
    bool good = replay(one, &layers[0], execs[0], inputs_of[0], streams[0]) &&
                replay(one, &layers[1], execs[1], inputs_of[1], streams[1]) &&
                layer_upload(&layers[2], one->in->t[inputs_of[2]], one->in->a[inputs_of[2]], streams[2]) &&
                layer_call(&layers[2], one->ep, one->in->t[inputs_of[2]], streams[2]) &&
                replay(one, &layers[0], execs[0], inputs_of[0], streams[0]);
    for (int i = 0; good && i < 3; i++)
        good = CHECK(check(one, &layers[i], inputs_of[i], streams[i]), "lap %d", i);
    layer_release(&layers[2]);
    return good;
}

static void trial_mixed(expar_group *group, void *shared)
{
    actor one;
    layer layers[3];
    cu_graph_exec execs[2];
    if (!actor_begin(&one, group, shared, 0)) return;
    for (int i = 0; i < 3; i++)
        if (!layer_open(&layers[i], &one.card, one.in->t[0], one.rank)) return;
    layers[1].path = one.rank % 2 ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO;
    for (int i = 0; i < 2; i++)
        execs[i] = capture(&one, &layers[i], one.card.streams[i]);
    CHECK_OK(expar_barrier_all(group));
    for (int round = 0; execs[0] && execs[1] && round < rounds(); round++)
        if (!trial_round(&one, layers, execs, round)) break;
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; i < 2; i++)
        if (execs[i]) CHECK_OK(CUDA_CALL(GraphExecDestroy, execs[i]));
    for (int i = 0; i < 3; i++)
        layer_close(&layers[i]);
    actor_end(&one);
}

static void test_two_graphs_and_calls(void **state)
{
    (void)state;
    run(trial_mixed);
}

/* ---- two captures at a time -------------------------------------------------------------------------------------- */

/* Puts `then` after what `first` has now, into its capture. */
static bool follow(cu_event event, cu_stream first, cu_stream then)
{
    return CHECK_OK(CUDA_CALL(EventRecord, event, first)) && CHECK_OK(CUDA_CALL(StreamWaitEvent, then, event, 0));
}

/* Call by call in turns. The first capture's combine is on a stream that joined it before the dispatch: only the
   library's order puts it after that. */
static bool capture_in_turns(actor *one, layer layers[2], cu_graph graphs[2])
{
    const cu_stream *streams = one->card.streams;
    const traffic *t = one->in->t[0];
    cu_event event;
    if (!CHECK_OK(CUDA_CALL(EventCreate, &event, CU_EVENT_NO_TIMING))) return false;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, streams[0], CU_CAPTURE_THREAD_LOCAL));
    follow(event, streams[0], streams[2]);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, streams[1], CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(layer_dispatch(&layers[0], one->ep, t, streams[0]));
    CHECK_OK(layer_dispatch(&layers[1], one->ep, t, streams[1]));
    CHECK_OK(layer_combine(&layers[0], one->ep, streams[2]));
    CHECK_OK(layer_combine(&layers[1], one->ep, streams[1]));
    follow(event, streams[2], streams[0]);
    CHECK_OK(CUDA_CALL(StreamEndCapture, streams[0], &graphs[0]));
    CHECK_OK(CUDA_CALL(StreamEndCapture, streams[1], &graphs[1]));
    CHECK_OK(CUDA_CALL(EventDestroy, event));
    return check_failures() == 0;
}

static void trial_captures_in_turns(expar_group *group, void *shared)
{
    actor one;
    layer layers[2];
    cu_graph graphs[2] = {NULL};
    cu_graph_exec execs[2] = {NULL};
    if (!actor_begin(&one, group, shared, 0)) return;
    for (int i = 0; i < 2; i++) {
        if (!layer_open(&layers[i], &one.card, one.in->t[0], one.rank)) return;
        layers[i].worst = layers[i].spare;
    }
    bool good = capture_in_turns(&one, layers, graphs);
    for (int i = 0; good && i < 2; i++) {
        good = CHECK_OK(CUDA_CALL(GraphInstantiate, &execs[i], graphs[i], 0));
        if (good) upload(execs[i], one.card.streams[i]);
    }
    CHECK_OK(expar_barrier_all(group));
    for (int round = 0; good && round < rounds(); round++)
        for (int i = 0; good && i < 2; i++)
            good = replay(&one, &layers[i], execs[i], round, one.card.streams[i]);
    for (int i = 0; good && i < 2; i++)
        good = CHECK(check(&one, &layers[i], rounds() - 1, one.card.streams[i]), "lap %d", i);
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; i < 2; i++) {
        if (execs[i]) CHECK_OK(CUDA_CALL(GraphExecDestroy, execs[i]));
        if (graphs[i]) CHECK_OK(CUDA_CALL(GraphDestroy, graphs[i]));
        layer_release(&layers[i]);
        layer_close(&layers[i]);
    }
    actor_end(&one);
}

static void test_captures_in_turns(void **state)
{
    (void)state;
    run(trial_captures_in_turns);
}

/* ---- as many captures at a time as there may be ------------------------------------------------------------------ */

#define MOST 8

/* Combines of one dispatch, in turns; the ninth capture gets its call once another one has ended. */
static bool capture_many(actor *one, const layer *p, const cu_stream streams[MOST + 1], cu_graph graphs[MOST + 1])
{
    for (int i = 0; i <= MOST; i++)
        CHECK_OK(CUDA_CALL(StreamBeginCapture, streams[i], CU_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < 2 * MOST; i++)
        CHECK_OK(layer_combine(p, one->ep, streams[i % MOST]));
    CHECK_STATUS(EXPAR_ERR_STATE, layer_combine(p, one->ep, streams[MOST]));
    CHECK_TEXT("expar_ep_combine on rank ", "expected 8 captures at a time at most");
    CHECK_OK(CUDA_CALL(StreamEndCapture, streams[0], &graphs[0]));
    CHECK_OK(layer_combine(p, one->ep, streams[MOST]));
    for (int i = 1; i <= MOST; i++)
        CHECK_OK(CUDA_CALL(StreamEndCapture, streams[i], &graphs[i]));
    return check_failures() == 0;
}

static void trial_many_captures(expar_group *group, void *shared)
{
    actor one;
    layer p;
    cu_stream streams[MOST + 1] = {NULL};
    cu_graph graphs[MOST + 1] = {NULL};
    cu_graph_exec execs[MOST + 1] = {NULL};
    if (!actor_begin(&one, group, shared, 0) || !layer_open(&p, &one.card, one.in->t[0], one.rank)) return;
    const traffic *t = one.in->t[0];
    const answers *a = one.in->a[0];
    const cu_address y = (cu_address)(uintptr_t)p.y.data;
    const size_t y_bytes = (size_t)t->inputs[one.rank].num_tokens * traffic_row_bytes(t);
    for (int i = 0; i <= MOST; i++)
        CHECK_OK(CUDA_CALL(StreamCreate, &streams[i], CU_STREAM_NON_BLOCKING));
    p.worst = p.spare;
    p.path = EXPAR_EP_PATH_QUEUE;
    bool good = layer_upload(&p, t, a, streams[0]) && CHECK_OK(layer_dispatch(&p, one.ep, t, streams[0])) &&
                CHECK_OK(CUDA_CALL(StreamSynchronize, streams[0])) && capture_many(&one, &p, streams, graphs);
    for (int i = 0; good && i <= MOST; i++) {
        good = CHECK_OK(CUDA_CALL(GraphInstantiate, &execs[i], graphs[i], 0));
        if (good) upload(execs[i], streams[i]);
    }
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; good && i <= MOST; i++) {
        if (y_bytes) CHECK_OK(CUDA_CALL(MemsetD8Async, y, 0x3c, y_bytes, streams[i]));
        good = CHECK_OK(CUDA_CALL(GraphLaunch, execs[i], streams[i])) &&
               CHECK(layer_verify(&p, t, a, streams[i]), "graph %d", i);
    }
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; i <= MOST; i++) {
        if (execs[i]) CHECK_OK(CUDA_CALL(GraphExecDestroy, execs[i]));
        if (graphs[i]) CHECK_OK(CUDA_CALL(GraphDestroy, graphs[i]));
        CHECK_OK(CUDA_CALL(StreamDestroy, streams[i]));
    }
    layer_release(&p);
    layer_close(&p);
    actor_end(&one);
}

static void test_many_captures(void **state)
{
    (void)state;
    run(trial_many_captures);
}

/* Each on streams of its own, gone before the next one begins, while all graphs live. */
static void trial_captures_in_a_row(expar_group *group, void *shared)
{
    actor one;
    layer p;
    cu_graph graphs[2 * MOST] = {NULL};
    const cu_stream *streams = one.card.streams;
    if (!actor_begin(&one, group, shared, 0) || !layer_open(&p, &one.card, one.in->t[0], one.rank)) return;
    const traffic *t = one.in->t[0];
    p.worst = p.spare;
    p.path = EXPAR_EP_PATH_QUEUE;
    layer_upload(&p, t, one.in->a[0], streams[0]);
    CHECK_OK(layer_dispatch(&p, one.ep, t, streams[0]));
    CHECK_OK(CUDA_CALL(StreamSynchronize, streams[0]));
    for (int i = 0; i < 2 * MOST && !check_failures(); i++) {
        cu_stream stream;
        CHECK_OK(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
        CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
        CHECK_OK(layer_combine(&p, one.ep, stream));
        CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graphs[i]));
        CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    }
    for (int i = 0; i < 2 * MOST; i++)
        if (graphs[i]) CHECK_OK(CUDA_CALL(GraphDestroy, graphs[i]));
    CHECK_OK(expar_barrier_all(group));
    layer_release(&p);
    layer_close(&p);
    actor_end(&one);
}

static void test_captures_in_a_row(void **state)
{
    (void)state;
    run(trial_captures_in_a_row);
}

/* ---- what hosts poll --------------------------------------------------------------------------------------------- */

/* The counts that a dispatch which is waited for has told the host. */
static const void *told_at(const expar_ep *ep)
{
    return gpu_of(ep->base.exec)->counters->scratch->pinned.host;
}

/* A copy of it, to be freed. */
static void *told_counts(const expar_ep *ep, size_t *bytes)
{
    const ep_shape *shape = &ep->shape;
    size_t counts = (size_t)shape->ranks * (size_t)(shape->channels + 1) + (size_t)shape->local_experts;
    *bytes = counts * sizeof(int32_t);
    void *copy = malloc(*bytes);
    return memcpy(copy, told_at(ep), *bytes);
}

/* A host may still poll for a call of its own, or read its counts, when a dispatch runs that nobody asks for. That is
   one of a graph, or one without a wait. */
static void trial_counts_that_stay(expar_group *group, void *shared)
{
    actor one;
    layer asked, graph, plain;
    size_t bytes;
    if (!actor_begin(&one, group, shared, 0)) return;
    layer *const all[] = {&asked, &graph, &plain};
    for (int i = 0; i < 3; i++)
        if (!layer_open(all[i], &one.card, one.in->t[0], one.rank)) return;
    plain.worst = plain.spare;
    const gpu_report *report = gpu_of(one.ep->base.exec)->core.report;
    cu_stream stream = one.card.streams[0];
    cu_graph_exec exec = capture(&one, &graph, stream);
    CHECK_OK(expar_barrier_all(group));
    bool good = exec && layer_upload(&asked, one.in->t[0], one.in->a[0], stream) &&
                layer_call(&asked, one.ep, one.in->t[0], stream) && check(&one, &asked, 0, stream);
    uint64_t ready = report->counts_ready;
    void *counts = told_counts(one.ep, &bytes);
    CHECK(ready > 0, "the call that was waited for has no ticket");
    good = good && replay(&one, &graph, exec, 1, stream) && check(&one, &graph, 1, stream) &&
           layer_upload(&plain, one.in->t[2], one.in->a[2], stream) &&
           layer_call(&plain, one.ep, one.in->t[2], stream) && check(&one, &plain, 2, stream);
    CHECK(report->counts_ready == ready, "counts_ready is %llu; it was %llu", (unsigned long long)report->counts_ready,
          (unsigned long long)ready);
    CHECK(good && memcmp(told_at(one.ep), counts, bytes) == 0, "the counts of the call that was waited for are gone");
    free(counts);
    CHECK_OK(expar_barrier_all(group));
    if (exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    layer_release(&asked);
    layer_release(&plain);
    for (int i = 0; i < 3; i++)
        layer_close(all[i]);
    actor_end(&one);
}

static void test_counts_that_stay(void **state)
{
    (void)state;
    run(trial_counts_that_stay);
}

/* ---- what a graph cannot hold ------------------------------------------------------------------------------------ */

static bool reject(const actor *one, const layer *p, expar_ep_dispatch_args extra, const char *word)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = extra;
    args.x = p->x;
    args.topk_idx = p->idx;
    args.num_experts = one->in->t[0]->job.num_experts;
    args.stream = one->card.streams[0];
    return CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_dispatch(one->ep, &args, &result)) &&
           CHECK_TEXT("expar_ep_dispatch", word, "captured");
}

/* Refused calls leave nothing in the capture, and it goes on. */
static void trial_rejections(expar_group *group, void *shared)
{
    actor one;
    layer p;
    expar_event *event = NULL;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    if (!actor_begin(&one, group, shared, 0) || !layer_open(&p, &one.card, one.in->t[0], one.rank)) return;
    cu_stream stream = one.card.streams[0];
    expar_ep_dispatch_args with_counts = EXPAR_EP_DISPATCH_ARGS_INIT, with_event = with_counts, with_end = with_counts;
    CHECK_OK(expar_event_create(&event));
    CHECK_OK(expar_event_signal(event));
    with_event.num_worst_tokens = with_end.num_worst_tokens = p.worst = p.spare;
    with_event.wait_event = event;
    with_end.async_finish = 1;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    reject(&one, &p, with_counts, "num_worst_tokens");
    reject(&one, &p, with_event, "wait_event");
    reject(&one, &p, with_end, "async_finish");
    layer_call(&p, one.ep, one.in->t[0], stream);
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0))) upload(exec, stream);
    CHECK_OK(expar_barrier_all(group));
    for (int round = 0; round < 3 && !check_failures(); round++)
        if (replay(&one, &p, exec, round, stream)) check(&one, &p, round, stream);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    expar_event_release(event);
    layer_release(&p);
    layer_close(&p);
    actor_end(&one);
}

static void test_what_cannot_be_captured(void **state)
{
    (void)state;
    run(trial_rejections);
}

/* ---- what a graph holds ------------------------------------------------------------------------------------------ */

/* Handles, idx and weights of small traffic are small; the pool fits recv_x of the worst case once. */
#define TIGHT_POOL_BYTES (48 << 10)

static expar_status dispatch_direct(const actor *one, const layer *p)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = p->x;
    args.topk_idx = p->idx;
    args.num_experts = one->in->t[0]->job.num_experts;
    args.num_worst_tokens = 200;
    args.path = EXPAR_EP_PATH_DIRECT;
    args.stream = one->card.streams[0];
    expar_status status = expar_ep_dispatch(one->ep, &args, &result);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

/* The driver lets go when it comes to it. */
static bool pool_empties(const expar_ep *ep)
{
    int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    mem_block *block = NULL;
    while (mem_pool_take(ep->base.exec->pool, TIGHT_POOL_BYTES - 4096, &block) != EXPAR_OK) {
        if (ranks_clock_ms() > end_ms) return false;
        sched_yield();
    }
    mem_block_release(block);
    return true;
}

static void trial_hold(expar_group *group, void *shared)
{
    actor one;
    layer p;
    cu_graph graph = NULL;
    if (!actor_begin(&one, group, shared, TIGHT_POOL_BYTES) || !layer_open(&p, &one.card, one.in->t[0], one.rank))
        return;
    cu_stream stream = one.card.streams[0];
    layer_upload(&p, one.in->t[0], one.in->a[0], stream);
    CHECK_OK(dispatch_direct(&one, &p));
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(dispatch_direct(&one, &p));
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, dispatch_direct(&one, &p));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK(pool_empties(one.ep), "the pool did not get its blocks back");
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(dispatch_direct(&one, &p));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream)); /* it reads x */
    layer_close(&p);
    actor_end(&one);
}

static void test_what_a_graph_holds(void **state)
{
    (void)state;
    run(trial_hold);
}

/* Across nodes, where the host carries calls out, no kernel tells counts. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_two_graphs_and_calls),
        cmocka_unit_test(test_captures_in_turns),
        cmocka_unit_test(test_many_captures),
        cmocka_unit_test(test_captures_in_a_row),
        cmocka_unit_test(test_counts_that_stay),
        cmocka_unit_test(test_what_cannot_be_captured),
        cmocka_unit_test(test_what_a_graph_holds),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (!reach_is_mapped()) cmocka_set_skip_filter("test_counts_that_stay");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
