/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics, locks and waits of the host on words of all kinds of memory, and bad input. Ranks and ways as in
 * test_kinds_calls.c. */
#include "pgas/memories.h"

#include <stdio.h>

/* ---- atomics, locks and waits ------------------------------------------------------------------------------------ */

/* Each operation by each rank in turn, on a word of the next one. */
static void each_atomic(expar_group *group, uint64_t *words, int32_t pe)
{
    uint64_t old = 0;
    uint32_t *half = (uint32_t *)(void *)&words[1], old32 = 0;
    double *number = (double *)(void *)&words[2], was = 1;
    float *small = (float *)(void *)&words[3], had = 1;
    CHECK_OK(expar_atomic_set_u64(group, words, 0xf0f0, pe));
    CHECK_OK(expar_atomic_fetch_u64(group, words, pe, &old));
    CHECK(old == 0xf0f0, "fetched %llx", (unsigned long long)old);
    CHECK_OK(expar_atomic_swap_u64(group, words, 0xff, pe, &old));
    CHECK(old == 0xf0f0, "swapped %llx", (unsigned long long)old);
    CHECK_OK(expar_atomic_compare_swap_u64(group, words, 1, 2, pe, &old));
    CHECK(old == 0xff, "compared with %llx", (unsigned long long)old);
    CHECK_OK(expar_atomic_compare_swap_u64(group, words, 0xff, UINT64_C(1) << 40, pe, &old));
    CHECK_OK(expar_atomic_fetch_add_u64(group, words, 5, pe, &old));
    CHECK(old == UINT64_C(1) << 40, "added to %llx", (unsigned long long)old);
    CHECK_OK(expar_atomic_and_u64(group, words, 4, pe));
    CHECK_OK(expar_atomic_or_u64(group, words, 3, pe));
    CHECK_OK(expar_atomic_xor_u64(group, words, 1, pe));
    CHECK_OK(expar_atomic_inc_u64(group, words, pe));
    CHECK_OK(expar_atomic_fetch_inc_u64(group, words, pe, &old));
    CHECK(old == 7, "incremented %llx", (unsigned long long)old);
    CHECK_OK(expar_atomic_set_u32(group, half, 7, pe));
    CHECK_OK(expar_atomic_fetch_add_u32(group, half, UINT32_MAX, pe, &old32));
    CHECK_OK(expar_atomic_fetch_u32(group, half, pe, &old32));
    CHECK(old32 == 6, "fetched %u", old32);
    CHECK_OK(expar_atomic_fetch_u32(group, half + 1, pe, &old32));
    CHECK(old32 == 0, "the other half holds %u", old32);
    CHECK_OK(expar_atomic_swap_f64(group, number, 2.5, pe, &was));
    CHECK_OK(expar_atomic_fetch_f64(group, number, pe, &was));
    CHECK(was == 2.5, "fetched %g", was);
    CHECK_OK(expar_atomic_set_f32(group, small, -0.5f, pe));
    CHECK_OK(expar_atomic_fetch_f32(group, small, pe, &had));
    CHECK(had == -0.5f, "fetched %g", (double)had);
}

/* All ranks count in one word: no number comes twice. */
static void count_together(expar_group *group, uint64_t *word)
{
    enum { EACH = 20 };
    uint64_t own[EACH], all[MAX_RANKS * EACH];
    bool seen[MAX_RANKS * EACH] = {false};
    for (int i = 0; i < EACH; i++)
        CHECK_OK(i % 2 ? expar_atomic_fetch_inc_u64(group, word, 0, &own[i])
                       : expar_atomic_fetch_inc_nbi_u64(group, word, 0, &own[i]));
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_group_allgather(group, own, all, sizeof own));
    for (int32_t i = 0; i < group->size * EACH; i++) {
        const bool fresh = all[i] < (uint64_t)group->size * EACH && !seen[all[i]];
        CHECK(fresh, "number %llu came twice, or is too large", (unsigned long long)all[i]);
        if (fresh) seen[all[i]] = true;
    }
}

/* Only the lock keeps the counts of two ranks apart. */
static void count_in_turns(expar_group *group, uint64_t *lock, uint64_t *count)
{
    enum { EACH = 5 };
    uint64_t value = 0;
    for (int i = 0; i < EACH; i++) {
        CHECK_OK(expar_lock_set(group, lock));
        CHECK_OK(expar_get(group, &value, count, sizeof value, 0));
        value++;
        CHECK_OK(expar_put(group, count, &value, sizeof value, 0));
        CHECK_OK(expar_lock_clear(group, lock));
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_g_u64(group, count, 0, &value));
    CHECK(value == (uint64_t)group->size * EACH, "%llu turns", (unsigned long long)value);
}

