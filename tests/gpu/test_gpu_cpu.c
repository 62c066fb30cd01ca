/* SPDX-License-Identifier: Apache-2.0 */
/* Each option of dispatch and combine, and dispatches with a handle, by the CPU executor and by the CUDA executor in
 * one group. The same inputs must give the same bytes. */
#include "ep/harness/check.h"
#include "ep/harness/pitched.h"
#include "ep/harness/ranks.h"
#include "ep/harness/traffic.h"
#include "gpu/mirror.h"
#include "oracle/unit.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 40

typedef struct trial {
    int32_t ranks, hidden, topk, experts, alignment, scales;
    expar_dtype dtype, scale_dtype;
    bool by_hand, without_idx, wide, weights, worst, expert_major, expert_weights, biases;
    bool repeated;    /* by a dispatch with the handle of the first */
    int64_t short_by; /* of the worst-case size: rows that do not fit on the ranks that receive most */
    int32_t channels, slots;
    expar_ep_path there[8], back[8];
    int64_t tokens[8];
    uint64_t seed;
} trial;

static trial trial_draw(uint64_t seed)
{
    random_source random = random_start(seed);
    static const expar_dtype dtypes[] = {EXPAR_BF16, EXPAR_F16, EXPAR_F32, EXPAR_F8E4M3, EXPAR_I8};
    trial t = {.ranks = (int32_t)random_between(&random, 1, 4), .seed = seed};
    t.dtype = dtypes[random_between(&random, 0, 4)];
    t.hidden = 16 * (int32_t)random_between(&random, 1, 60);
    t.topk = (int32_t)random_between(&random, 1, 9);
    t.experts = t.ranks * (int32_t)random_between(&random, 1, 6);
    t.alignment = (int32_t)random_between(&random, 0, 5);
    if (expar_dtype_bytes(t.dtype) == 1) t.scales = (int32_t)random_between(&random, 0, 40);
    t.scale_dtype = random_once_in(&random, 2) ? EXPAR_F32 : EXPAR_I32;
    t.by_hand = random_once_in(&random, 4);
    t.without_idx = t.by_hand && random_once_in(&random, 2);
    t.wide = random_once_in(&random, 2);
    t.weights = !t.without_idx && random_once_in(&random, 2);
    t.worst = !t.without_idx && random_once_in(&random, 3);
    t.expert_major = !t.without_idx && !t.by_hand && random_once_in(&random, 3);
    t.expert_weights = t.expert_major && random_once_in(&random, 2);
    t.biases = random_once_in(&random, 2);
    t.short_by = t.worst && random_once_in(&random, 2) ? random_between(&random, 1, 100) : -3;
    t.channels = (int32_t)random_between(&random, 0, 5);
    t.slots = (int32_t)random_between(&random, 0, 5);
    for (int r = 0; r < 8; r++) {
        static const expar_ep_path paths[] = {EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_DIRECT, EXPAR_EP_PATH_QUEUE};
        t.there[r] = paths[random_between(&random, 0, 2)];
        t.back[r] = random_once_in(&random, 2) ? EXPAR_EP_PATH_AUTO : EXPAR_EP_PATH_QUEUE;
        t.tokens[r] = random_once_in(&random, 5) ? 0 : random_between(&random, 1, 150);
    }
    t.repeated = random_once_in(&random, 2);
    return t;
}

/* Random bits, but no floats of odd kinds in combine's rows: the dispatch carries any bits. */
static expar_tensor fill_bits(random_source *random, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor tensor = pitched_make(dtype, rows, columns, 0, false);
    unsigned char *data = tensor.data;
    for (size_t i = 0; i < (size_t)(rows * columns) * expar_dtype_bytes(dtype); i++)
        data[i] = (unsigned char)random_bits(random);
    return tensor;
}

static expar_tensor fill_experts(random_source *random, const trial *t, int64_t rows)
{
    expar_tensor idx = pitched_make(t->wide ? EXPAR_I64 : EXPAR_I32, rows, t->topk, 0, false);
    for (int64_t i = 0; i < rows * t->topk; i++) {
        int64_t expert = random_between(random, -1, t->experts - 1);
        if (t->wide)
            ((int64_t *)idx.data)[i] = expert;
        else
            ((int32_t *)idx.data)[i] = (int32_t)expert;
    }
    return idx;
}

