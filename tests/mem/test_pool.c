/* SPDX-License-Identifier: Apache-2.0 */
/* The output pool: alignment, references, exhaustion, its end, and use from several threads. */
#include "mem/machine.h"
#include "mem/mem.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static mem_region heap;

static int make_heap(void **state)
{
    (void)state;
    if (mem_region_create(64 * MIB, false, &heap) != EXPAR_OK) return -1;
    return mem_region_open(&heap, 64 * MIB) == EXPAR_OK ? 0 : -1;
}

static int drop_heap(void **state)
{
    (void)state;
    mem_region_close(&heap);
    return 0;
}

static void test_alignment_and_offsets(void **state)
{
    (void)state;
    const uint64_t start = 3 * MIB + 384, bytes = 20 * MIB;
    mem_pool *pool;
    assert_int_equal(mem_pool_create(heap.base, start, bytes, &pool), EXPAR_OK);
    static const uint64_t sizes[] = {0, 1, 127, 128, 129, 5000, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB};
    mem_block *blocks[ARRAY_LENGTH(sizes)];
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        assert_int_equal(mem_pool_take(pool, sizes[i], &blocks[i]), EXPAR_OK);
        const mem_block *block = blocks[i];
        assert_ptr_equal(block->data, (uint8_t *)heap.base + block->offset);
        assert_int_equal((uintptr_t)block->data % (sizes[i] >= 2 * MIB ? 2 * MIB : 128), 0);
        assert_true(block->offset >= start && block->offset + sizes[i] <= start + bytes);
        assert_int_equal(block->bytes, sizes[i]);
        for (size_t j = 0; j < i; j++)
            assert_true(blocks[j]->offset + sizes[j] <= block->offset || block->offset + sizes[i] <= blocks[j]->offset);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
        mem_block_release(blocks[i]);
    mem_pool_close(pool);
}

/* A block that takes what is there, and leaves what it does not need to the next one. */
static void test_whole_blocks(void **state)
{
    (void)state;
    mem_pool *pool;
    mem_block *hole, *after, *whole = NULL, *next;
    assert_int_equal(mem_pool_create(heap.base, 128, 4 * MIB, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 1024, &hole), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 128, &after), EXPAR_OK);
    uint64_t at = hole->offset;
    mem_block_release(hole);
    assert_true(mem_pool_take_whole(pool, 1, &whole));
    assert_int_equal(whole->offset, at);
    assert_int_equal(whole->bytes, 1024);
    mem_block_trim(whole, 0);
    assert_int_equal(whole->bytes, 0);
    assert_int_equal(mem_pool_take(pool, 896, &next), EXPAR_OK);
    assert_int_equal(next->offset, at + 128);
    mem_block_release(next);
    mem_block_release(whole);
    assert_true(mem_pool_take_whole(pool, 1025, &whole)); /* the hole is too small */
    assert_int_equal(whole->offset, after->offset + 128);
    assert_int_equal(whole->offset + whole->bytes, 128 + 4 * MIB);
    assert_int_equal(mem_pool_take(pool, 1025, &next), EXPAR_ERR_MEMORY);
    mem_block_trim(whole, 2 * MIB + 1);
    assert_int_equal(whole->bytes, 2 * MIB + 1);
    assert_false(mem_pool_take_whole(pool, 2 * MIB, &next));
    assert_int_equal(mem_pool_take(pool, MIB, &next), EXPAR_OK);
    assert_true(next->offset >= whole->offset + whole->bytes);
    mem_block_release(next);
    mem_block_release(whole);
    mem_block_release(after);
    mem_pool_close(pool);
}

static void test_references(void **state)
{
    (void)state;
    mem_pool *pool;
    mem_block *block, *other;
    assert_int_equal(mem_pool_create(heap.base, 4096, 2 * MIB, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, MIB + 1, &block), EXPAR_OK);
    mem_block_retain(block);
    mem_block_release(block);
    assert_int_equal(mem_pool_take(pool, MIB + 1, &other), EXPAR_ERR_MEMORY); /* still held once */
    uint64_t offset = block->offset;
    mem_block_release(block);
    assert_int_equal(mem_pool_take(pool, MIB + 1, &other), EXPAR_OK);
    assert_int_equal(other->offset, offset); /* the same warm pages */
    mem_block_release(other);
    mem_block_release(NULL);
    mem_pool_close(pool);
}

