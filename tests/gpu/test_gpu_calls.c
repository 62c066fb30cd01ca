/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on GPUs that one rank's arguments spoil: every rank is told, by the call or by its event, and the buffer goes
 * on. And two buffers of one group on two streams, each with as many SMs as there are. */
#include "ep/harness/ranks.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS LAYER_RANKS
#define ODD   1 /* the rank whose arguments are wrong */

typedef struct actor {
    expar_group *group;
    int32_t rank;
    const layer_inputs *in;
    card card;
    expar_ep *ep;
    layer layer; /* one that was made, so that there is a handle */
} actor;

static expar_ep *make_buffer(actor *one, int32_t num_sms)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = 40;
    config.max_row_bytes = 128;
    config.max_topk = 3;
    config.max_experts = 8;
    config.num_sms = num_sms;
    config = card_config(&one->card, &config);
    CHECK_OK(expar_ep_create(one->group, &config, &ep));
    return ep;
}

static bool begin(actor *one, expar_group *group, void *shared)
{
    *one = (actor){.group = group, .rank = expar_group_rank(group), .in = shared};
    return card_open(&one->card, one->rank) && (one->ep = make_buffer(one, 0)) != NULL &&
           layer_open(&one->layer, &one->card, one->in->t, one->rank) && CHECK_OK(expar_barrier_all(group)) &&
           layer_go(&one->layer, one->ep, one->in, one->card.streams[0]);
}

/* The buffer is as good as before. */
static void end(actor *one)
{
    layer_go(&one->layer, one->ep, one->in, one->card.streams[0]);
    layer_release(&one->layer);
    CHECK_OK(expar_ep_destroy(one->ep));
    layer_close(&one->layer);
    card_close(&one->card);
}

static void run(ranks_body body)
{
    const ranks_plan ranks = {.kind = RANKS_THREADS};
    assert_true(layers_run(&ranks, 7, body));
}

/* This rank must hear this of the odd rank's error. */
static void hear(const actor *one, expar_status status, expar_status odd, const char *call, const char *word)
{
    expar_status expected = one->rank == ODD ? odd : EXPAR_ERR_REMOTE;
    CHECK(status == expected, "%s on rank %d: %s", expar_status_string(status), one->rank, expar_last_error());
    if (one->rank == ODD)
        CHECK_TEXT(call, word);
    else
        CHECK_TEXT(call, word, "rank 1");
}

static expar_ep_dispatch_args dispatch_args(const actor *one, bool cached)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = one->layer.x;
    if (!cached) args.topk_idx = one->layer.idx;
    if (cached) args.handle = one->layer.result.handle;
    args.num_experts = one->in->t->job.num_experts;
    args.stream = one->card.streams[0];
    return args;
}

static expar_ep_combine_args combine_args(const actor *one)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = one->layer.back;
    args.x.shape[0] = one->layer.result.num_recv_tokens;
    args.handle = one->layer.result.handle;
    args.out_y = one->layer.y;
    args.stream = one->card.streams[0];
    return args;
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void spoil_output(const actor *one, expar_ep_dispatch_args *args)
{
    if (one->rank != ODD) return;
    args->out_x = one->layer.back;
    args->out_x.shape[0] = one->layer.result.num_recv_tokens - 1;
}

/* A result nobody owns: the call failed. */
static expar_status dispatch(const actor *one, const expar_ep_dispatch_args *args, expar_event **event)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(one->ep, args, &result);
    if (event) *event = result.event;
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static void trial_small_output(expar_group *group, void *shared)
{
    actor one;
    if (!begin(&one, group, shared)) return;
    for (int cached = 0; cached < 2; cached++) {
        expar_ep_dispatch_args args = dispatch_args(&one, cached);
        spoil_output(&one, &args);
        hear(&one, dispatch(&one, &args, NULL), EXPAR_ERR_BUFFER_SIZE, "expar_ep_dispatch", "out_x");
    }
    end(&one);
}

static void test_output_that_is_too_small(void **state)
{
    (void)state;
    run(trial_small_output);
}

static void trial_combine_shape(expar_group *group, void *shared)
{
    actor one;
    if (!begin(&one, group, shared)) return;
    expar_ep_combine_args args = combine_args(&one);
    if (one.rank == ODD) args.x.shape[0]++;
    hear(&one, expar_ep_combine(one.ep, &args, NULL), EXPAR_ERR_SHAPE, "expar_ep_combine", "rows");
    end(&one);
}

static void test_combine_of_a_wrong_shape(void **state)
{
    (void)state;
    run(trial_combine_shape);
}

