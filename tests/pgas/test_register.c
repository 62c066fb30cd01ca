/* SPDX-License-Identifier: Apache-2.0 */
/* Memory outside the heap: registered for own operations, and as symmetric memory of GPUs. Ranks are threads or
 * processes, also on several simulated nodes (argument mix). The memory of each rank consists of chunks of the driver,
 * on each rank in other sizes. What the calls write must be at the caller's own address. */
#include "cuda/find_controls.h"
#include "pgas/memories.h"

#include "mem/device.h"
#include "mem/registry.h"
#include <expar/device.h>
#include <expar/stream.h>
#include <sys/mman.h>

/* ---- memory of the driver's -------------------------------------------------------------------------------------- */

#define MOST_CHUNKS 20

/* Chunks, one after the other, as a program makes them. */
typedef struct pool {
    cuda_device *device;
    cu_address at;
    uint64_t unit, bytes;
    uint64_t sizes[MOST_CHUNKS];
    int num_chunks;
} pool;

static bool pool_open(const expar_group *group, pool *p)
{
    *p = (pool){0};
    return CHECK_OK(cuda_device_open(gpu_of(group), &p->device)) &&
           CHECK_OK(mem_chunk_granularity(p->device, &p->unit)) &&
           CHECK_OK(mem_range_reserve(2 * MOST_CHUNKS * p->unit, &p->at));
}

static bool pool_add(pool *p, uint64_t bytes)
{
    mem_chunk chunk = {0};
    if (!CHECK_OK(mem_chunk_create(p->device, bytes, &chunk))) return false;
    const bool mapped = CHECK_OK(mem_chunk_map(&chunk, p->at + p->bytes, &p->device->index, 1));
    mem_chunk_release(&chunk);
    p->sizes[p->num_chunks++] = bytes;
    p->bytes += bytes;
    return mapped;
}

static void pool_unmap(pool *p)
{
    cu_address at = p->at;
    for (int i = 0; i < p->num_chunks; i++) {
        mem_chunk_unmap(at, p->sizes[i]);
        at += p->sizes[i];
    }
    p->num_chunks = 0;
}

static void pool_close(pool *p)
{
    pool_unmap(p);
    mem_range_free(p->at, 2 * MOST_CHUNKS * p->unit);
    cuda_device_close(p->device);
}

/* Rank 0 has one chunk, others have more of different sizes. All have six times the granularity. */
static bool pool_make(const expar_group *group, pool *p)
{
    static const uint64_t layouts[][4] = {{6}, {1, 5}, {2, 1, 3}, {1, 1, 2, 2}};
    const uint64_t *mine = layouts[group->rank % 4];
    if (!pool_open(group, p)) return false;
    for (int i = 0; i < 4 && mine[i]; i++)
        if (!pool_add(p, mine[i] * p->unit)) return false;
    return true;
}

static void *pool_at(const pool *p)
{
    return (void *)(uintptr_t)p->at;
}

static void check_registered(expar_group *group, expar_memory_kind kind, uint64_t ranges, uint64_t bytes)
{
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    CHECK_OK(expar_memory_get_stats(group, kind, &stats));
    CHECK(stats.registered_ranges == ranges && stats.registered_bytes == bytes,
          "%llu ranges with %llu bytes of %s memory are registered, expected %llu with %llu",
          (unsigned long long)stats.registered_ranges, (unsigned long long)stats.registered_bytes, kind_names[kind],
          (unsigned long long)ranges, (unsigned long long)bytes);
}

/* ---- symmetric memory -------------------------------------------------------------------------------------------- */

/* Each rank writes its own parts of each copy, around the borders of chunks. */
#define PART_BYTES ((size_t)300000)

static void check_place(expar_group *group, const uint8_t *symmetric)
{
    uint64_t offsets[MAX_RANKS];
    expar_memory_place place = EXPAR_MEMORY_PLACE_INIT;
    if (!CHECK_OK(expar_memory_get_place(group, symmetric, &place))) return;
    CHECK(place.kind == EXPAR_MEMORY_DEVICE && place.device == gpu_of(group), "kind %d, GPU %d", (int)place.kind,
          place.device);
    CHECK(place.device_address == symmetric, "its address on the GPU is %p", place.device_address);
    CHECK_OK(expar_group_allgather(group, &place.offset, offsets, sizeof place.offset));
    for (int32_t r = 0; r < group->size; r++)
        CHECK(offsets[r] == place.offset, "rank %d has another offset", r);
}

