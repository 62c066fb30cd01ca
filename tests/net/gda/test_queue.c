/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a queue, step by step. The test is the device: it reads what was rung and writes completions. */
#include "made.h"
#include "oracle/random.h"

#include <endian.h>
#include <stdio.h>

static const gda_request nop = {.form = GDA_NOP, .flags = GDA_REPORT};

/* ---- the device's side ------------------------------------------------------------------------------------------- */

/* Completes the request at that index, by the words of a CQE. */
static void complete_at(_Atomic uint32_t *cqe, uint64_t index, uint32_t opcode, uint32_t owner, uint32_t syndrome)
{
    const uint32_t low = (uint32_t)index & 0xffff;
    atomic_store(&cqe[GDA_CQE_SYNDROME], syndrome << 24 | 0x77 << 16);
    atomic_store(&cqe[GDA_CQE_LAST], (opcode << 4 | owner) << 24 | (low & 0xff) << 8 | low >> 8);
}

static void complete(made *m, uint64_t index)
{
    complete_at(m->cqes, index, GDA_CQE_REQUEST, 0, 0);
}

static void fail_request(made *m, uint64_t index, uint32_t syndrome)
{
    complete_at(m->cqes, index, GDA_CQE_REQUEST_FAILED, 0, syndrome);
}

/* Checks what the device was told last: the end of the rung blocks, or that nothing was. */
static void assert_rung(made *m, uint64_t end)
{
    const uint32_t register_words[2] = {htobe32((uint32_t)(end & 0xffff) << 8), htobe32(MADE_QPN << 8)};
    const uint64_t seen = atomic_exchange(&m->doorbell, 0);
    assert_memory_equal(&seen, register_words, sizeof seen);
    assert_int_equal(be32toh(atomic_load(&m->record[GDA_RECORD_SEND])), end & 0xffff);
}

static void assert_not_rung(made *m)
{
    assert_true(atomic_load(&m->doorbell) == 0);
}

static uint64_t reserved(made *m, uint32_t blocks)
{
    uint64_t base = 0;
    assert_true(gda_reserve(&m->queue, blocks, &base));
    return base;
}

static void write_nops(made *m, uint64_t base, uint32_t blocks)
{
    for (uint32_t i = 0; i < blocks; i++)
        gda_write(&m->queue, base + i, &nop);
}

/* ---- reserve, write, commit, ring -------------------------------------------------------------------------------- */

static void test_posting(void **state)
{
    (void)state;
    made m;
    made_begin(&m, &made_small);
    uint64_t first = m.plan.first;
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t end = 0;
        gda_block expected[GDA_REQUEST_BLOCKS];
        assert_true(gda_post(&m.queue, &nop, &end));
        assert_true(end == first + i + 1);
        assert_rung(&m, end);
        gda_encode(expected, &nop, end - 1, MADE_QPN);
        assert_memory_equal(&m.blocks[(end - 1) % m.plan.depth], expected, GDA_BLOCK_BYTES);
        assert_int_equal(gda_look(&m.queue, end), GDA_NOT_YET);
        complete(&m, end - 1);
        assert_int_equal(gda_look(&m.queue, end), GDA_COMPLETE);
        assert_true(atomic_load(&m.queue.cons_idx) == end);
    }
    made_end(&m);
}

/* Blocks of one request wrap with the queue. */
static void test_wide_request(void **state)
{
    (void)state;
    made m;
    gda_request swap = {.form = GDA_SWAP_MASKED_64, .operand = 5, .swap_mask = UINT64_MAX};
    made_begin(&m, &made_small);
    for (uint64_t shift = 0; shift < 16; shift++) {
        gda_block expected[GDA_REQUEST_BLOCKS];
        uint64_t end = 0;
        assert_true(gda_post(&m.queue, &swap, &end));
        gda_request reports = swap;
        reports.flags = GDA_REPORT;
        gda_encode(expected, &reports, end - 3, MADE_QPN);
        for (uint64_t i = 0; i < 3; i++)
            assert_memory_equal(&m.blocks[(end - 3 + i) % m.plan.depth], &expected[i], GDA_BLOCK_BYTES);
        /* the NOP reports: its counter stands for the whole request */
        assert_int_equal(((uint8_t *)&expected[0])[11] & GDA_REPORT, 0);
        assert_int_equal(((uint8_t *)&expected[2])[11] & GDA_REPORT, GDA_REPORT);
        complete(&m, end - 1);
        assert_true(gda_poll(&m.queue, end));
    }
    made_end(&m);
}

