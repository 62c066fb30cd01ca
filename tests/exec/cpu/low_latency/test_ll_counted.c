/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and rows, counted where they arrive: slots and places are filled before each call, and looked at when all
 * have sent. Just one message comes for each (token, rank). One row comes for each slot, or each rank of a token. The
 * numbers of expar_ll_get_stats are those. All calls have hooks, so that nothing stays or is taken away. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "exec/cpu/low_latency/far/links.h"
#include "oracle/unit.h"

#include <string.h>

enum { RANKS = 4, ROUNDS = 5, FILL = 0xa7, GROUP_BYTES = 160, HEAD_BYTES = 8 };

#define EXAMPLE                                                                                                        \
    .ranks = RANKS, .max_tokens = 9, .hidden = 128, .topk = 6, .experts = 16, .tokens = {9, 0, 3, 8}, .seed = 5

typedef struct seat {
    const ll_case *c;
    expar_group *group;
    expar_ll *ll;
    const ll_cpu *cpu;
    int32_t rank;
    expar_ll_stats before;
} seat;

/* ---- what has to come -------------------------------------------------------------------------------------------- */

/* Slots of the token whose experts are on the rank. */
static int32_t slots_on(const ll_case *c, int32_t source, int32_t token, int32_t rank)
{
    int32_t slots = 0;
    for (int32_t k = 0; k < c->topk; k++) {
        const int32_t expert = case_expert(c, source, token, k);
        slots += expert >= 0 && expert / (c->experts / c->ranks) == rank;
    }
    return slots;
}

static int32_t messages_between(const ll_case *c, int32_t source, int32_t rank)
{
    int32_t messages = 0;
    for (int32_t t = 0; t < c->tokens[source]; t++)
        messages += slots_on(c, source, t, rank) > 0;
    return messages;
}

static uint64_t messages_of(const ll_case *c, int32_t source)
{
    uint64_t messages = 0;
    for (int32_t r = 0; r < c->ranks; r++)
        messages += (uint64_t)messages_between(c, source, r);
    return messages;
}

/* Rows that a rank sends back, and their bytes: of LogFMT's rows, of one group, those of every third expert are not
   coded (case.c), and travel as BF16. */
static uint64_t rows_back(const ll_case *c, int32_t rank, uint64_t *bytes)
{
    const int32_t locals = c->experts / c->ranks;
    uint64_t rows = 0;
    *bytes = 0;
    for (int32_t s = 0; s < c->ranks; s++)
        for (int32_t t = 0; t < c->tokens[s]; t++)
            for (int32_t k = 0, sent = 0; k < c->topk; k++) {
                const int32_t expert = case_expert(c, s, t, k);
                if (expert < 0 || expert / locals != rank || (c->sum == EXPAR_LL_SUM_REDUCED && sent)) continue;
                sent = 1;
                rows++;
                *bytes += !c->logfmt ? (uint64_t)c->hidden * 4 : HEAD_BYTES + (expert % 3 ? GROUP_BYTES : 128 * 2);
            }
    return rows;
}

/* Header, row and scales. */
static uint64_t message_bytes(const ll_case *c)
{
    const uint64_t header = 8 + 8 * (uint64_t)c->topk + (c->weights ? 4 * (uint64_t)c->topk : 0);
    return header + (c->format == EXPAR_LL_FORMAT_PLAIN ? (uint64_t)c->hidden * 4 : (uint64_t)c->hidden + 4);
}

/* ---- what has come ----------------------------------------------------------------------------------------------- */

static bool is_filled(const seat *s, uint64_t at, uint64_t bytes)
{
    const uint8_t *data = ll_here(s->cpu, at);
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != FILL) return false;
    return true;
}

static void fill(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    CHECK_OK(expar_group_barrier(s->group));
    memset(ll_here(s->cpu, space->messages), FILL, (size_t)(space->total_bytes - space->messages));
    CHECK_OK(expar_group_barrier(s->group));
}

/* A piece that has come ends with its flag, and nothing stands before its rows; one that has not is as it was. */
static void check_piece(const seat *s, const char *what, uint64_t flag_at, int32_t rows, uint64_t pitch, uint64_t epoch)
{
    const uint64_t spare = LL_PIECE_ROWS * pitch, used = (uint64_t)rows * pitch;
    const bool came = ll_word_is_of(ll_look(s->cpu, flag_at), epoch);
    CHECK(came == (rows > 0) && is_filled(s, flag_at - spare, spare - used) &&
              (rows == 0 || !is_filled(s, flag_at - pitch, pitch)),
          "a piece of %s, expected %d rows", what, (int)rows);
}

static int32_t rows_in(int32_t rows, int32_t piece)
{
    return piece < ll_pieces(rows) ? ll_piece_rows(rows, piece) : 0;
}

