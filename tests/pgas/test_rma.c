/* SPDX-License-Identifier: Apache-2.0 */
/* The public one-sided calls: what they move, the order of put-with-signal, the atomics, and every rejection. */
#include "shmem/kind.h"

/* ---- put, get, put with signal ----------------------------------------------------------------------------------- */

/* To the next rank and back from it, through buffers that are not symmetric. */
static void put_get(expar_group *group, void *shared)
{
    (void)shared;
    enum { BYTES = 100003 };
    uint8_t *box, *local = malloc(2 * BYTES);
    int32_t next = (group->rank + 1) % group->size, last = (group->rank + group->size - 1) % group->size;
    CHECK_OK(expar_malloc(group, BYTES, (void **)&box));
    for (int i = 0; i < BYTES; i++)
        local[i] = (uint8_t)(i * 3 + group->rank);
    CHECK_OK(expar_put(group, box, local, BYTES, next));
    CHECK_OK(expar_barrier_all(group));
    int wrong = 0;
    for (int i = 0; i < BYTES; i++)
        wrong += box[i] != (uint8_t)(i * 3 + last);
    CHECK(wrong == 0, "%d bytes put are wrong", wrong);
    CHECK_OK(expar_get(group, local + BYTES, box + 1, BYTES - 1, next));
    CHECK(memcmp(local + BYTES, local + 1, BYTES - 1) == 0, "what comes back differs from what went");
    CHECK_OK(expar_put(group, NULL, NULL, 0, next));
    CHECK_OK(expar_get(group, NULL, NULL, 0, next));
    CHECK_OK(expar_fence(group));
    CHECK_OK(expar_quiet(group));
    free(local);
    CHECK_OK(expar_free(group, box));
}

static void test_put_get(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, put_get);
    kind_run((ranks_plan){0}, 1, put_get);
}

#define LITMUS_ROUNDS 1500
#define LITMUS_WORDS  67

/* Every rank sends to every other; a rank that has seen a signal must see the data that was put before it. */
static void signal_litmus(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *data, *signals, source[LITMUS_WORDS], stale = 0;
    size_t size = (size_t)group->size;
    CHECK_OK(expar_calloc(group, size * LITMUS_WORDS, sizeof *data, (void **)&data));
    CHECK_OK(expar_calloc(group, size, sizeof *signals, (void **)&signals));
    for (uint64_t round = 1; round <= netns_rounds(LITMUS_ROUNDS) && check_failures() == 0; round++) {
        bool adds = round % 2 == 0;
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            source[i] = round * 1000 + (uint64_t)group->rank;
        for (int32_t pe = 0; pe < group->size; pe++)
            CHECK_OK(expar_put_signal(group, &data[group->rank * LITMUS_WORDS], source, sizeof source,
                                      &signals[group->rank], adds ? 1 : round,
                                      adds ? EXPAR_SIGNAL_ADD : EXPAR_SIGNAL_SET, pe));
        for (int32_t from = 0; from < group->size; from++) {
            CHECK_OK(expar_signal_wait_until(group, &signals[from], EXPAR_CMP_GE, round, NULL));
            for (size_t i = 0; i < LITMUS_WORDS; i++)
                stale += data[from * LITMUS_WORDS + (int32_t)i] != round * 1000 + (uint64_t)from;
        }
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK(stale == 0, "%llu words were older than their signal", (unsigned long long)stale);
    CHECK_OK(expar_free(group, signals));
    CHECK_OK(expar_free(group, data));
}

static void test_signal_litmus(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, signal_litmus);
}

#define FENCE_ROUNDS 300

/* A put, a fence, an atomic that sets a flag: a rank that sees the flag sees the data, also where the two go by
   different transports. */
static void fence_litmus(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *data, *flag, source[LITMUS_WORDS], stale = 0;
    int32_t next = (group->rank + 1) % group->size;
    CHECK_OK(expar_calloc(group, LITMUS_WORDS, sizeof *data, (void **)&data));
    CHECK_OK(expar_calloc(group, 1, sizeof *flag, (void **)&flag));
    for (uint64_t round = 1; round <= netns_rounds(FENCE_ROUNDS) && check_failures() == 0; round++) {
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            source[i] = round;
        CHECK_OK(expar_put(group, data, source, sizeof source, next));
        CHECK_OK(expar_fence(group));
        CHECK_OK(expar_atomic_set_u64(group, flag, round, next));
        CHECK_OK(expar_wait_until_u64(group, flag, EXPAR_CMP_GE, round, NULL));
        for (size_t i = 0; i < LITMUS_WORDS; i++)
            stale += data[i] != round;
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK(stale == 0, "%llu words were older than their flag", (unsigned long long)stale);
    CHECK_OK(expar_free(group, flag));
    CHECK_OK(expar_free(group, data));
}

static void test_fence_litmus(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, fence_litmus);
}

/* ---- atomics ----------------------------------------------------------------------------------------------------- */