static uint32_t seed_of(int32_t from, int32_t to, uint32_t round)
{
    return (uint32_t)(from * 1000 + to) + round * 100000;
}

/* Rank r writes to each rank at r parts after `at`; then each compares its memory at the caller's address. */
static void exchange(expar_group *group, const pool *p, uint8_t *symmetric, size_t at, uint32_t round)
{
    uint8_t *source = malloc(PART_BYTES), *got = malloc(PART_BYTES);
    for (int32_t pe = 0; pe < group->size; pe++) {
        uint8_t *dest = symmetric + at + (size_t)group->rank * PART_BYTES;
        fill_block(group, EXPAR_MEMORY_HOST, source, PART_BYTES, seed_of(group->rank, pe, round));
        CHECK_OK(expar_put(group, dest, source, PART_BYTES, pe));
    }
    CHECK_OK(expar_barrier_all(group));
    for (int32_t r = 0; r < group->size; r++) {
        const size_t part = at + (size_t)r * PART_BYTES;
        holds_pattern(group, EXPAR_MEMORY_DEVICE, (uint8_t *)pool_at(p) + part, PART_BYTES,
                      seed_of(r, group->rank, round));
        CHECK_OK(expar_get(group, got, symmetric + at, PART_BYTES, r));
        holds_pattern(group, EXPAR_MEMORY_HOST, got, PART_BYTES, seed_of(0, r, round));
    }
    CHECK_OK(expar_barrier_all(group));
    free(source);
    free(got);
}

/* Words in registered memory: all ranks add, and the next rank waits for a signal. */
static void exchange_words(expar_group *group, const pool *p, uint8_t *symmetric)
{
    uint64_t *words = (uint64_t *)(void *)symmetric, held[2] = {0}, seen = 0;
    const uint64_t zeros[2] = {0};
    const int32_t next = (group->rank + 1) % group->size;
    copy_on_gpu(group, pool_at(p), zeros, sizeof zeros);
    CHECK_OK(expar_barrier_all(group));
    for (int32_t pe = 0; pe < group->size; pe++)
        CHECK_OK(expar_atomic_add_u64(group, &words[0], (uint64_t)group->rank + 1, pe));
    CHECK_OK(expar_put_signal(group, &words[2], &next, sizeof next, &words[1], 7, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_signal_wait_until(group, &words[1], EXPAR_CMP_EQ, 7, &seen));
    CHECK_OK(expar_barrier_all(group));
    copy_on_gpu(group, held, pool_at(p), sizeof held);
    CHECK(held[0] == (uint64_t)group->size * ((uint64_t)group->size + 1) / 2 && held[1] == 7,
          "the words are %llu, %llu", (unsigned long long)held[0], (unsigned long long)held[1]);
    CHECK_OK(expar_barrier_all(group));
}

/* The tables of kernels know the memory as long as it is registered, also where the handle is older. */
static void check_kernels(expar_group *group, const expar_device_handle *handle, uint8_t *symmetric, size_t bytes,
                          bool registered)
{
    for (int32_t pe = 0; pe < group->size; pe++) {
        void *first = expar_kernel_ptr(handle, symmetric, pe),
             *last = expar_kernel_ptr(handle, symmetric + bytes - 1, pe);
        void *expected = registered ? expar_device_ptr(group, symmetric, pe) : NULL;
        CHECK(first == expected, "kernels find rank %d's memory at %p, expected %p", pe, first, expected);
        CHECK(last == (expected ? (uint8_t *)expected + bytes - 1 : NULL), "the last byte is at %p", last);
        CHECK(!expar_kernel_ptr(handle, symmetric + bytes, pe), "a byte after it");
    }
}

/* The handle's table is memory of the GPU, which only a simulated driver lets the CPU read. */
static bool is_simulated(void)
{
    return controls_find() != NULL;
}

static void symmetric_memory(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    uint8_t *symmetric = NULL, *again = NULL;
    expar_device_handle handle;
    const expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
    if (!pool_make(group, &p)) return;
    const size_t bytes = p.bytes - 1000;
    if (!CHECK_OK(expar_register_symmetric(group, pool_at(&p), bytes, (void **)&symmetric))) return;
    CHECK_OK(expar_device_get(group, &options, &handle));
    check_place(group, symmetric);
    check_registered(group, EXPAR_MEMORY_DEVICE, 1, bytes);
    exchange(group, &p, symmetric, p.unit - 1001, 0);
    exchange(group, &p, symmetric, bytes - (size_t)group->size * PART_BYTES, 1);
    exchange_words(group, &p, symmetric);
    if (is_simulated()) check_kernels(group, &handle, symmetric, bytes, true);
    CHECK_OK(expar_unregister_symmetric(group, symmetric));
    if (is_simulated()) check_kernels(group, &handle, symmetric, bytes, false);
    check_registered(group, EXPAR_MEMORY_DEVICE, 0, 0);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, symmetric, &bytes, sizeof bytes, group->rank));
    CHECK_OK(expar_register_symmetric(group, pool_at(&p), bytes, (void **)&again));
    if (is_simulated()) check_kernels(group, &handle, again, bytes, true);
    pool_unmap(&p); /* the registration keeps the memory */
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_put(group, again, &group->rank, sizeof group->rank, (group->rank + 1) % group->size));
    CHECK_OK(expar_barrier_all(group));
    int32_t last = -1;
    CHECK_OK(expar_get(group, &last, again, sizeof last, group->rank));
    CHECK(last == (group->rank + group->size - 1) % group->size, "rank %d has put", last);
    CHECK_OK(expar_unregister_symmetric(group, again));
    pool_close(&p);
}

