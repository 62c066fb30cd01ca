/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's allocator on GPUs, on a simulated driver (cuda/fake/fake.c). Outputs that do not fit into the pool lie
 * in its memory, which goes back after the calls that use it, once. It may give useless memory, on one rank alone. It
 * may call the library. Captures do not ask it. Ranks without tokens, whose outputs are of the worst case. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "shmem/kind.h"

#include <time.h>

#define RANKS       2
#define ODD         1 /* the rank whose allocator does something else */
#define LIMIT_BYTES ((int64_t)64 << 10)
#define MANY_ROWS   4096 /* 512 KiB */

/* The answer of a rank's allocator. */
typedef enum gift { GIVES_MEMORY, GIVES_NONE, GIVES_ODD, GIVES_HOST, GIVES_OTHER_GPU } gift;

/* Its state; config.alloc_context, which lasts until the process ends. */
typedef struct store {
    gift gift;
    void *stream; /* that it is to be asked for */
    cuda_device *other;
    void (*asked)(void);           /* called whenever it is asked; NULL: nothing */
    _Atomic(void *) last;          /* that it gave */
    atomic_int asks, taken, given; /* the last by a thread of the library's */
} store;

static _Thread_local store *own;

static void *take_of_gpu(size_t bytes)
{
    cu_address at = 0;
    /* The driver takes it of the GPU that is current, as a caller's functions would. */
    return CHECK_OK(CUDA_CALL(MemAlloc, &at, bytes)) ? (void *)(uintptr_t)at : NULL;
}

static void *take_of_other(const store *self, size_t bytes)
{
    if (!CHECK_OK(cuda_enter(self->other))) return NULL;
    void *data = take_of_gpu(bytes);
    cuda_leave();
    return data;
}

static void *store_alloc(void *context, size_t bytes, size_t alignment, void *stream)
{
    store *self = context;
    void *data = NULL;
    CHECK(alignment == 128 && stream == self->stream, "alignment %zu, stream %p", alignment, stream);
    atomic_fetch_add(&self->asks, 1);
    if (self->asked) self->asked();
    if (self->gift == GIVES_MEMORY) data = take_of_gpu(bytes);
    if (self->gift == GIVES_ODD) data = (char *)take_of_gpu(bytes + 16) + 16;
    if (self->gift == GIVES_HOST) data = aligned_alloc(128, 128);
    if (self->gift == GIVES_OTHER_GPU) data = take_of_other(self, bytes);
    if (data) atomic_fetch_add(&self->taken, 1);
    atomic_store(&self->last, data);
    return data;
}

static void store_free(void *context, void *data, size_t bytes, void *stream)
{
    store *self = context;
    (void)bytes;
    CHECK(stream == self->stream, "memory for another stream goes back");
    if (self->gift == GIVES_HOST)
        free(data);
    else
        CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)data - (self->gift == GIVES_ODD ? 16 : 0)));
    atomic_fetch_add(&self->given, 1);
}

/* A buffer whose pool fits results without rows, with an allocator of its own on each rank. */
static bool begin_as(idle_rank *one, expar_group *group, expar_ep_config config)
{
    own = calloc(1, sizeof *own);
    if (!CHECK(own, "no memory")) return false;
    config.pool_limit_bytes = LIMIT_BYTES;
    config.alloc = store_alloc;
    config.free = store_free;
    config.alloc_context = own;
    if (!idle_begin_as(one, group, &config)) return false;
    own->stream = one->stream;
    return CHECK_OK(cuda_device_open(1 - config.device.index, &own->other));
}

static bool begin_at(idle_rank *one, expar_group *group, int32_t gpu)
{
    expar_ep_config config = idle_config(group);
    config.device.index = gpu;
    config.pool_bytes = LIMIT_BYTES;
    return begin_as(one, group, config);
}

static bool begin_without_limits(idle_rank *one, expar_group *group)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.device = (expar_device){.type = EXPAR_CUDA};
    return begin_as(one, group, config);
}

static bool begin(idle_rank *one, expar_group *group)
{
    return begin_at(one, group, 0);
}

/* All that the allocator has given has come back, once; by then nobody calls it any more. */
static void end(idle_rank *one)
{
    idle_end(one);
    cuda_later_await();
    CHECK(own->taken == own->given, "%d taken, %d given back", own->taken, own->given);
    cuda_device_close(own->other);
    free(own);
}

static expar_status dispatch_many(idle_rank *one)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.num_worst_tokens = MANY_ROWS;
    idle_forget(one);
    return expar_ep_dispatch(one->ep, &args, &one->came);
}

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

/* ---- memory that serves ------------------------------------------------------------------------------------------ */

