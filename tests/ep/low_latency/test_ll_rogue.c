/* SPDX-License-Identifier: Apache-2.0 */
/* What a broken peer writes: units with counts that the buffer cannot hold, and messages whose headers name experts,
 * rows, tokens and places that are none. Rank 1 makes no calls, and writes into rank 0's memory by hand what a call
 * would. Rank 0 says whose counts they are, or leaves out what it cannot place; it writes nowhere else. */
#include "ep/check.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "ep/ranks.h"
#include "exec/cpu/low_latency/cpu.h"
#include "oracle/unit.h"

#include <limits.h>
#include <string.h>

enum { RANKS = 2, ROGUE = 1, TOKENS = 4, TOPK = 2, HIDDEN = 8, LOCALS = 2, GUARD = 0x5a };

/* Rank 0 has no tokens, so it awaits no rows. */
static const ll_case quiet = {.ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .experts = LOCALS * RANKS,
                              .tokens = {0, TOKENS},
                              .weights = true};

/* What comes: one message, of which the counts say that it has one row of expert 0. */
typedef struct rogue_case {
    const char *name;
    int32_t messages, counts[LOCALS];
    int32_t token, place, experts[TOPK], rows[TOPK];
    bool refused; /* for its counts; else the call ends well */
    bool placed;  /* the row of expert 0 comes to its place */
} rogue_case;

static const rogue_case cases[] = {
    {"too many messages", .messages = TOKENS + 1, .counts = {1, 0}, .refused = true},
    {"messages below 0", .messages = -1, .counts = {1, 0}, .refused = true},
    {"too many rows", .messages = 1, .counts = {1, TOKENS + 1}, .refused = true},
    {"rows without end", .messages = 1, .counts = {INT_MAX, INT_MAX}, .refused = true},
    {"rows below 0", .messages = 1, .counts = {INT_MIN, 0}, .refused = true},
    {"a message as it should be", .messages = 1, .counts = {1, 0}, .token = 3, .experts = {0, -1}, .placed = true},
    {"an expert that is none", .messages = 1, .counts = {1, 0}, .experts = {LOCALS, INT_MAX}},
    {"an expert below -1", .messages = 1, .counts = {1, 0}, .experts = {-2, INT_MIN}},
    {"a row behind the last", .messages = 1, .counts = {1, 0}, .experts = {0, -1}, .rows = {1, 0}},
    {"a row without end", .messages = 1, .counts = {1, 0}, .experts = {0, 1}, .rows = {INT_MAX, 0}},
    {"a row below 0", .messages = 1, .counts = {1, 0}, .experts = {0, -1}, .rows = {INT_MIN, 0}},
    {"a token behind the last", .messages = 1, .counts = {1, 0}, .token = TOKENS, .experts = {0, -1}, .placed = true},
    {"a token without end", .messages = 1, .counts = {1, 0}, .token = INT_MAX, .experts = {0, -1}, .placed = true},
    {"a token below 0", .messages = 1, .counts = {1, 0}, .token = INT_MIN, .experts = {0, -1}, .placed = true},
    {"a place behind the last", .messages = 1, .counts = {1, 0}, .place = TOPK, .experts = {0, -1}, .placed = true},
    {"a place without end", .messages = 1, .counts = {1, 0}, .place = INT_MAX, .experts = {0, -1}, .placed = true},
    {"a place below 0", .messages = 1, .counts = {1, 0}, .place = INT_MIN, .experts = {0, -1}, .placed = true},
};

typedef struct seat {
    expar_group *group;
    expar_ll *ll;
    ll_cpu *cpu;
    const rogue_case *what;
} seat;

/* ---- rank 1 ------------------------------------------------------------------------------------------------------ */

static void write_unit(const seat *s, ll_kind kind, uint64_t epoch, const ll_form *form, int32_t messages,
                       const int32_t *counts)
{
    const uint64_t unit = ll_unit_at(&s->cpu->space, kind, ROGUE, epoch);
    ll_store(s->cpu, 0, unit + LL_UNIT_TAG * 8, ll_word(epoch, ll_form_tag(form)));
    ll_store(s->cpu, 0, unit + LL_UNIT_ROUTE * 8, ll_word(epoch, form->route));
    ll_store(s->cpu, 0, unit + LL_UNIT_MESSAGES * 8, ll_word(epoch, (uint32_t)messages));
    for (int32_t l = 0; counts && l < LOCALS; l++)
        ll_store(s->cpu, 0, unit + (LL_UNIT_COUNTS + (uint64_t)l) * 8, ll_word(epoch, (uint32_t)counts[l]));
    ll_store(s->cpu, 0, unit + LL_UNIT_STATUS * 8, ll_word(epoch, EXPAR_OK));
}

