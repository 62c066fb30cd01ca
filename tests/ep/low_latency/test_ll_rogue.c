/* SPDX-License-Identifier: Apache-2.0 */
/* What a broken peer writes: units with counts, statuses, forms and stamps that cannot be, and messages whose flags and
 * headers name banks, experts, rows, tokens, places and regions that are none. Rank 1 makes no calls, and writes into
 * rank 0's memory by hand what a call would: by stores, or, where it is not mapped (reach.h), by the links that calls
 * use. Rank 0 says of whom it is and what it has seen, or with masks goes on without that rank, or leaves out what it
 * cannot place; it writes nowhere else. Likewise words of a clean: steps, calls and decisions that cannot be; and rows
 * that come back at pitches that are none. */
#include "ep/check.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/ll.h"
#include "ep/ranks.h"
#include "exec/cpu/low_latency/far.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <limits.h>
#include <string.h>

enum { RANKS = 2, VICTIM = 0, ROGUE = 1, TOKENS = 4, TOPK = 2, HIDDEN = 8, LOCALS = 2, GUARD = 0x5a };
/* Of the dispatch, and of the first combine: behind two that both have not made, whose read words are rank 1's. */
enum { SKIPPED = 2, FIRST = SKIPPED + 1 };
/* For whom nothing comes any more: there is no unit of the call's. */
#define LATE_MS 300
/* Pieces of rows that come back, in the whole buffer. */
#define RETURNS (TOKENS * TOPK / LL_PIECE_ROWS + RANKS)

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
    uint32_t unit_status, tag, route, region; /* tag, route: what is added to them */
    uint32_t bank;                            /* the flag's; 0: the second one */
    uint64_t stamp;                           /* added to the unit's epoch */
    int32_t returns;                          /* where rows go back to, which ranks alone tell that are not mapped */
    bool far;                                 /* only to these */
    uint64_t masker;
    expar_status status; /* of the dispatch; with masks EXPAR_ERR_PEER becomes EXPAR_OK, and rank 1 is masked */
    const char *text;    /* beside rank 1 */
    expar_status back;   /* of the combines */
    bool placed;         /* the row of expert 0 comes to its place */
} rogue_case;

