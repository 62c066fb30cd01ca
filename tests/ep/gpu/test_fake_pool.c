/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on GPUs that are used up, with no memory beside them, on a simulated driver (cuda/fake/fake.c). The call says
 * how much would do, that much does, the other ranks are told, and memory that is given back serves. Also the size of a
 * pool that the library chooses. And expert-major outputs, as far as ranks without tokens have them. */
#include "cuda/find_controls.h"
#include "ep/harness/idle_rank.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "shmem/kind.h"

#define RANKS 2
#define ODD   1 /* the rank that asks for too much */

#define POOL_BYTES ((int64_t)64 << 10)
#define MANY_ROWS  4096 /* 512 KiB */

static void run(ranks_body body)
{
    kind_run((ranks_plan){0}, RANKS, body);
}

static bool begin_without_lending(idle_rank *one, expar_group *group, int64_t pool_bytes)
{
    if (!idle_begin_with(one, group, pool_bytes)) return false;
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

/* ---- outputs that are too large ---------------------------------------------------------------------------------- */

/* The text of the last error after these words. */
static int64_t number_after(const char *words)
{
    const char *found = strstr(expar_last_error(), words);
    bool said = CHECK(found, "\"%s\" does not say \"%s\"", expar_last_error(), words);
    return said ? strtoll(found + strlen(words), NULL, 10) : 0;
}

static expar_ep_dispatch_args args_with_space(const idle_rank *one, expar_ep_path path, int64_t rows)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    args.path = path;
    args.num_worst_tokens = rows;
    args.async_finish = 1;
    return args;
}

/* Counts are not waited for, and the event tells the rest. */
static void end_with(const expar_ep_dispatch_result *result, expar_status expected)
{
    CHECK_STATUS(expected, expar_event_wait(result->event));
    if (expected != EXPAR_OK) CHECK_TEXT("rank 1 rejected", "the pool of");
    expar_event_release(result->event);
    expar_ep_output_release(result->output);
    expar_ep_handle_release(result->handle);
}

/* The odd rank's output does not fit into the pool; the error tells how large to make it. */
static int64_t ask_for_too_much(expar_group *group, expar_ep_path path, const char *words)
{
    idle_rank one;
    if (!begin_without_lending(&one, group, POOL_BYTES)) return 0;
    bool odd = group->rank == ODD;
    expar_ep_dispatch_args args = args_with_space(&one, path, odd ? MANY_ROWS : 4);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    int64_t enough = 0;
    const expar_status rejected = path == EXPAR_EP_PATH_DIRECT ? EXPAR_ERR_BUFFER_SIZE : EXPAR_ERR_MEMORY;
    CHECK_STATUS(odd ? rejected : EXPAR_OK, expar_ep_dispatch(one.ep, &args, &result));
    if (odd)
        enough = number_after(words);
    else
        end_with(&result, EXPAR_ERR_REMOTE);
    if (idle_dispatch(&one, EXPAR_F32)) idle_combine(&one);
    end_with_lending(&one);
    return enough;
}

static void too_large(expar_group *group, expar_ep_path path, const char *words)
{
    int64_t enough = ask_for_too_much(group, path, words), all[RANKS] = {0};
    idle_rank one;
    CHECK_OK(group->boot->ops->allgather(group->boot, &enough, all, sizeof enough));
    CHECK(all[ODD] >= MANY_ROWS * 128, "%lld bytes are said to do", (long long)all[ODD]);
    if (!begin_without_lending(&one, group, all[ODD])) return;
    expar_ep_dispatch_args args = args_with_space(&one, path, MANY_ROWS);
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (CHECK_OK(expar_ep_dispatch(one.ep, &args, &result))) end_with(&result, EXPAR_OK);
    end_with_lending(&one);
}

static void too_large_by_any_path(expar_group *group, void *shared)
{
    (void)shared;
    too_large(group, EXPAR_EP_PATH_AUTO, "or make config.pool_limit_bytes ");
    too_large(group, EXPAR_EP_PATH_QUEUE, "or make config.pool_limit_bytes ");
}

