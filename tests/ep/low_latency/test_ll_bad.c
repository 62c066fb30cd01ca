/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that one rank has wrong, and forms that do not fit: who says what, and that the buffer stays usable. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind;

#define BAD 1 /* the rank whose arguments are wrong */

/* One thing that is wrong, with what that rank returns and what its text holds. */
typedef struct wrong {
    const char *name;
    void (*spoil)(ll_round *round);
    expar_status status;
    const char *word;
} wrong;

typedef struct scene {
    expar_ll *ll;
    int32_t rank;
    const ll_case *c;
} scene;

/* ---- a dispatch that one rank gets wrong ------------------------------------------------------------------------- */

static void no_x(ll_round *r)
{
    r->dispatch.x = EXPAR_TENSOR_NONE;
}
static void x_of_bytes(ll_round *r)
{
    r->dispatch.x.dtype = EXPAR_I32;
}
static void x_narrow(ll_round *r)
{
    r->dispatch.x.shape[1] = 20;
}
static void x_unaligned(ll_round *r)
{
    r->dispatch.x.data = (uint8_t *)r->dispatch.x.data + 4;
}
static void x_strided(ll_round *r)
{
    r->dispatch.x.strides[1] = 2;
}
static void too_many_tokens(ll_round *r)
{
    r->dispatch.x.shape[0] = 7;
    r->dispatch.topk_idx.shape[0] = 7;
    r->dispatch.topk_weights.shape[0] = 7;
}
static void too_many_slots(ll_round *r)
{
    r->dispatch.topk_idx.shape[0] = 2;
    r->dispatch.topk_idx.shape[1] = r->dispatch.topk_idx.strides[0] = 5;
}
static void idx_of_floats(ll_round *r)
{
    r->dispatch.topk_idx.dtype = EXPAR_F32;
}
static void idx_short(ll_round *r)
{
    r->dispatch.topk_idx.shape[0] = 1;
}
static void weights_short(ll_round *r)
{
    r->dispatch.topk_weights.shape[1] = 3;
}
static void x_on_a_gpu(ll_round *r)
{
    r->dispatch.x.device.type = EXPAR_CUDA;
}
static void no_format(ll_round *r)
{
    r->dispatch.format = (expar_ll_format)17;
}
static void logfmt(ll_round *r)
{
    r->dispatch.format = EXPAR_LL_FORMAT_LOGFMT;
}
static void groups_of_24(ll_round *r)
{
    r->dispatch.format = EXPAR_LL_FORMAT_FP8;
}
static void out_x_of_other_type(ll_round *r)
{
    r->dispatch.out_x = r->dispatch.x;
}
static void scales_for_plain(ll_round *r)
{
    r->dispatch.out_scales = r->dispatch.x;
}
static void stats_short(ll_round *r)
{
    r->dispatch.expert_recv_stats = expar_tensor_1d(r->idx, EXPAR_I32, 3);
}
static void wait_ns_of_ints(ll_round *r)
{
    r->dispatch.wait_ns = expar_tensor_1d(r->idx, EXPAR_I32, 3);
}
static void struct_size(ll_round *r)
{
    r->dispatch.struct_size = 3;
}
static void index_too_large(ll_round *r)
{
    ((int32_t *)r->idx)[5] = 12;
}
static void index_below(ll_round *r)
{
    ((int32_t *)r->idx)[5] = -2;
}