static void test_exhaustion_says_what_is_left(void **state)
{
    (void)state;
    mem_pool *pool;
    mem_block *block, *other = NULL;
    assert_int_equal(mem_pool_create(heap.base, 2 * MIB, 4096, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 1024, &block), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 3073, &other), EXPAR_ERR_MEMORY);
    assert_null(other);
    assert_non_null(strstr(expar_last_error(), "3073"));
    assert_non_null(strstr(expar_last_error(), "3072"));
    assert_int_equal(mem_pool_take(pool, UINT64_MAX, &other), EXPAR_ERR_MEMORY);
    mem_block_release(block);
    mem_pool_close(pool);
    assert_int_equal(mem_pool_create(heap.base, 2 * MIB + 128, UINT64_MAX, &pool), EXPAR_ERR_ARGUMENT);
}

/* Two blocks beside a hole of 1024 bytes, then one of `bytes`; *enough: what that says, where it does not fit. */
static expar_status take_third(uint64_t pool_bytes, uint64_t bytes, uint64_t *enough)
{
    mem_pool *pool;
    mem_block *hole, *block, *third = NULL;
    assert_int_equal(mem_pool_create(heap.base, 0, pool_bytes, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 1024, &hole), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 512, &block), EXPAR_OK);
    mem_block_release(hole);
    *enough = mem_pool_enough(pool, bytes);
    expar_status status = mem_pool_take(pool, bytes, &third);
    char text[32];
    snprintf(text, sizeof text, " %llu in all would do", (unsigned long long)*enough);
    if (status != EXPAR_OK) assert_non_null(strstr(expar_last_error(), text));
    mem_block_release(third);
    mem_block_release(block);
    mem_pool_close(pool);
    return status;
}

static void test_exhaustion_says_what_would_do(void **state)
{
    static const uint64_t sizes[] = {1025, 3 * 1024, 2 * MIB, 3 * MIB + 5};
    (void)state;
    uint64_t enough, again;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(take_third(2048, sizes[i], &enough), EXPAR_ERR_MEMORY);
        assert_int_equal(take_third(enough, sizes[i], &again), EXPAR_OK);
        assert_int_equal(take_third(enough - 128, sizes[i], &again), EXPAR_ERR_MEMORY);
        assert_int_equal(again, enough);
    }
    assert_int_equal(take_third(2048, UINT64_MAX - 5, &enough), EXPAR_ERR_MEMORY);
    assert_true(enough == UINT64_MAX);
}

/* Under the address sanitizer this also shows that the pool outlives its closing and nothing is lost. */
static void test_block_outlives_close(void **state)
{
    (void)state;
    mem_pool *pool;
    mem_block *first, *second;
    assert_int_equal(mem_pool_create(heap.base, 0, 4 * MIB, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 100, &first), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 100, &second), EXPAR_OK);
    mem_pool_close(pool);
    assert_int_equal(mem_pool_take(pool, 1, &(mem_block *){NULL}), EXPAR_ERR_STATE);
    mem_block_release(second);
    mem_block_release(first);
    mem_pool_close(NULL);
}

static void test_private_blocks(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 5000, 2 * MIB + 5};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        mem_block *block;
        assert_int_equal(mem_block_private(sizes[i], &block), EXPAR_OK);
        assert_null(block->pool);
        assert_int_equal(block->offset, UINT64_MAX);
        assert_int_equal((uintptr_t)block->data % 128, 0);
        memset(block->data, 0x5a, sizes[i]);
        mem_block_retain(block);
        mem_block_release(block);
        mem_block_release(block);
    }
    assert_int_equal(mem_block_private(UINT64_MAX, &(mem_block *){NULL}), EXPAR_ERR_MEMORY);
}

#define WORKERS 4
#define ROUNDS  3000

typedef struct worker {
    pthread_t thread;
    mem_pool *pool;
    uint8_t mark;
    int failures;
} worker;

static bool filled_with(const mem_block *block, uint8_t mark)
{
    for (uint64_t i = 0; i < block->bytes; i++)
        if (((uint8_t *)block->data)[i] != mark) return false;
    return true;
}

/* Blocks that two threads held at once would show the other's mark. */
static void *take_and_check(void *argument)
{
    worker *self = argument;
    for (int round = 0; round < ROUNDS; round++) {
        mem_block *block;
        if (mem_pool_take(self->pool, (uint64_t)(round * 37 % 900), &block) != EXPAR_OK) {
            self->failures++;
            continue;
        }
        memset(block->data, self->mark, block->bytes);
        mem_block_retain(block);
        mem_block_release(block);
        if (!filled_with(block, self->mark)) self->failures++;
        mem_block_release(block);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    mem_pool *pool;
    worker workers[WORKERS];
    assert_int_equal(mem_pool_create(heap.base, 4096, (uint64_t)64 << 10, &pool), EXPAR_OK);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.pool = pool, .mark = (uint8_t)(i + 1)};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, take_and_check, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(workers[i].failures, 0);
    mem_pool_close(pool);
}

