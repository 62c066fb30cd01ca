/* SPDX-License-Identifier: Apache-2.0 */
/* Host, device and pinned memory side by side, on as many GPUs as there are. Ranks are threads or processes, also on
 * several simulated nodes (argument mix). */
#include "pgas/memories.h"

#define SLOT 64

/* The address's kind is the one asked for, and its offset is the same on all ranks. */
static void check_place(expar_group *group, expar_memory_kind kind, const void *block)
{
    uint64_t offsets[MAX_RANKS];
    expar_memory_place place = EXPAR_MEMORY_PLACE_INIT;
    if (!CHECK_OK(expar_memory_get_place(group, block, &place))) return;
    CHECK(place.kind == kind, "%s memory is said to be of kind %d", kind_names[kind], (int)place.kind);
    CHECK(place.device == (kind == EXPAR_MEMORY_HOST ? -1 : gpu_of(group)), "device %d", place.device);
    CHECK((place.device_address == NULL) == (kind == EXPAR_MEMORY_HOST), "%s memory's address on the GPU is %p",
          kind_names[kind], place.device_address);
    CHECK_OK(expar_group_allgather(group, &place.offset, offsets, sizeof place.offset));
    for (int32_t r = 0; r < group->size; r++)
        CHECK(offsets[r] == place.offset, "rank %d has offset %llu, this one %llu", r, (unsigned long long)offsets[r],
              (unsigned long long)place.offset);
}

/* ---- taking and freeing ------------------------------------------------------------------------------------------ */

typedef struct held {
    uint8_t *block;
    size_t bytes;
    expar_memory_kind kind;
    uint32_t seed;
} held;

static void check_empty(expar_group *group, expar_memory_kind kind)
{
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_memory_get_stats(group, kind, &stats));
    const uint64_t first = kind == EXPAR_MEMORY_HOST ? SYM_CONTROL_BYTES : 0;
    CHECK(stats.used_bytes == first && stats.blocks == (first > 0), "%llu bytes of %s memory are left in use",
          (unsigned long long)stats.used_bytes, kind_names[kind]);
}

/* Blocks of all kinds come and go in a random order, the same on all ranks. */
static void interleaved(expar_group *group, void *shared)
{
    (void)shared;
    held all[24] = {{0}};
    uint64_t random = 4711;
    for (uint32_t step = 0; step < 120 && check_failures() == 0; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        held *one = &all[(random >> 58) % ARRAY_LENGTH(all)];
        if (one->block) {
            holds_pattern(group, one->kind, one->block, one->bytes, one->seed);
            CHECK_OK(expar_free(group, one->block));
            one->block = NULL;
            continue;
        }
        const size_t alignment = (size_t)1 << (random >> 40) % 13;
        *one = (held){.bytes = 1 + (random >> 20) % 200000, .kind = (expar_memory_kind)((random >> 50) % KINDS)};
        one->seed = step * MAX_RANKS + (uint32_t)group->rank;
        one->block = take(group, one->kind, one->bytes, alignment);
        if (!one->block) return;
        const size_t least = one->kind == EXPAR_MEMORY_DEVICE ? 256 : 128;
        CHECK((uintptr_t)one->block % alignment == 0 && (uintptr_t)one->block % least == 0, "%p is not aligned to %zu",
              (void *)one->block, alignment);
        check_place(group, one->kind, one->block);
        fill_block(group, one->kind, one->block, one->bytes, one->seed);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++) {
        if (all[i].block) holds_pattern(group, all[i].kind, all[i].block, all[i].bytes, all[i].seed);
        CHECK_OK(expar_free(group, all[i].block));
    }
    for (int kind = 0; kind < KINDS; kind++)
        check_empty(group, (expar_memory_kind)kind);
}

/* Memory that was used before is zero where that is asked for, and may be aligned to 2 MiB. */
static void zeroed_and_aligned(expar_group *group, void *shared)
{
    (void)shared;
    for (int k = 0; k < KINDS; k++) {
        const expar_memory_kind kind = (expar_memory_kind)k;
        void *block = take(group, kind, 70001, 0);
        if (!block) return;
        fill_block(group, kind, block, 70001, 3);
        CHECK_OK(expar_free(group, block));
        expar_memory_options options = options_of(group, kind, 70001, 0);
        options.zeroed = 1;
        if (!CHECK_OK(expar_memory_alloc(group, &options, &block))) return;
        holds_zeros(group, kind, block, 70001);
        CHECK_OK(expar_free(group, block));
        if (whole() && kind == EXPAR_MEMORY_DEVICE) continue;
        block = take(group, kind, 100, 2 * MIB);
        CHECK((uintptr_t)block % (2 * MIB) == 0, "%p is not aligned to 2 MiB", block);
        CHECK_OK(expar_free(group, block));
    }
}

