/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC, turn by turn: every form of request does what it says, and what a device rejects is rejected, with
 * the syndrome and the field. */
#include "net/gda/nic/parts.h"
#include "oracle/random.h"
#include "window.h"

#include <stdio.h>

static const nic_faults no_faults = {.rnr_retries = 3};

/* Runs the device until nothing happens. */
static void settle(world *w)
{
    for (int idle = 0; idle < 4; idle++)
        if (nic_turn(w->nic)) idle = 0;
}

static made *queue_to(world *w, int32_t pe)
{
    return &w->ranks[0].queues[pe];
}

static void start(world *w)
{
    world_begin(w, &made_small, &no_faults, WORLD_ACCESS);
}

static uint64_t *word_of(world *w, int32_t rank, uint64_t offset)
{
    return (uint64_t *)(void *)(w->ranks[rank].heap + offset);
}

/* Posts to rank 1 and runs the device. Returns whether it succeeded. */
static bool do_post(world *w, const gda_request *request)
{
    uint64_t end = 0;
    made *m = queue_to(w, 1);
    assert_true(gda_post(&m->queue, request, &end));
    settle(w);
    return gda_look(&m->queue, end) == GDA_COMPLETE;
}

/* ---- every form -------------------------------------------------------------------------------------------------- */

static void test_transfers(void **state)
{
    (void)state;
    world w;
    start(&w);
    made *m = queue_to(&w, 1);
    for (uint64_t round = 0; round < 40; round++) {
        uint64_t end = 0, bytes = 9000 + round * 13;
        for (uint64_t i = 0; i < bytes; i++)
            w.ranks[0].heap[100 + i] = (uint8_t)(i * 7 + round);
        assert_true(gda_transfer(&m->queue, &w.ranks[0].keys, GDA_WRITE, 15000, (uintptr_t)w.ranks[0].heap + 100, bytes,
                                 NULL, &end));
        settle(&w);
        assert_int_equal(gda_look(&m->queue, end), GDA_COMPLETE);
        assert_memory_equal(w.ranks[1].heap + 15000, w.ranks[0].heap + 100, bytes);
        assert_true(gda_transfer(&m->queue, &w.ranks[0].keys, GDA_READ, 15000, (uintptr_t)w.ranks[0].heap + 30000,
                                 bytes, NULL, &end));
        settle(&w);
        assert_int_equal(gda_look(&m->queue, end), GDA_COMPLETE);
        assert_memory_equal(w.ranks[0].heap + 30000, w.ranks[0].heap + 100, bytes);
    }
    world_end(&w);
}

static void test_inline(void **state)
{
    (void)state;
    world w;
    start(&w);
    for (uint32_t bytes = 1; bytes <= GDA_MOST_INLINE; bytes++) {
        gda_request r = {.form = GDA_WRITE_INLINE, .bytes = bytes};
        for (uint32_t i = 0; i < bytes; i++)
            ((uint8_t *)r.data)[i] = (uint8_t)(0x80 + bytes + i);
        memset(w.ranks[1].heap, 0, 64);
        world_aim(&w, &r, 1, 5);
        assert_true(do_post(&w, &r));
        assert_memory_equal(w.ranks[1].heap + 5, r.data, bytes);
        assert_int_equal(w.ranks[1].heap[5 + bytes], 0);
        assert_int_equal(w.ranks[1].heap[4], 0);
    }
    world_end(&w);
}

/* The atomics as link and pgas need them, against what C does. */
typedef struct atomic_case {
    gda_form form;
    uint64_t old, operand, compare, swap_mask, compare_mask, expected;
} atomic_case;

