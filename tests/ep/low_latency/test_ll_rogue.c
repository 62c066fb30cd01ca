/* SPDX-License-Identifier: Apache-2.0 */
/* Writes of a broken peer. Headers have counts, statuses, forms and stamps that cannot be. Flags and headers of
 * messages name slots, experts, rows, tokens, places and regions that are none. Rank 1 makes no calls, and writes into
 * rank 0's memory by hand what a call would (rogue.h). Rank 0 says of whom it is and what it has seen. With masks it
 * goes on without that rank, or leaves out what it cannot place. It writes nowhere else. Likewise words of a clean:
 * steps, calls and decisions that cannot be; and rows that come back at pitches that are none. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/rogue.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { RANKS = ROGUE_RANKS, VICTIM = ROGUE_VICTIM, ROGUE = ROGUE_PEER, TOKENS = ROGUE_TOKENS, TOPK = ROGUE_TOPK };
enum { HIDDEN = 8, LOCALS = ROGUE_LOCALS, GUARD = 0x5a };
/* The epochs of the dispatch, and of the first combine: after two that both have not made, whose acknowledgements are
   rank 1's. */
enum { SKIPPED = 2, FIRST = SKIPPED + 1 };
/* A rank for which nothing comes any more: there is no header of the call's. */
#define LATE_MS 1500 /* a simulated GPU on busy cores needs a part of that to come to its wait */

/* Rank 0 has no tokens, so it awaits no rows. */
static const ll_case quiet = {.ranks = RANKS,
                              .max_tokens = TOKENS,
                              .hidden = HIDDEN,
                              .topk = TOPK,
                              .experts = LOCALS * RANKS,
                              .tokens = {0, TOKENS},
                              .weights = true};

typedef struct seat {
    expar_group *group;
    expar_ll *ll;
    const ll_space *space; /* of ll, as the next one */
    const ll_shape *shape;
    const char *name; /* of the case */
    rogue_case what;
    bool masks, hooks; /* of the buffer; of rank 0's calls */
} seat;

/* ---- rank 1 ------------------------------------------------------------------------------------------------------ */

static void put_header_word(const seat *s, uint64_t unit, int32_t word, uint64_t epoch, uint32_t value)
{
    rogue_put_word(s->ll, unit + (uint64_t)word * 8, ll_word(epoch, value));
}

/* Why rank 1 refuses, without an end. */
static void make_reason(char text[EP_REJECTION_TEXT])
{
    static const char begin[] = "rank 1 ";
    memset(text, 'x', EP_REJECTION_TEXT);
    memcpy(text, begin, sizeof begin - 1);
}

static void put_message_header(const seat *s, ll_kind kind, uint64_t epoch, const ll_form *form, uint32_t messages,
                               const int32_t *counts)
{
    const uint64_t unit = ll_header_at(s->space, kind, ROGUE, epoch);
    const uint32_t status =
        kind == LL_COMBINE && s->what.back_header_status ? s->what.back_header_status : s->what.header_status;
    char text[EP_REJECTION_TEXT];
    make_reason(text);
    put_header_word(s, unit, LL_HEADER_TAG, epoch, ll_form_tag(form) + (counts ? s->what.tag : 0));
    put_header_word(s, unit, LL_HEADER_ROUTE, epoch, form->route);
    put_header_word(s, unit, LL_HEADER_MESSAGES, epoch, messages);
    for (int32_t l = 0; counts && l < LOCALS; l++)
        put_header_word(s, unit, LL_HEADER_COUNTS + l, epoch, (uint32_t)counts[l]);
    if (counts && s->shape->unmapped)
        put_header_word(s, unit, LL_HEADER_COUNTS + LOCALS, epoch, (uint32_t)s->what.returns);
    if (status) rogue_put(s->ll, unit + ll_header_text_at(s->shape, kind), text, sizeof text);
    put_header_word(s, unit, LL_HEADER_STATUS, epoch, status);
}

/* As words, each of 32 bits of it. */
static void put_in_words(const seat *s, const uint8_t *message, size_t bytes)
{
    const uint64_t at = ll_word_message_at(s->space, s->shape, ROGUE, FIRST, 0);
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t value;
        memcpy(&value, message + 4 * i, sizeof value);
        rogue_put_word(s->ll, at + 8 * i, ll_word(FIRST, value));
    }
}