/* Each block is larger than all memory so far. What was there before stays where it is, here and at the peers. */
static void growth(expar_group *group, void *shared)
{
    (void)shared;
    enum { STEPS = 4 };
    for (int k = 1; k < KINDS; k++) {
        const expar_memory_kind kind = (expar_memory_kind)k;
        void *blocks[STEPS], *peers[STEPS];
        expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
        const int32_t next = (group->rank + 1) % group->size;
        for (uint32_t i = 0; i < STEPS; i++) {
            if (!(blocks[i] = take(group, kind, MIB << i, 0))) return;
            peers[i] = expar_ptr(group, blocks[i], next);
            fill_block(group, kind, blocks[i], 3 * KIB, i);
        }
        CHECK_OK(expar_memory_get_stats(group, kind, &stats));
        CHECK(stats.used_bytes == 15 * MIB && stats.blocks == STEPS, "%llu bytes are in use",
              (unsigned long long)stats.used_bytes);
        CHECK(stats.grown_bytes >= 15 * MIB && (stats.chunks > 1 || whole()), "%llu bytes in %llu chunks",
              (unsigned long long)stats.grown_bytes, (unsigned long long)stats.chunks);
        for (uint32_t i = 0; i < STEPS; i++) {
            CHECK(expar_ptr(group, blocks[i], next) == peers[i], "an address of rank %d has moved", next);
            holds_pattern(group, kind, blocks[i], 3 * KIB, i);
            CHECK_OK(expar_free(group, blocks[i]));
        }
        CHECK_OK(expar_memory_get_stats(group, kind, &stats));
        CHECK(stats.high_water_bytes >= 15 * MIB && stats.used_bytes == 0, "high water %llu",
              (unsigned long long)stats.high_water_bytes);
    }
}

/* ---- addresses of peers ------------------------------------------------------------------------------------------ */

static bool same_node(const expar_group *group, int32_t pe)
{
    return group->nodes[pe] == group->nodes[group->rank];
}

/* Each rank writes its mark into its slot of every copy that it reaches; the owners read. */
static void exchange(expar_group *group, expar_memory_kind kind, bool by_gpu)
{
    uint8_t seen[MAX_RANKS][SLOT], mark[SLOT];
    expar_memory_options options = options_of(group, kind, sizeof seen, 0);
    uint8_t *block = NULL;
    options.zeroed = 1;
    if (!CHECK_OK(expar_memory_alloc(group, &options, (void **)&block))) return;
    memset(mark, group->rank + 1, sizeof mark);
    for (int32_t pe = 0; pe < group->size; pe++) {
        void *slot = block + (size_t)group->rank * SLOT;
        void *at = by_gpu ? expar_device_ptr(group, slot, pe) : expar_ptr(group, slot, pe);
        CHECK((at != NULL) == same_node(group, pe), "%s memory of rank %d is at %p", kind_names[kind], pe, at);
        if (pe == group->rank && !by_gpu) CHECK(at == slot, "its own copy is at %p", at);
        if (at && by_gpu)
            copy_on_gpu(group, at, mark, sizeof mark);
        else if (at)
            write_to(group, kind, at, mark, sizeof mark);
    }
    CHECK_OK(expar_group_barrier(group));
    read_from(group, kind, block, seen, (size_t)group->size * SLOT);
    for (int32_t r = 0; r < group->size; r++)
        CHECK(seen[r][0] == (same_node(group, r) ? r + 1 : 0) && seen[r][SLOT - 1] == seen[r][0],
              "rank %d wrote %d into %s memory", r, seen[r][0], kind_names[kind]);
    CHECK_OK(expar_free(group, block));
}

static void peers(expar_group *group, void *shared)
{
    (void)shared;
    for (int kind = 0; kind < KINDS; kind++)
        exchange(group, (expar_memory_kind)kind, false);
    exchange(group, EXPAR_MEMORY_DEVICE, true);
    exchange(group, EXPAR_MEMORY_PINNED, true);
    void *host = take(group, EXPAR_MEMORY_HOST, 100, 0), *device = take(group, EXPAR_MEMORY_DEVICE, 100, 0);
    CHECK(expar_device_ptr(group, host, group->rank) == NULL, "host memory has an address on the GPU");
    CHECK(!expar_ptr(group, device, -1) && !expar_ptr(group, device, group->size), "pe out of range");
    CHECK(!expar_ptr(group, (uint8_t *)device - 8192, group->rank), "before the heap");
    CHECK_OK(expar_free(group, device));
    CHECK_OK(expar_free(group, host));
}

