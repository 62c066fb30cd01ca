/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency calls inside CUDA graphs: captured once and replayed a thousand times with other inputs, between calls
 * that are made; and what a capture holds: one kernel a call. Ranks may be reached by rings of commands (reach.h). */
#include "ep/harness/ranks.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/traffic.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, TOKENS = 24, HIDDEN = 256, TOPK = 3, EXPERTS = 8, INPUTS = 16, REPLAYS = 1000, EAGER_EVERY = 7 };

/* How calls of a test are made. */
typedef struct manner {
    llo_format format;
    expar_ll_sum sum;
    bool hooks, masking;
    bool coded; /* combines, in LogFMT */
} manner;

/* Traffic of one shape. */
typedef struct inputs {
    lowlat_traffic *t[INPUTS];
    lowlat_answers *a[INPUTS];
    manner how;
} inputs;

static inputs inputs_make(const manner *how)
{
    static const int64_t tokens[RANKS] = {TOKENS, 1, 0, 17};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .num_experts = EXPERTS,
                              .format = how->format,
                              .wide = true,
                              .with_weights = true,
                              .disturb = 4,
                              .num_tokens = tokens};
    random_source random = random_start(random_test_seed("low-latency graphs"));
    inputs in = {.how = *how};
    for (int i = 0; i < INPUTS; i++) {
        in.t[i] = lowlat_traffic_make(&plan, &random);
        in.a[i] = lowlat_answers_make(in.t[i], ORACLE_BF16, how->sum, &random);
        if (how->coded) lowlat_answers_code(in.a[i], in.t[i]);
    }
    return in;
}

static void inputs_free(inputs *in)
{
    for (int i = 0; i < INPUTS; i++) {
        lowlat_answers_free(in->a[i], in->t[i]);
        lowlat_traffic_free(in->t[i]);
    }
}

/* One rank of a test, and a dispatch and combine whose inputs and results lie where they stay. */
typedef struct actor {
    expar_group *group;
    int32_t rank;
    card card;
    expar_ll *ll;
    const inputs *in;
} actor;

typedef struct ll_layer {
    expar_tensor x, idx, weights, rows, count, back, y;
    expar_ll_dispatch_result there;
    expar_ll_combine_result device_state;
} ll_layer;

static int64_t tokens_of(const actor *one)
{
    return one->in->t[0]->inputs[one->rank].num_tokens;
}

static bool actor_begin(actor *one, expar_group *group, const inputs *in)
{
    *one = (actor){.group = group, .rank = expar_group_rank(group), .in = in};
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = EXPERTS;
    config.masking = in->how.masking;
    config.unmapped = reach_unmapped();
    if (!card_open(&one->card, one->rank)) return false;
    config.device = (expar_device){.type = EXPAR_CUDA, .index = one->card.device->index};
    return CHECK_OK(expar_ll_create(group, &config, &one->ll));
}

static void actor_end(actor *one)
{
    CHECK_OK(expar_ll_destroy(one->ll));
    card_close(&one->card);
}

/* ---- there and back ---------------------------------------------------------------------------------------------- */

/* [L][N*B][H] of what card_take made as [L*N*B][H]. */
static expar_tensor by_expert(const expar_tensor *flat)
{
    const int64_t places = (int64_t)RANKS * TOKENS, width = flat->shape[1];
    expar_tensor t = *flat;
    t.ndim = 3;
    t.shape[0] = EXPERTS / RANKS;
    t.shape[1] = places;
    t.shape[2] = width;
    t.strides[0] = places * width;
    t.strides[1] = width;
    t.strides[2] = 1;
    return t;
}

static expar_dtype received_dtype(const inputs *in)
{
    return in->how.format == LLO_PLAIN ? EXPAR_BF16 : EXPAR_F8E4M3;
}

/* Leaves results that a call may be given. */
static void ll_layer_release(ll_layer *p)
{
    expar_ll_hook_release(p->there.hook);
    expar_ll_hook_release(p->device_state.hook);
    expar_ep_output_release(p->there.output);
    expar_ep_output_release(p->device_state.output);
    expar_ll_handle_release(p->there.handle);
    p->there = (expar_ll_dispatch_result)EXPAR_LL_DISPATCH_RESULT_INIT;
    p->device_state = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
}

static bool ll_layer_open(ll_layer *p, const actor *one)
{
    const int64_t rows = (int64_t)(EXPERTS / RANKS) * RANKS * TOKENS, tokens = tokens_of(one);
    const card *c = &one->card;
    *p = (ll_layer){0};
    ll_layer_release(p);
    return card_take(c, &p->x, EXPAR_BF16, tokens, HIDDEN) && card_take(c, &p->idx, EXPAR_I64, tokens, TOPK) &&
           card_take(c, &p->weights, EXPAR_F32, tokens, TOPK) &&
           card_take(c, &p->rows, received_dtype(one->in), rows, HIDDEN) &&
           card_take(c, &p->count, EXPAR_I32, 1, EXPERTS / RANKS) && card_take(c, &p->back, EXPAR_BF16, rows, HIDDEN) &&
           card_take(c, &p->y, EXPAR_BF16, tokens, HIDDEN);
}

