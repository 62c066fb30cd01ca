/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric heap: same offsets everywhere, and the same answer on all ranks whatever one of them asks for. */
#include "shmem/kind.h"

#include <sys/stat.h>

#define HEAP_BYTES ((size_t)8 << 20)

static uint64_t offset_in_heap(const expar_group *group, const void *address)
{
    return (uint64_t)((const uint8_t *)address - (const uint8_t *)group->sym->heap.base);
}

/* The same on all ranks? */
static void check_symmetric(expar_group *group, const void *address, const char *what)
{
    uint64_t mine = offset_in_heap(group, address);
    uint64_t *all = calloc((size_t)group->size, sizeof *all);
    CHECK_OK(expar_group_allgather(group, &mine, all, sizeof mine));
    for (int32_t r = 0; r < group->size; r++)
        CHECK(all[r] == mine, "%s: offset %llu on rank %d, %llu here", what, (unsigned long long)all[r], r,
              (unsigned long long)mine);
    free(all);
}

static void allocate_and_free(expar_group *group, void *shared)
{
    (void)shared;
    void *blocks[64] = {0};
    uint64_t random = 12345; /* the same on all ranks */
    for (int step = 0; step < 300 && check_failures() == 0; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t i = random >> 58, alignment = (size_t)1 << (random >> 40) % 14, bytes = (random >> 20) % 70000;
        if (blocks[i]) {
            CHECK_OK(expar_free(group, blocks[i]));
            blocks[i] = NULL;
            continue;
        }
        CHECK_OK(expar_align(group, alignment, bytes + 1, &blocks[i]));
        CHECK((uintptr_t)blocks[i] % alignment == 0 && (uintptr_t)blocks[i] % 128 == 0, "alignment %zu", alignment);
        memset(blocks[i], 0xff, bytes + 1);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(blocks); i++) {
        if (blocks[i]) check_symmetric(group, blocks[i], "random block");
        CHECK_OK(expar_free(group, blocks[i]));
    }
    mem_arena_stats stats;
    mem_arena_get_stats(group->sym->arena, &stats);
    CHECK(stats.used_bytes == SYM_CONTROL_BYTES && stats.blocks == 1, "%llu bytes are left behind",
          (unsigned long long)stats.used_bytes);
}

static void test_allocate_and_free(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, allocate_and_free);
}

/* Memory that was used before comes back zero from calloc, small or large, with its neighbours as they were. */
static void zeroed(expar_group *group, void *shared)
{
    (void)shared;
    static const size_t sizes[] = {1, 100, 4096, 70001, 3000000};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        uint8_t *before, *block, *following;
        CHECK_OK(expar_malloc(group, 128, (void **)&before));
        CHECK_OK(expar_malloc(group, sizes[i], (void **)&block));
        CHECK_OK(expar_malloc(group, 128, (void **)&following));
        memset(before, 1, 128);
        memset(block, 2, sizes[i]);
        memset(following, 3, 128);
        CHECK_OK(expar_free(group, block));
        CHECK_OK(expar_calloc(group, sizes[i], 1, (void **)&block));
        size_t dirty = 0;
        for (size_t b = 0; b < sizes[i]; b++)
            dirty += block[b] != 0;
        CHECK(dirty == 0, "%zu of %zu bytes are not zero", dirty, sizes[i]);
        for (size_t b = 0; b < 128; b++)
            CHECK(before[b] == 1 && following[b] == 3, "a neighbour of %zu bytes was touched", sizes[i]);
        CHECK_OK(expar_free(group, following));
        CHECK_OK(expar_free(group, block));
        CHECK_OK(expar_free(group, before));
    }
}

static void test_calloc_zeroes(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, zeroed);
}

