/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks on one GPU, whose kernels post to a software NIC: heaps, queues between both ranks, keys, and what the
 * kernels of tests/cuda/kernels/gda_programs.cu need. Queues and heaps lie in pinned memory or in that of the GPU. */
#ifndef TESTS_LINK_DEVICE_GDA_SCENE_H
#define TESTS_LINK_DEVICE_GDA_SCENE_H

#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/kernels/gda_programs.h"
#include "cuda/test_sources.h"
#include "net/gda/nic/parts.h"
#include "net/gda/space.h"
#include "oracle/random.h"
#include "oracle/unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        expar_status status_of_call = (call);                                                                          \
        if (status_of_call != EXPAR_OK) fail_msg("%s: %s", #call, expar_last_error());                                 \
    } while (0)

#define SCENE_CHUNKS  4
#define SCENE_WAIT_NS (INT64_C(120) * 1000000000)

/* Says what lies where, and who rings. */
typedef struct scene_kind {
    const char *name;
    gda_place queues, heaps;
    gda_ringer ringer;
    bool plain; /* completion queues are not collapsed */
} scene_kind;

/* Words of the host for a queue, in pinned memory. */
typedef struct scene_words {
    _Atomic uint64_t stop, told, wanted, doorbell;
    uint64_t unused[4];
} scene_words;

/* Tables and results in pinned memory, as kernels see them, too. */
typedef struct scene_own {
    scene_words words[GDAP_RANKS][GDAP_RANKS];
    uint64_t ends[SCENE_CHUNKS], remotes[GDAP_RANKS];
    uint32_t lkeys[SCENE_CHUNKS], rkeys[GDAP_RANKS * SCENE_CHUNKS];
    gda_keys keys[GDAP_RANKS];
    uint64_t adds[GDAP_WARPS], seen[GDAP_WARPS];
    unsigned long long times[2];
    uint32_t wrong[GDAP_WARPS];
    uint8_t models[GDAP_WARPS][GDAP_RANKS][GDAP_AREA];
} scene_own;

typedef struct gda_scene {
    scene_kind kind;
    gda_plan plan;
    cuda_device *device;
    cuda_program *program;
    cu_stream stream;
    mem_copier *copier;
    gda_window window;
    nic *nic;
    gda_space heaps[GDAP_RANKS];
    gda_queue_memory queues[GDAP_RANKS][GDAP_RANKS];
    mem_pinned own;
    gda_space state; /* gda_queue [from][to], on the GPU */
    /* the host's view of queues for which it rings */
    gda_queue rung[GDAP_RANKS][GDAP_RANKS];
    pthread_t ringer;
    _Atomic bool ringer_ends;
} gda_scene;

static inline scene_own *scene_host(const gda_scene *s)
{
    return s->own.host;
}

/* Returns the kernels' address of something in *scene_host. */
static inline void *scene_seen(const gda_scene *s, const void *at)
{
    return (void *)(uintptr_t)(s->own.device + (uintptr_t)((const uint8_t *)at - (const uint8_t *)s->own.host));
}

static inline nic_window *scene_window(gda_scene *s, gda_place place)
{
    return place == GDA_PLACE_DEVICE ? &s->window.base : NULL;
}