/* It lies in the second slot, which is of that parity, too; a flag that names none is taken for that. */
static void put_message(const seat *s)
{
    _Alignas(16) uint8_t message[512] = {0};
    ll_header *header = (ll_header *)message;
    const uint64_t header_bytes = s->space->header_bytes;
    const size_t bytes = header_bytes + HIDDEN * sizeof(float);
    const int32_t bank = ll_slot_of_epoch(FIRST);
    uint64_t flag = ll_message_flag_at(s->space, s->shape, ROGUE, FIRST, 0);
    uint64_t at = ll_message_at(s->space, s->shape, ROGUE, bank, 0);
    if (!CHECK(bytes <= sizeof message, "a message has %zu bytes", bytes)) return;
    *header = (ll_header){.token = s->what.token, .place = s->what.place};
    memcpy(ll_header_experts(header), s->what.experts, sizeof s->what.experts);
    memcpy(ll_header_rows(header, TOPK), s->what.rows, sizeof s->what.rows);
    memset(message + header_bytes, 1, HIDDEN * sizeof(float));
    if (s->what.marks & LL_HEADER_IN_WORDS && s->shape->word_tokens) {
        put_in_words(s, message, bytes);
        return;
    }
    if (rogue_is_far(s->ll)) {
        flag = ll_message_piece_flag_at(s->space, s->shape, ROGUE, bank, 0);
        at = flag - ep_round(bytes, EP_LINE_BYTES);
    }
    rogue_put(s->ll, at, message, bytes);
    rogue_put_word(s->ll, flag, ll_word(FIRST, s->what.bank ? s->what.bank : (uint32_t)bank));
}

/* One dispatch and two combines, exact and reduced, whose slots are free. */
static void put_calls(const seat *s)
{
    const rogue_case *what = &s->what;
    const ll_form there = {.dtype = EXPAR_F32, .weights = 1, .topk = TOPK};
    put_message(s);
    put_message_header(s, LL_DISPATCH, FIRST + what->stamp, &there, (uint32_t)what->messages | what->marks,
                       what->counts);
    for (int32_t sum = EXPAR_LL_SUM_EXACT; sum <= EXPAR_LL_SUM_REDUCED; sum++) {
        const uint64_t epoch = FIRST + (uint64_t)sum, before = epoch - LL_SLOTS;
        const ll_form back = {.dtype = EXPAR_F32, .sum = sum, .topk = TOPK, .route = ll_stamp(FIRST) + what->route};
        rogue_put_word(s->ll, ll_read_at(s->space, LL_COMBINE, ROGUE, before), ll_word(before, what->region));
        put_message_header(s, LL_COMBINE, epoch, &back, what->region, NULL);
    }
    if (s->masks) rogue_put_word(s->ll, ll_masker_at(s->space, ROGUE), what->masker);
}

/* ---- what rank 0 has written to rank 1 --------------------------------------------------------------------------- */

/* A part of the buffer: places of tokens, of so many bytes each, or what nothing is written to. */
typedef struct part {
    const char *name;
    uint64_t begin, end, place_bytes; /* place_bytes 0: nothing */
    int32_t tokens, token;            /* the one whose places may be written to; -1: none */
    uint8_t value;                    /* that it was filled with */
} part;

static void check_part(const seat *s, const uint8_t *bytes, const part *p)
{
    for (uint64_t i = p->begin; i < p->end; i++) {
        const uint64_t row = p->place_bytes ? (i - p->begin) / p->place_bytes / (uint64_t)s->space->places : 0;
        const bool may = p->place_bytes && p->token >= 0 && row % (uint64_t)p->tokens == (uint64_t)p->token;
        if (!CHECK(may || bytes[i] == p->value, "%s: byte %llu of the %s was written to", s->name,
                   (unsigned long long)(i - p->begin), p->name))
            return;
    }
}

/* Each message is answered, with a sum of 0 where it names no rows, at the places of its token. A rank that is not
   mapped answers where its source has asked for it. */
