/* SPDX-License-Identifier: Apache-2.0 */
/* Combines of rows in the caller's memory: peers read them where they lie once they have mapped that memory, and until
 * then they are copied first. What becomes of memory that is freed, of parts of it, of what cannot be mapped, and of
 * more than the library keeps. On thread ranks, or with `processes` on process ranks. With EXPAR_MAP_SEGMENTS=0 each
 * call copies its rows. */
#include "cuda/find_controls.h"
#include "ep/normal/normal.h"
#include "exec/cuda/normal/normal_gpu.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <stdlib.h>
#include <string.h>

#define MOST_LAYERS 20000
#define PAUSE_NS    1000000 /* between two of them */
#define GAP         24      /* numbers between two rows */
#define LEAD_BYTES  208     /* in front of the first one */

static ranks_kind kind = RANKS_THREADS;

/* ---- what a rank counts ------------------------------------------------------------------------------------------ */

typedef struct counts {
    uint64_t mapped, copied;
} counts;

static counts counts_of(const layer_pair *one)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(one->ep, &stats));
    return (counts){stats.mapped_calls, stats.copied_calls};
}

/* The calls since then have so many mapped, and so many copied ones; a rank without rows has none. */
static void check_counts(const layer_pair *one, counts since, uint64_t mapped, uint64_t copied)
{
    const counts now = counts_of(one);
    const uint64_t rows = one->layers[0].result.num_recv_tokens > 0;
    CHECK(now.mapped - since.mapped == rows * mapped && now.copied - since.copied == rows * copied,
          "%llu mapped and %llu copied calls; expected %llu and %llu", (unsigned long long)(now.mapped - since.mapped),
          (unsigned long long)(now.copied - since.copied), (unsigned long long)(rows * mapped),
          (unsigned long long)(rows * copied));
}

/* On all ranks. */
static bool all_say(const layer_pair *one, bool own)
{
    uint64_t word = own, all[LAYER_RANKS] = {0};
    bool yes = CHECK_OK(one->group->boot->ops->allgather(one->group->boot, &word, all, sizeof word));
    for (int32_t r = 0; r < one->group->size; r++)
        yes &= all[r] != 0;
    return yes;
}

static bool one_context(const layer_pair *one)
{
    int32_t gpus;
    (void)device_heap_devices(gpu_of(one->ep->base.exec)->core.heap, &gpus);
    return one->group->size == 1 || (one->group->threads && gpus == 1);
}

/* Ranks that are processes open each other's memory after the first calls. */
static bool asks(const layer_pair *one)
{
    return !one->group->threads && one->group->size > 1;
}

static void pause_for(long span_ns)
{
    nanosleep(&(struct timespec){.tv_nsec = span_ns}, NULL);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Within limits, without which there are no calls where the heap is shared by CUDA IPC. */
static bool begin(layer_pair *one, expar_group *group, void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 40;
    config.max_row_bytes = 128;
    config.max_topk = 3;
    config.max_experts = 8;
    return layer_pair_open(one, group, shared, &config) && layer_pair_go(one, 0);
}

/* A combine of the received rows, with their handle. */
static bool combine(layer_pair *one)
{
    layer *p = &one->layers[0];
    const cu_stream stream = one->card.streams[0];
    CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)p->y.data, 0xa5,
                       (size_t)(p->y.shape[0] * p->y.shape[1]) * expar_dtype_bytes(p->y.dtype), stream));
    return CHECK_OK(layer_combine(p, one->ep, stream)) && layer_verify(p, one->in->t, one->in->a, stream);
}

/* Until the calls of all ranks are mapped ones. */
static bool combine_until_mapped(layer_pair *one)
{
    for (int32_t i = 0; i < MOST_LAYERS; i++) {
        const counts before = counts_of(one);
        if (!combine(one)) return false;
        const bool copied = counts_of(one).copied > before.copied;
        if (all_say(one, !copied)) return true;
        pause_for(PAUSE_NS);
    }
    return CHECK(false, "rows are still copied after %d calls", MOST_LAYERS);
}

/* The rows once more in other memory, `gap` numbers apart, from `lead` bytes on. All ranks come here before the next
   call: memory is taken and given while no kernel waits. */
