/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of outputs on GPUs for as long as somebody has it. Rows of a buffer and a group that have gone are the
 * caller's memory to another one's combine. Combine reads rows in place in memory that the caller took. Memory is given
 * back after a kernel that still reads, on a buffer that goes on, and when buffer and group have gone. On thread ranks,
 * or with `processes` on process ranks. */
#include "ep/normal/normal.h"
#include "gpu/late_reader.h"
#include "oracle/unit.h"
#include <expar/dlpack.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static ranks_kind kind = RANKS_THREADS;

/* Large enough for all that a test holds, so that nothing grows or lies beside the pool. */
#define POOL_BYTES ((int64_t)8 << 20)

static bool begin(layer_pair *one, expar_group *group, const void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.pool_bytes = POOL_BYTES;
    return layer_pair_open(one, group, shared, &config);
}

static expar_ep_stats stats_of(const layer_pair *one)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one->ep, &stats));
    return stats;
}

static size_t bytes_of(const expar_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->shape[1]) * expar_dtype_bytes(tensor->dtype);
}

static bool apart(const expar_tensor *tensor, const void *data, size_t bytes)
{
    const uintptr_t first = (uintptr_t)tensor->data, other = (uintptr_t)data;
    return first + bytes_of(tensor) <= other || other + bytes <= first;
}

/* ---- rows of a group that has gone ------------------------------------------------------------------------------- */

/* An output of a second group, and that group's end. */
static bool leave_rows(expar_group *group, const void *shared, expar_ep_dispatch_result *left)
{
    layer_pair gone;
    expar_group *second = ranks_join_again(group);
    if (!second || !begin(&gone, second, shared) || !layer_pair_go(&gone, 0)) return false;
    *left = gone.layers[0].result;
    gone.layers[0].result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    layer_pair_close(&gone);
    return CHECK_OK(expar_group_destroy(second));
}

/* A round whose answers lie in what the second group has left. */
static void combine_left(layer_pair *one, const expar_ep_dispatch_result *left)
{
    layer *p = &one->layers[0];
    const expar_tensor own = p->back;
    p->back = left->recv_x;
    if (layer_upload(p, one->in->t, one->in->a, one->card.streams[0]) &&
        CHECK_OK(layer_dispatch(p, one->ep, one->in->t, one->card.streams[0]))) {
        /* Peers do not reach it there. */
        CHECK_STATUS(EXPAR_ERR_ADDRESS, layer_combine_by(p, one->ep, EXPAR_EP_PATH_DIRECT, one->card.streams[0]));
        CHECK_TEXT("path is DIRECT, but x.data", "is not in the symmetric heap");
        CHECK_OK(layer_combine_by(p, one->ep, EXPAR_EP_PATH_QUEUE, one->card.streams[0]));
        layer_verify(p, one->in->t, one->in->a, one->card.streams[0]);
        CHECK(stats_of(one).queue_calls == 1, "%llu calls by the queue", (unsigned long long)stats_of(one).queue_calls);
        /* By a copy in the pool, where it fits. */
        layer_pair_go(one, 0);
        CHECK(stats_of(one).queue_calls == 1, "%llu calls by the queue", (unsigned long long)stats_of(one).queue_calls);
    }
    p->back = own;
}

static void trial_left_rows(expar_group *group, void *shared)
{
    layer_pair one;
    expar_ep_dispatch_result left;
    if (!leave_rows(group, shared, &left) || !begin(&one, group, shared)) return;
    combine_left(&one, &left);
    layer_pair_close(&one);
    expar_ep_output_release(left.output);
    expar_ep_handle_release(left.handle);
    cuda_later_await();
}

/* ---- rows in taken memory ---------------------------------------------------------------------------------------- */