/* Returns the NIC's address of memory. */
static inline void *scene_base(const gda_space *space, uint64_t offset)
{
    return space->host ? space->host + offset : (uint8_t *)(uintptr_t)space->address + offset;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static inline uint64_t scene_remote(uint32_t rank)
{
    return UINT64_C(0x500000001000) + ((uint64_t)rank << 40);
}

static inline void scene_add_memory(gda_scene *s, uint32_t port, uint32_t key, uint64_t address, const gda_space *space,
                                    uint64_t offset, uint64_t bytes, unsigned access)
{
    const nic_memory m = {.port = port,
                          .key = key,
                          .address = address,
                          .bytes = bytes,
                          .base = scene_base(space, offset),
                          .access = access,
                          .window = scene_window(s, space->place)};
    ASSERT_OK(nic_add_memory(s->nic, &m));
}

static inline void scene_add_heap(gda_scene *s, uint32_t rank)
{
    static const uint64_t ends[SCENE_CHUNKS] = {8192, 20480, 20488, GDAP_HEAP};
    const unsigned all = NIC_REMOTE_READ | NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC;
    scene_own *own = scene_host(s);
    const gda_space *heap = &s->heaps[rank];
    uint64_t begin = 0;
    for (uint32_t c = 0; c < SCENE_CHUNKS; begin = ends[c++]) {
        const uint64_t bytes = ends[c] - begin;
        scene_add_memory(s, rank, 0x1000 + c, heap->address + begin, heap, begin, bytes, NIC_LOCAL_WRITE);
        scene_add_memory(s, rank, 0x2000 + rank * 16 + c, scene_remote(rank) + begin, heap, begin, bytes, all);
        own->ends[c] = ends[c];
        own->lkeys[c] = gda_be32(0x1000 + c);
        own->rkeys[rank * SCENE_CHUNKS + c] = gda_be32(0x2000 + rank * 16 + c);
    }
    own->remotes[rank] = scene_remote(rank);
    own->keys[rank] = (gda_keys){.heap = heap->address,
                                 .remotes = scene_seen(s, own->remotes),
                                 .ends = scene_seen(s, own->ends),
                                 .lkeys = scene_seen(s, own->lkeys),
                                 .rkeys = scene_seen(s, own->rkeys),
                                 .num_pes = GDAP_RANKS,
                                 .stride = SCENE_CHUNKS,
                                 .num_chunks = SCENE_CHUNKS};
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static inline uint32_t scene_qpn(uint32_t from, uint32_t to)
{
    return 0xabc000 + from * 16 + to;
}

static inline void scene_connect(gda_scene *s, uint32_t from, uint32_t to)
{
    const gda_layout at = gda_lay_out(&s->plan);
    const gda_space *space = &s->queues[from][to].main, *records = &s->queues[from][to].records;
    scene_words *words = &scene_host(s)->words[from][to];
    const nic_queue queue = {.qpn = scene_qpn(from, to),
                             .port = from,
                             .peer_port = to,
                             .peer_qpn = scene_qpn(to, from),
                             .depth = s->plan.depth,
                             .first = s->plan.first,
                             .window = scene_window(s, s->plan.place),
                             .record_window = records->bytes ? NULL : scene_window(s, s->plan.place),
                             .blocks = scene_base(space, 0),
                             .record = records->bytes ? (void *)records->host : scene_base(space, at.records),
                             .doorbell = &words->doorbell,
                             .collapsed = s->plan.collapsed,
                             .cq_entries = s->plan.cq_entries,
                             .cqes = scene_base(space, at.cqes),
                             .cq_record = scene_base(space, at.records + GDA_CQ_RECORD_AT)};
    ASSERT_OK(nic_add_queue(s->nic, &queue));
}

static inline void scene_add_queue(gda_scene *s, uint32_t from, uint32_t to)
{
    scene_words *words = &scene_host(s)->words[from][to];
    gda_queue_memory *memory = &s->queues[from][to];
    gda_parts parts;
    gda_queue queue;
    ASSERT_OK(gda_queue_memory_open(&s->plan, memory));
    gda_queue_memory_parts(&s->plan, memory, &parts);
    const uint32_t key = 0x70 + to;
    scene_add_memory(s, from, key, parts.results_address, &memory->main, gda_lay_out(&s->plan).results,
                     (s->plan.num_results + UINT64_C(1)) * 8, NIC_LOCAL_WRITE);
    parts.results_lkey = gda_be32(key);
    parts.doorbell = scene_seen(s, &words->doorbell);
    parts.stop = scene_seen(s, &words->stop);
    parts.told = scene_seen(s, &words->told);
    atomic_store(&words->wanted, s->plan.first);
    if (s->plan.ringer == GDA_RINGER_CPU) parts.wanted = scene_seen(s, &words->wanted);
    gda_queue_start(&queue, &s->plan, &parts, scene_qpn(from, to), (int32_t)to);
    ASSERT_OK(gda_space_write(&s->state, (from * GDAP_RANKS + to) * sizeof queue, &queue, sizeof queue));
    parts.record = parts.host_record;
    parts.doorbell = &words->doorbell;
    parts.wanted = &words->wanted;
    gda_queue_start(&s->rung[from][to], &s->plan, &parts, scene_qpn(from, to), (int32_t)to);
    scene_connect(s, from, to);
}

/* Returns the queue as kernels have left it. */
static inline gda_queue scene_queue(const gda_scene *s, uint32_t from, uint32_t to)
{
    gda_queue queue;
    ASSERT_OK(gda_space_read(&s->state, (from * GDAP_RANKS + to) * sizeof queue, &queue, sizeof queue));
    return queue;
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */

static inline void *scene_ring(void *context)
{
    enum { IDLE_YIELDS = 64 };
    gda_scene *s = context;
    uint64_t rung[GDAP_RANKS][GDAP_RANKS];
    for (int from = 0; from < GDAP_RANKS; from++)
        for (int to = 0; to < GDAP_RANKS; to++)
            rung[from][to] = s->plan.first;
    for (uint32_t idle = 0; !atomic_load(&s->ringer_ends); idle++) {
        for (int from = 0; from < GDAP_RANKS; from++)
            for (int to = 0; to < GDAP_RANKS; to++)
                if (gda_ring_for(&s->rung[from][to], &rung[from][to])) idle = 0;
        if (idle < IDLE_YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

static inline void scene_begin(gda_scene *s, const scene_kind *kind, const gda_plan *plan, const nic_faults *faults)
{
    memset(s, 0, sizeof *s);
    s->kind = *kind;
    s->plan = *plan;
    s->plan.place = kind->queues;
    s->plan.ringer = kind->ringer;
    s->plan.collapsed = !kind->plain;
    s->plan.scope = GDA_SCOPE_SYSTEM;
    ASSERT_OK(gda_plan_check(&s->plan));
    ASSERT_OK(cuda_device_open(0, &s->device));
    s->plan.gpu = s->device;
    ASSERT_OK(cuda_enter(s->device));
    ASSERT_OK(CUDA_CALL(StreamCreate, &s->stream, CU_STREAM_NON_BLOCKING));
    ASSERT_OK(mem_copier_create(0, NULL, &s->copier));
    s->window = gda_window_open(s->copier);
    ASSERT_OK(nic_open(faults, &s->nic));
    ASSERT_OK(mem_pinned_create(sizeof(scene_own), &s->own));
    ASSERT_OK(gda_space_open(GDA_PLACE_DEVICE, s->device, sizeof s->rung, &s->state));
    for (uint32_t rank = 0; rank < GDAP_RANKS; rank++) {
        ASSERT_OK(gda_space_open(kind->heaps, s->device, GDAP_HEAP, &s->heaps[rank]));
        scene_add_heap(s, rank);
    }
    for (uint32_t from = 0; from < GDAP_RANKS; from++)
        for (uint32_t to = 0; to < GDAP_RANKS; to++)
            scene_add_queue(s, from, to);
    ASSERT_OK(nic_start(s->nic, 0));
    if (kind->ringer == GDA_RINGER_CPU) assert_int_equal(pthread_create(&s->ringer, NULL, scene_ring, s), 0);
}

static inline void scene_end(gda_scene *s)
{
    atomic_store(&s->ringer_ends, true);
    if (s->kind.ringer == GDA_RINGER_CPU) pthread_join(s->ringer, NULL);
    nic_close(s->nic);
    for (int from = 0; from < GDAP_RANKS; from++) {
        for (int to = 0; to < GDAP_RANKS; to++)
            gda_queue_memory_close(&s->queues[from][to]);
        gda_space_close(&s->heaps[from]);
    }
    gda_space_close(&s->state);
    mem_copier_destroy(s->copier);
    mem_pinned_free(&s->own);
    cuda_driver()->StreamDestroy(s->stream);
    cuda_leave();
    cuda_device_close(s->device);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static inline gdap_call scene_call(const gda_scene *s, int32_t rounds, uint64_t seed)
{
    scene_own *own = scene_host(s);
    gdap_call call = {.queues = (gda_queue *)(uintptr_t)s->state.address,
                      .keys = scene_seen(s, own->keys),
                      .models = scene_seen(s, own->models),
                      .adds = scene_seen(s, own->adds),
                      .wrong = scene_seen(s, own->wrong),
                      .seen = scene_seen(s, own->seen),
                      .seed = seed,
                      .rounds = rounds,
                      .times = scene_seen(s, own->times)};
    for (int rank = 0; rank < GDAP_RANKS; rank++)
        call.heaps[rank] = (uint8_t *)(uintptr_t)s->heaps[rank].address;
    return call;
}

static inline void scene_launch_call(const gda_scene *s, const char *kernel, gdap_call *call)
{
    cuda_launch launch = {.blocks = GDAP_BLOCKS, .threads = GDAP_THREADS, .stream = s->stream};
    ASSERT_OK(cuda_program_kernel(s->program, kernel, 0, &launch.function));
    ASSERT_OK(cuda_launch_kernel(&launch, (void *[]){call}));
}

static inline void scene_launch(const gda_scene *s, const char *kernel, int32_t rounds, uint64_t seed)
{
    gdap_call call = scene_call(s, rounds, seed);
    scene_launch_call(s, kernel, &call);
}

static inline expar_status scene_load(cuda_device *device, int64_t seed, cuda_program **out)
{
    const cuda_macro late = {"EXPAR_DELAYS", seed};
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/gda_programs.cu"))
            return cuda_program_make(device, &test_sources[i], &late, seed ? 1 : 0, out);
    return error_set(EXPAR_ERR_ARGUMENT, "the tests have no kernel source gda_programs.cu");
}

/* The host gives all queues up: kernels end. */
static inline void scene_stop(const gda_scene *s)
{
    for (int from = 0; from < GDAP_RANKS; from++)
        for (int to = 0; to < GDAP_RANKS; to++)
            atomic_store(&scene_host(s)->words[from][to].stop, gda_failure(GDA_FAILED_BY_HOST, 0, 0, 0));
}

/* Waits for the kernel. After the deadline the host gives the queues up, and the test fails. */
static inline void scene_await(const gda_scene *s)
{
    cuda_mark *mark;
    bool passed = false, late = false;
    const int64_t since_ns = clock_ns();
    ASSERT_OK(cuda_mark_make(s->stream, &mark));
    for (;;) {
        ASSERT_OK(cuda_mark_query(mark, &passed));
        if (passed) break;
        if (!late && clock_ns() - since_ns > SCENE_WAIT_NS) {
            late = true;
            scene_stop(s);
        }
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    cuda_mark_give(mark);
    assert_false(late);
}

/* Fails if a warp's check has failed. */
static inline void scene_check(const gda_scene *s)
{
    const scene_own *own = scene_host(s);
    int failed = 0;
    for (int w = 0; w < GDAP_WARPS; w++) {
        if (own->wrong[w]) printf("%s: warp %d: check %u failed\n", s->kind.name, w, own->wrong[w]);
        failed += own->wrong[w] != 0;
    }
    for (uint32_t from = 0; failed && from < GDAP_RANKS; from++)
        for (uint32_t to = 0; to < GDAP_RANKS; to++) {
            char text[256];
            const gda_queue queue = scene_queue(s, from, to);
            gda_failure_text(atomic_load(&queue.error), (int32_t)to, text, sizeof text);
            if (atomic_load(&queue.error)) printf("%s: queue of rank %u: %s\n", s->kind.name, from, text);
        }
    assert_int_equal(failed, 0);
}

#endif
