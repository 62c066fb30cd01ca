/* SPDX-License-Identifier: Apache-2.0 */
/* Warps of the simulated GPU post to the software NIC: transfers that are cut at the borders of chunks, posts of some
 * lanes, atomics with results. Several warps and blocks share a queue, whose indices wrap; a queue that fails ends all
 * calls. */
#include "link/device/ptx.h"

/* Lane 0 reserves, commits and gives back for all. The other lanes are late between their steps, so that lane 0 runs
   ahead where it does not meet them. */
#define GDA_BETWEEN_STEPS(queue) come_late()
static void come_late(void)
{
    for (uint32_t i = 0; i < 70 && threadIdx.x % 32; i++)
        simt_poll();
}
#include "link/device/gda.h"

#include "cuda/simt/launch.h"
#include "net/gda/nic/parts.h"
#include "net/gda/world.h"

#define BLOCKS  2
#define WARPS   3 /* of a block */
#define NUMBERS (BLOCKS * WARPS)
#define ROUNDS  12
#define AREA    9000 /* bytes of each warp in the heaps */
#define COUNTER 60000

static const gda_plan plans[] = {
    {.depth = 64,
     .cq_entries = 64,
     .batch = 8,
     .most = 7,
     .num_results = 128,
     .scope = GDA_SCOPE_SYSTEM,
     .collapsed = true,
     .first = 0xffe0},
    {.depth = 256,
     .cq_entries = 256,
     .batch = 16,
     .most = 96,
     .num_results = 32,
     .scope = GDA_SCOPE_SYSTEM,
     .flushes = true,
     .first = 0xff00},
};

typedef struct trial {
    world w;
    gda_map map;
    _Atomic int wrong; /* checks that failed */
    _Atomic uint64_t seen[BLOCKS * WARPS * 32 * ROUNDS];
} trial;

static uint32_t warp_number(void)
{
    return blockIdx.x * WARPS + threadIdx.x / 32;
}

static void expect(trial *t, int good)
{
    if (!good) atomic_fetch_add(&t->wrong, 1);
}

/* Every warp puts its area to rank 1, with a signal after the data. */
static void run_transfers(trial *t, gda_queue *queue, const gda_keys *keys)
{
    world_rank *own = &t->w.ranks[0];
    const uint64_t begin = (uint64_t)warp_number() * AREA / 2, bytes = AREA / 2 - 64;
    uint8_t *source = own->heap + begin;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        const uint64_t size = round == ROUNDS ? 0 : bytes - round * 17;
        gda_request signal = {.form = GDA_WRITE_INLINE, .bytes = 8, .data = {(uint32_t)round}};
        uint64_t end = 0;
        for (uint64_t i = threadIdx.x % 32; i < bytes; i += 32)
            source[i] = (uint8_t)(round * 7 + i + begin);
        __syncwarp();
        world_aim(&t->w, &signal, 1, 59000 + 8 * (uint64_t)warp_number());
        expect(t, gda_transfer_warp(queue, keys, GDA_WRITE, begin, (uintptr_t)source, size, &signal, &end));
        expect(t, gda_quiet_warp(queue));
        expect(t, memcmp(t->w.ranks[1].heap + begin, source, size) == 0);
        expect(t, *(uint64_t *)(void *)(t->w.ranks[1].heap + 59000 + 8 * (uint64_t)warp_number()) == round);
        __syncwarp();
    }
}

/* Some lanes write a word each; all lanes add to one counter, and no two get the same old word. */
static void run_posts(trial *t, gda_queue *queue)
{
    const uint64_t offset = 40000 + ((uint64_t)warp_number() * 32 + threadIdx.x % 32) * 8;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const int wants = (threadIdx.x % 32) % (round % 4 + 1) == 0;
        gda_request write = {.form = GDA_WRITE_INLINE, .bytes = 4, .data = {round * 1000 + threadIdx.x}};
        gda_request add = {.form = round % 2 ? GDA_ADD_64 : GDA_SWAP_MASKED_64, .operand = 1};
        uint64_t end = 0, old = 0;
        world_aim(&t->w, &write, 1, offset);
        expect(t, gda_post_warp(queue, wants, &write, &end) && gda_poll_warp(queue, end));
        if (wants) expect(t, *(uint32_t *)(void *)(t->w.ranks[1].heap + offset) == round * 1000 + threadIdx.x);
        world_aim(&t->w, &add, 1, round % 2 ? COUNTER : offset);
        add.swap_mask = UINT64_MAX;
        expect(t, gda_fetch_warp(queue, wants, &add, &old));
        if (wants && round % 2) expect(t, old < sizeof t->seen / 8 && atomic_fetch_add(&t->seen[old], 1) == 0);
        if (wants && round % 2 == 0) expect(t, old == round * 1000 + threadIdx.x);
    }
}

