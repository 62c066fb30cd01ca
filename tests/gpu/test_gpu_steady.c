/* SPDX-License-Identifier: Apache-2.0 */
/* Calls back to back, as engines make them: asynchronous, outputs released at once or kept for some calls, rows of the
 * caller's. A block that a stream has released serves the next call on that stream. After the first rounds no memory is
 * added, no more is in use at a time, and no call takes the queue or memory beside the pool. On thread ranks, with
 * `processes` on process ranks, whose hosts run far ahead of their GPUs, or with `alone` on one rank. The host of that
 * runs far ahead on a machine with one GPU, too, where threads that share it wait before each launch. */
#include "ep/normal/normal.h"
#include "gpu/layer.h"
#include "oracle/unit.h"
#include <string.h>

static ranks_kind kind = RANKS_THREADS;
static int32_t size = LAYER_RANKS;

#define KEPT       4
#define WARM       (2 * KEPT)
#define ROUNDS     2000 /* of each pattern */
#define POOL_BYTES ((int64_t)4 << 20)

typedef struct scene {
    layer_pair pair;
    const layer *p; /* whose dispatch has made the handle */
    cu_stream stream;
    expar_ep_dispatch_result kept[KEPT]; /* by round modulo KEPT */
} scene;

typedef struct pattern {
    const char *name;
    void (*round)(scene *s, int64_t number);
} pattern;

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

static bool dispatch(scene *s, bool async_finish, expar_ep_dispatch_result *result)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = s->p->x;
    args.handle = s->p->result.handle;
    args.stream = s->stream;
    args.async_finish = async_finish;
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(expar_ep_dispatch(s->pair.ep, &args, result))) return false;
    expar_event_release(result->event);
    return CHECK_OK(expar_ep_output_read_on(result->output, s->stream));
}

static void let_go(expar_ep_dispatch_result *result)
{
    expar_ep_output_release(result->output);
    expar_ep_handle_release(result->handle);
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
}

static void combine(scene *s, const expar_tensor *x)
{
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = *x;
    args.x.shape[0] = s->p->result.num_recv_tokens;
    args.handle = s->p->result.handle;
    args.out_y = s->p->y;
    args.stream = s->stream;
    args.async_finish = 1;
    CHECK_OK(expar_ep_combine(s->pair.ep, &args, &done));
    expar_event_release(done.event);
}

/* As a program in Python does that does not want the event. */
static void make_forgotten(scene *s, const expar_ep_dispatch_args *args)
{
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!CHECK_OK(ep_dispatch_make(s->pair.ep, args, true, &result))) return;
    CHECK(!result.event, "a dispatch made an event that nobody wants");
    CHECK_OK(expar_ep_output_read_on(result.output, s->stream));
    let_go(&result);
    CHECK_OK(expar_ep_query(s->pair.ep));
}

static expar_ep_dispatch_args forgotten_args(const scene *s)
{
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = s->p->x;
    args.topk_idx = s->p->idx;
    args.topk_weights = s->p->weights;
    args.stream = s->stream;
    args.async_finish = 1;
    return args;
}

static void dispatch_afresh(scene *s, int64_t number)
{
    expar_ep_dispatch_args args = forgotten_args(s);
    (void)number;
    args.num_experts = s->pair.in->t->job.num_experts;
    make_forgotten(s, &args);
}

/* The indices are checked in each call. */
static void dispatch_with_indices(scene *s, int64_t number)
{
    expar_ep_dispatch_args args = forgotten_args(s);
    (void)number;
    args.handle = s->p->result.handle;
    make_forgotten(s, &args);
}

static void drop_at_once(scene *s, int64_t number)
{
    expar_ep_dispatch_result result;
    (void)number;
    if (dispatch(s, true, &result)) let_go(&result);
}

static void keep_some(scene *s, int64_t number)
{
    let_go(&s->kept[number % KEPT]);
    dispatch(s, true, &s->kept[number % KEPT]);
}