static void ll_layer_close(ll_layer *p)
{
    expar_tensor *const all[] = {&p->x, &p->idx, &p->weights, &p->rows, &p->count, &p->back, &p->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        card_give(all[i]);
}

/* A copy from ordinary memory may wait for the kernels ahead of it in the stream: so that is through first. */
static bool ll_layer_upload(const ll_layer *p, const actor *one, int which, cu_stream stream)
{
    const lowlat_traffic *t = one->in->t[which];
    const lowlat_answers *a = one->in->a[which];
    const oracle_input *input = &t->inputs[one->rank];
    const int64_t tokens = input->num_tokens;
    return CHECK_OK(CUDA_CALL(StreamSynchronize, stream)) && card_put(&p->x, tokens, input->x, stream) &&
           card_put(&p->idx, tokens, input->topk_idx, stream) &&
           card_put(&p->weights, tokens, a->inputs[one->rank].weights, stream) &&
           card_put(&p->back, p->back.shape[0], a->x[one->rank], stream);
}

static expar_status call_dispatch(ll_layer *p, const actor *one, cu_stream stream)
{
    expar_ll_dispatch_args args = EXPAR_LL_DISPATCH_ARGS_INIT;
    args.x = p->x;
    args.topk_idx = p->idx;
    args.topk_weights = p->weights;
    args.format = lowlat_format(one->in->how.format);
    args.out_x = by_expert(&p->rows);
    args.out_count = expar_tensor_1d(p->count.data, EXPAR_I32, EXPERTS / RANKS);
    args.out_count.device = p->count.device;
    args.hook = one->in->how.hooks;
    args.stream = stream;
    expar_status status = expar_ll_dispatch(one->ll, &args, &p->there);
    return status == EXPAR_OK && args.hook ? expar_ll_hook_call(p->there.hook, stream) : status;
}

static expar_status call_combine(ll_layer *p, const actor *one, cu_stream stream)
{
    expar_ll_combine_args args = EXPAR_LL_COMBINE_ARGS_INIT;
    args.x = by_expert(&p->back);
    args.topk_idx = p->idx;
    args.topk_weights = p->weights;
    args.handle = p->there.handle;
    args.sum = one->in->how.sum;
    if (one->in->how.coded) args.format = EXPAR_LL_FORMAT_LOGFMT;
    args.out_y = p->y;
    args.hook = one->in->how.hooks;
    args.stream = stream;
    expar_status status = expar_ll_combine(one->ll, &args, &p->device_state);
    return status == EXPAR_OK && args.hook ? expar_ll_hook_call(p->device_state.hook, stream) : status;
}

static bool ll_layer_call(ll_layer *p, const actor *one, cu_stream stream)
{
    return CHECK_OK(call_dispatch(p, one, stream)) && CHECK_OK(call_combine(p, one, stream));
}

static bool check_rows(const actor *one, const lowlat_traffic *t, const int32_t *count, const char *rows)
{
    const lowlat_arrival *wanted = &t->arrivals[one->rank];
    const size_t row_bytes = llo_row_bytes(&t->job), places = RANKS * TOKENS;
    for (size_t e = 0; e < EXPERTS / RANKS; e++) {
        const size_t at = e * places * row_bytes, bytes = (size_t)wanted->count[e] * row_bytes;
        if (!CHECK(count[e] == wanted->count[e], "%d rows of expert %d, expected %d", (int)count[e], (int)e,
                   (int)wanted->count[e]) ||
            !CHECK(memcmp(rows + at, (const char *)wanted->x + at, bytes) == 0, "rows of expert %d", (int)e))
            return false;
    }
    return true;
}

/* Ends that are one are just these bits; in between numbers count. */
static bool is_one_from(const void *y, const void *least, const void *most, int64_t element)
{
    const uint32_t got = oracle_load(ORACLE_BF16, y, element), low = oracle_load(ORACLE_BF16, least, element),
                   high = oracle_load(ORACLE_BF16, most, element);
    const float value = oracle_widen(ORACLE_BF16, got);
    return low == high ? got == low
                       : value >= oracle_widen(ORACLE_BF16, low) && value <= oracle_widen(ORACLE_BF16, high);
}

/* In coded rows each element is one from y to most. */
static bool check_sums(const actor *one, const lowlat_answers *a, const void *y)
{
    const int64_t count = tokens_of(one) * HIDDEN;
    const void *least = a->y[one->rank];
    if (!a->most) return CHECK(memcmp(y, least, (size_t)count * 2) == 0, "y");
    for (int64_t i = 0; i < count; i++)
        if (!CHECK(is_one_from(y, least, a->most[one->rank], i), "element %d of y", (int)i)) return false;
    return true;
}

static bool ll_layer_check(const ll_layer *p, const actor *one, int which, cu_stream stream)
{
    int32_t *count = card_fetch(&p->count, stream);
    char *rows = card_fetch(&p->rows, stream);
    void *y = card_fetch(&p->y, stream);
    bool right = check_rows(one, one->in->t[which], count, rows) && check_sums(one, one->in->a[which], y);
    free(count);
    free(rows);
    free(y);
    return right;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Loads what a first launch would load, which may wait for kernels that wait for this rank. */
static bool make_ready(cu_graph_exec exec, cu_stream stream)
{
    return CHECK_OK(CUDA_CALL(GraphUpload, exec, stream)) && CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
}

/* The caller's handles and outputs go: the graph holds what it needs. */
static cu_graph_exec capture(const actor *one, ll_layer *p, cu_stream stream)
{
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    bool good =
        CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL)) && ll_layer_call(p, one, stream);
    good = CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph)) && good;
    good = good && CHECK_OK(CUDA_CALL(GraphInstantiate, &exec, graph, 0)) && make_ready(exec, stream);
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    ll_layer_release(p);
    return good ? exec : NULL;
}

