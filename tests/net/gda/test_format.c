/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that device code writes and reads are those of mlx5dv.h: every form of request, the doorbell's record and
 * register, completions. A change of any one field changes the bytes of that field and no others. */
#include "oracle/random.h"
#include "reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ROUNDS 2000
static const gda_form forms[] = {GDA_NOP,           GDA_WRITE,          GDA_WRITE_IMMEDIATE, GDA_WRITE_INLINE,
                                 GDA_READ,          GDA_ADD_64,         GDA_COMPARE_SWAP_64, GDA_ADD_MASKED_32,
                                 GDA_ADD_MASKED_64, GDA_SWAP_MASKED_32, GDA_SWAP_MASKED_64,  GDA_DUMP};
#define NUM_FORMS (sizeof forms / sizeof *forms)

typedef struct posted {
    gda_request request;
    uint64_t index;
    uint32_t qpn;
} posted;

static uint32_t any_flags(random_source *random)
{
    static const uint32_t fences[] = {0, GDA_FENCE_SMALL, GDA_FENCE, GDA_FENCE_STRONG, GDA_FENCE_AND_SMALL};
    return fences[random_between(random, 0, 4)] | (random_bits(random) & 1 ? (uint32_t)GDA_REPORT : 0) |
           (random_bits(random) & 1 ? (uint32_t)GDA_SOLICITED : 0);
}

static posted any_request(random_source *random, gda_form form)
{
    posted p = {.index = random_bits(random), .qpn = (uint32_t)random_bits(random) & GDA_QPN_MASK};
    gda_request *r = &p.request;
    *r = (gda_request){.form = form,
                       .flags = any_flags(random),
                       .remote = random_bits(random),
                       .local = random_bits(random),
                       .rkey = (uint32_t)random_bits(random),
                       .lkey = (uint32_t)random_bits(random),
                       .bytes = (uint32_t)random_between(random, 0, GDA_MOST_BYTES),
                       .immediate = (uint32_t)random_bits(random),
                       .operand = random_bits(random),
                       .compare = random_bits(random),
                       .swap_mask = random_bits(random),
                       .compare_mask = random_bits(random)};
    if (form == GDA_WRITE_INLINE) {
        r->bytes = (uint32_t)random_between(random, 1, GDA_MOST_INLINE);
        for (size_t i = 0; i < r->bytes; i++)
            ((uint8_t *)r->data)[i] = (uint8_t)random_bits(random);
    }
    return p;
}

static size_t encoded(const posted *p, uint8_t *bytes)
{
    gda_block blocks[GDA_REQUEST_BLOCKS];
    size_t length = (size_t)gda_blocks_of(p->request.form) * GDA_BLOCK_BYTES;
    memset(blocks, 0xa5, sizeof blocks); /* nothing may be left of what was there */
    gda_encode(blocks, &p->request, p->index, p->qpn);
    memcpy(bytes, blocks, length);
    return length;
}

static void test_requests(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("requests"));
    for (int64_t round = 0; round < random_test_rounds(ROUNDS); round++)
        for (size_t f = 0; f < NUM_FORMS; f++) {
            posted p = any_request(&random, forms[f]);
            reference_blocks expected;
            uint8_t bytes[sizeof expected];
            reference_build(&expected, &p.request, p.index, p.qpn);
            assert_memory_equal(expected.bytes, bytes, encoded(&p, bytes));
        }
}

/* Bounds between which a form changes its shape. */
static void test_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, 1, 12, 13, 28, 4096, GDA_MOST_BYTES};
    random_source random = random_start(3);
    for (size_t f = 0; f < NUM_FORMS; f++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            posted p = any_request(&random, forms[f]);
            if (p.request.form == GDA_WRITE_INLINE && (lengths[i] == 0 || lengths[i] > GDA_MOST_INLINE)) continue;
            p.request.bytes = lengths[i];
            reference_blocks expected;
            uint8_t bytes[sizeof expected];
            reference_build(&expected, &p.request, p.index, p.qpn);
            assert_memory_equal(expected.bytes, bytes, encoded(&p, bytes));
        }
}

/* ---- one field at a time ----------------------------------------------------------------------------------------- */

