/* SPDX-License-Identifier: Apache-2.0 */
/* A holder of an output or a handle has it: tensors held apart, by several threads, and used after the last release. */
#include "ep/harness/simulated_list.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"
#include <expar/dlpack.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static ranks_kind kind;

/* One dispatch of 3 ranks, and what they answer. */
typedef struct scene {
    traffic *t;
    answers *a;
} scene;

static scene scene_make(void)
{
    static const int64_t num_tokens[] = {9, 4, 7};
    random_source random = random_start(5);
    const traffic_plan plan = {.num_ranks = 3,
                               .hidden = 64,
                               .topk = 3,
                               .num_experts = 6,
                               .type = ORACLE_F32,
                               .with_weights = true,
                               .num_tokens = num_tokens};
    scene one = {.t = traffic_make(&plan, &random)};
    one.a = answers_make(one.t, true, &random);
    return one;
}

static stage_plan plan_for(const scene *one)
{
    stage_plan plan = stage_plan_for(one->t, kind);
    plan.spare_heap_bytes = (size_t)160 << 20;
    return plan;
}

static void run(stage_body body)
{
    scene one = scene_make();
    const stage_plan plan = plan_for(&one);
    bool passed = stage_run(&plan, body, &one);
    traffic_free(one.t);
    answers_free(one.a);
    assert_true(passed);
}

static bool dispatch(stage *s, const scene *one, trial_arrival *arrival)
{
    static const trial_choice plain = {.sure_of_pool = true};
    return trial_dispatch(s->ep, one->t, s->rank, &plain, &s->area, NULL, arrival);
}

/* A live dispatch takes other memory than what is still held. */
static bool disturb(stage *s, const scene *one)
{
    trial_arrival other;
    bool right = dispatch(s, one, &other);
    for (int64_t i = 0; right && i < other.result.recv_x.shape[0] * other.result.recv_x.shape[1]; i++)
        ((float *)other.result.recv_x.data)[i] = -1;
    trial_release(&other, false);
    return right;
}

/* ---- references -------------------------------------------------------------------------------------------------- */

static void trial_counted(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    if (!dispatch(s, one, &arrival)) return;
    CHECK_OK(expar_ep_output_retain(arrival.result.output));
    CHECK_OK(expar_ep_handle_retain(arrival.handle));
    expar_ep_output_release(arrival.result.output);
    CHECK_OK(expar_ep_handle_release_after(arrival.handle, NULL));
    disturb(s, one);
    trial_check_arrival(&arrival, s->rank);
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    CHECK_OK(expar_ep_handle_get_info(arrival.handle, &info));
    CHECK_OK(expar_ep_output_retain(arrival.result.output));
    CHECK_OK(expar_ep_output_release_after(arrival.result.output, NULL));
    disturb(s, one);
    trial_check_arrival(&arrival, s->rank);
    trial_release(&arrival, false);
    CHECK_OK(expar_ep_output_release_after(NULL, NULL));
    CHECK_OK(expar_ep_handle_release_after(NULL, NULL));
}

static void test_held_twice_is_given_back_twice(void **state)
{
    (void)state;
    run(trial_counted);
}

static void trial_spent(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    if (!dispatch(s, one, &arrival)) return;
    expar_ep_output *output = arrival.result.output;
    expar_ep_handle *handle = arrival.handle;
    trial_release(&arrival, false);
    expar_tensor tensor;
    void *managed = NULL;
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(output));
    CHECK_TEXT("expar_ep_output_retain", "not a living output");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_release_after(output, NULL));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_get_tensor(output, EXPAR_EP_PART_X, &tensor));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_to_dlpack(output, EXPAR_EP_PART_X, 0, &managed));
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_handle_retain(handle));
    CHECK_TEXT("expar_ep_handle_retain", "not a living handle");
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_handle_release_after(handle, NULL));
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_handle_get_info(handle, &info));
    /* Once more each: told in the log, and nothing else happens. */
    expar_ep_output_release(output);
    expar_ep_handle_release(handle);
    stage_round_trip(s, one->t, one->a, EXPAR_EP_PATH_AUTO);
}

static void test_what_has_come_to_its_end_is_told(void **state)
{
    (void)state;
    run(trial_spent);
}

/* As many as are remembered, and more: the oldest are forgotten, the rest stays as it is. */
static void trial_many_spent(stage *s, void *shared)
{
    (void)shared;
    expar_ep_output *last = NULL;
    if (s->rank != 0) return; /* what other ranks of the process end would be remembered in place of these */
    for (int i = 0; i < 600; i++) {
        if (!CHECK_OK(expar_ep_alloc(s->ep, 128, &last))) return;
        expar_ep_output_release(last);
        CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(last));
    }
}

