/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives over active sets, as older programs call them. */
#include "expect.h"

static long sync_words[2][SHMEM_COLLECT_SYNC_SIZE + SHMEM_REDUCE_SYNC_SIZE];
static int in[8], out[8 * 64], work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 8];
static int from[64], to[64];

/* All that moves elements of 32 or 64 bits, among every second PE, by stride 2. */
#define DEFINE_MOVES(W)                                                                                                \
    static int##W##_t source##W[2 * 3 * 32], dest##W[3 * 3 * 32];                                                      \
    static void move_##W(int place, int evens)                                                                         \
    {                                                                                                                  \
        int##W##_t *source = source##W, *dest = dest##W;                                                               \
        for (int i = 0; i < 2 * 3 * evens; i++)                                                                        \
            source[i] = INT##W##_MAX - 1000 * place - i;                                                               \
        shmem_barrier(0, 1, evens, sync_words[1]);                                                                     \
        shmem_broadcast##W(dest, source, 3, evens - 1, 0, 1, evens, sync_words[0]);                                    \
        EXPECT(dest[2] == (place == evens - 1 ? 0 : INT##W##_MAX - 1000 * (evens - 1) - 2));                           \
        shmem_barrier(0, 1, evens, sync_words[1]);                                                                     \
        shmem_collect##W(dest, source, (size_t)(place % 3 + 1), 0, 1, evens, sync_words[0]);                           \
        for (int i = 0, at = 0; i < evens; i++)                                                                        \
            for (int j = 0; j <= i % 3; j++)                                                                           \
                EXPECT(dest[at++] == INT##W##_MAX - 1000 * i - j);                                                     \
        shmem_barrier(0, 1, evens, sync_words[1]);                                                                     \
        shmem_fcollect##W(dest, source, 3, 0, 1, evens, sync_words[0]);                                                \
        for (int i = 0; i < 3 * evens; i++)                                                                            \
            EXPECT(dest[i] == INT##W##_MAX - 1000 * (i / 3) - i % 3);                                                  \
        shmem_barrier(0, 1, evens, sync_words[1]);                                                                     \
        shmem_alltoall##W(dest, source, 3, 0, 1, evens, sync_words[0]);                                                \
        for (int i = 0; i < 3 * evens; i++)                                                                            \
            EXPECT(dest[i] == INT##W##_MAX - 1000 * (i / 3) - (3 * place + i % 3));                                    \
        shmem_barrier(0, 1, evens, sync_words[1]);                                                                     \
        shmem_alltoalls##W(dest, source, 3, 2, 3, 0, 1, evens, sync_words[0]);                                         \
        for (int i = 0; i < 3 * evens; i++)                                                                            \
            EXPECT(dest[3 * i] == INT##W##_MAX - 1000 * (i / 3) - 2 * (3 * place + i % 3));                            \
    }
DEFINE_MOVES(32)
DEFINE_MOVES(64)

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    if (n > 64) shmem_global_exit(2);
    if (me % 2 == 0) {
        move_32(me / 2, (n + 1) / 2);
        move_64(me / 2, (n + 1) / 2);
    }
    const int evens = (n + 1) / 2;
    for (int i = 0; i < 8; i++)
        in[i] = me * 10 + i;
    memset(out, 0xff, sizeof out);
    shmem_barrier_all();
    shmem_broadcast32(out, in, 8, 0, 0, 0, n, sync_words[0]);
    EXPECT(out[7] == (me == 0 ? -1 : 7));
    shmem_barrier_all();
    if (me % 2 == 0) {
        shmem_barrier(0, 1, evens, sync_words[1]);
        shmem_fcollect32(out, in, 2, 0, 1, evens, sync_words[0]);
        for (int i = 0; i < 2 * evens; i++)
            EXPECT(out[i] == i / 2 * 20 + i % 2);
        shmem_sync(0, 1, evens, sync_words[1]);
        shmem_collect32(out, in, (size_t)(me / 2), 0, 1, evens, sync_words[0]);
        if (evens > 1) EXPECT(out[0] == 20);
    }
    shmem_barrier(0, 0, n, sync_words[1]);
    shmem_int_sum_to_all(out, in, 8, 0, 0, n, work, sync_words[0]);
    EXPECT(out[3] == 3 * n + 10 * n * (n - 1) / 2);
    shmem_barrier_all();
    shmem_int_max_to_all(in, in, 8, 0, 0, n, work, sync_words[1]);
    EXPECT(in[0] == 10 * (n - 1));
    for (int pe = 0; pe < n; pe++)
        from[pe] = me * 100 + pe;
    shmem_barrier_all();
    shmem_alltoall32(to, from, 1, 0, 0, n, sync_words[0]);
    for (int pe = 0; pe < n; pe++)
        EXPECT(to[pe] == pe * 100 + me);
    shmem_finalize();
    return 0;
}
