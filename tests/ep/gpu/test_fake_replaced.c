/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on GPUs that are destroyed after a call which failed on one rank alone, on a simulated driver
 * (cuda/fake/fake.c). The group is sound, all ranks come, and agree on whether their memory may go at once. The next
 * buffer is as good as the first. */
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#include <stdlib.h>

#define RANKS 2
#define ODD   0 /* whose call fails, as the other one stays away, or of itself */
/* How late the other rank may be in a call that is to end in vain; nothing else has so little time. */
#define SHORT_MS 300

static bool is_odd(const idle_rank *one)
{
    return one->group->rank == ODD;
}

static void set_late_limit(const idle_rank *one)
{
    one->group->boot->late_limit_ms = SHORT_MS;
}

static void call_once(idle_rank *one)
{
    if (idle_dispatch(one, EXPAR_F32)) idle_combine(one);
}

/* ---- how a call fails -------------------------------------------------------------------------------------------- */

static void time_out(idle_rank *one)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!is_odd(one)) return;
    set_late_limit(one);
    CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_dispatch(one->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "timed out after 300 ms", "on the GPU", "no header from rank 1",
               "rank 1 is alive but has not come to this call");
}

/* No later call tells the buffer of it. */
static void time_out_unseen(idle_rank *one)
{
    expar_ep_combine_args args = idle_combine_args(one);
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    if (!is_odd(one)) return;
    args.async_finish = 1;
    set_late_limit(one);
    CHECK_OK(expar_ep_combine(one->ep, &args, &done));
    CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(done.event));
    CHECK_TEXT("expar_ep_combine", "no header from rank 1");
    expar_event_release(done.event);
    CHECK_OK(one->ep->base.poison.status);
}

/* The other rank learns of it though nobody is late or silent. */
static void break_off(idle_rank *one)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (is_odd(one)) {
        setenv("FAKE_LAUNCH", "0", 1);
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(one->ep, &args, &result));
        unsetenv("FAKE_LAUNCH");
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_ep_dispatch(one->ep, &args, &result));
        CHECK_TEXT("expar_ep_dispatch", "no header from rank 0", "rank 0 does not come any more", "EXPAR_ERR_CUDA");
    }
}

/* ---- the end of the buffer --------------------------------------------------------------------------------------- */

typedef void (*call_fn)(idle_rank *one);

/* Each buffer has memory of its own by CUDA IPC; it stays when calls have failed, for other processes might still use
   it. Else the memory is that of all buffers, and stays as long as one of them. */
static bool by_ipc(void)
{
    return kind_of_ranks == RANKS_PROCESSES && getenv("EXPAR_CUDA_IPC");
}

/* On all ranks alike, whichever rank's call has failed. */
static void check_memory(const idle_rank *one, cu_address address, bool stays)
{
    CHECK_OK(expar_group_barrier(one->group));
    bool there = cuda_place_of((const void *)(uintptr_t)address).kind == CUDA_PLACE_DEVICE;
    CHECK(there == stays, "the buffer's memory %s", there ? "has stayed" : "is gone");
}

/* First the one whose calls may have failed. */
static void destroy(idle_rank *one, expar_ep *other, call_fn call)
{
    const cu_address address =
        device_heap_at(gpu_of(one->ep->base.exec)->core.heap, gpu_of(one->ep->base.exec)->core.place.buffer);
    idle_forget(one);
    if (!CHECK_OK(expar_ep_destroy(one->ep))) return;
    one->ep = NULL;
    check_memory(one, address, call || !by_ipc());
    CHECK_OK(expar_ep_destroy(other));
    check_memory(one, address, call && by_ipc());
}

static void body(expar_group *group, void *shared)
{
    const call_fn call = *(const call_fn *)shared;
    const expar_ep_config config = idle_config(group);
    expar_ep *other = NULL;
    idle_rank one;
    if (!idle_begin(&one, group) || !CHECK_OK(expar_ep_create(group, &config, &other))) return;
    call_once(&one);
    CHECK_OK(expar_group_barrier(group));
    if (call) call(&one);
    group->boot->late_limit_ms = 0;
    destroy(&one, other, call);
    if (!CHECK_OK(expar_ep_create(group, &config, &one.ep))) return;
    call_once(&one);
    idle_end(&one);
}

static void run(call_fn call)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, body, &call));
}

static void a_buffer_that_serves(void **state)
{
    (void)state;
    run(NULL);
}

static void a_buffer_whose_call_timed_out(void **state)
{
    (void)state;
    run(time_out);
}

static void a_buffer_whose_last_call_timed_out_unseen(void **state)
{
    (void)state;
    run(time_out_unseen);
}

/* On one rank only: threads share the driver. */
static void a_buffer_whose_call_broke_off(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    run(break_off);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_that_serves),
        cmocka_unit_test(a_buffer_whose_call_timed_out),
        cmocka_unit_test(a_buffer_whose_last_call_timed_out_unseen),
        cmocka_unit_test(a_buffer_whose_call_broke_off),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
