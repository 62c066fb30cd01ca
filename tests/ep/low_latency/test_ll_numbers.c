/* SPDX-License-Identifier: Apache-2.0 */
/* Calls add to the caller's numbers: wait_ns, by which the late rank is found, and expert_recv_stats over many calls of
 * all manners, those that fail included. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/reach.h"
#include "group/calls.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define RANKS   CALLS_RANKS
#define TOKENS  9
#define HIDDEN  128
#define TOPK    3
#define LOCALS  2
#define EXPERTS (LOCALS * RANKS)

static expar_ll *open_buffer(expar_group *group)
{
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.max_topk = TOPK;
    config.num_experts = EXPERTS;
    config.unmapped = reach_unmapped();
    return CHECK_OK(expar_ll_create(group, &config, &ll)) ? ll : NULL;
}

static expar_tensor numbers(void *data, expar_dtype dtype, int64_t count)
{
    return expar_tensor_1d(data, dtype, count);
}

static lowlat_traffic *make_traffic(const int64_t num_tokens[RANKS], int64_t disturb, random_source *random)
{
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .num_experts = EXPERTS,
                              .with_weights = true,
                              .disturb = disturb,
                              .num_tokens = num_tokens};
    return lowlat_traffic_make(&plan, random);
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Steps of a rank, which its own thread counts and the one that is held reads. */
typedef struct wait_scene {
    const lowlat_traffic *traffic;
    const lowlat_answers *exact, *reduced;
    _Atomic int64_t steps[RANKS];
    const expar_ll *_Atomic buffers[RANKS]; /* each by its rank, before all meet */
} wait_scene;

/* A rank that is held at the first step of its call, and perhaps once more among its rows. */
typedef struct wait_seat {
    wait_scene *scene;
    expar_group *group;
    expar_ll *ll;
    int64_t taken;   /* steps of this rank in the call */
    int64_t held_at; /* of the last hold; 0: this rank is not held */
} wait_seat;

/* Until each of the others has looked for what it waits for at least once from now on. */
static void await_looks(const wait_seat *seat)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    int64_t before[RANKS];
    for (int32_t r = 0; r < RANKS; r++)
        before[r] = atomic_load(&seat->scene->steps[r]);
    for (int32_t r = 0; r < RANKS; r++)
        while (r != seat->group->rank && atomic_load(&seat->scene->steps[r]) < before[r] + 2 &&
               ranks_clock_ms() < until_ms)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Between the steps of kernels no rank can be held: it comes once those of the others have been seen to wait for it,
   twice. So they have come, and wait longest for this one. */
