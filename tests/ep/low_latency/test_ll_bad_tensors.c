/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of a low-latency call, damaged in every way. Rank 1 of 3 alone finds it, before anything is sent or
 * written. The others learn of it, and the next calls are as if nothing had been. Rows are FP8, so that there are
 * scales, and all results lie in the caller's memory. And formats that differ between ranks. */
#include "ep/low_latency/wrong.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { HIDDEN = 256 };

/* ---- damages ----------------------------------------------------------------------------------------------------- */

static void without_data(expar_tensor *t)
{
    t->data = NULL;
}
static void on_a_gpu(expar_tensor *t)
{
    t->device.type = EXPAR_CUDA;
}
static void of_another_dtype(expar_tensor *t)
{
    t->dtype = EXPAR_I8;
}
static void of_fewer_dimensions(expar_tensor *t)
{
    t->ndim--;
}
static void of_no_dimensions(expar_tensor *t)
{
    t->ndim = 0;
}
static void of_negative_dimensions(expar_tensor *t)
{
    t->ndim = -1;
}
static void of_negative_extent(expar_tensor *t)
{
    t->shape[0] = -1;
}
static void longer(expar_tensor *t)
{
    t->shape[0]++;
}
static void narrower(expar_tensor *t)
{
    t->shape[t->ndim - 1]--;
}
static void spread(expar_tensor *t)
{
    t->strides[t->ndim - 1] = 2;
}
static void reversed(expar_tensor *t)
{
    t->strides[0] = -t->strides[0];
}
static void overlapping(expar_tensor *t)
{
    t->strides[0] = 1;
}
static void endless(expar_tensor *t)
{
    t->strides[0] = INT64_MAX - 7;
}
static void at_odd_address(expar_tensor *t)
{
    t->data = (char *)t->data + 1;
}

static const struct damage {
    const char *name;
    void (*make)(expar_tensor *t);
    expar_status status;
    int32_t least_ndim;
} damages[] = {
    {"without data", without_data, EXPAR_ERR_NULL, 1},
    {"on a GPU", on_a_gpu, EXPAR_ERR_DEVICE, 1},
    {"of another dtype", of_another_dtype, EXPAR_ERR_DTYPE, 1},
    {"of fewer dimensions", of_fewer_dimensions, EXPAR_ERR_SHAPE, 1},
    {"of no dimensions", of_no_dimensions, EXPAR_ERR_SHAPE, 1},
    {"of negative dimensions", of_negative_dimensions, EXPAR_ERR_SHAPE, 1},
    {"of negative extent", of_negative_extent, EXPAR_ERR_SHAPE, 1},
    {"longer", longer, EXPAR_ERR_SHAPE, 1},
    {"narrower", narrower, EXPAR_ERR_SHAPE, 1},
    {"spread", spread, EXPAR_ERR_STRIDE, 1},
    {"reversed", reversed, EXPAR_ERR_STRIDE, 1},
    {"overlapping", overlapping, EXPAR_ERR_STRIDE, 2},
    {"endless", endless, EXPAR_ERR_STRIDE, 2},
    {"at an odd address", at_odd_address, EXPAR_ERR_ALIGNMENT, 1},
};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static const struct argument {
    const char *name;
    const char *other; /* which may be named instead: what no longer fits it */
    size_t at;         /* in the arguments */
    bool combine;
} arguments[] = {
    {"x", "topk_idx", offsetof(expar_ll_dispatch_args, x), false},
    {"topk_idx", "topk_weights", offsetof(expar_ll_dispatch_args, topk_idx), false},
    {"topk_weights", NULL, offsetof(expar_ll_dispatch_args, topk_weights), false},
    {"out_x", NULL, offsetof(expar_ll_dispatch_args, out_x), false},
    {"out_scales", NULL, offsetof(expar_ll_dispatch_args, out_scales), false},
    {"out_count", NULL, offsetof(expar_ll_dispatch_args, out_count), false},
    {"expert_recv_stats", NULL, offsetof(expar_ll_dispatch_args, expert_recv_stats), false},
    {"wait_ns", NULL, offsetof(expar_ll_dispatch_args, wait_ns), false},
    {"x", NULL, offsetof(expar_ll_combine_args, x), true},
    {"topk_idx", NULL, offsetof(expar_ll_combine_args, topk_idx), true},
    {"topk_weights", NULL, offsetof(expar_ll_combine_args, topk_weights), true},
    {"out_y", NULL, offsetof(expar_ll_combine_args, out_y), true},
    {"wait_ns", NULL, offsetof(expar_ll_combine_args, wait_ns), true},
};

typedef struct seat {
    const lowlat_traffic *traffic;
    lowlat_answers *back;
    expar_ll *ll;
    const expar_ll_handle *handle;
    int32_t rank;
} seat;

typedef union call_args {
    expar_ll_dispatch_args there;
    expar_ll_combine_args back;
} call_args;

static void prepare(const seat *s, lowlat_call *call, bool combine, bool hook)
{
    const lowlat_choice choice = {
        .hook = hook, .own_x = true, .own_scales = true, .own_count = true, .stats = true, .waits = true};
    if (combine)
        lowlat_prepare_combine(call, s->ll, s->traffic, s->back, s->rank, &choice, s->handle);
    else
        lowlat_prepare_dispatch(call, s->ll, s->traffic, s->rank, &choice);
}

/* A sum over all of a result's bytes, 0 where there is none. */
static uint64_t sum_of(const expar_tensor *t)
{
    uint64_t sum = 0, bytes = expar_dtype_bytes(t->dtype);
    if (!t->data) return 0;
    for (int32_t i = 0; i < t->ndim; i++)
        bytes *= (uint64_t)t->shape[i];
    for (uint64_t i = 0; i < bytes; i++)
        sum = sum * 31 + ((const uint8_t *)t->data)[i];
    return sum;
}