static void test_atomics(void **state)
{
    (void)state;
    static const uint64_t all = UINT64_MAX, a = UINT64_C(0xfedcba9876543210), b = UINT64_C(0x1122334455667788);
    const atomic_case cases[] = {
        {GDA_ADD_64, a, b, 0, 0, 0, a + b},
        {GDA_ADD_64, all, 2, 0, 0, 0, 1},
        {GDA_COMPARE_SWAP_64, a, b, a, 0, 0, b},
        {GDA_COMPARE_SWAP_64, a, b, a + 1, 0, 0, a},
        {GDA_ADD_MASKED_64, a, b, 0, 0, 0, a + b},
        {GDA_ADD_MASKED_64, a, b, 0, 0, all, a ^ b},
        {GDA_ADD_MASKED_64, 0x00ff, 0x0101, 0, 0, 0x8080, 0x0100},
        {GDA_SWAP_MASKED_64, a, b, 0, all, 0, b},
        {GDA_SWAP_MASKED_64, a, b, a, all, all, b},
        {GDA_SWAP_MASKED_64, a, b, b, all, all, a},
        {GDA_SWAP_MASKED_64, a, b, 0, ~b, 0, a & b},
        {GDA_SWAP_MASKED_64, a, b, 0, b, 0, a | b},
        {GDA_SWAP_MASKED_64, a, b, 0x10, all, 0xff, b},
        {GDA_ADD_MASKED_32, 0xffffffff, 3, 0, 0, 0, 2},
        {GDA_ADD_MASKED_32, 0x76543210, 0x12345678, 0, 0, 0xffffffff, 0x76543210 ^ 0x12345678},
        {GDA_SWAP_MASKED_32, 0x76543210, 0x12345678, 0, 0xffffffff, 0, 0x12345678},
        {GDA_SWAP_MASKED_32, 0x76543210, 0x12345678, 0x76543210, 0xffffffff, 0xffffffff, 0x12345678},
        {GDA_SWAP_MASKED_32, 0x76543210, 0x12345678, 0, 0xffffffff, 0xffffffff, 0x76543210},
    };
    world w;
    start(&w);
    made *m = queue_to(&w, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const atomic_case *c = &cases[i];
        gda_request r = {.form = c->form,
                         .operand = c->operand,
                         .compare = c->compare,
                         .swap_mask = c->swap_mask,
                         .compare_mask = c->compare_mask};
        const uint32_t bytes = gda_word_bytes(c->form);
        const uint64_t beside = bytes == 4 ? UINT64_C(0x5555555500000000) : 0;
        uint64_t number = 0;
        *word_of(&w, 1, 64) = beside | c->old;
        world_aim(&w, &r, 1, 64);
        assert_true(gda_take_results(&m->queue, 1, &number));
        r.local = gda_result_address(&m->queue, number);
        r.lkey = m->queue.results_lkey;
        assert_true(do_post(&w, &r));
        assert_true(gda_result(&m->queue, number, bytes) == c->old);
        assert_true(*word_of(&w, 1, 64) == (beside | c->expected));
        assert_true(gda_give_results(&m->queue, number, 1));
        /* without a result, the old word goes to the sink */
        gda_to_sink(&m->queue, &r);
        m->results[0] = 0;
        assert_true(do_post(&w, &r));
        assert_true(m->results[0] != 0 || *word_of(&w, 1, 64) == 0 || c->expected == 0);
    }
    world_end(&w);
}

static void test_nop_dump_empty(void **state)
{
    (void)state;
    world w;
    start(&w);
    gda_request r = {.form = GDA_NOP};
    assert_true(do_post(&w, &r));
    r.form = GDA_DUMP;
    gda_to_sink(&queue_to(&w, 1)->queue, &r);
    assert_true(do_post(&w, &r));
    r.form = GDA_WRITE;
    r.bytes = 0;
    world_aim(&w, &r, 1, 0);
    assert_true(do_post(&w, &r));
    world_end(&w);
}

/* ---- what is rejected -------------------------------------------------------------------------------------------- */

/* A well-formed request of each form, to rank 1. */
static gda_request good(world *w, gda_form form)
{
    gda_request r = {.form = form,
                     .bytes = form == GDA_WRITE_INLINE ? 12 : 64,
                     .operand = 0x0102030405060708,
                     .compare = 0,
                     .swap_mask = 0x1f1f1f1f1f1f1f1f,
                     .compare_mask = 0};
    world_aim(w, &r, 1, 128);
    r.local = (uintptr_t)w->ranks[0].heap + 256;
    r.lkey = w->ranks[0].lkeys[0];
    memset(r.data, 0x33, 12);
    return r;
}

typedef struct broken {
    gda_form form;
    uint32_t byte; /* of the first block; its bits `mask` are turned over */
    uint8_t mask;
    uint8_t syndrome, vendor;
} broken;

#define OPERATION  GDA_SYNDROME_LOCAL_OPERATION
#define PROTECTION GDA_SYNDROME_LOCAL_PROTECTION
#define LENGTH     GDA_SYNDROME_LOCAL_LENGTH
#define ACCESS     GDA_SYNDROME_REMOTE_ACCESS

