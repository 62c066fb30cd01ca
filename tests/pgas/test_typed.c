/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls: puts, gets, strided ones, single elements and atomics of every type, against plain C. */
#include "shmem/kind.h"

#define COUNT 37
#define STEP  3

/* ---- rows, strides and single elements --------------------------------------------------------------------------- */

/* To the next rank and back, in every form. Element i of rank r is 3i + r. */
#define CHECK_RMA(T, S)                                                                                                \
    static void check_rma_##S(expar_group *group)                                                                      \
    {                                                                                                                  \
        T *box, local[COUNT * STEP], back[COUNT * STEP] = {0}, one = 0;                                                \
        int32_t next = (group->rank + 1) % group->size, last = (group->rank + group->size - 1) % group->size;          \
        int wrong = 0;                                                                                                 \
        for (int i = 0; i < COUNT * STEP; i++)                                                                         \
            local[i] = (T)(3 * (i % COUNT) + group->rank);                                                             \
        CHECK_OK(expar_calloc(group, COUNT *STEP, sizeof *box, (void **)&box));                                        \
        CHECK_OK(expar_put_##S(group, box, local, COUNT - 1, next));                                                   \
        CHECK_OK(expar_p_##S(group, &box[COUNT - 1], local[COUNT - 1], next));                                         \
        CHECK_OK(expar_barrier_all(group));                                                                            \
        for (int i = 0; i < COUNT; i++)                                                                                \
            wrong += box[i] != (T)(3 * i + last);                                                                      \
        CHECK(wrong == 0, "put, p " #S ": %d wrong", wrong);                                                           \
        CHECK(box[COUNT] == 0, "put " #S ": too far");                                                                 \
        CHECK_OK(expar_get_##S(group, back, box, COUNT, next));                                                        \
        CHECK_OK(expar_g_##S(group, &box[5], next, &one));                                                             \
        CHECK(memcmp(back, local, COUNT * sizeof *back) == 0 && one == local[5], "get, g " #S);                        \
        CHECK_OK(expar_barrier_all(group));                                                                            \
        CHECK_OK(expar_put_nbi_##S(group, box, local + 1, COUNT, next));                                               \
        CHECK_OK(expar_quiet(group));                                                                                  \
        CHECK_OK(expar_get_nbi_##S(group, back, box, COUNT, next));                                                    \
        CHECK_OK(expar_quiet(group));                                                                                  \
        CHECK(memcmp(back, local + 1, COUNT * sizeof *back) == 0, "put_nbi, get_nbi " #S);                             \
        CHECK_OK(expar_barrier_all(group));                                                                            \
        memset(box, 0, COUNT *STEP * sizeof *box);                                                                     \
        memset(back, 0, sizeof back);                                                                                  \
        CHECK_OK(expar_barrier_all(group));                                                                            \
        CHECK_OK(expar_iput_##S(group, box, local, STEP, 2, COUNT, next));                                             \
        CHECK_OK(expar_barrier_all(group));                                                                            \
        for (int i = 0; i < COUNT * STEP; i++)                                                                         \
            wrong += box[i] != (T)(i % STEP != 0 ? 0 : 3 * (2 * (i / STEP) % COUNT) + last);                           \
        CHECK(wrong == 0, "iput " #S ": %d wrong", wrong);                                                             \
        CHECK_OK(expar_iget_##S(group, back, box, 2, STEP, COUNT, next));                                              \
        for (int i = 0; i < 2 * COUNT; i++)                                                                            \
            wrong += back[i] != (T)(i % 2 != 0 ? 0 : 3 * (i % COUNT) + group->rank);                                   \
        CHECK(wrong == 0, "iget " #S ": %d wrong", wrong);                                                             \
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_put_##S(group, box, local, SIZE_MAX / 2 + 2, next));                    \
        CHECK_STATUS(EXPAR_ERR_RANGE, expar_p_##S(group, box, 1, group->size));                                        \
        CHECK_TEXT("expar_p_" #S, "pe");                                                                               \
        CHECK_STATUS(EXPAR_ERR_NULL, expar_g_##S(group, box, next, NULL));                                             \
        CHECK_OK(expar_free(group, box));                                                                              \
    }
CHECK_RMA(int16_t, i16)
CHECK_RMA(int32_t, i32)
CHECK_RMA(int64_t, i64)
CHECK_RMA(uint16_t, u16)
CHECK_RMA(uint32_t, u32)
CHECK_RMA(uint64_t, u64)
CHECK_RMA(float, f32)
CHECK_RMA(double, f64)

/* Elements of a byte: no count overflows. */
static void check_bytes(expar_group *group)
{
    int8_t *box, local[5] = {-1, 2, -3, 4, -5}, back[5] = {0};
    uint8_t one = 0;
    int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_calloc(group, 16, 1, (void **)&box));
    CHECK_OK(expar_put_i8(group, box, local, 5, next));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_get_i8(group, back, box, 5, next));
    CHECK(memcmp(back, local, 5) == 0, "put and get of int8");
    CHECK_OK(expar_g_u8(group, (uint8_t *)box + 2, next, &one));
    CHECK(one == 253, "g of uint8 gave %u", one);
    CHECK_OK(expar_iget_i8(group, back, box, 1, 2, 3, next));
    CHECK(back[0] == -1 && back[1] == -3 && back[2] == -5, "iget of int8");
    CHECK_OK(expar_free(group, box));
}

static void all_rma(expar_group *group, void *shared)
{
    (void)shared;
    check_rma_i16(group);
    check_rma_i32(group);
    check_rma_i64(group);
    check_rma_u16(group);
    check_rma_u32(group);
    check_rma_u64(group);
    check_rma_f32(group);
    check_rma_f64(group);
    check_bytes(group);
}

static void test_rma(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, all_rma);
    kind_run((ranks_plan){0}, 1, all_rma);
}

static void strided_rejections(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box, local[8] = {0};
    size_t heap_bytes = group->sym->heap.bytes;
    CHECK_OK(expar_calloc(group, 8, sizeof *box, (void **)&box));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iput(group, box, local, 0, 1, 8, 2, 0));
    CHECK_TEXT("expar_iput", "dest_stride 0");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iput(group, box, local, 1, -1, 8, 2, 0));
    CHECK_TEXT("source_stride -1");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iget(group, local, box, 1, 2, 0, 2, 0));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iput(group, box, local, PTRDIFF_MAX, 1, 8, 4, 0));
    CHECK_TEXT("overflow");
    /* Elements that touch, of which there are so many that their bytes come to 0, and to 8. */
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iput(group, box, local, 1, 1, 8, (size_t)1 << 61, 0));
    CHECK_TEXT("expar_iput", "2305843009213693952 elements of 8 bytes, 1 apart, overflow");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_iget_u64(group, local, box, 1, 1, ((size_t)1 << 61) + 1, 0));
    CHECK_TEXT("expar_iget_u64", "count 2305843009213693953", "overflow");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_iput(group, box, local, (ptrdiff_t)heap_bytes, 1, 8, 2, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_iget(group, local, local, 2, 2, 8, 2, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_iput(group, box, NULL, 2, 2, 8, 2, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_iget(group, NULL, box, 2, 2, 8, 2, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_iget(group, local, box, 2, 2, 8, 2, 2));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_iget(NULL, local, box, 2, 2, 8, 2, 0));
    CHECK_OK(expar_iput(group, NULL, NULL, 1, 1, 8, 0, 0));
    CHECK_OK(expar_free(group, box));
}

static void test_strided_rejections(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, strided_rejections);
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

/* Every operation of one type on a word of the next rank: what it leaves, and what it fetches. */
#define EXPECT(T, S, call, before, after)                                                                              \
    CHECK_OK(call);                                                                                                    \
    CHECK_OK(expar_quiet(group));                                                                                      \
    CHECK(old == (T)(before), #call ": wrong value before");                                                           \
    CHECK_OK(expar_atomic_fetch_##S(group, word, pe, &old));                                                           \
    CHECK(old == (T)(after), #call ": wrong value after");                                                             \
    old = (T)(after);
#define CHECK_OPERATION(T, S, name, operand, before, after)                                                            \
    CHECK_OK(expar_atomic_set_##S(group, word, before, pe));                                                           \
    EXPECT(T, S, expar_atomic_fetch_##name##_##S(group, word, operand, pe, &old), before, after)                       \
    CHECK_OK(expar_atomic_set_##S(group, word, before, pe));                                                           \
    EXPECT(T, S, expar_atomic_fetch_##name##_nbi_##S(group, word, operand, pe, &old), before, after)                   \
    CHECK_OK(expar_atomic_set_##S(group, word, before, pe));                                                           \
    EXPECT(T, S, expar_atomic_##name##_##S(group, word, operand, pe), after, after)

#define CHECK_SWAPS(T, S)                                                                                              \
    static void check_swaps_##S(expar_group *group, T *word, int32_t pe)                                               \
    {                                                                                                                  \
        const T a = (T)-2.5, b = (T)7.25;                                                                              \
        T old = a;                                                                                                     \
        EXPECT(T, S, expar_atomic_set_##S(group, word, a, pe), a, a)                                                   \
        EXPECT(T, S, expar_atomic_swap_##S(group, word, b, pe, &old), a, b)                                            \
        EXPECT(T, S, expar_atomic_swap_nbi_##S(group, word, a, pe, &old), b, a)                                        \
        EXPECT(T, S, expar_atomic_fetch_nbi_##S(group, word, pe, &old), a, a)                                          \
        CHECK_STATUS(EXPAR_ERR_NULL, expar_atomic_fetch_##S(group, word, pe, NULL));                                   \
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_set_##S(group, &old, a, pe));                                     \
        CHECK_STATUS(EXPAR_ERR_RANGE, expar_atomic_swap_##S(group, word, a, -1, &old));                                \
    }
EXPAR_FLOAT_TYPES(CHECK_SWAPS)
EXPAR_WORD_TYPES(CHECK_SWAPS)

#define CHECK_OPERATIONS(T, S)                                                                                         \
    static void check_operations_##S(expar_group *group, T *word, int32_t pe)                                          \
    {                                                                                                                  \
        T old = 0;                                                                                                     \
        CHECK_OPERATION(T, S, add, (T)-3, 2, (T)-1)                                                                    \
        CHECK_OPERATION(T, S, and, 0x3c, 0x0f, 0x0c)                                                                   \
        CHECK_OPERATION(T, S, or, 0x3c, 0x0f, 0x3f)                                                                    \
        CHECK_OPERATION(T, S, xor, (T)-1, 0x0f, (T)~0x0f)                                                              \
        CHECK_OK(expar_atomic_set_##S(group, word, (T)-1, pe));                                                        \
        EXPECT(T, S, expar_atomic_fetch_inc_##S(group, word, pe, &old), (T)-1, 0)                                      \
        EXPECT(T, S, expar_atomic_fetch_inc_nbi_##S(group, word, pe, &old), 0, 1)                                      \
        EXPECT(T, S, (old = 2, expar_atomic_inc_##S(group, word, pe)), 2, 2)                                           \
        EXPECT(T, S, expar_atomic_compare_swap_##S(group, word, 3, 9, pe, &old), 2, 2)                                 \
        EXPECT(T, S, expar_atomic_compare_swap_##S(group, word, 2, (T)-9, pe, &old), 2, (T)-9)                         \
        EXPECT(T, S, expar_atomic_compare_swap_nbi_##S(group, word, (T)-9, 4, pe, &old), (T)-9, 4)                     \
    }
EXPAR_WORD_TYPES(CHECK_OPERATIONS)

static void all_atomics(expar_group *group, void *shared)
{
    (void)shared;
    int32_t pe = (group->rank + 1) % group->size;
    void *word;
    CHECK_OK(expar_calloc(group, 2, 8, &word));
#define RUN_SWAPS(T, S)      check_swaps_##S(group, word, pe);
#define RUN_OPERATIONS(T, S) check_operations_##S(group, word, pe);
    EXPAR_FLOAT_TYPES(RUN_SWAPS)
    EXPAR_WORD_TYPES(RUN_SWAPS)
    CHECK_OK(expar_barrier_all(group));
    memset(word, 0, 16);
    CHECK_OK(expar_barrier_all(group));
    EXPAR_WORD_TYPES(RUN_OPERATIONS)
    CHECK_OK(expar_free(group, word));
}

static void test_atomics(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 3, all_atomics);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rma),
        cmocka_unit_test(test_strided_rejections),
        cmocka_unit_test(test_atomics),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
