/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of normal mode across nodes, where the host carries calls out. Launches between calls, calls that some rank
 * rejects, and records that grow. A graph that outlives its buffer, and ranks that leave or die before a launch. On
 * process ranks, of which each has a kernel that tells its host of launches. */
#include "cuda/find_controls.h"
#include "ep/harness/ranks.h"
#include "ep/normal/normal.h"
#include "gpu/layer.h"
#include "oracle/unit.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RANKS = LAYER_RANKS, PER_NODE = 2, VICTIM = RANKS - 1 };
#define POOL_BYTES (1 << 20)

/* A rank of a test: layer 0 is in the graph, layer 1 is called. */
typedef struct actor {
    layer_pair pair;
    int32_t rank;
    cu_stream stream, other;
    cu_graph_exec exec;
} actor;

static expar_ep_config limited(void)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 40;
    config.max_row_bytes = 128;
    config.max_topk = 3;
    config.max_experts = 8;
    config.pool_bytes = POOL_BYTES;
    return config;
}

static bool actor_capture(actor *one)
{
    cu_graph graph = NULL;
    layer *p = &one->pair.layers[0];
    p->worst = p->spare;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one->stream, CU_CAPTURE_THREAD_LOCAL));
    layer_call(p, one->pair.ep, one->pair.in->t, one->stream);
    CHECK_OK(CUDA_CALL(StreamEndCapture, one->stream, &graph));
    if (check_failures() == 0) CHECK_OK(CUDA_CALL(GraphInstantiate, &one->exec, graph, 0));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    layer_release(p);
    return check_failures() == 0;
}

static bool actor_begin(actor *one, expar_group *group, void *shared, const expar_ep_config *config)
{
    *one = (actor){.rank = expar_group_rank(group)};
    if (!layer_pair_open(&one->pair, group, shared, config)) return false;
    one->stream = one->pair.card.streams[0];
    one->other = one->pair.card.streams[1];
    return true;
}

static void actor_end(actor *one)
{
    if (one->exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, one->exec));
    layer_pair_close(&one->pair);
}

static bool launch(const actor *one, int times)
{
    for (int i = 0; i < times && check_failures() == 0; i++)
        CHECK_OK(CUDA_CALL(GraphLaunch, one->exec, one->stream));
    return check_failures() == 0;
}

/* Checks that the replays, also the first ones, do not ask the driver where memory lies. */
static bool launch_unasked(const actor *one, int times)
{
    const fake_controls *controls = controls_find();
    const int before = controls ? atomic_load(&controls->asks) : 0;
    const bool good = launch(one, times) && CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    const int asks = controls ? atomic_load(&controls->asks) - before : 0;
    return good && CHECK(asks == 0, "replays have asked the driver %d times where memory lies", asks);
}

static bool upload(const actor *one)
{
    return layer_upload(&one->pair.layers[0], one->pair.in->t, one->pair.in->a, one->stream);
}

static bool verify(const actor *one)
{
    return layer_verify(&one->pair.layers[0], one->pair.in->t, one->pair.in->a, one->stream);
}

/* Another layer of calls, on another stream, between launches that are not waited for. The host waits for its calls, or
   for its counts, or for nothing. */
static bool call_between(actor *one, int launches, layer_wait wait)
{
    const layer_inputs *in = one->pair.in;
    layer *p = &one->pair.layers[1];
    p->wait = wait;
    p->worst = wait == LAYER_WAITS_FOR_NOTHING ? p->spare : 0;
    const bool good = upload(one) && launch(one, launches) && layer_upload(p, in->t, in->a, one->other) &&
                      layer_call(p, one->pair.ep, in->t, one->other) && launch(one, launches) && verify(one) &&
                      layer_verify(p, in->t, in->a, one->other);
    layer_release(p);
    return good;
}

/* ---- launches and calls ------------------------------------------------------------------------------------------ */

static void trial_many(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    const int launches = (int)random_test_rounds(25);
    if (!actor_begin(&one, group, shared, &config) || !actor_capture(&one)) return;
    for (int lap = 0; lap < 3 && call_between(&one, launches, (layer_wait)lap); lap++)
        CHECK_OK(expar_ep_query(one.pair.ep));
    actor_end(&one);
}

/* Checks the errors of a call or launch that rank 1 has rejected. */
static void check_rejected(const actor *one, expar_status own, expar_status got)
{
    CHECK_STATUS(one->rank == 1 ? own : EXPAR_ERR_REMOTE, got);
    if (one->rank == 1)
        CHECK_TEXT(" on rank 1: ");
    else
        CHECK_TEXT("rank 1 rejected its arguments");
}

/* ---- a route, with its dispatch and combine ---------------------------------------------------------------------- */