static void trial_different_calls(expar_group *group, void *shared)
{
    actor one;
    if (!begin(&one, group, shared)) return;
    expar_ep_dispatch_args there = dispatch_args(&one, true);
    expar_ep_combine_args back = combine_args(&one);
    expar_status status = one.rank == ODD ? expar_ep_combine(one.ep, &back, NULL) : dispatch(&one, &there, NULL);
    CHECK(status == EXPAR_ERR_MISMATCH, "%s: %s", expar_status_string(status), expar_last_error());
    CHECK_TEXT("rank 1 called expar_ep_combine", "rank 0");
    end(&one);
}

static void test_different_calls(void **state)
{
    (void)state;
    run(trial_different_calls);
}

/* Far off, just after the last expert, and below the one negative number that means none. */
static const int64_t bad_indices[] = {99, 8, -2, ((int64_t)1 << 32) + 1};
#define BAD_INDICES (sizeof bad_indices / sizeof *bad_indices)

static void put_bad_index(const actor *one, int64_t bad)
{
    if (one->rank != ODD) return;
    CHECK_OK(CUDA_CALL(MemcpyHtoD, (cu_address)(uintptr_t)one->layer.idx.data + 4 * sizeof bad, &bad, sizeof bad));
    CHECK_OK(cuda_synchronize());
}

/* An index that only the device sees: told by the call, and where nobody waits by the event. */
static void hear_of_index(const actor *one, int64_t bad)
{
    char text[64];
    snprintf(text, sizeof text, "topk_idx[1][1] is %lld; expected", (long long)bad);
    put_bad_index(one, bad);
    CHECK_OK(expar_barrier_all(one->group));
    expar_ep_dispatch_args args = dispatch_args(one, false);
    hear(one, dispatch(one, &args, NULL), EXPAR_ERR_INDEX, "expar_ep_dispatch", text);
    expar_event *event = NULL;
    args.num_worst_tokens = one->layer.spare;
    args.async_finish = 1;
    args.expert_major = args.zero_padding = 1;
    CHECK_OK(dispatch(one, &args, &event));
    hear(one, expar_event_wait(event), EXPAR_ERR_INDEX, "expar_ep_dispatch", text);
    expar_event_release(event);
    CHECK_OK(expar_barrier_all(one->group));
}

static void trial_bad_index(expar_group *group, void *shared)
{
    actor one;
    if (!begin(&one, group, shared)) return;
    for (size_t i = 0; i < BAD_INDICES && !check_failures(); i++)
        hear_of_index(&one, bad_indices[i]);
    end(&one);
}

static void test_index_out_of_range(void **state)
{
    (void)state;
    run(trial_bad_index);
}

/* ---- the layout by itself ---------------------------------------------------------------------------------------- */

#define MOST_EXPERTS 8

typedef struct counted {
    int32_t ranks[RANKS], nodes[1], experts[MOST_EXPERTS];
} counted;

/* As if the odd rank's slot [1][1] had none. */
static counted count_on_host(const actor *one)
{
    counted c = {0};
    const traffic *t = one->in->t;
    int32_t topk = t->job.topk, locals = t->job.num_experts / RANKS;
    for (int64_t token = 0; token < t->inputs[one->rank].num_tokens; token++) {
        bool to[RANKS] = {false}, anywhere = false;
        for (int32_t k = 0; k < topk; k++) {
            int64_t expert = t->inputs[one->rank].topk_idx[token * topk + k];
            if (expert < 0 || (one->rank == ODD && token == 1 && k == 1)) continue;
            c.experts[expert]++;
            to[expert / locals] = anywhere = true;
        }
        for (int32_t r = 0; r < RANKS; r++)
            c.ranks[r] += to[r];
        c.nodes[0] += anywhere;
    }
    return c;
}

/* An index out of range counts as none, and nothing is touched out of bounds. */
static void count_with(const actor *one, int64_t bad, cu_address memory)
{
    counted got, expected = count_on_host(one), *on = (counted *)(uintptr_t)memory;
    expar_ep_layout layout = EXPAR_EP_LAYOUT_INIT;
    layout.tokens_per_rank = on->ranks;
    layout.tokens_per_node = on->nodes;
    layout.tokens_per_expert = on->experts;
    layout.stream = one->card.streams[0];
    put_bad_index(one, bad);
    CHECK_OK(CUDA_CALL(MemsetD8, memory, 0x5a, sizeof got));
    CHECK_OK(cuda_synchronize());
    CHECK_OK(expar_ep_get_layout(one->group, &one->layer.idx, one->in->t->job.num_experts, &layout));
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[0]));
    CHECK_OK(CUDA_CALL(MemcpyDtoH, &got, memory, sizeof got));
    CHECK(memcmp(&got, &expected, sizeof got) == 0, "other counts with %lld: %d tokens to rank 0, expected %d",
          (long long)bad, got.ranks[0], expected.ranks[0]);
}