/* A field of a request: what it is called, and the bytes [first, last] where the format has it. */
typedef struct field {
    gda_form form;
    const char *name;
    size_t first, last;
} field;

#define CONTROL(form)                                                                                                  \
    {form, "index", 1, 2}, {form, "qpn", 4, 6},                                                                        \
    {                                                                                                                  \
        form, "flags", 11, 11                                                                                          \
    }
#define TRANSFER(form)                                                                                                 \
    CONTROL(form), {form, "remote", 16, 23}, {form, "rkey", 24, 27}, {form, "bytes", 32, 35}, {form, "lkey", 36, 39},  \
    {                                                                                                                  \
        form, "local", 40, 47                                                                                          \
    }
#define ATOMIC(form)                                                                                                   \
    CONTROL(form), {form, "remote", 16, 23}, {form, "rkey", 24, 27}, {form, "lkey", 52, 55},                           \
    {                                                                                                                  \
        form, "local", 56, 63                                                                                          \
    }

static const field fields[] = {
    CONTROL(GDA_NOP),
    CONTROL(GDA_DUMP),
    {GDA_DUMP, "lkey", 20, 23},
    {GDA_DUMP, "local", 24, 31},
    TRANSFER(GDA_WRITE),
    TRANSFER(GDA_READ),
    TRANSFER(GDA_WRITE_IMMEDIATE),
    {GDA_WRITE_IMMEDIATE, "immediate", 12, 15},
    CONTROL(GDA_WRITE_INLINE),
    {GDA_WRITE_INLINE, "remote", 16, 23},
    {GDA_WRITE_INLINE, "rkey", 24, 27},
    {GDA_WRITE_INLINE, "data", 36, 63},
    ATOMIC(GDA_ADD_64),
    {GDA_ADD_64, "operand", 32, 39},
    ATOMIC(GDA_COMPARE_SWAP_64),
    {GDA_COMPARE_SWAP_64, "operand", 32, 39},
    {GDA_COMPARE_SWAP_64, "compare", 40, 47},
    ATOMIC(GDA_ADD_MASKED_32),
    {GDA_ADD_MASKED_32, "operand", 32, 35},
    {GDA_ADD_MASKED_32, "compare_mask", 36, 39},
    ATOMIC(GDA_ADD_MASKED_64),
    {GDA_ADD_MASKED_64, "operand", 32, 39},
    {GDA_ADD_MASKED_64, "compare_mask", 40, 47},
    ATOMIC(GDA_SWAP_MASKED_32),
    {GDA_SWAP_MASKED_32, "operand", 32, 35},
    {GDA_SWAP_MASKED_32, "compare", 36, 39},
    {GDA_SWAP_MASKED_32, "swap_mask", 40, 43},
    {GDA_SWAP_MASKED_32, "compare_mask", 44, 47},
    {GDA_SWAP_MASKED_64, "remote", 16, 23},
    {GDA_SWAP_MASKED_64, "rkey", 24, 27},
    {GDA_SWAP_MASKED_64, "operand", 32, 39},
    {GDA_SWAP_MASKED_64, "compare", 40, 47},
    {GDA_SWAP_MASKED_64, "swap_mask", 48, 55},
    {GDA_SWAP_MASKED_64, "compare_mask", 56, 63},
    {GDA_SWAP_MASKED_64, "lkey", 68, 71},
    {GDA_SWAP_MASKED_64, "local", 72, 79},
};
#define NUM_FIELDS (sizeof fields / sizeof *fields)