/* A thread with a reservation after it leaves the ring to that one, unless it crosses a border of the batch. */
static void test_who_rings(void **state)
{
    (void)state;
    made m;
    gda_plan plan = made_small;
    plan.first = 0;
    made_begin(&m, &plan);
    uint64_t a = reserved(&m, 1), b = reserved(&m, 1);
    write_nops(&m, a, 1);
    assert_true(gda_commit(&m.queue, a, 1));
    assert_not_rung(&m);
    write_nops(&m, b, 1);
    assert_true(gda_commit(&m.queue, b, 1));
    assert_rung(&m, 2);
    uint64_t c = reserved(&m, 2), d = reserved(&m, 1), e = reserved(&m, 2), f = reserved(&m, 1);
    assert_true(gda_commit(&m.queue, c, 2)); /* [2, 4) ends at the border */
    assert_rung(&m, 4);
    assert_true(gda_commit(&m.queue, d, 1)); /* [4, 5) */
    assert_not_rung(&m);
    assert_true(gda_commit(&m.queue, e, 2)); /* [5, 7) */
    assert_not_rung(&m);
    assert_true(gda_commit(&m.queue, f, 1));
    assert_rung(&m, 8);
    made_end(&m);
}

static void test_cpu_rings(void **state)
{
    (void)state;
    made m;
    gda_plan plan = made_small;
    uint64_t rung = plan.first, end = 0;
    plan.ringer = GDA_RINGER_CPU;
    made_begin(&m, &plan);
    assert_int_equal(gda_ring_for(&m.queue, &rung), 0);
    assert_true(gda_post(&m.queue, &nop, &end));
    assert_not_rung(&m);
    assert_int_equal(gda_ring_for(&m.queue, &rung), 1);
    assert_rung(&m, end);
    assert_int_equal(gda_ring_for(&m.queue, &rung), 0);
    made_end(&m);
}

/* No block is reserved again before it is complete. */
static void test_full(void **state)
{
    (void)state;
    made m;
    uint64_t base = 0, first = made_small.first;
    made_begin(&m, &made_small);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(gda_try_reserve(&m.queue, 1, &base), GDA_COMPLETE);
        assert_true(base == first + i);
        write_nops(&m, base, 1);
        assert_true(gda_commit(&m.queue, base, 1));
    }
    assert_int_equal(gda_try_reserve(&m.queue, 1, &base), GDA_NOT_YET);
    assert_true(atomic_load(&m.queue.resv_head) == first + 16);
    complete(&m, first + 4);
    assert_int_equal(gda_try_reserve(&m.queue, 6, &base), GDA_NOT_YET);
    assert_int_equal(gda_try_reserve(&m.queue, 5, &base), GDA_COMPLETE);
    assert_true(base == first + 16);
    made_end(&m);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

/* The window of a collapsed queue against counters of 64 bits: whatever is in flight, wherever 16 bits wrap. */
static void check_window(random_source *random, uint32_t entries)
{
    made m;
    gda_plan plan = made_small;
    plan.depth = plan.cq_entries = entries;
    plan.first = (uint64_t)random_between(random, 0, 1 << 20);
    made_begin(&m, &plan);
    uint64_t done = plan.first, rung = plan.first;
    for (int step = 0; step < 4000; step++) {
        rung += (uint64_t)random_between(random, 0, (int64_t)(entries - (rung - done)));
        atomic_store(&m.queue.prod_idx, rung);
        if (rung == done) continue;
        uint64_t index = done + (uint64_t)random_between(random, 1, (int64_t)(rung - done));
        assert_int_equal(gda_look(&m.queue, index), GDA_NOT_YET);
        assert_true(atomic_load(&m.queue.cons_idx) <= done);
        done += (uint64_t)random_between(random, 1, (int64_t)(rung - done));
        complete(&m, done - 1);
        assert_int_equal(gda_look(&m.queue, index), index <= done ? GDA_COMPLETE : GDA_NOT_YET);
        assert_int_equal(gda_look(&m.queue, done), GDA_COMPLETE);
        assert_true(atomic_load(&m.queue.cons_idx) == done);
        assert_int_equal(gda_look(&m.queue, rung + 1), GDA_NOT_YET); /* it is not rung */
    }
    made_end(&m);
}