static void all_kernel(const void *arguments)
{
    trial *t = *(trial *const *)arguments;
    gda_queue *queue = &t->w.ranks[0].queues[1].queue;
    run_transfers(t, queue, &t->w.ranks[0].keys);
    run_posts(t, queue);
}

static void test_warps(void **state)
{
    (void)state;
    static const nic_faults faults = {
        .seed = 3, .delay_turns = 2, .drop_one_in = 17, .coalesce_one_in = 3, .rnr_retries = 3};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        trial *t = calloc(1, sizeof *t);
        assert_non_null(t);
        world_begin(&t->w, &plans[i], &faults, WORLD_ACCESS);
        assert_int_equal(nic_start(t->w.nic, 0), EXPAR_OK);
        const simt_launch launch = {.kernel = all_kernel, .arguments = &t, .blocks = BLOCKS, .threads = WARPS * 32};
        simt_delay(5 + (uint32_t)i);
        simt_trial(&launch);
        assert_int_equal(t->wrong, 0);
        uint64_t adds = 0;
        for (uint32_t round = 1; round < ROUNDS; round += 2)
            for (uint32_t lane = 0; lane < 32; lane++)
                adds += lane % (round % 4 + 1) == 0;
        assert_int_equal(*(uint64_t *)(void *)(t->w.ranks[1].heap + COUNTER), adds * NUMBERS);
        world_end(&t->w);
        free(t);
    }
}

/* Memory that is not registered, and a wrong key: every lane of every warp learns of it, and nobody waits for ever. */
static void failing_kernel(const void *arguments)
{
    trial *t = *(trial *const *)arguments;
    gda_queue *queue = &t->w.ranks[0].queues[1].queue;
    gda_request wrong = {.form = GDA_ADD_64, .operand = 1, .rkey = 0x99};
    uint64_t end = 0, old = 0;
    expect(t, !gda_transfer_warp(queue, &t->w.ranks[0].keys, GDA_WRITE, WORLD_HEAP_BYTES - 8,
                                 (uintptr_t)t->w.ranks[0].heap, 16, NULL, &end));
    expect(t, !gda_error(queue) || warp_number() > 0);
    gda_fetch_warp(queue, 1, &wrong, &old);
    expect(t,
           !gda_quiet_warp(queue) && !gda_post_warp(queue, 1, &wrong, &end) && !gda_poll_warp(queue, UINT64_MAX / 2));
    expect(t,
           !gda_transfer_warp(queue, &t->w.ranks[0].keys, GDA_WRITE, 0, (uintptr_t)t->w.ranks[0].heap, 16, NULL, &end));
}

static void test_failures(void **state)
{
    (void)state;
    static const nic_faults none = {.rnr_retries = 3};
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    world_begin(&t->w, &plans[1], &none, WORLD_ACCESS);
    assert_int_equal(nic_start(t->w.nic, 0), EXPAR_OK);
    const simt_launch launch = {.kernel = failing_kernel, .arguments = &t, .blocks = BLOCKS, .threads = WARPS * 32};
    simt_trial(&launch);
    assert_int_equal(t->wrong, 0);
    assert_int_equal(gda_failure_syndrome(t->w.ranks[0].queues[1].queue.error), GDA_SYNDROME_REMOTE_ACCESS);
    world_end(&t->w);
    free(t);
}

/* Which queue: by a number, or by the place of the thread. */
static void choosing_kernel(const void *arguments)
{
    trial *t = *(trial *const *)arguments;
    const uint32_t warp = warp_number(), thread = blockIdx.x * WARPS * 32 + threadIdx.x;
    expect(t, gda_pick(7, 4) == 3 && gda_pick(3, 1) == 0);
    expect(t, gda_pick_here(GDA_BY_BLOCK, 8) == blockIdx.x && gda_pick_here(GDA_BY_BLOCK, 1) == 0);
    expect(t, gda_pick_here(GDA_BY_WARP, 4) == warp % 4 && gda_pick_here(GDA_BY_THREAD, 40) == thread % 40);
}

static void test_choice(void **state)
{
    (void)state;
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    const simt_launch launch = {.kernel = choosing_kernel, .arguments = &t, .blocks = BLOCKS, .threads = WARPS * 32};
    simt_trial(&launch);
    assert_int_equal(t->wrong, 0);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warps),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