static void check_guard(const seat *s)
{
    const ll_space *space = s->space;
    const int32_t places = space->places, words = s->shape->word_tokens;
    const bool far = rogue_is_far(s->ll), fits = s->what.place >= 0 && s->what.place < places && s->what.token >= 0;
    const int32_t named = fits && s->what.token < TOKENS && !far ? s->what.token : -1;
    const int32_t named_in_words = fits && s->what.token < words && s->what.marks ? s->what.token : -1;
    const uint64_t all_rows = (uint64_t)s->shape->regions * LL_SLOTS * TOKENS * (uint64_t)places;
    const part parts[] = {
        {"message flags", space->message_flags, space->row_flags, 0, 1, -1, 0},
        {"row flags", space->row_flags, space->row_flags + 8 * all_rows, 8, TOKENS, named, 0},
        {"weight flags", space->weight_flags, space->maskers, 0, 1, -1, 0},
        {"messages in words", space->word_messages, space->word_rows, 0, 1, -1, 0},
        {"rows in words", space->word_rows, space->words_bytes, 2 * space->place_bytes, words, named_in_words, 0},
        {"weights and messages", space->weights, space->rows, 0, 1, -1, GUARD},
        {"places", space->rows, space->rows + all_rows * space->place_bytes, space->place_bytes, TOKENS, named, GUARD},
        {"rows back", space->returns, space->total_bytes, 0, 1, -1, GUARD}};
    uint8_t *bytes = malloc(space->total_bytes);
    if (!bytes) abort();
    rogue_fetch(s->ll, bytes, 0, space->total_bytes);
    for (size_t i = 0; i + (far && s->what.status == EXPAR_OK) < sizeof parts / sizeof *parts; i++)
        check_part(s, bytes, &parts[i]);
    free(bytes);
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
    char whole[EP_REJECTION_TEXT + 1] = ""; /* and what stands after it */
    make_reason(whole);
    CHECK(!strstr(expar_last_error(), whole), "%s: the text has no end", s->name);
}

/* With masks this rank goes on without one whose error it is. */
static expar_status told_of(const seat *s, expar_status status)
{
    return s->masks && status == EXPAR_ERR_PEER ? EXPAR_OK : status;
}

static expar_status make_dispatch(const seat *s, ll_round *round)
{
    round->dispatch.hook = s->hooks;
    const expar_status status = expar_ll_dispatch(s->ll, &round->dispatch, &round->received);
    return status == EXPAR_OK && s->hooks ? expar_ll_hook_call(round->received.hook, NULL) : status;
}

static expar_status make_combine(const seat *s, ll_round *round)
{
    round->combine.hook = s->hooks;
    const expar_status status = expar_ll_combine(s->ll, &round->combine, &round->combined);
    return status == EXPAR_OK && s->hooks ? expar_ll_hook_call(round->combined.hook, NULL) : status;
}

static void combine(const seat *s, ll_round *round)
{
    round_prepare_combine(round);
    for (int sum = EXPAR_LL_SUM_EXACT; sum <= EXPAR_LL_SUM_REDUCED; sum++) {
        round->combine.sum = (expar_ll_sum)sum;
        rogue_guard_lent(GUARD);
        check_error(s, told_of(s, s->what.back), make_combine(s, round), NULL);
        CHECK(rogue_lent_is_sound(GUARD), "%s: combine %d", s->name, sum);
        expar_ep_output_release(round->combined.output);
        expar_ll_hook_release(round->combined.hook);
        round->combined = (expar_ll_combine_result)EXPAR_LL_COMBINE_RESULT_INIT;
    }
}

/* Rows of this rank's experts, and what stands before and after them. */
typedef float expert_rows[RANKS * TOKENS][HIDDEN];
typedef struct guarded_rows {
    expert_rows before, x[LOCALS], after;
} guarded_rows;

static void check_rows(const seat *s, const guarded_rows *rows)
{
    const uint8_t *bytes = (const uint8_t *)rows, *first = (const uint8_t *)rows->x[0][0];
    for (size_t i = 0; i < sizeof *rows; i++) {
        const bool here = bytes + i >= first && bytes + i < first + sizeof rows->x[0][0];
        if (!CHECK(bytes[i] == (here && s->what.placed ? 1 : GUARD), "%s: byte %zu of recv_x and its guards", s->name,
                   i))
            return;
    }
}

static expar_tensor rows_tensor(guarded_rows *rows)
{
    return (expar_tensor){.data = rows->x,
                          .dtype = EXPAR_F32,
                          .ndim = 3,
                          .shape = {LOCALS, RANKS * TOKENS, HIDDEN},
                          .strides = {RANKS * TOKENS * HIDDEN, HIDDEN, 1},
                          .device = {.type = EXPAR_CPU}};
}

/* A rank without which this one goes on brings nothing, and nobody waits for it. */
static void go_on(const seat *s)
{
    ll_round *round = round_make(&quiet, VICTIM, 1);
    CHECK(CHECK_OK(make_dispatch(s, round)), "%s: behind it", s->name);
    for (int32_t l = 0; l < LOCALS && round->received.output; l++)
        CHECK(((const int32_t *)round->received.recv_count.data)[l] == 0, "%s: rows behind it", s->name);
    if (round->received.output) combine(s, round);
    round_free(round);
}

