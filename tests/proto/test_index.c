/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer's layout function and the index arithmetic beside it. */
#include "oracle/unit.h"
#include "proto/normal.h"

static const ep_shape shapes[] = {
    {.ranks = 1, .channels = 1, .ring_slots = 1, .topk = 1, .local_experts = 1, .tokens = 0, .row_bytes = 1},
    {.ranks = 2,
     .channels = 3,
     .ring_slots = 5,
     .topk = 8,
     .scales = 5,
     .local_experts = 4,
     .tokens = 7,
     .row_bytes = 48},
    {.ranks = 8, .channels = 4, .ring_slots = 32, .topk = 8, .local_experts = 8, .tokens = 256, .row_bytes = 14336},
    {.ranks = 33,
     .channels = 7,
     .ring_slots = 3,
     .topk = 9,
     .scales = 3,
     .local_experts = 5,
     .tokens = 11,
     .row_bytes = 1000},
};

/* Every record, word and slot lies in its own place, in order, inside the buffer, and aligned for its type. */
static void parts_follow_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const ep_shape *p = &shapes[i];
        ep_space s = ep_space_of(p);
        uint64_t end = 0;
        for (uint32_t epoch = 0; epoch < 2; epoch++)
            for (int32_t r = 0; r < p->ranks; r++) {
                uint64_t at = ep_header_at(&s, p->ranks, epoch, r);
                assert_true(at >= end && at % EP_LINE_BYTES == 0);
                end = at + sizeof(ep_header) + 4 * (uint64_t)(p->channels + p->local_experts);
                assert_true(at + s.header_sent >= end && s.header_sent % 4 == 0);
                if (ep_tells_space(p->ranks)) end = at + s.header_sent + 4 * (uint64_t)p->ranks;
            }
        for (uint32_t epoch = 0; epoch < 2; epoch++)
            for (int32_t r = 0; r < p->ranks; r++) {
                uint64_t at = ep_reply_at(&s, p->ranks, epoch, r);
                assert_true(at >= end && at % EP_LINE_BYTES == 0);
                end = at + sizeof(ep_reply);
            }
        for (uint32_t epoch = 0; epoch < 2; epoch++)
            for (int32_t r = 0; r < p->ranks; r++) {
                uint64_t at = ep_completion_at(&s, p->ranks, epoch, r);
                assert_true(at >= end && at % EP_LINE_BYTES == 0);
                end = at + 8;
            }
        for (int mailbox = EP_MAILBOX_HEADER; mailbox <= EP_MAILBOX_COMPLETION; mailbox++)
            for (uint32_t epoch = 0; epoch < 2; epoch++) {
                uint64_t at = ep_counter_at(&s, (ep_mailbox)mailbox, epoch);
                assert_true(at >= end && at % EP_LINE_BYTES == 0);
                end = at + 8;
            }
        for (int32_t c = 0; c < p->channels; c++)
            for (int32_t r = 0; r < p->ranks; r++) {
                assert_true(ep_head_at(&s, p->ranks, c, r) >= end && ep_head_at(&s, p->ranks, c, r) + 8 <= s.tails);
                end = ep_head_at(&s, p->ranks, c, r) + 8;
            }
        for (int32_t c = 0; c < p->channels; c++)
            for (int32_t r = 0; r < p->ranks; r++) {
                assert_true(ep_tail_at(&s, p->ranks, c, r) >= end);
                end = ep_tail_at(&s, p->ranks, c, r) + 8;
            }
        for (int32_t c = 0; c < p->channels; c++)
            for (int32_t r = 0; r < p->ranks; r++)
                for (uint32_t row = 0; row < (uint32_t)p->ring_slots; row++) {
                    uint64_t at = ep_slot_at(&s, p, c, r, row);
                    assert_true(at >= end && at % EP_LINE_BYTES == 0);
                    assert_int_equal(at, ep_slot_at(&s, p, c, r, row + (uint32_t)p->ring_slots));
                    end = at + s.slot_bytes;
                }
        assert_true(s.pool >= end);
        assert_int_equal(s.total_bytes, s.pool + p->pool_bytes);
    }
}