static expar_tensor fill_in_rank(random_source *random, const trial *t, int64_t rows)
{
    expar_tensor in_rank = pitched_make(EXPAR_U8, rows, t->ranks, 0, false);
    for (int64_t i = 0; i < rows * t->ranks; i++)
        ((uint8_t *)in_rank.data)[i] = random_once_in(random, 2);
    return in_rank;
}

static expar_ep_dispatch_args dispatch_args(const trial *t, int32_t rank, random_source *random)
{
    int64_t rows = t->tokens[rank];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = fill_bits(random, t->dtype, rows, t->hidden);
    args.num_experts = t->experts;
    args.expert_alignment = t->alignment;
    if (!t->without_idx) args.topk_idx = fill_experts(random, t, rows);
    if (t->weights) args.topk_weights = fill_bits(random, EXPAR_F32, rows, t->topk);
    if (t->by_hand) args.token_in_rank = fill_in_rank(random, t, rows);
    if (t->scales) args.x_scales = fill_bits(random, t->scale_dtype, rows, t->scales);
    int64_t all = 0;
    for (int32_t r = 0; r < t->ranks; r++)
        all += t->tokens[r];
    if (t->worst) args.num_worst_tokens = all > t->short_by ? all - t->short_by : 1;
    args.path = t->there[rank];
    args.expert_major = args.zero_padding = t->expert_major;
    return args;
}

static void dispatch_args_free(expar_ep_dispatch_args *args)
{
    pitched_free(&args->x);
    pitched_free(&args->topk_idx);
    pitched_free(&args->topk_weights);
    pitched_free(&args->token_in_rank);
    pitched_free(&args->x_scales);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static bool same_rows(const char *name, const expar_tensor *a, const expar_tensor *b, int64_t rows)
{
    if (!a->ndim && !b->ndim) return true;
    size_t bytes = (size_t)(rows * a->shape[1]) * expar_dtype_bytes(a->dtype);
    return CHECK(a->ndim == b->ndim && a->dtype == b->dtype && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1],
                 "%s has another shape on the GPU", name) &&
           CHECK(memcmp(a->data, b->data, bytes) == 0, "%s differs on the GPU", name);
}