static bool go_eager(const actor *one, ll_layer *p, int which, cu_stream stream)
{
    bool right = ll_layer_upload(p, one, which, stream) && ll_layer_call(p, one, stream) &&
                 CHECK(ll_layer_check(p, one, which, stream), "a call with input %d", which);
    ll_layer_release(p);
    return right;
}

static void trial_replays(expar_group *group, void *shared)
{
    actor one;
    ll_layer captured, eager;
    if (!actor_begin(&one, group, shared)) return;
    if (!ll_layer_open(&captured, &one) || !ll_layer_open(&eager, &one)) return;
    CHECK_OK(expar_barrier_all(group));
    cu_stream stream = one.card.streams[0];
    bool good = go_eager(&one, &eager, 0, stream);
    cu_graph_exec exec = good ? capture(&one, &captured, stream) : NULL;
    good = exec != NULL;
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0, replays = (int)random_test_rounds(REPLAYS); good && i < replays; i++) {
        const int which = i % INPUTS;
        good = ll_layer_upload(&captured, &one, which, stream) && CHECK_OK(CUDA_CALL(GraphLaunch, exec, stream)) &&
               CHECK(ll_layer_check(&captured, &one, which, stream), "replay %d", i) &&
               (i % EAGER_EVERY || go_eager(&one, &eager, (i + 5) % INPUTS, stream));
    }
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    CHECK_OK(expar_barrier_all(group));
    if (exec) CHECK_OK(CUDA_CALL(GraphExecDestroy, exec));
    ll_layer_close(&captured);
    ll_layer_close(&eager);
    actor_end(&one);
}

static void run(const manner *how, ranks_body body)
{
    inputs in = inputs_make(how);
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .ranks_per_node = reach_ranks_per_node(RANKS)};
    bool passed = ranks_run(&plan, body, &in);
    inputs_free(&in);
    assert_true(passed);
}

static void test_replays(void **state)
{
    (void)state;
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT}, trial_replays);
}

static void test_replays_of_hooks(void **state)
{
    (void)state;
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .hooks = true}, trial_replays);
}

static void test_replays_of_fp8_and_reduced_sums(void **state)
{
    (void)state;
    run(&(manner){.format = LLO_FP8, .sum = EXPAR_LL_SUM_REDUCED}, trial_replays);
}

/* ---- one kernel a call ------------------------------------------------------------------------------------------- */

/* Call of the driver, used by tests only. */
typedef struct node_calls {
    cu_result (*get_nodes)(cu_graph graph, void **nodes, size_t *count);
    cu_result (*get_type)(void *node, int *type);
    cu_result (*get_params)(void *node, void *params);
    cu_result (*get_name)(const char **name, cu_function function);
} node_calls;

#define NODE_IS_KERNEL 0
#define MOST_NODES     64

/* cuFuncGetName came with CUDA 12.3; drivers before it have no names to look at, and the test says so. */
#define NAMES_SINCE 12030
static bool names_are_known(void)
{
    return cuda_open() == EXPAR_OK && cuda_driver_version() >= NAMES_SINCE;
}

static node_calls find_node_calls(void)
{
    node_calls calls = {0};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return calls;
    *(void **)&calls.get_nodes = dlsym(driver, "cuGraphGetNodes");
    *(void **)&calls.get_type = dlsym(driver, "cuGraphNodeGetType");
    *(void **)&calls.get_params = dlsym(driver, "cuGraphKernelNodeGetParams_v2");
    *(void **)&calls.get_name = dlsym(driver, "cuFuncGetName");
    return calls;
}

