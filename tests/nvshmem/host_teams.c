/* SPDX-License-Identifier: Apache-2.0 */
/* Teams and collectives of the host, of every type: on CPUs, and on a GPU's memory where there is one. With the
 * argument "stream" on the default stream, too. */
#include "expect.h"
#include "typed.h"

#include <stdbool.h>
#include <string.h>

#define COUNT    3
#define MOST_PES 8

static int me, pes;
/* Symmetric. */
static char *from, *into;
static bool on_streams;

/* Gives `from` its contents, of all members of the world. */
static void begin_with(const void *contents, size_t bytes)
{
    static const char zeros[MOST_PES * COUNT * 8];
    nvshmem_barrier_all();
    nvshmem_putmem(into, zeros, sizeof zeros, me);
    nvshmem_putmem(from, contents, bytes, me);
    nvshmem_barrier_all();
}

static void expect_into(const void *expected, size_t bytes)
{
    char seen[MOST_PES * COUNT * 8];
    nvshmem_getmem(seen, into, bytes, me);
    EXPECT(!memcmp(seen, expected, bytes));
}

/* Waits until the default stream has done what it was given. */
static void settle_stream(void)
{
    static uint64_t *done;
    static uint64_t number;
    if (!done) done = nvshmem_calloc(1, sizeof *done);
    nvshmemx_signal_op_on_stream(done, ++number, NVSHMEM_SIGNAL_SET, me, NULL);
    EXPECT(nvshmem_signal_wait_until(done, NVSHMEM_CMP_EQ, number) == number);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

/* By the host, and by the stream; T *dest and T *source are the arguments. */
#define BOTH_WAYS(T, name, extra, expected)                                                                            \
    begin_with(mine, sizeof mine);                                                                                     \
    EXPECT(!nvshmem_##name(NVSHMEM_TEAM_WORLD, (T *)(void *)into, (T *)(void *)from, COUNT extra));                    \
    expect_into(expected, sizeof expected);                                                                            \
    if (on_streams) {                                                                                                  \
        begin_with(mine, sizeof mine);                                                                                 \
        EXPECT(!nvshmemx_##name##_on_stream(NVSHMEM_TEAM_WORLD, (T *)(void *)into, (T *)(void *)from, COUNT extra,     \
                                            NULL));                                                                    \
        settle_stream();                                                                                               \
        expect_into(expected, sizeof expected);                                                                        \
    }
#define COMMA ,
/* Member r has (r + 1), 2 (r + 1), 3 (r + 1). */
#define COLLECT(T, N)                                                                                                  \
    static void collect_##N(void)                                                                                      \
    {                                                                                                                  \
        T mine[MOST_PES * COUNT], root[COUNT], all[MOST_PES * COUNT] = {0}, blocks[MOST_PES * COUNT] = {0};            \
        for (int i = 0; i < MOST_PES * COUNT; i++)                                                                     \
            mine[i] = (T)(me * 10 + i % COUNT + i / COUNT * COUNT);                                                    \
        for (int r = 0; r < pes; r++)                                                                                  \
            for (int i = 0; i < COUNT; i++) {                                                                          \
                root[i] = (T)((pes - 1) * 10 + i);                                                                     \
                all[r * COUNT + i] = (T)(r * 10 + i);                                                                  \
                blocks[r * COUNT + i] = (T)(r * 10 + i + me * COUNT);                                                  \
            }                                                                                                          \
        BOTH_WAYS(T, N##_broadcast, COMMA pes - 1, root)                                                               \
        BOTH_WAYS(T, N##_fcollect, , all)                                                                              \
        BOTH_WAYS(T, N##_alltoall, , blocks)                                                                           \
    }
TYPES(COLLECT)

#define REDUCE(T, N, operation, combine)                                                                               \
    for (int i = 0; i < COUNT; i++) {                                                                                  \
        T value = (T)(i + 1);                                                                                          \
        for (int r = 1; r < pes; r++) {                                                                                \
            const T a = value, b = (T)(r + i + 1);                                                                     \
            value = (T)(combine);                                                                                      \
        }                                                                                                              \
        result[i] = value;                                                                                             \
    }                                                                                                                  \
    BOTH_WAYS(T, N##_##operation##_reduce, , result)
#define NUMBERS(T, N)                                                                                                  \
    static void number_##N(void)                                                                                       \
    {                                                                                                                  \
        T mine[COUNT], result[COUNT];                                                                                  \
        for (int i = 0; i < COUNT; i++)                                                                                \
            mine[i] = (T)(me + i + 1);                                                                                 \
        REDUCE(T, N, min, a < b ? a : b)                                                                               \
        REDUCE(T, N, max, a < b ? b : a)                                                                               \
        REDUCE(T, N, sum, a + b)                                                                                       \
        REDUCE(T, N, prod, a *b)                                                                                       \
    }
#define BIT_SETS(T, N)                                                                                                 \
    static void bits_##N(void)                                                                                         \
    {                                                                                                                  \
        T mine[COUNT], result[COUNT];                                                                                  \
        for (int i = 0; i < COUNT; i++)                                                                                \
            mine[i] = (T)(me + i + 1);                                                                                 \
        REDUCE(T, N, and, a &b)                                                                                        \
        REDUCE(T, N, or, a | b)                                                                                        \
        REDUCE(T, N, xor, a ^ b)                                                                                       \
    }
TYPES(NUMBERS)
BIT_TYPES(BIT_SETS)

#define CALL_COLLECT(T, N) collect_##N();
#define CALL_NUMBER(T, N)  number_##N();
#define CALL_BITS(T, N)    bits_##N();

static void collect_bytes(void)
{
    char mine[MOST_PES * COUNT], all[MOST_PES * COUNT] = {0};
    memset(mine, 'a' + me, sizeof mine);
    for (int r = 0; r < pes; r++)
        memset(all + r * COUNT, 'a' + r, COUNT);
    BOTH_WAYS(void, fcollectmem, , all)
    BOTH_WAYS(void, alltoallmem, , all)
    const char first[COUNT] = {'a', 'a', 'a'};
    BOTH_WAYS(void, broadcastmem, COMMA 0, first)
}

/* ---- teams ------------------------------------------------------------------------------------------------------- */

static void standing_teams(void)
{
    EXPECT(nvshmem_team_my_pe(NVSHMEM_TEAM_WORLD) == me && nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == pes);
    EXPECT(nvshmem_team_my_pe(NVSHMEM_TEAM_INVALID) == -1 && nvshmem_team_n_pes(NVSHMEM_TEAM_INVALID) == -1);
    EXPECT(nvshmem_team_my_pe(EXPAR_NV_TEAMS) == -1 && nvshmem_team_n_pes(EXPAR_NV_TEAMS - 1) == -1);
    EXPECT(nvshmem_team_n_pes(NVSHMEM_TEAM_SHARED) == nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE));
    EXPECT(nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE) * nvshmem_team_n_pes(NVSHMEMX_TEAM_SAME_MYPE_NODE) == pes);
    EXPECT(nvshmem_team_translate_pe(NVSHMEMX_TEAM_NODE, nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE), NVSHMEM_TEAM_WORLD) ==
           me);
    EXPECT(nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, pes, NVSHMEM_TEAM_WORLD) == -1);
    EXPECT(nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, 0, NVSHMEM_TEAM_INVALID) == -1);
}

