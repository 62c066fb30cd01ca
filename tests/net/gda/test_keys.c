/* SPDX-License-Identifier: Apache-2.0 */
/* Keys by address, and transfers that are cut at the borders of chunks: against a table that a loop reads. */
#include "made.h"
#include "oracle/random.h"

#include <endian.h>

#define CHUNKS 5
#define PES    4
#define HEAP   UINT64_C(0x7f0000100000)

typedef struct table {
    uint64_t ends[CHUNKS], remotes[PES];
    uint32_t lkeys[CHUNKS], rkeys[PES * CHUNKS];
    gda_range ranges[2];
    gda_keys keys;
} table;

static void fill(table *t, uint32_t shift)
{
    static const uint64_t ends[CHUNKS] = {4096, 12288, 12296, 20480, 65536};
    *t = (table){0};
    for (uint32_t c = 0; c < CHUNKS; c++) {
        t->ends[c] = shift ? (uint64_t)(c + 1) << shift : ends[c];
        t->lkeys[c] = htobe32(0x1000 + c);
        for (uint32_t pe = 0; pe < PES; pe++)
            t->rkeys[pe * CHUNKS + c] = htobe32(0x2000 + pe * 16 + c);
    }
    if (shift) t->ends[CHUNKS - 1] -= 512; /* the last chunk may be shorter */
    for (uint32_t pe = 0; pe < PES; pe++)
        t->remotes[pe] = HEAP * 2 + ((uint64_t)pe << 40);
    t->ranges[0] = (gda_range){.begin = 0x10000, .end = 0x18000, .lkey = htobe32(0x3000)};
    t->ranges[1] = (gda_range){.begin = 0x18000, .end = 0x18100, .lkey = htobe32(0x3001)};
    t->keys = (gda_keys){.heap = HEAP,
                         .remotes = t->remotes,
                         .ends = t->ends,
                         .lkeys = t->lkeys,
                         .rkeys = t->rkeys,
                         .ranges = t->ranges,
                         .num_ranges = 2,
                         .num_pes = PES,
                         .stride = CHUNKS,
                         .shift = shift,
                         .num_chunks = CHUNKS};
}

static uint32_t chunk_by_loop(const table *t, uint64_t offset)
{
    uint32_t c = 0;
    while (c < CHUNKS && offset >= t->ends[c])
        c++;
    return c;
}

static void test_chunks(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("chunks"));
    for (uint32_t shift = 0; shift < 14; shift += 13) {
        table t;
        fill(&t, shift);
        for (uint32_t c = 0; c < CHUNKS; c++)
            for (int side = -1; side <= 1; side++) {
                const uint64_t offset = t.ends[c] + (uint64_t)(int64_t)side;
                assert_int_equal(gda_chunk_of(&t.keys, offset), chunk_by_loop(&t, offset));
            }
        for (int i = 0; i < 10000; i++) {
            const uint64_t offset = (uint64_t)random_between(&random, 0, 70000);
            assert_int_equal(gda_chunk_of(&t.keys, offset), chunk_by_loop(&t, offset));
        }
        assert_int_equal(gda_chunk_of(&t.keys, UINT64_MAX), CHUNKS);
    }
}

static void test_locals(void **state)
{
    (void)state;
    table t;
    uint32_t lkey = 0;
    uint64_t bytes = 0;
    fill(&t, 0);
    assert_true(gda_find_local(&t.keys, HEAP + 12290, &lkey, &bytes));
    assert_int_equal(be32toh(lkey), 0x1002);
    assert_int_equal(bytes, 6);
    assert_true(gda_find_local(&t.keys, 0x17fff, &lkey, &bytes));
    assert_int_equal(be32toh(lkey), 0x3000);
    assert_int_equal(bytes, 1);
    assert_true(gda_find_local(&t.keys, 0x18000, &lkey, &bytes));
    assert_int_equal(be32toh(lkey), 0x3001);
    assert_false(gda_find_local(&t.keys, 0x18100, &lkey, &bytes));
    assert_false(gda_find_local(&t.keys, 0xffff, &lkey, &bytes));
    assert_false(gda_find_local(&t.keys, HEAP - 1, &lkey, &bytes));
    assert_false(gda_find_local(&t.keys, HEAP + 65536, &lkey, &bytes));
}