static void write_message(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const ll_shape *shape = &s->cpu->shape;
    ll_header *header = ll_at(s->cpu, 0, ll_message_at(space, shape, ROGUE, 1, 0));
    *header = (ll_header){.token = s->what->token, .place = s->what->place};
    memcpy(ll_header_experts(header), s->what->experts, sizeof s->what->experts);
    memcpy(ll_header_rows(header, TOPK), s->what->rows, sizeof s->what->rows);
    memset(ll_header_weights(header, TOPK), 0, TOPK * sizeof(float));
    memset((uint8_t *)header + space->header_bytes, 1, HIDDEN * sizeof(float));
    ll_store(s->cpu, 0, ll_message_flag_at(space, shape, ROGUE, 1, 0), ll_word(1, 1));
}

/* One dispatch and two combines, exact and reduced. */
static void write_calls(const seat *s)
{
    const ll_form there = {.dtype = EXPAR_F32, .weights = 1, .topk = TOPK};
    write_message(s);
    write_unit(s, LL_DISPATCH, 1, &there, s->what->messages, s->what->counts);
    for (int32_t sum = EXPAR_LL_EXACT; sum <= EXPAR_LL_REDUCED; sum++) {
        const ll_form back = {.dtype = EXPAR_F32, .sum = sum, .topk = TOPK, .route = ll_stamp(1)};
        write_unit(s, LL_COMBINE, (uint64_t)sum + 1, &back, 0, NULL);
    }
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

/* Each message is answered, with a sum of 0 where it names no rows, at the places of its token. If that is one all else
   is taken to be as it was; if it is none, nothing at all may have been written. */
static void check_guard(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const uint8_t *there = ll_at(s->cpu, ROGUE, space->messages);
    for (uint64_t i = 0; i < space->rows - space->messages; i++)
        if (!CHECK(there[i] == GUARD, "%s: byte %llu of the messages was written to", s->what->name,
                   (unsigned long long)i))
            return;
    if (s->what->token >= 0 && s->what->token < TOKENS && s->what->place == 0) return;
    const uint8_t *rows = ll_at(s->cpu, ROGUE, space->rows);
    for (uint64_t i = 0; i < space->total_bytes - space->rows; i++)
        if (!CHECK(rows[i] == GUARD, "%s: byte %llu of the places was written to", s->what->name,
                   (unsigned long long)i))
            return;
}

static void combine(const seat *s, ll_round *round)
{
    round_prepare_combine(round);
    for (int sum = EXPAR_LL_EXACT; sum <= EXPAR_LL_REDUCED; sum++) {
        round->combine.sum = (expar_ll_sum)sum;
        CHECK(CHECK_OK(expar_ll_combine(s->ll, &round->combine, &round->combined)), "%s", s->what->name);
        expar_ep_output_release(round->combined.output);
        round->combined.output = NULL;
    }
}

static void receive(const seat *s)
{
    ll_round *round = round_make(&quiet, 0, 0);
    float out_x[LOCALS][RANKS * TOKENS][HIDDEN];
    memset(out_x, GUARD, sizeof out_x);
    round->dispatch.out_x = (expar_tensor){.data = out_x,
                                           .dtype = EXPAR_F32,
                                           .ndim = 3,
                                           .shape = {LOCALS, RANKS * TOKENS, HIDDEN},
                                           .strides = {RANKS * TOKENS * HIDDEN, HIDDEN, 1},
                                           .device = {.type = EXPAR_CPU}};
    const expar_status status = expar_ll_dispatch(s->ll, &round->dispatch, &round->received);
    CHECK(status == (s->what->refused ? EXPAR_ERR_PEER : EXPAR_OK), "%s: %s", s->what->name, expar_last_error());
    if (s->what->refused) CHECK_TEXT("its counts are beyond this buffer's 4 tokens");
    const uint8_t *bytes = (const uint8_t *)out_x;
    for (size_t i = 0; i < sizeof out_x; i++)
        if (!CHECK(bytes[i] == (i < sizeof out_x[0][0] && s->what->placed ? 1 : GUARD), "%s: byte %zu of recv_x",
                   s->what->name, i))
            break;
    if (status == EXPAR_OK) combine(s, round);
    check_guard(s);
    round_free(round);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static void play(expar_group *group, void *shared)
{
    const expar_ll_config config = case_config(&quiet);
    seat s = {.group = group};
    (void)shared;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.what = &cases[i];
        if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
        s.cpu = ll_cpu_of(s.ll->exec);
        memset(ll_here(s.cpu, s.cpu->space.messages), GUARD,
               (size_t)(s.cpu->space.total_bytes - s.cpu->space.messages));
        CHECK_OK(expar_group_barrier(group));
        if (expar_group_rank(group) == ROGUE) write_calls(&s);
        CHECK_OK(expar_group_barrier(group));
        if (expar_group_rank(group) == 0) receive(&s);
        CHECK_OK(expar_group_barrier(group));
        CHECK_OK(expar_ll_abandon(s.ll));
    }
}

static void test_rogues(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
    assert_true(ranks_run(&plan, play, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rogues)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