static void receive(const seat *s)
{
    ll_round *round = round_make(&quiet, VICTIM, 0);
    guarded_rows rows;
    const bool lost = s->masks && s->what.status == EXPAR_ERR_PEER;
    const bool lost_back = s->masks && s->what.back == EXPAR_ERR_PEER;
    memset(&rows, GUARD, sizeof rows);
    round->dispatch.out_x = rows_tensor(&rows);
    rogue_guard_lent(GUARD);
    const bool found_out = s->what.stamp && !s->masks && rogue_is_found_out();
    if (s->what.stamp && !found_out) kind_set_timeout(s->group, LATE_MS);
    const expar_status status = make_dispatch(s, round);
    if (s->what.stamp && !found_out) kind_set_timeout(s->group, RANKS_TIMEOUT_MS);
    if (found_out) CHECK_TEXT("rank 1's message header holds 0x", "its memory has been overwritten");
    check_error(s, told_of(s, s->what.status), status, s->what.text);
    CHECK(rogue_lent_is_sound(GUARD), "%s", s->name);
    check_masked(s, lost);
    check_rows(s, &rows);
    if (status == EXPAR_OK) combine(s, round);
    check_masked(s, lost || lost_back);
    if (lost || lost_back) go_on(s);
    CHECK(hold_device_serves(VICTIM), "%s: the device", s->name);
    round_free(round);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Rank 0 has received. In memory that all ranks share: set to 0 by rank 0 ahead of a barrier, then to 1 (release); rank
   1 looks (acquire). */
static _Atomic uint32_t *through;

/* Where rank 0 waits in vain and gives up, rank 1 waits for it by no call. The two would wait for each other in a
   circle, and a rank of a circle learns that it has been given up. */
static void await_through(const seat *s)
{
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    const struct timespec moment = {.tv_nsec = 1000000};
    while (s->what.stamp && !atomic_load_explicit(through, memory_order_acquire)) {
        if (!CHECK(ranks_clock_ms() < deadline_ms, "%s: rank 0 does not come", s->name)) return;
        nanosleep(&moment, NULL);
    }
}

static bool begin(seat *s)
{
    expar_ll_config config = case_config(&quiet);
    config.masking = s->masks;
    if (!CHECK_OK(expar_ll_create(s->group, &config, &s->ll))) return false;
    s->space = rogue_space(s->ll);
    s->shape = rogue_shape(s->ll);
    return true;
}

/* Where no batch is small its marks make a number of messages that cannot be. */
static void read_marks(seat *s)
{
    if (!s->what.marks || s->shape->word_tokens) return;
    s->what.status = EXPAR_ERR_PEER;
    s->what.text = "messages, of 20 at most";
    s->what.placed = false;
}

static void trial_case(seat *s)
{
    const bool rogue = expar_group_rank(s->group) == ROGUE;
    if (!begin(s)) return;
    if (s->what.far && !s->shape->unmapped) {
        CHECK_OK(expar_ll_destroy(s->ll));
        return;
    }
    read_marks(s);
    hold_skip(s->ll, SKIPPED);
    rogue_fill(s->ll, s->space->weights, GUARD, s->space->total_bytes - s->space->weights);
    if (!rogue) atomic_store_explicit(through, 0, memory_order_relaxed); /* the barrier was passed */
    CHECK_OK(expar_group_barrier(s->group));
    if (rogue) put_calls(s);
    CHECK_OK(expar_group_barrier(s->group));
    if (!rogue) receive(s);
    if (!rogue) atomic_store_explicit(through, 1, memory_order_release);
    if (rogue) await_through(s);
    CHECK_OK(expar_group_barrier(s->group));
    if (rogue) check_guard(s);
    CHECK_OK(expar_group_barrier(s->group)); /* who abandons writes to others */
    CHECK_OK(expar_ll_abandon(s->ll));
}

static void trial(expar_group *group, void *shared)
{
    seat s = *(const seat *)shared;
    s.group = group;
    for (size_t i = 0; i < rogue_count && !check_failures(); i++) {
        s.what = rogue_cases[i];
        s.name = s.what.name;
        trial_case(&s);
    }
}

/* ---- cleans ------------------------------------------------------------------------------------------------------ */

static void put_clean(const seat *s, const rogue_clean *what)
{
    const int32_t result = LL_CLEAN_SET + LL_CLEAN_SETS * (RANKS / 2);
    for (int32_t set = 0; set < LL_CLEAN_SETS; set++)
        rogue_put_clean_word(s->ll, LL_CLEAN_SET + set * (RANKS / 2), what->view);
    for (int32_t i = 0; i < LL_CLEAN_RESULTS; i++)
        rogue_put_clean_word(s->ll, result + i, i == 0 ? what->calls : i <= LL_KINDS ? what->epoch : what->rejection);
    rogue_put_clean_word(s->ll, LL_CLEAN_CALLS, what->calls);
    for (int32_t kind = 0; kind < LL_KINDS; kind++)
        rogue_put_clean_word(s->ll, LL_CLEAN_EPOCHS + kind, what->epoch);
    rogue_put_clean_word(s->ll, LL_CLEAN_DECIDED, what->decided);
    rogue_put_clean_word(s->ll, LL_CLEAN_STAGE, what->stage);
}

static void trial_clean(seat *s, const rogue_clean *what)
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
        if (!what->in) go_on(s);
    }
    CHECK_OK(expar_group_barrier(s->group));
    CHECK_OK(expar_ll_abandon(s->ll));
}