/* Checks all that the call could have written. */
static uint64_t sum_of_results(const lowlat_call *call)
{
    const expar_ll_dispatch_args *there = &call->there_args;
    const expar_ll_combine_args *back = &call->back_args;
    return sum_of(&there->out_x) + 3 * sum_of(&there->out_scales) + 5 * sum_of(&there->out_count) +
           7 * sum_of(&there->expert_recv_stats) + 11 * sum_of(&there->wait_ns) + 13 * sum_of(&back->out_y) +
           17 * sum_of(&back->wait_ns);
}

static expar_status make(const seat *s, lowlat_call *call, const call_args *args, bool combine)
{
    expar_status status = combine ? expar_ll_combine(s->ll, &args->back, &call->back)
                                  : expar_ll_dispatch(s->ll, &args->there, &call->there);
    expar_ll_hook *hook = combine ? call->back.hook : call->there.hook;
    return status == EXPAR_OK && hook ? expar_ll_hook_call(hook, NULL) : status;
}

/* "…: x.data is NULL". */
static bool begins_with(const char *name)
{
    char words[32];
    return name && snprintf(words, sizeof words, ": %s", name) > 0 && strstr(expar_last_error(), words);
}

static bool names(const struct argument *which)
{
    return begins_with(which->name) || begins_with(which->other);
}

static void trial_damage(const seat *s, const struct argument *which, const struct damage *how, bool hook)
{
    const bool bad = s->rank == WRONG_RANK;
    lowlat_call call;
    call_args args;
    prepare(s, &call, which->combine, hook);
    if (which->combine)
        args.back = call.back_args;
    else
        args.there = call.there_args;
    expar_tensor *damaged = (expar_tensor *)(void *)((char *)&args + which->at);
    const bool applies = damaged->ndim >= how->least_ndim;
    const uint64_t before = sum_of_results(&call);
    if (bad && applies) how->make(damaged);
    const expar_status status = applies ? make(s, &call, &args, which->combine) : EXPAR_OK;
    if (applies) {
        CHECK(status == (bad ? how->status : EXPAR_ERR_REMOTE) && names(which), "%s%s %s%s gave %s (%s)", which->name,
              which->combine ? " of a combine" : "", how->name, hook ? ", with a hook," : "",
              expar_status_string(status), expar_last_error());
        if (!bad) CHECK_TEXT("rank 1 rejected", expar_status_string(how->status));
        if (bad) CHECK(sum_of_results(&call) == before, "%s %s: something was written", which->name, how->name);
    }
    lowlat_clean(&call);
}

/* ---- formats that differ ----------------------------------------------------------------------------------------- */

/* All are told of both formats; none but the first rank of another form is named. */
static void trial_formats(const seat *s, bool combine, bool hook)
{
    const bool other = s->rank == WRONG_RANK;
    lowlat_call call;
    prepare(s, &call, combine, hook);
    call_args args;
    if (combine) {
        args.back = call.back_args;
        if (other) args.back.format = EXPAR_LL_FORMAT_LOGFMT;
    } else {
        args.there = call.there_args;
        if (other) args.there.format = EXPAR_LL_FORMAT_FP8_ROUND;
    }
    CHECK_STATUS(EXPAR_ERR_MISMATCH, make(s, &call, &args, combine));
    if (combine)
        CHECK_TEXT("expar_ll_", "format is", "LOGFMT on rank 1", "expected the same", "PLAIN on rank");
    else
        CHECK_TEXT("expar_ll_", "format is", "FP8_ROUND on rank 1", "expected the same", "FP8 on rank");
    lowlat_clean(&call);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static void check_well(const seat *s)
{
    const lowlat_choice plain = {0};
    lowlat_round_trip(s->ll, s->traffic, &s->back, 1, s->rank, &plain);
}

static void trial(expar_group *group, void *shared)
{
    seat s = *(const seat *)shared;
    const lowlat_choice plain = {0};
    expar_ll_config config = wrong_config();
    lowlat_call first;
    s.rank = expar_group_rank(group);
    config.hidden = HIDDEN;
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    lowlat_prepare_dispatch(&first, s.ll, s.traffic, s.rank, &plain);
    CHECK(lowlat_trial(&first), "a dispatch");
    s.handle = first.there.handle;
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments && check_failures() == 0; i++) {
        for (size_t k = 0; k < sizeof damages / sizeof *damages; k++)
            for (int hook = 0; hook < 2; hook++)
                trial_damage(&s, &arguments[i], &damages[k], hook);
        check_well(&s);
    }
    for (int i = 0; i < 4; i++) {
        trial_formats(&s, i & 1, i & 2);
        check_well(&s);
    }
    CHECK(lowlat_is_right(&first), "what came first has changed");
    lowlat_clean(&first);
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_tensors(void **state)
{
    static const int64_t num_tokens[WRONG_RANKS] = {4, 5, 6};
    random_source random = random_start(31);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    const lowlat_plan plan = {.num_ranks = WRONG_RANKS,
                              .max_tokens = WRONG_TOKENS,
                              .hidden = HIDDEN,
                              .topk = WRONG_TOPK,
                              .num_experts = WRONG_EXPERTS,
                              .format = LLO_FP8,
                              .with_weights = true,
                              .num_tokens = num_tokens};
    seat shared = {.traffic = lowlat_traffic_make(&plan, &random)};
    (void)state;
    shared.back = lowlat_answers_make(shared.traffic, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    const bool passed = ranks_run(&ranks, trial, &shared);
    lowlat_answers_free(shared.back, shared.traffic);
    lowlat_traffic_free((lowlat_traffic *)(uintptr_t)shared.traffic);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