/* The pages of a large block go back to the system when it is freed. */
static void give_pages_back(expar_group *group, void *shared)
{
    (void)shared;
    struct stat before, used, after;
    uint8_t *block;
    /* Thread ranks: the kernel counts no blocks of anonymous memory. A network needs the pages where they are. */
    if (group->sym->heap.fd < 0 || group->sym->keeps_pages) return;
    CHECK(fstat(group->sym->heap.fd, &before) == 0, "fstat");
    CHECK_OK(expar_malloc(group, 6 << 20, (void **)&block));
    memset(block, 1, 6 << 20);
    CHECK(fstat(group->sym->heap.fd, &used) == 0, "fstat");
    CHECK_OK(expar_free(group, block));
    CHECK(fstat(group->sym->heap.fd, &after) == 0, "fstat");
    CHECK(used.st_blocks - before.st_blocks >= (4 << 20) / 512, "the block took no pages");
    CHECK(used.st_blocks - after.st_blocks >= (2 << 20) / 512, "no pages were given back");
}

static void test_large_blocks_give_pages_back(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, give_pages_back);
}

static void nothing(expar_group *group, void *shared)
{
    (void)shared;
    void *block = group;
    CHECK_OK(expar_malloc(group, 0, &block));
    CHECK(block == NULL, "malloc of 0 bytes");
    CHECK_OK(expar_calloc(group, 0, 8, &block));
    CHECK_OK(expar_calloc(group, 8, 0, &block));
    CHECK(block == NULL, "calloc of 0 bytes");
    CHECK_OK(expar_free(group, NULL));
}

static void test_zero_bytes(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, nothing);
}

/* ---- where ranks differ ------------------------------------------------------------------------------------------ */

/* After each rejection the heap must be as it was, on all ranks. */
static void check_intact(expar_group *group, const mem_arena_stats *expected, const char *what)
{
    mem_arena_stats stats;
    mem_arena_get_stats(group->sym->arena, &stats);
    CHECK(stats.used_bytes == expected->used_bytes && stats.blocks == expected->blocks, "%s has taken memory", what);
    CHECK_OK(expar_barrier_all(group));
}

static void mismatches(expar_group *group, void *shared)
{
    (void)shared;
    bool odd = group->rank == 2;
    char *kept, *other;
    void *block = group;
    mem_arena_stats stats;
    CHECK_OK(expar_malloc(group, 1000, (void **)&kept));
    CHECK_OK(expar_malloc(group, 1000, (void **)&other));
    mem_arena_get_stats(group->sym->arena, &stats);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_malloc(group, odd ? 512 : 4096, &block));
    CHECK_TEXT("expar_malloc", "rank 2", "512", "4096");
    check_intact(group, &stats, "malloc of different sizes");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_align(group, odd ? 1024 : 4096, 64, &block));
    CHECK_TEXT("expar_align", "rank 2", "1024", "4096");
    check_intact(group, &stats, "align with different alignments");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, odd ? expar_free(group, kept) : expar_malloc(group, 64, &block));
    check_intact(group, &stats, "free against malloc");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_malloc(group, odd ? (size_t)1 << 40 : 64, &block));
    check_intact(group, &stats, "one rank's size that does not fit");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_free(group, odd ? other : kept));
    CHECK_TEXT("expar_free", "rank 2", "offset");
    check_intact(group, &stats, "free of different blocks");
    CHECK(block == group, "an output was written");
    CHECK_OK(expar_free(group, other));
    CHECK_OK(expar_free(group, kept));
}

static void test_mismatches(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, mismatches);
}

/* A rank whose own arguments are wrong gets its own error; the others learn who and why. */
static void one_rank_errs(expar_group *group, void *shared)
{
    (void)shared;
    bool odd = group->rank == 1;
    int local;
    void *block = group;
    mem_arena_stats stats;
    mem_arena_get_stats(group->sym->arena, &stats);
    CHECK_STATUS(odd ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_malloc(group, 64, odd ? NULL : &block));
    CHECK(odd || CHECK_TEXT("expar_malloc", "rank 1", expar_status_text(EXPAR_ERR_NULL)), "text");
    CHECK_STATUS(odd ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, expar_align(group, odd ? 24 : 32, 64, &block));
    CHECK_STATUS(odd ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE,
                 expar_calloc(group, odd ? SIZE_MAX / 2 : 8, odd ? 3 : 8, &block));
    CHECK_TEXT("count 9223372036854775807, expected at most 6148914691236517205");
    CHECK_STATUS(odd ? EXPAR_ERR_ADDRESS : EXPAR_ERR_REMOTE, expar_free(group, odd ? (void *)&local : NULL));
    check_intact(group, &stats, "a refused call");
    CHECK(block == group, "an output was written");
}