static bool move_rows(layer_pair *one, expar_tensor *memory, int64_t lead, int64_t gap)
{
    layer *p = &one->layers[0];
    const int64_t rows = one->in->t->arrivals[p->rank].num_rows, columns = p->back.shape[1];
    const size_t row_bytes = (size_t)columns * expar_dtype_bytes(p->back.dtype);
    const char *from = one->in->a->x[p->rank];
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[0]));
    p->back.data = (char *)memory->data + lead;
    p->back.strides[0] = columns + gap;
    for (int64_t i = 0; i < rows; i++) {
        const size_t at = (size_t)i * (size_t)(columns + gap) * expar_dtype_bytes(p->back.dtype);
        if (!CHECK_OK(CUDA_CALL(MemcpyHtoDAsync, (cu_address)(uintptr_t)p->back.data + at, from + (size_t)i * row_bytes,
                                row_bytes, one->card.streams[0])))
            return false;
    }
    return CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[0])) && CHECK_OK(expar_barrier_all(one->group));
}

/* Nobody can take its bytes for the rows any more. */
static void spoil(const layer_pair *one, const expar_tensor *memory)
{
    const size_t bytes = (size_t)((memory->shape[0] + 1) * memory->shape[1]) * expar_dtype_bytes(memory->dtype);
    CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)memory->data, 0xee, bytes, one->card.streams[0]));
    CHECK_OK(CUDA_CALL(StreamSynchronize, one->card.streams[0]));
}

/* Handles that are open in this process, on the simulated driver. */
static int32_t opened_here(void)
{
    const fake_controls *controls = controls_find();
    return controls ? atomic_load(&controls->opened) : 0;
}

/* Peers close what has gone, in the course of some calls. */
static bool combine_until_opened(layer_pair *one, int32_t wanted)
{
    for (int32_t i = 0; i < MOST_LAYERS; i++) {
        if (all_say(one, opened_here() <= wanted)) return true;
        if (!combine(one)) return false;
        pause_for(PAUSE_NS);
    }
    return CHECK(false, "%d mappings are open; expected %d", opened_here(), wanted);
}

/* ---- mapped and freed -------------------------------------------------------------------------------------------- */

static void trial_mapped(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    check_counts(&one, (counts){0}, asks(&one) ? 0 : 1, asks(&one) ? 1 : 0);
    if (!combine_until_mapped(&one)) return;
    const counts before = counts_of(&one);
    for (int32_t i = 0; i < 5; i++)
        combine(&one);
    check_counts(&one, before, 5, 0);
    for (int32_t i = 0; i < 3; i++)
        layer_pair_go(&one, 0);
    check_counts(&one, before, 8, 0);
    layer_pair_close(&one);
}

/* New memory mostly has the address of what was freed, whose bytes are others by then. */
static void trial_freed(expar_group *group, void *shared)
{
    layer_pair one;
    int32_t same = 0;
    if (!begin(&one, group, shared) || !combine_until_mapped(&one)) return;
    layer *p = &one.layers[0];
    const int32_t opened = opened_here();
    for (int32_t i = 0; i < 6; i++) {
        const void *before = p->back.data;
        const counts at_first = counts_of(&one);
        spoil(&one, &p->back);
        card_give(&p->back);
        if (!card_take(&one.card, &p->back, p->x.dtype, p->spare, p->x.shape[1]) || !move_rows(&one, &p->back, 0, 0))
            return;
        same += p->back.data == before;
        if (!combine(&one)) return;
        if (asks(&one)) check_counts(&one, at_first, 0, 1);
        if (!combine_until_mapped(&one)) return;
    }
    if (controls_find()) CHECK(same > 0, "no memory has come back at the same address");
    combine_until_opened(&one, opened);
    layer_pair_close(&one);
}

/* With the rows in the middle of a larger allocation; then in another part of it, which peers have mapped. */
static void trial_part(expar_group *group, void *shared)
{
    layer_pair one;
    expar_tensor large, own;
    if (!begin(&one, group, shared)) return;
    layer *p = &one.layers[0];
    own = p->back;
    if (!card_take(&one.card, &large, own.dtype, 4 * p->spare + 8, own.shape[1] + GAP)) return;
    if (!move_rows(&one, &large, LEAD_BYTES, GAP) || !combine_until_mapped(&one)) return;
    const counts before = counts_of(&one);
    for (int32_t i = 1; i < 4; i++) {
        spoil(&one, &large);
        if (!move_rows(&one, &large, LEAD_BYTES + i * 1024, i * 8) || !combine(&one)) return;
    }
    check_counts(&one, before, 3, 0);
    p->back = own;
    card_give(&large);
    layer_pair_close(&one);
}

/* ---- what stays copied ------------------------------------------------------------------------------------------- */

