/* SPDX-License-Identifier: Apache-2.0 */
/* An error of one rank reaches all, on a simulated driver (cuda/fake/fake.c). The rank returns its own error, the
 * others EXPAR_ERR_REMOTE with its reason. Nobody waits in vain, and the buffer takes the next call. */
#include "cuda/find_controls.h"
#include "ep/harness/epochs.h"
#include "ep/harness/idle_rank.h"
#include "shmem/kind.h"

#include <stdio.h>
#include <string.h>

#define RANKS 2
#define ODD   1 /* the rank that something is wrong with */

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

/* This rank must hear this of the odd rank's error. */
static void hear(const idle_rank *one, expar_status status, expar_status odd, const char *call, const char *word)
{
    CHECK_STATUS(is_odd(one) ? odd : EXPAR_ERR_REMOTE, status);
    CHECK_TEXT(call, word);
    if (!is_odd(one)) CHECK_TEXT("rank 1 rejected");
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* ---- calls without a stream -------------------------------------------------------------------------------------- */

static const char default_stream[] = "stream is the default one";

/* The very first calls: no stream has been seen yet. That stream has two names. */
static void default_streams(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.stream = NULL;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_dispatch(one.ep, &args, &one.came));
    CHECK_TEXT("expar_ep_dispatch", default_stream);
    args.stream = is_odd(&one) ? CU_SHARED_STREAM : one.stream;
    hear(&one, expar_ep_dispatch(one.ep, &args, &one.came), EXPAR_ERR_ARGUMENT, "expar_ep_dispatch", default_stream);
    if (!idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_combine_args back = idle_combine_args(&one);
    if (is_odd(&one)) back.stream = NULL;
    hear(&one, expar_ep_combine(one.ep, &back, NULL), EXPAR_ERR_ARGUMENT, "expar_ep_combine", default_stream);
    idle_combine(&one);
    idle_end(&one);
}

/* For ranks that share it; each process has its own. */
static void the_default_stream_is_rejected(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    run(default_streams);
}

static void unreadable_arguments(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group)) return;
    for (int32_t round = 0; round < 2 && !check_failures(); round++) {
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        expar_ep_dispatch_result unused = EXPAR_EP_DISPATCH_RESULT_INIT;
        const expar_ep_dispatch_args *given = is_odd(&one) ? NULL : &args;
        hear(&one, expar_ep_dispatch(one.ep, given, &unused), EXPAR_ERR_NULL, "expar_ep_dispatch", "args is NULL");
        if (is_odd(&one)) args.struct_size = 1;
        hear(&one, expar_ep_dispatch(one.ep, &args, &unused), EXPAR_ERR_ARGUMENT, "expar_ep_dispatch",
             "args.struct_size");
        if (!idle_dispatch(&one, EXPAR_F32)) return;
        expar_ep_combine_args back = idle_combine_args(&one);
        const expar_ep_combine_args *given_back = is_odd(&one) ? NULL : &back;
        hear(&one, expar_ep_combine(one.ep, given_back, NULL), EXPAR_ERR_NULL, "expar_ep_combine", "args is NULL");
    }
    idle_combine(&one);
    idle_end(&one);
}

static void arguments_that_cannot_be_read(void **state)
{
    (void)state;
    run(unreadable_arguments);
}

/* Sums are written, and biases read, in units of 16 bytes. */
static void sums_beside_units(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_address rows;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    if (!CHECK_OK(CUDA_CALL(MemAlloc, &rows, 256))) return;
    static const char *const names[] = {"out_y.data is ", "bias[0].data is ", "bias[1].data is "};
    for (int32_t i = 0; i < 3 && !check_failures(); i++) {
        expar_ep_combine_args back = idle_combine_args(&one);
        expar_tensor *odd = i == 0 ? &back.out_y : &back.bias[i - 1];
        if (is_odd(&one)) {
            *odd = idle_tensor(EXPAR_F32, IDLE_HIDDEN);
            odd->data = (void *)(uintptr_t)(rows + 4);
        }
        hear(&one, expar_ep_combine(one.ep, &back, NULL), EXPAR_ERR_ALIGNMENT, names[i], "expected a multiple of 16");
    }
    idle_combine(&one);
    CHECK_OK(CUDA_CALL(MemFree, rows));
    idle_end(&one);
}

static void sums_that_are_not_aligned(void **state)
{
    (void)state;
    run(sums_beside_units);
}