/* Pieces follow each other without a gap, each within one chunk on both sides, with the keys of those chunks. */
static void check_pieces(const table *t, int32_t pe, uint64_t offset, uint64_t address, uint64_t bytes)
{
    uint32_t count = 0, expected = gda_count_pieces(&t->keys, pe, offset, address, bytes);
    for (uint64_t at = 0; at < bytes; count++) {
        gda_piece piece = {0};
        assert_true(gda_cut(&t->keys, pe, offset + at, address + at, bytes - at, &piece));
        const uint32_t there = chunk_by_loop(t, offset + at), here = chunk_by_loop(t, address + at - HEAP);
        assert_true(piece.remote == t->remotes[pe] + offset + at && piece.local == address + at);
        assert_int_equal(piece.rkey, t->rkeys[pe * CHUNKS + (int32_t)there]);
        assert_int_equal(piece.lkey, t->lkeys[here]);
        assert_true(piece.bytes > 0 && piece.bytes <= bytes - at);
        assert_int_equal(chunk_by_loop(t, offset + at + piece.bytes - 1), there);
        assert_int_equal(chunk_by_loop(t, address + at + piece.bytes - 1 - HEAP), here);
        at += piece.bytes;
    }
    assert_int_equal(count, expected);
}

static void test_pieces(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("pieces"));
    for (uint32_t shift = 0; shift < 14; shift += 13) {
        table t;
        fill(&t, shift);
        for (int i = 0; i < 5000; i++) {
            const uint64_t bytes = (uint64_t)random_between(&random, 1, 30000);
            const int64_t most = (int64_t)(t.ends[CHUNKS - 1] - bytes);
            check_pieces(&t, (int32_t)random_between(&random, 0, PES - 1), (uint64_t)random_between(&random, 0, most),
                         HEAP + (uint64_t)random_between(&random, 0, most), bytes);
        }
        /* what is not registered, at either end, and PEs that are none */
        assert_int_equal(gda_count_pieces(&t.keys, 0, t.ends[CHUNKS - 1] - 8, HEAP, 16), 0);
        assert_int_equal(gda_count_pieces(&t.keys, 0, 0, HEAP + t.ends[CHUNKS - 1] - 8, 16), 0);
        assert_int_equal(gda_count_pieces(&t.keys, PES, 0, HEAP, 8), 0);
        assert_int_equal(gda_count_pieces(&t.keys, -1, 0, HEAP, 8), 0);
        assert_int_equal(gda_count_pieces(&t.keys, 0, 0, 0x18000, 0x101), 0);
        assert_int_equal(gda_count_pieces(&t.keys, 0, 0, 0x17f00, 0x200), 2);
    }
}

/* No request is larger than 1 GiB. */
static void test_largest(void **state)
{
    (void)state;
    static const uint64_t end = UINT64_C(5) << 30, remote = 0;
    static const uint32_t key = 1;
    const gda_keys keys = {.heap = HEAP,
                           .remotes = &remote,
                           .ends = &end,
                           .lkeys = &key,
                           .rkeys = &key,
                           .num_pes = 1,
                           .stride = 1,
                           .num_chunks = 1};
    gda_piece piece = {0};
    assert_int_equal(gda_count_pieces(&keys, 0, 0, HEAP, end), 5);
    assert_int_equal(gda_count_pieces(&keys, 0, 0, HEAP, end - 1), 5);
    assert_true(gda_cut(&keys, 0, 0, HEAP, end, &piece));
    assert_int_equal(piece.bytes, 1 << 30);
}

/* A transfer of several pieces is one submission, whose last request alone reports; a signal follows the data. */
static void test_transfer(void **state)
{
    (void)state;
    for (int with_signal = 0; with_signal < 2; with_signal++) {
        table t;
        made m;
        uint64_t end = 0;
        const gda_request add = {.form = GDA_ADD_64, .operand = 1};
        fill(&t, 0);
        made_begin(&m, &made_small);
        assert_true(
            gda_transfer(&m.queue, &t.keys, GDA_WRITE, 4000, HEAP + 12000, 8496, with_signal ? &add : NULL, &end));
        const uint32_t pieces = gda_count_pieces(&t.keys, MADE_PE, 4000, HEAP + 12000, 8496);
        assert_int_equal(pieces, 7); /* cut at 4096, 12288, 12296 there, and at 12288, 12296, 20480 here */
        assert_true(end == m.plan.first + pieces + (uint64_t)with_signal);
        for (uint64_t i = m.plan.first; i < end; i++) {
            const uint8_t *block = (const uint8_t *)&m.blocks[i % m.plan.depth];
            const bool last = i + 1 == end;
            assert_int_equal(block[11], last ? GDA_REPORT : 0);
            assert_int_equal(block[3], last && with_signal ? GDA_OPCODE_FETCH_ADD : GDA_OPCODE_WRITE);
        }
        uint64_t before = end;
        assert_true(gda_transfer(&m.queue, &t.keys, GDA_WRITE, 0, HEAP, 0, NULL, &end)); /* nothing to do */
        assert_true(before == end);
        assert_false(gda_transfer(&m.queue, &t.keys, GDA_WRITE, 65530, HEAP, 8, NULL, &end));
        assert_true(before == end && atomic_load(&m.queue.resv_head) == end);
        made_end(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),  cmocka_unit_test(test_locals),   cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_largest), cmocka_unit_test(test_transfer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