static const broken breaks[] = {
    {GDA_NOP, 0, 0x01, OPERATION, NIC_WRONG_OPCODE},
    {GDA_NOP, 1, 0x80, OPERATION, NIC_WRONG_INDEX},
    {GDA_NOP, 2, 0x01, OPERATION, NIC_WRONG_INDEX},
    {GDA_NOP, 3, 0x02, OPERATION, NIC_WRONG_LENGTH}, /* a SEND */
    {GDA_NOP, 3, 0x80, OPERATION, NIC_WRONG_LENGTH},
    {GDA_NOP, 4, 0x01, OPERATION, NIC_WRONG_QPN},
    {GDA_NOP, 6, 0x80, OPERATION, NIC_WRONG_QPN},
    {GDA_NOP, 7, 0x40, OPERATION, NIC_WRONG_RESERVED},
    {GDA_NOP, 7, 0x02, OPERATION, NIC_WRONG_LENGTH},
    {GDA_NOP, 8, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_NOP, 9, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_NOP, 10, 0x80, OPERATION, NIC_WRONG_RESERVED},
    {GDA_NOP, 11, 0x01, OPERATION, NIC_WRONG_FLAGS},
    {GDA_NOP, 11, 0x10, OPERATION, NIC_WRONG_FLAGS},
    {GDA_NOP, 11, 0x04, OPERATION, NIC_WRONG_FLAGS},
    {GDA_NOP, 11, 0xe0, OPERATION, NIC_WRONG_FLAGS},
    {GDA_NOP, 12, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_WRITE, 15, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_WRITE, 0, 0x08, OPERATION, NIC_WRONG_OPCODE},
    {GDA_WRITE, 3, 0x40, OPERATION, NIC_WRONG_OPCODE},
    {GDA_WRITE, 7, 0x07, OPERATION, NIC_WRONG_LENGTH},
    {GDA_WRITE, 16, 0x80, ACCESS, NIC_WRONG_BOUNDS},
    {GDA_WRITE, 20, 0x01, ACCESS, NIC_WRONG_BOUNDS},
    {GDA_WRITE, 24, 0x01, ACCESS, NIC_WRONG_KEY},
    {GDA_WRITE, 27, 0x08, ACCESS, NIC_WRONG_KEY},
    {GDA_WRITE, 28, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_WRITE, 31, 0x01, OPERATION, NIC_WRONG_RESERVED},
    {GDA_WRITE, 32, 0x40, LENGTH, NIC_WRONG_BYTES},
    {GDA_WRITE, 33, 0x80, PROTECTION, NIC_WRONG_BOUNDS},
    {GDA_WRITE, 35, 0x40, LENGTH, NIC_WRONG_BYTES}, /* a data segment of length 0 */
    {GDA_WRITE, 36, 0x01, PROTECTION, NIC_WRONG_KEY},
    {GDA_WRITE, 40, 0x01, PROTECTION, NIC_WRONG_BOUNDS},
    {GDA_READ, 35, 0x40, LENGTH, NIC_WRONG_BYTES},
    {GDA_READ, 32, 0x80, LENGTH, NIC_WRONG_BYTES}, /* a read has no inline data */
    {GDA_READ, 27, 0x08, ACCESS, NIC_WRONG_KEY},
    {GDA_READ, 39, 0x08, PROTECTION, NIC_WRONG_KEY},
    {GDA_WRITE_INLINE, 35, 0x0c, LENGTH, NIC_WRONG_BYTES},
    {GDA_WRITE_INLINE, 35, 0x1c, OPERATION, NIC_WRONG_LENGTH}, /* 16 bytes in 3 segments */
    {GDA_WRITE_INLINE, 34, 0x01, LENGTH, NIC_WRONG_BYTES},
    {GDA_ADD_64, 0, 0x08, OPERATION, NIC_WRONG_OPCODE},
    {GDA_ADD_64, 7, 0x01, OPERATION, NIC_WRONG_LENGTH},
    {GDA_ADD_64, 23, 0x01, GDA_SYNDROME_REMOTE_INVALID, NIC_WRONG_ALIGNMENT},
    {GDA_ADD_64, 23, 0x04, GDA_SYNDROME_REMOTE_INVALID, NIC_WRONG_ALIGNMENT},
    {GDA_ADD_64, 51, 0x0c, LENGTH, NIC_WRONG_BYTES}, /* 4 bytes for the old word */
    {GDA_ADD_64, 55, 0x08, PROTECTION, NIC_WRONG_KEY},
    {GDA_ADD_MASKED_32, 0, 0x08, OPERATION, NIC_WRONG_OPCODE},
    {GDA_ADD_MASKED_32, 23, 0x02, GDA_SYNDROME_REMOTE_INVALID, NIC_WRONG_ALIGNMENT},
    {GDA_ADD_MASKED_32, 51, 0x0c, LENGTH, NIC_WRONG_BYTES},
    {GDA_ADD_MASKED_32, 0, 0x01, LENGTH, NIC_WRONG_BYTES}, /* of 8 bytes, with a result of 4 */
    {GDA_SWAP_MASKED_64, 7, 0x01, OPERATION, NIC_WRONG_LENGTH},
    {GDA_DUMP, 7, 0x01, OPERATION, NIC_WRONG_LENGTH},
    {GDA_DUMP, 19, 0x01, LENGTH, NIC_WRONG_BYTES},
    {GDA_DUMP, 23, 0x08, PROTECTION, NIC_WRONG_KEY},
    {GDA_DUMP, 0, 0x01, OPERATION, NIC_WRONG_OPCODE},
};

/* One wrong field gives an error CQE that names it, though nobody asked for a CQE. No byte of the peer changes. The
   request after it is flushed, and the queue tells its poster. */