static bool call_routed(const actor *one, expar_ep_handle **handle, expar_ep_output **output)
{
    expar_ep_route_args by = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result routed = EXPAR_EP_ROUTE_RESULT_INIT;
    expar_ep_dispatch_args there = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    const layer *p = &one->pair.layers[0];
    by.topk_idx = p->idx;
    by.num_experts = one->pair.in->t->job.num_experts;
    by.num_worst_tokens = p->spare;
    there.x = p->x;
    back.x = p->back;
    back.x.shape[0] = p->spare;
    back.out_y = p->y;
    by.stream = there.stream = back.stream = one->stream;
    if (!CHECK_OK(expar_ep_route(one->pair.ep, &by, &routed))) return false;
    there.handle = back.handle = *handle = routed.handle;
    if (!CHECK_OK(expar_ep_dispatch(one->pair.ep, &there, &result))) return false;
    *output = result.output;
    return CHECK_OK(expar_ep_combine(one->pair.ep, &back, NULL));
}

static void check_sums(const actor *one)
{
    const layer *p = &one->pair.layers[0];
    const size_t bytes = (size_t)one->pair.in->t->inputs[one->rank].num_tokens * traffic_row_bytes(one->pair.in->t);
    void *y = card_fetch(&p->y, one->stream);
    CHECK(bytes == 0 || memcmp(y, one->pair.in->a->y[one->rank], bytes) == 0, "y differs");
    free(y);
}

static bool capture_routed(actor *one)
{
    cu_graph graph = NULL;
    expar_ep_handle *handle = NULL;
    expar_ep_output *output = NULL;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one->stream, CU_CAPTURE_THREAD_LOCAL));
    call_routed(one, &handle, &output);
    CHECK_OK(CUDA_CALL(StreamEndCapture, one->stream, &graph));
    expar_ep_output_release(output);
    expar_ep_handle_release(handle);
    if (check_failures() == 0) CHECK_OK(CUDA_CALL(GraphInstantiate, &one->exec, graph, 0));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    return check_failures() == 0;
}

static void fill(const actor *one, const expar_tensor *to, unsigned char byte)
{
    const size_t bytes = (size_t)(to->shape[0] * to->shape[1]) * expar_dtype_bytes(to->dtype);
    if (bytes) CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)to->data, byte, bytes, one->stream));
}

/* Puts an expert that does not exist in the place of the first index. */
static void name_no_expert(const actor *one)
{
    static const int64_t none = 99;
    CHECK_OK(CUDA_CALL(MemcpyHtoDAsync, (cu_address)(uintptr_t)one->pair.layers[0].idx.data, &none, sizeof none,
                       one->stream));
}

/* Rank 1 rejects the route. The other ranks have none of the tokens of the launch before, whose counts rank 1 knows. */
static void reject_route(actor *one)
{
    if (!upload(one)) return;
    if (one->rank == 1)
        name_no_expert(one);
    else
        fill(one, &one->pair.layers[0].idx, 0xff);
    launch(one, 1);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    check_rejected(one, EXPAR_ERR_INDEX, expar_ep_query(one->pair.ep));
    CHECK_OK(expar_ep_query(one->pair.ep));
}

static void trial_route(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !capture_routed(&one)) return;
    for (int lap = 0; lap < 3 && check_failures() == 0; lap++) {
        fill(&one, &one.pair.layers[0].y, 0x3c);
        if (upload(&one) && launch_unasked(&one, 2)) check_sums(&one);
        CHECK_OK(expar_ep_query(one.pair.ep));
        if (lap == 1) reject_route(&one);
    }
    actor_end(&one);
}

/* Each rank has one token, for expert 0. */
static bool shrink_layer(actor *one)
{
    static const int64_t idx[3] = {0, -1, -1};
    layer *p = &one->pair.layers[0];
    p->x.shape[0] = p->idx.shape[0] = p->y.shape[0] = 1;
    fill(one, &p->x, 0);
    fill(one, &p->back, 0);
    return card_put(&p->idx, 1, idx, one->stream);
}

/* Returns whether all bytes of y are so. */
static bool sums_are(const actor *one, unsigned char byte)
{
    const expar_tensor *y = &one->pair.layers[0].y;
    const size_t bytes = (size_t)y->shape[1] * expar_dtype_bytes(y->dtype);
    unsigned char *got = card_fetch(y, one->stream);
    size_t i = 0;
    while (i < bytes && got[i] == byte)
        i++;
    free(got);
    return i == bytes;
}