/* Changes one field, by a bit that all forms keep. */
static void change(posted *p, const char *name, random_source *random)
{
    gda_request *r = &p->request;
    const uint64_t bit = UINT64_C(1) << random_between(random, 0, 15);
    if (strcmp(name, "index") == 0) p->index ^= bit;
    if (strcmp(name, "qpn") == 0) p->qpn ^= (uint32_t)bit;
    if (strcmp(name, "flags") == 0) r->flags ^= GDA_REPORT;
    if (strcmp(name, "remote") == 0) r->remote ^= bit << 32;
    if (strcmp(name, "local") == 0) r->local ^= bit << 32;
    if (strcmp(name, "rkey") == 0) r->rkey ^= (uint32_t)bit;
    if (strcmp(name, "lkey") == 0) r->lkey ^= (uint32_t)bit;
    if (strcmp(name, "bytes") == 0) r->bytes ^= (uint32_t)bit;
    if (strcmp(name, "immediate") == 0) r->immediate ^= (uint32_t)bit;
    if (strcmp(name, "operand") == 0) r->operand ^= bit;
    if (strcmp(name, "compare") == 0) r->compare ^= bit;
    if (strcmp(name, "swap_mask") == 0) r->swap_mask ^= bit;
    if (strcmp(name, "compare_mask") == 0) r->compare_mask ^= bit;
    if (strcmp(name, "data") == 0) r->data[random_between(random, 0, 6)] ^= (uint32_t)bit;
}

/* An encoder that forgets a field, swaps two, or puts one elsewhere fails here. Only bytes in the field's place differ.
   Bytes made with the change are not those of mlx5dv.h without it. */
static void check_field(const field *f, random_source *random)
{
    posted p = any_request(random, f->form);
    p.request.bytes = f->form == GDA_WRITE_INLINE ? GDA_MOST_INLINE : 1 << 20;
    posted q = p;
    reference_blocks expected;
    uint8_t bytes[sizeof expected], other[sizeof expected];
    reference_build(&expected, &p.request, p.index, p.qpn);
    size_t length = encoded(&p, bytes), first = length, last = 0;
    change(&q, f->name, random);
    assert_int_equal(encoded(&q, other), length);
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != other[i]) {
            first = first < i ? first : i;
            last = i;
        }
    if (first < f->first || last > f->last || first > last)
        fail_msg("form %d, %s: bytes %zu to %zu change, not within %zu to %zu", (int)f->form, f->name, first, last,
                 f->first, f->last);
    assert_memory_not_equal(expected.bytes, other, length);
    reference_build(&expected, &q.request, q.index, q.qpn);
    assert_memory_equal(expected.bytes, other, length);
}

static void test_fields(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("fields"));
    for (int round = 0; round < 64; round++)
        for (size_t i = 0; i < NUM_FIELDS; i++)
            check_field(&fields[i], &random);
}

/* Every form has its own first segment, so that no opcode or opmod is mistaken. */
static void test_opcodes(void **state)
{
    (void)state;
    static const uint8_t expected[NUM_FORMS][2] = {{0, 0x00}, {0, 0x08}, {0, 0x09}, {0, 0x08}, {0, 0x10}, {0, 0x12},
                                                   {0, 0x11}, {8, 0x15}, {9, 0x15}, {8, 0x14}, {9, 0x14}, {0, 0x23}};
    random_source random = random_start(5);
    for (size_t f = 0; f < NUM_FORMS; f++) {
        posted p = any_request(&random, forms[f]);
        uint8_t bytes[GDA_REQUEST_BLOCKS * GDA_BLOCK_BYTES];
        encoded(&p, bytes);
        assert_int_equal(bytes[0], expected[f][0]);
        assert_int_equal(bytes[3], expected[f][1]);
    }
    assert_int_equal(GDA_REPORT, MLX5_WQE_CTRL_CQ_UPDATE);
    assert_int_equal(GDA_SOLICITED, MLX5_WQE_CTRL_SOLICITED);
    assert_int_equal(GDA_FENCE_SMALL, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE);
    assert_int_equal(GDA_FENCE_AND_SMALL, MLX5_WQE_CTRL_FENCE);
    assert_int_equal(GDA_BLOCK_BYTES, MLX5_SEND_WQE_BB);
}

/* ---- doorbells --------------------------------------------------------------------------------------------------- */

static void test_doorbells(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("doorbells"));
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t index = random_bits(&random), word;
        uint32_t qpn = (uint32_t)random_bits(&random) & GDA_QPN_MASK, record = gda_record_word(index);
        __be32 expected[2] = {htobe32((uint32_t)(index & 0xffff) << 8), htobe32(qpn << 8)};
        word = gda_register_word(index, qpn);
        assert_memory_equal(&word, expected, 8);
        expected[0] = htobe32((uint32_t)(index & 0xffff));
        assert_memory_equal(&record, expected, 4);
    }
    /* rdma-core counts receives in word 0 of a record, and blocks of the send queue in word 1 */
    assert_int_equal(GDA_RECORD_RECEIVE, 0);
    assert_int_equal(GDA_RECORD_SEND, 1);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

