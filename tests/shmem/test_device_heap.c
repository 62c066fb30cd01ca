/* SPDX-License-Identifier: Apache-2.0 */
/* The symmetric device heap, on ranks that are threads and on ranks that are processes, on as many
 * GPUs as there are. */
#include "cuda/gpus.h"
#include "shmem/device_heap.h"
#include "shmem/kind.h"

#define MAX_RANKS 8
#define SLOT      256
#define MIB       ((uint64_t)1 << 20)

static int32_t num_gpus;

/* By CUDA IPC (EXPAR_CUDA_IPC=1) the first take fixes the size. */
static bool whole(void)
{
    return kind_of_ranks == RANKS_PROCESSES && getenv("EXPAR_CUDA_IPC");
}

static device_heap *make_heap(expar_group *group)
{
    device_heap *heap = NULL;
    uint64_t all;
    if (!CHECK_OK(device_heap_create(group->sym, group->rank % num_gpus, &heap))) return NULL;
    if (!CHECK_OK(cuda_enter(device_heap_device(heap)))) return NULL;
    if (whole() && !(CHECK_OK(device_heap_take(heap, "test", 96 * MIB, 128, &all)) &&
                     CHECK_OK(device_heap_give(heap, "test", all, NULL))))
        return NULL;
    return heap;
}

static void free_heap(expar_group *group, device_heap *heap)
{
    cuda_leave();
    CHECK_OK(expar_group_barrier(group)); /* nobody touches it any more */
    device_heap_destroy(heap, true);
}

/* Every rank writes its mark into every PE's copy, each into its own slot; then each reads its own copy. */
static void exchange_marks(expar_group *group, device_heap *heap, uint64_t offset)
{
    unsigned char slots[MAX_RANKS][SLOT];
    for (int32_t pe = 0; pe < group->size; pe++) {
        cu_address at = device_heap_bases(heap)[pe] + offset + (uint64_t)group->rank * SLOT;
        CHECK_OK(CUDA_CALL(MemsetD8, at, (unsigned char)(16 * group->rank + pe + 1), SLOT));
    }
    CHECK_OK(cuda_synchronize());
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(CUDA_CALL(MemcpyDtoH, slots, device_heap_at(heap, offset), (size_t)group->size * SLOT));
    for (int32_t r = 0; r < group->size; r++)
        for (int32_t i = 0; i < SLOT; i++)
            if (!CHECK(slots[r][i] == 16 * r + group->rank + 1, "byte %d of rank %d is %d", i, r, slots[r][i])) return;
    CHECK_OK(expar_group_barrier(group));
}

static void check_offsets(device_heap *heap, uint64_t offset, uint64_t bytes)
{
    uint64_t found = 0;
    cu_address at = device_heap_at(heap, offset);
    CHECK(device_heap_offset(heap, at, bytes, &found) && found == offset, "offset of a block");
    CHECK(device_heap_offset(heap, at + 1, 0, &found) && found == offset + 1, "offset inside a block");
    CHECK(!device_heap_offset(heap, 0, 1, &found), "offset of NULL");
    CHECK(!device_heap_offset(heap, device_heap_at(heap, 0) - 1, 1, &found), "offset before the heap");
    CHECK(!device_heap_offset(heap, at, UINT64_MAX / 2, &found), "offset of too much");
}

/* All ranks are told whether all are quiet. */
static void give_aloud(expar_group *group, device_heap *heap, uint64_t first, uint64_t second)
{
    bool quiet = group->rank != group->size - 1;
    CHECK_OK(device_heap_give(heap, "test", first, &quiet));
    CHECK(!quiet, "rank %d is not quiet", (int)group->size - 1);
    quiet = true;
    CHECK_OK(device_heap_give(heap, "test", second, &quiet));
    CHECK(quiet, "all ranks are quiet");
}