/* Memory that is still registered at the end goes with the group; it was there before any block. */
static void several(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    uint8_t *made[MOST_CHUNKS] = {NULL};
    void *none = group, *block;
    if (!pool_open(group, &p)) return;
    for (int i = 0; i < 17; i++)
        if (!pool_add(&p, p.unit)) return;
    for (int i = 0; i < 16; i++)
        if (!CHECK_OK(expar_register_symmetric(group, (uint8_t *)pool_at(&p) + (size_t)i * p.unit, p.unit,
                                               (void **)&made[i])))
            return;
    CHECK_STATUS(EXPAR_ERR_LIMIT, expar_register_symmetric(group, (uint8_t *)pool_at(&p) + 16 * p.unit, p.unit, &none));
    CHECK_TEXT("expar_register_symmetric", "16 ranges are registered");
    CHECK(none == group, "a refused call has written its result");
    check_registered(group, EXPAR_MEMORY_DEVICE, 16, 16 * p.unit);
    for (int i = 0; i < 16; i += 2)
        CHECK_OK(expar_unregister_symmetric(group, made[i]));
    CHECK_OK(expar_register_symmetric(group, (uint8_t *)pool_at(&p) + 16 * p.unit, p.unit, (void **)&made[16]));
    if (!(block = take(group, EXPAR_MEMORY_DEVICE, 4 * MIB, 0))) return;
    for (int i = 1; i < 17; i = i < 15 ? i + 2 : i + 1) {
        CHECK_OK(expar_put(group, made[i], &i, sizeof i, group->rank));
        holds_pattern(group, EXPAR_MEMORY_DEVICE, made[i], 0, 0);
        int held = -1;
        copy_on_gpu(group, &held, (uint8_t *)pool_at(&p) + (size_t)i * p.unit, sizeof held);
        CHECK(held == i, "range %d holds %d", i, held);
    }
    CHECK_OK(expar_free(group, block));
    pool_close(&p);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

/* Rank 1 alone has a wrong address or size. */
static void one_errs(expar_group *group, const pool *p, void *address, size_t bytes, expar_status status,
                     const char *word)
{
    void *none = group;
    const bool odd = group->rank == 1;
    const size_t right = bytes > 0 && bytes < p->unit ? bytes : p->unit;
    CHECK_STATUS(odd ? status : EXPAR_ERR_REMOTE,
                 expar_register_symmetric(group, odd ? address : pool_at(p), odd ? bytes : right, &none));
    CHECK_TEXT("expar_register_symmetric", word);
    CHECK(none == group, "a refused call has written its result");
}

static void bad_addresses(expar_group *group, pool *p, void *symmetric)
{
    void *plain = NULL, *block = take(group, EXPAR_MEMORY_DEVICE, 4096, 0);
    if (!block || !CHECK_OK(cuda_enter(p->device))) return;
    CHECK_OK(CUDA_CALL(MemAlloc, (cu_address *)(void *)&plain, 4 * MIB));
    cuda_leave();
    one_errs(group, p, group, 4096, EXPAR_ERR_ADDRESS, "is not memory of a GPU");
    one_errs(group, p, plain, p->unit, EXPAR_ERR_ADDRESS, "is not memory of cuMemCreate");
    one_errs(group, p, block, 4096, EXPAR_ERR_ADDRESS, "is symmetric already");
    one_errs(group, p, symmetric, 4096, EXPAR_ERR_ADDRESS, "is symmetric already");
    one_errs(group, p, NULL, 4096, EXPAR_ERR_NULL, "address is NULL");
    one_errs(group, p, pool_at(p), 0, EXPAR_ERR_ARGUMENT, "bytes 0");
    one_errs(group, p, pool_at(p), SIZE_MAX, EXPAR_ERR_ARGUMENT, "bytes 18446744073709551615");
    CHECK_OK(cuda_enter(p->device));
    CHECK_OK(CUDA_CALL(MemFree, (cu_address)(uintptr_t)plain));
    cuda_leave();
    CHECK_OK(expar_free(group, block));
}

static void bad_input(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    void *symmetric = NULL, *none = group;
    const bool odd = group->rank == 1;
    if (!pool_open(group, &p) || !pool_add(&p, p.unit) || !pool_add(&p, 2 * p.unit)) return;
    uint8_t *second = (uint8_t *)pool_at(&p) + p.unit;
    one_errs(group, &p, second + 512, 4096, EXPAR_ERR_ADDRESS, "512 bytes after the first byte of a chunk");
    one_errs(group, &p, second + 2 * p.unit, 4096, EXPAR_ERR_ADDRESS, "is not memory of a GPU");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register_symmetric(group, second, 2 * p.unit + 1, &none));
    CHECK_TEXT("expar_register_symmetric", "is not allocated on a GPU");
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_register_symmetric(group, second, p.unit + odd, &none));
    CHECK_TEXT("expar_register_symmetric", "bytes", "rank 1");
    CHECK_STATUS(odd ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE,
                 expar_register_symmetric(group, second, p.unit, odd ? NULL : &none));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_register_symmetric(NULL, second, p.unit, &none));
    CHECK(none == group, "a refused call has written its result");
    if (!CHECK_OK(expar_register_symmetric(group, second, p.unit + 1, &symmetric))) return;
    one_errs(group, &p, second, p.unit, EXPAR_ERR_ADDRESS, "which is registered");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register_symmetric(group, pool_at(&p), 2 * p.unit, &none));
    bad_addresses(group, &p, symmetric);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_free(group, symmetric));
    CHECK_TEXT("expar_free", "expar_unregister_symmetric");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_realloc(group, symmetric, 10, &none));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_put(group, (uint8_t *)symmetric + p.unit, group, 2, 0));
    CHECK_OK(expar_barrier_all(group));
    CHECK_STATUS(odd ? EXPAR_ERR_ADDRESS : EXPAR_ERR_REMOTE,
                 expar_unregister_symmetric(group, odd ? second : symmetric));
    CHECK_STATUS(odd ? EXPAR_ERR_ADDRESS : EXPAR_ERR_REMOTE,
                 expar_unregister_symmetric(group, odd ? (uint8_t *)symmetric + 8 : symmetric));
    CHECK_STATUS(odd ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE, expar_unregister_symmetric(group, odd ? NULL : symmetric));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_unregister_symmetric(NULL, symmetric));
    CHECK_OK(expar_unregister_symmetric(group, symmetric));
    pool_close(&p);
}