static void test_ends_are_remembered_for_a_while(void **state)
{
    (void)state;
    run(trial_many_spent);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static bool same_tensor(const expar_tensor *a, const expar_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->device.type == b->device.type;
}

static void trial_parts(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    if (!dispatch(s, one, &arrival)) return;
    expar_ep_dispatch_result *result = &arrival.result;
    const expar_tensor *const expected[] = {&result->recv_x, &result->recv_scales, &result->recv_topk_idx,
                                            &result->recv_topk_weights, &result->recv_row_map};
    for (int i = 0; i < 5; i++) {
        expar_tensor part;
        void *managed = NULL;
        CHECK_OK(expar_ep_output_get_tensor(result->output, (expar_ep_part)i, &part));
        CHECK(same_tensor(&part, expected[i]) || (!part.ndim && !expected[i]->ndim), "part %d differs", i);
        if (expected[i]->ndim) continue;
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_output_to_dlpack(result->output, (expar_ep_part)i, 0, &managed));
        CHECK_TEXT("no tensor of part");
    }
    expar_tensor none;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_output_get_tensor(result->output, (expar_ep_part)99, &none));
    CHECK_TEXT("part is 99");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_output_get_tensor(result->output, EXPAR_EP_PART_X, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_output_get_tensor(NULL, EXPAR_EP_PART_X, &none));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_output_to_dlpack(result->output, EXPAR_EP_PART_X, 0, NULL));
    void *managed = NULL;
    CHECK_STATUS(EXPAR_ERR_VERSION,
                 expar_ep_output_to_dlpack(result->output, EXPAR_EP_PART_X, EXPAR_DLPACK_VERSION(3, 0), &managed));
    CHECK_TEXT("expar_ep_output_to_dlpack: version is 3.0; expected 0 or 1.x");
    trial_release(&arrival, true);
}

static void test_an_output_knows_its_tensors(void **state)
{
    (void)state;
    run(trial_parts);
}

/* Rows in the caller's own memory are no part of the output. */
static void trial_own_rows(stage *s, void *shared)
{
    const scene *one = shared;
    const trial_choice own = {.place = PLACE_PRIVATE};
    trial_arrival arrival;
    expar_tensor part;
    if (!trial_dispatch(s->ep, one->t, s->rank, &own, &s->area, NULL, &arrival)) return;
    CHECK_OK(expar_ep_output_get_tensor(arrival.result.output, EXPAR_EP_PART_X, &part));
    CHECK(!part.data && part.ndim == 0, "the caller's rows are the output's");
    CHECK_OK(expar_ep_output_get_tensor(arrival.result.output, EXPAR_EP_PART_TOPK_IDX, &part));
    CHECK(part.data == arrival.result.recv_topk_idx.data, "recv_topk_idx differs");
    trial_release(&arrival, true);
}

static void test_the_callers_rows_are_the_callers(void **state)
{
    (void)state;
    run(trial_own_rows);
}

static void *delete_versioned(void *argument)
{
    expar_dl_versioned *dl = argument;
    dl->deleter(dl);
    return NULL;
}

/* All tensors of an output go out, the caller's reference goes, and each is deleted by itself, by other threads. */
static void trial_apart(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    if (!dispatch(s, one, &arrival)) return;
    void *x, *idx, *weights;
    expar_ep_output *output = arrival.result.output;
    pthread_t threads[2];
    bool right =
        CHECK_OK(expar_ep_output_to_dlpack(output, EXPAR_EP_PART_X, EXPAR_DLPACK_UNVERSIONED, &x)) &&
        CHECK_OK(expar_ep_output_to_dlpack(output, EXPAR_EP_PART_TOPK_IDX, EXPAR_DLPACK_VERSION(1, 0), &idx)) &&
        CHECK_OK(expar_ep_output_to_dlpack(output, EXPAR_EP_PART_TOPK_WEIGHTS, EXPAR_DLPACK_VERSION(1, 1), &weights));
    if (!right) return;
    expar_ep_output_release(output);
    disturb(s, one);
    trial_check_arrival(&arrival, s->rank);
    expar_tensor view;
    CHECK_OK(expar_tensor_from_dlpack(x, EXPAR_DLPACK_UNVERSIONED, 1, &view));
    CHECK(same_tensor(&view, &arrival.result.recv_x), "recv_x is another tensor by DLPack");
    if (pthread_create(&threads[0], NULL, delete_versioned, idx)) abort();
    if (pthread_create(&threads[1], NULL, delete_versioned, weights)) abort();
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    disturb(s, one);
    trial_check_arrival(&arrival, s->rank);
    ((expar_dl_managed *)x)->deleter(x);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(output));
    expar_ep_handle_release(arrival.handle);
}