static void trial_cleans(expar_group *group, void *shared)
{
    seat s = {.group = group, .masks = true};
    (void)shared;
    for (size_t i = 0; i < rogue_clean_count && !check_failures(); i++)
        trial_clean(&s, &rogue_cleans[i]);
}

static void test_cleans(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, trial_cleans, NULL));
}

/* ---- rows back --------------------------------------------------------------------------------------------------- */

/* The answers for rank 0, whose tokens all go to rank 1's expert. */
enum { WIDE = 40, RETURNED = 3 };
static const ll_case returned = {
    .ranks = RANKS, .max_tokens = TOKENS, .hidden = WIDE, .topk = 1, .experts = RANKS, .tokens = {RETURNED, 0}};
/* The header of rank 1, whose rows lie at the pitch of a place, which is 192 bytes. */
static const uint32_t pitches[] = {192, 0, 1, 100, 256, 4096, UINT32_MAX, UINT32_MAX - EP_LINE_BYTES + 1};

static void put_rows(const seat *s, uint32_t pitch)
{
    const ll_form form = {.dtype = EXPAR_F32, .sum = EXPAR_LL_SUM_EXACT, .topk = 1, .route = ll_stamp(1)};
    const uint64_t flag = ll_return_flag_at(s->space, 1, 0, 0), place = s->space->place_bytes;
    for (int32_t row = 0; row < RETURNED; row++) {
        float values[WIDE];
        for (int32_t h = 0; h < WIDE; h++)
            values[h] = (float)(row + 1);
        rogue_put(s->ll, flag - (uint64_t)(RETURNED - row) * place, values, sizeof values);
    }
    rogue_put_word(s->ll, flag, ll_word(1, pitch));
    put_message_header(s, LL_COMBINE, 1, &form, 0, NULL);
}

static void receive_rows(const seat *s, ll_round *round, uint32_t pitch)
{
    round_prepare_combine(round);
    if (!CHECK_OK(expar_ll_combine(s->ll, &round->combine, &round->combined))) return;
    const float *y = round->combined.y.data;
    for (int32_t i = 0; i < RETURNED * WIDE; i++)
        if (!CHECK(y[i] == (float)(i / WIDE + 1), "a pitch of %u: y[%d] is %g", pitch, i, (double)y[i])) return;
}

static void trial_pitch(seat *s, uint32_t pitch)
{
    expar_ll_config config = case_config(&returned);
    config.unmapped = 1;
    if (!CHECK_OK(expar_ll_create(s->group, &config, &s->ll))) return;
    s->space = rogue_space(s->ll);
    s->shape = rogue_shape(s->ll);
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

static void trial_pitches(expar_group *group, void *shared)
{
    seat s = {.group = group};
    (void)shared;
    for (size_t i = 0; i < sizeof pitches / sizeof *pitches && !check_failures(); i++)
        trial_pitch(&s, pitches[i]);
}

static void test_pitches(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, trial_pitches, NULL));
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void run(seat how)
{
    const ranks_plan plan = {.kind = kind_of_ranks, .size = RANKS};
    assert_true(ranks_run(&plan, trial, &how));
}

static void test_rogues(void **state)
{
    (void)state;
    run((seat){0});
}

static void test_rogues_and_masks(void **state)
{
    (void)state;
    run((seat){.masks = true});
}

static void test_rogues_and_hooks(void **state)
{
    (void)state;
    run((seat){.hooks = true});
}

static void test_rogues_and_hooks_and_masks(void **state)
{
    (void)state;
    run((seat){.hooks = true, .masks = true});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rogues),           cmocka_unit_test(test_rogues_and_masks),
        cmocka_unit_test(test_rogues_and_hooks), cmocka_unit_test(test_rogues_and_hooks_and_masks),
        cmocka_unit_test(test_cleans),           cmocka_unit_test(test_pitches)};
    kind_read(argc, argv);
    through = mmap(NULL, sizeof *through, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (through == MAP_FAILED) return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