static void trial_layout(expar_group *group, void *shared)
{
    actor one;
    cu_address memory;
    if (!begin(&one, group, shared) || !CHECK_OK(CUDA_CALL(MemAlloc, &memory, sizeof(counted)))) return;
    for (size_t i = 0; i < BAD_INDICES; i++)
        count_with(&one, bad_indices[i], memory);
    CHECK_OK(expar_barrier_all(group));
    /* It waits for kernels of all ranks on the GPU, which may not wait for this rank then. */
    CHECK_OK(CUDA_CALL(MemFree, memory));
    CHECK_OK(expar_barrier_all(group));
    end(&one);
}

static void test_layout_with_an_index_out_of_range(void **state)
{
    (void)state;
    run(trial_layout);
}

/* ---- rows that do not fit ---------------------------------------------------------------------------------------- */

/* Told by the event of the dispatch that is the first, and by the call itself where it has the handle of that. */
static void trial_dropped(expar_group *group, void *shared)
{
    actor one;
    if (!begin(&one, group, shared)) return;
    int64_t coming = one.in->t->arrivals[one.rank].num_rows;
    expar_ep_dispatch_args args = dispatch_args(&one, false);
    expar_ep_dispatch_result first = EXPAR_EP_DISPATCH_RESULT_INIT, second = first;
    args.num_worst_tokens = 5;
    args.async_finish = 1;
    CHECK(coming > 5, "only %d rows come", (int)coming);
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &first))) return;
    CHECK_STATUS(EXPAR_ERR_DROPPED, expar_event_wait(first.event));
    CHECK_TEXT("expar_ep_dispatch", "num_worst_tokens is too small");
    args = dispatch_args(&one, true);
    args.handle = first.handle;
    CHECK_STATUS(EXPAR_ERR_DROPPED, expar_ep_dispatch(one.ep, &args, &second));
    CHECK_TEXT("expar_ep_dispatch", "num_worst_tokens is too small");
    CHECK(second.num_dropped_tokens == coming - 5, "%d were dropped", (int)second.num_dropped_tokens);
    expar_ep_output_release(second.output);
    expar_ep_output_release(first.output);
    expar_ep_handle_release(first.handle);
    expar_event_release(first.event);
    end(&one);
}

static void test_rows_that_find_no_space(void **state)
{
    (void)state;
    run(trial_dropped);
}

/* ---- two buffers ------------------------------------------------------------------------------------------------- */

/* Kernels of both wait for peers, and each takes all SMs that its rank may have: side by side they would keep each
   other's partners from running. */
static void trial_two_buffers(expar_group *group, void *shared)
{
    actor one = {.group = group, .rank = expar_group_rank(group), .in = shared};
    int32_t gpus = 0;
    if (!card_open(&one.card, one.rank) || !CHECK_OK(cuda_device_count(&gpus))) return;
    int32_t sharers = (RANKS + gpus - 1) / gpus;
    expar_ep *eps[2];
    layer layers[2];
    for (int i = 0; i < 2; i++) {
        eps[i] = make_buffer(&one, one.card.device->num_sms / sharers);
        if (!eps[i] || !layer_open(&layers[i], &one.card, one.in->t, one.rank)) return;
        layers[i].worst = layers[i].spare;
        layers[i].path = i ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO;
    }
    CHECK_OK(expar_barrier_all(group));
    for (int i = 0; i < 2; i++)
        layer_upload(&layers[i], one.in->t, one.in->a, one.card.streams[i]);
    for (int round = 0; round < 40 && !check_failures(); round++) {
        one.ep = eps[round % 2];
        one.layer = layers[round % 2];
        expar_ep_dispatch_args args = dispatch_args(&one, false);
        args.num_worst_tokens = one.layer.spare;
        args.path = one.layer.path;
        args.stream = one.card.streams[round % 2];
        CHECK_OK(dispatch(&one, &args, NULL));
    }
    for (int i = 0; i < 2 && !check_failures(); i++)
        layer_go(&layers[i], eps[i], one.in, one.card.streams[i]);
    for (int i = 0; i < 2; i++) {
        layer_release(&layers[i]);
        CHECK_OK(expar_ep_destroy(eps[i]));
    }
    for (int i = 0; i < 2; i++)
        layer_close(&layers[i]);
    card_close(&one.card);
}

static void test_two_buffers_on_two_streams(void **state)
{
    (void)state;
    run(trial_two_buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_that_is_too_small),
        cmocka_unit_test(test_combine_of_a_wrong_shape),
        cmocka_unit_test(test_different_calls),
        cmocka_unit_test(test_index_out_of_range),
        cmocka_unit_test(test_layout_with_an_index_out_of_range),
        cmocka_unit_test(test_rows_that_find_no_space),
        cmocka_unit_test(test_two_buffers_on_two_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
