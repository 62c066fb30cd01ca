/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of two ranks post to the queues that the gda transport has made for them (EXPAR_GDA_QUEUE_MEMORY), and reach
 * each other's pinned memory, as on different nodes. The ranks share one GPU, or a simulated one.
 *
 * Random programs run against a model of memory, and messages whose signal must not overtake the data. When the group
 * is aborted, kernels that wait for their peer end. */
#include "cuda/gpus.h"
#include "cuda/kernels/gda_programs.h"
#include "cuda/test_sources.h"
#include "mem/device.h"
#include "net/gda/parts.h"
#include "oracle/random.h"
#include "shmem/kind.h"

#include <stdio.h>

#define ROUNDS     30
#define WAIT_NS    (INT64_C(120) * 1000000000)
#define OWN_WARPS  (GDAP_WARPS / GDAP_RANKS)
#define OWN_BLOCKS (GDAP_BLOCKS / GDAP_RANKS)

/* A rank's kernels write this, in pinned memory; by the numbers of all warps. */
typedef struct own_words {
    uint64_t adds[GDAP_WARPS], seen[GDAP_WARPS];
    uint32_t wrong[GDAP_WARPS];
    uint8_t models[GDAP_WARPS][GDAP_RANKS][GDAP_AREA];
} own_words;

typedef struct poster {
    expar_group *group;
    cuda_device *device;
    cuda_program *program;
    cu_stream stream;
    mem_pinned own;
    uint8_t *heap; /* [GDAP_HEAP] of pinned symmetric memory */
    gdap_call call;
} poster;

static own_words *words_of(const poster *p)
{
    return p->own.host;
}

static void *seen(const poster *p, const void *at)
{
    return (void *)(uintptr_t)(p->own.device + (uintptr_t)((const uint8_t *)at - (const uint8_t *)p->own.host));
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* Returns the transport that has queues for kernels; NULL: there is none. */
static const transport *gda_among(const sym *symmetric)
{
    for (int32_t t = 0; t < symmetric->num_transports; t++) {
        const transport *via = symmetric->transports[t];
        if (via->ops->kernels && via->ops->kernels(via, true, NULL)) return via;
    }
    return NULL;
}

static bool load(poster *p)
{
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/gda_programs.cu"))
            return CHECK_OK(cuda_program_make(p->device, &test_sources[i], NULL, 0, &p->program));
    return CHECK(false, "the tests have no kernel source gda_programs.cu");
}

static bool begin(poster *p, expar_group *group)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    void *heap = NULL;
    *p = (poster){.group = group};
    options.kind = EXPAR_MEMORY_PINNED;
    options.bytes = GDAP_HEAP;
    options.zeroed = 1;
    if (!CHECK_OK(expar_memory_alloc(group, &options, &heap))) return false;
    p->heap = heap;
    const transport *via = gda_among(group->sym);
    if (!CHECK(via != NULL, "gda has no queues for kernels")) return false;
    if (!CHECK_OK(cuda_device_open(0, &p->device)) || !CHECK_OK(cuda_enter(p->device))) return false;
    if (!CHECK_OK(mem_pinned_create(sizeof(own_words), &p->own)) || !load(p)) return false;
    if (!CHECK_OK(CUDA_CALL(StreamCreate, &p->stream, CU_STREAM_NON_BLOCKING))) return false;
    const own_words *own = words_of(p);
    p->call =
        (gdap_call){.models = seen(p, own->models),
                    .adds = seen(p, own->adds),
                    .wrong = seen(p, own->wrong),
                    .seen = seen(p, own->seen),
                    .seed = 7,
                    .view = (const gda_view *)(uintptr_t)via->ops->kernels(via, true, NULL),
                    .rank = (uint32_t)group->rank,
                    .at = (uint64_t)(p->heap - (uint8_t *)group->sym->site.segments[TRANSPORT_PINNED].region->base)};
    p->call.heaps[group->rank] = p->heap;
    return true;
}

static void end(poster *p)
{
    if (!p->device) return;
    if (p->stream) cuda_driver()->StreamDestroy(p->stream);
    cuda_program_release(p->program);
    mem_pinned_free(&p->own);
    cuda_leave();
    cuda_device_close(p->device);
}

static bool launch(poster *p, const char *kernel, int64_t rounds)
{
    cuda_launch launch = {.blocks = OWN_BLOCKS, .threads = GDAP_THREADS, .stream = p->stream};
    p->call.rounds = (int32_t)rounds;
    return CHECK_OK(cuda_program_kernel(p->program, kernel, 0, &launch.function)) &&
           CHECK_OK(cuda_launch_kernel(&launch, (void *[]){&p->call}));
}