/* Nothing follows it yet. */
static mem_store *make_store(uint64_t bytes, mem_backing **backing)
{
    mem_region region;
    mem_store *store;
    assert_int_equal(mem_region_create(bytes, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, bytes), EXPAR_OK);
    assert_int_equal(mem_backing_create(&region, 1, backing), EXPAR_OK);
    assert_int_equal(mem_backing_store(*backing, 0, &store), EXPAR_OK);
    return store;
}

/* Blocks get their memory as they are taken, and keep it. */
static void test_memory_on_demand(void **state)
{
    (void)state;
    mem_backing *backing;
    mem_pool *pool;
    mem_block *block;
    mem_store *store = make_store(16 * MIB, &backing);
    assert_int_equal(mem_pool_create_in(store, 0, 0, &pool), EXPAR_OK);
    assert_int_equal(mem_region_memory(&backing->region), 0);
    assert_int_equal(mem_pool_take(pool, 3 * MIB, &block), EXPAR_OK);
    const uint64_t with = mem_region_memory(&backing->region);
    assert_true(with >= 3 * MIB && with < 16 * MIB);
    mem_block_release(block);
    assert_int_equal(mem_region_memory(&backing->region), with);
    assert_int_equal(mem_pool_take(pool, 3 * MIB, &block), EXPAR_OK);
    assert_int_equal(mem_region_memory(&backing->region), with);
    mem_block_release(block);
    mem_pool_close(pool);
    mem_store_close(store);
    mem_backing_drop(backing);
}

/* A pool that the machine has no memory for refuses, and goes on with less. */
static void test_no_memory_after_it(void **state)
{
    (void)state;
    mem_backing *backing;
    mem_pool *pool;
    mem_block *block = NULL;
    const uint64_t bytes = align_up(machine_memory_bytes(), MIB) + 1024 * MIB;
    assert_true(bytes > 1024 * MIB);
    if (bytes > (uint64_t)1 << 40) skip();
    mem_store *store = make_store(bytes, &backing);
    assert_int_equal(mem_pool_create_in(store, 0, bytes, &pool), EXPAR_ERR_MEMORY);
    assert_int_equal(mem_pool_create_in(store, 0, 0, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, bytes, &block), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "the output pool: "));
    assert_null(block);
    assert_int_equal(mem_pool_take(pool, MIB, &block), EXPAR_OK);
    mem_block_release(block);
    mem_pool_close(pool);
    mem_store_close(store);
    mem_backing_drop(backing);
}

/* A buffer's part of what there is: the limit is its own, what it begins with is there at once and stays. */
static void test_pools_of_one_store(void **state)
{
    (void)state;
    mem_backing *backing;
    mem_pool *limited, *other;
    mem_block *block, *second;
    mem_store_stats stats;
    mem_store *store = make_store(64 * MIB, &backing);
    assert_int_equal(mem_pool_create_in(store, 4096, 0, &limited), EXPAR_OK);
    assert_int_equal(mem_pool_limit(limited), 4096);
    assert_int_equal(mem_pool_create_in(store, 0, 6 * MIB, &other), EXPAR_OK);
    assert_int_equal(mem_pool_limit(other), 64 * MIB);
    mem_store_get_stats(store, &stats);
    assert_int_equal(stats.filled_bytes, 6 * MIB);
    assert_int_equal(stats.reserved_bytes, 64 * MIB);
    assert_int_equal(stats.used_bytes, 0);
    assert_int_equal(mem_pool_take(limited, 4000, &block), EXPAR_OK);
    assert_int_equal(mem_pool_take(limited, 1, &second), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "0 of 4096"));
    assert_int_equal(mem_pool_enough(limited, 1), 4224);
    assert_int_equal(mem_pool_take(other, 5000, &second), EXPAR_OK);
    assert_true(second->offset >= block->offset + 4096 || block->offset >= second->offset + 5000);
    mem_block_release(block);
    assert_int_equal(mem_pool_take(limited, 4096, &block), EXPAR_OK);
    mem_store_get_stats(store, &stats);
    assert_int_equal(stats.blocks, 2);
    assert_int_equal(stats.filled_bytes, 6 * MIB);
    mem_block_release(block);
    mem_block_release(second);
    mem_pool_close(limited);
    mem_pool_close(other);
    mem_store_close(store);
    mem_backing_drop(backing);
}

