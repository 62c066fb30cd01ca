/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency buffers that end while a thread of a proxy holds commands of their kernels, where no rank is mapped. The
 * thread reads send buffers. So no memory goes back before it has gone on, and later buffers work as ever. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "oracle/unit.h"
#include <expar/low_latency.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { RANKS = 2, TURNS = 2 };

static const ll_case few = {
    .ranks = RANKS, .max_tokens = 6, .hidden = 64, .topk = 2, .experts = 4, .tokens = {6, 5}, .seed = 3};

/* The proxy's threads set `stands` as they come to a step, and wait there for `goes`. */
typedef struct held {
    atomic_bool stands, goes;
} held;

static void nap(void)
{
    const struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL);
}

static void stand_still(void *context)
{
    held *self = context;
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS / 2;
    atomic_store(&self->stands, true);
    while (!atomic_load(&self->goes) && ranks_clock_ms() < deadline_ms)
        nap();
}

static void await_stand(const held *self)
{
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS / 2;
    while (!atomic_load(&self->stands) && ranks_clock_ms() < deadline_ms)
        nap();
    CHECK(atomic_load(&self->stands), "no thread of a proxy has been held");
}

/* Lets the threads go on some time later. */
static void *let_go(void *context)
{
    held *self = context;
    for (int i = 0; i < 200; i++)
        nap();
    atomic_store(&self->goes, true);
    return NULL;
}

/* Rank 0 has sent, and its commands have not been posted. Nobody calls the hooks. */
static void end_under_way(expar_group *group, bool abandons, held *own)
{
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&few);
    pthread_t thread;
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    ll_round *round = round_make(&few, rank, 0);
    round->dispatch.hook = 1;
    if (rank == 0) hold_install_posts(ll, stand_still, own);
    CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received));
    if (rank == 0) {
        await_stand(own);
        CHECK(pthread_create(&thread, NULL, let_go, own) == 0, "no thread");
    }
    if (rank == 0 && abandons)
        CHECK_OK(expar_ll_abandon(ll));
    else
        CHECK_OK(expar_ll_destroy(ll));
    if (rank == 0) {
        CHECK(abandons || atomic_load(&own->goes), "the buffer has ended before its commands");
        CHECK(pthread_join(thread, NULL) == 0, "the thread");
        hold_install_posts(NULL, NULL, NULL);
    }
    round_free(round);
}

static void trial(expar_group *group, void *shared)
{
    const expar_ll_config config = case_config(&few);
    expar_ll *ll = NULL;
    /* Threads of a proxy may still look at the first one in the second turn. */
    static held turns[TURNS];
    for (int i = 0; i < TURNS && check_failures() == 0; i++)
        end_under_way(group, *(const bool *)shared, &turns[i]);
    if (check_failures() > 0 || !CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    CHECK(round_trial(&few, expar_group_rank(group), ll, 1), "a round on a later buffer");
    CHECK_OK(expar_ll_destroy(ll));
}

static void run(bool abandons)
{
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .ranks_per_node = 1};
    assert_true(ranks_run(&plan, trial, &abandons));
}

static void test_destroyed(void **state)
{
    (void)state;
    run(false);
}

static void test_abandoned(void **state)
{
    (void)state;
    run(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_destroyed), cmocka_unit_test(test_abandoned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