/* The previous rank writes the words, one after the other. */
static void wait_for_words(expar_group *group, uint16_t *words)
{
    enum { WORDS = 9 };
    const int32_t next = (group->rank + 1) % group->size;
    const uint16_t values[WORDS] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    int skip[WORDS] = {0}, holds = 2;
    size_t index = 0, found = 0, indices[WORDS];
    uint16_t seen = 0;
    CHECK_OK(expar_test_u16(group, words, EXPAR_CMP_NE, 0, &holds));
    CHECK(holds == 0, "a word of zeros is not 0");
    CHECK_OK(expar_barrier_all(group));
    for (uint16_t i = 0; i < WORDS; i++)
        CHECK_OK(expar_p_u16(group, &words[i], values[i], next));
    CHECK_OK(expar_wait_until_u16(group, &words[4], EXPAR_CMP_GT, 4, &seen));
    CHECK(seen == 5, "saw %u", seen);
    CHECK_OK(expar_wait_until_all_vector_u16(group, words, WORDS, NULL, EXPAR_CMP_EQ, values));
    CHECK_OK(expar_wait_until_any_u16(group, words, WORDS, NULL, EXPAR_CMP_EQ, 8, &index));
    CHECK(index == 7, "word %zu holds", index);
    skip[8] = 1;
    CHECK_OK(expar_wait_until_some_u16(group, words, WORDS, indices, skip, EXPAR_CMP_GE, 7, &found));
    CHECK(found == 2 && indices[0] == 6 && indices[1] == 7, "%zu words hold", found);
    CHECK_OK(expar_test_all_u16(group, words, WORDS, skip, EXPAR_CMP_LT, 9, &holds));
    CHECK(holds == 1, "not all words hold");
}

static void words(expar_group *group, void *shared)
{
    (void)shared;
    for (int k = 0; k < KINDS; k++) {
        uint64_t *block = take_zeros(group, (expar_memory_kind)k, 1024);
        if (!block) return;
        each_atomic(group, block, (group->rank + 1) % group->size);
        count_together(group, &block[8]);
        count_in_turns(group, &block[9], &block[10]);
        wait_for_words(group, (uint16_t *)&block[16]);
        CHECK_OK(expar_free(group, block));
    }
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

/* Results go to memory of the host. */
static void device_results(expar_group *group, uint64_t *device, uint64_t *host)
{
    int *flags = (int *)(void *)device, holds = 4;
    size_t *sizes = (size_t *)(void *)device, index = 5;
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_fetch_u64(group, host, 0, device));
    CHECK_TEXT("expar_atomic_fetch_u64: old", "is memory of a GPU; expected host memory");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_fetch_add_nbi_u64(group, device, 1, 0, device));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_signal_fetch(group, host, device));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_wait_until_u64(group, host, EXPAR_CMP_EQ, 0, device));
    CHECK_TEXT("expar_wait_until_u64: seen");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_signal_wait_until(group, device, EXPAR_CMP_EQ, 0, device));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_u64(group, device, EXPAR_CMP_EQ, 0, flags));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_all_u64(group, host, 2, flags, EXPAR_CMP_EQ, 0, &holds));
    CHECK_TEXT("skip");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_any_u64(group, host, 2, NULL, EXPAR_CMP_EQ, 0, sizes));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_any_u64(group, host, 2, flags, EXPAR_CMP_EQ, 0, &index));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_some_u64(group, host, 2, sizes, NULL, EXPAR_CMP_EQ, 0, &index));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_some_u64(group, host, 2, &index, NULL, EXPAR_CMP_EQ, 0, sizes));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_test_all_vector_u64(group, host, 2, NULL, EXPAR_CMP_EQ, device, &holds));
    CHECK_TEXT("values");
    CHECK(holds == 4 && index == 5, "a refused call has written its result");
}

