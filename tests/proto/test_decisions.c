/* SPDX-License-Identifier: Apache-2.0 */
/* Meanings of words between ranks (proto/decisions.h), against tables: each row is a state of the named model, or of a
 * rank that says what cannot be. */
#include "base/base.h"
#include "proto/decisions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static void statuses_are_the_librarys(void **state)
{
    (void)state;
    assert_int_equal(EXPAR_STATUS_INDEX, EXPAR_ERR_INDEX);
    assert_int_equal(EXPAR_STATUS_PEER, EXPAR_ERR_PEER);
    assert_int_equal(EXPAR_STATUS_ARGUMENT, EXPAR_ERR_ARGUMENT);
    assert_int_equal(EXPAR_STATUS_LIMIT, EXPAR_ERR_LIMIT);
    assert_int_equal(EXPAR_STATUS_HANDLE, EXPAR_ERR_HANDLE);
    assert_int_equal(EXPAR_STATUS_STATE, EXPAR_ERR_STATE);
}

static void forms_differ_by_any_member(void **state)
{
    (void)state;
    ep_form a = {0}, b = {0};
    assert_true(ep_is_same_form(&a, &b));
    for (size_t i = 0; i < sizeof a / 4; i++) {
        ((uint32_t *)&b)[i] ^= 0x80000000u >> i % 32;
        assert_false(ep_is_same_form(&a, &b));
        b = a;
    }
}

