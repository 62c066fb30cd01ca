/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency whose kernels write requests for a network device themselves, where that device fails or stands still,
 * or is not there. The environment names the transport gda, a device in software and the memory of its queues. Each
 * rank is a node of its own. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "group/group.h"
#include "net/gda/kernels.h"
#include "oracle/unit.h"
#include "shmem/sym.h"
#include <expar/low_latency.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2, GOOD_ROUNDS = 5, SHORT_MS = 300, MOST_ROUNDS = 8 };

static const ll_case few = {
    .ranks = RANKS, .max_tokens = 6, .hidden = 64, .topk = 2, .experts = 4, .tokens = {6, 5}, .seed = 3};

static gda *gda_of_group(const expar_group *group)
{
    for (int32_t t = 0; t < group->sym->num_transports; t++)
        if (group->sym->transports[t]->ops->kernels) return (gda *)group->sym->transports[t];
    return NULL;
}

/* ---- the device fails -------------------------------------------------------------------------------------------- */

/* From now on the device of this rank does not know the keys that kernels name for rank 1. */
static void spoil_keys(expar_group *group)
{
    gda *g = gda_of_group(group);
    const gda_kernels *k = atomic_load(&g->kernels);
    const kernels_layout at = gda_kernels_lay_out(g);
    const uint64_t table = at.tables + TRANSPORT_PINNED * at.table_bytes + at.rkeys;
    uint32_t keys[GDA_CHUNKS];
    for (int i = 0; i < GDA_CHUNKS; i++)
        keys[i] = gda_be32(0xfffff);
    CHECK_OK(gda_space_write(&k->state, table + GDA_CHUNKS * sizeof *keys, keys, sizeof keys));
}

/* From now on it carries nothing out, and this rank does not wait long for it. */
static void hold_device(expar_group *group)
{
    group->sym->site.timeout_ms = SHORT_MS;
    group->sym->site.patience = NULL;
    nic_hold(gda_of_group(group)->nic, true);
}

typedef struct failing {
    void (*strike)(expar_group *group); /* by rank 0 */
    const char *text;                   /* of its error */
} failing;

/* Makes rounds until one fails. Data that was sent before may be enough for one more. */
static expar_status rounds_until_error(expar_ll *ll, int32_t rank, int first)
{
    expar_status status = EXPAR_OK;
    for (int i = 0; i < MOST_ROUNDS && status == EXPAR_OK; i++) {
        ll_round *round = round_make(&few, rank, (uint32_t)(first + i));
        status = expar_ll_dispatch(ll, &round->dispatch, &round->received);
        if (status == EXPAR_OK && round_check_dispatch(round)) {
            round_prepare_combine(round);
            status = expar_ll_combine(ll, &round->combine, &round->combined);
        }
        round_free(round);
    }
    return status;
}

static void fail_in_a_call(expar_group *group, void *shared)
{
    const failing *what = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&few);
    int64_t (*patience)(void *, int32_t, int64_t) = group->sym->site.patience;
    const int64_t timeout_ms = group->sym->site.timeout_ms;
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (int i = 0; i < GOOD_ROUNDS; i++)
        CHECK(round_trial(&few, rank, ll, (uint32_t)i), "round %d", i);
    CHECK_OK(expar_group_barrier(group));
    if (rank == 0) what->strike(group);
    CHECK_OK(expar_group_barrier(group));
    const expar_status status = rounds_until_error(ll, rank, GOOD_ROUNDS);
    CHECK(status == EXPAR_ERR_PEER, "%s: %s", expar_status_string(status), expar_last_error());
    if (rank == 0)
        CHECK(strstr(expar_last_error(), what->text) != NULL, "'%s' has no '%s'", expar_last_error(), what->text);
    nic_hold(gda_of_group(group)->nic, false);
    group->sym->site.patience = patience;
    group->sym->site.timeout_ms = timeout_ms;
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_ll_destroy(ll));
}

static const ranks_plan apart = {.size = RANKS, .ranks_per_node = 1};

static void test_an_error_of_the_device_is_told(void **state)
{
    failing bad_keys = {spoil_keys, "low-latency data for rank 1 was not sent: gda: request"};
    (void)state;
    assert_true(ranks_run(&apart, fail_in_a_call, &bad_keys));
}

static void test_a_device_that_stands_still_ends_calls(void **state)
{
    failing held = {hold_device, "low-latency data for rank 1 was not sent: gda: requests to PE 1 were given up"};
    (void)state;
    assert_true(ranks_run(&apart, fail_in_a_call, &held));
}

/* ---- with masks -------------------------------------------------------------------------------------------------- */

static bool has_masked(expar_ll *ll, int32_t rank)
{
    int32_t masked[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(masked, EXPAR_I32, RANKS);
    return CHECK_OK(expar_ll_mask_query(ll, &status, NULL)) && masked[rank] == 1;
}

/* Each rank masks the other one. No call fails. After a clean the proxy serves rank 1. */
static void mask_and_clean(expar_group *group, void *shared)
{
    const int32_t rank = expar_group_rank(group);
    expar_ll_config config = case_config(&few);
    expar_ll *ll = NULL;
    bool masked = false;
    (void)shared;
    config.masking = 1;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    CHECK(round_trial(&few, rank, ll, 1), "a round");
    CHECK_OK(expar_group_barrier(group));
    if (rank == 0) spoil_keys(group);
    CHECK_OK(expar_group_barrier(group));
    for (int i = 0; i < MOST_ROUNDS && !masked && check_failures() == 0; i++) {
        ll_round *round = round_make(&few, rank, (uint32_t)i);
        CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received));
        round_free(round);
        masked = has_masked(ll, 1 - rank);
    }
    CHECK(masked, "rank %d is not masked", 1 - rank);
    CHECK_OK(expar_ll_mask_clean(ll));
    for (int i = 0; i < GOOD_ROUNDS && check_failures() == 0; i++)
        CHECK(round_trial(&few, rank, ll, (uint32_t)i), "round %d after the clean", i);
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_an_error_masks_the_rank_and_the_proxy_follows(void **state)
{
    const char *given = getenv("EXPAR_DEVICE_TRANSPORTS");
    char *kept = given ? strdup(given) : NULL;
    (void)state;
    setenv("EXPAR_DEVICE_TRANSPORTS", "mapped,gda,proxy", 1);
    assert_true(ranks_run(&apart, mask_and_clean, NULL));
    if (kept)
        setenv("EXPAR_DEVICE_TRANSPORTS", kept, 1);
    else
        unsetenv("EXPAR_DEVICE_TRANSPORTS");
    free(kept);
}

