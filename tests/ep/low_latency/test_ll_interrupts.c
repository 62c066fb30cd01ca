/* SPDX-License-Identifier: Apache-2.0 */
/* A program ends a rank's waits of a reduced combine whose weights go ahead: for a rank that has not come, and for the
 * weights of one that has. The buffer is lost by it, and the others learn of it, or with masks go on without that rank;
 * the group is not lost. A kernel that waits is told when the rank's next call waits for it, which ranks that share a
 * GPU do. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <expar/interrupt.h>
#include <stdatomic.h>
#include <time.h>

/* LATE is held back, and rank 0 interrupted meanwhile. */
enum { RANKS = 3, LATE = 2, MOST_NAPS = 60000 };

typedef struct interrupt_case {
    const char *awaited; /* in the error's text */
    int32_t step;        /* of LATE, in its combine, before which it is held; 0: before the call */
    bool masking;        /* the others go on without rank 0 */
} interrupt_case;

typedef struct interrupt_show {
    interrupt_case what;
    const lowlat_traffic *traffic;
    lowlat_answers *back;
    _Atomic int32_t held;        /* 1: LATE is at its place. By it, for rank 0 */
    _Atomic int32_t interrupted; /* 1: rank 0 has been. By it, for LATE */
    _Atomic int32_t told;        /* ranks whose calls have ended. Raised by each once, for all */
} interrupt_show;

typedef struct interrupt_seat {
    interrupt_show *show;
    expar_group *group;
    int32_t rank;
    int32_t steps_left;
    int32_t questions; /* since LATE is held */
} interrupt_seat;

static bool await_word(const _Atomic int32_t *word, int32_t least)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < MOST_NAPS && atomic_load(word) < least; i++)
        nanosleep(&moment, NULL);
    return CHECK(atomic_load(word) >= least, "a rank does not come");
}

/* At the second question: what LATE has sent before it was held has been looked for since the first. */
static int interrupt_second(void *context)
{
    interrupt_seat *seat = context;
    return atomic_load(&seat->show->held) && ++seat->questions > 1;
}

static void stay_held(const interrupt_seat *seat)
{
    atomic_store(&seat->show->held, 1);
    await_word(&seat->show->interrupted, 1);
}

static void hold_in_time(void *context)
{
    interrupt_seat *seat = context;
    if (--seat->steps_left == 0) stay_held(seat);
}

static expar_status dispatch_again(const interrupt_seat *seat, expar_ll *ll)
{
    const lowlat_choice plain = {0};
    lowlat_call next;
    lowlat_prepare_dispatch(&next, ll, seat->show->traffic, seat->rank, &plain);
    expar_status status = lowlat_start(&next);
    lowlat_clean(&next);
    return status;
}

/* On a GPU the call returns before its kernel has waited. */
static void be_interrupted(interrupt_seat *seat, lowlat_call *back)
{
    const bool after = back->choice.async;
    if (after) CHECK_OK(lowlat_start(back));
    expar_interrupt_set_thread(interrupt_second, seat);
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, after ? dispatch_again(seat, back->ll) : lowlat_start(back));
    CHECK_TEXT("interrupted");
    if (!after) CHECK_TEXT("expar_ll_combine", seat->show->what.awaited);
    expar_interrupt_set_thread(NULL, NULL);
    if (after) CHECK_STATUS(EXPAR_ERR_INTERRUPTED, lowlat_end(back));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, dispatch_again(seat, back->ll));
    CHECK_TEXT("poisoned", "interrupted");
    atomic_store(&seat->show->interrupted, 1);
}

/* A rank that has had all of rank 0's rows misses it in the next call. */
static expar_status make_calls(const interrupt_seat *seat, lowlat_call *back)
{
    expar_status status = lowlat_start(back);
    return status == EXPAR_OK ? dispatch_again(seat, back->ll) : status;
}