static void test_tensors_are_held_apart(void **state)
{
    (void)state;
    run(trial_apart);
}

/* ---- for Python -------------------------------------------------------------------------------------------------- */

static const int32_t wanted[] = {EXPAR_EP_PART_X, -1, EXPAR_EP_PART_TOPK_WEIGHTS};

/* Each holds the output, and one that is not wanted stays as it was. */
static void trial_capsules(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    expar_tensor view;
    expar_dl_managed other;
    simulated_list list = {3, {NULL, &other}};
    if (!dispatch(s, one, &arrival)) return;
    expar_ep_output *output = arrival.result.output;
    if (!CHECK_OK(expar_python_put_output(output, wanted, 3, &simulated_python, &list))) return;
    CHECK(list.items[1] == &other, "an item that is not wanted was set");
    expar_ep_output_release(output);
    disturb(s, one);
    trial_check_arrival(&arrival, s->rank);
    CHECK_OK(expar_tensor_from_dlpack(list.items[0], EXPAR_DLPACK_UNVERSIONED, 1, &view));
    CHECK(same_tensor(&view, &arrival.result.recv_x), "item 0 is not recv_x");
    CHECK_OK(expar_tensor_from_dlpack(list.items[2], EXPAR_DLPACK_UNVERSIONED, 1, &view));
    CHECK(same_tensor(&view, &arrival.result.recv_topk_weights), "item 2 is not recv_topk_weights");
    simulated_delete(list.items[0]);
    CHECK_OK(expar_ep_output_retain(output));
    expar_ep_output_release(output);
    simulated_delete(list.items[2]);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_python_put_output(output, wanted, 3, &simulated_python, &list));
    expar_ep_handle_release(arrival.handle);
}

static void test_capsules_hold_their_output(void **state)
{
    (void)state;
    run(trial_capsules);
}

/* Likewise, as tensors of version 1.1; one that is not made has been given back. */
static void trial_tensors(stage *s, void *shared)
{
    const scene *one = shared;
    const expar_python_objects python = {simulated_capsule_new, simulated_list_set_item, simulated_tensor_new};
    const expar_python_objects without_memory = {simulated_capsule_new, simulated_list_set_item, simulated_no_tensor};
    trial_arrival arrival;
    expar_tensor view;
    simulated_list list = {.length = 3};
    if (!dispatch(s, one, &arrival)) return;
    expar_ep_output *output = arrival.result.output;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_python_put_output(output, wanted, 3, &without_memory, &list));
    CHECK_TEXT("expar_python_put_output", "Python has no tensor");
    if (!CHECK_OK(expar_python_put_output(output, wanted, 1, &python, &list))) return;
    expar_ep_output_release(output);
    trial_check_arrival(&arrival, s->rank);
    expar_dl_versioned *made = (void *)list.items[0];
    CHECK_OK(expar_tensor_from_dlpack(made, EXPAR_DLPACK_VERSION(1, 1), 1, &view));
    CHECK(same_tensor(&view, &arrival.result.recv_x), "item 0 is not recv_x");
    made->deleter(made);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(output));
    expar_ep_handle_release(arrival.handle);
}

static void test_tensors_hold_their_output(void **state)
{
    (void)state;
    run(trial_tensors);
}

/* A failed call holds nothing; earlier results are there. */
static void trial_no_capsules(stage *s, void *shared)
{
    const scene *one = shared;
    static const char call[] = "expar_python_put_output";
    const int32_t unknown[] = {99}, absent[] = {EXPAR_EP_PART_X, EXPAR_EP_PART_SCALES};
    const expar_python_objects no_new = {.list_set_item = simulated_list_set_item},
                               no_set = {.capsule_new = simulated_capsule_new};
    trial_arrival arrival;
    simulated_list list = {.length = 1};
    if (!dispatch(s, one, &arrival)) return;
    expar_ep_output *output = arrival.result.output;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_python_put_output(output, wanted, 3, &simulated_python, &list));
    CHECK_TEXT(call, "no item 2");
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_python_put_output(output, wanted, 3, &simulated_python_without_memory, &list));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_python_put_output(output, unknown, 1, &simulated_python, &list));
    CHECK_TEXT(call, "part is 99");
    if (list.items[0]) simulated_delete(list.items[0]);
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_python_put_output(output, absent, 2, &simulated_python, &list));
    CHECK_TEXT(call, "no tensor of part SCALES");
    if (list.items[0]) simulated_delete(list.items[0]);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(NULL, wanted, 3, &simulated_python, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(output, NULL, 3, &simulated_python, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(output, wanted, 3, NULL, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(output, wanted, 3, &no_new, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(output, wanted, 3, &no_set, &list));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_python_put_output(output, wanted, 3, &simulated_python, NULL));
    trial_release(&arrival, false);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(output));
}