static bool await(const poster *p)
{
    cuda_mark *mark;
    bool passed = false;
    const int64_t since_ns = clock_ns();
    if (!CHECK_OK(cuda_mark_make(p->stream, &mark))) return false;
    while (!passed && clock_ns() - since_ns < WAIT_NS && CHECK_OK(cuda_mark_query(mark, &passed)))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    cuda_mark_give(mark);
    return CHECK(passed, "the kernel does not end");
}

static void check_warps(const poster *p)
{
    for (int w = 0; w < GDAP_WARPS; w++)
        CHECK(words_of(p)->wrong[w] == 0, "warp %d: check %u failed", w, words_of(p)->wrong[w]);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

/* Both ranks have ended. This rank's areas are read back by the host. */
static void check_areas(poster *p)
{
    uint8_t area[GDAP_AREA];
    for (int w = 0; w < GDAP_WARPS; w++) {
        const uint64_t offset = GDAP_AREAS_AT + (uint64_t)w * GDAP_AREA;
        if (w / (GDAP_THREADS / 32) % GDAP_RANKS != p->group->rank) continue;
        for (int32_t pe = 0; pe < GDAP_RANKS; pe++) {
            if (!CHECK_OK(expar_get(p->group, area, p->heap + offset, sizeof area, pe))) return;
            CHECK(memcmp(area, words_of(p)->models[w][pe], sizeof area) == 0, "warp %d: its area at rank %d differs", w,
                  pe);
        }
    }
}

static void check_adds(poster *p)
{
    uint64_t mine = 0, seen_word = 0, all = 0, *sum = (uint64_t *)(void *)(p->heap + 256);
    for (int w = 0; w < GDAP_WARPS; w++)
        mine += words_of(p)->adds[w];
    CHECK_OK(expar_atomic_add_u64(p->group, sum, mine, 0));
    CHECK_OK(expar_barrier_all(p->group));
    CHECK_OK(expar_get(p->group, &all, sum, sizeof all, 0));
    CHECK_OK(expar_get(p->group, &seen_word, p->heap, sizeof seen_word, 0));
    CHECK(mine > 0 && all == seen_word, "lanes have added %llu, and the word is %llu", (unsigned long long)all,
          (unsigned long long)seen_word);
}

/* The transport says where the queues are, and who rings. */
static bool check_description(const expar_group *group)
{
    char text[512];
    const transport *via = gda_among(group->sym);
    const char *place = getenv("EXPAR_GDA_QUEUE_MEMORY"), *ringer = getenv("EXPAR_GDA_RINGER");
    const char *maps = getenv("FAKE_IOMEMORY");
    const bool host_rings = (ringer && strcmp(ringer, "cpu") == 0) || (maps && strcmp(maps, "0") == 0);
    char expected[128];
    via->ops->describe(via, text, sizeof text);
    snprintf(expected, sizeof expected, "; as many for kernels in %s memory, %s", place ? place : "no",
             host_rings ? "for which a host thread rings" : "which ring");
    return CHECK(strstr(text, expected) != NULL, "'%s' does not say '%s'", text, expected);
}

/* Takes more memory, of so many bytes, in place of what the rank has. The heap grows, and kernels get new keys. */
static bool take_more(poster *p, size_t bytes)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    void *heap = NULL;
    const gda *g = (const gda *)gda_among(p->group->sym);
    const uint64_t chunks = gda_load(&g->segments[TRANSPORT_PINNED].keys.num_chunks);
    options.kind = EXPAR_MEMORY_PINNED;
    options.bytes = bytes;
    options.zeroed = 1;
    if (!CHECK_OK(expar_memory_alloc(p->group, &options, &heap))) return false;
    const uint64_t more = gda_load(&g->segments[TRANSPORT_PINNED].keys.num_chunks);
    p->call.at += (uint64_t)((uint8_t *)heap - p->heap);
    p->heap = heap;
    p->call.heaps[p->group->rank] = heap;
    memset(p->own.host, 0, p->own.bytes);
    return CHECK(more > chunks, "the heap has %llu chunks, as before", (unsigned long long)more);
}

static bool run_programs(poster *p)
{
    if (!launch(p, "gda_programs", random_test_rounds(ROUNDS)) || !await(p)) return false;
    check_warps(p);
    if (CHECK_OK(expar_barrier_all(p->group))) check_areas(p);
    check_adds(p);
    return CHECK_OK(expar_barrier_all(p->group));
}

