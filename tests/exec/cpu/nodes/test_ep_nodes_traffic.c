/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic across the network. A dispatch sends as many records as tokens have other nodes. A combine sends as many
 * sums, however many experts a token has there, or in one order as many rows as tokens have ranks there. It sends
 * little more bytes than these. The opening of a fresh dispatch has more than one with a handle, whose header goes
 * before its records: one flag to each other node after the headers of all. So counts and memory are agreed on within
 * two one-way messages. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "exec/cpu/nodes/carrier.h"
#include "oracle/unit.h"

#define RANKS          4
#define RANKS_PER_NODE 2
#define NODES          (RANKS / RANKS_PER_NODE)

/* Slots that went through this rank's rings to, or from, a node in the last call. */
static int64_t slots_of(const cpu_executor *cpu, int32_t node, bool taken)
{
    int64_t slots = 0;
    for (int32_t c = 0; c < cpu->shape.channels; c++) {
        const rail_ring *ring = rail_ring_of(cpu, c, node);
        slots += taken ? ring->taken : ring->put;
    }
    return slots;
}

/* The call has sent so many slots by rails, and at most so many bytes besides. */
static void check_sent(const cpu_executor *cpu, uint64_t bytes_before, int64_t slots, const char *call)
{
    const uint64_t sent = atomic_load(&cpu->rails->counts.bytes) - bytes_before;
    const uint64_t least = (uint64_t)slots * cpu->rails->slot.bytes;
    const uint64_t besides =
        (NODES - 1) * (cpu->rails->space.opening_bytes + cpu->rails->space.reply_bytes) + 64 * (uint64_t)slots + 1024;
    CHECK(sent >= least && sent <= least + besides, "%s sent %llu bytes; expected %llu to %llu", call,
          (unsigned long long)sent, (unsigned long long)least, (unsigned long long)(least + besides));
}

/* Messages and flags of a dispatch beside those of one with its handle. */
static void check_notify(stage *s, const traffic *t, link_sent fresh, expar_ep_handle *handle)
{
    const cpu_executor *cpu = carrier_of(s->ep);
    const trial_choice plain = {0};
    trial_arrival again;
    const link_sent before = link_sent_of(&cpu->rails->counts);
    if (!trial_dispatch(s->ep, t, s->rank, &plain, &s->area, handle, &again)) return;
    const link_sent after = link_sent_of(&cpu->rails->counts);
    const uint64_t messages = after.messages - before.messages, flags = after.flags - before.flags;
    CHECK(fresh.messages == messages && fresh.flags == flags + (NODES - 1),
          "a fresh dispatch sent %llu messages and %llu flags, one with a handle %llu and %llu; expected %d flags more",
          (unsigned long long)fresh.messages, (unsigned long long)fresh.flags, (unsigned long long)messages,
          (unsigned long long)flags, NODES - 1);
    trial_release(&again, true);
}

/* In one order: a row for each of the node's ranks that has a token. */
static void check_rows(stage *s, const traffic *t, trial_arrival *arrival)
{
    const cpu_executor *cpu = carrier_of(s->ep);
    const int64_t tokens = t->inputs[s->rank].num_tokens;
    const uint64_t before = atomic_load(&cpu->rails->counts.bytes);
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    int64_t going = 0;
    args.x = arrival->result.recv_x;
    args.out_y = pitched_make(traffic_dtype(t), tokens, t->job.hidden, 0, false);
    args.handle = arrival->handle;
    args.nodes_sum = EXPAR_EP_NODES_SUM_ONE_ORDER;
    CHECK_OK(expar_ep_combine(s->ep, &args, NULL));
    pitched_free(&args.out_y);
    for (int32_t node = 0; node < NODES; node++) {
        int64_t rows = 0;
        if (node == s->rank / RANKS_PER_NODE) continue;
        for (int64_t i = 0; i < tokens * RANKS_PER_NODE; i++)
            rows += oracle_token_in_rank(&t->job, s->rank, i / RANKS_PER_NODE,
                                         node * RANKS_PER_NODE + (int32_t)(i % RANKS_PER_NODE));
        CHECK(slots_of(cpu, node, true) == rows, "%lld rows came from node %d; expected %lld",
              (long long)slots_of(cpu, node, true), node, (long long)rows);
        going += slots_of(cpu, node, false);
    }
    check_sent(cpu, before, going, "a combine in one order");
}

static void trial_counted(stage *s, void *shared)
{
    const traffic *t = ((const void *const *)shared)[0];
    const answers *a = ((const void *const *)shared)[1];
    const cpu_executor *cpu = carrier_of(s->ep);
    const int32_t own = s->rank / RANKS_PER_NODE;
    const trial_choice plain = {0};
    int32_t tokens[NODES];
    int64_t others = 0, coming = 0;
    trial_arrival arrival;
    oracle_tokens_per_node(&t->job, s->rank, tokens);
    uint64_t before = atomic_load(&cpu->rails->counts.bytes);
    const link_sent begin = link_sent_of(&cpu->rails->counts);
    if (!trial_dispatch(s->ep, t, s->rank, &plain, &s->area, NULL, &arrival)) return;
    for (int32_t node = 0; node < NODES; node++) {
        if (node == own) continue;
        const int64_t put = slots_of(cpu, node, false);
        CHECK(put == tokens[node], "%lld records went to node %d; expected %d", (long long)put, node, tokens[node]);
        others += tokens[node];
        coming += slots_of(cpu, node, true);
    }
    check_sent(cpu, before, others, "a dispatch");
    link_sent fresh = link_sent_of(&cpu->rails->counts);
    fresh.messages -= begin.messages;
    fresh.flags -= begin.flags;
    check_notify(s, t, fresh, arrival.handle);
    before = atomic_load(&cpu->rails->counts.bytes);
    trial_combine(s->ep, t, a, s->rank, &plain, &s->area, arrival.handle, &arrival);
    for (int32_t node = 0; node < NODES; node++)
        if (node != own)
            CHECK(slots_of(cpu, node, true) == tokens[node], "%lld sums came from node %d; expected %d",
                  (long long)slots_of(cpu, node, true), node, tokens[node]);
    check_sent(cpu, before, coming, "a combine");
    check_rows(s, t, &arrival);
    trial_release(&arrival, true);
}

static void test_records_and_sums(void **state)
{
    (void)state;
    static const int64_t num_tokens[RANKS] = {200, 0, 31, 120};
    const traffic_plan plan = {.num_ranks = RANKS,
                               .ranks_per_node = RANKS_PER_NODE,
                               .hidden = 512,
                               .topk = 6,
                               .num_experts = 8 * RANKS,
                               .wide = true,
                               .with_weights = true,
                               .num_tokens = num_tokens};
    random_source random = random_start(41);
    traffic *t = traffic_make(&plan, &random);
    answers *a = answers_make(t, true, &random);
    stage_plan setting = stage_plan_for(t, RANKS_THREADS);
    const void *const shared[] = {t, a};
    bool passed = stage_run(&setting, trial_counted, (void *)(uintptr_t)shared);
    answers_free(a);
    traffic_free(t);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records_and_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