static void test_capsules_that_are_not_made_hold_nothing(void **state)
{
    (void)state;
    run(trial_no_capsules);
}

/* ---- memory for rows --------------------------------------------------------------------------------------------- */

/* A combine reads rows in it where they are: DIRECT, which other memory is refused for. */
static void trial_alloc(stage *s, void *shared)
{
    const scene *one = shared;
    trial_arrival arrival;
    expar_ep_output *memory = NULL;
    expar_tensor rows;
    if (!dispatch(s, one, &arrival)) return;
    const expar_tensor *came = &arrival.result.recv_x;
    size_t bytes = (size_t)came->shape[0] * traffic_row_bytes(one->t);
    bool right = CHECK_OK(expar_ep_alloc(s->ep, bytes, &memory)) &&
                 CHECK_OK(expar_ep_output_get_tensor(memory, EXPAR_EP_PART_X, &rows)) &&
                 CHECK(rows.ndim == 1 && rows.shape[0] == (int64_t)bytes && rows.dtype == EXPAR_U8, "[bytes] u8") &&
                 CHECK((uintptr_t)rows.data % 128 == 0, "%p is not aligned", rows.data);
    if (!right) return;
    memcpy(rows.data, one->a->x[s->rank], bytes);
    int64_t tokens = one->t->inputs[s->rank].num_tokens;
    void *y = traffic_alloc((size_t)tokens * traffic_row_bytes(one->t), 1);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(rows.data, came->dtype, came->shape[0], came->shape[1]);
    args.handle = arrival.handle;
    args.path = EXPAR_EP_PATH_DIRECT;
    args.out_y = expar_tensor_2d(y, came->dtype, tokens, came->shape[1]);
    CHECK_OK(expar_ep_combine(s->ep, &args, NULL));
    CHECK(memcmp(y, one->a->y[s->rank], (size_t)tokens * traffic_row_bytes(one->t)) == 0, "the sums differ");
    free(y);
    expar_ep_output_release(memory);
    trial_release(&arrival, true);
}

static void test_rows_in_taken_memory_are_read_in_place(void **state)
{
    (void)state;
    run(trial_alloc);
}

/* By one rank alone, while no other does anything; of any size. */
static void trial_alloc_alone(stage *s, void *shared)
{
    (void)shared;
    expar_ep_output *memory[3] = {NULL};
    static const size_t sizes[3] = {0, 1, (size_t)4 << 20};
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_alloc(NULL, 8, &memory[0]));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_alloc(s->ep, 8, NULL));
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_alloc(s->ep, SIZE_MAX, &memory[0]));
    if (s->rank != 1) return;
    for (int i = 0; i < 3; i++) {
        expar_tensor rows;
        if (!CHECK_OK(expar_ep_alloc(s->ep, sizes[i], &memory[i]))) return;
        CHECK_OK(expar_ep_output_get_tensor(memory[i], EXPAR_EP_PART_X, &rows));
        memset(rows.data, 0x11 * i, sizes[i]);
    }
    for (int i = 0; i < 3; i++)
        expar_ep_output_release(memory[i]);
}

static void test_taking_memory_needs_no_other_rank(void **state)
{
    (void)state;
    run(trial_alloc_alone);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_twice_is_given_back_twice),
        cmocka_unit_test(test_what_has_come_to_its_end_is_told),
        cmocka_unit_test(test_ends_are_remembered_for_a_while),
        cmocka_unit_test(test_an_output_knows_its_tensors),
        cmocka_unit_test(test_the_callers_rows_are_the_callers),
        cmocka_unit_test(test_tensors_are_held_apart),
        cmocka_unit_test(test_capsules_hold_their_output),
        cmocka_unit_test(test_capsules_that_are_not_made_hold_nothing),
        cmocka_unit_test(test_tensors_hold_their_output),
        cmocka_unit_test(test_rows_in_taken_memory_are_read_in_place),
        cmocka_unit_test(test_taking_memory_needs_no_other_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