/* Memory that was not made for other processes, and heaps by CUDA IPC. */
static void not_shared(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    void *made = group;
    if (!pool_open(group, &p)) return;
    p.device->posix_fd = false;
    if (!pool_add(&p, p.unit)) return;
    const bool serves = kind_of_ranks == RANKS_THREADS;
    CHECK_STATUS(serves ? EXPAR_OK : EXPAR_ERR_UNSUPPORTED,
                 expar_register_symmetric(group, pool_at(&p), p.unit, &made));
    if (!serves)
        CHECK_TEXT("expar_register_symmetric", getenv("EXPAR_CUDA_IPC") ? "CUDA IPC" : "POSIX_FILE_DESCRIPTOR");
    CHECK((made == group) != serves, "*out is %p", made);
    if (serves) CHECK_OK(expar_unregister_symmetric(group, made));
    pool_close(&p);
}

/* Ranks name different memory when they end a registration; both stay. */
static void differ(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    void *made[2];
    if (!pool_open(group, &p) || !pool_add(&p, p.unit) || !pool_add(&p, p.unit)) return;
    for (size_t i = 0; i < 2; i++)
        if (!CHECK_OK(expar_register_symmetric(group, (uint8_t *)pool_at(&p) + i * p.unit, p.unit, &made[i]))) return;
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_unregister_symmetric(group, made[group->rank == 1]));
    check_registered(group, EXPAR_MEMORY_DEVICE, 2, 2 * p.unit);
    for (size_t i = 0; i < 2; i++)
        CHECK_OK(expar_unregister_symmetric(group, made[i]));
    pool_close(&p);
}