static void allocate(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin(&one, group)) return;
    for (int32_t i = 1; i < 4; i++) {
        if (!CHECK_OK(dispatch_many(&one))) return;
        CHECK(one.came.recv_x.data == own->last && own->taken == i, "the output is not what the allocator gave");
        CHECK(one.came.path == EXPAR_EP_PATH_QUEUE, "path %d", (int)one.came.path);
    }
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one.ep, &stats));
    CHECK(stats.other_blocks == 3, "%d blocks beside the pool", (int)stats.other_blocks);
    /* A call whose output fits asks nobody. */
    CHECK(idle_dispatch(&one, EXPAR_F32) && own->asks == 3, "%d asked", own->asks);
    end(&one);
}

static void outputs_lie_in_what_it_gives(void **state)
{
    (void)state;
    run(allocate);
}

/* Records grow ahead of the output, on a stream of the buffer's own: the allocator is told of the caller's. */
static void allocate_after_growth(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_without_limits(&one, group)) return;
    if (CHECK_OK(dispatch_many(&one))) CHECK(own->taken == 1, "%d taken", own->taken);
    end(&one);
}

static void an_output_after_a_growth_is_for_the_callers_stream(void **state)
{
    (void)state;
    run(allocate_after_growth);
}

/* Without a later call: any stream may use it. */
static void allocate_rows(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_output *output = NULL;
    if (!begin(&one, group)) return;
    own->stream = NULL;
    if (CHECK_OK(expar_ep_alloc(one.ep, 4 * LIMIT_BYTES, &output))) {
        expar_tensor rows;
        CHECK_OK(expar_ep_output_get_tensor(output, EXPAR_EP_PART_X, &rows));
        CHECK(rows.data == own->last, "the rows are not what the allocator gave");
    }
    expar_ep_output_release(output);
    end(&one);
}

static void rows_of_the_callers_lie_there_too(void **state)
{
    (void)state;
    run(allocate_rows);
}

/* ---- when it goes back ------------------------------------------------------------------------------------------- */

static void rest_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

/* The streams do not come to the kernels, whose output the caller releases; it does not go back even after the next
   call. Each rank has a GPU of its own: those that share one in a process enqueue nothing after a kernel that waits. */
static void give_back_after(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin_at(&one, group, group->rank) || !CHECK_OK(dispatch_many(&one))) return;
    fake_controls *controls = controls_find();
    if (!CHECK(controls, "the driver is not the played one")) return;
    const expar_ep_dispatch_result first = one.came;
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls->hold, 1);
    CHECK_OK(expar_barrier_all(group));
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = MANY_ROWS;
    args.async_finish = 1;
    expar_ep_dispatch_result results[2] = {EXPAR_EP_DISPATCH_RESULT_INIT, EXPAR_EP_DISPATCH_RESULT_INIT};
    for (int32_t i = 0; i < 2; i++) {
        if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &results[i]))) return;
        expar_ep_output_release(results[i].output);
        expar_ep_handle_release(results[i].handle);
    }
    rest_ms(50);
    CHECK(own->taken == 3 && own->given == 0, "%d of %d went back before kernels had come to it", own->given,
          own->taken);
    CHECK_OK(expar_barrier_all(group));
    atomic_store(&controls->hold, 0);
    for (int32_t i = 0; i < 2; i++) {
        CHECK_OK(expar_event_wait(results[i].event));
        expar_event_release(results[i].event);
    }
    one.came = first;
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    cuda_later_await();
    CHECK(own->given == 3, "%d of 3 have gone back", own->given);
    end(&one);
}

static void memory_goes_back_after_the_calls(void **state)
{
    (void)state;
    run(give_back_after);
}

static _Thread_local expar_ep_dispatch_result kept;
static _Thread_local cuda_device *kept_gpu;

static void keep_output(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin(&one, group) || !CHECK_OK(dispatch_many(&one))) return;
    kept = one.came;
    one.came = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_OK(cuda_device_open(0, &kept_gpu));
    idle_end(&one);
    cuda_later_await();
    CHECK(own->given == 0, "memory of a living output was given back");
}

static void release_output(expar_group *none, void *shared)
{
    (void)none, (void)shared;
    if (!kept.output) return;
    expar_ep_handle_release(kept.handle);
    CHECK(own->given == 0, "memory of a living output was given back");
    expar_ep_output_release(kept.output);
    cuda_later_await();
    CHECK(own->given == 1, "%d of 1 given back", own->given);
    cuda_device_close(kept_gpu);
    cuda_device_close(own->other);
    free(own);
}

static void outputs_outlive_buffer_and_group(void **state)
{
    (void)state;
    kind_run((ranks_plan){.after = release_output}, RANKS, keep_output);
}

/* ---- memory that is of no use ------------------------------------------------------------------------------------ */

static void check_rejected(const idle_rank *one, expar_status ended, expar_status expected, const char *text)
{
    const bool odd = one->group->rank == ODD;
    CHECK_STATUS(odd ? expected : EXPAR_ERR_REMOTE, ended);
    CHECK_TEXT("expar_ep_dispatch", text);
    if (!odd) CHECK_TEXT("rank 1", expar_status_string(expected));
}