static void check_break(const broken *b)
{
    world w;
    uint64_t base = 0, end = 0, failure;
    start(&w);
    made *m = queue_to(&w, 1);
    gda_request r = good(&w, b->form), after = good(&w, GDA_WRITE);
    memset(w.ranks[0].heap + 256, 0x44, 64);
    assert_true(gda_reserve(&m->queue, gda_blocks_of(b->form), &base));
    gda_write(&m->queue, base, &r);
    ((uint8_t *)&m->blocks[base % m->plan.depth])[b->byte] ^= b->mask;
    assert_true(gda_commit(&m->queue, base, gda_blocks_of(b->form)));
    assert_true(gda_post(&m->queue, &after, &end));
    nic_turn(w.nic); /* both requests in one turn: the flushed one overwrites the collapsed entry */
    settle(&w);
    assert_int_equal(gda_look(&m->queue, end), GDA_FAILED);
    assert_true(nic_counted(w.nic).errors == 1 && nic_counted(w.nic).flushed >= 1);
    for (int i = 0; i < 1024; i++)
        if (w.ranks[1].heap[i]) fail_msg("form %d, byte %u: the peer's memory changed", (int)b->form, b->byte);
    assert_int_equal(gda_failure_syndrome(gda_error(&m->queue)), GDA_SYNDROME_FLUSHED);
    world_end(&w);

    /* again with an entry for each completion, where the cause is seen */
    gda_plan plan = made_small;
    plan.collapsed = false;
    world_begin(&w, &plan, &no_faults, WORLD_ACCESS);
    m = queue_to(&w, 1);
    r = good(&w, b->form);
    assert_true(gda_reserve(&m->queue, gda_blocks_of(b->form), &base));
    gda_write(&m->queue, base, &r);
    ((uint8_t *)&m->blocks[base % m->plan.depth])[b->byte] ^= b->mask;
    assert_true(gda_commit(&m->queue, base, gda_blocks_of(b->form)));
    settle(&w);
    assert_false(gda_quiet(&m->queue));
    failure = gda_error(&m->queue);
    if (gda_failure_syndrome(failure) != b->syndrome || gda_failure_vendor(failure) != b->vendor)
        fail_msg("form %d, byte %u: syndrome 0x%02x, vendor %u", (int)b->form, b->byte, gda_failure_syndrome(failure),
                 gda_failure_vendor(failure));
    assert_int_equal(gda_failure_index(failure), base & 0xffff);
    world_end(&w);
}

static void test_rejections(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof breaks / sizeof *breaks; i++)
        check_break(&breaks[i]);
}

/* A bit of a request that the device does not reject changes what it does: no field is ignored. */
static void check_mutation(gda_form form, uint32_t byte, uint32_t bit, uint8_t *expected_peer, uint8_t *expected_own)
{
    world w;
    uint64_t base = 0;
    start(&w);
    made *m = queue_to(&w, 1);
    gda_request r = good(&w, form);
    for (int i = 0; i < 1024; i++) {
        w.ranks[0].heap[i] = (uint8_t)(i * 5 + 1);
        w.ranks[1].heap[i] = (uint8_t)(i * 3 + 2);
    }
    r.operand = ~*word_of(&w, 1, 128); /* so that every bit of a mask counts */
    assert_true(gda_reserve(&m->queue, gda_blocks_of(form), &base));
    gda_write(&m->queue, base, &r);
    if (byte < GDA_REQUEST_BLOCKS * GDA_BLOCK_BYTES)
        ((uint8_t *)&m->blocks[(base + byte / 64) % m->plan.depth])[byte % 64] ^= (uint8_t)(1u << bit);
    assert_true(gda_commit(&m->queue, base, gda_blocks_of(form)));
    settle(&w);
    const bool failed = nic_counted(w.nic).errors != 0;
    if (byte >= GDA_REQUEST_BLOCKS * GDA_BLOCK_BYTES) {
        assert_false(failed);
        memcpy(expected_peer, w.ranks[1].heap, 1024);
        memcpy(expected_own, w.ranks[0].heap, 1024);
    } else if (!failed && memcmp(expected_peer, w.ranks[1].heap, 1024) == 0 &&
               memcmp(expected_own, w.ranks[0].heap, 1024) == 0) {
        fail_msg("form %d: bit %u of byte %u changes nothing", (int)form, bit, byte);
    }
    world_end(&w);
}

static void test_mutations(void **state)
{
    (void)state;
    /* the last byte that a form uses, without result's place where that is the sink */
    static const struct {
        gda_form form;
        uint32_t first, last;
    } spans[] = {{GDA_WRITE, 16, 47},          {GDA_READ, 16, 47},           {GDA_WRITE_INLINE, 16, 47},
                 {GDA_ADD_64, 16, 39},         {GDA_ADD_64, 48, 63},         {GDA_COMPARE_SWAP_64, 16, 31},
                 {GDA_SWAP_MASKED_32, 16, 31}, {GDA_ADD_MASKED_32, 16, 35},  {GDA_ADD_MASKED_64, 16, 39},
                 {GDA_SWAP_MASKED_64, 16, 31}, {GDA_SWAP_MASKED_64, 48, 55}, {GDA_SWAP_MASKED_64, 64, 79},
                 {GDA_ADD_MASKED_32, 48, 63},  {GDA_SWAP_MASKED_32, 48, 63}};
    uint8_t peer[1024], own[1024];
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        check_mutation(spans[i].form, UINT32_MAX, 0, peer, own);
        for (uint32_t byte = spans[i].first; byte <= spans[i].last; byte++)
            check_mutation(spans[i].form, byte, byte % 8, peer, own);
    }
}