/* All ranks reject the route, so none learns anything from it. The combine does not use what an earlier launch knew. */
static void trial_rejected_by_all(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !shrink_layer(&one) || !capture_routed(&one)) return;
    for (int lap = 0; lap < 2 && check_failures() == 0; lap++) {
        fill(&one, &one.pair.layers[0].y, 0x3c);
        if (lap == 1) name_no_expert(&one);
        if (launch(&one, 1)) CHECK(sums_are(&one, lap ? 0x3c : 0), "lap %d: the combine has used other counts", lap);
        if (lap == 0) CHECK_OK(expar_ep_query(one.pair.ep));
    }
    CHECK_STATUS(EXPAR_ERR_INDEX, expar_ep_query(one.pair.ep));
    actor_end(&one);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

/* The dispatch of the launch is rejected, and so is its combine. The next launch goes well. */
static void reject_in_graph(actor *one)
{
    if (!upload(one)) return;
    if (one->rank == 1) name_no_expert(one);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    launch(one, 1);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    check_rejected(one, EXPAR_ERR_INDEX, expar_ep_query(one->pair.ep));
    CHECK_OK(expar_ep_query(one->pair.ep));
    if (upload(one) && launch(one, 1)) verify(one);
}

/* Rank 1 rejects a call that the others make, between two launches that nothing waits for. */
static void reject_between(actor *one)
{
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    layer *p = &one->pair.layers[1];
    if (!layer_pair_go(&one->pair, 1) || !upload(one)) return;
    back.x = p->back;
    back.x.shape[0] = p->result.num_recv_tokens;
    back.handle = p->result.handle;
    back.out_y = p->y;
    back.stream = one->other;
    back.num_sms = one->rank == 1 ? INT32_MAX : 0;
    launch(one, 1);
    check_rejected(one, EXPAR_ERR_ARGUMENT, expar_ep_combine(one->pair.ep, &back, NULL));
    launch(one, 1);
    verify(one);
    back.num_sms = 0;
    CHECK_OK(expar_ep_combine(one->pair.ep, &back, NULL));
}

static void trial_rejections(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !actor_capture(&one)) return;
    if (!upload(&one) || !launch_unasked(&one, 2) || !verify(&one)) return;
    for (int lap = 0; lap < 3 && check_failures() == 0; lap++) {
        reject_in_graph(&one);
        if (check_failures() == 0) reject_between(&one);
    }
    actor_end(&one);
}

/* ---- records that grow ------------------------------------------------------------------------------------------- */

enum { LONG_TOKENS = 4, LONG_HIDDEN = 16384 };

/* Makes a dispatch of longer rows, whose values do not matter. */
static expar_status dispatch_long(const actor *one, const expar_tensor *x, int64_t worst)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = *x;
    args.topk_idx = one->pair.layers[1].idx;
    args.topk_idx.shape[0] = x->shape[0];
    args.num_experts = one->pair.in->t->job.num_experts;
    args.num_worst_tokens = worst;
    args.stream = one->other;
    const expar_status status = expar_ep_dispatch(one->pair.ep, &args, &result);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

/* A graph goes on with records that a later call has made larger. */
static void trial_growth(expar_group *group, void *shared)
{
    actor one;
    expar_tensor x;
    cu_graph graph = NULL;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.pool_bytes = POOL_BYTES;
    if (!actor_begin(&one, group, shared, &config) || !layer_pair_go(&one.pair, 1) || !actor_capture(&one)) return;
    const int64_t tokens = one.pair.in->t->inputs[one.rank].num_tokens;
    if (!card_take(&one.pair.card, &x, EXPAR_BF16, tokens < LONG_TOKENS ? tokens : LONG_TOKENS, LONG_HIDDEN)) return;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.other, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_LIMIT, dispatch_long(&one, &x, RANKS * LONG_TOKENS));
    CHECK_TEXT("expar_ep_dispatch", "while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.other, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    if (upload(&one) && launch(&one, 2)) CHECK_OK(dispatch_long(&one, &x, 0));
    launch(&one, 2);
    verify(&one);
    call_between(&one, 1, LAYER_WAITS);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one.other));
    card_give(&x);
    actor_end(&one);
}

/* ---- lifetimes --------------------------------------------------------------------------------------------------- */

/* Returns the number of modules in the simulated driver, when no thread is about to free one; -1: another driver. */
static int count_modules(void)
{
    const fake_controls *controls = controls_find();
    cuda_later_await();
    return controls ? atomic_load(&controls->modules) : -1;
}

/* The buffer is destroyed after its launches, and before the graph. Another buffer works as ever meanwhile. The graph
   keeps the kernel, and the memory that the kernel uses, until it is destroyed itself. */
static void trial_outlives(expar_group *group, void *shared)
{
    actor one;
    expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !actor_capture(&one)) return;
    if (!upload(&one) || !launch(&one, 2)) return;
    CHECK_OK(expar_ep_destroy(one.pair.ep));
    CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
    CHECK(count_modules() != 0, "the graph has no kernel any more");
    config = card_config(&one.pair.card, &config);
    if (!CHECK_OK(expar_ep_create(group, &config, &one.pair.ep))) return;
    layer_pair_go(&one.pair, 1);
    CHECK_OK(CUDA_CALL(GraphExecDestroy, one.exec));
    one.exec = NULL;
    actor_end(&one);
    CHECK(count_modules() <= 0, "%d modules are left", count_modules());
}