static void test_one_rank_errs(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, one_rank_errs);
}

/* ---- rejections on all ranks ------------------------------------------------------------------------------------- */

static void rejections(expar_group *group, void *shared)
{
    (void)shared;
    char *kept;
    void *block = group;
    CHECK_OK(expar_malloc(group, 1000, (void **)&kept));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_malloc(NULL, 8, &block));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_align(NULL, 8, 8, &block));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_calloc(NULL, 8, 8, &block));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_free(NULL, kept));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_calloc(group, 8, 8, NULL));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_align(group, 0, 8, &block));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_align(group, (size_t)1 << 31, 8, &block));
    CHECK_TEXT("expar_align", "power of two");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, &block));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, kept + 128)); /* inside a block */
    CHECK_TEXT("expar_free", "no block starts");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, group->sym->heap.base)); /* the control page */
    CHECK_OK(expar_free(group, kept));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, kept)); /* twice */
    CHECK(block == group, "an output was written");
}

static void test_rejections_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, rejections);
}

static void exhaust(expar_group *group, void *shared)
{
    (void)shared;
    void *all, *block = group;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, HEAP_BYTES, &block));
    CHECK_TEXT("8388608", "8384512 of 8388608 bytes are left", "largest free block has 8384512", "EXPAR_HEAP_SIZE");
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, SIZE_MAX, &block));
    CHECK_OK(expar_malloc(group, HEAP_BYTES - SYM_CONTROL_BYTES, &all));
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, 1, &block));
    CHECK_TEXT(" 0 of 8388608 bytes are left");
    CHECK_OK(expar_free(group, all));
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_align(group, (size_t)1 << 30, 1, &block));
    CHECK(block == group, "an output was written");
}

static void test_exhaustion(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, exhaust);
}

/* ---- addresses of peers ------------------------------------------------------------------------------------------ */

static void peer_addresses(expar_group *group, void *shared)
{
    (void)shared;
    uint32_t *block;
    CHECK_OK(expar_calloc(group, 100, sizeof *block, (void **)&block));
    CHECK(expar_ptr(group, block, group->rank) == block, "its own copy");
    for (int32_t pe = 0; pe < group->size; pe++) {
        _Atomic uint32_t *word = expar_ptr(group, &block[group->rank], pe);
        CHECK(word != NULL || !group->sym->all_mapped, "rank %d has no address", pe);
        if (word) atomic_store(word, (uint32_t)group->rank + 1);
    }
    CHECK_OK(expar_barrier_all(group));
    for (int32_t r = 0; r < group->size; r++)
        CHECK(block[r] == (uint32_t)r + 1 || !group->sym->all_mapped, "the store of rank %d is missing", r);
    CHECK(expar_ptr(NULL, block, 0) == NULL, "no group");
    CHECK(expar_ptr(group, NULL, 0) == NULL, "no address");
    CHECK(expar_ptr(group, &group, 0) == NULL, "not symmetric");
    CHECK(expar_ptr(group, group->sym->heap.base, 0) == NULL, "the control page");
    CHECK(expar_ptr(group, (uint8_t *)group->sym->heap.base + HEAP_BYTES, 0) == NULL, "behind the heap");
    CHECK(expar_ptr(group, block, -1) == NULL && expar_ptr(group, block, group->size) == NULL, "pe out of range");
    CHECK_OK(expar_free(group, block));
}

static void test_peer_addresses(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, peer_addresses);
}