/* ---- for own operations ------------------------------------------------------------------------------------------ */

#define OWN_BYTES ((size_t)700001)

static int pinned_now(void)
{
    fake_controls *controls = controls_find();
    return controls ? atomic_load(&controls->registered) : -1;
}

/* Puts and gets of device memory with the caller's side in that memory, from its first byte to its last one. */
static void move(expar_group *group, uint8_t *device, uint8_t *own)
{
    static const size_t begins[] = {0, 1, 4095, 4096, 8191, 300000}, sizes[] = {1, 4096, 5000, 300000};
    const int32_t next = (group->rank + 1) % group->size;
    uint32_t round = 0;
    for (size_t b = 0; b < ARRAY_LENGTH(begins); b++)
        for (size_t s = 0; s < ARRAY_LENGTH(sizes); s++, round++) {
            uint8_t *at = own + begins[b];
            if (b == 5 && s == 3) at = own + OWN_BYTES - sizes[s];
            fill_block(group, EXPAR_MEMORY_HOST, at, sizes[s], round);
            CHECK_OK(expar_put(group, device, at, sizes[s], next));
            CHECK_OK(expar_quiet(group));
            memset(at, 0, sizes[s]);
            CHECK_OK(expar_get(group, at, device, sizes[s], next));
            holds_pattern(group, EXPAR_MEMORY_HOST, at, sizes[s], round);
        }
}

/* Blocks that stay registered until their group ends; each rank has one. */
#define OWN_RANKS 3
static uint8_t *own_blocks[OWN_RANKS];

static void free_own_blocks(void)
{
    for (int r = 0; r < OWN_RANKS; r++) {
        free(own_blocks[r]);
        own_blocks[r] = NULL;
    }
}