/* ---- ranks that do not come -------------------------------------------------------------------------------------- */

/* The launches of the others end, with the name of that rank, and so do all later ones. */
static void find_lost(const actor *one, const char *why)
{
    launch(one, 3);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_query(one->pair.ep));
    CHECK_TEXT("rank 3", why);
    launch(one, 1);
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->stream));
    CHECK_STATUS(EXPAR_ERR_PEER, layer_combine(&one->pair.layers[1], one->pair.ep, one->other));
}

/* The group is sound after it. */
static void trial_abandoned(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !layer_pair_go(&one.pair, 1) || !actor_capture(&one)) return;
    if (!upload(&one) || !launch(&one, 1) || !verify(&one)) return;
    if (one.rank == VICTIM)
        CHECK_OK(expar_ep_abandon(one.pair.ep));
    else
        find_lost(&one, "abandoned");
    CHECK_OK(expar_barrier_all(group));
    if (one.rank != VICTIM) CHECK_OK(expar_ep_destroy(one.pair.ep));
    one.pair.ep = NULL;
    actor_end(&one);
}

/* It leaves at once after a launch to which the others come late. What is left of that launch ends, here and there. */
static void trial_abandoned_early(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !layer_pair_go(&one.pair, 1) || !actor_capture(&one)) return;
    if (!upload(&one) || !launch(&one, 1) || !verify(&one)) return;
    if (one.rank == VICTIM && launch(&one, 1)) CHECK_OK(expar_ep_abandon(one.pair.ep));
    if (one.rank == VICTIM) CHECK_OK(CUDA_CALL(StreamSynchronize, one.stream));
    CHECK_OK(expar_barrier_all(group));
    if (one.rank != VICTIM) find_lost(&one, "");
    CHECK_OK(expar_barrier_all(group));
    if (one.rank != VICTIM) CHECK_OK(expar_ep_destroy(one.pair.ep));
    one.pair.ep = NULL;
    actor_end(&one);
}

static void trial_killed(expar_group *group, void *shared)
{
    actor one;
    const expar_ep_config config = limited();
    if (!actor_begin(&one, group, shared, &config) || !layer_pair_go(&one.pair, 1) || !actor_capture(&one)) return;
    if (!upload(&one) || !launch(&one, 1) || !verify(&one)) return;
    if (one.rank == VICTIM) raise(SIGKILL);
    find_lost(&one, "");
    (void)expar_ep_destroy(one.pair.ep);
    (void)expar_group_destroy(group);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = PER_NODE};

static void test_launches_between_calls(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 43, trial_many));
}

static void test_route(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 42, trial_route));
}

static void test_route_rejected_by_all(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 50, trial_rejected_by_all));
}

static void test_rejected_calls(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 44, trial_rejections));
}

static void test_growing_records(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 45, trial_growth));
}

static void test_graph_outlives_buffer(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 46, trial_outlives));
}

static void test_abandoned_buffer(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 47, trial_abandoned));
}

static void test_buffer_abandoned_early(void **state)
{
    (void)state;
    assert_true(layers_run(&plan, 49, trial_abandoned_early));
}

static bool ended_as_due(const pid_t pids[RANKS])
{
    bool good = true;
    for (int32_t r = 0; r < RANKS; r++) {
        const int status = ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL);
        const bool due = r == VICTIM ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        good &= CHECK(due, "rank %d ended with %#x", r, (unsigned)status);
    }
    return good;
}

static void test_killed_rank(void **state)
{
    ranks_plan alone = plan;
    ranks_host host;
    pid_t pids[RANKS];
    layer_inputs in = layers_make(&plan, 48);
    (void)state;
    alone.ends_itself = true;
    assert_true(ranks_host_start(&host));
    ranks_start_network(&alone);
    for (int32_t r = 0; r < RANKS; r++)
        pids[r] = ranks_fork(&alone, &host.id, r, trial_killed, &in);
    const bool good = ended_as_due(pids);
    (void)ranks_host_stop(&host);
    layers_free(&in);
    assert_true(good);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches_between_calls),
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_rejected_by_all),
        cmocka_unit_test(test_rejected_calls),
        cmocka_unit_test(test_growing_records),
        cmocka_unit_test(test_graph_outlives_buffer),
        cmocka_unit_test(test_abandoned_buffer),
        cmocka_unit_test(test_buffer_abandoned_early),
        cmocka_unit_test(test_killed_rank),
    };
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