static void too_large_for_direct(expar_group *group, void *shared)
{
    (void)shared;
    too_large(group, EXPAR_EP_PATH_DIRECT, "(config.pool_limit_bytes of ");
}

static void outputs_that_find_no_space(void **state)
{
    (void)state;
    run(too_large_by_any_path);
}

static void direct_outputs_that_find_no_space(void **state)
{
    (void)state;
    run(too_large_for_direct);
}

/* ---- expert-major ------------------------------------------------------------------------------------------------ */

/* For rows with scales. worst: 0, or the space. */
static bool expert_major(idle_rank *one, int64_t worst, expar_ep_dispatch_result *result)
{
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F8E4M3);
    args.x_scales = idle_tensor(EXPAR_F32, 2);
    args.num_worst_tokens = worst;
    args.expert_major = 1;
    return CHECK_OK(expar_ep_dispatch(one->ep, &args, result));
}

/* The same bytes as numbers that can be added. */
static expar_ep_combine_args expert_major_back(const idle_rank *one, const expar_ep_dispatch_result *result)
{
    const int64_t hidden = IDLE_HIDDEN / (int64_t)sizeof(float);
    expar_ep_combine_args args = idle_combine_args(one);
    args.x = result->recv_x;
    args.x.dtype = EXPAR_F32;
    args.x.shape[1] = args.x.strides[0] = hidden;
    args.out_y = idle_tensor(EXPAR_F32, hidden);
    args.handle = result->handle;
    args.expert_major = 1;
    return args;
}

static void release(expar_ep_dispatch_result *result)
{
    expar_ep_output_release(result->output);
    expar_ep_handle_release(result->handle);
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
}

/* Without rows, there and back. */
static void go_without_rows(idle_rank *one)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!expert_major(one, 0, &result)) return;
    CHECK(result.recv_row_map.shape[0] == 0 && result.recv_scales.shape[1] == 2, "the output has other shapes");
    expar_ep_combine_args back = expert_major_back(one, &result);
    CHECK_OK(expar_ep_combine(one->ep, &back, NULL));
    release(&result);
}

/* A combine's rows travel by way of the pool, which outputs that are still held have used up. */
static void expert_major_without_space(expar_group *group, void *shared)
{
    (void)shared;
    idle_rank one;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT, held = result;
    if (!begin_without_lending(&one, group, POOL_BYTES)) return;
    go_without_rows(&one);
    if (!expert_major(&one, 300, &result)) return;
    const int32_t *map = result.recv_row_map.data;
    CHECK(result.recv_row_map.shape[0] == 300 && map[0] == -1 && map[299] == -1, "the map names rows");
    expar_ep_dispatch_args args = idle_dispatch_args(&one, EXPAR_F32);
    args.num_worst_tokens = 300;
    if (!CHECK_OK(expar_ep_dispatch(one.ep, &args, &held))) return;
    expar_ep_combine_args back = expert_major_back(&one, &result);
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_combine(one.ep, &back, NULL));
    CHECK_TEXT("expar_ep_combine", "the pool of 65536 bytes has no space for 9600 bytes", "free outputs and handles");
    release(&held);
    CHECK_OK(expar_ep_combine(one.ep, &back, NULL));
    release(&result);
    end_with_lending(&one);
}

static void combines_that_find_no_space(void **state)
{
    (void)state;
    run(expert_major_without_space);
}

/* ---- the pool that the library chooses --------------------------------------------------------------------------- */

/* Rows, scales, indices and weights make 1 KiB a row. Two of the largest outputs end on a multiple of the pool's
   alignment of large blocks, and leave no free space by chance. */
#define FULL_TOKENS 4096
#define FULL_ROWS   (RANKS * FULL_TOKENS)
#define FULL_HIDDEN 1008
#define FULL_SCALES 1

static expar_ep_config full_config(const expar_group *group)
{
    expar_ep_config config = idle_config(group);
    config.max_tokens = FULL_TOKENS;
    config.max_row_bytes = FULL_HIDDEN;
    config.max_scales = FULL_SCALES;
    return config;
}

