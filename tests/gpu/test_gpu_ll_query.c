/* SPDX-License-Identifier: Apache-2.0 */
/* How low-latency calls went on a GPU whose ends no event tells: by a query, or by the buffer's next call, once the
 * stream has come past them. The hooks here are called as a program calls them, and not as the mirror does. */
#include "ep/low_latency/wrong.h"
#include "gpu/mirror_ll.h"
#include "gpu/mirrored.h"

typedef struct desk {
    expar_ll *ll;
    const lowlat_traffic *traffic;
    int32_t rank;
} desk;

typedef void (*desk_body)(const desk *d);
static desk_body body; /* of the test that runs; ranks are threads */

static const lowlat_choice plain = {0}, hooked = {.hook = true};

static void sit_down(expar_group *group, void *shared)
{
    const expar_ll_config config = wrong_config();
    desk d = {.traffic = shared, .rank = expar_group_rank(group)};
    if (!CHECK_OK(mirror_ll_create(group, &config, &d.ll))) return;
    body(&d);
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(mirror_ll_destroy(d.ll));
}

static void run(desk_body of)
{
    random_source random = random_start(11);
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = WRONG_RANKS, .heap_bytes = (size_t)32 << 20};
    lowlat_traffic *t = wrong_traffic(true, &random);
    body = of;
    const bool passed = ranks_run(&ranks, sit_down, t);
    lowlat_traffic_free(t);
    assert_true(passed);
}

/* Rank 1 has another dtype, and nobody has been told of it when the stream has come past the hook. */
static bool differ_untold(const desk *d, lowlat_call *call)
{
    lowlat_prepare_dispatch(call, d->ll, d->traffic, d->rank, &hooked);
    if (d->rank == WRONG_RANK) call->there_args.x.dtype = EXPAR_F16;
    if (!CHECK_OK(lowlat_start(call))) return false;
    const worker *h = mirrored_find(call->there.hook)->worker;
    if (!CHECK_OK(expar_ll_hook_call(call->there.hook, h->stream))) return false;
    worker_wait(h);
    return true;
}

/* The results of each rank in that call, whatever comes after it. */
static bool check_difference(const desk *d)
{
    if (d->rank == WRONG_RANK) return CHECK_TEXT("an earlier call", "dtype of x is bf16 on rank 0 and f16 on rank 1");
    return CHECK_TEXT("an earlier call", "dtype of x is f16 on rank 1 and bf16 on rank");
}

static bool all_is_well(const desk *d)
{
    return lowlat_round_trip(d->ll, d->traffic, NULL, 0, d->rank, &plain);
}

static void ask(const desk *d)
{
    lowlat_call call;
    for (int i = 0; i < 2; i++) {
        if (!differ_untold(d, &call)) return;
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_ll_query(d->ll));
        CHECK_TEXT("expar_ll_query");
        check_difference(d);
        CHECK_OK(expar_ll_query(d->ll));
        lowlat_clean(&call);
        if (!all_is_well(d)) return;
    }
}

static void test_query(void **state)
{
    (void)state;
    run(ask);
}

/* Which has a form of its own, and is carried out. */
static void go_on(const desk *d)
{
    lowlat_call call, next;
    for (int hook = 0; hook < 2; hook++) {
        if (!differ_untold(d, &call)) return;
        lowlat_prepare_dispatch(&next, d->ll, d->traffic, d->rank, hook ? &hooked : &plain);
        expar_status status = lowlat_start(&next);
        if (hook && CHECK_STATUS(EXPAR_OK, status)) status = lowlat_end(&next);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, status);
        CHECK_TEXT(hook ? "expar_ll_hook_call" : "expar_ll_dispatch");
        check_difference(d);
        CHECK_OK(expar_ll_query(d->ll));
        lowlat_clean(&next);
        lowlat_clean(&call);
        if (!all_is_well(d)) return;
    }
}

static void test_next_call(void **state)
{
    (void)state;
    run(go_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_query), cmocka_unit_test(test_next_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