/* Small, then more than one chunk, then from what was given back. */
static void takes_and_gives(expar_group *group, void *shared)
{
    (void)shared;
    const uint64_t sizes[] = {SLOT * MAX_RANKS, 5 * MIB, 3 * MIB, 64 * MIB + 1};
    uint64_t offsets[4], again;
    device_heap *heap = make_heap(group);
    if (!heap) return;
    for (int i = 0; i < 4; i++) {
        if (!CHECK_OK(device_heap_take(heap, "test", sizes[i], 128, &offsets[i]))) return;
        CHECK(offsets[i] != 0 && offsets[i] % 128 == 0, "offset %llu", (unsigned long long)offsets[i]);
        exchange_marks(group, heap, offsets[i]);
        check_offsets(heap, offsets[i], sizes[i]);
    }
    CHECK_OK(device_heap_give(heap, "test", offsets[1], NULL));
    CHECK_OK(device_heap_take(heap, "test", 4 * MIB, 2 * MIB, &again));
    CHECK(again % (2 * MIB) == 0, "offset %llu", (unsigned long long)again);
    for (int i = 0; i < 4; i++)
        if (i != 1) exchange_marks(group, heap, offsets[i]);
    exchange_marks(group, heap, again);
    CHECK(device_heap_give(heap, "test", again + 128, NULL) == EXPAR_ERR_ADDRESS, "a foreign offset was given back");
    give_aloud(group, heap, offsets[0], again);
    free_heap(group, heap);
}

static void rejections_leave_it_usable(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t offset = 0;
    device_heap *heap = make_heap(group);
    if (!heap) return;
    uint64_t all = device_heap_device(heap)->memory_bytes;
    CHECK(device_heap_take(heap, "test", all - 64 * MIB, 128, &offset) == EXPAR_ERR_MEMORY, "the whole GPU was taken");
    CHECK_TEXT(whole() ? "cannot grow" : "MiB are free");
    CHECK(device_heap_take(heap, "test", 4 * all, 128, &offset) == EXPAR_ERR_MEMORY, "four GPUs were taken");
    if (group->size > 1) {
        uint64_t uneven = group->rank == 1 ? 4096 : 8192;
        CHECK(device_heap_take(heap, "test", uneven, 128, &offset) == EXPAR_ERR_MISMATCH, "sizes may differ");
        CHECK(strstr(expar_last_error(), "rank 1") != NULL, "text: %s", expar_last_error());
    }
    CHECK(offset == 0, "a failed take set its offset");
    if (CHECK_OK(device_heap_take(heap, "test", MIB, 128, &offset))) exchange_marks(group, heap, offset);
    free_heap(group, heap);
}

/* ---- the part that grows ----------------------------------------------------------------------------------------- */

/* The growth of rank r so far in round `round`: nothing at first on rank 0, other sizes on others. */
static uint64_t share_of(int32_t rank, int32_t round)
{
    return (uint64_t)(rank + (round > 0)) * (round + 1) * MIB;
}

/* Each rank writes its mark at two places of every PE's part: where it begins, and where it ends. */
static void exchange_own_marks(expar_group *group, device_heap *heap, const uint64_t *own)
{
    unsigned char slots[2][MAX_RANKS][SLOT];
    const uint64_t begin = device_heap_own_offset(heap);
    for (int32_t pe = 0; pe < group->size; pe++) {
        const cu_address at = device_heap_bases(heap)[pe] + begin + (uint64_t)group->rank * SLOT;
        const unsigned char mark = (unsigned char)(16 * group->rank + pe + 1);
        if (!own[pe]) continue;
        CHECK_OK(CUDA_CALL(MemsetD8, at, mark, SLOT));
        CHECK_OK(CUDA_CALL(MemsetD8, at + own[pe] - MAX_RANKS * SLOT, mark, SLOT));
    }
    CHECK_OK(cuda_synchronize());
    CHECK_OK(expar_group_barrier(group));
    const uint64_t mine = own[group->rank], bytes = (uint64_t)group->size * SLOT;
    if (mine) {
        CHECK_OK(CUDA_CALL(MemcpyDtoH, slots[0], device_heap_at(heap, begin), bytes));
        CHECK_OK(CUDA_CALL(MemcpyDtoH, slots[1], device_heap_at(heap, begin + mine) - MAX_RANKS * SLOT, bytes));
    }
    for (int32_t i = 0; mine && i < 2 * group->size * SLOT; i++) {
        const int32_t end = i / (group->size * SLOT), r = i / SLOT % group->size;
        if (!CHECK(slots[end][r][i % SLOT] == 16 * r + group->rank + 1, "byte %d of rank %d is %d", i % SLOT, r,
                   slots[end][r][i % SLOT]))
            return;
    }
    CHECK_OK(expar_group_barrier(group));
}