/* ---- requests under way ------------------------------------------------------------------------------------------ */

typedef struct held_device {
    nic *nic;
    atomic_bool goes;
} held_device;

/* Lets the device go on some time later. */
static void *let_go(void *context)
{
    held_device *held = context;
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    atomic_store(&held->goes, true);
    nic_hold(held->nic, false);
    return NULL;
}

/* Rank 0 has sent, and its device has not read the send buffer. Nobody calls the hooks. */
static void end_under_way(expar_group *group)
{
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&few);
    held_device held = {.goes = false};
    pthread_t thread;
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    ll_round *round = round_make(&few, rank, 0);
    round->dispatch.hook = 1;
    held.nic = gda_of_group(group)->nic;
    if (rank == 0) nic_hold(held.nic, true);
    CHECK_OK(expar_ll_dispatch(ll, &round->dispatch, &round->received));
    if (rank == 0) CHECK(pthread_create(&thread, NULL, let_go, &held) == 0, "no thread");
    CHECK_OK(expar_ll_destroy(ll));
    if (rank == 0) {
        CHECK(atomic_load(&held.goes), "the buffer has ended before its requests");
        CHECK(pthread_join(thread, NULL) == 0, "the thread");
    }
    round_free(round);
}

static void ends_under_way(expar_group *group, void *shared)
{
    const expar_ll_config config = case_config(&few);
    expar_ll *ll = NULL;
    (void)shared;
    end_under_way(group);
    if (check_failures() > 0 || !CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    CHECK(round_trial(&few, expar_group_rank(group), ll, 1), "a round on a later buffer");
    CHECK_OK(expar_ll_destroy(ll));
}

static void test_a_buffer_ends_after_its_requests(void **state)
{
    (void)state;
    assert_true(ranks_run(&apart, ends_under_way, NULL));
}

/* ---- ways that are not there ------------------------------------------------------------------------------------- */

typedef struct wrong_setting {
    const char *name, *value;
    expar_status status;
    const char *text;
} wrong_setting;

static void reject(expar_group *group, void *shared)
{
    const wrong_setting *wrong = shared;
    const expar_ll_config config = case_config(&few);
    expar_ll *ll = NULL;
    const expar_status status = expar_ll_create(group, &config, &ll);
    CHECK(status == wrong->status, "%s: %s", expar_status_string(status), expar_last_error());
    CHECK(strstr(expar_last_error(), wrong->text) != NULL, "'%s' has no '%s'", expar_last_error(), wrong->text);
    CHECK_OK(expar_group_barrier(group));
}

static void reject_with(const char *ways, const char *memory, expar_status status, const char *text)
{
    const char *given_ways = getenv("EXPAR_DEVICE_TRANSPORTS"), *given_memory = getenv("EXPAR_GDA_QUEUE_MEMORY");
    char *kept_ways = given_ways ? strdup(given_ways) : NULL, *kept_memory = given_memory ? strdup(given_memory) : NULL;
    wrong_setting wrong = {.status = status, .text = text};
    setenv("EXPAR_DEVICE_TRANSPORTS", ways, 1);
    if (memory)
        setenv("EXPAR_GDA_QUEUE_MEMORY", memory, 1);
    else
        unsetenv("EXPAR_GDA_QUEUE_MEMORY");
    assert_true(ranks_run(&apart, reject, &wrong));
    if (kept_ways)
        setenv("EXPAR_DEVICE_TRANSPORTS", kept_ways, 1);
    else
        unsetenv("EXPAR_DEVICE_TRANSPORTS");
    if (kept_memory) setenv("EXPAR_GDA_QUEUE_MEMORY", kept_memory, 1);
    free(kept_ways);
    free(kept_memory);
}

static void test_ways_that_are_not_there_are_rejected(void **state)
{
    (void)state;
    reject_with("gda", NULL, EXPAR_ERR_UNSUPPORTED,
                "no way of EXPAR_DEVICE_TRANSPORTS=gda leads to pinned memory of rank");
    reject_with("gda", NULL, EXPAR_ERR_UNSUPPORTED, "gda: kernels have no queues");
    reject_with("mapped", "pinned", EXPAR_ERR_UNSUPPORTED, "no way of EXPAR_DEVICE_TRANSPORTS=mapped leads to");
    reject_with("wire", "pinned", EXPAR_ERR_ARGUMENT, "EXPAR_DEVICE_TRANSPORTS=wire: expected mapped, gda and proxy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_error_of_the_device_is_told),
                                       cmocka_unit_test(test_a_device_that_stands_still_ends_calls),
                                       cmocka_unit_test(test_an_error_masks_the_rank_and_the_proxy_follows),
                                       cmocka_unit_test(test_a_buffer_ends_after_its_requests),
                                       cmocka_unit_test(test_ways_that_are_not_there_are_rejected)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