/* Tensors of the shape, in memory of the pool. */
static bool take(expar_ep *ep, const expar_tensor *like, int64_t rows, expar_ep_output **memory, expar_tensor *out)
{
    expar_tensor flat;
    *out = *like;
    out->shape[0] = rows;
    if (!CHECK_OK(expar_ep_alloc(ep, bytes_of(out), memory)) ||
        !CHECK_OK(expar_ep_output_get_tensor(*memory, EXPAR_EP_PART_X, &flat)))
        return false;
    CHECK(flat.ndim == 1 && flat.shape[0] == (int64_t)bytes_of(out) && flat.dtype == EXPAR_U8, "[bytes] u8");
    CHECK(flat.device.type == EXPAR_CUDA && flat.device.index == like->device.index, "on another device");
    out->data = flat.data;
    return CHECK((uintptr_t)flat.data % 128 == 0, "%p is not aligned", flat.data);
}

/* DIRECT, which other memory is refused for. */
static void trial_taken_rows(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    const cu_stream stream = one.card.streams[0];
    layer *p = &one.layers[0];
    const expar_tensor own = p->back, own_weights = p->back_weights;
    expar_ep_output *memory[2] = {NULL};
    if (take(one.ep, &own, p->spare, &memory[0], &p->back) &&
        take(one.ep, &own_weights, p->spare, &memory[1], &p->back_weights) &&
        layer_upload(p, one.in->t, one.in->a, stream) && CHECK_OK(layer_dispatch(p, one.ep, one.in->t, stream)) &&
        CHECK_OK(layer_combine_by(p, one.ep, EXPAR_EP_PATH_DIRECT, stream))) {
        layer_verify(p, one.in->t, one.in->a, stream);
        CHECK(stats_of(&one).direct_calls == 2, "%llu direct calls", (unsigned long long)stats_of(&one).direct_calls);
    }
    p->back = own;
    p->back_weights = own_weights;
    for (int i = 0; i < 2; i++)
        CHECK_OK(expar_ep_output_release_after(memory[i], stream));
    layer_pair_close(&one);
}

/* ---- after a kernel that reads ----------------------------------------------------------------------------------- */

#define TAKES 8 /* blocks of that size, of which the pool has more than can be held back */

/* Memory that calls and the caller get meanwhile lies elsewhere. */
static void use_pool(layer_pair *one, const expar_tensor *read)
{
    expar_ep_output *memory[TAKES] = {NULL};
    expar_tensor rows[TAKES];
    for (int i = 0; i < 4 && layer_pair_go(one, i % 2); i++) {
        const expar_tensor *came = &one->layers[i % 2].result.recv_x;
        CHECK(apart(read, came->data, bytes_of(came)), "a dispatch got memory that a kernel reads");
    }
    for (int i = 0; i < TAKES && take(one->ep, read, read->shape[0], &memory[i], &rows[i]); i++)
        CHECK(apart(read, rows[i].data, bytes_of(&rows[i])), "memory that a kernel reads was handed out");
    for (int i = 0; i < TAKES; i++)
        expar_ep_output_release(memory[i]);
}

static void release_and_read(layer_pair *one, late_reader *reader)
{
    const cu_stream slow = one->card.streams[2];
    layer *p = &one->layers[0];
    const expar_tensor read = p->result.recv_x;
    void *rows = card_fetch(&read, one->card.streams[0]);
    if (late_reader_start(reader, &read, slow)) {
        CHECK_OK(expar_ep_output_release_after(p->result.output, slow));
        CHECK_OK(expar_ep_handle_release_after(p->result.handle, slow));
        p->result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
        use_pool(one, &read);
        late_reader_finish(reader, rows, slow);
    }
    free(rows);
}

static void trial_release_after(expar_group *group, void *shared)
{
    layer_pair one;
    late_reader reader;
    if (!begin(&one, group, shared)) return;
    const uint64_t before = stats_of(&one).used_bytes;
    if (!layer_pair_go(&one, 0) || !layer_pair_go(&one, 1) ||
        !late_reader_open(&reader, &one.card, &one.layers[0].result.recv_x))
        return;
    CHECK_OK(expar_barrier_all(group));
    release_and_read(&one, &reader);
    for (int i = 0; i < 2; i++)
        layer_release(&one.layers[i]);
    cuda_later_await();
    CHECK(stats_of(&one).used_bytes == before, "%llu bytes stay in use",
          (unsigned long long)(stats_of(&one).used_bytes - before));
    CHECK_OK(expar_barrier_all(group));
    late_reader_close(&reader);
    layer_pair_close(&one);
}

