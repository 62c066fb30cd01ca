/* SPDX-License-Identifier: Apache-2.0 */
/* The heap's memory. A dynamic heap grows after its present end, a static one is whole from the start. Lack of memory
 * is an error on all ranks and no signal. */
#include "mem/machine.h"
#include "shmem/kind.h"

#include <sys/resource.h>

#define MIB        ((size_t)1 << 20)
#define HEAP_BYTES (48 * MIB)

static expar_heap_stats stats_of(expar_group *group)
{
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_heap_get_stats(group, &stats));
    return stats;
}

/* Everybody writes to the next rank's block, its last byte included, and finds what the rank before has written. */
static void pass_on(expar_group *group, uint8_t *block, size_t bytes, uint8_t mark)
{
    const int32_t next = (group->rank + 1) % group->size, last = (group->rank + group->size - 1) % group->size;
    const uint8_t mine = (uint8_t)(mark + group->rank), expected = (uint8_t)(mark + last);
    uint8_t got = 0;
    CHECK_OK(expar_put(group, block, &mine, 1, next));
    CHECK_OK(expar_put(group, block + bytes - 1, &mine, 1, next));
    CHECK_OK(expar_barrier_all(group));
    CHECK(block[0] == expected && block[bytes - 1] == expected, "%d and %d came, expected %d", block[0],
          block[bytes - 1], expected);
    CHECK_OK(expar_get(group, &got, block + bytes - 1, 1, next));
    CHECK(got == mine, "%d was got back, expected %d", got, mine);
    CHECK_OK(expar_barrier_all(group));
}

/* Each block needs more than the heap has; what was there before stays. */
static void grow(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *blocks[4];
    static const size_t sizes[] = {MIB, 3 * MIB, 1, 30 * MIB};
    uint64_t grown = stats_of(group).grown_bytes;
    CHECK(grown >= SYM_CONTROL_BYTES && grown < HEAP_BYTES, "%llu bytes at the start", (unsigned long long)grown);
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        CHECK_OK(expar_malloc(group, sizes[i], (void **)&blocks[i]));
        pass_on(group, blocks[i], sizes[i], (uint8_t)(10 * i));
        expar_heap_stats now = stats_of(group);
        CHECK(now.grown_bytes >= now.used_bytes && now.grown_bytes >= grown, "grown to %llu with %llu in use",
              (unsigned long long)now.grown_bytes, (unsigned long long)now.used_bytes);
        CHECK(now.grown_bytes <= now.total_bytes && now.total_bytes == HEAP_BYTES, "grown too far");
        CHECK(group->sym->heap.fd < 0 || now.memory_bytes >= sizes[i], "%llu bytes of memory",
              (unsigned long long)now.memory_bytes);
        grown = now.grown_bytes;
    }
    CHECK(grown > 32 * MIB, "the heap has not grown: %llu", (unsigned long long)grown);
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        const int32_t last = (group->rank + group->size - 1) % group->size;
        CHECK(blocks[i][0] == (uint8_t)(10 * i + (size_t)last), "block %zu changed as the heap grew", i);
        CHECK_OK(expar_free(group, blocks[i]));
    }
    CHECK(stats_of(group).grown_bytes == grown, "the heap has shrunk");
    CHECK_OK(expar_malloc(group, 30 * MIB, (void **)&blocks[0])); /* memory that was given back comes again */
    pass_on(group, blocks[0], 30 * MIB, 90);
    CHECK_OK(expar_free(group, blocks[0]));
}

static void test_growth(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, grow);
}

/* Addresses that the heap may come to are no part of it yet. */
static void stay_inside(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *block, byte = 1;
    uint64_t offset = stats_of(group).grown_bytes;
    uint8_t *border = (uint8_t *)group->sym->heap.base + offset;
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, border, &byte, 1, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, border - 1, &byte, 2, 0));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_get(group, &byte, border, 1, 0));
    CHECK(expar_ptr(group, border, 0) == NULL, "an address behind the border");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, border));
    CHECK_OK(expar_malloc(group, offset, (void **)&block));
    CHECK(stats_of(group).grown_bytes > offset, "the heap has not grown");
    CHECK_OK(expar_put(group, border, &byte, 1, group->rank));
    CHECK_OK(expar_free(group, block));
}

static void test_border(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, stay_inside);
}

/* More than the machine has: an error that says what is left, at once and on all ranks; then all goes on. */
static void ask_too_much(expar_group *group, void *shared)
{
    const size_t *machine_bytes = shared;
    void *block = group, *small;
    const uint64_t before = stats_of(group).used_bytes;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, *machine_bytes + MIB, &block));
    CHECK_TEXT("expar_malloc: no memory for", "in use by other blocks", "bytes of memory are left");
    CHECK(block == group, "an output was written");
    CHECK(stats_of(group).used_bytes == before, "the block stays taken");
    CHECK_OK(expar_malloc(group, MIB, &small));
    pass_on(group, small, MIB, 7);
    CHECK_OK(expar_free(group, small));
}