static void own_memory(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *own = own_blocks[expar_group_rank(group)] = malloc(OWN_BYTES), *other = malloc(OWN_BYTES), *device;
    mem_pinned_range pinned;
    CHECK_OK(expar_register(group, own, OWN_BYTES)); /* before there is any GPU */
    check_registered(group, EXPAR_MEMORY_HOST, 1, OWN_BYTES);
    if (!(device = take_zeros(group, EXPAR_MEMORY_DEVICE, OWN_BYTES))) return;
    CHECK_OK(expar_register(group, other, OWN_BYTES));
    CHECK_OK(expar_register(group, other, OWN_BYTES)); /* counted */
    check_registered(group, EXPAR_MEMORY_HOST, 2, 2 * OWN_BYTES);
    mem_registered *used = mem_registry_enter(group->sym->registry, own + 3, 5000, &pinned);
    if (CHECK(used != NULL, "registered memory is not pinned")) {
        CHECK(pinned.begin < pinned.end && pinned.begin >= (uintptr_t)own, "%zu bytes are pinned",
              (size_t)(pinned.end - pinned.begin));
        CHECK_STATUS(EXPAR_ERR_BUSY, expar_unregister(group, own));
        CHECK_TEXT("expar_unregister", "in use by 1 calls");
        mem_registry_leave(group->sym->registry, used);
    }
    CHECK(!mem_registry_enter(group->sym->registry, own, OWN_BYTES + 1, &pinned), "a byte after it");
    move(group, device, own);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_unregister(group, own));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_unregister(group, own));
    move(group, device, own);
    move(group, device, other);
    CHECK_OK(expar_unregister(group, other));
    check_registered(group, EXPAR_MEMORY_HOST, 1, OWN_BYTES);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_unregister(group, other));
    CHECK_OK(expar_register(group, own, OWN_BYTES)); /* ends with the group */
    CHECK_OK(expar_free(group, device));
    free(other);
}

/* A stream copies from memory that lies in two registrations, with a page between them that is not pinned. */
static void own_on_stream(expar_group *group, void *shared)
{
    (void)shared;
    enum { HALF = 100000, BYTES = 2 * HALF };
    cuda_device *gpu = NULL;
    cu_stream stream = NULL;
    uint8_t *own = malloc(BYTES), *device = take_zeros(group, EXPAR_MEMORY_DEVICE, BYTES);
    if (!device || !CHECK_OK(cuda_device_open(gpu_of(group), &gpu)) || !CHECK_OK(cuda_enter(gpu))) return;
    CHECK_OK(CUDA_CALL(StreamCreate, &stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(expar_register(group, own, HALF));
    CHECK_OK(expar_register(group, own + HALF, HALF));
    for (uint32_t round = 0; round < 3; round++) {
        const size_t at = round < 2 ? 20000 : 120000, bytes = round < 2 ? BYTES - 40000 : 50000;
        fill_block(group, EXPAR_MEMORY_HOST, own + at, bytes, round + (uint32_t)group->rank);
        CHECK_OK(expar_put_on_stream(group, device, own + at, bytes, group->rank, stream));
        CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
        holds_pattern(group, EXPAR_MEMORY_DEVICE, device, bytes, round + (uint32_t)group->rank);
    }
    CHECK_OK(expar_unregister(group, own));
    CHECK_OK(expar_unregister(group, own + HALF));
    CHECK_OK(CUDA_CALL(StreamDestroy, stream));
    cuda_leave();
    cuda_device_close(gpu);
    CHECK_OK(expar_free(group, device));
    free(own);
}

/* Memory of GPUs, and of the caller that is pinned already. */
static void own_kinds(expar_group *group, void *shared)
{
    (void)shared;
    pool p;
    mem_pinned given = {0};
    uint8_t *device = take_zeros(group, EXPAR_MEMORY_DEVICE, OWN_BYTES);
    if (!device || !pool_open(group, &p) || !pool_add(&p, p.unit) || !CHECK_OK(cuda_enter(p.device))) return;
    CHECK_OK(mem_pinned_create(OWN_BYTES, &given));
    cuda_leave();
    const int before = pinned_now();
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_register(group, pool_at(&p), p.unit));
    CHECK_OK(expar_register(group, given.host, OWN_BYTES));
    CHECK(pinned_now() == before, "pinned memory was pinned again");
    check_registered(group, EXPAR_MEMORY_DEVICE, 1, p.unit);
    check_registered(group, EXPAR_MEMORY_HOST, 1, OWN_BYTES);
    move(group, device, given.host);
    CHECK_OK(expar_barrier_all(group)); /* the other rank is done with this one's block */
    CHECK_OK(expar_put(group, device, pool_at(&p), 4096, group->rank));
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_unregister(group, given.host));
    CHECK_OK(expar_unregister(group, pool_at(&p)));
    CHECK_OK(cuda_enter(p.device));
    mem_pinned_free(&given);
    cuda_leave();
    CHECK_OK(expar_free(group, device));
    pool_close(&p);
}

