/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that are right by themselves but differ between ranks: EXPAR_ERR_MISMATCH on all, naming what differs, and
 * the buffer stays usable. Also wrong handles, and two calls at once. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define ODD_RANK 2

/* The odd rank's difference. */
typedef struct difference {
    const char *words[4];
    void (*spoil)(expar_ep_dispatch_args *args, const expar_ep_handle *handle);
    bool combines; /* it calls expar_ep_combine instead */
} difference;

typedef struct mismatch {
    difference what;
    traffic *traffic;
    answers *answers;
} mismatch;

static void check_words(const difference *what)
{
    const char *words[5] = {what->words[0], what->words[1], what->words[2], what->words[3]};
    check_text(__FILE__, __LINE__, words);
}

static expar_status combine_instead(stage *s, const traffic *t, const expar_ep_handle *handle)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = pitched_make(traffic_dtype(t), t->arrivals[s->rank].num_rows, t->job.hidden, 0, false);
    args.out_y = pitched_make(traffic_dtype(t), t->inputs[s->rank].num_tokens, t->job.hidden, 0, false);
    args.handle = handle;
    expar_status status = expar_ep_combine(s->ep, &args, NULL);
    pitched_free(&args.x);
    pitched_free(&args.out_y);
    return status;
}

static expar_status dispatch_differently(stage *s, const mismatch *m, const expar_ep_handle *handle)
{
    trial_choice plain = {0};
    expar_ep_dispatch_args given = trial_dispatch_args(m->traffic, s->rank, &plain, &s->area, NULL);
    expar_ep_dispatch_args args = given;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (s->rank == ODD_RANK) m->what.spoil(&args, handle);
    expar_status status = expar_ep_dispatch(s->ep, &args, &result);
    trial_dispatch_args_free(&given);
    return status;
}

static void trial_mismatch(stage *s, void *shared)
{
    const mismatch *m = shared;
    trial_choice plain = {0};
    trial_arrival before;
    if (!trial_dispatch(s->ep, m->traffic, s->rank, &plain, &s->area, NULL, &before)) return;
    bool combines = m->what.combines && s->rank == ODD_RANK;
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 combines ? combine_instead(s, m->traffic, before.handle) : dispatch_differently(s, m, before.handle));
    CHECK_TEXT("rank 2", "rank 0");
    check_words(&m->what);
    trial_check_arrival(&before, s->rank);
    trial_combine(s->ep, m->traffic, m->answers, s->rank, &plain, &s->area, before.handle, &before);
    stage_round_trip(s, m->traffic, m->answers, EXPAR_EP_PATH_AUTO);
    trial_release(&before, true);
}

static mismatch make(const difference *what)
{
    static const int64_t num_tokens[] = {4, 0, 5};
    traffic_plan plan = traffic_plan_small(3, 0, num_tokens);
    plan.hidden = 16;
    plan.wide = plan.with_weights = true;
    random_source random = random_start(6);
    mismatch m = {.what = *what, .traffic = traffic_make(&plan, &random)};
    m.answers = answers_make(m.traffic, true, &random);
    return m;
}

static void run_mismatch(const difference *what)
{
    mismatch m = make(what);
    stage_plan setting = stage_plan_for(m.traffic, RANKS_THREADS);
    bool passed = stage_run(&setting, trial_mismatch, &m);
    answers_free(m.answers);
    traffic_free(m.traffic);
    assert_true(passed);
}

static void smaller_h(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->x.shape[1] = 8;
}

static void test_hidden_size(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"hidden", "8", "16"}, smaller_h, false});
}

static void other_dtype(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->x.dtype = EXPAR_F16;
}

static void test_dtype(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"dtype", "x", "f16", "bf16"}, other_dtype, false});
}

static void fewer_slots(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->topk_idx.shape[1] = args->topk_weights.shape[1] = 2;
}