/* ---- by address -------------------------------------------------------------------------------------------------- */

static void resized(expar_group *group, expar_memory_kind kind)
{
    uint8_t *block = take(group, kind, 1000, 0);
    if (!block) return;
    fill_block(group, kind, block, 1000, 9);
    CHECK_OK(expar_realloc(group, block, 300000, (void **)&block));
    check_place(group, kind, block);
    holds_pattern(group, kind, block, 1000, 9);
    CHECK_OK(expar_realloc(group, block, 500, (void **)&block));
    holds_pattern(group, kind, block, 500, 9);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_realloc(group, block + 256, 10, (void **)&block));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, block + 256));
    CHECK_OK(expar_realloc(group, block, 0, (void **)&block));
    CHECK(block == NULL, "a block of no bytes");
    check_empty(group, kind);
}

/* Ranks that name blocks of different kinds are told so, and keep them. */
static void by_address(expar_group *group, void *shared)
{
    (void)shared;
    void *blocks[KINDS], *none = NULL;
    const bool odd = group->rank == 1;
    for (int kind = 0; kind < KINDS; kind++)
        resized(group, (expar_memory_kind)kind);
    for (int kind = 0; kind < KINDS; kind++)
        if (!(blocks[kind] = take(group, (expar_memory_kind)kind, 5000, 0))) return;
    fill_block(group, EXPAR_MEMORY_DEVICE, blocks[EXPAR_MEMORY_DEVICE], 5000, 1);
    for (int kind = 0; kind < KINDS; kind++) {
        const int other = (kind + 1) % KINDS;
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_free(group, blocks[odd ? other : kind]));
        CHECK_TEXT("expar_free", "rank 1", kind_names[other], kind_names[kind]);
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_realloc(group, blocks[odd ? other : kind], 9000, &none));
        CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_free(group, odd ? NULL : blocks[kind]));
    }
    CHECK_STATUS(odd ? EXPAR_ERR_ADDRESS : EXPAR_ERR_REMOTE, expar_free(group, odd ? &none : blocks[0]));
    CHECK(none == NULL, "a refused call has written its result");
    holds_pattern(group, EXPAR_MEMORY_DEVICE, blocks[EXPAR_MEMORY_DEVICE], 5000, 1);
    for (int kind = 0; kind < KINDS; kind++)
        CHECK_OK(expar_free(group, blocks[kind]));
    for (int kind = 0; kind < KINDS; kind++)
        check_empty(group, (expar_memory_kind)kind);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

/* Rank 1 alone has these options wrong. */
static void one_errs(expar_group *group, expar_memory_options wrong, expar_status status, const char *word)
{
    const bool odd = group->rank == 1;
    const expar_memory_options right = options_of(group, EXPAR_MEMORY_DEVICE, 64, 0);
    void *block = group;
    CHECK_STATUS(odd ? status : EXPAR_ERR_REMOTE, expar_memory_alloc(group, odd ? &wrong : &right, &block));
    CHECK_TEXT("expar_memory_alloc", word);
    CHECK(block == group, "a refused call has written its result");
}

static void ranks_differ(expar_group *group, expar_memory_options one, expar_memory_options other, const char *word)
{
    void *block = group;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_memory_alloc(group, group->rank == 1 ? &other : &one, &block));
    CHECK_TEXT("expar_memory_alloc", word, "rank 1");
    CHECK(block == group, "a refused call has written its result");
}

static void bad_options(expar_group *group, void *shared)
{
    (void)shared;
    const expar_memory_options right = options_of(group, EXPAR_MEMORY_DEVICE, 64, 0);
    expar_memory_options options = right;
    options.alignment = 257;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.alignment 257, expected 0 or a power of two up to 2097152");
    options.alignment = 4 * MIB;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.alignment 4194304");
    options = right;
    options.kind = (expar_memory_kind)7;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.kind 7");
    options = right;
    options.struct_size = 3;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.struct_size 3");
    options = right;
    options.device = 1000;
    one_errs(group, options, EXPAR_ERR_RANGE, "GPU 1000");
    options.device = -1;
    one_errs(group, options, EXPAR_ERR_RANGE, "GPU -1");
    options = right;
    options.zeroed = 2;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.zeroed 2, expected 0 or 1");
    options = options_of(group, EXPAR_MEMORY_HOST, 64, 0);
    options.device = 1;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "options.device 1, expected 0");
    ranks_differ(group, right, options_of(group, EXPAR_MEMORY_PINNED, 64, 0), "options.kind is pinned");
    ranks_differ(group, right, options_of(group, EXPAR_MEMORY_DEVICE, 65, 0), "options.bytes");
    ranks_differ(group, right, options_of(group, EXPAR_MEMORY_DEVICE, 64, 4096), "options.alignment");
    options = right;
    options.zeroed = 1;
    ranks_differ(group, right, options, "options.zeroed");
}