/* The largest output, and beside the handle of this call, which has no tokens, that of one which has the most. */
static bool take_full(const idle_rank *one, expar_ep_dispatch_result *result, mem_block **handle)
{
    const ep_shape *shape = &one->ep->shape;
    expar_ep_dispatch_args args = idle_dispatch_args(one, EXPAR_F8E4M3);
    args.x = idle_tensor(EXPAR_F8E4M3, FULL_HIDDEN);
    args.x_scales = idle_tensor(EXPAR_F32, FULL_SCALES);
    args.topk_idx = idle_tensor(EXPAR_I64, 1);
    args.topk_weights = idle_tensor(EXPAR_F32, 1);
    args.num_worst_tokens = FULL_ROWS;
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    return CHECK_OK(mem_pool_take(one->ep->base.exec->pool, gpu_routing_bytes(shape, shape->tokens), handle)) &&
           CHECK_OK(expar_ep_dispatch(one->ep, &args, result));
}

/* Memory of the GPU's that is not in the heap, as [FULL_ROWS][columns]. */
static expar_tensor take_tensor(expar_dtype dtype, int64_t columns)
{
    cu_address at = 0;
    CHECK_OK(CUDA_CALL(MemAlloc, &at, (size_t)(FULL_ROWS * columns * (int64_t)expar_dtype_bytes(dtype))));
    expar_tensor t = expar_tensor_2d((void *)(uintptr_t)at, dtype, FULL_ROWS, columns);
    t.device = (expar_device){.type = EXPAR_CUDA};
    return t;
}

static void give_tensor(const expar_tensor *tensor)
{
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)tensor->data));
}

/* By way of copies in the pool: rows that do not fit there come by the queue, and are not copied. */
static void combine_staged(const idle_rank *one, const expar_ep_handle *handle)
{
    const int64_t hidden = FULL_HIDDEN / (int64_t)sizeof(float);
    const fake_controls *controls = controls_find();
    expar_ep_combine_args args = idle_combine_args(one);
    args.x = take_tensor(EXPAR_F32, hidden);
    args.topk_weights = take_tensor(EXPAR_F32, 1);
    args.out_y = idle_tensor(EXPAR_F32, hidden);
    args.out_topk_weights = idle_tensor(EXPAR_F32, 1);
    args.handle = handle;
    CHECK_OK(expar_barrier_all(one->group));
    int others = controls ? atomic_load(&controls->others) : 0;
    CHECK_OK(expar_barrier_all(one->group));
    CHECK_OK(expar_ep_combine(one->ep, &args, NULL));
    CHECK_OK(expar_barrier_all(one->group));
    int expected = 2 * (one->group->threads ? RANKS : 1);
    CHECK(controls && atomic_load(&controls->others) == others + expected,
          "rows or weights were not copied to the pool");
    give_tensor(&args.x);
    give_tensor(&args.topk_weights);
}

static void fill_the_chosen_pool(expar_group *group, void *shared)
{
    (void)shared;
    const expar_ep_config config = full_config(group);
    expar_ep_dispatch_result results[2];
    mem_block *handles[2];
    idle_rank one;
    if (!idle_begin_as(&one, group, &config)) return;
    for (int i = 0; i < 2; i++)
        if (!take_full(&one, &results[i], &handles[i])) return;
    combine_staged(&one, results[0].handle);
    for (int i = 0; i < 2; i++) {
        release(&results[i]);
        mem_block_release(handles[i]);
    }
    idle_end(&one);
}

static void what_the_chosen_pool_holds(void **state)
{
    (void)state;
    run(fill_the_chosen_pool);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_that_find_no_space),
        cmocka_unit_test(direct_outputs_that_find_no_space),
        cmocka_unit_test(combines_that_find_no_space),
        cmocka_unit_test(what_the_chosen_pool_holds),
    };
    kind_read(argc, argv);
    /* The pool holds copies of rows that peers do not map. */
    setenv("EXPAR_MAP_SEGMENTS", "0", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