/* The members of a team sum their numbers in the world. */
static void sum_over(nvshmem_team_t team)
{
    int sum = 0, seen = 0;
    for (int pe = 0; pe < nvshmem_team_n_pes(team); pe++)
        sum += nvshmem_team_translate_pe(team, pe, NVSHMEM_TEAM_WORLD);
    nvshmem_int_p((int *)(void *)from, me, me);
    EXPECT(!nvshmem_barrier(team) && !nvshmem_team_sync(team) && !nvshmem_sync(team));
    EXPECT(!nvshmem_int_sum_reduce(team, (int *)(void *)into, (int *)(void *)from, 1));
    nvshmem_getmem(&seen, into, sizeof seen, me);
    EXPECT(seen == sum);
    if (on_streams) {
        EXPECT(!nvshmemx_barrier_on_stream(team, NULL) && !nvshmemx_sync_on_stream(team, NULL));
        EXPECT(!nvshmemx_team_sync_on_stream(team, NULL));
        nvshmemx_sync_all_on_stream(NULL);
        settle_stream();
    }
    nvshmem_sync_all();
}

static void split_teams(void)
{
    nvshmem_team_t even, row, column, none;
    nvshmem_team_config_t config = {3};
    EXPECT(!nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 2, (pes + 1) / 2, &config, NVSHMEM_TEAM_NUM_CONTEXTS,
                                       &even));
    EXPECT((even == NVSHMEM_TEAM_INVALID) == (me % 2 == 1));
    if (me % 2 == 0) {
        EXPECT(nvshmem_team_my_pe(even) == me / 2 && nvshmem_team_n_pes(even) == (pes + 1) / 2);
        EXPECT(!nvshmem_team_get_config(even, &config) && config.num_contexts == 3);
    }
    EXPECT(nvshmem_team_get_config(NVSHMEM_TEAM_INVALID, &config) != 0);
    EXPECT(!nvshmem_team_split_2d(NVSHMEM_TEAM_WORLD, 2, NULL, 0, &row, NULL, 0, &column));
    sum_over(NVSHMEM_TEAM_WORLD);
    sum_over(row);
    sum_over(column);
    nvshmem_team_destroy(column);
    nvshmem_team_destroy(NVSHMEM_TEAM_INVALID);
    EXPECT(nvshmem_team_n_pes(column) == -1);
    /* A member that is not there: all are told. */
    EXPECT(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, pes + 1, NULL, 0, &none) != 0);
    EXPECT(none == NVSHMEM_TEAM_INVALID);
    if (me % 2 == 0) nvshmem_team_destroy(even);
    nvshmem_team_destroy(row);
}

