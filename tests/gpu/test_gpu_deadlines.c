/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of kernels that end in vain: a rank that does not call for longer than it may be late, and an abort. Each
 * report says who was awaited, and what was seen and expected; the GPU's context serves on. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/mirror.h"
#include "gpu/serves.h"
#include "gpu/worker.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Within it the ranks that do call have to come to the call. */
#define SHORT_MS 1500

typedef struct scene {
    const traffic *traffic;
    const answers *answers;
    pthread_barrier_t all; /* ranks are threads */
} scene;

static traffic *some_traffic(int32_t ranks)
{
    static const int64_t num_tokens[] = {9, 5, 7};
    traffic_plan plan = {.num_ranks = ranks, .hidden = 64, .topk = 3, .num_experts = 6, .num_tokens = num_tokens};
    random_source random = random_start(4);
    return traffic_make(&plan, &random);
}

typedef expar_status (*call_fn)(stage *s, const scene *c, trial_arrival *first);

static expar_status dispatch(stage *s, const scene *c, const expar_ep_handle *handle)
{
    const trial_choice plain = {0};
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args given = trial_dispatch_args(c->traffic, s->rank, &plain, &s->area, NULL), args = given;
    args.handle = handle;
    if (handle) args.topk_idx = args.topk_weights = EXPAR_TENSOR_NONE;
    expar_status status = mirror_ep_dispatch(s->ep, &args, &result);
    trial_dispatch_args_free(&given);
    if (status != EXPAR_OK) return status;
    mirror_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return status;
}

static expar_status fresh(stage *s, const scene *c, trial_arrival *first)
{
    (void)first;
    return dispatch(s, c, NULL);
}

static expar_status cached(stage *s, const scene *c, trial_arrival *first)
{
    return dispatch(s, c, first->handle);
}

static expar_status combine(stage *s, const scene *c, trial_arrival *first)
{
    const traffic *t = c->traffic;
    int64_t tokens = t->inputs[s->rank].num_tokens;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = first->result.recv_x;
    args.handle = first->handle;
    args.out_y = expar_tensor_2d(traffic_alloc((size_t)tokens, traffic_row_bytes(t)), traffic_dtype(t), tokens, 64);
    expar_status status = mirror_ep_combine(s->ep, &args, NULL);
    free(args.out_y.data);
    return status;
}

/* ---- a rank that does not call ----------------------------------------------------------------------------------- */

typedef struct silence {
    scene scene;
    call_fn call;
    const char *name;
} silence;

/* Only once all have come this far, so that nothing but what is to time out does. */
static void have_little_time(stage *s)
{
    CHECK_OK(expar_group_barrier(s->group));
    s->group->boot->late_limit_ms = SHORT_MS;
}

/* The last rank stays away; the others name it, and are told again at once. */
static void trial_silence(stage *s, void *shared)
{
    silence *what = shared;
    const trial_choice plain = {0};
    trial_arrival first;
    if (!trial_dispatch(s->ep, what->scene.traffic, s->rank, &plain, &s->area, NULL, &first)) return;
    have_little_time(s);
    if (s->rank < 2) {
        CHECK_STATUS(EXPAR_ERR_PEER, what->call(s, &what->scene, &first));
        CHECK_TEXT("on the GPU: timed out after 1500 ms", "no header from rank 2", "(seen 0, expected 0x",
                   "rank 2 is alive but has not come to this call");
        CHECK_STATUS(EXPAR_ERR_PEER, what->call(s, &what->scene, &first));
        CHECK_TEXT(what->name, "poisoned", "no header from rank 2");
        serves_context(buffer_find(s->ep)->device);
    }
    pthread_barrier_wait(&what->scene.all);
    s->group->boot->late_limit_ms = 0;
    trial_release(&first, true);
}

/* The group is sound: only the calls were in vain. */
static void replace(stage *s, const silence *what, const expar_ep_config *config)
{
    if (!CHECK_OK(mirror_ep_create(s->group, config, &s->ep))) return;
    stage_round_trip(s, what->scene.traffic, what->scene.answers, EXPAR_EP_PATH_AUTO);
    CHECK_OK(mirror_ep_destroy(s->ep));
}

/* Not stage_run, which takes an area. */
static void stage_of_silence(expar_group *group, void *shared)
{
    silence *what = shared;
    stage_plan plan = stage_plan_for(what->scene.traffic, RANKS_THREADS);
    stage s = {.group = group, .rank = expar_group_rank(group)};
    if (!CHECK_OK(mirror_ep_create(group, &plan.config, &s.ep))) return;
    trial_silence(&s, what);
    if (CHECK_OK(mirror_ep_destroy(s.ep))) replace(&s, what, &plan.config);
}

static void run_silence(call_fn call, const char *name)
{
    random_source random = random_start(6);
    traffic *t = some_traffic(3);
    answers *a = answers_make(t, false, &random);
    silence what = {.scene = {.traffic = t, .answers = a}, .call = call, .name = name};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = 3};
    pthread_barrier_init(&what.scene.all, NULL, 3);
    bool passed = ranks_run(&ranks, stage_of_silence, &what);
    pthread_barrier_destroy(&what.scene.all);
    answers_free(a);
    assert_true(passed);
    assert_true(serves_ranks(t));
    traffic_free(t);
}