static void own_bad_input(expar_group *group, void *shared)
{
    (void)shared;
    uint8_t *own = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *block = take(group, EXPAR_MEMORY_HOST, 4096, 0), *pinned = take(group, EXPAR_MEMORY_PINNED, 4096, 0);
    if (!block || !pinned) return;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_register(NULL, own, 10));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_register(group, NULL, 10));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_register(group, own, 0));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_register(group, own, SIZE_MAX));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, block, 4096));
    CHECK_TEXT("expar_register", "is symmetric");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, pinned, 4096));
    munmap(own + MIB / 2, MIB / 2);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, own, MIB));
    CHECK_TEXT("expar_register", "is not memory that this process can read");
    mprotect(own, 4096, PROT_NONE);
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, own, MIB / 2));
    mprotect(own, 4096, PROT_READ | PROT_WRITE);
    CHECK_OK(expar_register(group, own + 1000, 9000));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, own, 1001));
    CHECK_TEXT("expar_register", "overlaps");
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, own + 1000, 8999));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_register(group, own + 9999, 2));
    CHECK_OK(expar_register(group, own, 1000)); /* neighbours share a page */
    CHECK_OK(expar_register(group, own + 10000, 20000));
    check_registered(group, EXPAR_MEMORY_HOST, 3, 30000);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_unregister(NULL, own));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_unregister(group, NULL));
    CHECK_STATUS(EXPAR_ERR_ADDRESS, expar_unregister(group, own + 1));
    CHECK_TEXT("expar_unregister", "no registered memory begins at");
    CHECK_OK(expar_unregister(group, own + 1000));
    CHECK_OK(expar_unregister(group, own));
    CHECK_OK(expar_unregister(group, own + 10000));
    munmap(own, MIB / 2);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void nothing_left(expar_group *group, void *shared)
{
    (void)group, (void)shared;
    const fake_controls *controls = controls_find();
    if (!controls) return;
    CHECK(atomic_load(&controls->registered) == 0, "host memory is still pinned");
    CHECK(atomic_load(&controls->mapped) == 0, "memory of GPUs is still mapped");
}

static void run(ranks_body body, int32_t size)
{
    kind_run((ranks_plan){.after = kind_of_ranks == RANKS_THREADS ? NULL : nothing_left}, size, body);
    if (kind_of_ranks != RANKS_THREADS) return;
    check_begin(-1);
    nothing_left(NULL, NULL);
    assert_int_equal(check_failures(), 0);
}

static void test_symmetric_memory(void **state)
{
    (void)state;
    run(symmetric_memory, 1);
    run(symmetric_memory, 2);
    run(symmetric_memory, 4);
}

static void test_several_ranges(void **state)
{
    (void)state;
    run(several, 2);
}

static void test_bad_input(void **state)
{
    (void)state;
    run(bad_input, 3);
    run(differ, 2);
    run(not_shared, 2);
    if (kind_of_ranks == RANKS_PROCESSES) kind_run_with("EXPAR_CUDA_IPC", "1", 2, not_shared);
}

static void test_own_memory(void **state)
{
    (void)state;
    run(own_memory, 1);
    free_own_blocks();
    run(own_memory, OWN_RANKS);
    free_own_blocks();
    run(own_kinds, 2);
    /* Calls on streams need streams that run by themselves. */
    if (!controls_find() || getenv("FAKE_ASYNC")) run(own_on_stream, 2);
}

static void test_own_bad_input(void **state)
{
    (void)state;
    run(own_bad_input, 2);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symmetric_memory), cmocka_unit_test(test_several_ranges),
        cmocka_unit_test(test_bad_input),        cmocka_unit_test(test_own_memory),
        cmocka_unit_test(test_own_bad_input),
    };
    kind_read(argc, argv);
    num_gpus = gpus_count(1);
    if (num_gpus < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