/* An error of the odd rank alone: all are told why, its memory goes back at once, and the next call works. */
static void allocate_badly(idle_rank *one, gift bad, expar_status expected, const char *text)
{
    const bool odd = one->group->rank == ODD;
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = MANY_ROWS;
    args.async_finish = 1;
    const int given = own->given;
    own->gift = odd ? bad : GIVES_MEMORY;
    expar_status ended = expar_ep_dispatch(one->ep, &args, &result);
    if (ended == EXPAR_OK) {
        ended = expar_event_wait(result.event);
        expar_event_release(result.event);
        expar_ep_output_release(result.output);
        expar_ep_handle_release(result.handle);
    }
    check_rejected(one, ended, expected, text);
    if (odd) CHECK(own->given == given + (bad != GIVES_NONE), "%d given back", own->given - given);
    own->gift = GIVES_MEMORY;
    CHECK_OK(dispatch_many(one));
    if (idle_dispatch(one, EXPAR_F32)) idle_combine(one);
    /* Memory that goes back later does so as memory. */
    cuda_later_await();
}

static void allocate_what_is_of_no_use(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    if (!begin(&one, group)) return;
    allocate_badly(&one, GIVES_NONE, EXPAR_ERR_MEMORY, "config.alloc gave NULL for ");
    allocate_badly(&one, GIVES_ODD, EXPAR_ERR_ALIGNMENT, "expected a multiple of 128");
    allocate_badly(&one, GIVES_HOST, EXPAR_ERR_DEVICE, "is host memory; expected memory of GPU 0");
    allocate_badly(&one, GIVES_OTHER_GPU, EXPAR_ERR_DEVICE, "is memory of GPU 1; expected GPU 0");
    CHECK_OK(dispatch_many(&one));
    end(&one);
}

static void what_is_of_no_use_is_rejected_on_all_ranks(void **state)
{
    (void)state;
    run(allocate_what_is_of_no_use);
}

/* ---- what it may call -------------------------------------------------------------------------------------------- */

static _Thread_local idle_rank *caller, *other;
static _Thread_local int called;

static void call_library(void)
{
    expar_ep_output *output = NULL;
    expar_ep *made = NULL;
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    const expar_ep_config config = idle_config(caller->group);
    const expar_ep_dispatch_args args = idle_dispatch_args(other, EXPAR_F32);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    called++;
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_dispatch(caller->ep, &args, &result));
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_dispatch(other->ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "config.alloc");
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_alloc(other->ep, 16, &output));
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_trim(other->ep));
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_create(caller->group, &config, &made));
    CHECK_STATUS(EXPAR_ERR_BUSY, expar_ep_destroy(other->ep));
    CHECK_OK(expar_ep_get_stats(caller->ep, &stats));
    /* An allocator that finds no memory may let something go. */
    idle_forget(other);
}

static void allocate_and_call(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one, two;
    if (!begin(&one, group) || !idle_begin(&two, group)) return;
    caller = &one;
    other = &two;
    for (int32_t i = 0; i < 2; i++) {
        if (!idle_dispatch(&two, EXPAR_F32)) return;
        own->asked = call_library;
        CHECK_OK(dispatch_many(&one));
        own->asked = NULL;
        CHECK(called == i + 1, "the allocator was asked %d times", called);
    }
    if (idle_dispatch(&two, EXPAR_F32)) idle_combine(&two);
    idle_end(&two);
    end(&one);
}

static void it_may_let_go_but_not_call(void **state)
{
    (void)state;
    run(allocate_and_call);
}

/* ---- captures ---------------------------------------------------------------------------------------------------- */

static void capture(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    cu_graph graph = NULL;
    if (!begin(&one, group) || !idle_dispatch(&one, EXPAR_F32)) return;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, one.stream, CU_CAPTURE_THREAD_LOCAL));
    CHECK_STATUS(EXPAR_ERR_BUFFER_SIZE, dispatch_many(&one));
    CHECK_TEXT("while the stream is being captured");
    CHECK_OK(CUDA_CALL(StreamEndCapture, one.stream, &graph));
    if (graph) CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    CHECK(own->asks == 0, "the allocator was asked for a graph's memory");
    CHECK_OK(dispatch_many(&one));
    CHECK(own->asks == 1, "%d asked", own->asks);
    end(&one);
}

static void captures_do_not_ask_it(void **state)
{
    (void)state;
    run(capture);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_lie_in_what_it_gives),
        cmocka_unit_test(rows_of_the_callers_lie_there_too),
        cmocka_unit_test(memory_goes_back_after_the_calls),
        cmocka_unit_test(outputs_outlive_buffer_and_group),
        cmocka_unit_test(what_is_of_no_use_is_rejected_on_all_ranks),
        cmocka_unit_test(an_output_after_a_growth_is_for_the_callers_stream),
        cmocka_unit_test(it_may_let_go_but_not_call),
        cmocka_unit_test(captures_do_not_ask_it),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