static void test_window(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("window"));
    static const uint32_t entries[] = {16, 64, 1024, 32768};
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        for (int round = 0; round < 4; round++)
            check_window(&random, entries[i]);
}

/* A completion queue with an entry for each: owner bits over many turns, completions that stand for several requests.
   */
static void test_owner_bits(void **state)
{
    (void)state;
    made m;
    gda_plan plan = made_small;
    random_source random = random_start(random_test_seed("owner bits"));
    plan.collapsed = false;
    made_begin(&m, &plan);
    uint64_t done = plan.first, written = 0;
    for (int step = 0; step < 4000; step++) {
        uint64_t end = done + (uint64_t)random_between(&random, 1, 16);
        atomic_store(&m.queue.prod_idx, end);
        assert_int_equal(gda_look(&m.queue, done + 1), GDA_NOT_YET);
        while (done < end) {
            done += (uint64_t)random_between(&random, 1, (int64_t)(end - done));
            complete_at(m.cqes + written % 16 * GDA_CQE_WORDS, done - 1, GDA_CQE_REQUEST, written / 16 & 1, 0);
            written++;
        }
        assert_int_equal(gda_look(&m.queue, end), GDA_COMPLETE);
        assert_true(atomic_load(&m.queue.cons_idx) == end);
        assert_int_equal(be32toh(atomic_load(&m.cq_record)), written & 0xffffff);
    }
    made_end(&m);
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static void assert_failed(made *m, uint32_t syndrome, uint64_t index)
{
    uint64_t base = 0, end = 0, failure = gda_error(&m->queue);
    assert_int_equal(gda_failure_by(failure), GDA_FAILED_BY_DEVICE);
    assert_int_equal(gda_failure_syndrome(failure), syndrome);
    assert_int_equal(gda_failure_vendor(failure), 0x77);
    assert_int_equal(gda_failure_index(failure), index & 0xffff);
    assert_true(atomic_load(&m->told) == failure);
    assert_false(gda_reserve(&m->queue, 1, &base));
    assert_int_equal(gda_try_reserve(&m->queue, 1, &base), GDA_FAILED);
    assert_false(gda_post(&m->queue, &nop, &end));
    assert_false(gda_quiet(&m->queue));
    assert_false(gda_take_results(&m->queue, 1, &base));
}

/* A thread that waits for a request sees that an earlier one has failed. */
static void test_earlier_failure(void **state)
{
    (void)state;
    made m;
    uint64_t first = made_small.first, end = 0;
    made_begin(&m, &made_small);
    for (int i = 0; i < 4; i++)
        assert_true(gda_post(&m.queue, &nop, &end));
    fail_request(&m, first + 1, GDA_SYNDROME_REMOTE_ACCESS);
    assert_false(gda_poll(&m.queue, end));
    assert_failed(&m, GDA_SYNDROME_REMOTE_ACCESS, first + 1);
    /* flushed requests do not hide the cause */
    fail_request(&m, first + 2, GDA_SYNDROME_FLUSHED);
    gda_look_collapsed(&m.queue, end);
    assert_failed(&m, GDA_SYNDROME_REMOTE_ACCESS, first + 1);
    /* nor does another cause */
    fail_request(&m, first + 3, GDA_SYNDROME_RETRIES);
    gda_look_collapsed(&m.queue, end);
    assert_failed(&m, GDA_SYNDROME_REMOTE_ACCESS, first + 1);
    made_end(&m);
}

/* Where a flushed request was seen first, a cause that is seen later replaces it. */
static void test_cause_replaces_flush(void **state)
{
    (void)state;
    made m;
    uint64_t first = made_small.first, end = 0;
    char text[256];
    made_begin(&m, &made_small);
    assert_true(gda_post(&m.queue, &nop, &end));
    fail_request(&m, first, GDA_SYNDROME_FLUSHED);
    assert_false(gda_poll(&m.queue, end));
    assert_true(gda_cause_is_unseen(gda_error(&m.queue)));
    assert_failed(&m, GDA_SYNDROME_FLUSHED, first);
    gda_failure_text(gda_error(&m.queue), MADE_PE, text, sizeof text);
    assert_non_null(strstr(text, "cause not seen"));
    gda_remember(&m.queue, gda_failure(GDA_FAILED_BY_DEVICE, GDA_SYNDROME_RECEIVER, 0x77, (uint32_t)first));
    assert_failed(&m, GDA_SYNDROME_RECEIVER, first);
    gda_failure_text(gda_error(&m.queue), MADE_PE, text, sizeof text);
    assert_string_equal(text, "request 65528 to PE 3 failed with syndrome 0x16, vendor 0x77: the peer has no receive "
                              "request");
    made_end(&m);
}

/* With an entry for each completion the cause is read first, however late. */
static void test_failure_in_entries(void **state)
{
    (void)state;
    made m;
    gda_plan plan = made_small;
    uint64_t end = 0;
    plan.collapsed = false;
    made_begin(&m, &plan);
    for (int i = 0; i < 3; i++)
        assert_true(gda_post(&m.queue, &nop, &end));
    complete_at(m.cqes, plan.first, GDA_CQE_REQUEST, 0, 0);
    complete_at(m.cqes + GDA_CQE_WORDS, plan.first + 1, GDA_CQE_REQUEST_FAILED, 0, GDA_SYNDROME_REMOTE_ACCESS);
    complete_at(m.cqes + 2 * GDA_CQE_WORDS, plan.first + 2, GDA_CQE_REQUEST_FAILED, 0, GDA_SYNDROME_FLUSHED);
    assert_false(gda_poll(&m.queue, end));
    assert_failed(&m, GDA_SYNDROME_REMOTE_ACCESS, plan.first + 1);
    made_end(&m);
}

/* The host ends all waits: of a poll, a commit, a reservation, for result slots. */
static void test_host_ends_waits(void **state)
{
    (void)state;
    const uint64_t stop = gda_failure(GDA_FAILED_BY_HOST, GDA_NO_ANSWER, 0, 9);
    char text[256];
    for (int wait = 0; wait < 5; wait++) {
        made m;
        uint64_t end = 0, number = 0, base = made_small.first;
        made_begin(&m, &made_small);
        atomic_store(&m.stop, stop);
        if (wait == 0) assert_true(gda_post(&m.queue, &nop, &end) && !gda_poll(&m.queue, end));
        if (wait == 1) assert_false(gda_commit(&m.queue, base + 1, 1)); /* nobody commits the one before */
        if (wait == 2) {
            for (int i = 0; i < 2; i++)
                reserved(&m, 8);
            assert_false(gda_reserve(&m.queue, 1, &base));
        }
        if (wait == 3) {
            assert_true(gda_take_results(&m.queue, 4, &number));
            assert_false(gda_take_results(&m.queue, 1, &number));
        }
        if (wait == 4) assert_false(gda_give_results(&m.queue, 1, 1));
        assert_true(gda_error(&m.queue) == stop && atomic_load(&m.told) == stop);
        gda_failure_text(gda_error(&m.queue), MADE_PE, text, sizeof text);
        assert_non_null(strstr(text, "PE 3 were given up: the device or the peer does not answer"));
        assert_non_null(strstr(text, "no completion from request 9 on"));
        made_end(&m);
    }
}

/* ---- results and flushes ----------------------------------------------------------------------------------------- */

static void test_results(void **state)
{
    (void)state;
    made m;
    uint64_t number = 0, first = 0;
    made_begin(&m, &made_small);
    assert_true(gda_take_results(&m.queue, 3, &first));
    assert_true(gda_take_results(&m.queue, 1, &number));
    assert_int_equal(number, first + 3);
    m.results[1] = UINT64_C(0x0102030405060708);
    m.results[2] = 0xeeeeeeee00000000 | htobe32(0x11223344);
    assert_true(gda_result(&m.queue, first, 8) == UINT64_C(0x0102030405060708));
    assert_true(gda_result(&m.queue, first + 1, 4) == 0x11223344);
    assert_true(gda_result_address(&m.queue, first + 1) == (uintptr_t)&m.results[2]);
    assert_true(gda_give_results(&m.queue, first, 3));
    assert_true(gda_give_results(&m.queue, number, 1));
    /* the ring comes round, and slot 0 stays the sink */
    for (uint64_t i = 4; i < 20; i++) {
        assert_true(gda_take_results(&m.queue, 1, &number));
        assert_int_equal(number, i);
        assert_true(gda_result_address(&m.queue, number) == (uintptr_t)&m.results[1 + i % 4]);
        assert_true(gda_give_results(&m.queue, number, 1));
    }
    gda_request add = {.form = GDA_ADD_64};
    gda_to_sink(&m.queue, &add);
    assert_true(add.local == (uintptr_t)m.results && add.lkey == MADE_LKEY);
    made_end(&m);
}

/* A get that nobody has waited for is followed by a DUMP when quiet comes. */
static void test_quiet_flushes(void **state)
{
    (void)state;
    for (int flushes = 0; flushes < 2; flushes++) {
        made m;
        gda_plan plan = made_small;
        uint64_t end = 0, first = plan.first;
        gda_request read = {.form = GDA_READ, .bytes = 8};
        plan.flushes = flushes;
        made_begin(&m, &plan);
        assert_true(gda_post(&m.queue, &read, &end));
        gda_note_get(&m.queue, end);
        complete(&m, first + (uint64_t)flushes);
        assert_true(gda_quiet(&m.queue));
        assert_true(atomic_load(&m.queue.ready_head) == end + (uint64_t)flushes);
        assert_true(gda_quiet(&m.queue)); /* nothing is left to flush */
        assert_true(atomic_load(&m.queue.ready_head) == end + (uint64_t)flushes);
        if (flushes) {
            const uint8_t *dump = (const uint8_t *)&m.blocks[end % plan.depth];
            assert_int_equal(dump[3], GDA_OPCODE_DUMP);
            assert_int_equal(dump[11], GDA_FENCE | GDA_REPORT);
            assert_int_equal(dump[7], 2);
        }
        made_end(&m);
    }
}

/* ---- numbers that cannot be -------------------------------------------------------------------------------------- */

static void rejects(gda_plan plan, const char *text)
{
    assert_int_equal(gda_plan_check(&plan), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), text));
}

