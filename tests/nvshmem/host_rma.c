/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, gets and signals of the host, of every type and size: on CPUs, and on a GPU's memory where there is one. With
 * the argument "stream" on the default stream, too. */
#include "expect.h"
#include "typed.h"

#include <stdbool.h>
#include <string.h>

#define COUNT 5

static int me, pes, next, last;
/* Symmetric. */
static void *block;
static uint64_t *word;
static bool on_streams;

static uint64_t word_value(void)
{
    uint64_t value;
    nvshmem_getmem(&value, word, sizeof value, me);
    return value;
}

/* Clears this PE's block and signal before others write there. */
static void begin(void)
{
    static const char zeros[COUNT * 16 * 2];
    const uint64_t zero = 0;
    nvshmem_barrier_all();
    nvshmem_putmem(block, zeros, sizeof zeros, me);
    nvshmem_putmem(word, &zero, sizeof zero, me);
    nvshmem_barrier_all();
}

/* Checks the block once all PEs have completed: `bytes` bytes are as the PE before has sent them. */
static void expect_block(const void *sent, size_t bytes)
{
    char seen[COUNT * 16 * 2];
    nvshmem_barrier_all();
    nvshmem_getmem(seen, block, sizeof seen, me);
    EXPECT(!memcmp(seen, sent, bytes));
    for (size_t i = bytes; i < sizeof seen; i++)
        EXPECT(seen[i] == 0);
}

/* ---- typed ------------------------------------------------------------------------------------------------------- */

/* `move` is called with mine, and what came is from the PE before. */
#define PUT_BY(move)                                                                                                   \
    begin();                                                                                                           \
    move;                                                                                                              \
    expect_block(theirs, sizeof theirs);
/* The block holds `mine` of its PE. */
#define GET_BY(move)                                                                                                   \
    memset(got, 0, sizeof got);                                                                                        \
    move;                                                                                                              \
    nvshmem_quiet();                                                                                                   \
    EXPECT(!memcmp(got, theirs, sizeof theirs));

