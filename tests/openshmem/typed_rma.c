/* SPDX-License-Identifier: Apache-2.0 */
/* Every put, get and signalled put of every type and size, by name and by type, with a context and without. Each PE
 * writes to the next one, and reads back what it wrote. */
#include "forms.h"

enum { COUNT = 5, SPACE = 3 * COUNT };

alignas(16) static unsigned char there[SPACE * 16];
static uint64_t signals; /* those of the PE before this one */
static uint64_t signalled;

/* The PE before this one has signalled as often as this one. */
static void await_signal(void)
{
    signalled++;
    EXPECT(shmem_signal_wait_until(&signals, SHMEM_CMP_GE, signalled) >= signalled);
}

/* arrived: the elements of `from`, `sst` apart, are at `next`, `dst` apart. */
#define DEFINE_HELPERS(T, N)                                                                                           \
    static void fill_##N(T *from)                                                                                      \
    {                                                                                                                  \
        for (int i = 0; i < SPACE; i++)                                                                                \
            from[i] = (T)fresh();                                                                                      \
    }                                                                                                                  \
    static bool same_##N(const T *to, const T *from, int dst, int sst)                                                 \
    {                                                                                                                  \
        for (int i = 0; i < COUNT; i++)                                                                                \
            if (to[i * dst] != from[i * sst]) return false;                                                            \
        return true;                                                                                                   \
    }                                                                                                                  \
    static bool arrived_##N(shmem_ctx_t ctx, const T *from, int dst, int sst, int next)                                \
    {                                                                                                                  \
        T seen[SPACE];                                                                                                 \
        shmem_ctx_quiet(ctx);                                                                                          \
        shmem_getmem(seen, there, sizeof seen, next);                                                                  \
        return same_##N(seen, from, dst, sst);                                                                         \
    }
RMA_TYPES(DEFINE_HELPERS)