/* How many kernels the graph has; of each the name must have the word in it. */
static int count_kernels(const node_calls *calls, cu_graph graph, const char *word)
{
    void *nodes[MOST_NODES];
    size_t count = MOST_NODES;
    int kernels = 0;
    if (!CHECK(calls->get_nodes(graph, nodes, &count) == 0 && count <= MOST_NODES, "the nodes of a graph")) return -1;
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        /* The driver's text about a kernel begins with the function, and is shorter than this. */
        _Alignas(16) unsigned char params[256] = {0};
        const char *name = NULL;
        if (!CHECK(calls->get_type(nodes[i], &type) == 0, "the type of a node") || type != NODE_IS_KERNEL) continue;
        kernels++;
        if (!names_are_known()) continue;
        if (!CHECK(calls->get_params && calls->get_params(nodes[i], params) == 0, "what a kernel's node holds"))
            continue;
        cu_function function;
        memcpy(&function, params, sizeof function);
        if (!CHECK(calls->get_name && calls->get_name(&name, function) == 0, "the name of a kernel")) continue;
        CHECK(name && strstr(name, word), "a kernel is named %s, expected %s in it", name ? name : "nothing", word);
    }
    return kernels;
}

typedef expar_status (*one_call)(ll_layer *p, const actor *one, cu_stream stream);

static void check_kernels(const actor *one, ll_layer *p, const node_calls *calls, one_call call, const char *word,
                          cu_graph_exec *exec)
{
    cu_stream stream = one->card.streams[0];
    cu_graph graph = NULL;
    const int expected = one->in->how.hooks ? 2 : 1; /* a hook's receive is a kernel of its own */
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_OK(call(p, one, stream));
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    if (!graph) return;
    const int kernels = count_kernels(calls, graph, word);
    CHECK(kernels == expected, "%d kernels of a %s, expected %d", kernels, word, expected);
    if (CHECK_OK(CUDA_CALL(GraphInstantiate, exec, graph, 0))) make_ready(*exec, stream);
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
}

/* Each call in a graph of its own, which then runs. */
static void trial_kernels(expar_group *group, void *shared)
{
    const node_calls calls = find_node_calls();
    actor one;
    ll_layer p;
    cu_graph_exec there = NULL, device_state = NULL;
    if (!actor_begin(&one, group, shared) || !ll_layer_open(&p, &one)) return;
    CHECK_OK(expar_barrier_all(group));
    cu_stream stream = one.card.streams[0];
    bool good = go_eager(&one, &p, 0, stream) && CHECK(calls.get_nodes && calls.get_type, "the driver's graphs");
    if (good) check_kernels(&one, &p, &calls, call_dispatch, "dispatch", &there);
    if (there) check_kernels(&one, &p, &calls, call_combine, "combine", &device_state);
    CHECK_OK(expar_barrier_all(group));
    const int64_t most = 4 * random_test_rounds(INPUTS / 4);
    for (int i = 0; device_state && i < INPUTS && i < most && check_failures() == 0; i++) {
        good = ll_layer_upload(&p, &one, i, stream) && CHECK_OK(CUDA_CALL(GraphLaunch, there, stream)) &&
               CHECK_OK(CUDA_CALL(GraphLaunch, device_state, stream)) &&
               CHECK(ll_layer_check(&p, &one, i, stream), "two graphs with input %d", i);
        if (!good) break;
    }
    CHECK_OK(expar_barrier_all(group));
    if (there) CHECK_OK(CUDA_CALL(GraphExecDestroy, there));
    if (device_state) CHECK_OK(CUDA_CALL(GraphExecDestroy, device_state));
    ll_layer_release(&p);
    ll_layer_close(&p);
    actor_end(&one);
}

static void test_one_kernel_a_call(void **state)
{
    (void)state;
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT}, trial_kernels);
    run(&(manner){.format = LLO_FP8, .sum = EXPAR_LL_SUM_REDUCED}, trial_kernels);
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .coded = true}, trial_kernels);
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .masking = true}, trial_kernels);
}

static void test_one_kernel_a_phase(void **state)
{
    (void)state;
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .hooks = true}, trial_kernels);
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .hooks = true, .coded = true}, trial_kernels);
    run(&(manner){.sum = EXPAR_LL_SUM_EXACT, .hooks = true, .masking = true}, trial_kernels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays),
        cmocka_unit_test(test_replays_of_hooks),
        cmocka_unit_test(test_replays_of_fp8_and_reduced_sums),
        cmocka_unit_test(test_one_kernel_a_call),
        cmocka_unit_test(test_one_kernel_a_phase),
    };
    if (!names_are_known()) printf("NOT CHECKED: names of kernels, which drivers before CUDA 12.3 do not tell\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