static void check_copied(layer_pair *one)
{
    const counts before = counts_of(one);
    for (int32_t i = 0; i < 12; i++) {
        if (!combine(one)) return;
        pause_for(20 * PAUSE_NS);
    }
    check_counts(one, before, one_context(one) ? 12 : 0, one_context(one) ? 0 : 12);
}

/* Memory of the driver's stream-ordered allocator has no handles. */
static void trial_ordered(expar_group *group, void *shared)
{
    layer_pair one;
    cu_address at = 0;
    if (!begin(&one, group, shared)) return;
    layer *p = &one.layers[0];
    const expar_tensor own = p->back;
    expar_tensor other = own;
    const size_t bytes = (size_t)((own.shape[0] + 1) * own.shape[1]) * expar_dtype_bytes(own.dtype);
    if (!CHECK_OK(CUDA_CALL(MemAllocAsync, &at, bytes, one.card.streams[0]))) return;
    other.data = (void *)(uintptr_t)at;
    if (move_rows(&one, &other, 0, 0)) check_copied(&one);
    p->back = own;
    CHECK_OK(CUDA_CALL(MemFreeAsync, at, one.card.streams[0]));
    layer_pair_close(&one);
}

/* Memory that peers reject, on the simulated driver. */
static void trial_rejected(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    fake_controls *controls = controls_find();
    layer *p = &one.layers[0];
    expar_tensor other;
    const expar_tensor own = p->back;
    if (controls && asks(&one) && combine_until_mapped(&one) &&
        card_take(&one.card, &other, own.dtype, p->spare, own.shape[1])) {
        const int32_t opened = opened_here();
        const bool odd = expar_group_rank(group) == 1;
        if (odd) atomic_store(&controls->no_opening, 1);
        CHECK_OK(expar_barrier_all(group));
        if (move_rows(&one, &other, 0, 0)) {
            const counts before = counts_of(&one);
            for (int32_t i = 0; i < 12; i++) {
                if (!combine(&one)) return;
                pause_for(20 * PAUSE_NS);
            }
            /* The odd rank alone has all that it asks for. */
            if (!odd) check_counts(&one, before, 0, 12);
        }
        if (!odd) combine_until_opened(&one, opened + 1);
        if (odd) combine_until_opened(&one, opened);
        atomic_store(&controls->no_opening, 0);
        p->back = own;
        card_give(&other);
    }
    layer_pair_close(&one);
}

/* A graph may be launched when the memory has gone, so its calls have their rows copied. */
static void trial_captured(expar_group *group, void *shared)
{
    layer_pair one;
    cu_graph graph = NULL;
    cu_graph_exec launched = NULL;
    if (!begin(&one, group, shared) || !combine_until_mapped(&one)) return;
    layer *p = &one.layers[0];
    const cu_stream stream = one.card.streams[1];
    const counts before = counts_of(&one);
    layer_release(p);
    p->worst = p->spare;
    CHECK_OK(CUDA_CALL(StreamBeginCapture, stream, CU_CAPTURE_THREAD_LOCAL));
    const bool captured = layer_call(p, one.ep, one.in->t, stream);
    CHECK_OK(CUDA_CALL(StreamEndCapture, stream, &graph));
    const counts after = counts_of(&one);
    CHECK(after.mapped == before.mapped && after.copied == before.copied + 1, "rows of a graph are not copied");
    if (!captured || !CHECK_OK(CUDA_CALL(GraphInstantiate, &launched, graph, 0))) return;
    /* The first launch takes memory unless the graph was uploaded. It would wait for kernels of ranks that share the
       GPU, and those wait for this rank. */
    CHECK_OK(CUDA_CALL(GraphUpload, launched, stream));
    CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
    for (int32_t i = 0; i < 3; i++) {
        CHECK_OK(CUDA_CALL(StreamSynchronize, one.card.streams[0]));
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(CUDA_CALL(GraphLaunch, launched, stream));
        if (!layer_verify(p, one.in->t, one.in->a, stream)) return;
    }
    CHECK_OK(CUDA_CALL(GraphExecDestroy, launched));
    CHECK_OK(CUDA_CALL(GraphDestroy, graph));
    layer_pair_close(&one);
}

static void trial_off(expar_group *group, void *shared)
{
    layer_pair one;
    if (!begin(&one, group, shared)) return;
    for (int32_t i = 0; i < 12; i++)
        if (!combine(&one)) return;
    check_counts(&one, (counts){0}, 0, 13);
    layer_pair_close(&one);
}