#define DEFINE_CHECK(T, N, form, CALL)                                                                                 \
    static void check_##N##_##form(shmem_ctx_t ctx, int next)                                                          \
    {                                                                                                                  \
        T *dest = (T *)(void *)there, from[SPACE], back[SPACE] = {0};                                                  \
        fill_##N(from);                                                                                                \
        CALL(N, put, dest, from, COUNT, next);                                                                         \
        EXPECT(arrived_##N(ctx, from, 1, 1, next));                                                                    \
        CALL(N, get, back, dest, COUNT, next);                                                                         \
        EXPECT(same_##N(back, from, 1, 1));                                                                            \
        fill_##N(from);                                                                                                \
        CALL(N, put_nbi, dest, from, COUNT, next);                                                                     \
        EXPECT(arrived_##N(ctx, from, 1, 1, next));                                                                    \
        CALL(N, get_nbi, back, dest, COUNT, next);                                                                     \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(same_##N(back, from, 1, 1));                                                                            \
        fill_##N(from);                                                                                                \
        CALL(N, p, dest, from[1], next);                                                                               \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(CALL(N, g, dest, next) == from[1]);                                                                     \
        CALL(N, iput, dest, from, 2, 3, COUNT, next);                                                                  \
        EXPECT(arrived_##N(ctx, from, 2, 3, next));                                                                    \
        CALL(N, iget, back, dest, 3, 2, COUNT, next);                                                                  \
        EXPECT(same_##N(back, from, 3, 3));                                                                            \
        fill_##N(from);                                                                                                \
        CALL(N, put_signal, dest, from, COUNT, &signals, 1, SHMEM_SIGNAL_ADD, next);                                   \
        EXPECT(arrived_##N(ctx, from, 1, 1, next));                                                                    \
        await_signal();                                                                                                \
        fill_##N(from);                                                                                                \
        CALL(N, put_signal_nbi, dest, from, COUNT, &signals, signalled + 1, SHMEM_SIGNAL_SET, next);                   \
        EXPECT(arrived_##N(ctx, from, 1, 1, next));                                                                    \
        await_signal();                                                                                                \
    }
#define DEFINE_CHECKS(T, N) FOUR(DEFINE_CHECK, T, N)
RMA_TYPES(DEFINE_CHECKS)

/* ---- by size ----------------------------------------------------------------------------------------------------- */

#define PLAIN(call, ...)  shmem_##call(__VA_ARGS__)
#define ON_CTX(call, ...) shmem_ctx_##call(ctx, __VA_ARGS__)

/* In elements of so many bytes, whose first bytes are looked at. */
static void fill(unsigned char *from, int bytes)
{
    for (int i = 0; i < SPACE * bytes; i++)
        from[i] = (unsigned char)fresh();
}

static bool same(const unsigned char *to, const unsigned char *from, int dst, int sst, int bytes)
{
    for (int i = 0; i < COUNT; i++)
        if (memcmp(to + i * dst * bytes, from + i * sst * bytes, (size_t)bytes) != 0) return false;
    return true;
}

static bool arrived(shmem_ctx_t ctx, const unsigned char *from, int dst, int sst, int bytes, int next)
{
    unsigned char seen[SPACE * 16];
    shmem_ctx_quiet(ctx);
    shmem_getmem(seen, there, (size_t)(SPACE * bytes), next);
    return same(seen, from, dst, sst, bytes);
}

#define DEFINE_BLOCK_CHECK(W, bytes, form, CALL)                                                                       \
    static void check_##W##_##form(shmem_ctx_t ctx, int next)                                                          \
    {                                                                                                                  \
        unsigned char from[SPACE * 16], back[SPACE * 16] = {0};                                                        \
        fill(from, bytes);                                                                                             \
        CALL(put##W, there, from, COUNT, next);                                                                        \
        EXPECT(arrived(ctx, from, 1, 1, bytes, next));                                                                 \
        CALL(get##W, back, there, COUNT, next);                                                                        \
        EXPECT(same(back, from, 1, 1, bytes));                                                                         \
        fill(from, bytes);                                                                                             \
        CALL(put##W##_nbi, there, from, COUNT, next);                                                                  \
        EXPECT(arrived(ctx, from, 1, 1, bytes, next));                                                                 \
        CALL(get##W##_nbi, back, there, COUNT, next);                                                                  \
        shmem_ctx_quiet(ctx);                                                                                          \
        EXPECT(same(back, from, 1, 1, bytes));                                                                         \
        fill(from, bytes);                                                                                             \
        CALL(put##W##_signal, there, from, COUNT, &signals, signalled + 1, SHMEM_SIGNAL_SET, next);                    \
        EXPECT(arrived(ctx, from, 1, 1, bytes, next));                                                                 \
        await_signal();                                                                                                \
        fill(from, bytes);                                                                                             \
        CALL(put##W##_signal_nbi, there, from, COUNT, &signals, 1, SHMEM_SIGNAL_ADD, next);                            \
        EXPECT(arrived(ctx, from, 1, 1, bytes, next));                                                                 \
        await_signal();                                                                                                \
    }
#define DEFINE_STRIDED_CHECK(W, bytes, form, CALL)                                                                     \
    static void check_strided_##W##_##form(shmem_ctx_t ctx, int next)                                                  \
    {                                                                                                                  \
        unsigned char from[SPACE * 16], back[SPACE * 16] = {0};                                                        \
        fill(from, bytes);                                                                                             \
        CALL(iput##W, there, from, 3, 1, COUNT, next);                                                                 \
        EXPECT(arrived(ctx, from, 3, 1, bytes, next));                                                                 \
        CALL(iget##W, back, there, 2, 3, COUNT, next);                                                                 \
        EXPECT(same(back, from, 2, 1, bytes));                                                                         \
    }
/* clang-format off */
#define WIDTHS(X) X(8, 1) X(16, 2) X(32, 4) X(64, 8) X(128, 16)
/* clang-format on */
#define DEFINE_BLOCK_CHECKS(W, bytes)                                                                                  \
    DEFINE_BLOCK_CHECK(W, bytes, plain, PLAIN)                                                                         \
    DEFINE_BLOCK_CHECK(W, bytes, on_ctx, ON_CTX)
#define DEFINE_STRIDED_CHECKS(W, bytes)                                                                                \
    DEFINE_STRIDED_CHECK(W, bytes, plain, PLAIN)                                                                       \
    DEFINE_STRIDED_CHECK(W, bytes, on_ctx, ON_CTX)
WIDTHS(DEFINE_BLOCK_CHECKS)
DEFINE_BLOCK_CHECKS(mem, 1)
WIDTHS(DEFINE_STRIDED_CHECKS)

#define RUN(T, N)                                                                                                      \
    check_##N##_name(SHMEM_CTX_DEFAULT, next);                                                                         \
    check_##N##_type(SHMEM_CTX_DEFAULT, next);                                                                         \
    check_##N##_name_ctx(ctx, next);                                                                                   \
    check_##N##_type_ctx(ctx, next);
#define RUN_BLOCK(W, bytes)                                                                                            \
    check_##W##_plain(SHMEM_CTX_DEFAULT, next);                                                                        \
    check_##W##_on_ctx(ctx, next);
#define RUN_STRIDED(W, bytes)                                                                                          \
    check_strided_##W##_plain(SHMEM_CTX_DEFAULT, next);                                                                \
    check_strided_##W##_on_ctx(ctx, next);

int main(void)
{
    shmem_init();
    shmem_ctx_t ctx;
    const int next = (shmem_my_pe() + 1) % shmem_n_pes();
    EXPECT(shmem_ctx_create(0, &ctx) == 0);
    RMA_TYPES(RUN)
    WIDTHS(RUN_BLOCK)
    RUN_BLOCK(mem, 1)
    WIDTHS(RUN_STRIDED)
    shmem_barrier_all();
    EXPECT(shmem_signal_fetch(&signals) == signalled);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