#define CHECK_ATOMICS(T, S)                                                                                            \
    static void check_atomics_##S(expar_group *group)                                                                  \
    {                                                                                                                  \
        T *word, old = 77;                                                                                             \
        int32_t pe = (group->rank + 1) % group->size;                                                                  \
        CHECK_OK(expar_calloc(group, 1, sizeof *word, (void **)&word));                                                \
        CHECK_OK(expar_atomic_set_##S(group, word, 5, pe));                                                            \
        CHECK_OK(expar_atomic_fetch_##S(group, word, pe, &old));                                                       \
        CHECK(old == 5, "fetch " #S);                                                                                  \
        CHECK_OK(expar_atomic_swap_##S(group, word, (T)-1, pe, &old));                                                 \
        CHECK(old == 5, "swap " #S);                                                                                   \
        CHECK_OK(expar_atomic_compare_swap_##S(group, word, 4, 9, pe, &old));                                          \
        CHECK(old == (T)-1, "compare_swap that differs " #S);                                                          \
        CHECK_OK(expar_atomic_compare_swap_##S(group, word, (T)-1, 9, pe, &old));                                      \
        CHECK(old == (T)-1, "compare_swap that is equal " #S);                                                         \
        CHECK_OK(expar_atomic_fetch_add_##S(group, word, 3, pe, &old));                                                \
        CHECK(old == 9, "fetch_add " #S);                                                                              \
        CHECK_OK(expar_atomic_add_##S(group, word, (T)-2, pe));                                                        \
        CHECK_OK(expar_atomic_fetch_##S(group, word, pe, &old));                                                       \
        CHECK(old == 10, "add " #S);                                                                                   \
        CHECK_STATUS(EXPAR_ERR_NULL, expar_atomic_fetch_##S(group, word, pe, NULL));                                   \
        CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_atomic_set_##S(group, (T *)(void *)((char *)word + 1), 1, pe));        \
        CHECK_TEXT("expar_atomic_set_" #S, "multiple of");                                                             \
        CHECK_STATUS(EXPAR_ERR_RANGE, expar_atomic_add_##S(group, word, 1, -1));                                       \
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_add_##S(group, &old, 1, pe));                                     \
        CHECK_OK(expar_free(group, word));                                                                             \
    }
CHECK_ATOMICS(uint32_t, u32)
CHECK_ATOMICS(uint64_t, u64)

static void atomics(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t rounds = netns_rounds(3000);
    uint64_t *counter, sum = 0;
    check_atomics_u32(group);
    check_atomics_u64(group);
    CHECK_OK(expar_calloc(group, 1, sizeof *counter, (void **)&counter));
    for (uint64_t i = 0; i < rounds; i++)
        CHECK_OK(expar_atomic_add_u64(group, counter, i, 0));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_atomic_fetch_u64(group, counter, 0, &sum));
    CHECK(sum == (uint64_t)group->size * rounds * (rounds - 1) / 2, "the sum is %llu", (unsigned long long)sum);
    CHECK_OK(expar_free(group, counter));
}

static void test_atomics(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 4, atomics);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void reject_put_and_get(expar_group *group, uint64_t *box, size_t bytes)
{
    uint64_t local[4] = {0};
    uint8_t *heap = group->sym->heap.base;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put(NULL, box, local, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put(group, NULL, local, 8, 0));
    CHECK_TEXT("expar_put", "dest is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put(group, box, NULL, 8, 0));
    CHECK_TEXT("expar_put", "source is NULL");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_put(group, box, local, 8, group->size));
    CHECK_TEXT("expar_put", "pe 2", "0 to 1");
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_put(group, box, local, 8, -1));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, local, local, 8, 0));
    CHECK_TEXT("dest", "symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, heap, local, 8, 0)); /* the control page */
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, heap + bytes - 8, local, 9, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, heap + bytes, local, 1, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, box, local, SIZE_MAX, 0));
    CHECK_TEXT("expar_put", "dest", "leaves the symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put_nbi_u64(group, box, local, bytes / 8, 0));
    CHECK_TEXT("expar_put_nbi_u64", "leaves the symmetric heap");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_put_u64(group, box, local, SIZE_MAX / 4, 0));
    CHECK_TEXT("expar_put_u64", "count 4611686018427387903", "at most 2305843009213693951", "overflow");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_get(NULL, local, box, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_get(group, NULL, box, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_get(group, local, NULL, 8, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_get(group, local, box, 8, 77));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get(group, local, local, 8, 0));
    CHECK_TEXT("expar_get", "source", "symmetric heap");
}

static void reject_signals_and_waits(expar_group *group, uint64_t *box)
{
    uint64_t local = 5, value = 99;
    uint64_t *crooked = (uint64_t *)(void *)((char *)box + 4);
    const expar_signal_op set = EXPAR_SIGNAL_SET;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_signal(NULL, box, &local, 8, box + 1, 1, set, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_signal(group, box, NULL, 8, box + 1, 1, set, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put_signal(group, box, &local, 8, NULL, 1, set, 0));
    CHECK_TEXT("expar_put_signal", "signal is NULL");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put_signal(group, box, &local, 8, &local, 1, set, 0));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_put_signal(group, box, &local, 8, crooked, 1, set, 0));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_atomic_add_u64(group, crooked, 1, 0));
    CHECK_TEXT("expar_atomic_add_u64", "word", "multiple of 8");
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT,
                 expar_atomic_fetch_nbi_u32(group, (uint32_t *)(void *)((char *)box + 2), 0, &(uint32_t){0}));
    CHECK_TEXT("expar_atomic_fetch_nbi_u32", "multiple of 4");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_put_signal(group, box, &local, 8, box + 1, 1, (expar_signal_op)2, 0));
    CHECK(box[0] == 0 && box[1] == 0, "a refused put has written");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_signal_fetch(group, NULL, &value));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_signal_fetch(group, box, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_signal_fetch(NULL, box, &value));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_signal_fetch(group, &local, &value));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_signal_wait_until(group, crooked, EXPAR_CMP_EQ, 1, NULL));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_signal_wait_until(group, box, (expar_cmp)6, 1, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_signal_wait_until(NULL, box, EXPAR_CMP_EQ, 1, NULL));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_wait_until_u32(group, (uint32_t *)&local, EXPAR_CMP_EQ, 1, NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_barrier_all(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_fence(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_quiet(NULL));
    CHECK(value == 99, "an output was written");
}

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box;
    CHECK_OK(expar_calloc(group, 4, sizeof *box, (void **)&box));
    reject_put_and_get(group, box, group->sym->heap.bytes);
    reject_signals_and_waits(group, box);
    CHECK_OK(expar_free(group, box));
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, rejections);
}

/* Without a network, ranks of another node are out of reach, and say so. */
static void other_node(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box, local = 1;
    int32_t far = group->size - 1 - group->rank;
    CHECK_OK(expar_calloc(group, 1, sizeof *box, (void **)&box));
    CHECK(expar_ptr(group, box, far) == NULL, "rank %d has an address", far);
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, box, &local, 8, far));
    CHECK_TEXT("expar_put", "another node", "no transport");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_get(group, &local, box, 8, far));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_atomic_add_u64(group, box, 1, far));
    CHECK_OK(expar_put(group, box, &local, 8, group->rank ^ 1));
    CHECK_OK(expar_barrier_all(group));
    CHECK(*box == 1, "the neighbour's put is missing");
    CHECK_OK(expar_free(group, box));
}

static void test_other_node(void **state)
{
    (void)state;
    const char *before = getenv("EXPAR_TRANSPORTS");
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    kind_run((ranks_plan){.ranks_per_node = 2}, 4, other_node);
    if (before)
        setenv("EXPAR_TRANSPORTS", before, 1);
    else
        unsetenv("EXPAR_TRANSPORTS");
}

#ifdef EXPAR_HAVE_LIBFABRIC
#define FAR_WORDS 3000

/* Two nodes of two ranks: the far one is reached by the network, the near one as the group's transports say. Atomics of
   both meet on one word. */
static void across_nodes(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box, *sum, local[FAR_WORDS], old;
    int32_t far = group->size - 1 - group->rank;
    CHECK_OK(expar_calloc(group, FAR_WORDS, sizeof *box, (void **)&box));
    CHECK_OK(expar_calloc(group, 2, sizeof *sum, (void **)&sum));
    CHECK(expar_ptr(group, box, far) == NULL, "rank %d has an address", far);
    for (size_t i = 0; i < FAR_WORDS; i++)
        local[i] = i * 5 + (uint64_t)group->rank;
    CHECK_OK(expar_put_signal(group, box, local, sizeof local, &sum[1], 7, EXPAR_SIGNAL_SET, far));
    CHECK_OK(expar_signal_wait_until(group, &sum[1], EXPAR_CMP_EQ, 7, NULL));
    for (size_t i = 0; i < FAR_WORDS; i++)
        CHECK(box[i] == i * 5 + (uint64_t)far, "word %zu is %llu", i, (unsigned long long)box[i]);
    CHECK_OK(expar_get(group, local, box, sizeof local, far));
    for (size_t i = 0; i < FAR_WORDS; i++)
        CHECK(local[i] == i * 5 + (uint64_t)group->rank, "word %zu came back as %llu", i, (unsigned long long)local[i]);
    for (int i = 0; i < 500; i++)
        CHECK_OK(expar_atomic_fetch_add_u64(group, sum, 1, 0, &old));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_atomic_fetch_u64(group, sum, 0, &old));
    CHECK(old == 4 * 500, "near and far atomics add up to %llu", (unsigned long long)old);
    CHECK_OK(expar_free(group, sum));
    CHECK_OK(expar_free(group, box));
}

static void test_across_nodes(void **state)
{
    (void)state;
    kind_run((ranks_plan){.ranks_per_node = 2}, 4, across_nodes);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_get),      cmocka_unit_test(test_signal_litmus),   cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_fence_litmus), cmocka_unit_test(test_rejections_told), cmocka_unit_test(test_other_node),
#ifdef EXPAR_HAVE_LIBFABRIC
        cmocka_unit_test(test_across_nodes),
#endif
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
