/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of kernels that test handles, one block on each rank. For GPUs and as C17, where each thread of the block
 * is a thread of the host. The words of a call:
 *   0: flag of the sender;
 *   1: acknowledgements of the receiver;
 *   2: counter;
 *   3 and 4: store buffering;
 *   8 …: one for each rank. After them come marks of numbers that were counted. */
#ifndef TESTS_CUDA_KERNELS_HANDLES_BODIES_H
#define TESTS_CUDA_KERNELS_HANDLES_BODIES_H

#include "tests/cuda/kernels/handles.h"

#ifdef __CUDACC__
#define BODY_FUNC static inline __device__
#else
#define BODY_FUNC static inline
#endif
#define BODY_RANK_WORD(rank) (8 + (rank))
#define BODY_MARK(number)    (64 + (number))
/* Apart from each other, since the host joins puts that touch. */
#define BODY_SENT(number) (8 + 2 * (number))

BODY_FUNC expar_uint32 body_thread(void)
{
    return expar_dev_place_in(EXPAR_DEV_BLOCK).index;
}
BODY_FUNC expar_uint32 body_threads(void)
{
    return expar_dev_place_in(EXPAR_DEV_BLOCK).count;
}
BODY_FUNC void body_meet(void)
{
    expar_dev_meet(EXPAR_DEV_BLOCK);
}
BODY_FUNC void body_wrong(const handles_call *c)
{
    expar_dev_add_64(c->wrong, 1);
}
BODY_FUNC void body_expect(const handles_call *c, int holds)
{
    if (!holds) body_wrong(c);
}

/* nvcc takes longer than half an hour for all of these, since every wait is inline. */
#ifdef __CUDACC__
BODY_FUNC void body_forms(const expar_device_handle *h, const handles_call *c)
{
    c->status[body_thread()] = EXPAR_ERR_UNSUPPORTED;
}
#else
#include "tests/cuda/kernels/handles_forms.h"
#endif

/* ---- message passing --------------------------------------------------------------------------------------------- */

BODY_FUNC void body_fill(const handles_call *c, int rank, int round)
{
    for (expar_uint64 i = body_thread(); i < c->bytes; i += body_threads())
        c->own[i] = handles_byte(rank, round, i);
}
BODY_FUNC void body_check(const handles_call *c, const unsigned char *data, int rank, int round)
{
    for (expar_uint64 i = body_thread(); i < c->bytes; i += body_threads())
        body_expect(c, data[i] == handles_byte(rank, round, i));
}