/* ---- doorbells --------------------------------------------------------------------------------------------------- */

/* A device does not watch records: without the register nothing happens. A register that comes early or twice does no
   harm, as the record counts. */
static void test_rings(void **state)
{
    (void)state;
    world w;
    start(&w);
    made *m = queue_to(&w, 1);
    uint64_t base = 0, first = m->plan.first;
    gda_request r = good(&w, GDA_WRITE_INLINE);
    assert_true(gda_reserve(&m->queue, 1, &base));
    r.flags = GDA_REPORT;
    gda_write(&m->queue, base, &r);
    atomic_store(&m->doorbell, gda_register_word(base + 1, m->queue.qpn)); /* early: the record is old */
    settle(&w);
    assert_true(nic_counted(w.nic).rings == 1 && nic_counted(w.nic).requests == 0);
    atomic_store(&m->record[GDA_RECORD_SEND], gda_record_word(base + 1));
    settle(&w);
    assert_true(nic_counted(w.nic).requests == 0); /* the ring was left out */
    for (int i = 0; i < 2; i++) {
        atomic_store(&m->doorbell, gda_register_word(base + 1, m->queue.qpn));
        settle(&w);
        assert_true(nic_counted(w.nic).requests == 1 && nic_counted(w.nic).bad_rings == 0);
    }
    /* another queue's number, and bytes that must be 0 */
    atomic_store(&m->doorbell, gda_register_word(base + 1, m->queue.qpn ^ 1));
    settle(&w);
    atomic_store(&m->doorbell, gda_register_word(base + 1, m->queue.qpn) | 1);
    settle(&w);
    assert_true(nic_counted(w.nic).bad_rings == 2);
    /* blocks that nobody wrote in this turn have an old index */
    atomic_store(&m->record[GDA_RECORD_SEND], gda_record_word(first + 2));
    atomic_store(&m->doorbell, gda_register_word(first + 2, m->queue.qpn));
    settle(&w);
    assert_true(nic_counted(w.nic).errors == 1);
    world_end(&w);
    start(&w);
    m = queue_to(&w, 1);
    /* more than the queue has */
    atomic_store(&m->record[GDA_RECORD_SEND], gda_record_word(first + 17));
    atomic_store(&m->doorbell, gda_register_word(first + 17, m->queue.qpn));
    settle(&w);
    assert_true(nic_counted(w.nic).bad_rings == 1 && nic_counted(w.nic).errors == 1);
    atomic_store(&m->queue.prod_idx, first + 17);
    assert_int_equal(gda_look(&m->queue, first + 1), GDA_FAILED);
    assert_int_equal(gda_failure_vendor(gda_error(&m->queue)), NIC_WRONG_RECORD);
    world_end(&w);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static void test_rights(void **state)
{
    (void)state;
    static const unsigned rights[] = {NIC_REMOTE_READ, NIC_REMOTE_WRITE, NIC_REMOTE_ATOMIC};
    static const gda_form forms[] = {GDA_READ, GDA_WRITE, GDA_ADD_64};
    for (size_t has = 0; has < 3; has++)
        for (size_t uses = 0; uses < 3; uses++) {
            world w;
            world_begin(&w, &made_small, &no_faults, rights[has]);
            const gda_request r = good(&w, forms[uses]);
            assert_int_equal(do_post(&w, &r), has == uses);
            if (has != uses) {
                assert_int_equal(gda_failure_syndrome(gda_error(&queue_to(&w, 1)->queue)), ACCESS);
                assert_int_equal(gda_failure_vendor(gda_error(&queue_to(&w, 1)->queue)), NIC_WRONG_ACCESS);
            }
            world_end(&w);
        }
}

/* A peer that is gone ends the queue to it, and no other. */
static void test_lost_peer(void **state)
{
    (void)state;
    world w;
    uint64_t end = 0;
    start(&w);
    const gda_request r = good(&w, GDA_WRITE_INLINE);
    assert_true(do_post(&w, &r));
    nic_lose_port(w.nic, 1);
    assert_false(do_post(&w, &r));
    assert_int_equal(gda_failure_syndrome(gda_error(&queue_to(&w, 1)->queue)), GDA_SYNDROME_RETRIES);
    gda_request own = {.form = GDA_WRITE_INLINE, .bytes = 4};
    world_aim(&w, &own, 0, 0);
    assert_true(gda_post(&queue_to(&w, 0)->queue, &own, &end));
    settle(&w);
    assert_true(gda_poll(&queue_to(&w, 0)->queue, end));
    world_end(&w);
}

/* A request that asked for no CQE fails: its error CQE comes before the awaited one. */
static void test_silent_failure(void **state)
{
    (void)state;
    for (int collapsed = 0; collapsed < 2; collapsed++) {
        world w;
        gda_plan plan = made_small;
        uint64_t base = 0;
        plan.collapsed = collapsed;
        world_begin(&w, &plan, &no_faults, WORLD_ACCESS);
        made *m = queue_to(&w, 1);
        gda_request r = good(&w, GDA_WRITE), bad = r;
        bad.rkey ^= 0x08000000;
        assert_true(gda_reserve(&m->queue, 3, &base));
        gda_write(&m->queue, base, &r);
        gda_write(&m->queue, base + 1, &bad);
        r.flags = GDA_REPORT;
        gda_write(&m->queue, base + 2, &r);
        assert_true(gda_commit(&m->queue, base, 3));
        settle(&w);
        assert_false(gda_poll(&m->queue, base + 3));
        const uint64_t failure = gda_error(&m->queue);
        assert_int_equal(gda_failure_syndrome(failure), collapsed ? GDA_SYNDROME_FLUSHED : ACCESS);
        assert_int_equal(gda_failure_index(failure), (base + (collapsed ? 2 : 1)) & 0xffff);
        assert_int_equal(gda_cause_is_unseen(failure), collapsed);
        world_end(&w);
    }
}

/* A queue of completions that nobody reads ends the queue when it is full. */
static void test_overrun(void **state)
{
    (void)state;
    world w;
    gda_plan plan = made_small;
    plan.collapsed = false;
    plan.never_full = true; /* so that nobody polls */
    world_begin(&w, &plan, &no_faults, WORLD_ACCESS);
    made *m = queue_to(&w, 1);
    const gda_request r = {.form = GDA_NOP};
    for (int i = 0; i < 17; i++) {
        uint64_t end = 0;
        assert_true(gda_post(&m->queue, &r, &end));
        settle(&w);
    }
    assert_true(nic_counted(w.nic).overruns == 1 && nic_counted(w.nic).completions == 16);
    world_end(&w);
}

/* A device that stops answering: the waiting thread ends when the host says so. */
static void test_silent_device(void **state)
{
    (void)state;
    world w;
    start(&w);
    made *m = queue_to(&w, 1);
    const gda_request r = good(&w, GDA_WRITE);
    uint64_t end = 0;
    nic_hold(w.nic, true);
    assert_true(gda_post(&m->queue, &r, &end));
    settle(&w);
    assert_int_equal(gda_look(&m->queue, end), GDA_NOT_YET);
    atomic_store(&m->stop, (uint64_t)GDA_FAILED_BY_HOST << 32);
    assert_false(gda_quiet(&m->queue));
    assert_int_equal(gda_failure_by(gda_error(&m->queue)), GDA_FAILED_BY_HOST);
    world_end(&w);
}

/* With relaxed ordering a signal overtakes its data. Without it the same device keeps the order. */
static void test_relaxed_ordering(void **state)
{
    (void)state;
    for (int relaxed = 0; relaxed < 2; relaxed++) {
        world w;
        uint64_t end = 0;
        const nic_faults faults = {.overtake_one_in = 1};
        gda_request signal = {.form = GDA_ADD_64, .operand = 7}; /* atomics are never late */
        world_begin(&w, &made_small, &faults, WORLD_ACCESS | (relaxed ? NIC_RELAXED : 0));
        made *m = queue_to(&w, 1);
        world_aim(&w, &signal, 1, 8);
        gda_to_sink(&m->queue, &signal);
        memset(w.ranks[0].heap + 256, 0x66, 64);
        assert_true(gda_transfer(&m->queue, &w.ranks[0].keys, GDA_WRITE, 1024, (uintptr_t)w.ranks[0].heap + 256, 64,
                                 &signal, &end));
        nic_turn(w.nic);
        assert_true(*word_of(&w, 1, 8) == 7);
        assert_int_equal(w.ranks[1].heap[1024], relaxed ? 0 : 0x66);
        settle(&w);
        assert_int_equal(w.ranks[1].heap[1024], 0x66);
        world_end(&w);
    }
}

/* With adaptive routing a flag that is written overtakes its data. A flag by an atomic does not. */
static void test_adaptive_routing(void **state)
{
    (void)state;
    for (int atomic = 0; atomic < 2; atomic++) {
        world w;
        uint64_t end = 0;
        const nic_faults faults = {.reroute_one_in = 1};
        gda_request signal = {
            .form = atomic ? GDA_ADD_64 : GDA_WRITE_INLINE, .operand = 7, .bytes = 8, .data = {7}, .flags = 0};
        world_begin(&w, &made_small, &faults, WORLD_ACCESS);
        made *m = queue_to(&w, 1);
        world_aim(&w, &signal, 1, 8);
        gda_to_sink(&m->queue, &signal);
        memset(w.ranks[0].heap + 256, 0x66, 64);
        /* the signal asks for no CQE, since data arrive before that */
        assert_true(gda_reserve(&m->queue, 2, &end));
        gda_request data = {.form = GDA_WRITE, .local = (uintptr_t)w.ranks[0].heap + 256, .lkey = htobe32(0x1000)};
        data.bytes = 64;
        world_aim(&w, &data, 1, 1024);
        gda_write(&m->queue, end, &data);
        gda_write(&m->queue, end + 1, &signal);
        assert_true(gda_commit(&m->queue, end, 2));
        nic_turn(w.nic);
        assert_true(*word_of(&w, 1, 8) == 7);
        assert_int_equal(w.ranks[1].heap[1024], atomic ? 0x66 : 0);
        settle(&w);
        assert_int_equal(w.ranks[1].heap[1024], 0x66);
        world_end(&w);
    }
}

/* Data of a read that is late arrives before a fence, as a flush has one, and before any CQE. */
static void test_late_reads(void **state)
{
    (void)state;
    world w;
    uint64_t base = 0;
    const nic_faults faults = {.late_reads_one_in = 1};
    world_begin(&w, &made_small, &faults, WORLD_ACCESS);
    made *m = queue_to(&w, 1);
    gda_request read = good(&w, GDA_READ), back = good(&w, GDA_WRITE);
    memset(w.ranks[1].heap + 128, 0x55, 64);
    world_aim(&w, &back, 1, 512);
    for (int fenced = 0; fenced < 2; fenced++) {
        /* the write sends on what the read brings: without a fence that is old */
        memset(w.ranks[0].heap + 256, 0x11, 64);
        back.flags = GDA_REPORT | (fenced ? (uint32_t)GDA_FENCE : 0);
        assert_true(gda_reserve(&m->queue, 2, &base));
        gda_write(&m->queue, base, &read);
        gda_write(&m->queue, base + 1, &back);
        assert_true(gda_commit(&m->queue, base, 2));
        settle(&w);
        assert_true(gda_poll(&m->queue, base + 2));
        assert_int_equal(w.ranks[0].heap[256], 0x55);
        assert_int_equal(w.ranks[1].heap[512], fenced ? 0x55 : 0x11);
    }
    world_end(&w);
}

/* ---- writes with immediate --------------------------------------------------------------------------------------- */

static void test_immediate(void **state)
{
    (void)state;
    world w;
    _Atomic uint32_t cqes[4 * GDA_CQE_WORDS];
    memset((void *)cqes, 0xff, sizeof cqes);
    world_begin(&w, &made_small, &no_faults, WORLD_ACCESS);
    /* a queue pair of rank 1 with receives, and one of rank 0 that sends to it */
    made sender, receiver;
    made_begin(&sender, &made_small);
    made_begin(&receiver, &made_small);
    nic_queue q = {.qpn = 0x51,
                   .port = 0,
                   .peer_port = 1,
                   .peer_qpn = 0x52,
                   .depth = 16,
                   .first = made_small.first,
                   .blocks = sender.blocks,
                   .record = sender.record,
                   .doorbell = &sender.doorbell,
                   .collapsed = true,
                   .cq_entries = 16,
                   .cqes = sender.cqes};
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_OK);
    q = (nic_queue){.qpn = 0x52,
                    .port = 1,
                    .peer_port = 0,
                    .peer_qpn = 0x51,
                    .depth = 16,
                    .first = made_small.first,
                    .blocks = receiver.blocks,
                    .record = receiver.record,
                    .doorbell = &receiver.doorbell,
                    .collapsed = true,
                    .cq_entries = 16,
                    .cqes = receiver.cqes,
                    .num_receives = 4,
                    .receive_cq_entries = 4,
                    .receive_cqes = cqes};
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_OK);
    sender.queue.qpn = 0x51;
    for (uint32_t i = 0; i < 11; i++) {
        gda_request r = good(&w, GDA_WRITE_IMMEDIATE);
        uint64_t end = 0;
        r.immediate = htobe32(1000 + i);
        atomic_store(&receiver.record[GDA_RECORD_RECEIVE], htobe32(i + 1)); /* one more receive is posted */
        assert_true(gda_post(&sender.queue, &r, &end));
        settle(&w);
        assert_true(gda_poll(&sender.queue, end));
        const _Atomic uint32_t *cqe = cqes + i % 4 * GDA_CQE_WORDS;
        const uint32_t last = atomic_load(&cqe[GDA_CQE_LAST]);
        assert_int_equal(gda_cqe_opcode_of(last), GDA_CQE_IMMEDIATE_CAME);
        assert_int_equal(gda_cqe_owner_of(last), i / 4 & 1);
        assert_int_equal(gda_cqe_counter_of(last), i);
        assert_int_equal(be32toh(atomic_load(&cqe[GDA_CQE_IMMEDIATE])), 1000 + i);
        assert_int_equal(be32toh(atomic_load(&cqe[GDA_CQE_BYTES])), 64);
    }
    /* no receive is left: retries, then an error */
    gda_request r = good(&w, GDA_WRITE_IMMEDIATE);
    uint64_t end = 0, retries = nic_counted(w.nic).retries;
    assert_true(gda_post(&sender.queue, &r, &end));
    settle(&w);
    assert_false(gda_poll(&sender.queue, end));
    assert_int_equal(gda_failure_syndrome(gda_error(&sender.queue)), GDA_SYNDROME_RECEIVER);
    assert_true(nic_counted(w.nic).retries == retries + no_faults.rnr_retries + 1);
    world_end(&w);
    made_end(&sender);
    made_end(&receiver);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void test_bad_input(void **state)
{
    (void)state;
    world w;
    start(&w);
    nic_memory m = {.port = 0, .key = 0x1000, .address = 8, .bytes = 8, .base = w.ranks[0].heap};
    assert_int_equal(nic_add_memory(w.nic, &m), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "key 0x1000 of port 0 is taken"));
    m.key = 1;
    m.bytes = 0;
    assert_int_equal(nic_add_memory(w.nic, &m), EXPAR_ERR_ARGUMENT);
    nic_queue q = {.qpn = 7, .depth = 12, .cq_entries = 16};
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "depth 12"));
    q.depth = 16;
    q.cq_entries = 5;
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_ERR_ARGUMENT);
    q.cq_entries = 16;
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_ERR_NULL);
    q.qpn = world_qpn(0, 1);
    assert_int_equal(nic_add_queue(w.nic, &q), EXPAR_ERR_ARGUMENT);
    /* memory that was taken away */
    const gda_request r = good(&w, GDA_WRITE);
    nic_remove_memory(w.nic, 1, 0x2010);
    assert_false(do_post(&w, &r));
    assert_int_equal(gda_failure_vendor(gda_error(&queue_to(&w, 1)->queue)), NIC_WRONG_KEY);
    world_end(&w);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* One call of the window fails: that of this number. */