static void test_topk(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"top-k", "2", "3"}, fewer_slots, false});
}

static void fewer_experts(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->num_experts = 3;
    for (int64_t i = 0; i < 15; i++)
        ((int64_t *)args->topk_idx.data)[i] %= 3;
}

static void test_experts(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"experts", "3", "6"}, fewer_experts, false});
}

static void no_weights(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->topk_weights = EXPAR_TENSOR_NONE;
}

static void test_weights(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"topk_weights"}, no_weights, false});
}

static void with_sources(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->src_tokens = 1;
}

static void test_sources(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"src_tokens is 1 on rank 2"}, with_sources, false});
}

static void with_global_experts(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->global_experts = 1;
}

static void test_numbers_of_experts(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"global_experts is 1 on rank 2 and 0 on rank 0"}, with_global_experts, false});
}

/* The 64-bit numbers are small, so that their low 32 bits are valid as 32-bit ones, too. */
static void narrow_idx(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    (void)handle;
    args->topk_idx.dtype = EXPAR_I32;
}

static void test_idx_dtype(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"dtype", "topk_idx", "i32", "i64"}, narrow_idx, false});
}

static void with_handle(expar_ep_dispatch_args *args, const expar_ep_handle *handle)
{
    args->handle = handle;
    args->topk_idx = args->topk_weights = EXPAR_TENSOR_NONE;
}

static void test_cached_or_not(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"expar_ep_dispatch with a handle", "expar_ep_dispatch"}, with_handle, false});
}

static void test_combine_or_dispatch(void **state)
{
    (void)state;
    run_mismatch(&(difference){{"expar_ep_combine", "expar_ep_dispatch"}, NULL, true});
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

/* Two dispatches of the same traffic; the odd rank answers with the handle of the other one. */
static void trial_other_handle(stage *s, void *shared)
{
    const mismatch *m = shared;
    trial_choice plain = {0};
    trial_arrival first, second;
    trial_dispatch(s->ep, m->traffic, s->rank, &plain, &s->area, NULL, &first);
    trial_dispatch(s->ep, m->traffic, s->rank, &plain, &s->area, NULL, &second);
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 combine_instead(s, m->traffic, s->rank == ODD_RANK ? second.handle : first.handle));
    CHECK_TEXT("expar_ep_combine", "handle", "rank 2", "rank 0");
    trial_combine(s->ep, m->traffic, m->answers, s->rank, &plain, &s->area, first.handle, &first);
    trial_combine(s->ep, m->traffic, m->answers, s->rank, &plain, &s->area, second.handle, &second);
    trial_release(&first, true);
    trial_release(&second, false);
}

static void test_handles_of_different_dispatches(void **state)
{
    (void)state;
    mismatch m = make(&(difference){{0}, NULL, false});
    stage_plan setting = stage_plan_for(m.traffic, RANKS_THREADS);
    bool passed = stage_run(&setting, trial_other_handle, &m);
    answers_free(m.answers);
    traffic_free(m.traffic);
    assert_true(passed);
}

/* A second buffer's handle is as good as one of this buffer's, but not the same one. */
static void trial_foreign_handle(stage *s, void *shared)
{
    const mismatch *m = shared;
    trial_choice plain = {0};
    trial_arrival here, there;
    stage_plan setting = stage_plan_for(m->traffic, RANKS_THREADS);
    expar_ep *other = NULL;
    if (!CHECK_OK(expar_ep_create(s->group, &setting.config, &other))) return;
    trial_dispatch(s->ep, m->traffic, s->rank, &plain, &s->area, NULL, &here);
    trial_dispatch(other, m->traffic, s->rank, &plain, &s->area, NULL, &there);
    expar_status status = combine_instead(s, m->traffic, s->rank == ODD_RANK ? there.handle : here.handle);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, status);
    CHECK_TEXT("expar_ep_combine", "handle (number of the buffer that it was made on)", "rank 2", "rank 0");
    trial_combine(s->ep, m->traffic, m->answers, s->rank, &plain, &s->area, here.handle, &here);
    trial_combine(other, m->traffic, m->answers, s->rank, &plain, &s->area, there.handle, &there);
    trial_release(&here, true);
    trial_release(&there, false);
    CHECK_OK(expar_ep_destroy(other));
}