static void test_completions(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("completions"));
    for (int round = 0; round < ROUNDS; round++) {
        union {
            struct mlx5_cqe64 cqe;
            struct mlx5_err_cqe error;
            uint32_t words[GDA_CQE_WORDS];
        } seen = {0};
        uint16_t counter = (uint16_t)random_bits(&random);
        uint8_t opcode = (uint8_t)random_between(&random, 0, 15), owner = (uint8_t)random_between(&random, 0, 1);
        seen.cqe.op_own = (uint8_t)(opcode << 4);
        mlx5dv_set_cqe_owner(&seen.cqe, owner);
        seen.cqe.wqe_counter = htobe16(counter);
        seen.cqe.signature = (uint8_t)random_bits(&random);
        seen.cqe.imm_inval_pkey = htobe32(77);
        seen.cqe.byte_cnt = htobe32(88);
        seen.cqe.sop_drop_qpn = htobe32(99);
        assert_int_equal(gda_cqe_opcode_of(seen.words[GDA_CQE_LAST]), mlx5dv_get_cqe_opcode(&seen.cqe));
        assert_int_equal(gda_cqe_owner_of(seen.words[GDA_CQE_LAST]), mlx5dv_get_cqe_owner(&seen.cqe));
        assert_int_equal(gda_cqe_counter_of(seen.words[GDA_CQE_LAST]), counter);
        assert_int_equal(gda_be32(seen.words[GDA_CQE_IMMEDIATE]), 77);
        assert_int_equal(gda_be32(seen.words[GDA_CQE_BYTES]), 88);
        assert_int_equal(gda_be32(seen.words[GDA_CQE_QPN]), 99);
        seen.error.syndrome = (uint8_t)random_bits(&random);
        seen.error.vendor_err_synd = (uint8_t)random_bits(&random);
        assert_int_equal(gda_cqe_syndrome_of(seen.words[GDA_CQE_SYNDROME]), seen.error.syndrome);
        assert_int_equal(gda_cqe_vendor_of(seen.words[GDA_CQE_SYNDROME]), seen.error.vendor_err_synd);
    }
    assert_int_equal(GDA_CQE_REQUEST, MLX5_CQE_REQ);
    assert_int_equal(GDA_CQE_IMMEDIATE_CAME, MLX5_CQE_RESP_WR_IMM);
    assert_int_equal(GDA_CQE_REQUEST_FAILED, MLX5_CQE_REQ_ERR);
    assert_int_equal(GDA_CQE_RESPONSE_FAILED, MLX5_CQE_RESP_ERR);
    assert_int_equal(GDA_CQE_INVALID, MLX5_CQE_INVALID);
    assert_int_equal(GDA_SYNDROME_LOCAL_LENGTH, MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
    assert_int_equal(GDA_SYNDROME_LOCAL_OPERATION, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    assert_int_equal(GDA_SYNDROME_LOCAL_PROTECTION, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    assert_int_equal(GDA_SYNDROME_FLUSHED, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    assert_int_equal(GDA_SYNDROME_REMOTE_INVALID, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR);
    assert_int_equal(GDA_SYNDROME_REMOTE_ACCESS, MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR);
    assert_int_equal(GDA_SYNDROME_REMOTE_OPERATION, MLX5_CQE_SYNDROME_REMOTE_OP_ERR);
    assert_int_equal(GDA_SYNDROME_RETRIES, MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR);
    assert_int_equal(GDA_SYNDROME_RECEIVER, MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR);
    assert_int_equal(GDA_SYNDROME_ABORTED, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests), cmocka_unit_test(test_lengths),   cmocka_unit_test(test_fields),
        cmocka_unit_test(test_opcodes),  cmocka_unit_test(test_doorbells), cmocka_unit_test(test_completions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