static int reach_calls, reach_fails_at;

static bool reach_read(nic_window *self, void *dest, const void *at, size_t bytes)
{
    return ++reach_calls != reach_fails_at && window_read(self, dest, at, bytes);
}

static bool reach_write(nic_window *self, void *at, const void *source, size_t bytes)
{
    return ++reach_calls != reach_fails_at && window_write(self, at, source, bytes);
}

/* A put, a get and an atomic, one after another, as far as they succeed. Returns the state of the last one. */
static gda_state post_three(world *w)
{
    made *m = queue_to(w, 1);
    gda_request add = {.form = GDA_ADD_64, .operand = 1};
    uint64_t end = 0;
    gda_state state = GDA_COMPLETE;
    world_aim(w, &add, 1, 512);
    gda_to_sink(&m->queue, &add);
    for (int i = 0; i < 3 && state == GDA_COMPLETE; i++) {
        if (i < 2)
            assert_true(gda_transfer(&m->queue, &w->ranks[0].keys, i ? GDA_READ : GDA_WRITE, 0,
                                     (uintptr_t)w->ranks[0].heap, 100, NULL, &end));
        else
            assert_true(gda_post(&m->queue, &add, &end));
        settle(w);
        state = gda_look(&m->queue, end);
    }
    return state;
}