static void test_handle_of_another_buffer(void **state)
{
    (void)state;
    mismatch m = make(&(difference){{0}, NULL, false});
    stage_plan setting = stage_plan_for(m.traffic, RANKS_THREADS);
    setting.spare_heap_bytes = (size_t)128 << 20; /* the second buffer */
    bool passed = stage_run(&setting, trial_foreign_handle, &m);
    answers_free(m.answers);
    traffic_free(m.traffic);
    assert_true(passed);
}

/* ---- two calls at once ------------------------------------------------------------------------------------------- */

/* Both threads of rank 0 dispatch. One waits for rank 1, which comes only when the other was turned away. */
static atomic_int busy_calls;

typedef struct racer {
    stage *stage;
    const traffic *traffic;
    expar_status status;
    expar_ep_dispatch_result result;
} racer;

static void *race(void *argument)
{
    racer *self = argument;
    trial_choice plain = {0};
    check_begin(self->stage->rank);
    expar_ep_dispatch_args args =
        trial_dispatch_args(self->traffic, self->stage->rank, &plain, &self->stage->area, NULL);
    self->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    self->status = expar_ep_dispatch(self->stage->ep, &args, &self->result);
    if (self->status == EXPAR_ERR_BUSY) {
        if (!CHECK_TEXT("expar_ep_dispatch", "another call", "buffer")) self->status = EXPAR_OK;
        atomic_fetch_add(&busy_calls, 1);
    }
    trial_dispatch_args_free(&args);
    return NULL;
}

static void trial_two_at_once(stage *s, void *shared)
{
    const mismatch *m = shared;
    racer racers[2] = {{.stage = s, .traffic = m->traffic}, {.stage = s, .traffic = m->traffic}};
    pthread_t threads[2];
    int count = s->rank == 0 ? 2 : 1;
    while (s->rank != 0 && atomic_load(&busy_calls) == 0)
        sched_yield();
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, race, &racers[i])) abort();
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    int busy = (racers[0].status == EXPAR_ERR_BUSY) + (count == 2 && racers[1].status == EXPAR_ERR_BUSY);
    CHECK(busy == count - 1, "%d calls were turned away", busy);
    for (int i = 0; i < count; i++) {
        if (racers[i].status == EXPAR_ERR_BUSY) continue;
        trial_arrival arrival = {.traffic = m->traffic, .result = racers[i].result, .handle = racers[i].result.handle};
        CHECK(racers[i].status == EXPAR_OK && trial_check_arrival(&arrival, s->rank), "the other call went wrong");
        trial_release(&arrival, true);
    }
    stage_round_trip(s, m->traffic, m->answers, EXPAR_EP_PATH_AUTO);
}

static void test_two_calls_at_once(void **state)
{
    (void)state;
    mismatch m = make(&(difference){{0}, NULL, false});
    stage_plan setting = stage_plan_for(m.traffic, RANKS_THREADS);
    atomic_store(&busy_calls, 0);
    bool passed = stage_run(&setting, trial_two_at_once, &m);
    answers_free(m.answers);
    traffic_free(m.traffic);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden_size),
        cmocka_unit_test(test_dtype),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_numbers_of_experts),
        cmocka_unit_test(test_idx_dtype),
        cmocka_unit_test(test_cached_or_not),
        cmocka_unit_test(test_combine_or_dispatch),
        cmocka_unit_test(test_handles_of_different_dispatches),
        cmocka_unit_test(test_handle_of_another_buffer),
        cmocka_unit_test(test_two_calls_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