/* All memory and swap that there are: whatever other programs take and give meanwhile, more is never to be had. */
static void test_no_memory(void **state)
{
    (void)state;
    size_t bytes = machine_memory_bytes();
    assert_true(bytes > 0);
    if (bytes > (size_t)400 << 30) {
        print_message("skipped: this machine has too much memory to reserve as much for each rank\n");
        skip();
    }
    const ranks_plan plan = {.kind = kind_of_ranks, .size = 2, .heap_bytes = bytes + 256 * MIB};
    assert_true(ranks_run(&plan, ask_too_much, &bytes));
}

/* Files of rank 1 may not grow: its own error says so, those of the others name it. */
static void grow_all_but_one(expar_group *group, void *shared)
{
    (void)shared;
    const struct rlimit none = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    void *block = group;
    if (group->rank == 1) CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0, "no limit");
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, 30 * MIB, &block));
    if (group->rank == 1)
        CHECK_TEXT("expar_malloc", "ulimit -f");
    else
        CHECK_TEXT("expar_malloc: rank 1 has no memory for its 31457280 bytes");
    CHECK(block == group, "an output was written");
    if (group->rank == 1) CHECK(setrlimit(RLIMIT_FSIZE, &all) == 0, "the limit stays");
    CHECK_OK(expar_malloc(group, 30 * MIB, &block));
    pass_on(group, block, 30 * MIB, 5);
    CHECK_OK(expar_free(group, block));
}

static void test_one_without_memory(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) {
        print_message("skipped: thread ranks share one limit\n");
        skip();
    }
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, grow_all_but_one);
}

/* All of it is there; what does not fit is refused with what is left. */
static void use_static(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *all;
    void *block = group;
    expar_heap_stats at_first = stats_of(group);
    CHECK(at_first.grown_bytes == at_first.total_bytes && at_first.total_bytes == 8 * MIB, "grown to %llu",
          (unsigned long long)at_first.grown_bytes);
    CHECK(group->sym->heap.fd < 0 || at_first.memory_bytes >= 8 * MIB, "%llu bytes of memory",
          (unsigned long long)at_first.memory_bytes);
    CHECK_OK(expar_malloc(group, 5 * MIB, (void **)&all));
    pass_on(group, all, 5 * MIB, 3);
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, 4 * MIB, &block));
    CHECK_TEXT("no space for 4194304 bytes", "of 8388608 bytes are left", "the largest free block");
    CHECK_OK(expar_free(group, all));
    CHECK(stats_of(group).memory_bytes == at_first.memory_bytes, "memory of a static heap was given back");
}

static void test_static(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = 8 * MIB, .heap_kind = EXPAR_HEAP_STATIC}, 2, use_static);
}

/* Free space between blocks, and what is left of it when they go. */
static void fragment(expar_group *group, void *shared)
{
    (void)shared;
    void *blocks[6];
    const expar_heap_stats before = stats_of(group);
    for (int i = 0; i < 6; i++)
        CHECK_OK(expar_malloc(group, (size_t)(i + 1) * 1024, &blocks[i]));
    CHECK_OK(expar_free(group, blocks[1]));
    CHECK_OK(expar_free(group, blocks[3]));
    expar_heap_stats now = stats_of(group);
    CHECK(now.holes == before.holes + 2 && now.hole_bytes == before.hole_bytes + 6144, "%llu bytes in %llu holes",
          (unsigned long long)now.hole_bytes, (unsigned long long)now.holes);
    CHECK(now.largest_hole_bytes == 4096, "the largest of %llu", (unsigned long long)now.largest_hole_bytes);
    CHECK_OK(expar_free(group, blocks[2]));
    now = stats_of(group);
    CHECK(now.holes == before.holes + 1 && now.largest_hole_bytes == 9216, "neighbours have not grown together");
    for (int i = 0; i < 6; i += i == 0 ? 4 : 1)
        CHECK_OK(expar_free(group, blocks[i]));
    CHECK(stats_of(group).holes == before.holes, "holes are left behind");
}

static void test_fragmentation(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, fragment);
}

/* A second group among the same ranks, of which one wants another kind of heap. */
static void differ_in_kind(expar_group *group, void *shared)
{
    (void)shared;
    expar_unique_id id;
    expar_group *second = NULL;
    if (group->rank == 0) CHECK_OK(expar_unique_id_create(&id));
    CHECK_OK(expar_group_broadcast(group, &id, sizeof id, 0));
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.id = &id;
    options.rank = group->rank;
    options.size = group->size;
    options.heap_bytes = 4 * MIB;
    options.heap_kind = group->rank == 1 ? EXPAR_HEAP_STATIC : EXPAR_HEAP_DYNAMIC;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_group_create(&options, &second));
    CHECK_TEXT("static", "dynamic", "EXPAR_HEAP_KIND");
    CHECK(second == NULL, "an output was written");
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == 0) CHECK_OK(expar_unique_id_retire(&id));
}

static void test_kinds_differ(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, differ_in_kind);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_border),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_kinds_differ),
        cmocka_unit_test(test_fragmentation),
        cmocka_unit_test(test_one_without_memory),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
