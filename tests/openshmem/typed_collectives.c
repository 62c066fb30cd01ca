/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective that moves elements, of every type, by name and by type, and in bytes. */
#include "forms.h"

enum { MOST = 8, BLOCK = 3, SPACE = MOST * BLOCK * 3 };

alignas(16) static unsigned char source[SPACE * 16], dest[SPACE * 16];
static int me, n;

/* All have looked at what they got, and may get more. */
static void next_call(void)
{
    shmem_sync_all();
    memset(dest, 0, sizeof dest);
    shmem_barrier_all();
}

/* The i-th element of PE pe, at most 121. */
static int number(int pe, int i)
{
    return 40 * (pe % 3) + i % 40 + 1;
}

#define DEFINE_CHECK(T, N, form, CALL)                                                                                 \
    static void check_##N##_##form(void)                                                                               \
    {                                                                                                                  \
        T *from = (T *)(void *)source, *to = (T *)(void *)dest;                                                        \
        for (int i = 0; i < SPACE; i++)                                                                                \
            from[i] = (T)number(me, i);                                                                                \
        next_call();                                                                                                   \
        EXPECT(CALL(N, broadcast, SHMEM_TEAM_WORLD, to, from, BLOCK, n - 1) == 0);                                     \
        for (int i = 0; i < SPACE; i++)                                                                                \
            EXPECT(to[i] == (T)(i < BLOCK ? number(n - 1, i) : 0));                                                    \
        next_call();                                                                                                   \
        EXPECT(CALL(N, collect, SHMEM_TEAM_WORLD, to, from, (size_t)(me % 2 + 1)) == 0);                               \
        for (int pe = 0, at = 0; pe < n; pe++)                                                                         \
            for (int i = 0; i < pe % 2 + 1; i++)                                                                       \
                EXPECT(to[at++] == (T)number(pe, i));                                                                  \
        next_call();                                                                                                   \
        EXPECT(CALL(N, fcollect, SHMEM_TEAM_WORLD, to, from, BLOCK) == 0);                                             \
        for (int i = 0; i < SPACE; i++)                                                                                \
            EXPECT(to[i] == (T)(i < n * BLOCK ? number(i / BLOCK, i % BLOCK) : 0));                                    \
        next_call();                                                                                                   \
        EXPECT(CALL(N, alltoall, SHMEM_TEAM_WORLD, to, from, BLOCK) == 0);                                             \
        for (int i = 0; i < SPACE; i++)                                                                                \
            EXPECT(to[i] == (T)(i < n * BLOCK ? number(i / BLOCK, me * BLOCK + i % BLOCK) : 0));                       \
        next_call();                                                                                                   \
        EXPECT(CALL(N, alltoalls, SHMEM_TEAM_WORLD, to, from, 3, 2, BLOCK) == 0);                                      \
        for (int i = 0; i < n * BLOCK; i++)                                                                            \
            EXPECT(to[3 * i] == (T)number(i / BLOCK, 2 * (me * BLOCK + i % BLOCK)) && to[3 * i + 1] == 0);             \
    }
#define DEFINE_CHECKS(T, N) TWO(DEFINE_CHECK, T, N)
RMA_TYPES(DEFINE_CHECKS)

/* shmem_broadcastmem and similar calls have mem after the call's name. */
#define IN_BYTES(N, call, ...) shmem_##call##mem(__VA_ARGS__)
DEFINE_CHECK(unsigned char, mem, bytes, IN_BYTES)

#define RUN(T, N)                                                                                                      \
    check_##N##_name();                                                                                                \
    check_##N##_type();

int main(void)
{
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    if (n > MOST) shmem_global_exit(2);
    RMA_TYPES(RUN)
    check_mem_bytes();
    shmem_finalize();
    return 0;
}