static void test_plans(void **state)
{
    (void)state;
    gda_plan plan = made_small;
    plan.depth = 12;
    rejects(plan, "depth is 12, expected a power of two up to 32768");
    plan.depth = plan.cq_entries = 65536;
    rejects(plan, "depth is 65536");
    plan = made_small;
    plan.cq_entries = 8;
    rejects(plan, "cq_entries is 8, expected a power of two from the depth, 16");
    plan = made_small;
    plan.batch = 3;
    rejects(plan, "batch is 3");
    plan = made_small;
    plan.batch = 16;
    rejects(plan, "depth is 16, expected at least batch + most, 16 + 8");
    plan = made_small;
    plan.most = 2;
    rejects(plan, "most is 2");
    plan = made_small;
    plan.num_results = 0;
    rejects(plan, "num_results is 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posting),
        cmocka_unit_test(test_wide_request),
        cmocka_unit_test(test_who_rings),
        cmocka_unit_test(test_cpu_rings),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_owner_bits),
        cmocka_unit_test(test_earlier_failure),
        cmocka_unit_test(test_cause_replaces_flush),
        cmocka_unit_test(test_failure_in_entries),
        cmocka_unit_test(test_host_ends_waits),
        cmocka_unit_test(test_results),
        cmocka_unit_test(test_quiet_flushes),
        cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