static void test_silence_in_a_dispatch(void **state)
{
    (void)state;
    run_silence(fresh, "expar_ep_dispatch");
}

static void test_silence_in_a_dispatch_with_a_handle(void **state)
{
    (void)state;
    run_silence(cached, "expar_ep_dispatch");
}

static void test_silence_in_a_combine(void **state)
{
    (void)state;
    run_silence(combine, "expar_ep_combine");
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

static void *abort_soon(void *group)
{
    const struct timespec span = {0, 30000000};
    nanosleep(&span, NULL);
    return (void *)(intptr_t)expar_group_abort(group);
}

/* Rank 0 gives up from another thread while it waits, and leaves. Only then do the kernels of the others learn of it,
   which wait for it with a deadline that is far off. */
static void leave(stage *s, const silence *what, trial_arrival *first)
{
    pthread_t thread;
    void *aborted;
    if (pthread_create(&thread, NULL, abort_soon, s->group)) abort();
    CHECK_STATUS(EXPAR_ERR_ABORTED, what->call(s, &what->scene, first));
    CHECK_TEXT(what->name, "abort");
    pthread_join(thread, &aborted);
    CHECK_STATUS(EXPAR_OK, (expar_status)(intptr_t)aborted);
    CHECK_STATUS(EXPAR_ERR_ABORTED, what->call(s, &what->scene, first));
    CHECK_TEXT(what->name, "poisoned");
}

static void hear_of_it(stage *s, const silence *what, trial_arrival *first)
{
    if (s->rank == 2) return; /* does not call, so that nobody's call can end well */
    CHECK_STATUS(EXPAR_ERR_PEER, what->call(s, &what->scene, first));
    CHECK_TEXT(what->name, "rank 0", "left");
}

static void stage_of_abort(expar_group *group, void *shared)
{
    silence *what = shared;
    const trial_choice plain = {0};
    stage_plan plan = stage_plan_for(what->scene.traffic, RANKS_THREADS);
    stage s = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival first;
    if (!CHECK_OK(mirror_ep_create(group, &plan.config, &s.ep))) return;
    trial_dispatch(s.ep, what->scene.traffic, s.rank, &plain, &s.area, NULL, &first);
    if (s.rank == 0)
        leave(&s, what, &first);
    else
        hear_of_it(&s, what, &first);
    trial_release(&first, true);
    CHECK_OK(mirror_ep_destroy(s.ep));
}

static void run_abort(call_fn call, const char *name)
{
    traffic *t = some_traffic(3);
    silence what = {.scene = {.traffic = t}, .call = call, .name = name};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = 3};
    assert_true(ranks_run(&ranks, stage_of_abort, &what));
    assert_true(serves_ranks(t));
    traffic_free(t);
}

static void test_abort_in_a_dispatch(void **state)
{
    (void)state;
    run_abort(fresh, "expar_ep_dispatch");
}

static void test_abort_in_a_dispatch_with_a_handle(void **state)
{
    (void)state;
    run_abort(cached, "expar_ep_dispatch");
}

static void test_abort_in_a_combine(void **state)
{
    (void)state;
    run_abort(combine, "expar_ep_combine");
}

/* ---- the epoch --------------------------------------------------------------------------------------------------- */

/* Epochs have 32 bits; all ranks stand just before the last one. */
static void trial_over_the_wrap(stage *s, void *shared)
{
    const scene *c = shared;
    const uint32_t late = UINT32_MAX - 5;
    gpu_state *state = gpu_of(s->ep->base.exec)->core.place.state;
    CHECK_OK(expar_group_barrier(s->group));
    CHECK_OK(CUDA_CALL(MemcpyHtoD, (cu_address)(uintptr_t)&state->epoch, &late, sizeof late));
    CHECK_OK(expar_group_barrier(s->group));
    for (int round = 0; round < 6; round++)
        stage_round_trip(s, c->traffic, c->answers, EXPAR_EP_PATH_AUTO);
    uint32_t now;
    CHECK_OK(CUDA_CALL(MemcpyDtoH, &now, (cu_address)(uintptr_t)&state->epoch, sizeof now));
    CHECK(now < 100, "the epoch is %u: it did not wrap", now);
}

static void test_epoch_on_the_device_wraps(void **state)
{
    (void)state;
    random_source random = random_start(5);
    traffic *t = some_traffic(3);
    answers *a = answers_make(t, false, &random);
    scene c = {.traffic = t, .answers = a};
    stage_plan plan = stage_plan_for(t, RANKS_THREADS);
    bool passed = stage_run(&plan, trial_over_the_wrap, &c);
    answers_free(a);
    traffic_free(t);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silence_in_a_dispatch),
        cmocka_unit_test(test_silence_in_a_dispatch_with_a_handle),
        cmocka_unit_test(test_silence_in_a_combine),
        cmocka_unit_test(test_abort_in_a_dispatch),
        cmocka_unit_test(test_abort_in_a_dispatch_with_a_handle),
        cmocka_unit_test(test_abort_in_a_combine),
        cmocka_unit_test(test_epoch_on_the_device_wraps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