static expar_status fill_nothing(void *context, uint64_t offset, uint64_t bytes)
{
    (void)context, (void)offset, (void)bytes;
    return error_set(EXPAR_ERR_MEMORY, "somebody else fills it");
}

/* Memory that another allocator provides and takes away; it is not taken away under a block. */
static void test_memory_of_somebody_else(void **state)
{
    (void)state;
    static char addresses[16 << 20];
    const mem_source source = {.fill = fill_nothing};
    mem_store *store;
    mem_pool *pool;
    mem_block *first, *block;
    mem_store_stats stats;
    assert_int_equal(mem_store_create(addresses, 2 * MIB, 14 * MIB, &source, &store), EXPAR_OK);
    assert_int_equal(mem_pool_create_in(store, 0, 0, &pool), EXPAR_OK);
    assert_int_equal(mem_store_used_end(store), 2 * MIB);
    assert_int_equal(mem_pool_take(pool, 1000, &block), EXPAR_ERR_MEMORY);
    mem_store_filled(store, 2 * MIB, 6 * MIB);
    assert_int_equal(mem_pool_take(pool, 2 * MIB, &first), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 2 * MIB, &block), EXPAR_OK);
    assert_int_equal(mem_store_used_end(store), 6 * MIB);
    assert_false(mem_store_emptied(store, 4 * MIB, 4 * MIB));
    mem_block_release(block);
    assert_int_equal(mem_store_used_end(store), 4 * MIB);
    assert_true(mem_store_emptied(store, 4 * MIB, 4 * MIB));
    mem_store_get_stats(store, &stats);
    assert_int_equal(stats.filled_bytes, 2 * MIB);
    assert_int_equal(stats.filled_high_bytes, 6 * MIB);
    assert_int_equal(mem_pool_take(pool, 2 * MIB, &block), EXPAR_ERR_MEMORY);
    mem_store_filled(store, 4 * MIB, 2 * MIB);
    assert_int_equal(mem_pool_take(pool, 2 * MIB, &block), EXPAR_OK);
    mem_block_release(block);
    mem_block_release(first);
    mem_pool_close(pool);
    mem_store_close(store);
}

/* The last block takes pool, store and memory with it. */
static void test_block_keeps_all_beneath_it(void **state)
{
    (void)state;
    mem_backing *backing;
    mem_pool *pool;
    mem_block *block;
    uint64_t offset;
    mem_store *store = make_store(64 * MIB, &backing);
    assert_int_equal(mem_pool_create_in(store, 0, 0, &pool), EXPAR_OK);
    assert_int_equal(mem_pool_take(pool, 3 * MIB, &block), EXPAR_OK);
    assert_true(mem_store_offset(store, block->data, block->bytes, &offset));
    assert_int_equal(offset, block->offset);
    assert_false(mem_store_offset(store, (uint8_t *)backing->region.base + 64 * MIB - 1, 2, &offset));
    assert_false(mem_store_offset(store, (uint8_t *)backing->region.base - 1, 1, &offset));
    memset(block->data, 7, block->bytes);
    mem_pool_close(pool);
    mem_store_close(store);
    assert_int_equal(atomic_load(&backing->holders), 2);
    mem_backing_drop(backing);
    assert_true(filled_with(block, 7));
    const void *data = block->data;
    unsigned char page;
    mem_block_release(block);
    assert_int_equal(mincore((void *)(uintptr_t)data, 1, &page), -1); /* nothing is mapped there any more */
    assert_int_equal(errno, ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment_and_offsets),
        cmocka_unit_test(test_whole_blocks),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_exhaustion_says_what_is_left),
        cmocka_unit_test(test_exhaustion_says_what_would_do),
        cmocka_unit_test(test_block_outlives_close),
        cmocka_unit_test(test_private_blocks),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_memory_on_demand),
        cmocka_unit_test(test_no_memory_after_it),
        cmocka_unit_test(test_pools_of_one_store),
        cmocka_unit_test(test_memory_of_somebody_else),
        cmocka_unit_test(test_block_keeps_all_beneath_it),
    };
    return cmocka_run_group_tests(tests, make_heap, drop_heap);
}