static void gather_own(expar_group *group, device_heap *heap, uint64_t *own)
{
    const uint64_t mine = device_heap_own_bytes(heap);
    CHECK_OK(group->boot->ops->allgather(group->boot, &mine, own, sizeof mine));
}

static void check_own_offsets(const device_heap *heap)
{
    const uint64_t begin = device_heap_own_offset(heap), bytes = device_heap_own_bytes(heap);
    const cu_address at = device_heap_at(heap, begin);
    uint64_t found = 0;
    CHECK(device_heap_offset(heap, at, bytes, &found) == (bytes > 0), "the part is not in the heap");
    CHECK(!bytes || found == begin, "offset %llu", (unsigned long long)found);
    CHECK(!device_heap_offset(heap, at, bytes + 1, &found), "more than the part is in the heap");
    CHECK(!device_heap_offset(heap, at - 1, 2, &found), "a range spans both parts");
}

/* Three times, by other sizes on each rank, between takes of the symmetric part; then back. */
static void grows_and_shrinks(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t own[MAX_RANKS], offset;
    device_heap *heap = make_heap(group);
    if (!heap) return;
    for (int32_t round = 0; round < 3; round++) {
        const uint64_t before = device_heap_own_bytes(heap), more = share_of(group->rank, round);
        if (!CHECK_OK(device_heap_grow(heap, "test", more))) return;
        CHECK(device_heap_own_bytes(heap) >= before + more, "the part has %llu bytes",
              (unsigned long long)device_heap_own_bytes(heap));
        if (!CHECK_OK(device_heap_take(heap, "test", 3 * MIB, 128, &offset))) return;
        exchange_marks(group, heap, offset);
        gather_own(group, heap, own);
        exchange_own_marks(group, heap, own);
        check_own_offsets(heap);
    }
    const uint64_t before = device_heap_own_bytes(heap);
    CHECK_OK(device_heap_shrink(heap, "test", 0, group->rank != group->size - 1));
    CHECK(device_heap_own_bytes(heap) == before, "memory went while a rank still uses it");
    CHECK_OK(device_heap_shrink(heap, "test", group->rank == 0 ? before : 1, true));
    CHECK(device_heap_own_bytes(heap) == before ? group->rank == 0 || before <= 4 * MIB
                                                : device_heap_own_bytes(heap) > 0,
          "%llu of %llu bytes were kept", (unsigned long long)device_heap_own_bytes(heap), (unsigned long long)before);
    CHECK_OK(device_heap_grow(heap, "test", MIB));
    gather_own(group, heap, own);
    exchange_own_marks(group, heap, own);
    free_heap(group, heap);
}

/* The last rank asks for more than there is: nobody has any, and the next growth does. */
static void growth_that_fails(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t own[MAX_RANKS];
    device_heap *heap = make_heap(group);
    if (!heap) return;
    const uint64_t all = device_heap_device(heap)->memory_bytes;
    const bool last = group->rank == group->size - 1;
    CHECK_OK(device_heap_grow(heap, "test", MIB));
    const uint64_t before = device_heap_own_bytes(heap);
    CHECK_STATUS(EXPAR_ERR_MEMORY, device_heap_grow(heap, "test", last ? all - 64 * MIB : 3 * MIB));
    CHECK_TEXT("test", "MiB are free");
    CHECK_STATUS(EXPAR_ERR_MEMORY, device_heap_grow(heap, "test", last ? 64 * all : 3 * MIB));
    CHECK_TEXT("test", "bytes are more than GPU");
    CHECK(device_heap_own_bytes(heap) == before, "a growth that failed has left memory");
    CHECK_OK(device_heap_grow(heap, "test", 2 * MIB));
    gather_own(group, heap, own);
    exchange_own_marks(group, heap, own);
    free_heap(group, heap);
}