static void bad_input(expar_group *group, void *shared)
{
    (void)shared;
    const size_t bytes = 4096;
    uint8_t local[64] = {7};
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, bytes), *host = take_zeros(group, EXPAR_MEMORY_HOST, 64);
    uint8_t *at = (uint8_t *)device;
    if (!device || !host) return;
    device_results(group, device, host);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, at, local, (size_t)1 << 40, 0));
    CHECK_TEXT("expar_put: dest", "leaves the symmetric device memory");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get(group, local, at - 8192, 8, 0));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT, expar_atomic_add_u64(group, (uint64_t *)(void *)(at + 4), 1, 0));
    CHECK_STATUS(EXPAR_ERR_ALIGNMENT,
                 expar_put_signal(group, at, local, 8, (uint64_t *)(void *)(at + 12), 1, EXPAR_SIGNAL_SET, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_put(group, at, local, 8, group->size));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_atomic_add_u64(group, device, 1, -1));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_put(group, at, NULL, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_atomic_fetch_u64(group, device, 0, NULL));
    CHECK_OK(expar_put(group, at, at, 0, 0));
    CHECK_OK(expar_get(group, at, at, 0, 0));
    CHECK_OK(expar_barrier_all(group));
    holds_zeros(group, EXPAR_MEMORY_DEVICE, device, bytes);
    CHECK_OK(expar_free(group, host));
    CHECK_OK(expar_free(group, device));
}

/* Blocks of another group of the same ranks. As local sides of a put and a get they may come from anywhere. */
static void of_another_group(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *own = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), seen = 3;
    expar_group *other = ranks_join_again(group);
    if (!own || !other) return;
    for (int k = 0; k < KINDS; k++) {
        expar_memory_place place = EXPAR_MEMORY_PLACE_INIT;
        uint64_t *theirs = take_zeros(other, (expar_memory_kind)k, 64);
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, theirs, &seen, sizeof seen, 0));
        CHECK_TEXT("expar_put: dest");
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get(group, &seen, theirs, sizeof seen, 0));
        CHECK_TEXT("expar_get: source");
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_add_u64(group, theirs, 1, 0));
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_atomic_swap_u64(group, theirs, 1, 0, &seen));
        CHECK_STATUS(EXPAR_ERR_ADDRESS,
                     expar_put_signal(group, own, &seen, sizeof seen, theirs, 1, EXPAR_SIGNAL_SET, 0));
        CHECK_TEXT("expar_put_signal: signal");
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_signal_fetch(group, theirs, &seen));
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_wait_until_u64(group, theirs, EXPAR_CMP_EQ, 1, NULL));
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_memory_get_place(group, theirs, &place));
        CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, theirs));
        CHECK(seen == 3, "a rejected call has written %llu", (unsigned long long)seen);
        CHECK(expar_ptr(group, theirs, group->rank) == NULL, "%s memory has an address", kind_names[k]);
        CHECK(expar_device_ptr(group, theirs, group->rank) == NULL, "%s memory has an address", kind_names[k]);
        holds_zeros(group, (expar_memory_kind)k, theirs, 64);
        CHECK_OK(expar_free(other, theirs));
    }
    holds_zeros(group, EXPAR_MEMORY_DEVICE, own, 64);
    CHECK_OK(expar_free(group, own));
    CHECK_OK(expar_group_destroy(other));
}

/* Nothing reaches the other node. Each call names its rank; the own node is served. */
static void no_way(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, 64), one = 1, old = 0;
    const int32_t far = 1 - group->rank;
    char rank[24];
    snprintf(rank, sizeof rank, "rank %d", far);
    if (!device) return;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, device, &one, 8, far));
    CHECK_TEXT("expar_put", rank, "no transport reaches it");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_get(group, &old, device, 8, far));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_atomic_add_u64(group, device, 1, far));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put_signal(group, device, &one, 8, device, 1, EXPAR_SIGNAL_SET, far));
    CHECK_OK(expar_put(group, device, &one, 8, group->rank));
    CHECK_OK(expar_atomic_fetch_add_u64(group, device, 4, group->rank, &old));
    CHECK_OK(expar_wait_until_u64(group, device, EXPAR_CMP_EQ, 5, &old));
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void run(ranks_body body, int32_t size)
{
    kind_run((ranks_plan){0}, size, body);
}

static void test_words(void **state)
{
    (void)state;
    run(words, 1);
    run(words, 4);
}

static void test_bad_input(void **state)
{
    (void)state;
    run(bad_input, 2);
}

static void test_addresses_of_another_group(void **state)
{
    (void)state;
    run(of_another_group, 2);
}

static void test_no_way_to_another_node(void **state)
{
    (void)state;
    if (kind_is_mix || getenv("EXPAR_TRANSPORTS")) skip();
    setenv("EXPAR_TRANSPORTS", "p2p", 1);
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, no_way);
    unsetenv("EXPAR_TRANSPORTS");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_addresses_of_another_group),
        cmocka_unit_test(test_no_way_to_another_node),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