/* The first threads of the scope's kind that take part: one thread, one warp, or all. */
BODY_FUNC void body_put_signal(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                               expar_uint64 value, expar_signal_op op)
{
    if (c->scope == EXPAR_DEV_BLOCK)
        expar_kernel_put_signal_block(h, to, c->own, c->bytes, c->words, value, op, pe);
    else if (c->scope == EXPAR_DEV_WARP && body_thread() < 32)
        expar_kernel_put_signal_nbi_warp(h, to, c->own, c->bytes, c->words, value, op, pe);
    else if (c->scope == EXPAR_DEV_THREAD && body_thread() == 0)
        expar_kernel_put_signal_u8(h, to, c->own, c->bytes, c->words, value, op, pe);
}
BODY_FUNC void body_put_fence_p(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                                expar_uint64 value)
{
    if (c->scope == EXPAR_DEV_BLOCK) {
        expar_kernel_put_block(h, to, c->own, c->bytes, pe);
        expar_kernel_fence_block(h);
    } else if (c->scope == EXPAR_DEV_WARP && body_thread() < 32) {
        expar_kernel_put_nbi_u8_warp(h, to, c->own, c->bytes, pe);
        expar_kernel_fence_warp(h);
    } else if (c->scope == EXPAR_DEV_THREAD && body_thread() == 0) {
        expar_kernel_put(h, to, c->own, c->bytes, pe);
        expar_kernel_fence(h);
    }
    if (body_thread() == 0) expar_kernel_p_u64(h, c->words, value, pe);
}
/* The fence of the first thread, after a barrier of the block, orders the puts of all threads. */
BODY_FUNC void body_put_pieces(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                               expar_uint64 value)
{
    const expar_uint64 piece = (c->bytes + body_threads() - 1) / body_threads(), at = body_thread() * piece;
    if (at < c->bytes) expar_kernel_put_nbi(h, to + at, c->own + at, c->bytes - at < piece ? c->bytes - at : piece, pe);
    body_meet();
    if (body_thread() == 0) expar_kernel_fence(h);
    if (body_thread() == 0) expar_kernel_signal_op(h, c->words, value, EXPAR_SIGNAL_SET, pe);
}
BODY_FUNC void body_store_quiet(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                                expar_uint64 value)
{
    unsigned char *at = (unsigned char *)expar_kernel_ptr(h, to, pe);
    for (expar_uint64 i = body_thread(); at && i < c->bytes; i += body_threads())
        at[i] = c->own[i];
    if (!at) expar_kernel_put_nbi_block(h, to, c->own, c->bytes, pe);
    body_meet();
    if (body_thread() == 0) {
        body_expect(c, expar_kernel_quiet(h) == EXPAR_OK);
        expar_kernel_atomic_set_u64(h, c->words, value, pe);
    }
}
BODY_FUNC void body_store_fence(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                                expar_uint64 value)
{
    unsigned char *at = (unsigned char *)expar_kernel_ptr(h, to, pe);
    for (expar_uint64 i = body_thread(); at && i < c->bytes; i += body_threads())
        at[i] = c->own[i];
    if (!at) expar_kernel_put_nbi_block(h, to, c->own, c->bytes, pe);
    body_meet();
    if (body_thread() != 0) return;
    expar_kernel_fence(h);
    expar_kernel_p_u64(h, c->words, value, pe);
}
/* A word of `own`, after the source, is the flag. */
BODY_FUNC void body_put_flag(const expar_device_handle *h, const handles_call *c, unsigned char *to, int pe,
                             expar_uint64 value)
{
    expar_uint64 *flag = (expar_uint64 *)(void *)(c->own + c->bytes);
    if (body_thread() == body_threads() - 1) {
        expar_kernel_put_nbi(h, to, c->own, c->bytes, pe);
        expar_dev_store_release_64(flag, value);
    }
    if (body_thread() != 0) return;
    while (expar_dev_load_acquire_64(flag) != value)
        expar_dev_pause(0);
    expar_kernel_fence(h);
    expar_kernel_p_u64(h, c->words, value, pe);
}
BODY_FUNC int body_await(const expar_device_handle *h, const handles_call *c, const expar_uint64 *word,
                         expar_uint64 value)
{
    expar_uint64 seen = 0;
    int status = EXPAR_OK;
    if (c->scope == EXPAR_DEV_BLOCK) {
        status = expar_kernel_signal_wait_until_block(h, word, EXPAR_CMP_GE, value, &seen);
        body_expect(c, status != EXPAR_OK || seen >= value);
        return status;
    }
    if (c->scope == EXPAR_DEV_WARP && body_thread() < 32)
        status = expar_kernel_wait_until_u64_warp(h, word, EXPAR_CMP_GE, value, &seen);
    if (c->scope == EXPAR_DEV_THREAD && body_thread() == 0)
        status = expar_kernel_wait_until_all_u64(h, word, 1, 0, EXPAR_CMP_GE, value);
    body_meet();
    return status;
}

BODY_FUNC void body_pass(const expar_device_handle *h, const handles_call *c)
{
    const int me = expar_kernel_my_pe(h), size = expar_kernel_n_pes(h);
    const int to = (me + 1) % size, from = (me + size - 1) % size;
    unsigned char *const slot = c->data; /* at the receiver; one sender */
    for (int round = 1; round <= c->rounds; round++) {
        const expar_uint64 value = (expar_uint64)round;
        /* The receiver has read the round before, and the source is free. */
        if (body_await(h, c, c->words + 1, value - 1) != EXPAR_OK) break;
        if (c->scope == EXPAR_DEV_WARP || c->with >= HANDLES_PIECES) expar_kernel_quiet_block(h);
        body_fill(c, me, round);
        body_meet();
        switch (c->with) {
        case HANDLES_SET:
            body_put_signal(h, c, slot, to, value, EXPAR_SIGNAL_SET);
            break;
        case HANDLES_ADD:
            body_put_signal(h, c, slot, to, 1, EXPAR_SIGNAL_ADD);
            break;
        case HANDLES_FENCE:
            body_put_fence_p(h, c, slot, to, value);
            break;
        case HANDLES_PIECES:
            body_put_pieces(h, c, slot, to, value);
            break;
        case HANDLES_STORED:
            body_store_fence(h, c, slot, to, value);
            break;
        case HANDLES_FLAG:
            body_put_flag(h, c, slot, to, value);
            break;
        default:
            body_store_quiet(h, c, slot, to, value);
        }
        if (body_await(h, c, c->words, value) != EXPAR_OK) break;
        body_check(c, c->data, from, round);
        body_meet();
        if (body_thread() == 0) expar_kernel_signal_op(h, c->words + 1, value, EXPAR_SIGNAL_SET, from);
        body_meet();
    }
    c->status[body_thread()] = expar_kernel_status(h);
}