static void await_kernels(const wait_seat *seat)
{
    const int32_t rank = seat->group->rank;
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    for (int32_t i = 0; i < 2 * RANKS; i++) {
        const expar_ll *other = atomic_load(&seat->scene->buffers[i / 2]);
        const uint64_t before = hold_pulse(other, rank);
        while (i / 2 != rank && hold_pulse(other, rank) == before && ranks_clock_ms() < until_ms)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* The others wait, so they have sent all that is theirs; then each finds what the other one has sent. */
static void take_step(void *context)
{
    wait_seat *seat = context;
    seat->taken++;
    atomic_fetch_add(&seat->scene->steps[seat->group->rank], 1);
    if (seat->held_at == 0 || (seat->taken != 1 && seat->taken != seat->held_at)) return;
    calls_await_waiting(seat->group, RANKS - 1, 0);
    await_looks(seat);
}

/* The rank that waited for both others waited longest for the delayed one. No rank waits for itself. */
static void check_waits(const int64_t *waits, const int64_t *before, int32_t rank, int32_t held)
{
    int64_t added[RANKS];
    for (int32_t r = 0; r < RANKS; r++)
        added[r] = waits[r] - before[r];
    CHECK(added[rank] == 0, "%lld ns for itself", (long long)added[rank]);
    for (int32_t r = 0; r < RANKS; r++)
        CHECK(added[r] >= 0, "%lld ns for rank %d", (long long)added[r], r);
    if (rank == held) return;
    const int32_t other = RANKS - rank - held;
    CHECK(added[held] > added[other], "%lld ns for rank %d, which was held, and %lld ns for rank %d, which was there",
          (long long)added[held], held, (long long)added[other], other);
}

typedef struct wait_case {
    const char *name;
    bool combine, hook, reduced;
    int64_t row_step; /* among the rows: after the steps of the headers */
} wait_case;

/* A header takes a step for each of its words and one more, and there are two: 7 steps in a dispatch, and 5. */
static const wait_case wait_cases[] = {
    {"dispatch", .row_step = 16},
    {"dispatch's hook", .hook = true, .row_step = 16},
    {"combine", .combine = true, .row_step = 12},
    {"combine's hook", .combine = true, .hook = true, .row_step = 12},
    {"reduced combine", .combine = true, .reduced = true, .row_step = 12},
};

/* To ranks that are not mapped a header takes one step, and all rows up to the next flag one. The third is that of the
 * first rows, before they leave. From then on a rank may have all, and waits no more. */
static int64_t row_step_of(const wait_case *c)
{
    return reach_unmapped() || !reach_is_mapped() ? 3 : c->row_step;
}

static void prepare(lowlat_call *call, const wait_seat *seat, const wait_case *c, const expar_ll_handle *handle)
{
    const wait_scene *s = seat->scene;
    const lowlat_choice choice = {.hook = c->hook};
    const int32_t rank = seat->group->rank;
    if (c->combine)
        lowlat_prepare_combine(call, seat->ll, s->traffic, c->reduced ? s->reduced : s->exact, rank, &choice, handle);
    else
        lowlat_prepare_dispatch(call, seat->ll, s->traffic, rank, &choice);
}

/* The same numbers are given to all calls. */
static void trial_case(wait_seat *seat, const wait_case *c, int32_t held, int64_t held_at,
                       const expar_ll_handle *handle, int64_t *waits)
{
    const int32_t rank = seat->group->rank;
    int64_t before[RANKS];
    lowlat_call call;
    memcpy(before, waits, sizeof before);
    prepare(&call, seat, c, handle);
    call.there_args.wait_ns = call.back_args.wait_ns = numbers(waits, EXPAR_I64, RANKS);
    seat->taken = 0;
    seat->held_at = rank == held ? held_at : 0;
    if (rank == held && hold_finds_late()) await_kernels(seat);
    if (!lowlat_trial(&call)) CHECK(false, "%s, rank %d held at step %lld", c->name, held, (long long)held_at);
    check_waits(waits, before, rank, held);
    if (rank == held && !hold_finds_late())
        CHECK(seat->taken >= held_at, "%s has %lld steps", c->name, (long long)seat->taken);
    lowlat_clean(&call);
    CHECK_OK(expar_barrier_all(seat->group));
}

static void trial_waits(expar_group *group, void *shared)
{
    wait_seat seat = {.scene = shared, .group = group, .ll = open_buffer(group)};
    int64_t waits[RANKS] = {1000, 2000, 3000};
    const lowlat_choice plain = {0};
    lowlat_call first;
    if (!seat.ll) return;
    atomic_store(&seat.scene->buffers[group->rank], seat.ll);
    lowlat_prepare_dispatch(&first, seat.ll, seat.scene->traffic, group->rank, &plain);
    if (!lowlat_trial(&first)) return;
    CHECK_OK(expar_barrier_all(group));
    hold_install(seat.ll, take_step, &seat);
    for (int32_t held = 0; held < RANKS; held++)
        for (size_t i = 0; i < ARRAY_LENGTH(wait_cases) && check_failures() == 0; i++) {
            trial_case(&seat, &wait_cases[i], held, 1, first.there.handle, waits);
            if (!hold_finds_late())
                trial_case(&seat, &wait_cases[i], held, row_step_of(&wait_cases[i]), first.there.handle, waits);
        }
    if (check_failures() > 0) return;
    hold_install(seat.ll, NULL, NULL);
    lowlat_clean(&first);
    CHECK_OK(expar_ll_destroy(seat.ll));
}

static void test_waits_find_who_is_late(void **state)
{
    static const int64_t num_tokens[RANKS] = {TOKENS, TOKENS, TOKENS};
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    random_source random = random_start(3);
    lowlat_traffic *t = make_traffic(num_tokens, 0, &random);
    lowlat_answers *exact = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_EXACT, &random);
    lowlat_answers *reduced = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
    wait_scene scene = {.traffic = t, .exact = exact, .reduced = reduced};
    (void)state;
    const bool passed = ranks_run(&plan, trial_waits, &scene);
    lowlat_answers_free(exact, t);
    lowlat_answers_free(reduced, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

/* ---- rows received ----------------------------------------------------------------------------------------------- */

#define CALLS 90

enum { FULL, HOLES, UNEVEN, NOTHING, WRONG, KINDS }; /* of traffic; WRONG: rank 1 names an expert that is none */
enum { WELL, REJECTED, MISMATCHED };

/* The i-th call of all ranks. */
typedef struct stats_call {
    int32_t kind, trouble, culprit;
    bool hook, async;
} stats_call;

static stats_call call_of(int32_t i)
{
    stats_call call = {.kind = i % KINDS, .culprit = i / KINDS % RANKS};
    call.hook = i % 3 == 1;
    call.async = i % 3 == 2;
    if (i % KINDS == WRONG) return call;
    call.trouble = i % 7 == 3 ? REJECTED : i % 11 == 5 ? MISMATCHED : WELL;
    return call;
}

static expar_status status_of(const stats_call *call, int32_t rank)
{
    if (call->trouble == MISMATCHED) return EXPAR_ERR_MISMATCH;
    if (call->trouble == REJECTED) return rank == call->culprit ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE;
    if (call->kind == WRONG) return rank == 1 ? EXPAR_ERR_INDEX : EXPAR_ERR_REMOTE;
    return EXPAR_OK;
}

/* A rank that refuses receives nothing, and nobody its rows; where forms differ nobody receives any. */
static void add_expected(const stats_call *call, const lowlat_traffic *t, int32_t rank, int32_t stats[LOCALS])
{
    const int64_t *range = t->arrivals[rank].range;
    if (call->trouble == MISMATCHED || (call->trouble == REJECTED && rank == call->culprit)) return;
    for (int32_t l = 0; l < LOCALS; l++)
        for (int32_t s = 0; s < RANKS; s++)
            if (call->trouble != REJECTED || s != call->culprit) stats[l] += (int32_t)range[l * RANKS + s];
}

static void spoil(const stats_call *what, int32_t rank, lowlat_call *call)
{
    if (rank != what->culprit) return;
    if (what->trouble == REJECTED) call->there_args.format = (expar_ll_format)77;
    if (what->trouble == MISMATCHED) call->there_args.format = EXPAR_LL_FORMAT_INT8;
}

/* Between a send and its hook nothing is added. */
static bool trial_stats_call(expar_ll *ll, const stats_call *what, const lowlat_traffic *t, int32_t rank,
                             int32_t *stats)
{
    const lowlat_choice choice = {.hook = what->hook, .async = what->async};
    int32_t before[LOCALS];
    lowlat_call call;
    memcpy(before, stats, sizeof before);
    lowlat_prepare_dispatch(&call, ll, t, rank, &choice);
    spoil(what, rank, &call);
    call.there_args.expert_recv_stats = numbers(stats, EXPAR_I32, LOCALS);
    expar_status status = lowlat_start(&call);
    if (status == EXPAR_OK && what->hook)
        CHECK(memcmp(before, stats, sizeof before) == 0, "something was added before the hook was called");
    if (status == EXPAR_OK) status = lowlat_end(&call);
    const bool as_expected = CHECK(status == status_of(what, rank), "%s: %s", expar_status_string(status),
                                   status == EXPAR_OK ? "" : expar_last_error());
    const bool right = status != EXPAR_OK || lowlat_is_right(&call);
    lowlat_clean(&call);
    return as_expected && right;
}

static void trial_stats(expar_group *group, void *shared)
{
    lowlat_traffic *const *traffics = shared;
    const int32_t rank = group->rank;
    int32_t stats[LOCALS] = {-5, 7}, expected[LOCALS] = {-5, 7};
    expar_ll *ll = open_buffer(group);
    for (int32_t i = 0; ll && i < CALLS && check_failures() == 0; i++) {
        const stats_call what = call_of(i);
        const lowlat_traffic *t = traffics[what.kind];
        add_expected(&what, t, rank, expected);
        const bool good = trial_stats_call(ll, &what, t, rank, stats);
        CHECK(good && memcmp(expected, stats, sizeof expected) == 0, "call %d: %d, %d; expected %d, %d", i, stats[0],
              stats[1], expected[0], expected[1]);
    }
    if (check_failures() == 0) CHECK_OK(expar_ll_destroy(ll));
}

static void test_stats_are_added_to(void **state)
{
    static const int64_t num_tokens[KINDS][RANKS] = {
        [FULL] = {TOKENS, TOKENS, TOKENS}, [HOLES] = {TOKENS, 5, 7}, [UNEVEN] = {0, TOKENS, 1}, [NOTHING] = {0, 0, 0},
        [WRONG] = {4, 3, TOKENS},
    };
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    random_source random = random_start(5);
    lowlat_traffic *traffics[KINDS];
    (void)state;
    for (int i = 0; i < KINDS; i++)
        traffics[i] = make_traffic(num_tokens[i], i == HOLES ? 2 : 0, &random);
    ((int64_t *)(uintptr_t)traffics[WRONG]->inputs[1].topk_idx)[0] = EXPERTS;
    lowlat_traffic_settle(traffics[WRONG]);
    const bool passed = ranks_run(&plan, trial_stats, traffics);
    for (int i = 0; i < KINDS; i++)
        lowlat_traffic_free(traffics[i]);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_find_who_is_late),
                                       cmocka_unit_test(test_stats_are_added_to)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
