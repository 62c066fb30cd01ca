/* SPDX-License-Identifier: Apache-2.0 */
/* The gda transport in trouble: a device that stops answering, a peer that is gone, memory that is not registered, a
 * word that is none of EXPAR_GDA_NIC. An error names the peer, the other peers stay within reach, and nobody hangs. */
#include "net/gda/parts.h"
#include "net/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 3

static const subject gda_subject = {NULL, false};

/* Opens gda over the group's heap, with a short time-out of silence that nobody is asked about. */
static bool trouble_open(stage *s, expar_group *group, transport_site *site)
{
    subject who = gda_subject;
    who.ops = transport_find("gda", 3);
    *site = group->sym->site;
    site->timeout_ms = 200;
    site->patience = NULL;
    return CHECK(who.ops != NULL, "there is no gda") && stage_open_at(s, group, &who, site, 4096);
}

static bool put_word(stage *s, int32_t pe, uint64_t word)
{
    return stage_put(s, pe, s->area, &word, sizeof word) == EXPAR_OK;
}

static void post_word(stage *s, int32_t pe, const uint64_t *word, transport_batch *batch)
{
    const transport_request put = {
        .kind = TRANSPORT_KIND_PUT, .pe = pe, .offset = s->area, .source = word, .bytes = sizeof *word};
    CHECK_OK(s->via->ops->post(s->via, &put, batch));
}

static void silent_device(expar_group *group, void *shared)
{
    stage s;
    transport_site site;
    (void)shared;
    if (!trouble_open(&s, group, &site)) return;
    const int32_t pe = (group->rank + 1) % RANKS, other = (group->rank + 2) % RANKS;
    const uint64_t word = 7;
    transport_batch batch = {0};
    nic_hold(((gda *)s.via)->nic, true);
    post_word(&s, pe, &word, &batch);
    CHECK_STATUS(EXPAR_ERR_PEER, s.via->ops->settle(s.via, &batch));
    char expected[64];
    snprintf(expected, sizeof expected, "requests to PE %d were given up", pe);
    CHECK_TEXT(expected);
    /* a later operation fails at once, and the queue to another peer works */
    nic_hold(((gda *)s.via)->nic, false);
    CHECK_STATUS(EXPAR_ERR_PEER, stage_put(&s, pe, s.area, &word, sizeof word));
    CHECK_TEXT(expected);
    CHECK(put_word(&s, other, word), "the other peer is out of reach: %s", expar_last_error());
    /* without a batch, quiet reports it */
    nic_hold(((gda *)s.via)->nic, true);
    post_word(&s, other, &word, NULL);
    CHECK_STATUS(EXPAR_ERR_PEER, s.via->ops->quiet(s.via));
    CHECK_OK(s.via->ops->quiet(s.via));
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

static void lost_peer(expar_group *group, void *shared)
{
    stage s;
    transport_site site;
    (void)shared;
    if (!trouble_open(&s, group, &site)) return;
    const int32_t pe = (group->rank + 1) % RANKS, other = (group->rank + 2) % RANKS;
    uint64_t word = 7;
    CHECK(put_word(&s, pe, word), "%s", expar_last_error());
    nic_lose_port(((gda *)s.via)->nic, (uint32_t)pe);
    CHECK_STATUS(EXPAR_ERR_PEER, stage_get(&s, pe, &word, s.area, sizeof word));
    char expected[64];
    snprintf(expected, sizeof expected, "to PE %d failed with syndrome 0x15", pe);
    CHECK_TEXT(expected, "the peer does not answer");
    CHECK(put_word(&s, other, word), "the other peer is out of reach: %s", expar_last_error());
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

static void beyond_the_end(expar_group *group, void *shared)
{
    stage s;
    transport_site site;
    (void)shared;
    if (!trouble_open(&s, group, &site)) return;
    uint64_t word = 7;
    const int32_t pe = (group->rank + 1) % RANKS;
    const uint64_t end = s.area + 4096;
    CHECK_STATUS(EXPAR_ERR_RANGE, stage_get(&s, pe, &word, end, sizeof word));
    CHECK_TEXT("is not registered");
    CHECK(put_word(&s, pe, word), "the queue is broken: %s", expar_last_error());
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, s.via->ops->grow(s.via, TRANSPORT_HOST, 0, 4096));
    CHECK_TEXT("expected some at the end");
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

static void wrong_word(expar_group *group, void *shared)
{
    transport *via = NULL;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, transport_find("gda", 3)->open(&group->sym->site, &via));
    CHECK_TEXT("EXPAR_GDA_NIC=hardware: expected software, process or device");
}

/* Several queues to a PE, a thread that rings, a device that makes harmless trouble. Puts arrive in order, and every
   operation has its result. */
static void shared_out(expar_group *group, void *shared)
{
    stage s;
    transport_site site;
    (void)shared;
    if (!trouble_open(&s, group, &site)) return;
    const gda *g = (const gda *)s.via;
    const int32_t pe = (group->rank + 1) % RANKS;
    uint64_t old = 0, word = 0;
    CHECK(g->num_lanes == 3 * RANKS && g->has_ringer, "%d queues, a thread to ring: %d", g->num_lanes, g->has_ringer);
    for (uint64_t i = 1; i <= 100; i++) {
        transport_request add = {.kind = TRANSPORT_KIND_ATOMIC,
                                 .op = TRANSPORT_ADD,
                                 .pe = pe,
                                 .offset = s.area + 8,
                                 .dest = &old,
                                 .bytes = 8,
                                 .operand = 3};
        CHECK(put_word(&s, pe, i), "put %s", expar_last_error());
        CHECK_OK(stage_get(&s, pe, &word, s.area, sizeof word));
        CHECK_OK(s.via->ops->run(s.via, &add));
        CHECK(word == i && old == 3 * (i - 1), "round %d: %d, %d", (int)i, (int)word, (int)old);
    }
    uint64_t used = 0;
    for (uint32_t i = 0; i < 3; i++)
        used += gda_load(&gda_lane_of((gda *)s.via, pe, i)->queue.resv_head) != 0;
    CHECK(used == 3, "%d of 3 queues were used", (int)used);
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

static void run(ranks_body body)
{
    ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
    assert_true(ranks_run(&plan, body, NULL));
}

static void test_silent_device(void **state)
{
    (void)state;
    run(silent_device);
}

static void test_lost_peer(void **state)
{
    (void)state;
    run(lost_peer);
}

static void test_beyond_the_end(void **state)
{
    (void)state;
    run(beyond_the_end);
}

static void test_wrong_word(void **state)
{
    (void)state;
    setenv("EXPAR_GDA_NIC", "hardware", 1);
    run(wrong_word);
    setenv("EXPAR_GDA_NIC", "software", 1);
}

static void test_shared_out(void **state)
{
    static const char *const settings[][2] = {
        {"EXPAR_GDA_QPS_PER_PEER", "3"},
        {"EXPAR_GDA_QUEUE_DEPTH", "256"},
        {"EXPAR_GDA_BATCH", "4"},
        {"EXPAR_GDA_RINGER", "cpu"},
        {"EXPAR_GDA_NIC_FAULTS", "seed=5,delay=2,drop=9,lose=9,coalesce=4,late=3"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++)
        setenv(settings[i][0], settings[i][1], 1);
    run(shared_out);
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++)
        unsetenv(settings[i][0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_out),     cmocka_unit_test(test_silent_device), cmocka_unit_test(test_lost_peer),
        cmocka_unit_test(test_beyond_the_end), cmocka_unit_test(test_wrong_word),
    };
    setenv("EXPAR_GDA_NIC", "software", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