/* ---- store buffering --------------------------------------------------------------------------------------------- */

/* Ranks come in pairs. Each puts the round to its partner, is quiet, and then loads what the partner puts. At least one
   of the two sees the other's. Odd and even rounds have words of their own, so no round's loads meet the next one's. */
BODY_FUNC void body_stores(const expar_device_handle *h, const handles_call *c)
{
    const int me = expar_kernel_my_pe(h), partner = me ^ 1;
    int status = EXPAR_OK;
    for (int round = 1; round <= c->rounds && status == EXPAR_OK; round++) {
        expar_uint64 *own = c->words + 3, *result = c->words + BODY_RANK_WORD(0);
        if (body_thread() == 0 && partner < expar_kernel_n_pes(h)) {
            expar_kernel_p_u64(h, own, (expar_uint64)round, partner);
            expar_kernel_quiet(h);
            const int saw = expar_kernel_g_u64(h, own, me) == (expar_uint64)round;
            expar_kernel_p_u64(h, result, (expar_uint64)saw, partner);
            *(expar_uint64 *)(void *)c->own = (expar_uint64)saw;
        }
        status = expar_kernel_barrier_block(h);
        if (body_thread() == 0 && partner < expar_kernel_n_pes(h))
            body_expect(c, *(expar_uint64 *)(void *)c->own || expar_kernel_g_u64(h, result, me));
        if (status == EXPAR_OK) status = expar_kernel_barrier_block(h);
    }
    c->status[body_thread()] = status;
}

/* ---- adds -------------------------------------------------------------------------------------------------------- */

/* Every number comes once: its mark at rank 0 is set once. */
BODY_FUNC void body_adds(const expar_device_handle *h, const handles_call *c)
{
    const expar_uint64 all = (expar_uint64)c->rounds * body_threads() * (expar_uint64)expar_kernel_n_pes(h);
    int status = EXPAR_OK;
    for (int round = 0; round < c->rounds; round++) {
        const expar_uint64 number = expar_kernel_atomic_fetch_add_u64(h, c->words + 2, 1, 0);
        body_expect(c, number < all);
        if (number < all) body_expect(c, expar_kernel_atomic_fetch_inc_u64(h, c->words + BODY_MARK(number), 0) == 0);
    }
    status = expar_kernel_barrier_block(h);
    if (body_thread() == 0) body_expect(c, expar_kernel_atomic_fetch_u64(h, c->words + 2, 0) == all);
    c->status[body_thread()] = status;
}