/* Four ranks: the status and the kind of each one's header; who is in the way (-1: nobody), and what it says. */
static void one_rank_is_in_the_way(void **state)
{
    enum { N = 4 };
    static const struct {
        int32_t status[N], kind[N], rank;
        ep_stand stand;
    } rows[] = {
        {{0, 0, 0, 0}, {1, 1, 1, 1}, -1, EP_STAND_AGREES},
        {{0, 0, 0, 0}, {1, 1, 2, 1}, 2, EP_STAND_DIFFERS},
        {{0, 0, 0, 0}, {2, 1, 1, 1}, 1, EP_STAND_DIFFERS}, /* rank 0 is what the others are held to */
        {{0, 0, 0, EXPAR_ERR_ARGUMENT}, {1, 2, 1, 1}, 3, EP_STAND_REJECTS},
        {{EXPAR_ERR_LIMIT, 0, 0, EXPAR_ERR_ARGUMENT}, {1, 1, 1, 1}, 0, EP_STAND_REJECTS},
        {{0, EXPAR_ERR_ARGUMENT, 0, EXPAR_ERR_PEER}, {1, 1, 2, 1}, 3, EP_STAND_GONE},
        {{0, 0, EXPAR_ERR_PEER, EXPAR_ERR_PEER}, {1, 1, 9, 9}, 2, EP_STAND_GONE},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const ep_form form0 = {.kind = rows[i].kind[0]};
        int32_t least = ep_ballot(EP_STAND_AGREES, 0);
        for (int32_t r = N - 1; r >= 0; r--) {
            const ep_form form = {.kind = rows[i].kind[r]};
            const int32_t ballot = ep_ballot(ep_header_stands(rows[i].status[r], &form, &form0), r);
            if (ballot < least) least = ballot;
        }
        assert_int_equal(ep_ballot_rank(least), rows[i].rank);
        assert_int_equal(ep_ballot_stand(least), rows[i].stand);
    }
    assert_int_equal(ep_ballot_rank(ep_ballot(EP_STAND_DIFFERS, 4095)), 4095);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

/* A ring of four slots, in epoch 7: put or taken so many at this end, and the word that the other end has stored. */
static void rings_have_free_slots_and_rows(void **state)
{
    static const struct {
        uint32_t moved, epoch, value;
        int32_t free, ready;
    } rows[] = {
        {0, 7, 0, 4, 0},  {1, 7, 0, 3, 0},  {4, 7, 0, 0, 0},          {4, 7, 4, 4, 0}, {4, 7, 3, 3, 0},
        {0, 7, 4, 0, 4},  {3, 7, 4, 0, 1},  {0, 6, 4, 4, 0},          /* of the call before: nothing yet */
        {5, 7, 0, 0, 0},  {0, 7, 5, 0, 0},  {0, 7, UINT32_MAX, 3, 0}, /* cannot be, but the last, which wraps */
        {0, 8, 40, 4, 0}, {9, 7, 12, 0, 3},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const uint64_t word = ep_word(rows[i].epoch, rows[i].value);
        assert_int_equal(ep_ring_free(word, 7, rows[i].moved, 4), rows[i].free);
        assert_int_equal(ep_ring_ready(word, 7, rows[i].moved, 4), rows[i].ready);
    }
}

/* ---- credit checks ----------------------------------------------------------------------------------------------- */

/* A peer as banks.pml and low_latency.pml have it: the epochs of its acknowledgement of the slot, and of its message
   header with its status. May this rank's data of the call `epoch` go there? */
static void credits_come_by_acknowledgements_and_headers(void **state)
{
    static const struct {
        uint64_t epoch, read, unit;
        int32_t status;
        ll_credit credit;
    } rows[] = {
        {1, 0, 0, 0, LL_CREDIT_GIVEN}, /* nothing was sent there before */
        {2, 0, 0, 0, LL_CREDIT_GIVEN},
        {3, 0, 0, 0, LL_CREDIT_AWAITED},
        {3, 0, 2, 0, LL_CREDIT_AWAITED}, /* a message header of another call */
        {3, 1, 0, 0, LL_CREDIT_GIVEN},
        {3, 0, 3, 0, LL_CREDIT_GIVEN}, /* it has opened this call: it needs nothing of the call before the last */
        {3, 0, 3, EXPAR_ERR_INDEX, LL_CREDIT_GIVEN},
        {3, 0, 3, EXPAR_ERR_STATE, LL_CREDIT_REJECTS},
        {3, 1, 3, EXPAR_ERR_STATE, LL_CREDIT_GIVEN}, /* what was read is free, whatever the rank says of this call */
        {5, 1, 3, 0, LL_CREDIT_AWAITED},
        {5, 3, 0, 0, LL_CREDIT_GIVEN},
        {(uint64_t)0xfffffffc + 2, 0xfffffffc, 0, 0, LL_CREDIT_GIVEN}, /* stamps begin again */
        {(uint64_t)0xfffffffc + 3, 1, 0, 0, LL_CREDIT_GIVEN}, /* a word as old as all stamps is taken for new */
        {(uint64_t)0xfffffffc + 3, 2, 0, 0, LL_CREDIT_AWAITED},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const uint32_t before = rows[i].epoch > 2 ? ll_stamp(rows[i].epoch - 2) : 0;
        const uint64_t read = ll_word(rows[i].read, 0), unit = ll_word(rows[i].unit, (uint32_t)rows[i].status);
        const ll_credit credit =
            ll_read_opens(read, before) ? LL_CREDIT_GIVEN : ll_header_opens(unit, ll_stamp(rows[i].epoch));
        assert_int_equal(credit, rows[i].credit);
    }
}

/* ---- regions and masks ------------------------------------------------------------------------------------------- */

static void halves_leave_regions_that_are_known(void **state)
{
    static const struct {
        int32_t now;
        uint32_t known;
        int32_t region;
    } rows[] = {{0, 0x0, 0}, {3, 0x0, 3}, {3, 0x7, 3}, {0, 0x1, 1},  {1, 0x2, 0},
                {1, 0x3, 2}, {2, 0x7, 3}, {0, 0xd, 1}, {0, 0xf, -1}, {3, 0xf, -1}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        assert_int_equal(ll_region_choose(rows[i].now, rows[i].known, LL_REGIONS), rows[i].region);
    assert_int_equal(ll_region_choose(0, 1, 1), -1);
    assert_int_equal(ll_region_told(ll_word(9, 3), 4), 3);
    assert_int_equal(ll_region_told(ll_word(9, 4), 4), 0);
    assert_int_equal(ll_region_told(ll_word(9, UINT32_MAX), 4), 0);
}

/* clean.pml: a mask counts until both are in a clean together, and no longer. */
static void masks_count_until_a_clean_of_both(void **state)
{
    (void)state;
    assert_false(ll_masker_masks(0, 0));
    assert_true(ll_masker_masks(ll_masker_word(1, 0, 0), 0));  /* before any clean */
    assert_false(ll_masker_masks(ll_masker_word(1, 0, 0), 1)); /* both were in its attempt 1 since */
    assert_true(ll_masker_masks(ll_masker_word(1, 1, 0), 1));  /* and it masks again */
    assert_false(ll_masker_masks(ll_masker_word(0, 5, 0), 0));
    assert_false(ll_masker_masks(ll_masker_word(0, 5, LL_MASKER_PARTED), 0)); /* it has left: that is no mask */
    assert_true(ll_masker_masks(ll_masker_word(1, 5, LL_MASKER_PARTED), 5));
}

/* ---- message headers --------------------------------------------------------------------------------------------- */

static void counts_have_bounds(void **state)
{
    static const struct {
        int32_t word;
        uint32_t value;
        int32_t words, can;
    } rows[] = {
        {LL_HEADER_MESSAGES, 0, -1, 1},
        {LL_HEADER_MESSAGES, 8, -1, 1},
        {LL_HEADER_MESSAGES, 9, -1, 0},
        {LL_HEADER_MESSAGES, UINT32_MAX, -1, 0},
        {LL_HEADER_MESSAGES, LL_HEADER_IN_WORDS | 2, 4, 1},
        {LL_HEADER_MESSAGES, LL_HEADER_IN_WORDS | LL_HEADER_FEW | 4, 4, 1},
        {LL_HEADER_MESSAGES, LL_HEADER_IN_WORDS | 5, 4, 0},  /* more than a small batch has */
        {LL_HEADER_MESSAGES, LL_HEADER_IN_WORDS | 2, -1, 0}, /* where there are no words */
        {LL_HEADER_MESSAGES, LL_HEADER_FEW | 2, 4, 0},
        {LL_HEADER_COUNTS, 24, 4, 1},
        {LL_HEADER_COUNTS + 3, 25, 4, 0},
        {LL_HEADER_COUNTS, LL_HEADER_IN_WORDS, 4, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        const ll_header_bounds bounds = {8, rows[i].words, 24};
        assert_int_equal(ll_count_can_be(rows[i].word, rows[i].value, bounds), rows[i].can);
    }
}

static void units_say_what_goes(void **state)
{
    static const int32_t counts[] = {7, 0, 9};
    const ll_form form = {.dtype = 1, .weights = 1, .topk = 6};
    static const struct {
        int32_t word;
        uint32_t goes, rejected;
    } rows[] = {
        {LL_HEADER_ROUTE, 5, 5},      {LL_HEADER_MESSAGES, LL_HEADER_FEW | 4, 0},
        {LL_HEADER_COUNTS, 7, 0},     {LL_HEADER_COUNTS + 1, 0, 0},
        {LL_HEADER_COUNTS + 2, 9, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
        assert_int_equal(ll_header_value(rows[i].word, &form, 5, 1, LL_HEADER_FEW | 4, counts), rows[i].goes);
        assert_int_equal(ll_header_value(rows[i].word, &form, 5, 0, LL_HEADER_FEW | 4, NULL), rows[i].rejected);
    }
    assert_int_equal(ll_header_value(LL_HEADER_TAG, &form, 5, 0, 0, NULL), ll_form_tag(&form));
}

static void rows_fit_their_places(void **state)
{
    (void)state;
    assert_int_equal(ll_rows_that_fit(16, 0, 16), 16);
    assert_int_equal(ll_rows_that_fit(16, 0, 17), 16);
    assert_int_equal(ll_rows_that_fit(16, 10, 6), 6);
    assert_int_equal(ll_rows_that_fit(16, 10, 7), 6);
    assert_int_equal(ll_rows_that_fit(16, 16, 1), 0);
    assert_int_equal(ll_rows_that_fit(16, 16, 0), 0);
}

static void ranks_make_the_same_call(void **state)
{
    (void)state;
    assert_true(ll_is_same_call(1, 2, 1, 2));
    assert_false(ll_is_same_call(1, 2, 2, 2));
    assert_false(ll_is_same_call(1, 2, 1, 3));
    assert_true(ll_status_goes_on(EXPAR_OK) && ll_status_goes_on(EXPAR_ERR_INDEX));
    assert_false(ll_status_goes_on(EXPAR_ERR_PEER));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_are_the_librarys),
        cmocka_unit_test(forms_differ_by_any_member),
        cmocka_unit_test(one_rank_is_in_the_way),
        cmocka_unit_test(rings_have_free_slots_and_rows),
        cmocka_unit_test(credits_come_by_acknowledgements_and_headers),
        cmocka_unit_test(halves_leave_regions_that_are_known),
        cmocka_unit_test(masks_count_until_a_clean_of_both),
        cmocka_unit_test(counts_have_bounds),
        cmocka_unit_test(units_say_what_goes),
        cmocka_unit_test(rows_fit_their_places),
        cmocka_unit_test(ranks_make_the_same_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