static void bad_input(expar_group *group, void *shared)
{
    (void)shared;
    void *block = group;
    int local;
    const bool odd = group->rank == 1;
    expar_memory_options options = options_of(group, EXPAR_MEMORY_DEVICE, 64, 0);
    expar_memory_place place = EXPAR_MEMORY_PLACE_INIT;
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_memory_alloc(NULL, &options, &block));
    CHECK_STATUS(odd ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_memory_alloc(group, odd ? NULL : &options, &block));
    CHECK_STATUS(odd ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_memory_alloc(group, &options, odd ? NULL : &block));
    CHECK_STATUS(EXPAR_ERR_MISMATCH,
                 odd ? expar_malloc(group, 64, &block) : expar_memory_alloc(group, &options, &block));
    CHECK(block == group, "a refused call has written its result");
    bad_options(group, NULL);
    for (int kind = 0; kind < KINDS; kind++) {
        options = options_of(group, (expar_memory_kind)kind, 0, 0);
        block = group;
        CHECK_OK(expar_memory_alloc(group, &options, &block));
        CHECK(block == NULL, "%s memory of no bytes is at %p", kind_names[kind], block);
        CHECK_OK(expar_memory_get_stats(group, (expar_memory_kind)kind, &stats));
        CHECK(kind == 0 || stats.total_bytes == 0, "a refused call has made a heap");
    }
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_memory_get_place(group, &local, &place));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_memory_get_place(group, group->sym->heap.base, &place)); /* control page */
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_memory_get_stats(group, (expar_memory_kind)3, &stats));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_memory_get_stats(group, EXPAR_MEMORY_PINNED, NULL));
    /* The first allocation has chosen the GPU. */
    block = take(group, EXPAR_MEMORY_DEVICE, 64, 0);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_memory_get_place(group, block, NULL));
    options = options_of(group, EXPAR_MEMORY_DEVICE, 64, 0);
    options.device++;
    one_errs(group, options, EXPAR_ERR_ARGUMENT, "this rank's first device memory");
    CHECK_OK(expar_free(group, block));
}

/* ---- calls of the host ------------------------------------------------------------------------------------------- */

/* Rows and words that the calls on pinned memory share. */
typedef struct pinned_blocks {
    uint64_t *words, *host; /* pinned, and in the host's heap; 512 zero bytes each */
    uint8_t *data;          /* pinned */
    int32_t next, last;
} pinned_blocks;
#define DATA_BYTES 40000

/* Data and signal: both pinned, and each in turn in the host's heap. */
static void signals_across_kinds(expar_group *group, const pinned_blocks *b)
{
    uint8_t *sent = malloc(DATA_BYTES), *back = malloc(DATA_BYTES);
    uint64_t seen = 0, old = 0;
    for (size_t i = 0; i < DATA_BYTES; i++)
        sent[i] = pattern((uint32_t)group->rank, i);
    CHECK_OK(expar_put_signal(group, b->data, sent, DATA_BYTES, &b->words[0], 1, EXPAR_SIGNAL_SET, b->next));
    CHECK_OK(expar_wait_until_u64(group, &b->words[0], EXPAR_CMP_EQ, 1, &seen));
    holds_pattern(group, EXPAR_MEMORY_PINNED, b->data, DATA_BYTES, (uint32_t)b->last);
    CHECK_OK(expar_put_signal(group, &b->words[8], &old, 8, &b->host[0], 1, EXPAR_SIGNAL_ADD, b->next));
    CHECK_OK(expar_wait_until_u64(group, &b->host[0], EXPAR_CMP_EQ, 1, &seen));
    CHECK_OK(expar_put_signal_nbi(group, &b->host[8], &old, 8, &b->words[1], 3, EXPAR_SIGNAL_ADD, b->next));
    CHECK_OK(expar_wait_until_u64(group, &b->words[1], EXPAR_CMP_EQ, 3, &seen));
    CHECK_OK(expar_get(group, back, b->data, DATA_BYTES, b->next));
    CHECK(memcmp(back, sent, DATA_BYTES) == 0, "get brought other bytes");
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_put_nbi(group, b->data, sent, 16, b->next));
    CHECK_OK(expar_get_nbi(group, back, b->words, 8, b->next));
    CHECK_OK(expar_quiet(group));
    CHECK(back[0] == 1, "a get without waiting brought %d", back[0]);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, b->data, sent, 1 << 30, b->next));
    free(back);
    free(sent);
}