/* Nothing is reported during a capture. After the capture everything is reported again. */
static void after_a_capture(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph;
    if (!idle_begin(&one, group)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_dispatch(one.ep, &args, &one.came));
    CHECK_TEXT("num_worst_tokens is 0 while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    const expar_ep_dispatch_args *given = is_odd(&one) ? NULL : &args;
    hear(&one, expar_ep_dispatch(one.ep, given, &one.came), EXPAR_ERR_NULL, "expar_ep_dispatch", "args is NULL");
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    idle_end(&one);
}

static void rejections_after_a_capture(void **state)
{
    (void)state;
    run(after_a_capture);
}

/* ---- no free space ----------------------------------------------------------------------------------------------- */

#define POOL_BYTES ((int64_t)64 << 10)

/* The pool does not grow, and there is no memory beside it. */
static bool begin_without_lending(idle_rank *one, expar_group *group)
{
    if (!idle_begin_with(one, group, POOL_BYTES)) return false;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "the driver is not the played one")) return false;
    atomic_store(&controls->no_lending, 1);
    return true;
}

static void end_with_lending(idle_rank *one)
{
    CHECK_OK(expar_barrier_all(one->group));
    atomic_store(&controls_find()->no_lending, 0);
    idle_end(one);
}

/* Known once all ranks have sent headers: the others have advertised space with theirs. */
static void results_without_space(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_without_lending(&one, group)) return;
    for (int32_t round = 0; round < 3 && !check_failures(); round++) {
        mem_block *rest = is_odd(&one) ? idle_fill_pool(&one) : NULL;
        expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
        expar_ep_dispatch_result unused = EXPAR_EP_DISPATCH_RESULT_INIT;
        hear(&one, expar_ep_dispatch(one.ep, &args, &unused), EXPAR_ERR_MEMORY, "expar_ep_dispatch", "the pool of");
        mem_block_release(rest);
        if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    }
    end_with_lending(&one);
}

/* A call that waits for counts only: the counts are sound, and its event tells the rest. */
static void an_event_of_rejected_results(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_without_lending(&one, group)) return;
    mem_block *rest = is_odd(&one) ? idle_fill_pool(&one) : NULL;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.async_finish = 1;
    if (is_odd(&one)) {
        CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_dispatch(one.ep, &args, &result));
    } else if (CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) {
        CHECK(result.num_recv_tokens == 0, "%lld rows", (long long)result.num_recv_tokens);
        CHECK_STATUS(EXPAR_ERR_REMOTE, expar_event_wait(result.event));
        CHECK_TEXT("expar_ep_dispatch", "rank 1 rejected", "the pool of");
        expar_event_release(result.event);
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    mem_block_release(rest);
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    end_with_lending(&one);
}

static void pools_that_are_used_up(void **state)
{
    (void)state;
    run(results_without_space);
}

static void events_of_rejected_results(void **state)
{
    (void)state;
    run(an_event_of_rejected_results);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* After a dispatch of rows that cannot be added, which needs no kernel to add them. */
static void a_combine_without_kernels(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F8E4M3)) return;
    if (is_odd(&one)) setenv("FAKE_REJECTS", "combine", 1);
    for (int32_t round = 0; round < 2 && !check_failures(); round++) {
        expar_ep_combine_args args = idle_combine_args(&one);
        hear(&one, expar_ep_combine(one.ep, &args, NULL), EXPAR_ERR_CUDA, "expar_ep_combine",
             "combine.cu: nvrtcCompileProgram");
    }
    unsetenv("FAKE_REJECTS");
    idle_combine(&one);
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    idle_end(&one);
}

/* On one rank only: threads share what is compiled. */
static void kernels_of_a_combine_that_do_not_compile(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    run(a_combine_without_kernels);
}

/* A launch that fails reaches nobody: the others wait in vain, and no later call can make up for it. What is left of
   the buffer says so at once. */
static void launches_that_fail(expar_group *group, void *shared)
{
    idle_rank one;
    bool in_combine = *(const bool *)shared;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_combine_args back = idle_combine_args(&one);
    setenv("FAKE_LAUNCH", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA,
                 in_combine ? expar_ep_combine(one.ep, &back, NULL) : expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("cuLaunchKernelEx");
    unsetenv("FAKE_LAUNCH");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_combine(one.ep, &back, NULL));
    CHECK_TEXT("expar_ep_combine on rank ", ": the buffer is poisoned",
               in_combine ? "poisoned: expar_ep_combine on rank " : "poisoned: expar_ep_dispatch on rank ",
               "cuLaunchKernelEx");
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch on rank ", ": the buffer is poisoned", "cuLaunchKernelEx");
    idle_end(&one);
}