/* Where a source's memory is not mapped: in a slot of the double buffer, one piece after the other. */
static void check_message_pieces(const seat *s, int32_t source)
{
    const ll_space *space = &s->cpu->space;
    const ll_shape *shape = &s->cpu->shape;
    const uint64_t epoch = s->cpu->epochs[LL_DISPATCH];
    const int32_t bank = ll_slot_of_epoch(epoch), due = messages_between(s->c, source, s->rank);
    const uint64_t row =
        s->c->format == EXPAR_LL_FORMAT_PLAIN ? (uint64_t)s->c->hidden * 4 : (uint64_t)s->c->hidden + 4;
    const uint64_t pitch = ep_round(space->header_bytes + row, EP_LINE_BYTES);
    for (int32_t piece = 0; piece < ll_pieces(s->c->max_tokens); piece++)
        check_piece(s, "messages", ll_message_piece_flag_at(space, shape, source, bank, piece), rows_in(due, piece),
                    pitch, epoch);
    CHECK(is_filled(s, ll_message_at(space, shape, source, 1 - bank, 0), space->share_bytes),
          "messages of rank %d in the other bank", (int)source);
}

/* In a source's share messages come one after the other, and none after the last. The slot that the first one's flag
   does not name is left alone. */
static void check_messages(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const ll_shape *shape = &s->cpu->shape;
    const uint64_t epoch = s->cpu->epochs[LL_DISPATCH];
    for (int32_t source = 0; source < RANKS; source++) {
        if (ll_is_far(s->cpu, source)) {
            check_message_pieces(s, source);
            continue;
        }
        const uint64_t first = ll_look(s->cpu, ll_message_flag_at(space, shape, source, epoch, 0));
        const int32_t bank = (int32_t)(uint32_t)first;
        CHECK(bank == 0 || bank == 1, "rank %d's first message is in bank %d", (int)source, (int)bank);
        for (int32_t m = 0; m < s->c->max_tokens; m++) {
            const bool due = m < messages_between(s->c, source, s->rank);
            const uint64_t at = ll_message_at(space, shape, source, bank, m);
            const uint64_t flag = ll_look(s->cpu, ll_message_flag_at(space, shape, source, epoch, m));
            CHECK(is_filled(s, at, space->message_bytes) == !due && ll_word_is_of(flag, epoch) == due &&
                      (!due || (uint32_t)flag == (uint32_t)bank),
                  "message %d of rank %d, expected %s", (int)m, (int)source, due ? "one" : "none");
            CHECK(is_filled(s, ll_message_at(space, shape, source, 1 - bank, m), space->message_bytes),
                  "message %d of rank %d in the other bank", (int)m, (int)source);
        }
    }
}

/* The rank whose row comes to the place of this rank's token: that of its slot, or one of its ranks, in the order of
   slots. -1: none. */
static int32_t rank_of_place(const seat *s, int32_t token, int32_t place)
{
    const int32_t locals = s->c->experts / RANKS;
    bool seen[RANKS] = {false};
    if (token >= s->c->tokens[s->rank]) return -1;
    for (int32_t k = 0, next = 0; k < s->c->topk; k++) {
        const int32_t expert = case_expert(s->c, s->rank, token, k), rank = expert < 0 ? -1 : expert / locals;
        if (s->c->sum == EXPAR_LL_SUM_EXACT && k == place) return rank;
        if (s->c->sum == EXPAR_LL_SUM_EXACT || rank < 0 || seen[rank]) continue;
        seen[rank] = true;
        if (next++ == place) return rank;
    }
    return -1;
}

/* Rows of ranks that are not mapped come in pieces, rank by rank. */
static void check_row_pieces(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const uint64_t epoch = s->cpu->epochs[LL_COMBINE];
    int32_t next = 0;
    for (int32_t r = 0; r < RANKS; r++) {
        int32_t rows = 0, sums = 0;
        for (int32_t t = 0; t < s->c->tokens[s->rank]; t++) {
            rows += slots_on(s->c, s->rank, t, r);
            sums += slots_on(s->c, s->rank, t, r) > 0;
        }
        const int32_t due = s->c->sum == EXPAR_LL_SUM_EXACT ? rows : sums;
        const int32_t pieces = ll_is_far(s->cpu, r) ? ll_pieces(s->cpu->shape.exact ? rows : sums) : 0;
        for (int32_t piece = 0; piece < pieces; piece++) {
            const uint64_t flag_at = ll_return_flag_at(space, epoch, 0, next + piece);
            const uint64_t pitch = rows_in(due, piece) ? (uint32_t)ll_look(s->cpu, flag_at) : space->place_bytes;
            CHECK(pitch <= space->place_bytes, "rows of %llu bytes", (unsigned long long)pitch);
            check_piece(s, "rows", flag_at, rows_in(due, piece), pitch, epoch);
        }
        next += pieces;
    }
    for (; next < (int32_t)space->return_pieces; next++)
        check_piece(s, "no rank's rows", ll_return_flag_at(space, epoch, 0, next), 0, space->place_bytes, epoch);
}