static void facts(void)
{
    char name[NVSHMEM_MAX_NAME_LEN];
    int major = 0, minor = -1;
    nvshmem_info_get_version(&major, &minor);
    nvshmem_info_get_name(name);
    EXPECT(major == NVSHMEM_MAJOR_VERSION && minor == NVSHMEM_MINOR_VERSION && !strcmp(name, NVSHMEM_VENDOR_STRING));
    EXPECT(nvshmem_ptr(from, me) && !nvshmem_ptr(from, -1) && !nvshmem_ptr(from, pes) && !nvshmem_ptr(name, me));
    EXPECT(!nvshmemx_buffer_register(name, sizeof name) && !nvshmemx_buffer_register(name, sizeof name));
    EXPECT(!nvshmemx_buffer_unregister(name));
    nvshmemx_buffer_unregister_all();
    EXPECT(nvshmemx_buffer_unregister(name) != 0 && nvshmemx_buffer_register(from, 8) != 0);
    EXPECT(!nvshmemx_buffer_register_symmetric(name, 8, 0) && nvshmemx_buffer_unregister_symmetric(name, 8) != 0);
    EXPECT(nvshmemx_cumodule_finalize(NULL) != 0 && nvshmemx_culibrary_finalize(NULL) != 0);
}

int main(int argc, char **argv)
{
    on_streams = argc > 1 && !strcmp(argv[1], "stream");
    nvshmem_init();
    me = nvshmem_my_pe();
    pes = nvshmem_n_pes();
    EXPECT(pes <= MOST_PES);
    standing_teams(); /* before memory is chosen, too */
    from = nvshmem_malloc(MOST_PES * COUNT * 8);
    into = nvshmem_malloc(MOST_PES * COUNT * 8);
    facts();
    split_teams();
    TYPES(CALL_COLLECT)
    TYPES(CALL_NUMBER)
    BIT_TYPES(CALL_BITS)
    collect_bytes();
    nvshmem_barrier_all();
    nvshmem_free(from);
    nvshmem_free(into);
    nvshmem_finalize();
    nvshmem_finalize(); /* does nothing */
    return 0;
}