/* A block keeps what it held as it grows and shrinks, what peers have put included; its old place is free. */
static void reallocated(expar_group *group, void *shared)
{
    (void)shared;
    enum { LARGE = 300000, SMALL = 1000 };
    uint8_t *block = NULL, *keep, byte = (uint8_t)(group->rank + 50);
    int32_t next = (group->rank + 1) % group->size, last = (group->rank + group->size - 1) % group->size;
    int wrong = 0;
    CHECK_OK(expar_realloc(group, NULL, SMALL, (void **)&block));
    CHECK_OK(expar_malloc(group, SMALL, (void **)&keep));
    for (int i = 0; i < SMALL; i++)
        block[i] = (uint8_t)(i + group->rank);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_put(group, &block[7], &byte, 1, next));
    CHECK_OK(expar_realloc(group, block, LARGE, (void **)&block));
    check_symmetric(group, block, "grown block");
    for (int i = 0; i < SMALL; i++)
        wrong += block[i] != (uint8_t)(i == 7 ? last + 50 : i + group->rank);
    CHECK(wrong == 0, "%d bytes changed as the block grew", wrong);
    CHECK_OK(expar_realloc(group, block, 500, (void **)&block));
    CHECK(block[7] == last + 50 && block[499] == (uint8_t)(499 + group->rank), "bytes changed as the block shrank");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_realloc(group, block + 128, 10, (void **)&keep));
    CHECK_TEXT("expar_realloc", "no block");
    void *one = group->rank == 0 ? (void *)block : (void *)keep, *none = NULL;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_realloc(group, one, 5000, &none));
    CHECK_STATUS(group->rank == 0 ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE,
                 expar_realloc(group, block, 10, group->rank == 0 ? NULL : &none));
    CHECK(none == NULL && block[499] == (uint8_t)(499 + group->rank), "a refused call has changed something");
    CHECK_OK(expar_realloc(group, block, 0, (void **)&block));
    CHECK(block == NULL, "a block of no bytes");
    CHECK_OK(expar_free(group, keep));
}

static void test_reallocated(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, reallocated);
}

/* The heap's file as another process finds it, where it has one. */
static void statistics_from_outside(expar_group *group, const expar_heap_stats *own)
{
    expar_heap_stats read = EXPAR_HEAP_STATS_INIT;
    int32_t rank = -1, size = -1;
    int fd = group->sym->heap.fd;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_heap_read_stats(-1, &read, &rank, &size));
    CHECK_TEXT("expar_heap_read_stats: fd -1, expected");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_heap_read_stats(fd, &read, NULL, &size));
    CHECK_TEXT("expar_heap_read_stats: rank is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_heap_read_stats(fd, &read, &rank, NULL));
    CHECK_TEXT("expar_heap_read_stats: size is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_heap_read_stats(fd, NULL, &rank, &size));
    CHECK_TEXT("expar_heap_read_stats: stats is NULL");
    if (fd < 0) return;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_heap_read_stats(fd, &(expar_heap_stats){0}, &rank, &size));
    CHECK_TEXT("expar_heap_read_stats: stats.struct_size 0, expected 8 to", "EXPAR_HEAP_STATS_INIT");
    CHECK(rank == -1 && size == -1, "a call that failed wrote rank %d and size %d", rank, size);
    CHECK_OK(expar_heap_read_stats(fd, &read, &rank, &size));
    CHECK(rank == group->rank && size == group->size, "rank %d of %d", rank, size);
    CHECK(read.used_bytes == own->used_bytes && read.high_water_bytes == own->high_water_bytes, "used: %llu",
          (unsigned long long)read.used_bytes);
    CHECK(read.total_bytes == own->total_bytes && read.grown_bytes == own->grown_bytes && read.chunks == own->chunks,
          "grown: %llu in %llu", (unsigned long long)read.grown_bytes, (unsigned long long)read.chunks);
    CHECK(read.holes == own->holes && read.hole_bytes == own->hole_bytes && read.blocks == own->blocks, "holes: %llu",
          (unsigned long long)read.holes);
}