static const wrong wrong_dispatches[] = {
    {"no x", no_x, EXPAR_ERR_NULL, "x"},
    {"x of int32", x_of_bytes, EXPAR_ERR_DTYPE, "x.dtype"},
    {"x too narrow", x_narrow, EXPAR_ERR_SHAPE, "hidden"},
    {"x unaligned", x_unaligned, EXPAR_ERR_ALIGNMENT, "x.data"},
    {"x strided", x_strided, EXPAR_ERR_STRIDE, "x.strides[1]"},
    {"too many tokens", too_many_tokens, EXPAR_ERR_LIMIT, "max_tokens"},
    {"too many slots", too_many_slots, EXPAR_ERR_LIMIT, "max_topk"},
    {"idx of floats", idx_of_floats, EXPAR_ERR_DTYPE, "topk_idx.dtype"},
    {"idx too short", idx_short, EXPAR_ERR_SHAPE, "topk_idx"},
    {"weights too short", weights_short, EXPAR_ERR_SHAPE, "topk_weights"},
    {"x on a GPU", x_on_a_gpu, EXPAR_ERR_DEVICE, "x"},
    {"no format", no_format, EXPAR_ERR_ARGUMENT, "format is 17"},
    {"LogFMT", logfmt, EXPAR_ERR_ARGUMENT, "format is LOGFMT"},
    {"groups of 24", groups_of_24, EXPAR_ERR_SHAPE, "128"},
    {"out_x of another shape", out_x_of_other_type, EXPAR_ERR_SHAPE, "out_x"},
    {"scales for plain rows", scales_for_plain, EXPAR_ERR_ARGUMENT, "out_scales"},
    {"stats too short", stats_short, EXPAR_ERR_SHAPE, "expert_recv_stats"},
    {"wait_ns of int32", wait_ns_of_ints, EXPAR_ERR_DTYPE, "wait_ns"},
    {"struct_size", struct_size, EXPAR_ERR_ARGUMENT, "struct_size"},
    {"index too large", index_too_large, EXPAR_ERR_INDEX, "topk_idx[1][1] is 12"},
    {"index below -1", index_below, EXPAR_ERR_INDEX, "topk_idx[1][1] is -2"},
};

/* With a hook the others, and of indices the rank itself, learn of it when it is called. */
static bool trial_wrong_dispatch(const scene *s, const wrong *w, bool hook)
{
    ll_round *round = round_make(s->c, s->rank, 0);
    const bool bad = s->rank == BAD, late = hook && (!bad || w->status == EXPAR_ERR_INDEX);
    const expar_status status = bad ? w->status : EXPAR_ERR_REMOTE;
    round->dispatch.hook = hook;
    if (bad) w->spoil(round);
    bool good =
        CHECK(CHECK_STATUS(late ? EXPAR_OK : status, expar_ll_dispatch(s->ll, &round->dispatch, &round->received)),
              "%s", w->name);
    if (good && late) good = CHECK_STATUS(status, expar_ll_hook_call(round->received.hook, NULL));
    good = good && CHECK_TEXT(w->word) && (bad || CHECK_TEXT("rank 1 rejected"));
    round_free(round);
    return good;
}