static bool same_results(const trial *t, const expar_ep_dispatch_result *cpu, const expar_ep_dispatch_result *gpu)
{
    int64_t rows = cpu->num_recv_tokens;
    bool same = CHECK(gpu->num_recv_tokens == rows, "R is %lld on the GPU, %lld on the CPU",
                      (long long)gpu->num_recv_tokens, (long long)rows) &
                same_rows("recv_topk_idx", &cpu->recv_topk_idx, &gpu->recv_topk_idx, cpu->recv_topk_idx.shape[0]) &
                same_rows("recv_topk_weights", &cpu->recv_topk_weights, &gpu->recv_topk_weights, rows) &
                same_rows("recv_row_map", &cpu->recv_row_map, &gpu->recv_row_map, cpu->recv_row_map.shape[0]);
    int64_t x_rows = t->expert_major ? cpu->recv_x.shape[0] : rows;
    same &= same_rows("recv_x", &cpu->recv_x, &gpu->recv_x, x_rows) &
            same_rows("recv_scales", &cpu->recv_scales, &gpu->recv_scales, x_rows);
    same &= CHECK(!cpu->recv_tokens_per_expert == !gpu->recv_tokens_per_expert, "only one of them gives counts");
    for (int32_t e = 0; same && cpu->recv_tokens_per_expert && e < cpu->num_local_experts; e++)
        same &= CHECK(cpu->recv_tokens_per_expert[e] == gpu->recv_tokens_per_expert[e],
                      "recv_tokens_per_expert[%d] differs on the GPU", (int)e);
    return same;
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static void fill_numbers(random_source *random, expar_tensor *tensor)
{
    oracle_type type = tensor->dtype == EXPAR_BF16 ? ORACLE_BF16 : tensor->dtype == EXPAR_F16 ? ORACLE_F16 : ORACLE_F32;
    traffic_fill_rows(random, type, tensor->shape[0], tensor->shape[1], tensor->data);
}

static expar_tensor numbers(random_source *random, expar_dtype dtype, int64_t rows, int64_t columns)
{
    expar_tensor tensor = pitched_make(dtype, rows, columns, 0, false);
    fill_numbers(random, &tensor);
    return tensor;
}

/* Rows of any float type may come back from a dispatch of any type. */
static void combine_both(const trial *t, expar_ep *cpu, expar_ep *gpu, int32_t rank, random_source *random,
                         const expar_ep_dispatch_result *on_cpu, const expar_ep_dispatch_result *on_gpu)
{
    expar_dtype dtype = expar_dtype_bytes(t->dtype) == 1 ? EXPAR_BF16 : t->dtype;
    int32_t hidden = dtype == t->dtype ? t->hidden : (t->hidden + 15) / 16 * 8;
    int64_t rows = on_cpu->recv_x.shape[0], tokens = t->tokens[rank];
    int64_t slots = t->expert_major ? on_cpu->recv_topk_idx.shape[0] : rows;
    expar_ep_combine_args a = EXPAR_EP_COMBINE_ARGS_INIT;
    a.x = numbers(random, dtype, rows, hidden);
    a.expert_major = t->expert_major;
    if (t->expert_weights) a.expert_weights = numbers(random, EXPAR_F32, slots, t->topk);
    if (t->weights) a.topk_weights = numbers(random, EXPAR_F32, slots, t->topk);
    if (t->biases) a.bias[0] = numbers(random, dtype, tokens, hidden);
    if (t->biases && t->alignment % 2) a.bias[1] = numbers(random, dtype, tokens, hidden);
    a.out_y = pitched_make(dtype, tokens, hidden, 0, false);
    if (t->weights) a.out_topk_weights = pitched_make(EXPAR_F32, tokens, t->topk, 0, false);
    a.path = t->back[rank];
    expar_ep_combine_args b = a;
    b.out_y = pitched_make(dtype, tokens, hidden, 0, false);
    if (t->weights) b.out_topk_weights = pitched_make(EXPAR_F32, tokens, t->topk, 0, false);
    a.handle = on_cpu->handle;
    b.handle = on_gpu->handle;
    if (CHECK_OK(expar_ep_combine(cpu, &a, NULL)) && CHECK_OK(mirror_ep_combine(gpu, &b, NULL))) {
        same_rows("y", &a.out_y, &b.out_y, tokens);
        same_rows("out_topk_weights", &a.out_topk_weights, &b.out_topk_weights, tokens);
    }
    expar_tensor *mine[] = {&a.x,     &a.expert_weights,   &a.topk_weights, &a.bias[0],         &a.bias[1],
                            &a.out_y, &a.out_topk_weights, &b.out_y,        &b.out_topk_weights};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        pitched_free(mine[i]);
}

/* ---- a trial ----------------------------------------------------------------------------------------------------- */

/* By both, compared. True when they went; the results are the caller's. */
static bool dispatch_both(const trial *t, expar_ep *cpu, expar_ep *gpu, const expar_ep_dispatch_args *args,
                          const expar_ep_handle *const handles[2], expar_ep_dispatch_result results[2])
{
    expar_ep_dispatch_args on_cpu = *args, on_gpu = *args;
    on_cpu.handle = handles[0];
    on_gpu.handle = handles[1];
    results[0] = results[1] = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(cpu, &on_cpu, &results[0]);
    if (!CHECK(status == EXPAR_OK || status == EXPAR_ERR_DROPPED, "on the CPU: %s", expar_last_error())) return false;
    expar_status gpu_status = mirror_ep_dispatch(gpu, &on_gpu, &results[1]);
    return CHECK(gpu_status == status, "%s on the GPU, %s on the CPU: %s", expar_status_string(gpu_status),
                 expar_status_string(status), expar_last_error()) &&
           same_results(t, &results[0], &results[1]);
}

static void give_back(const expar_ep_dispatch_result results[2])
{
    expar_ep_output_release(results[0].output);
    mirror_output_release(results[1].output);
    expar_ep_handle_release(results[0].handle);
    expar_ep_handle_release(results[1].handle);
}

/* Other rows, by the routing of the first dispatch. */
static void repeat_both(const trial *t, expar_ep *cpu, expar_ep *gpu, int32_t rank, random_source *random,
                        const expar_ep_dispatch_result first[2])
{
    const expar_ep_handle *const handles[2] = {first[0].handle, first[1].handle};
    expar_ep_dispatch_result results[2];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = fill_bits(random, t->dtype, t->tokens[rank], t->hidden);
    if (t->scales) args.x_scales = fill_bits(random, t->scale_dtype, t->tokens[rank], t->scales);
    args.path = t->back[rank];
    args.expert_major = args.zero_padding = t->expert_major;
    CHECK(dispatch_both(t, cpu, gpu, &args, handles, results), "the dispatch with a handle");
    give_back(results);
    dispatch_args_free(&args);
}

static void perform(const trial *t, expar_ep *cpu, expar_ep *gpu, int32_t rank)
{
    static const expar_ep_handle *const none[2] = {NULL, NULL};
    random_source random = random_start(t->seed * 64 + (uint64_t)rank);
    expar_ep_dispatch_args args = dispatch_args(t, rank, &random);
    expar_ep_dispatch_result first[2];
    bool went = dispatch_both(t, cpu, gpu, &args, none, first);
    if (went) combine_both(t, cpu, gpu, rank, &random, &first[0], &first[1]);
    if (went && t->repeated) repeat_both(t, cpu, gpu, rank, &random, first);
    give_back(first);
    dispatch_args_free(&args);
}

static void body(expar_group *group, void *shared)
{
    const trial *t = shared;
    expar_ep *cpu = NULL, *gpu = NULL;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 150;
    config.max_row_bytes = 4 * 960;
    config.max_topk = 9;
    config.max_experts = 6 * t->ranks;
    config.max_scales = 40;
    config.pool_bytes = (int64_t)48 << 20;
    config.num_channels = t->channels;
    config.ring_slots = t->slots;
    if (!CHECK_OK(expar_ep_create(group, &config, &cpu)) || !CHECK_OK(mirror_ep_create(group, &config, &gpu))) return;
    perform(t, cpu, gpu, expar_group_rank(group));
    CHECK_OK(mirror_ep_destroy(gpu));
    CHECK_OK(expar_ep_destroy(cpu));
}

static bool trial_passes(trial *t)
{
    ranks_plan plan = {.kind = RANKS_THREADS, .size = t->ranks};
    bool passed = ranks_run(&plan, body, t);
    if (!passed)
        printf("N %d H %d K %d E %d dtype %s scales %d hand %d idx %d worst %d short %d "
               "major %d C %d S %d repeated %d\n",
               t->ranks, t->hidden, t->topk, t->experts, expar_dtype_string(t->dtype), t->scales, t->by_hand,
               !t->without_idx, t->worst, (int)t->short_by, t->expert_major, t->channels, t->slots, t->repeated);
    return passed;
}

/* The first that this process does on a GPU: several ranks' copies, streams and kernels are new to the driver at once,
   and kernels wait for each other. Nobody waits for the counts. */
static void test_first_call(void **state)
{
    (void)state;
    trial t = {.ranks = 4,
               .hidden = 368,
               .topk = 4,
               .experts = 20,
               .dtype = EXPAR_F32,
               .wide = true,
               .worst = true,
               .channels = 4,
               .slots = 2,
               .tokens = {130, 94, 133, 114},
               .seed = 1};
    assert_true(trial_passes(&t));
}

static void test_options(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("options on CPU and GPU");
    for (int64_t round = random_test_rounds(ROUNDS); round > 0; round--, seed++) {
        trial t = trial_draw(seed);
        bool passed = trial_passes(&t);
        if (!passed) printf("EXPAR_TEST_SEED=%llu\n", (unsigned long long)seed);
        assert_true(passed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_call), cmocka_unit_test(test_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