static void programs(expar_group *group, void *shared)
{
    poster p;
    (void)shared;
    if (begin(&p, group) && check_description(group) && run_programs(&p)) {
        if (launch(&p, "gda_messages", random_test_rounds(ROUNDS)) && await(&p)) check_warps(&p);
        CHECK_OK(expar_barrier_all(group));
        if (take_more(&p, (size_t)64 << 20)) run_programs(&p);
    }
    end(&p);
}

static void test_programs_and_messages(void **state)
{
    (void)state;
    assert_true(
        ranks_run(&(ranks_plan){.kind = kind_of_ranks, .size = GDAP_RANKS, .ranks_per_node = 1}, programs, NULL));
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* Rank 1 sends no message, and leaves the group. Rank 0's kernel ends, by the host. Rank 1 leaves before it frees its
 * stream and memory: a driver may wait with that for all kernels of the GPU, and rank 0's waits for rank 1. */
static void abort_under_kernel(expar_group *group, void *shared)
{
    poster p;
    (void)shared;
    if (!begin(&p, group) || !CHECK_OK(expar_barrier_all(group))) return;
    if (group->rank == 1) {
        CHECK_OK(expar_group_abort(group));
        CHECK_OK(expar_group_destroy(group));
        end(&p);
        return;
    }
    if (launch(&p, "gda_messages", INT32_MAX) && await(&p)) {
        for (int w = 0; w < GDAP_THREADS / 32; w++)
            CHECK(words_of(&p)->wrong[w] == GDAP_STOPPED, "warp %d: check %u, and it waits for rank 1", w,
                  words_of(&p)->wrong[w]);
    }
    end(&p);
    CHECK_OK(expar_group_destroy(group));
}

/* The device of each rank stops answering. The kernels end, and the host's own queues work when it goes on. */
static void hold_under_kernel(expar_group *group, void *shared)
{
    poster p;
    (void)shared;
    if (!begin(&p, group) || !CHECK_OK(expar_barrier_all(group))) return;
    nic *device = ((gda *)(uintptr_t)gda_among(group->sym))->nic;
    int64_t (*patience)(void *, int32_t, int64_t) = group->sym->site.patience;
    group->sym->site.timeout_ms = 300;
    group->sym->site.patience = NULL;
    nic_hold(device, true);
    if (launch(&p, "gda_programs", 1000) && await(&p)) {
        int stopped = 0;
        for (int w = 0; w < GDAP_WARPS; w++)
            stopped += words_of(&p)->wrong[w] != 0;
        CHECK(stopped == OWN_WARPS, "%d warps have noticed", stopped);
    }
    nic_hold(device, false);
    group->sym->site.patience = patience;
    CHECK_OK(expar_barrier_all(group));
    end(&p);
}

static void test_silent_device(void **state)
{
    const char *device = getenv("EXPAR_GDA_NIC");
    (void)state;
    if (device && strcmp(device, "device") == 0) skip(); /* the simulated one is out of reach of this program */
    assert_true(ranks_run(&(ranks_plan){.kind = kind_of_ranks, .size = GDAP_RANKS, .ranks_per_node = 1},
                          hold_under_kernel, NULL));
}

static void test_abort(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = kind_of_ranks, .size = GDAP_RANKS, .ranks_per_node = 1, .ends_itself = true};
    assert_true(ranks_run(&plan, abort_under_kernel, NULL));
}

/* ---- doorbells that kernels cannot write ------------------------------------------------------------------------- */

/* Kernels were to ring, and the GPU's driver maps no registers: pinned memory is rejected by name, each time. */
static void reject(expar_group *group, void *shared)
{
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    void *heap = NULL;
    (void)shared;
    options.kind = EXPAR_MEMORY_PINNED;
    options.bytes = GDAP_HEAP;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_memory_alloc(group, &options, &heap));
    CHECK_TEXT("mlx5_7", "EXPAR_GDA_RINGER=gpu", "cannot be mapped for kernels", "PeerMappingOverride=1",
               "EXPAR_GDA_RINGER=cpu");
    CHECK_STATUS(EXPAR_ERR_STATE, expar_memory_alloc(group, &options, &heap));
    CHECK_TEXT("have failed before");
    CHECK_OK(expar_barrier_all(group));
}

static void test_rejection(void **state)
{
    (void)state;
    assert_true(ranks_run(&(ranks_plan){.kind = kind_of_ranks, .size = GDAP_RANKS, .ranks_per_node = 1}, reject, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest rejections[] = {cmocka_unit_test(test_rejection)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs_and_messages),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_silent_device),
    };
    kind_read(argc, argv);
    if (gpus_count(1) < 1) return GPUS_SKIP;
    if (argc > 1 && strcmp(argv[1], "rejected") == 0) return cmocka_run_group_tests(rejections, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