static void trial_wrong_dispatches(expar_group *group, void *shared)
{
    scene s = {.rank = expar_group_rank(group), .c = shared};
    const expar_ll_config config = case_config(s.c);
    bool good = CHECK_OK(expar_ll_create(group, &config, &s.ll));
    for (size_t i = 0; i < sizeof wrong_dispatches / sizeof wrong_dispatches[0] && good; i++) {
        const wrong *w = &wrong_dispatches[i];
        good = trial_wrong_dispatch(&s, w, false) && (i % 2 || round_trial(s.c, s.rank, s.ll, 1)) &&
               trial_wrong_dispatch(&s, w, true);
        good = good && (i % 3 || round_trial(s.c, s.rank, s.ll, 2));
    }
    if (good && round_trial(s.c, s.rank, s.ll, 3)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void run_body(ranks_body body)
{
    ll_case c = case_example;
    const ranks_plan plan = {.kind = kind, .size = c.ranks};
    assert_true(ranks_run(&plan, body, &c));
}

static void test_wrong_dispatches(void **state)
{
    (void)state;
    run_body(trial_wrong_dispatches);
}

/* ---- an index that is wrong: all other tokens arrive ------------------------------------------------------------- */

static void trial_bad_token(expar_group *group, void *shared)
{
    scene s = {.rank = expar_group_rank(group), .c = shared};
    const expar_ll_config config = case_config(s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    ll_round *round = round_make(s.c, s.rank, 0);
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    int64_t rows = 0, due = 0;
    round->dispatch.hook = 1;
    if (s.rank == BAD) index_too_large(round);
    CHECK_OK(expar_ll_dispatch(s.ll, &round->dispatch, &round->received));
    CHECK_STATUS(s.rank == BAD ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE, expar_ll_hook_call(round->received.hook, NULL));
    CHECK_OK(expar_ll_handle_get_info(round->received.handle, &info));
    const int32_t locals = s.c->experts / s.c->ranks;
    for (int32_t l = 0; l < locals; l++)
        rows += ((int32_t *)round->received.recv_count.data)[l];
    for (int32_t r = 0; r < s.c->ranks; r++)
        for (int32_t t = 0; t < s.c->tokens[r]; t++)
            for (int32_t k = 0; k < s.c->topk && !(r == BAD && t == 1); k++)
                due += case_expert(s.c, r, t, k) >= 0 && case_expert(s.c, r, t, k) / locals == s.rank;
    CHECK(rows == due, "%lld rows came, not %lld", (long long)rows, (long long)due);
    /* No rank combines what was not whole on all. */
    round_prepare_combine(round);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ll_combine(s.ll, &round->combine, &round->combined));
    round_free(round);
    if (round_trial(s.c, s.rank, s.ll, 1)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_bad_token(void **state)
{
    (void)state;
    run_body(trial_bad_token);
}

/* ---- a combine that one rank gets wrong -------------------------------------------------------------------------- */

static void no_handle(ll_round *r)
{
    r->combine.handle = NULL;
}
static void x_of_two_dimensions(ll_round *r)
{
    r->combine.x.ndim = 2;
}
static void x_of_other_type(ll_round *r)
{
    r->combine.x.dtype = EXPAR_I32;
}
static void x_short(ll_round *r)
{
    r->combine.x.shape[1] = 17;
}
static void rows_overlap(ll_round *r)
{
    r->combine.x.strides[1] = 12;
}
static void rows_of_odd_pitch(ll_round *r)
{
    r->combine.x.strides[1] = 25;
}
static void no_weights(ll_round *r)
{
    r->combine.topk_weights = EXPAR_TENSOR_NONE;
}
static void no_sum(ll_round *r)
{
    r->combine.sum = (expar_ll_sum)2;
}
static void other_idx(ll_round *r)
{
    ((int32_t *)r->idx)[1] = (((int32_t *)r->idx)[1] + 1) % 12;
}
static void y_short(ll_round *r)
{
    r->combine.out_y = expar_tensor_2d(r->expert_x, EXPAR_F32, 1, 24);
}
static void fp8_sums(ll_round *r)
{
    r->combine.format = EXPAR_LL_FORMAT_FP8;
}

static void logfmt_of_24(ll_round *r)
{
    r->combine.format = EXPAR_LL_FORMAT_LOGFMT;
}
static void logfmt_reduced(ll_round *r)
{
    r->combine.format = EXPAR_LL_FORMAT_LOGFMT;
    r->combine.sum = EXPAR_LL_SUM_REDUCED;
}

static const wrong wrong_combines[] = {
    {"LogFMT of 24", logfmt_of_24, EXPAR_ERR_SHAPE, "128"},
    {"LogFMT with sums", logfmt_reduced, EXPAR_ERR_ARGUMENT, "LOGFMT"},
    {"no handle", no_handle, EXPAR_ERR_NULL, "handle"},
    {"x of two dimensions", x_of_two_dimensions, EXPAR_ERR_SHAPE, "x has 2 dimensions"},
    {"x of int32", x_of_other_type, EXPAR_ERR_DTYPE, "x.dtype"},
    {"x too short", x_short, EXPAR_ERR_SHAPE, "x.shape[1] is 17"},
    {"rows that overlap", rows_overlap, EXPAR_ERR_STRIDE, "x.strides"},
    {"rows of an odd pitch", rows_of_odd_pitch, EXPAR_ERR_ALIGNMENT, "x.strides"},
    {"no weights", no_weights, EXPAR_ERR_NULL, "topk_weights"},
    {"no sum", no_sum, EXPAR_ERR_ARGUMENT, "sum is 2"},
    {"another topk_idx", other_idx, EXPAR_ERR_ARGUMENT, "topk_idx[0][1]"},
    {"y too short", y_short, EXPAR_ERR_SHAPE, "out_y"},
    {"FP8 sums", fp8_sums, EXPAR_ERR_ARGUMENT, "format is FP8"},
};

static bool trial_wrong_combine(const scene *s, const wrong *w, bool hook)
{
    ll_round *round = round_make(s->c, s->rank, 0);
    const bool bad = s->rank == BAD, late = hook && (!bad || (w->spoil == other_idx && hold_finds_late()));
    const expar_status status = bad ? w->status : EXPAR_ERR_REMOTE;
    bool good = round_dispatch(round, s->ll);
    round_prepare_combine(round);
    round->combine.hook = hook;
    if (bad) w->spoil(round);
    good = good &&
           CHECK(CHECK_STATUS(late ? EXPAR_OK : status, expar_ll_combine(s->ll, &round->combine, &round->combined)),
                 "%s", w->name);
    if (good && late) good = CHECK_STATUS(status, expar_ll_hook_call(round->combined.hook, NULL));
    good = good && CHECK_TEXT(w->word) && (bad || CHECK_TEXT("rank 1 rejected"));
    round_free(round);
    return good;
}

static void trial_wrong_combines(expar_group *group, void *shared)
{
    scene s = {.rank = expar_group_rank(group), .c = shared};
    const expar_ll_config config = case_config(s.c);
    bool good = CHECK_OK(expar_ll_create(group, &config, &s.ll));
    for (size_t i = 0; i < sizeof wrong_combines / sizeof wrong_combines[0] && good; i++) {
        const wrong *w = &wrong_combines[i];
        good = trial_wrong_combine(&s, w, false) && trial_wrong_combine(&s, w, true) &&
               (i % 2 || round_trial(s.c, s.rank, s.ll, 1));
    }
    if (good && round_trial(s.c, s.rank, s.ll, 3)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_wrong_combines(void **state)
{
    (void)state;
    run_body(trial_wrong_combines);
}

/* ---- forms that differ ------------------------------------------------------------------------------------------- */

/* All learn of it, each with both values, where it met the other form. */
static bool meets_mismatch(const scene *s, ll_round *round, bool combine, const char *word)
{
    expar_status status = combine ? expar_ll_combine(s->ll, &round->combine, &round->combined)
                                  : expar_ll_dispatch(s->ll, &round->dispatch, &round->received);
    return CHECK_STATUS(EXPAR_ERR_MISMATCH, status) && CHECK_TEXT(word, "on rank 1");
}

static void trial_mismatches(expar_group *group, void *shared)
{
    scene s = {.rank = expar_group_rank(group), .c = shared};
    const expar_ll_config config = case_config(s.c);
    const bool bad = s.rank == BAD;
    bool good = CHECK_OK(expar_ll_create(group, &config, &s.ll));
    for (uint32_t i = 0; i < 4 && good; i++) {
        ll_round *no_weights_given = round_make(s.c, s.rank, 0), *fewer_slots = round_make(s.c, s.rank, 1);
        ll_round *one = round_make(s.c, s.rank, 2), *other = round_make(s.c, s.rank, 3);
        if (bad) no_weights_given->dispatch.topk_weights = EXPAR_TENSOR_NONE;
        if (bad) fewer_slots->dispatch.topk_idx.shape[1] = fewer_slots->dispatch.topk_weights.shape[1] = 3;
        good = meets_mismatch(&s, no_weights_given, false, "topk_weights");
        good = good && (i % 2 || round_trial(s.c, s.rank, s.ll, 5)) && meets_mismatch(&s, fewer_slots, false, "top-k");
        good = good && round_dispatch(one, s.ll) && round_dispatch(other, s.ll);
        round_prepare_combine(one);
        round_prepare_combine(other);
        good = good && meets_mismatch(&s, bad ? one : other, true, "handle");
        if (bad) one->combine.sum = EXPAR_LL_SUM_REDUCED;
        good = good && meets_mismatch(&s, one, true, "sum");
        one->combine.sum = EXPAR_LL_SUM_EXACT;
        good = good && round_combine(one, s.ll) && round_trial(s.c, s.rank, s.ll, 7);
        round_free(no_weights_given);
        round_free(fewer_slots);
        round_free(one);
        round_free(other);
    }
    if (good) CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_mismatches(void **state)
{
    (void)state;
    run_body(trial_mismatches);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void trial_configs(expar_group *group, void *shared)
{
    const ll_case *c = shared;
    expar_ll_config config = case_config(c);
    expar_ll *ll = NULL;
    if (expar_group_rank(group) == BAD) config.max_tokens++;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ll_create(group, &config, &ll));
    CHECK_TEXT("max_tokens", "7", "6");
    config = case_config(c);
    if (expar_group_rank(group) == BAD) config.max_topk = 33;
    CHECK_STATUS(expar_group_rank(group) == BAD ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE,
                 expar_ll_create(group, &config, &ll));
    CHECK_TEXT("max_topk is 33");
    CHECK(!ll, "nothing is given");
    config = case_config(c);
    config.sums = 1 << EXPAR_LL_SUM_EXACT;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_mask_set(ll, 0, 1));
    CHECK_OK(expar_ll_destroy(ll));
    CHECK_STATUS(EXPAR_ERR_STATE, expar_ll_destroy(ll));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ll_dispatch(NULL, NULL, NULL));
}

static void test_configs(void **state)
{
    (void)state;
    run_body(trial_configs);
}

/* ---- rows of whole pieces by one type alone ---------------------------------------------------------------------- */

static void x_of_half_units(ll_round *r)
{
    r->dispatch.x.dtype = EXPAR_BF16;
}

static bool rejects_half_units_back(const scene *s)
{
    ll_round *round = round_make(s->c, s->rank, 2);
    expar_tensor x;
    bool good = round_dispatch(round, s->ll);
    good = good &&
           CHECK_STATUS(EXPAR_ERR_SHAPE, expar_ll_get_combine_buffer(s->ll, round->received.handle, EXPAR_BF16, &x));
    good = good && CHECK_TEXT("x.dtype is bf16, so that its rows of 1004 elements (config.hidden) have 2008 bytes");
    round_free(round);
    return good;
}

/* FP32 rows of 1004 elements are whole units of 16 bytes, BF16 rows are not. */
static void trial_odd_hidden(expar_group *group, void *shared)
{
    static const wrong half_units = {"x of half units", x_of_half_units, EXPAR_ERR_SHAPE,
                                     "x has rows of 2008 bytes (hidden size 1004)"};
    ll_case c = *(const ll_case *)shared;
    scene s = {.rank = expar_group_rank(group), .c = &c};
    c.hidden = 1004;
    const expar_ll_config config = case_config(&c);
    bool good = CHECK_OK(expar_ll_create(group, &config, &s.ll)) && round_trial(&c, s.rank, s.ll, 0);
    good = good && trial_wrong_dispatch(&s, &half_units, false) && trial_wrong_dispatch(&s, &half_units, true);
    good = good && rejects_half_units_back(&s);
    c.sum = EXPAR_LL_SUM_REDUCED;
    if (good && round_trial(&c, s.rank, s.ll, 1)) CHECK_OK(expar_ll_destroy(s.ll));
}

static void test_odd_hidden(void **state)
{
    (void)state;
    run_body(trial_odd_hidden);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_dispatches), cmocka_unit_test(test_bad_token),
        cmocka_unit_test(test_wrong_combines),   cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_configs),          cmocka_unit_test(test_odd_hidden),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