static void statistics(expar_group *group, void *shared)
{
    (void)shared;
    void *blocks[3];
    expar_heap_stats before = EXPAR_HEAP_STATS_INIT, full = EXPAR_HEAP_STATS_INIT, after = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_heap_get_stats(group, &before));
    CHECK(before.total_bytes == HEAP_BYTES, "%llu bytes in all", (unsigned long long)before.total_bytes);
    for (int i = 0; i < 3; i++)
        CHECK_OK(expar_malloc(group, (size_t)2 << 20, &blocks[i]));
    CHECK_OK(expar_free(group, blocks[1]));
    CHECK_OK(expar_heap_get_stats(group, &full));
    CHECK(full.used_bytes - before.used_bytes == (uint64_t)4 << 20, "used: %llu", (unsigned long long)full.used_bytes);
    CHECK(full.blocks == before.blocks + 2, "blocks: %llu", (unsigned long long)full.blocks);
    CHECK(full.high_water_bytes >= before.used_bytes + ((uint64_t)6 << 20), "no high water");
    CHECK(full.holes == 1 && full.hole_bytes == (uint64_t)2 << 20, "%llu holes", (unsigned long long)full.holes);
    CHECK(full.chunks >= 1, "no chunks");
    statistics_from_outside(group, &full);
    CHECK(full.largest_free_bytes < full.total_bytes - full.used_bytes, "a hole was made, but all is in one piece");
    CHECK_OK(expar_free(group, blocks[0]));
    CHECK_OK(expar_free(group, blocks[2]));
    CHECK_OK(expar_heap_get_stats(group, &after));
    CHECK(after.used_bytes == before.used_bytes && after.largest_free_bytes == before.largest_free_bytes,
          "free blocks have not grown together");
    CHECK(after.high_water_bytes == full.high_water_bytes, "the high water has moved");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_heap_get_stats(NULL, &after));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_heap_get_stats(group, NULL));
    CHECK_TEXT("expar_heap_get_stats: stats is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_heap_get_stats(group, &(expar_heap_stats){0}));
    CHECK_TEXT("expar_heap_get_stats: stats.struct_size 0, expected 8 to", "EXPAR_HEAP_STATS_INIT");
}

static void test_statistics(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, statistics);
}

/* Ranks of one process have one set of variables; the programs of tests/openshmem share theirs. */
static void shared_globals(expar_group *group, void *shared)
{
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_globals_share(NULL));
    if (group->threads) CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_globals_share(group));
}

static void test_shared_globals(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, shared_globals);
}

/* More of them than the least heap holds. */
static uint64_t variables[((size_t)2 << 20) / sizeof(uint64_t)];

/* Variables that did not fit into one group's heap may be shared in that of another. */
static void share_again(expar_group *group, void *shared)
{
    (void)shared;
    expar_group *own;
    uint64_t word = 11;
    if (group->threads) return;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_globals_share(group));
    CHECK_TEXT("expar_globals_share", "no space");
    if (!CHECK_OK(expar_group_create(NULL, &own))) return;
    variables[7] = 5;
    CHECK_OK(expar_globals_share(own));
    CHECK(variables[7] == 5, "a variable has changed to %llu", (unsigned long long)variables[7]);
    CHECK_OK(expar_put(own, &variables[7], &word, sizeof word, 0));
    CHECK_OK(expar_quiet(own));
    CHECK(variables[7] == 11, "the word put is %llu", (unsigned long long)variables[7]);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_globals_share(own));
    CHECK_OK(expar_group_destroy(own));
}

static void test_globals_again(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = (size_t)1 << 20}, 2, share_again);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocate_and_free),
        cmocka_unit_test(test_calloc_zeroes),
        cmocka_unit_test(test_large_blocks_give_pages_back),
        cmocka_unit_test(test_zero_bytes),
        cmocka_unit_test(test_mismatches),
        cmocka_unit_test(test_one_rank_errs),
        cmocka_unit_test(test_rejections_told),
        cmocka_unit_test(test_exhaustion),
        cmocka_unit_test(test_peer_addresses),
        cmocka_unit_test(test_reallocated),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_shared_globals),
        cmocka_unit_test(test_globals_again),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