/* A message as it should be, but for what a case is about. */
#define SOUND .messages = 1, .counts = {1, 0}, .experts = {0, -1}, .placed = true
#define STRAY .messages = 1, .counts = {1, 0}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* each entry is a sound message but for some members */
static const rogue_case cases[] = {
    {"too many messages", STRAY, .messages = TOKENS + 1, .status = EXPAR_ERR_PEER, .text = "5 messages, of 4 at most"},
    {"messages below 0", STRAY, .messages = -1, .status = EXPAR_ERR_PEER, .text = "-1 messages, of 4"},
    {"too many rows", STRAY, .counts = {1, 5}, .status = EXPAR_ERR_PEER, .text = "5 rows for expert 1 of rank 0, of 4"},
    {"rows without end", STRAY, .counts = {INT_MAX, INT_MAX}, .status = EXPAR_ERR_PEER,
     .text = "2147483647 rows for expert 0 of rank 0"},
    {"rows below 0", STRAY, .counts = {INT_MIN, 0}, .status = EXPAR_ERR_PEER, .text = "-2147483648 rows for expert 0"},
    {"rows back behind the last piece", STRAY, .far = true, .returns = RETURNS, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece 3 on, of 3 in all"},
    {"rows back without end", STRAY, .far = true, .returns = INT_MAX, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece 2147483647 on"},
    {"rows back before the first piece", STRAY, .far = true, .returns = -1, .status = EXPAR_ERR_PEER,
     .text = "rows back from piece -1 on"},
    {"rows back to the last piece", SOUND, .far = true, .returns = RETURNS - 1},
    {"no status", STRAY, .unit_status = 77, .status = EXPAR_ERR_REMOTE, .text = "refused its arguments: EXPAR_ERR_?"},
    {"a status below 0", STRAY, .unit_status = UINT32_MAX, .status = EXPAR_ERR_REMOTE,
     .text = "refused its arguments: EXPAR_ERR_?"},
    {"a text without end", STRAY, .unit_status = EXPAR_ERR_MEMORY, .status = EXPAR_ERR_REMOTE,
     .text = "refused its arguments: EXPAR_ERR_MEMORY: xxx"},
    {"another form", STRAY, .tag = 0x7fff0000, .status = EXPAR_ERR_MISMATCH,
     .text = "top-k is 32769 on rank 1 and 2 on rank 0"},
    {"no type", STRAY, .tag = 0x770, .status = EXPAR_ERR_MISMATCH, .text = "dtype of x is ? on rank 1"},
    {"another call's stamp", STRAY, .stamp = LL_UNIT_COPIES, .status = EXPAR_ERR_PEER,
     .text = "units of rank 1: 0 of 1"},
    {"a masker", STRAY, .stamp = LL_UNIT_COPIES, .masker = UINT64_MAX, .status = EXPAR_ERR_PEER, .text = "0 of 1"},
    {"another handle", SOUND, .route = 7, .back = EXPAR_ERR_MISMATCH},
    {"a message as it should be", SOUND, .token = 3},
    {"no bank", SOUND, .token = 3, .bank = UINT32_MAX},
    {"no region", SOUND, .token = 3, .region = UINT32_MAX},
    {"an expert that is none", STRAY, .experts = {LOCALS, INT_MAX}},
    {"an expert below -1", STRAY, .experts = {-2, INT_MIN}},
    {"a row behind the last", STRAY, .experts = {0, -1}, .rows = {1, 0}},
    {"a row without end", STRAY, .experts = {0, 1}, .rows = {INT_MAX, 0}},
    {"a row below 0", STRAY, .experts = {0, -1}, .rows = {INT_MIN, 0}},
    {"a token behind the last", SOUND, .token = TOKENS},
    {"a token without end", SOUND, .token = INT_MAX},
    {"a token below 0", SOUND, .token = INT_MIN},
    {"a place behind the last", SOUND, .place = TOPK},
    {"a place without end", SOUND, .place = INT_MAX},
    {"a place below 0", SOUND, .place = INT_MIN},
};
#pragma GCC diagnostic pop

typedef struct seat {
    expar_group *group;
    expar_ll *ll;
    ll_cpu *cpu;
    const char *name; /* of the case */
    const rogue_case *what;
    bool masks;
} seat;

/* ---- rank 1 ------------------------------------------------------------------------------------------------------ */

static void put_word(const seat *s, uint64_t at, uint64_t word)
{
    const link_flag flag = {.offset = s->cpu->buffer + at, .word = word};
    transport_batch batch = {0};
    if (!ll_is_far(s->cpu, VICTIM)) {
        ll_store(s->cpu, VICTIM, at, word);
        return;
    }
    CHECK_OK(link_set_flag(&s->cpu->far->ranks[VICTIM].link, &flag, &batch));
    CHECK_OK(link_quiet(s->cpu->sym, &batch));
}

static void put_bytes(const seat *s, uint64_t at, const void *source, size_t bytes)
{
    const link_data data = {.offset = s->cpu->buffer + at, .source = source, .bytes = bytes};
    transport_batch batch = {0};
    if (!ll_is_far(s->cpu, VICTIM)) {
        memcpy(ll_at(s->cpu, VICTIM, at), source, bytes);
        return;
    }
    CHECK_OK(link_put(&s->cpu->far->ranks[VICTIM].link, &data, &batch));
    CHECK_OK(link_quiet(s->cpu->sym, &batch));
}

static void put_unit(const seat *s, ll_kind kind, uint64_t epoch, const ll_form *form, uint32_t messages,
                     const int32_t *counts)
{
    const uint64_t unit = ll_unit_at(&s->cpu->space, kind, ROGUE, epoch);
    char text[EP_REFUSAL_TEXT];
    memset(text, 'x', sizeof text);
    put_word(s, unit + LL_UNIT_TAG * 8, ll_word(epoch, ll_form_tag(form) + (counts ? s->what->tag : 0)));
    put_word(s, unit + LL_UNIT_ROUTE * 8, ll_word(epoch, form->route));
    put_word(s, unit + LL_UNIT_MESSAGES * 8, ll_word(epoch, messages));
    for (int32_t l = 0; counts && l < LOCALS; l++)
        put_word(s, unit + (LL_UNIT_COUNTS + (uint64_t)l) * 8, ll_word(epoch, (uint32_t)counts[l]));
    if (counts && s->cpu->shape.unmapped)
        put_word(s, unit + (LL_UNIT_COUNTS + LOCALS) * 8, ll_word(epoch, (uint32_t)s->what->returns));
    if (s->what->unit_status) put_bytes(s, unit + ll_unit_text_at(&s->cpu->shape, kind), text, sizeof text);
    put_word(s, unit + LL_UNIT_STATUS * 8, ll_word(epoch, s->what->unit_status));
}

static void put_message(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const ll_shape *shape = &s->cpu->shape;
    const uint32_t bank = s->what->bank ? s->what->bank : 1;
    _Alignas(16) uint8_t message[512] = {0};
    ll_header *header = (ll_header *)message;
    const size_t bytes = space->header_bytes + HIDDEN * sizeof(float);
    if (!CHECK(bytes <= sizeof message, "a message has %zu bytes", bytes)) return;
    *header = (ll_header){.token = s->what->token, .place = s->what->place};
    memcpy(ll_header_experts(header), s->what->experts, sizeof s->what->experts);
    memcpy(ll_header_rows(header, TOPK), s->what->rows, sizeof s->what->rows);
    memset(message + space->header_bytes, 1, HIDDEN * sizeof(float));
    if (ll_is_far(s->cpu, VICTIM)) {
        const uint64_t flag = ll_message_piece_flag_at(space, shape, ROGUE, ll_half(FIRST), 0);
        put_bytes(s, flag - ep_round(bytes, EP_LINE_BYTES), message, bytes);
        put_word(s, flag, ll_word(FIRST, bank));
        return;
    }
    put_bytes(s, ll_message_at(space, shape, ROGUE, (int32_t)(bank % LL_BANKS), 0), message, bytes);
    put_word(s, ll_message_flag_at(space, shape, ROGUE, FIRST, 0), ll_word(FIRST, bank));
}

/* One dispatch and two combines, exact and reduced, whose halves are free. */
static void put_calls(const seat *s)
{
    const ll_form there = {.dtype = EXPAR_F32, .weights = 1, .topk = TOPK};
    put_message(s);
    put_unit(s, LL_DISPATCH, FIRST + s->what->stamp, &there, (uint32_t)s->what->messages, s->what->counts);
    for (int32_t sum = EXPAR_LL_EXACT; sum <= EXPAR_LL_REDUCED; sum++) {
        const uint64_t epoch = FIRST + (uint64_t)sum, before = epoch - LL_HALVES;
        const ll_form back = {.dtype = EXPAR_F32, .sum = sum, .topk = TOPK, .route = ll_stamp(FIRST) + s->what->route};
        put_word(s, ll_read_at(&s->cpu->space, LL_COMBINE, ROGUE, before), ll_word(before, s->what->region));
        put_unit(s, LL_COMBINE, epoch, &back, s->what->region, NULL);
    }
    if (s->masks) put_word(s, ll_masker_at(&s->cpu->space, ROGUE), s->what->masker);
}

/* Each message is answered, with a sum of 0 where it names no rows, at the places of its token; or, by a rank that is
   not mapped, where its source has asked for it. If that is one all else is taken to be as it was; if it is none,
   nothing at all may have been written. */
static void check_guard(const seat *s)
{
    const ll_space *space = &s->cpu->space;
    const uint8_t *there = ll_here(s->cpu, space->messages);
    const bool far = ll_is_far(s->cpu, VICTIM);
    const uint64_t bytes = space->total_bytes - space->messages;
    const uint64_t rows = (far ? space->returns : space->rows) - space->messages;
    const bool named = s->what->token >= 0 && s->what->token < TOKENS && s->what->place == 0;
    const bool answered = far ? s->what->status == EXPAR_OK : named;
    for (uint64_t i = 0; i < (answered ? rows : bytes); i++)
        if (!CHECK(there[i] == GUARD, "%s: byte %llu of the %s was written to", s->name, (unsigned long long)i,
                   i < rows ? "messages" : "places"))
            return;
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

static void check_masked(const seat *s, bool wanted)
{
    int32_t masks[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(masks, EXPAR_I32, RANKS);
    if (!s->masks) return;
    CHECK_OK(expar_ll_mask_query(s->ll, &status, NULL));
    CHECK(masks[ROGUE] == wanted, "%s: the mask is %d", s->name, masks[ROGUE]);
}

static void check_error(const seat *s, expar_status expected, expar_status got, const char *text)
{
    const bool named =
        expected == EXPAR_OK || (strstr(expar_last_error(), "rank 1") && strstr(expar_last_error(), text ? text : ""));
    CHECK(got == expected && named, "%s: %s: %s", s->name, expar_status_string(got), expar_last_error());
}

static void combine(const seat *s, ll_round *round)
{
    round_prepare_combine(round);
    for (int sum = EXPAR_LL_EXACT; sum <= EXPAR_LL_REDUCED; sum++) {
        round->combine.sum = (expar_ll_sum)sum;
        check_error(s, s->what->back, expar_ll_combine(s->ll, &round->combine, &round->combined), NULL);
        expar_ep_output_release(round->combined.output);
        round->combined.output = NULL;
    }
}

static void receive(const seat *s)
{
    ll_round *round = round_make(&quiet, VICTIM, 0);
    float out_x[LOCALS][RANKS * TOKENS][HIDDEN];
    char whole[EP_REFUSAL_TEXT + 1] = "";
    const bool lost = s->masks && s->what->status == EXPAR_ERR_PEER;
    memset(out_x, GUARD, sizeof out_x);
    memset(whole, 'x', EP_REFUSAL_TEXT); /* and what stands behind it */
    round->dispatch.out_x = (expar_tensor){.data = out_x,
                                           .dtype = EXPAR_F32,
                                           .ndim = 3,
                                           .shape = {LOCALS, RANKS * TOKENS, HIDDEN},
                                           .strides = {RANKS * TOKENS * HIDDEN, HIDDEN, 1},
                                           .device = {.type = EXPAR_CPU}};
    if (s->what->stamp) kind_set_timeout(s->group, LATE_MS);
    const expar_status status = expar_ll_dispatch(s->ll, &round->dispatch, &round->received);
    if (s->what->stamp) kind_set_timeout(s->group, RANKS_TIMEOUT_MS);
    check_error(s, lost ? EXPAR_OK : s->what->status, status, s->what->text);
    CHECK(!strstr(expar_last_error(), whole), "%s: the text has no end", s->name);
    check_masked(s, lost);
    const uint8_t *bytes = (const uint8_t *)out_x;
    for (size_t i = 0; i < sizeof out_x; i++)
        if (!CHECK(bytes[i] == (i < sizeof out_x[0][0] && s->what->placed ? 1 : GUARD), "%s: byte %zu of recv_x",
                   s->name, i))
            break;
    if (status == EXPAR_OK) combine(s, round);
    round_free(round);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

static bool begin(seat *s)
{
    expar_ll_config config = case_config(&quiet);
    config.masking = s->masks;
    if (!CHECK_OK(expar_ll_create(s->group, &config, &s->ll))) return false;
    s->cpu = ll_cpu_of(s->ll->exec);
    return true;
}

static void play_case(seat *s)
{
    const bool rogue = expar_group_rank(s->group) == ROGUE;
    if (!begin(s)) return;
    if (s->what->far && !s->cpu->shape.unmapped) {
        CHECK_OK(expar_ll_destroy(s->ll));
        return;
    }
    hold_skip(s->ll, SKIPPED);
    memset(ll_here(s->cpu, s->cpu->space.messages), GUARD,
           (size_t)(s->cpu->space.total_bytes - s->cpu->space.messages));
    CHECK_OK(expar_group_barrier(s->group));
    if (rogue) put_calls(s);
    CHECK_OK(expar_group_barrier(s->group));
    if (!rogue) receive(s);
    CHECK_OK(expar_group_barrier(s->group));
    if (rogue) check_guard(s);
    CHECK_OK(expar_ll_abandon(s->ll));
}

static void play(expar_group *group, void *shared)
{
    seat s = {.group = group, .masks = *(const bool *)shared};
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !check_failures(); i++) {
        s.what = &cases[i];
        s.name = s.what->name;
        play_case(&s);
    }
}

/* ---- cleans ------------------------------------------------------------------------------------------------------ */

/* What rank 1 says, of which both attempts are the first; as LL_CLEAN_* have it. */
typedef struct clean_case {
    const char *name;
    uint64_t stage, decided, calls, epoch, refusal, view;
    bool late; /* what more would have to come does not */
    bool in;   /* rank 1 is in it */
} clean_case;

#define ATTEMPT ((uint64_t)1 << 32)
#define BOTH    (ATTEMPT | 1)
static const clean_case cleans[] = {
    {"views that are the same", .stage = ATTEMPT | 2, .view = BOTH, .in = true},
    {"a decision", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .in = true},
    {"no attempt", .stage = 2, .view = BOTH, .late = true},
    {"no attempt of mine", .stage = ATTEMPT | 2, .view = ATTEMPT | 7, .late = true},
    {"a step without end", .stage = ATTEMPT | UINT32_MAX, .view = ATTEMPT | 7},
    {"calls without end", .stage = ATTEMPT | 2, .view = BOTH, .calls = UINT64_MAX},
    {"epochs without end", .stage = ATTEMPT | 2, .view = BOTH, .epoch = UINT64_MAX},
    {"a decision of no attempt", .stage = ATTEMPT | 2, .decided = ATTEMPT, .view = BOTH},
    {"decided epochs without end", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .epoch = UINT64_MAX - 1},
    {"a refusal of nobody", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .refusal = (uint64_t)RANKS << 32 | 2},
    {"a refusal of rank -1", .stage = ATTEMPT | 2, .decided = 1, .view = BOTH, .refusal = UINT64_MAX},
};

static void put_clean_word(const seat *s, int32_t word, uint64_t value)
{
    put_word(s, ll_clean_at(&s->cpu->space, ROGUE, word), value);
}

static void put_clean(const seat *s, const clean_case *what)
{
    const int32_t result = LL_CLEAN_SET + LL_CLEAN_SETS * (RANKS / 2);
    for (int32_t set = 0; set < LL_CLEAN_SETS; set++)
        put_clean_word(s, LL_CLEAN_SET + set * (RANKS / 2), what->view);
    for (int32_t i = 0; i < LL_CLEAN_RESULTS; i++)
        put_clean_word(s, result + i, i == 0 ? what->calls : i <= LL_KINDS ? what->epoch : what->refusal);
    put_clean_word(s, LL_CLEAN_CALLS, what->calls);
    for (int32_t kind = 0; kind < LL_KINDS; kind++)
        put_clean_word(s, LL_CLEAN_EPOCHS + kind, what->epoch);
    put_clean_word(s, LL_CLEAN_DECIDED, what->decided);
    put_clean_word(s, LL_CLEAN_STAGE, what->stage);
}

static void play_clean(seat *s, const clean_case *what)
{
    const bool rogue = expar_group_rank(s->group) == ROGUE;
    s->name = what->name;
    if (!begin(s)) return;
    CHECK_OK(expar_group_barrier(s->group));
    if (rogue) put_clean(s, what);
    CHECK_OK(expar_group_barrier(s->group));
    if (!rogue) {
        if (what->late) kind_set_timeout(s->group, LATE_MS);
        CHECK(CHECK_OK(expar_ll_mask_clean(s->ll)), "%s", s->name);
        kind_set_timeout(s->group, RANKS_TIMEOUT_MS);
        check_masked(s, !what->in);
    }
    CHECK_OK(expar_group_barrier(s->group));
    CHECK_OK(expar_ll_abandon(s->ll));
}

static void play_cleans(expar_group *group, void *shared)
{
    seat s = {.group = group, .masks = true};
    (void)shared;
    for (size_t i = 0; i < sizeof cleans / sizeof *cleans && !check_failures(); i++)
        play_clean(&s, &cleans[i]);
}

static void test_cleans(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, play_cleans, NULL));
}

/* ---- rows back --------------------------------------------------------------------------------------------------- */

/* Of rank 0, whose tokens all go to rank 1's expert. */
enum { WIDE = 40, RETURNED = 3 };
static const ll_case returned = {
    .ranks = RANKS, .max_tokens = TOKENS, .hidden = WIDE, .topk = 1, .experts = RANKS, .tokens = {RETURNED, 0}};
/* What rank 1 says, whose rows lie at the pitch of a place, which is 192 bytes. */
static const uint32_t pitches[] = {192, 0, 1, 100, 256, 4096, UINT32_MAX, UINT32_MAX - EP_LINE_BYTES + 1};

static void put_rows(const seat *s, uint32_t pitch)
{
    const ll_form form = {.dtype = EXPAR_F32, .sum = EXPAR_LL_EXACT, .topk = 1, .route = ll_stamp(1)};
    const uint64_t flag = ll_return_flag_at(&s->cpu->space, 1, 0, 0), place = s->cpu->space.place_bytes;
    for (int32_t row = 0; row < RETURNED; row++) {
        float values[WIDE];
        for (int32_t h = 0; h < WIDE; h++)
            values[h] = (float)(row + 1);
        put_bytes(s, flag - (uint64_t)(RETURNED - row) * place, values, sizeof values);
    }
    put_word(s, flag, ll_word(1, pitch));
    put_unit(s, LL_COMBINE, 1, &form, 0, NULL);
}

static void receive_rows(const seat *s, ll_round *round, uint32_t pitch)
{
    round_prepare_combine(round);
    if (!CHECK_OK(expar_ll_combine(s->ll, &round->combine, &round->combined))) return;
    const float *y = round->combined.y.data;
    for (int32_t i = 0; i < RETURNED * WIDE; i++)
        if (!CHECK(y[i] == (float)(i / WIDE + 1), "a pitch of %u: y[%d] is %g", pitch, i, (double)y[i])) return;
}

static void play_pitch(seat *s, uint32_t pitch)
{
    expar_ll_config config = case_config(&returned);
    config.unmapped = 1;
    if (!CHECK_OK(expar_ll_create(s->group, &config, &s->ll))) return;
    s->cpu = ll_cpu_of(s->ll->exec);
    const bool rogue = expar_group_rank(s->group) == ROGUE;
    ll_round *round = round_make(&returned, rogue ? ROGUE : VICTIM, 0);
    for (int32_t t = 0; t < RETURNED && !rogue; t++) {
        ((int32_t *)round->idx)[t] = ROGUE;
        round->weights[t] = 1;
    }
    CHECK_OK(expar_ll_dispatch(s->ll, &round->dispatch, &round->received));
    if (rogue) put_rows(s, pitch);
    CHECK_OK(expar_group_barrier(s->group));
    if (!rogue) receive_rows(s, round, pitch);
    CHECK_OK(expar_group_barrier(s->group));
    round_free(round);
    CHECK_OK(expar_ll_abandon(s->ll));
}

static void play_pitches(expar_group *group, void *shared)
{
    static const rogue_case sound = {0};
    seat s = {.group = group, .what = &sound};
    (void)shared;
    for (size_t i = 0; i < sizeof pitches / sizeof *pitches && !check_failures(); i++)
        play_pitch(&s, pitches[i]);
}

static void test_pitches(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, play_pitches, NULL));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void run(bool masks)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, play, &masks));
}

static void test_rogues(void **state)
{
    (void)state;
    run(false);
}

static void test_rogues_and_masks(void **state)
{
    (void)state;
    run(true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rogues), cmocka_unit_test(test_rogues_and_masks),
                                       cmocka_unit_test(test_cleans), cmocka_unit_test(test_pitches)};
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