/* A rank that holds its part reads it when heap and group have gone. */
static void part_that_stays(expar_group *group, void *shared)
{
    (void)shared;
    unsigned char seen[SLOT] = {0};
    device_heap *heap = make_heap(group);
    if (!heap) return;
    const cuda_device *of_heap = device_heap_device(heap);
    cuda_device *device = NULL;
    if (!CHECK_OK(cuda_device_open(of_heap->index, &device))) return;
    device_part *part = device_heap_hold(heap);
    if (!CHECK_OK(device_heap_grow(heap, "test", 2 * MIB))) return;
    const cu_address at = device_heap_at(heap, device_heap_own_offset(heap));
    CHECK_OK(CUDA_CALL(MemsetD8, at, (unsigned char)(group->rank + 1), 2 * MIB));
    CHECK_OK(cuda_synchronize());
    free_heap(group, heap);
    CHECK_OK(expar_group_barrier(group));
    if (CHECK_OK(cuda_enter(device))) {
        CHECK_OK(CUDA_CALL(MemcpyDtoH, seen, at + 2 * MIB - SLOT, SLOT));
        cuda_leave();
    }
    CHECK(seen[0] == group->rank + 1 && seen[SLOT - 1] == group->rank + 1, "the part holds %d", seen[0]);
    device_part_drop(part);
    cuda_device_close(device);
}

static void one_rank_without_a_gpu(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = NULL;
    bool last = group->rank == group->size - 1;
    expar_status status = device_heap_create(group->sym, last ? 1000 : 0, &heap);
    CHECK(status == (last ? EXPAR_ERR_RANGE : EXPAR_ERR_REMOTE), "status %s", expar_status_string(status));
    CHECK(strstr(expar_last_error(), "GPU 1000") != NULL, "text: %s", expar_last_error());
    heap = make_heap(group); /* the group is as good as before */
    if (heap) free_heap(group, heap);
}

static void run(ranks_body body)
{
    for (int32_t size = 1; size <= MAX_RANKS; size *= 2)
        kind_run((ranks_plan){0}, size, body);
}

/* By CUDA IPC there is no such part, which all ranks say. */
static void no_part(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = make_heap(group);
    if (!heap) return;
    CHECK(!device_heap_grows(heap) && device_heap_own_space(heap) == 0, "the heap grows");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, device_heap_grow(heap, "test", MIB));
    CHECK_TEXT("by CUDA IPC the device heap does not grow");
    free_heap(group, heap);
}

static void ranks_grow_apart(void **state)
{
    (void)state;
    run(whole() ? no_part : grows_and_shrinks);
}

static void growth_fails_on_all_ranks(void **state)
{
    (void)state;
    if (whole()) skip();
    run(growth_that_fails);
}

static void a_part_outlives_the_heap(void **state)
{
    (void)state;
    if (whole()) skip();
    run(part_that_stays);
}

static void memory_is_taken_and_given(void **state)
{
    (void)state;
    run(takes_and_gives);
}

static void a_rejected_take_leaves_the_heap_usable(void **state)
{
    (void)state;
    run(rejections_leave_it_usable);
}

static void a_rank_without_a_gpu_is_named(void **state)
{
    (void)state;
    run(one_rank_without_a_gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_taken_and_given),
        cmocka_unit_test(ranks_grow_apart),
        cmocka_unit_test(growth_fails_on_all_ranks),
        cmocka_unit_test(a_part_outlives_the_heap),
        cmocka_unit_test(a_rejected_take_leaves_the_heap_usable),
        cmocka_unit_test(a_rank_without_a_gpu_is_named),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