/* ---- how much is kept -------------------------------------------------------------------------------------------- */

#define MORE (SEGMENTS + 4)

/* Each allocation with its rows, once. */
static bool combine_each(layer_pair *one, expar_tensor all[MORE])
{
    bool done = true;
    for (int32_t i = 0; i < MORE && done; i++)
        done = move_rows(one, &all[i], 0, 0) && combine(one);
    return done;
}

/* More than the table holds: the rest are copied, until others have long been idle. */
static void trial_many(expar_group *group, void *shared)
{
    layer_pair one;
    expar_tensor all[MORE];
    bool done = begin(&one, group, shared);
    if (!done) return;
    layer *p = &one.layers[0];
    const expar_tensor own = p->back;
    /* The heaps of peers, where these are shared so, and their segments. */
    const int32_t heaps = device_heap_grows(gpu_of(one.ep->base.exec)->core.heap) ? 0 : LAYER_RANKS - 1;
    for (int32_t i = 0; i < MORE && done; i++)
        done = card_take(&one.card, &all[i], own.dtype, p->spare, own.shape[1]);
    done = done && combine_each(&one, all) && combine_each(&one, all);
    done = done && move_rows(&one, &all[MORE - 1], 0, 0) && combine_until_mapped(&one);
    if (done) combine_until_opened(&one, heaps + SEGMENTS * (LAYER_RANKS - 1));
    p->back = own;
    for (int32_t i = 0; i < MORE; i++)
        card_give(&all[i]);
    layer_pair_close(&one);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void run(ranks_body body)
{
    const ranks_plan ranks = {.kind = kind};
    assert_true(layers_run(&ranks, 37, body));
}

static void test_mapped(void **state)
{
    (void)state;
    run(trial_mapped);
}

static void test_freed(void **state)
{
    (void)state;
    run(trial_freed);
}

static void test_part_of_an_allocation(void **state)
{
    (void)state;
    run(trial_part);
}

static void test_stream_ordered_memory(void **state)
{
    (void)state;
    run(trial_ordered);
}

static void test_rejected_by_a_peer(void **state)
{
    (void)state;
    run(trial_rejected);
}

static void test_captured(void **state)
{
    (void)state;
    run(trial_captured);
}

static void test_more_than_the_table_holds(void **state)
{
    (void)state;
    run(trial_many);
}

static void test_one_rank(void **state)
{
    (void)state;
    static const int64_t tokens[] = {19};
    const traffic_plan what = {.num_ranks = 1,
                               .hidden = 64,
                               .topk = 3,
                               .num_experts = 8,
                               .wide = true,
                               .with_weights = true,
                               .num_tokens = tokens};
    random_source random = random_start(41);
    layer_inputs in = {.t = traffic_make(&what, &random)};
    in.a = answers_make(in.t, true, &random);
    const ranks_plan ranks = {.kind = kind, .size = 1};
    assert_true(ranks_run(&ranks, trial_mapped, &in));
    answers_free(in.a);
    traffic_free(in.t);
}

static void test_no_rows(void **state)
{
    (void)state;
    static const int64_t tokens[LAYER_RANKS] = {0, 0, 0, 0};
    const traffic_plan what = {.num_ranks = LAYER_RANKS,
                               .hidden = 64,
                               .topk = 3,
                               .num_experts = 8,
                               .wide = true,
                               .with_weights = true,
                               .num_tokens = tokens};
    random_source random = random_start(43);
    layer_inputs in = {.t = traffic_make(&what, &random)};
    in.a = answers_make(in.t, true, &random);
    const ranks_plan ranks = {.kind = kind, .size = LAYER_RANKS};
    assert_true(ranks_run(&ranks, trial_mapped, &in));
    answers_free(in.a);
    traffic_free(in.t);
}

static void test_switched_off(void **state)
{
    (void)state;
    run(trial_off);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mapped),
        cmocka_unit_test(test_freed),
        cmocka_unit_test(test_part_of_an_allocation),
        cmocka_unit_test(test_stream_ordered_memory),
        cmocka_unit_test(test_rejected_by_a_peer),
        cmocka_unit_test(test_captured),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_no_rows),
        cmocka_unit_test(test_more_than_the_table_holds),
    };
    const struct CMUnitTest off[] = {cmocka_unit_test(test_switched_off)};
    const char *maps = getenv("EXPAR_MAP_SEGMENTS");
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    if (maps && strcmp(maps, "0") == 0) return cmocka_run_group_tests(off, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