static void check_rows(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const ll_shape *shape = &s->cpu->shape;
    const uint64_t epoch = s->cpu->epochs[LL_COMBINE];
    for (int32_t t = 0; t < s->c->max_tokens; t++)
        for (int32_t p = 0; p < space->places; p++) {
            const int32_t from = rank_of_place(s, t, p);
            const bool due = from >= 0 && !ll_is_far(s->cpu, from);
            const uint64_t place = ll_place_number(space, shape, epoch, 0, t, p);
            const uint64_t flag = ll_look(s->cpu, ll_row_flag_at(space, place));
            CHECK(is_filled(s, ll_row_at(space, place), space->place_bytes) == !due &&
                      ll_word_is_of(flag, epoch) == due,
                  "place %d of token %d, expected %s", (int)p, (int)t, due ? "a row" : "none");
            CHECK(is_filled(s, ll_row_at(space, ll_place_number(space, shape, epoch + 1, 0, t, p)), space->place_bytes),
                  "place %d of token %d in the other half", (int)p, (int)t);
        }
    if (s->cpu->far) check_row_pieces(s);
}

static void check_added(seat *s, uint64_t messages, uint64_t rows, uint64_t bytes)
{
    expar_ll_stats now = EXPAR_LL_STATS_INIT;
    CHECK_OK(expar_ll_get_stats(s->ll, &now));
    const uint64_t got[] = {now.dispatch_messages - s->before.dispatch_messages,
                            now.combine_rows - s->before.combine_rows, now.bytes_sent - s->before.bytes_sent};
    CHECK(got[0] == messages && got[1] == rows && got[2] == bytes,
          "%llu messages, %llu rows and %llu bytes are counted; expected %llu, %llu and %llu",
          (unsigned long long)got[0], (unsigned long long)got[1], (unsigned long long)got[2],
          (unsigned long long)messages, (unsigned long long)rows, (unsigned long long)bytes);
    s->before = now;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void trial_combine(seat *s, ll_round *round)
{
    uint64_t bytes;
    const uint64_t rows = rows_back(s->c, s->rank, &bytes);
    round_prepare_combine(round);
    round->combine.hook = 1;
    fill(s);
    const bool good = round_combine(round, s->ll);
    CHECK_OK(expar_group_barrier(s->group));
    check_rows(s);
    if (good) round_combine_hook(round);
    check_added(s, 0, rows, bytes);
}

/* Rows that were quantised are dispatched alone: the case's experts read FP32. */
static void trial_calls(seat *s, uint32_t number)
{
    ll_round *round = round_make(s->c, s->rank, number);
    round->dispatch.hook = 1;
    fill(s);
    bool good = round_dispatch(round, s->ll);
    CHECK_OK(expar_group_barrier(s->group));
    check_messages(s);
    good = good && round_dispatch_hook(round);
    check_added(s, messages_of(s->c, s->rank), 0, messages_of(s->c, s->rank) * message_bytes(s->c));
    if (s->c->format == EXPAR_LL_FORMAT_PLAIN && good) trial_combine(s, round);
    round_free(round);
}

static void trial(expar_group *group, void *shared)
{
    seat s = {.c = shared, .group = group, .rank = expar_group_rank(group)};
    const expar_ll_config config = case_config(s.c);
    if (!CHECK_OK(expar_ll_create(group, &config, &s.ll))) return;
    s.cpu = ll_cpu_of(s.ll->base.exec);
    for (uint32_t i = 0; i < ROUNDS && check_failures() == 0; i++)
        trial_calls(&s, i);
    if (check_failures()) expar_group_abort(group);
    CHECK_OK(expar_ll_destroy(s.ll));
}

static void run(ll_case c)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
    assert_true(ranks_run(&plan, trial, &c));
}

static void test_one_message_a_token_and_rank(void **state)
{
    (void)state;
    run((ll_case){EXAMPLE});
    run((ll_case){EXAMPLE, .weights = true, .threads = 3});
    run((ll_case){EXAMPLE, .weights = true, .sum = EXPAR_LL_SUM_REDUCED});
}

static void test_coded_rows(void **state)
{
    (void)state;
    run((ll_case){EXAMPLE, .logfmt = true});
    for (int format = EXPAR_LL_FORMAT_FP8; format <= EXPAR_LL_FORMAT_INT8; format++)
        run((ll_case){EXAMPLE, .format = (expar_ll_format)format, .weights = format % 2});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_message_a_token_and_rank),
        cmocka_unit_test(test_coded_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