/* Whatever access fails: the request fails and says so, or it stays without an answer if its completion is lost. */
static void test_out_of_reach(void **state)
{
    (void)state;
    nic_window window = {.read = reach_read, .write = reach_write};
    int failed = 0, unanswered = 0;
    world_window = &window;
    for (reach_fails_at = 1;; reach_fails_at++) {
        world w;
        reach_calls = 0;
        start(&w);
        const gda_state seen = post_three(&w);
        const uint64_t failure = gda_error(&queue_to(&w, 1)->queue);
        world_end(&w);
        if (reach_calls < reach_fails_at) break;
        assert_int_not_equal(seen, GDA_COMPLETE);
        if (seen == GDA_NOT_YET) unanswered++;
        if (seen != GDA_FAILED) continue;
        failed++;
        assert_true(gda_failure_vendor(failure) == NIC_OUT_OF_REACH || gda_failure_vendor(failure) == NIC_WRONG_RECORD);
    }
    world_window = NULL;
    assert_int_equal(unanswered, 6); /* the two stores of three completions */
    assert_true(failed >= 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_inline),
        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_nop_dump_empty),
        cmocka_unit_test(test_rejections),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_rings),
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_lost_peer),
        cmocka_unit_test(test_silent_failure),
        cmocka_unit_test(test_overrun),
        cmocka_unit_test(test_silent_device),
        cmocka_unit_test(test_relaxed_ordering),
        cmocka_unit_test(test_adaptive_routing),
        cmocka_unit_test(test_late_reads),
        cmocka_unit_test(test_immediate),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_out_of_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