/* Atomics of all ranks on rank 0's words, a word that is waited for without a signal, and a lock. */
static void words_of_pinned_memory(expar_group *group, const pinned_blocks *b)
{
    uint64_t old = 0, seen = 0;
    for (int i = 0; i < 20; i++)
        CHECK_OK(expar_atomic_add_u64(group, &b->words[2], 1, 0));
    CHECK_OK(expar_atomic_fetch_inc_u64(group, &b->words[3], 0, &old));
    CHECK(old < (uint64_t)group->size, "fetched %llu", (unsigned long long)old);
    CHECK_OK(expar_iput_u64(group, &b->words[16], b->host, 2, 1, 4, b->next));
    CHECK_OK(expar_barrier_all(group));
    CHECK(group->rank != 0 || b->words[2] == 20 * (uint64_t)group->size, "%llu adds", (unsigned long long)b->words[2]);
    CHECK(b->words[16] == 1 && b->words[17] == 0, "strided put: %llu", (unsigned long long)b->words[16]);
    CHECK_OK(expar_p_u64(group, &b->words[4], 9, b->next));
    CHECK_OK(expar_wait_until_u64(group, &b->words[4], EXPAR_CMP_EQ, 9, &seen));
    CHECK_OK(expar_lock_set(group, &b->words[32]));
    CHECK_OK(expar_get(group, &seen, &b->words[5], 8, 0)); /* added to by nothing atomic */
    seen++;
    CHECK_OK(expar_put(group, &b->words[5], &seen, 8, 0));
    CHECK_OK(expar_lock_clear(group, &b->words[32]));
    CHECK_OK(expar_barrier_all(group));
    CHECK(group->rank != 0 || b->words[5] == (uint64_t)group->size, "%llu ranks had the lock",
          (unsigned long long)b->words[5]);
}

/* Pinned memory is host memory to calls of the host. */
static void pinned_served(expar_group *group, void *shared)
{
    (void)shared;
    if (!group->sym->all_reached) return; /* several nodes without a network */
    const pinned_blocks b = {.words = take(group, EXPAR_MEMORY_PINNED, 512, 0),
                             .host = take(group, EXPAR_MEMORY_HOST, 512, 0),
                             .data = take(group, EXPAR_MEMORY_PINNED, DATA_BYTES, 0),
                             .next = (group->rank + 1) % group->size,
                             .last = (group->rank + group->size - 1) % group->size};
    if (!b.words || !b.host || !b.data) return;
    memset(b.words, 0, 512);
    memset(b.host, 0, 512);
    CHECK_OK(expar_barrier_all(group));
    signals_across_kinds(group, &b);
    words_of_pinned_memory(group, &b);
    CHECK_OK(expar_free(group, b.data));
    CHECK_OK(expar_free(group, b.host));
    CHECK_OK(expar_free(group, b.words));
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void run(ranks_body body, int32_t size)
{
    kind_run((ranks_plan){0}, size, body);
}

static void test_interleaved(void **state)
{
    (void)state;
    run(interleaved, 1);
    run(interleaved, 4);
}

static void test_zeroed_and_aligned(void **state)
{
    (void)state;
    run(zeroed_and_aligned, 2);
}

static void test_growth(void **state)
{
    (void)state;
    run(growth, 1);
    run(growth, 4);
}

static void test_addresses_of_peers(void **state)
{
    (void)state;
    run(peers, 1);
    run(peers, 4);
    kind_run((ranks_plan){.ranks_per_node = 2}, 4, peers);
    kind_run((ranks_plan){.ranks_per_node = 1}, 3, peers);
}

static void test_blocks_by_address(void **state)
{
    (void)state;
    run(by_address, 3);
}

static void test_bad_input(void **state)
{
    (void)state;
    run(bad_input, 2);
}

static void test_host_calls_serve_pinned_memory(void **state)
{
    (void)state;
    run(pinned_served, 1);
    run(pinned_served, 4);
    kind_run((ranks_plan){.ranks_per_node = 2}, 4, pinned_served);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interleaved),
        cmocka_unit_test(test_zeroed_and_aligned),
        cmocka_unit_test(test_growth),
        cmocka_unit_test(test_addresses_of_peers),
        cmocka_unit_test(test_blocks_by_address),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_host_calls_serve_pinned_memory),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
