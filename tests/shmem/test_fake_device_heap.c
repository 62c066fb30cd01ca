/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the device heap, on a driver that simulates GPUs (cuda/fake/fake.c). Each is said clearly, on all ranks,
 * and leaves the group usable. */
#include "shmem/device_heap_parts.h"
#include "shmem/kind.h"

#include <stdatomic.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)

static void two_gpus_without_access(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, device_heap_create(group->sym, group->rank, &heap));
    CHECK_TEXT("no peer access between GPU", "GPU 0000:01:00.0 of rank 0", "GPU 0000:02:00.0 of rank 1");
    if (!CHECK_OK(device_heap_create(group->sym, 1, &heap))) return; /* one GPU for both */
    CHECK_OK(expar_group_barrier(group));
    device_heap_destroy(heap, true);
}

static void no_peer_access_is_named(void **state)
{
    (void)state;
    kind_run_with("FAKE_PEERS", "0", 2, two_gpus_without_access);
}

static void write_and_read(expar_group *group, device_heap *heap, uint64_t offset)
{
    int32_t got[4], mine[4] = {group->rank, group->rank, group->rank, group->rank};
    int32_t next = (group->rank + 1) % group->size, before = (group->rank + group->size - 1) % group->size;
    if (!CHECK_OK(cuda_enter(device_heap_device(heap)))) return;
    CHECK_OK(CUDA_CALL(MemcpyHtoD, device_heap_bases(heap)[next] + offset, mine, sizeof mine));
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(CUDA_CALL(MemcpyDtoH, got, device_heap_at(heap, offset), sizeof got));
    cuda_leave();
    CHECK(got[0] == before && got[3] == before, "rank %d wrote %d", (int)before, (int)got[0]);
}

/* Ranks that are threads need no descriptors; processes fall back to CUDA IPC. */
static void memory_without_descriptors(expar_group *group, void *shared)
{
    (void)shared;
    bool whole = kind_of_ranks == RANKS_PROCESSES;
    device_heap *heap = NULL;
    uint64_t offset, more;
    if (!CHECK_OK(device_heap_create(group->sym, group->rank % 2, &heap))) return;
    CHECK(heap->kind == (whole ? HEAP_WHOLE : HEAP_CHUNKS), "the heap's kind is %d", (int)heap->kind);
    if (!CHECK_OK(device_heap_take(heap, "test", 8 * MIB, 4096, &offset))) return;
    write_and_read(group, heap, offset);
    expar_status grown = device_heap_take(heap, "test", 64 * MIB, 4096, &more);
    CHECK_STATUS(whole ? EXPAR_ERR_MEMORY : EXPAR_OK, grown);
    if (whole) CHECK_TEXT("by CUDA IPC the device heap cannot grow");
    CHECK_OK(expar_group_barrier(group));
    device_heap_destroy(heap, true);
}

static void descriptors_are_not_needed(void **state)
{
    (void)state;
    kind_run_with("FAKE_EXPORT", "0", 3, memory_without_descriptors);
}

/* Ranks that have taken their part; written by each, once. */
static _Atomic int32_t taken;

/* Rank 1 aborts: what threads leave behind is freed with the last heap, and the next heap is as good. */
static void a_failed_group(expar_group *group, void *shared)
{
    (void)shared;
    device_heap *heap = NULL;
    uint64_t offset;
    if (!CHECK_OK(device_heap_create(group->sym, 0, &heap))) return;
    CHECK_OK(device_heap_take(heap, "test", 8 * MIB, 4096, &offset));
    atomic_fetch_add(&taken, 1);
    while (group->rank == 1 && atomic_load(&taken) < group->size)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (group->rank == 1) CHECK_OK(expar_group_abort(group));
    device_heap_destroy(heap, true);
}

static void a_failed_group_leaves_nothing(void **state)
{
    (void)state;
    size_t before, after, total;
    if (kind_of_ranks == RANKS_PROCESSES) skip();
    assert_int_equal(cuda_open(), EXPAR_OK);
    assert_int_equal(cuda_driver()->MemGetInfo(&before, &total), CU_OK);
    atomic_store(&taken, 0);
    kind_run((ranks_plan){0}, 3, a_failed_group);
    assert_int_equal(cuda_driver()->MemGetInfo(&after, &total), CU_OK);
    assert_int_equal(before, after);
    kind_run((ranks_plan){0}, 3, memory_without_descriptors);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_peer_access_is_named),
        cmocka_unit_test(descriptors_are_not_needed),
        cmocka_unit_test(a_failed_group_leaves_nothing),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