static void check_told(const interrupt_seat *seat, expar_ll *ll, expar_status status)
{
    int32_t masks[RANKS] = {0};
    const expar_tensor query = expar_tensor_1d(masks, EXPAR_I32, RANKS);
    if (seat->show->what.masking) {
        CHECK_OK(status);
        CHECK_OK(expar_ll_mask_query(ll, &query, NULL));
        CHECK(masks[0] == 1, "rank 0 is not masked");
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, status);
        CHECK_TEXT("rank 0", "does not come any more", "EXPAR_ERR_INTERRUPTED");
    }
}

static void learn(interrupt_seat *seat, lowlat_call *back)
{
    if (seat->rank == LATE) {
        seat->steps_left = seat->show->what.step;
        if (seat->steps_left == 0) stay_held(seat);
        hold_install(back->ll, hold_in_time, seat);
    }
    check_told(seat, back->ll, make_calls(seat, back));
    hold_install(back->ll, NULL, NULL);
}

/* The group makes another buffer after an abandoned one. */
static void trial_rank(expar_group *group, void *shared)
{
    interrupt_seat seat = {.show = shared, .group = group, .rank = expar_group_rank(group)};
    const interrupt_show *show = seat.show;
    const lowlat_choice plain = {0}, first = {.async = seat.rank == 0 && hold_awaits_last(RANKS)};
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    expar_ll *ll = NULL;
    lowlat_call there, back;
    config.max_tokens = show->traffic->job.max_tokens;
    config.hidden = show->traffic->job.hidden;
    config.max_topk = show->traffic->job.topk;
    config.num_experts = show->traffic->job.num_experts;
    config.masking = show->what.masking;
    config.unmapped = reach_unmapped();
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    lowlat_prepare_dispatch(&there, ll, show->traffic, seat.rank, &plain);
    if (lowlat_trial(&there)) {
        lowlat_prepare_combine(&back, ll, show->traffic, show->back, seat.rank, &first, there.there.handle);
        (seat.rank == 0 ? be_interrupted : learn)(&seat, &back);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    atomic_fetch_add(&seat.show->told, 1);
    await_word(&show->told, RANKS);
    CHECK_OK(expar_ll_abandon(ll));
    if (!CHECK_OK(expar_group_barrier(group)) || !CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    lowlat_round_trip(ll, show->traffic, &seat.show->back, 1, seat.rank, &plain);
    CHECK_OK(expar_ll_destroy(ll));
}

static void run_case(const interrupt_case *what)
{
    static const int64_t tokens[RANKS] = {5, 4, 6};
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20};
    const lowlat_plan plan = {.num_ranks = RANKS,
                              .max_tokens = 6,
                              .hidden = 128,
                              .topk = 3,
                              .num_experts = 2 * RANKS,
                              .type = ORACLE_BF16,
                              .num_tokens = tokens};
    random_source random = random_start(5);
    lowlat_traffic *t = lowlat_traffic_make(&plan, &random);
    interrupt_show show = {.what = *what, .traffic = t};
    show.back = lowlat_answers_make(t, ORACLE_BF16, EXPAR_LL_SUM_REDUCED, &random);
    const bool passed = ranks_run(&ranks, trial_rank, &show);
    lowlat_answers_free(show.back, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

static void test_units(void **state)
{
    (void)state;
    if (hold_goes_on() && !hold_awaits_last(RANKS)) skip();
    for (int masking = 0; masking < 2; masking++)
        run_case(&(interrupt_case){.awaited = "low-latency combine: message headers", .masking = masking});
}

/* After two headers of four words, with a step each after the words, or of one message: before the first weights. */
static void test_weights(void **state)
{
    const int32_t unit = reach_unmapped() ? 1 : 4 + 1;
    (void)state;
    for (int masking = 0; masking < 2; masking++)
        run_case(
            &(interrupt_case){.awaited = "low-latency combine: weights", .step = 2 * unit + 1, .masking = masking});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_units), cmocka_unit_test(test_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