#define TYPED(T, N)                                                                                                    \
    static void move_##N(void)                                                                                         \
    {                                                                                                                  \
        T mine[COUNT], theirs[COUNT], got[COUNT], strided[2 * COUNT] = {0}, spread[2 * COUNT] = {0};                   \
        T *dest = block;                                                                                               \
        for (int i = 0; i < COUNT; i++) {                                                                              \
            mine[i] = (T)(me * 16 + i + 1);                                                                            \
            theirs[i] = (T)(last * 16 + i + 1);                                                                        \
            strided[2 * i] = mine[i];                                                                                  \
            spread[2 * i] = theirs[i];                                                                                 \
        }                                                                                                              \
        PUT_BY(nvshmem_##N##_put(dest, mine, COUNT, next))                                                             \
        PUT_BY(nvshmem_##N##_put_nbi(dest, mine, COUNT, next))                                                         \
        PUT_BY(nvshmem_##N##_iput(dest, strided, 1, 2, COUNT, next))                                                   \
        PUT_BY(for (int i = 0; i < COUNT; i++) nvshmem_##N##_p(dest + i, mine[i], next))                               \
        PUT_BY(nvshmem_##N##_put_signal(dest, mine, COUNT, word, 3, NVSHMEM_SIGNAL_SET, next))                         \
        EXPECT(word_value() == 3);                                                                                     \
        PUT_BY(nvshmem_##N##_put_signal_nbi(dest, mine, COUNT, word, 4, NVSHMEM_SIGNAL_ADD, next))                     \
        EXPECT(word_value() == 4);                                                                                     \
        begin();                                                                                                       \
        nvshmem_##N##_iput(dest, mine, 2, 1, COUNT, next);                                                             \
        expect_block(spread, (2 * COUNT - 1) * sizeof(T));                                                             \
        begin();                                                                                                       \
        nvshmem_##N##_put(dest, mine, COUNT, me);                                                                      \
        nvshmem_barrier_all();                                                                                         \
        GET_BY(nvshmem_##N##_get(got, dest, COUNT, last))                                                              \
        GET_BY(nvshmem_##N##_get_nbi(got, dest, COUNT, last))                                                          \
        GET_BY(nvshmem_##N##_iget(got, dest, 1, 1, COUNT, last))                                                       \
        EXPECT(nvshmem_##N##_g(dest + 2, last) == theirs[2]);                                                          \
        if (on_streams) stream_##N(mine, theirs, strided);                                                             \
    }
/* By the default stream, which nothing but a barrier of the stream orders. */
#define PUT_ON_STREAM(move)                                                                                            \
    begin();                                                                                                           \
    move;                                                                                                              \
    nvshmemx_barrier_all_on_stream(NULL);                                                                              \
    nvshmemx_signal_wait_until_on_stream(word, NVSHMEM_CMP_EQ, 0, NULL);                                               \
    settle();                                                                                                          \
    expect_block(theirs, COUNT * sizeof *theirs);
#define STREAM(T, N)                                                                                                   \
    static void stream_##N(const T *mine, const T *theirs, const T *strided)                                           \
    {                                                                                                                  \
        T *dest = block, got[COUNT] = {0};                                                                             \
        PUT_ON_STREAM(nvshmemx_##N##_put_on_stream(dest, mine, COUNT, next, NULL))                                     \
        PUT_ON_STREAM(nvshmemx_##N##_put_nbi_on_stream(dest, mine, COUNT, next, NULL))                                 \
        PUT_ON_STREAM(nvshmemx_##N##_iput_on_stream(dest, strided, 1, 2, COUNT, next, NULL))                           \
        PUT_ON_STREAM(for (int i = 0; i < COUNT; i++) nvshmemx_##N##_p_on_stream(dest + i, mine[i], next, NULL))       \
        begin();                                                                                                       \
        nvshmemx_##N##_put_signal_on_stream(dest, mine, COUNT, word, 3, NVSHMEM_SIGNAL_SET, next, NULL);               \
        nvshmemx_##N##_put_signal_nbi_on_stream(dest, mine, COUNT, word, 4, NVSHMEM_SIGNAL_ADD, next, NULL);           \
        nvshmemx_signal_wait_until_on_stream(word, NVSHMEM_CMP_EQ, 7, NULL);                                           \
        nvshmemx_##N##_get_on_stream(got, dest, COUNT, me, NULL);                                                      \
        settle();                                                                                                      \
        EXPECT(!memcmp(got, theirs, sizeof got));                                                                      \
        memset(got, 0, sizeof got);                                                                                    \
        nvshmemx_##N##_get_nbi_on_stream(got, dest, COUNT, me, NULL);                                                  \
        settle();                                                                                                      \
        EXPECT(!memcmp(got, theirs, sizeof got));                                                                      \
        memset(got, 0, sizeof got);                                                                                    \
        nvshmemx_##N##_iget_on_stream(got, dest, 1, 1, COUNT, me, NULL);                                               \
        settle();                                                                                                      \
        EXPECT(!memcmp(got, theirs, sizeof got));                                                                      \
    }

/* Waits until the default stream has done what it was given. */
static void settle(void)
{
    static uint64_t *done;
    static uint64_t number;
    if (!done) done = nvshmem_calloc(1, sizeof *done);
    nvshmemx_signal_op_on_stream(done, ++number, NVSHMEM_SIGNAL_SET, me, NULL);
    nvshmemx_quiet_on_stream(NULL);
    EXPECT(nvshmem_signal_wait_until(done, NVSHMEM_CMP_EQ, number) == number);
}

TYPES(STREAM)
TYPES(TYPED)
#define CALL(T, N) move_##N();

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

#define BLOCKS(W, unit)                                                                                                \
    PUT_BY(nvshmem_put##W(block, mine, sizeof mine / (unit), next))                                                    \
    PUT_BY(nvshmem_put##W##_nbi(block, mine, sizeof mine / (unit), next))                                              \
    PUT_BY(nvshmem_put##W##_signal(block, mine, sizeof mine / (unit), word, 1, NVSHMEM_SIGNAL_SET, next))              \
    PUT_BY(nvshmem_put##W##_signal_nbi(block, mine, sizeof mine / (unit), word, 1, NVSHMEM_SIGNAL_SET, next))          \
    begin();                                                                                                           \
    nvshmem_putmem(block, mine, sizeof mine, me);                                                                      \
    nvshmem_barrier_all();                                                                                             \
    GET_BY(nvshmem_get##W(got, block, sizeof mine / (unit), last))                                                     \
    GET_BY(nvshmem_get##W##_nbi(got, block, sizeof mine / (unit), last))                                               \
    if (on_streams) {                                                                                                  \
        PUT_ON_STREAM(nvshmemx_put##W##_on_stream(block, mine, sizeof mine / (unit), next, NULL))                      \
        PUT_ON_STREAM(nvshmemx_put##W##_nbi_on_stream(block, mine, sizeof mine / (unit), next, NULL))                  \
    }
#define SIZED(W)                                                                                                       \
    BLOCKS(W, W / 8)                                                                                                   \
    PUT_BY(nvshmem_iput##W(block, mine, 1, 1, sizeof mine / (W / 8), next))                                            \
    begin();                                                                                                           \
    nvshmem_putmem(block, mine, sizeof mine, me);                                                                      \
    nvshmem_barrier_all();                                                                                             \
    GET_BY(nvshmem_iget##W(got, block, 1, 1, sizeof mine / (W / 8), last))

static void move_sizes(void)
{
    struct {
        uint64_t words[2];
    } mine[COUNT], theirs[COUNT], got[COUNT];
    for (uint64_t i = 0; i < COUNT; i++) {
        mine[i].words[0] = mine[i].words[1] = (uint64_t)me << 32 | (i + 1);
        theirs[i].words[0] = theirs[i].words[1] = (uint64_t)last << 32 | (i + 1);
    }
    SIZES(SIZED)
    BLOCKS(mem, 1)
}

/* ---- signals and blocks without bytes ---------------------------------------------------------------------------- */

static void signal_next(void)
{
    begin();
    nvshmemx_signal_op(word, 5, NVSHMEM_SIGNAL_ADD, next);
    EXPECT(nvshmem_signal_wait_until(word, NVSHMEM_CMP_GE, 5) == 5);
    EXPECT(nvshmem_signal_fetch(word) == 5);
    nvshmem_barrier_all();
    nvshmem_fence();
    nvshmem_float_put(block, NULL, 0, next);
    nvshmem_float_put_signal(block, NULL, 0, word, 6, NVSHMEM_SIGNAL_SET, next);
    EXPECT(nvshmem_signal_wait_until(word, NVSHMEM_CMP_EQ, 6) == 6);
}

int main(int argc, char **argv)
{
    on_streams = argc > 1 && !strcmp(argv[1], "stream");
    nvshmem_init();
    me = nvshmem_my_pe();
    pes = nvshmem_n_pes();
    next = (me + 1) % pes;
    last = (me + pes - 1) % pes;
    block = nvshmem_malloc(1024);
    word = nvshmem_align(256, sizeof *word);
    EXPECT(block && (uintptr_t)word % 256 == 0 && !nvshmem_malloc(0));
    signal_next();
    TYPES(CALL)
    move_sizes();
    nvshmem_barrier_all();
    nvshmem_free(word);
    nvshmem_free(block);
    nvshmem_finalize();
    return 0;
}