/* A call that gets no place after the earlier ones puts nothing on its stream. */
static void calls_without_a_place(expar_group *group, void *shared)
{
    idle_rank one;
    bool in_combine = *(const bool *)shared;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    const fake_controls *controls = controls_find();
    if (!CHECK(controls, "another driver is open")) return;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.handle = one.came.handle;
    args.topk_idx = EXPAR_TENSOR_NONE;
    expar_ep_combine_args back = idle_combine_args(&one);
    int launches = atomic_load(&controls->launches);
    setenv("FAKE_STREAM", "0", 1);
    CHECK_STATUS(EXPAR_ERR_CUDA,
                 in_combine ? expar_ep_combine(one.ep, &back, NULL) : expar_ep_dispatch(one.ep, &args, &result));
    CHECK_TEXT("cuStreamGetId");
    char begin[64];
    snprintf(begin, sizeof begin, "expar_ep_%s on rank %d: cuStream", in_combine ? "combine" : "dispatch",
             expar_group_rank(group));
    CHECK(strncmp(expar_last_error(), begin, strlen(begin)) == 0, "%s", expar_last_error());
    unsetenv("FAKE_STREAM");
    CHECK(atomic_load(&controls->launches) == launches, "%d kernels", atomic_load(&controls->launches) - launches);
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_combine(one.ep, &back, NULL));
    CHECK_TEXT("expar_ep_combine on rank ", ": the buffer is poisoned", "cuStreamGetId");
    idle_end(&one);
}

static void a_call_without_a_place_launches_nothing(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        bool in_combine = i == 1;
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
        assert_true(ranks_run(&plan, calls_without_a_place, &in_combine));
    }
}

static void a_launch_that_fails_poisons_the_buffer(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 2; i++) {
        bool in_combine = i == 1;
        const ranks_plan plan = {.kind = kind_of_ranks, .size = 1};
        assert_true(ranks_run(&plan, launches_that_fail, &in_combine));
    }
}

/* ---- where epochs wrap ------------------------------------------------------------------------------------------- */

#define BEFORE_THE_WRAP (UINT32_MAX - 4)

/* Five calls, two of them refused. */
static void reject_in_turns(idle_rank *one)
{
    if (!idle_dispatch(one, EXPAR_F32)) return;
    expar_ep_dispatch_args there = idle_dispatch_args(one, EXPAR_F32), again = there;
    expar_ep_dispatch_result none = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_combine_args back = idle_combine_args(one);
    idle_combine(one);
    if (is_odd(one)) there.num_experts = -1;
    hear(one, expar_ep_dispatch(one->ep, &there, &none), EXPAR_ERR_ARGUMENT, "expar_ep_dispatch", "num_experts");
    again.topk_idx = EXPAR_TENSOR_NONE;
    again.handle = one->came.handle;
    if (CHECK_OK(expar_ep_dispatch(one->ep, &again, &none))) expar_ep_output_release(none.output);
    if (is_odd(one)) back.x.dtype = EXPAR_I32;
    hear(one, expar_ep_combine(one->ep, &back, NULL), EXPAR_ERR_DTYPE, "expar_ep_combine", "x");
}

static void before_and_after_the_wrap(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!idle_begin(&one, group) || !epochs_begin_after(one.ep, BEFORE_THE_WRAP)) return;
    for (int round = 0; round < 3 && !check_failures(); round++)
        reject_in_turns(&one);
    CHECK(epochs_last(one.ep) == BEFORE_THE_WRAP + 15, "the last epoch is %#x", (unsigned)epochs_last(one.ep));
    idle_end(&one);
}

static void rejections_where_epochs_wrap(void **state)
{
    (void)state;
    run(before_and_after_the_wrap);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_stream_is_rejected),
        cmocka_unit_test(arguments_that_cannot_be_read),
        cmocka_unit_test(sums_that_are_not_aligned),
        cmocka_unit_test(rejections_after_a_capture),
        cmocka_unit_test(pools_that_are_used_up),
        cmocka_unit_test(events_of_rejected_results),
        cmocka_unit_test(kernels_of_a_combine_that_do_not_compile),
        cmocka_unit_test(a_call_without_a_place_launches_nothing),
        cmocka_unit_test(a_launch_that_fails_poisons_the_buffer),
        cmocka_unit_test(rejections_where_epochs_wrap),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