BODY_FUNC void body_count(const expar_device_handle *h, const handles_call *c)
{
    for (int round = 0; round < c->rounds; round++)
        expar_kernel_atomic_add_u64(h, c->words + 2, 1, 0);
    c->status[body_thread()] = expar_kernel_barrier_block(h);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

BODY_FUNC int body_barrier(const expar_device_handle *h, int scope, int full)
{
    int status = EXPAR_OK;
    if (scope == EXPAR_DEV_BLOCK) return full ? expar_kernel_barrier_block(h) : expar_kernel_sync_block(h);
    body_meet();
    if (scope == EXPAR_DEV_WARP && body_thread() < 32)
        status = full ? expar_kernel_barrier_warp(h) : expar_kernel_sync_warp(h);
    if (scope == EXPAR_DEV_THREAD && body_thread() == 0) status = full ? expar_kernel_barrier(h) : expar_kernel_sync(h);
    body_meet();
    return status;
}
BODY_FUNC void body_barriers(const expar_device_handle *h, const handles_call *c)
{
    const int me = expar_kernel_my_pe(h), size = expar_kernel_n_pes(h);
    int status = EXPAR_OK;
    for (int round = 1; round <= c->rounds && status == EXPAR_OK; round++) {
        for (int pe = (int)body_thread(); pe < size; pe += (int)body_threads())
            expar_kernel_p_u64(h, c->words + BODY_RANK_WORD(me), (expar_uint64)round, pe);
        body_meet();
        status = body_barrier(h, c->scope, 1);
        for (int pe = (int)body_thread(); pe < size && status == EXPAR_OK; pe += (int)body_threads())
            body_expect(c, c->words[BODY_RANK_WORD(pe)] == (expar_uint64)round);
        if (status == EXPAR_OK) status = body_barrier(h, c->scope, 0);
    }
    c->status[body_thread()] = expar_kernel_status(h);
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

/* Fetches a range of this rank's part from pe, and compares it with `own`, where the same bytes are kept. */
BODY_FUNC void body_compare(const expar_device_handle *h, const handles_call *c, const unsigned char *part,
                            const unsigned char *kept, const handles_step *step)
{
    unsigned char *fetched = c->own + (expar_uint64)expar_kernel_n_pes(h) * c->bytes;
    expar_kernel_quiet_block(h);
    expar_kernel_get_block(h, fetched, part + step->at, step->bytes, step->pe);
    for (expar_uint32 i = body_thread(); i < step->bytes; i += body_threads())
        body_expect(c, fetched[i] == kept[step->at + i]);
    body_meet();
}
/* `own` has a copy of this rank's part of each rank, and space for one more part, which is also the source. After them
   it has a sum for each rank, which the first thread uses. */
BODY_FUNC void body_step(const expar_device_handle *h, const handles_call *c, const handles_step *step)
{
    const int me = expar_kernel_my_pe(h), size = expar_kernel_n_pes(h);
    unsigned char *part = c->data + (expar_uint64)me * c->bytes, *kept = c->own + (expar_uint64)step->pe * c->bytes;
    unsigned char *source = c->own + (expar_uint64)size * c->bytes;
    expar_uint64 *added = (expar_uint64 *)(void *)(source + c->bytes) + step->pe;
    const int writes = step->kind == HANDLES_STEP_PUT || step->kind == HANDLES_STEP_PUT_SIGNAL;
    for (expar_uint32 i = body_thread(); writes && i < step->bytes; i += body_threads())
        source[i] = kept[step->at + i] = handles_step_byte(step, i);
    body_meet();
    /* Two writes of the same bytes have no order of their own. */
    if (writes || step->kind == HANDLES_STEP_P) expar_kernel_fence_block(h);
    switch (step->kind) {
    case HANDLES_STEP_PUT:
        expar_kernel_put_block(h, part + step->at, source, step->bytes, step->pe);
        break;
    case HANDLES_STEP_PUT_SIGNAL:
        expar_kernel_put_signal_block(h, part + step->at, source, step->bytes, c->words + BODY_RANK_WORD(me), 1,
                                      EXPAR_SIGNAL_ADD, step->pe);
        if (body_thread() == 0) *added += 1;
        break;
    case HANDLES_STEP_P:
        if (body_thread() == 0 && step->at < c->bytes) {
            kept[step->at] = (unsigned char)step->value;
            expar_kernel_p_u8(h, part + step->at, (unsigned char)step->value, step->pe);
        }
        break;
    case HANDLES_STEP_GET:
        body_compare(h, c, part, kept, step);
        break;
    case HANDLES_STEP_G:
        expar_kernel_quiet_block(h);
        if (body_thread() == 0) body_expect(c, expar_kernel_g_u8(h, part + step->at, step->pe) == kept[step->at]);
        break;
    default:
        if (body_thread() == 0) {
            const expar_uint64 old =
                expar_kernel_atomic_fetch_add_u64(h, c->words + BODY_RANK_WORD(me), step->value, step->pe);
            body_expect(c, old == *added);
            *added += step->value;
        }
    }
    body_meet();
}
BODY_FUNC void body_script(const expar_device_handle *h, const handles_call *c)
{
    for (int number = 0; number < c->rounds; number++) {
        const handles_step step = handles_step_of(c, expar_kernel_my_pe(h), expar_kernel_n_pes(h), number);
        /* Signals that add are atomic with atomics, and complete after quiet. */
        if (step.kind == HANDLES_STEP_ADD) expar_kernel_quiet_block(h);
        body_step(h, c, &step);
    }
    c->status[body_thread()] = expar_kernel_barrier_block(h);
}

/* ---- others beside the kernel ------------------------------------------------------------------------------------ */

/* The words are those that the rank before has sent. */
BODY_FUNC void body_follow(const expar_device_handle *h, const handles_call *c)
{
    const int me = expar_kernel_my_pe(h), size = expar_kernel_n_pes(h);
    if (body_thread() == 0) {
        if (c->with == HANDLES_FOLLOW_FENCE) expar_kernel_fence(h);
        if (c->with == HANDLES_FOLLOW_QUIET) body_expect(c, expar_kernel_quiet(h) == EXPAR_OK);
        expar_kernel_signal_op(h, c->words, 1, EXPAR_SIGNAL_SET, (me + 1) % size);
    }
    const int status = expar_kernel_signal_wait_until_block(h, c->words, EXPAR_CMP_EQ, 1, 0);
    for (int i = (int)body_thread(); i < 8 * c->rounds && status == EXPAR_OK; i += (int)body_threads())
        body_expect(c, ((const unsigned char *)(c->words + BODY_SENT(i / 8)))[i % 8] ==
                           handles_byte((me + size - 1) % size, 1, (expar_uint64)i));
    c->status[body_thread()] = status;
}

BODY_FUNC void body_tell_in(const expar_device_handle *h, const handles_call *c, int way)
{
    expar_uint64 *const word = c->words + HANDLES_TOLD_WORD + way, value = (expar_uint64)(HANDLES_TOLD_VALUE + way);
    expar_uint64 *const source = (expar_uint64 *)(void *)c->own, *at = 0;
    *source = value;
    switch (way) {
    case HANDLES_TELL_STORE:
        at = (expar_uint64 *)expar_kernel_ptr(h, word, c->peer);
        if (at) expar_dev_store_64((expar_dev_u64 *)at, value);
        if (!at) expar_kernel_p_u64(h, word, value, c->peer);
        break;
    case HANDLES_TELL_P:
        expar_kernel_p_u64(h, word, value, c->peer);
        break;
    case HANDLES_TELL_PUT:
#ifdef __SANITIZE_THREAD__ /* which does not see that the bytes of a put come as one word */
        expar_kernel_p_u64(h, word, value, c->peer);
#else
        expar_kernel_put_u64(h, word, source, 1, c->peer);
#endif
        break;
    case HANDLES_TELL_SET:
        expar_kernel_signal_op(h, word, value, EXPAR_SIGNAL_SET, c->peer);
        break;
    case HANDLES_TELL_ADD:
        expar_kernel_signal_op(h, word, value, EXPAR_SIGNAL_ADD, c->peer);
        break;
    case HANDLES_TELL_PUT_SIGNAL:
        expar_kernel_put_signal(h, word, source, 0, word, value, EXPAR_SIGNAL_SET, c->peer);
        break;
    case HANDLES_TELL_ATOMIC_SET:
        expar_kernel_atomic_set_u64(h, word, value, c->peer);
        break;
    case HANDLES_TELL_ATOMIC_ADD:
        expar_kernel_atomic_add_u64(h, word, value, c->peer);
        break;
    default:
        body_expect(c, expar_kernel_atomic_swap_u64(h, word, value, c->peer) == 0);
    }
}
BODY_FUNC void body_tell(const expar_device_handle *h, const handles_call *c)
{
    for (int way = 0; way < HANDLES_TELLS && body_thread() == 0; way++)
        body_tell_in(h, c, way);
    c->status[body_thread()] = expar_kernel_quiet_block(h);
}
BODY_FUNC void body_told(const expar_device_handle *h, const handles_call *c)
{
    int status = EXPAR_OK;
    for (int way = 0; way < HANDLES_TELLS && status == EXPAR_OK; way++)
        status = expar_kernel_wait_until_u64_block(h, c->words + HANDLES_TOLD_WORD + way, EXPAR_CMP_EQ,
                                                   (expar_uint64)(HANDLES_TOLD_VALUE + way), 0);
    c->status[body_thread()] = status;
}

/* `other` has the same ranks in another order. */
BODY_FUNC void body_two(const expar_device_handle *h, const handles_call *c)
{
    const expar_device_handle *const other = c->other;
    const int to = (expar_kernel_my_pe(h) + 1) % expar_kernel_n_pes(h);
    expar_uint64 *const words = c->words;
    if (body_thread() == 0) {
        expar_kernel_p_u64(h, words + 1, 5, to);
        expar_kernel_p_u64(other, words + 2, 6, expar_kernel_translate_pe(h, to, other));
    }
    int status = expar_kernel_barrier_block(h);
    if (status == EXPAR_OK) status = expar_kernel_barrier_block(other);
    if (body_thread() == 0) body_expect(c, expar_kernel_g_u64(h, words + 1, expar_kernel_my_pe(h)) == 5);
    if (body_thread() == 0) body_expect(c, expar_kernel_g_u64(other, words + 2, expar_kernel_my_pe(other)) == 6);
    body_meet();
    if (body_thread() == 0) expar_kernel_p_u64(other, words + 3, 1, -1);
    if (body_thread() == 0) expar_kernel_p_u64(other, words + 3, 1, 0);
    if (body_thread() == 0) expar_kernel_p_u64(h, words + 4, 7, to);
    body_meet();
    body_expect(c, expar_kernel_status(other) == EXPAR_ERR_RANGE);
    if (status == EXPAR_OK) status = expar_kernel_barrier_block(h);
    if (body_thread() == 0) body_expect(c, words[3] == 0 && words[4] == 7);
    c->status[body_thread()] = status;
}

BODY_FUNC void body_stay(const expar_device_handle *h, const handles_call *c)
{
    const expar_uint64 *const goes_on = (const expar_uint64 *)(const void *)c->data;
    if (body_thread() == 0) {
        expar_kernel_p_u64(h, c->words, 1, expar_kernel_n_pes(h));
        while (expar_dev_load_acquire_64(goes_on) == 0)
            expar_dev_pause(1);
    }
    body_meet();
    c->status[body_thread()] = expar_kernel_status(h);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

BODY_FUNC void body_send(const expar_device_handle *h, const handles_call *c)
{
    for (int i = 0; body_thread() == 0 && (i == 0 || i < c->rounds); i++)
        expar_kernel_put_nbi(h, c->words + BODY_SENT(i), c->own + 8 * i, 8, c->peer);
    c->status[body_thread()] = EXPAR_OK;
}

BODY_FUNC void body_wait(const expar_device_handle *h, const handles_call *c)
{
    int status = EXPAR_OK;
    if (c->with == HANDLES_SENDS) body_send(h, c);
    if (c->with == HANDLES_LOOKS)
        for (int holds = 0; !holds && status == EXPAR_OK;)
            status = expar_kernel_test_all_u64_block(h, c->words, 4, 0, EXPAR_CMP_EQ, HANDLES_COME, &holds);
    else if (c->scope == EXPAR_DEV_BLOCK)
        status = expar_kernel_signal_wait_until_block(h, c->words, EXPAR_CMP_GE, 7, 0);
    else if (c->scope == EXPAR_DEV_WARP)
        status = expar_kernel_wait_until_all_u64_warp(h, c->words, 4, 0, EXPAR_CMP_GE, 3);
    else
        status = expar_kernel_wait_until_u32(h, (const expar_uint32 *)c->words + 2 * (body_thread() % 8), EXPAR_CMP_GE,
                                             9, 0);
    c->status[body_thread()] = status;
}

/* Sends to a rank that is lost, until it is known. */
BODY_FUNC void body_lost(const expar_device_handle *h, const handles_call *c)
{
    int status = EXPAR_OK;
    while (status == EXPAR_OK) {
        expar_kernel_put_nbi(h, c->words + 8 * body_thread(), c->own, 8, c->peer);
        expar_kernel_p_u64(h, c->words + 8 * body_thread() + 1, 1, c->peer);
        status = c->scope == EXPAR_DEV_BLOCK ? expar_kernel_quiet_block(h) : expar_kernel_quiet(h);
    }
    body_expect(c, expar_kernel_atomic_fetch_add_u64(h, c->words, 1, c->peer) == 0);
    body_expect(c, expar_kernel_g_u64(h, c->words, c->peer) == 0);
    c->status[body_thread()] = status;
}

BODY_FUNC void body_own(const expar_device_handle *h, const handles_call *c)
{
    expar_kernel_put_block(h, c->words, c->own, c->bytes, c->peer);
    expar_kernel_quiet_block(h);
    expar_kernel_get_block(h, c->own + c->bytes, c->words, c->bytes, c->peer);
    c->status[body_thread()] = expar_kernel_status(h);
}

BODY_FUNC void body_bad(const expar_device_handle *h, const handles_call *c)
{
    expar_uint64 *const words = c->words, end = ~(expar_uint64)0;
    const int me = expar_kernel_my_pe(h), size = expar_kernel_n_pes(h);
    int status = EXPAR_OK;
    switch (c->with) {
    case HANDLES_BAD_PE:
        expar_kernel_put(h, words, words + 1, 8, size);
        break;
    case HANDLES_BAD_NEGATIVE_PE:
        body_expect(c, expar_kernel_g_u64(h, words, -1) == 0);
        break;
    case HANDLES_BAD_ADDRESS:
        expar_kernel_put_signal(h, words, c->own, 8, words, 1, EXPAR_SIGNAL_SET, me);
        break;
    case HANDLES_BAD_END:
        expar_kernel_get(h, c->own, words, end / 2, me);
        break;
    case HANDLES_BAD_COUNT:
        expar_kernel_put_u64(h, words, words, (expar_size)(end / 8 + 2), me);
        break;
    case HANDLES_BAD_ALIGNMENT:
        expar_kernel_atomic_add_u64(h, (expar_uint64 *)(void *)((unsigned char *)words + 4), 1, me);
        break;
    case HANDLES_BAD_WAIT:
        status = expar_kernel_wait_until_u64(h, words, EXPAR_CMP_EQ, 1, 0);
        break;
    case HANDLES_BAD_CMP:
        status = expar_kernel_wait_until_u64(h, words, (expar_cmp)6, 1, 0);
        break;
    case HANDLES_BAD_OP:
        expar_kernel_signal_op(h, words, 1, (expar_signal_op)2, me);
        break;
    case HANDLES_BAD_FAR:
        expar_kernel_put(h, words, words + 1, 8, c->peer);
        break;
    case HANDLES_BAD_LOCAL:
        expar_kernel_put_signal(h, words, c->own, 8, words + 1, 1, EXPAR_SIGNAL_SET, c->peer);
        break;
    case HANDLES_BAD_DEST:
        expar_kernel_get(h, c->own, words, 8, c->peer);
        break;
    case HANDLES_BAD_ADD:
        expar_kernel_put_signal(h, words + 2, c->own, 8, words + 1, 1, EXPAR_SIGNAL_ADD, c->peer);
        break;
    default:
        status = expar_kernel_sync(h);
    }
    if (c->with >= HANDLES_BAD_WAIT && c->with <= HANDLES_BAD_CMP) body_expect(c, status != EXPAR_OK);
    /* The first error stays, and later calls do nothing. */
    c->status[0] = expar_kernel_status(h);
    expar_kernel_p_u64(h, words, 99, 0);
    expar_kernel_put(h, words, words + 1, 8, size);
    body_expect(c, expar_kernel_wait_until_u64(h, words, EXPAR_CMP_EQ, 12345, 0) == c->status[0]);
    body_expect(c, expar_kernel_atomic_fetch_add_u64(h, words, 1, me) == 0);
    body_expect(c, expar_kernel_ptr(h, words, me) == 0);
    body_expect(c, expar_kernel_barrier(h) == c->status[0] && expar_kernel_status(h) == c->status[0]);
}

BODY_FUNC void body_run(const expar_device_handle *h, const handles_call *c)
{
    switch (c->test) {
    case HANDLES_PASS:
        body_pass(h, c);
        break;
    case HANDLES_STORES:
        body_stores(h, c);
        break;
    case HANDLES_ADDS:
        body_adds(h, c);
        break;
    case HANDLES_COUNT:
        body_count(h, c);
        break;
    case HANDLES_BARRIERS:
        body_barriers(h, c);
        break;
    case HANDLES_SCRIPT:
        body_script(h, c);
        break;
    case HANDLES_WAIT:
        body_wait(h, c);
        break;
    case HANDLES_SEND:
        body_send(h, c);
        break;
    case HANDLES_LOST:
        body_lost(h, c);
        break;
    case HANDLES_OWN:
        body_own(h, c);
        break;
    case HANDLES_FOLLOW:
        body_follow(h, c);
        break;
    case HANDLES_TELL:
        body_tell(h, c);
        break;
    case HANDLES_TOLD:
        body_told(h, c);
        break;
    case HANDLES_TWO:
        body_two(h, c);
        break;
    case HANDLES_STAY:
        body_stay(h, c);
        break;
    case HANDLES_FORMS:
        body_forms(h, c);
        break;
    case HANDLES_SYNC:
        c->status[body_thread()] = expar_kernel_sync_block(h);
        break;
    default:
        if (body_thread() == 0) body_bad(h, c);
    }
}

#endif