static void wait_for_each(scene *s, int64_t number)
{
    expar_ep_dispatch_result result;
    (void)number;
    if (dispatch(s, false, &result)) let_go(&result);
}

static void combine_rows(scene *s, int64_t number)
{
    (void)number;
    combine(s, &s->p->back);
}

/* The stream reads the rows that came, and the rows that go back lie in the caller's memory. */
static void go_through_a_layer(scene *s, int64_t number)
{
    expar_ep_dispatch_result result;
    (void)number;
    if (!dispatch(s, true, &result)) return;
    const size_t bytes = (size_t)(result.recv_x.shape[0] * result.recv_x.shape[1]) * expar_dtype_bytes(s->p->x.dtype);
    if (bytes > 0)
        CHECK_OK(CUDA_CALL(MemcpyAsync, (cu_address)(uintptr_t)s->pair.layers[1].back.data,
                           (cu_address)(uintptr_t)result.recv_x.data, bytes, s->stream));
    let_go(&result);
    combine(s, &s->pair.layers[1].back);
}

static const pattern patterns[] = {{"outputs let go at once", drop_at_once},
                                   {"outputs kept for some calls", keep_some},
                                   {"calls that are waited for", wait_for_each},
                                   {"calls without a handle", dispatch_afresh},
                                   {"indices beside a handle", dispatch_with_indices},
                                   {"combine of the caller's rows", combine_rows},
                                   {"layer", go_through_a_layer}};

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static expar_ep_stats stats_of(const scene *s)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    CHECK_OK(expar_ep_get_stats(s->pair.ep, &stats));
    return stats;
}

static void check_stats(const pattern *of, const expar_ep_stats *before, const expar_ep_stats *now)
{
    const struct {
        const char *name;
        uint64_t before, now;
    } members[] = {{"growths", before->growths, now->growths},
                   {"reserved_high_bytes", before->reserved_high_bytes, now->reserved_high_bytes},
                   {"used_high_bytes", before->used_high_bytes, now->used_high_bytes},
                   {"queue_calls", before->queue_calls, now->queue_calls},
                   {"other_blocks", before->other_blocks, now->other_blocks}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        CHECK(members[i].before == members[i].now, "%s: %s was %llu when the calls were warm, and is %llu", of->name,
              members[i].name, (unsigned long long)members[i].before, (unsigned long long)members[i].now);
}

static void trial_pattern(scene *s, const pattern *of)
{
    int64_t number = 0;
    for (; number < WARM; number++)
        of->round(s, number);
    const expar_ep_stats before = stats_of(s);
    for (int64_t left = random_test_rounds(ROUNDS); left > 0 && !check_failures(); left--)
        of->round(s, number++);
    const expar_ep_stats now = stats_of(s);
    check_stats(of, &before, &now);
    for (int i = 0; i < KEPT; i++)
        let_go(&s->kept[i]);
    CHECK_OK(CUDA_CALL(StreamSynchronize, s->stream));
}

static void trial(expar_group *group, void *shared)
{
    scene s = {0};
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.pool_bytes = POOL_BYTES;
    if (!layer_pair_open(&s.pair, group, shared, &config)) return;
    s.stream = s.pair.card.streams[0];
    s.p = &s.pair.layers[0];
    if (layer_pair_go(&s.pair, 0))
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
            trial_pattern(&s, &patterns[i]);
    CHECK_OK(expar_ep_query(s.pair.ep));
    /* The last rows of all that came there and back. */
    layer_pair_go(&s.pair, 0);
    layer_pair_close(&s.pair);
}

static void test_calls_use_the_same_memory(void **state)
{
    (void)state;
    const ranks_plan ranks = {.kind = kind, .size = size};
    assert_true(layers_run(&ranks, 41, trial));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_use_the_same_memory)};
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    if (argc > 1 && strcmp(argv[1], "alone") == 0) size = 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