/* ---- when buffer and group have gone ----------------------------------------------------------------------------- */

typedef struct legacy {
    int32_t rank;
    expar_ep_output *output; /* the tensor holds it */
    expar_tensor x;
    expar_dl_versioned *tensor; /* the same, by DLPack */
    void *rows;                 /* a copy in host memory */
} legacy;
static _Thread_local legacy left;

/* On a buffer that began with nothing. */
static void leave_tensor(expar_group *group, void *shared)
{
    layer_pair one;
    void *managed = NULL;
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    left = (legacy){.rank = expar_group_rank(group)};
    if (!layer_pair_open(&one, group, shared, &config)) return;
    for (int32_t i = 0; i < 2; i++)
        if (!layer_pair_go(&one, i)) return;
    left.output = one.layers[1].result.output;
    left.x = one.layers[1].result.recv_x;
    left.rows = card_fetch(&left.x, one.card.streams[0]);
    CHECK_OK(expar_ep_output_to_dlpack(left.output, EXPAR_EP_PART_X, EXPAR_DLPACK_VERSION(1, 0), &managed));
    left.tensor = managed;
    layer_pair_close(&one);
}

static void *delete_tensor(void *argument)
{
    expar_dl_versioned *tensor = argument;
    tensor->deleter(tensor);
    return NULL;
}

/* Deleted by a thread that was never in a call, while the kernel has not read yet. */
static void read_and_delete(late_reader *reader, cu_stream stream)
{
    pthread_t thread;
    const char *data = (const char *)left.tensor->tensor.data + left.tensor->tensor.byte_offset;
    CHECK(data == left.x.data, "the tensor lies elsewhere");
    if (!late_reader_start(reader, &left.x, stream)) return;
    CHECK_OK(expar_ep_output_read_on(left.output, stream));
    if (pthread_create(&thread, NULL, delete_tensor, left.tensor)) abort();
    pthread_join(thread, NULL);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_ep_output_retain(left.output));
    late_reader_finish(reader, left.rows, stream);
}

/* Thread ranks share a context, and loading, unloading and freeing there wait for the kernels of all. So one rank at a
   time has a kernel that waits. */
static pthread_mutex_t one_reader = PTHREAD_MUTEX_INITIALIZER;

static void read_tensor(expar_group *none, void *shared)
{
    card own;
    late_reader reader;
    (void)none, (void)shared;
    pthread_mutex_lock(&one_reader);
    if (left.tensor && card_open(&own, left.rank)) {
        if (late_reader_open(&reader, &own, &left.x)) read_and_delete(&reader, own.streams[0]);
        late_reader_close(&reader);
        cuda_later_await();
        card_close(&own);
    }
    pthread_mutex_unlock(&one_reader);
    free(left.rows);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void run(ranks_body body, ranks_body after)
{
    const ranks_plan ranks = {.kind = kind, .after = after};
    assert_true(layers_run(&ranks, 27, body));
}

static void test_rows_of_a_group_that_has_gone(void **state)
{
    (void)state;
    run(trial_left_rows, NULL);
}

static void test_rows_in_taken_memory_are_read_in_place(void **state)
{
    (void)state;
    run(trial_taken_rows, NULL);
}

static void test_memory_goes_back_after_a_kernel_that_reads(void **state)
{
    (void)state;
    run(trial_release_after, NULL);
}

static void test_tensors_are_read_when_the_group_has_gone(void **state)
{
    (void)state;
    run(leave_tensor, read_tensor);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_a_group_that_has_gone),
        cmocka_unit_test(test_rows_in_taken_memory_are_read_in_place),
        cmocka_unit_test(test_memory_goes_back_after_a_kernel_that_reads),
        cmocka_unit_test(test_tensors_are_read_when_the_group_has_gone),
    };
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