static void slot_holds_its_record(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ep_space s = ep_space_of(&shapes[i]);
        assert_true(s.slot_scales >= (uint64_t)shapes[i].row_bytes && s.slot_scales % 16 == 0);
        assert_true(s.slot_idx >= s.slot_scales + 4 * (uint64_t)shapes[i].scales && s.slot_idx % 16 == 0);
        assert_true(s.slot_weights >= s.slot_idx + 8 * (uint64_t)shapes[i].topk);
        assert_true(s.slot_bytes >= s.slot_weights + 4 * (uint64_t)shapes[i].topk);
    }
}

static void channels_share_out_all_tokens(void **state)
{
    (void)state;
    for (int64_t tokens = 0; tokens < 40; tokens++)
        for (int32_t channels = 1; channels < 50; channels++) {
            assert_int_equal(ep_channel_begin(tokens, channels, 0), 0);
            assert_int_equal(ep_channel_begin(tokens, channels, channels), tokens);
            int64_t share = (tokens + channels - 1) / channels;
            for (int32_t c = 0; c < channels; c++) {
                int64_t size = ep_channel_begin(tokens, channels, c + 1) - ep_channel_begin(tokens, channels, c);
                assert_true(size >= 0 && size <= share);
            }
        }
}

static void words_of_other_epochs_count_as_nothing(void **state)
{
    (void)state;
    uint64_t word = ep_word(0xffffffffu, 7);
    assert_int_equal(ep_word_value(word, 0xffffffffu), 7);
    assert_int_equal(ep_word_value(word, 0), 0);
    assert_int_equal(ep_word_value(ep_word(0, 9), 0), 9);
    assert_int_equal(ep_word_epoch(word), 0xffffffffu);
    /* For a word that was never written: no flag of epoch 0, whose value is 1, and no row of a ring. */
    assert_int_equal(ep_word_value(0, 0), 0);
}

static void experts_have_one_owner(void **state)
{
    (void)state;
    for (int64_t e = 0; e < 12; e++)
        for (int32_t rank = 0; rank < 4; rank++)
            assert_int_equal(ep_expert_seen_by(e, rank, 3), e / 3 == rank ? e % 3 : -1);
    assert_int_equal(ep_expert_seen_by(-1, 0, 3), -1);
}

static void output_parts_do_not_overlap(void **state)
{
    (void)state;
    ep_block_shape shape = {
        .x_rows = 7, .rows = 5, .row_bytes = 48, .scale_bytes = 12, .topk = 3, .idx_bytes = 8, .weights = 1, .map = 1};
    ep_block_map m = ep_block_map_of(&shape);
    assert_true(m.scales >= 7 * 48 && m.idx >= m.scales + 7 * 12 && m.weights >= m.idx + 5 * 3 * 8);
    assert_true(m.map >= m.weights + 5 * 3 * 4 && m.total_bytes >= m.map + 5 * 3 * 4);
    shape = (ep_block_shape){.x_rows = 5, .rows = 5, .row_bytes = 48};
    m = ep_block_map_of(&shape);
    assert_int_equal(m.total_bytes, m.scales);
    shape = (ep_block_shape){.row_bytes = 48, .scale_bytes = 4, .topk = 3, .idx_bytes = 8, .weights = 1, .map = 1};
    assert_int_equal(ep_block_map_of(&shape).total_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_follow_each_other),       cmocka_unit_test(slot_holds_its_record),
        cmocka_unit_test(channels_share_out_all_tokens), cmocka_unit_test(words_of_other_epochs_count_as_nothing),
        cmocka_unit_test(experts_have_one_owner),        cmocka_unit_test(output_parts_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
