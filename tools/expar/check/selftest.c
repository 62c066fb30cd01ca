/* SPDX-License-Identifier: Apache-2.0 */
/* The self-test of a transport, or of the memory of GPUs: puts, gets, atomics and signals with patterns, between all
 * ranks that reach each other. Each rank has a row of slots, one for each other rank, so that nobody disturbs anybody.
 * This rank's own memory is read and written by gets and puts, since it may lie on a GPU. */
#include "check.h"
#include <expar/atomics.h>
#include <expar/info.h>
#include <expar/memory.h>
#include <expar/wait.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* An odd size at an odd place: no whole number of words, lines or pages. */
#define SLOT_BYTES  5003
#define FIRST_BYTE  3
#define SLOT_STRIDE 5120

enum { PATTERN_ZEROS, PATTERN_ONES, PATTERN_STRIPES, PATTERN_COUNT_UP, PATTERN_RANDOM, NUM_PATTERNS };

/* Symmetric memory of the test, for one rank's slots. */
struct test_memory {
    uint64_t *counters;     /* [2]: the sum, and the chain of compare-and-swap */
    uint64_t *signals;      /* [ranks] */
    unsigned char *targets; /* [ranks][SLOT_STRIDE] */
    unsigned char *source;  /* [SLOT_STRIDE], what others get */
};

struct test {
    expar_group *group;
    const struct check_operations *operations;
    struct check_text *wrong;
    struct test_memory memory;
    unsigned char *mine; /* [SLOT_STRIDE], memory of the host */
    int32_t rank, ranks;
    bool on_gpu; /* the test's memory; then any transport counts */
};

const struct check_operations check_library_operations = {.put = expar_put,
                                                          .get = expar_get,
                                                          .fetch_add = expar_atomic_fetch_add_u64,
                                                          .compare_swap = expar_atomic_compare_swap_u64,
                                                          .put_signal = expar_put_signal};

/* Returns byte i of what `from` writes for `to`. */
static unsigned char pattern_byte(int pattern, int32_t from, int32_t to, size_t i)
{
    uint32_t mixed = (uint32_t)i * 2654435761u + (uint32_t)from * 40503u + (uint32_t)to * 65599u + 12345u;
    switch (pattern) {
    case PATTERN_ZEROS:
        return 0;
    case PATTERN_ONES:
        return 0xff;
    case PATTERN_STRIPES:
        return (i + (size_t)from) % 2 ? 0x55 : 0xaa;
    case PATTERN_COUNT_UP:
        return (unsigned char)(i + 7 * (size_t)from + 13 * (size_t)to);
    default:
        mixed ^= mixed >> 15;
        mixed *= 2246822519u;
        return (unsigned char)(mixed >> 24);
    }
}

static void pattern_fill(unsigned char *bytes, int pattern, int32_t from, int32_t to)
{
    for (size_t i = 0; i < SLOT_BYTES; i++)
        bytes[i] = pattern_byte(pattern, from, to, i);
}

/* Compares, and keeps the first difference. */
static void pattern_check(struct test *test, const unsigned char *bytes, int pattern, int32_t from, int32_t to,
                          const char *what)
{
    for (size_t i = 0; i < SLOT_BYTES && !test->wrong->used; i++) {
        const unsigned char expected = pattern_byte(pattern, from, to, i);
        if (bytes[i] != expected)
            check_text_add(test->wrong, "%s from rank %d to rank %d: byte %zu of %d is 0x%02x instead of 0x%02x", what,
                           from, to, i, SLOT_BYTES, bytes[i], expected);
    }
}

/* Keeps an error of a call. Returns EXPAR_OK, so that all ranks go on together; an error of the group is met again. */
static void keep(struct test *test, expar_status status, const char *what, int32_t pe)
{
    if (status != EXPAR_OK && !test->wrong->used)
        check_text_add(test->wrong, "%s with rank %d: %s", what, pe, expar_last_error());
}

static bool reaches(const struct test *test, int32_t from, int32_t to, unsigned operation)
{
    unsigned reach = expar_transport_reach(test->group, 0, from, to);
    for (int32_t i = 1; test->on_gpu && expar_transport_summary(test->group, i); i++)
        reach |= expar_transport_reach(test->group, i, from, to);
    return from != to && (reach & operation) != 0;
}

/* Copies from this rank's own memory of the test to memory of the host. */
static void read_own(struct test *test, void *to, const void *from, size_t bytes)
{
    keep(test, expar_get(test->group, to, from, bytes, test->rank), "get of its own memory", test->rank);
}

static uint64_t own_word(struct test *test, const uint64_t *word)
{
    uint64_t value = 0;
    read_own(test, &value, word, sizeof value);
    return value;
}

static unsigned char *slot_of(const struct test *test, int32_t from)
{
    return test->memory.targets + (size_t)from * SLOT_STRIDE + FIRST_BYTE;
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

static expar_status test_puts(struct test *test, int pattern)
{
    for (int32_t to = 0; to < test->ranks; to++) {
        if (!reaches(test, test->rank, to, EXPAR_REACH_PUT)) continue;
        pattern_fill(test->mine, pattern, test->rank, to);
        keep(test, test->operations->put(test->group, slot_of(test, test->rank), test->mine, SLOT_BYTES, to), "put",
             to);
    }
    expar_status status = expar_barrier_all(test->group);
    for (int32_t from = 0; from < test->ranks; from++) {
        if (!reaches(test, from, test->rank, EXPAR_REACH_PUT)) continue;
        read_own(test, test->mine, slot_of(test, from), SLOT_BYTES);
        pattern_check(test, test->mine, pattern, from, test->rank, "put");
    }
    return status == EXPAR_OK ? expar_barrier_all(test->group) : status;
}

static expar_status test_gets(struct test *test, int pattern)
{
    pattern_fill(test->mine, pattern, test->rank, 0);
    keep(test, expar_put(test->group, test->memory.source + FIRST_BYTE, test->mine, SLOT_BYTES, test->rank),
         "put to its own memory", test->rank);
    expar_status status = expar_barrier_all(test->group);
    for (int32_t from = 0; from < test->ranks && status == EXPAR_OK; from++) {
        if (!reaches(test, test->rank, from, EXPAR_REACH_GET)) continue;
        memset(test->mine, 0x3c, SLOT_BYTES);
        keep(test, test->operations->get(test->group, test->mine, test->memory.source + FIRST_BYTE, SLOT_BYTES, from),
             "get", from);
        pattern_check(test, test->mine, pattern, from, 0, "get");
    }
    return status == EXPAR_OK ? expar_barrier_all(test->group) : status;
}

/* All ranks add to the counters of those they reach. The sum shows lost updates. */
static expar_status test_atomics(struct test *test)
{
    uint64_t expected = 0, old = 0;
    for (int32_t pe = 0; pe < test->ranks; pe++) {
        if (reaches(test, pe, test->rank, EXPAR_REACH_ATOMIC)) expected += 3 * ((uint64_t)pe + 1);
        for (int i = 0; i < 3 && reaches(test, test->rank, pe, EXPAR_REACH_ATOMIC); i++)
            keep(
                test,
                test->operations->fetch_add(test->group, &test->memory.counters[0], (uint64_t)test->rank + 1, pe, &old),
                "fetch-add", pe);
    }
    expar_status status = expar_barrier_all(test->group);
    const uint64_t sum = status == EXPAR_OK ? own_word(test, &test->memory.counters[0]) : expected;
    if (sum != expected && !test->wrong->used)
        check_text_add(test->wrong, "fetch-add to rank %d: the sum is %" PRIu64 " instead of %" PRIu64, test->rank, sum,
                       expected);
    return status;
}

/* One of all ranks that reach a rank wins the word; the others get the winner's value. */
static expar_status test_swaps(struct test *test)
{
    uint64_t old;
    for (int32_t pe = 0; pe < test->ranks; pe++) {
        if (!reaches(test, test->rank, pe, EXPAR_REACH_ATOMIC)) continue;
        old = UINT64_MAX;
        keep(test,
             test->operations->compare_swap(test->group, &test->memory.counters[1], 0, (uint64_t)test->rank + 1, pe,
                                            &old),
             "compare-and-swap", pe);
        if (old > (uint64_t)test->ranks && !test->wrong->used)
            check_text_add(test->wrong, "compare-and-swap with rank %d: it had %" PRIu64 ", which nobody wrote", pe,
                           old);
    }
    expar_status status = expar_barrier_all(test->group);
    bool reached = false;
    for (int32_t pe = 0; pe < test->ranks; pe++)
        reached = reached || reaches(test, pe, test->rank, EXPAR_REACH_ATOMIC);
    const uint64_t winner = status == EXPAR_OK ? own_word(test, &test->memory.counters[1]) : 0;
    if (status == EXPAR_OK && !test->wrong->used && (winner > (uint64_t)test->ranks || (reached && winner == 0)))
        check_text_add(test->wrong, "compare-and-swap to rank %d: the word is %" PRIu64, test->rank, winner);
    return status;
}

/* A rank that has seen the signal sees the data. Its pattern is not the one that the last puts have left. */
static expar_status test_signals(struct test *test)
{
    expar_status status = EXPAR_OK;
    for (int32_t to = 0; to < test->ranks; to++) {
        if (!reaches(test, test->rank, to, EXPAR_REACH_PUT)) continue;
        pattern_fill(test->mine, PATTERN_COUNT_UP, test->rank, to);
        keep(test,
             test->operations->put_signal(test->group, slot_of(test, test->rank), test->mine, SLOT_BYTES,
                                          &test->memory.signals[test->rank], 1, EXPAR_SIGNAL_SET, to),
             "put with signal", to);
    }
    for (int32_t from = 0; from < test->ranks && status == EXPAR_OK; from++) {
        if (!reaches(test, from, test->rank, EXPAR_REACH_PUT)) continue;
        status = expar_signal_wait_until(test->group, &test->memory.signals[from], EXPAR_CMP_EQ, 1, NULL);
        keep(test, status, "the signal of a put", from);
        if (status != EXPAR_OK) continue;
        read_own(test, test->mine, slot_of(test, from), SLOT_BYTES);
        pattern_check(test, test->mine, PATTERN_COUNT_UP, from, test->rank, "put with signal");
    }
    return status == EXPAR_OK ? expar_barrier_all(test->group) : status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static expar_status run_all(struct test *test)
{
    expar_status status = expar_barrier_all(test->group);
    for (int pattern = 0; pattern < NUM_PATTERNS && status == EXPAR_OK; pattern++) {
        status = test_puts(test, pattern);
        if (status == EXPAR_OK) status = test_gets(test, pattern);
    }
    if (status == EXPAR_OK) status = test_atomics(test);
    if (status == EXPAR_OK) status = test_swaps(test);
    if (status == EXPAR_OK) status = test_signals(test);
    return status;
}

/* Divides one block among the parts of the test's memory. */
static void memory_divide(struct test_memory *memory, unsigned char *block, int32_t ranks)
{
    memory->counters = (uint64_t *)(void *)block;
    memory->signals = memory->counters + 2;
    memory->targets = (unsigned char *)(memory->signals + ranks);
    memory->source = memory->targets + (size_t)ranks * SLOT_STRIDE;
}

expar_status check_selftest(expar_group *group, const struct check_operations *operations, int32_t gpu,
                            struct check_text *wrong)
{
    const expar_memory_kind kind = gpu < 0 ? EXPAR_MEMORY_HOST : EXPAR_MEMORY_DEVICE;
    struct test test = {.group = group,
                        .operations = operations,
                        .wrong = wrong,
                        .rank = expar_group_rank(group),
                        .ranks = expar_group_size(group),
                        .on_gpu = gpu >= 0,
                        .mine = calloc(1, SLOT_STRIDE)};
    const size_t words = 2 + (size_t)test.ranks, slots = (size_t)test.ranks + 1;
    void *block = NULL;
    if (!test.mine) return EXPAR_ERR_MEMORY;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = gpu < 0 ? 0 : gpu;
    options.bytes = words * sizeof(uint64_t) + slots * SLOT_STRIDE;
    options.zeroed = 1;
    expar_status status = expar_memory_alloc(group, &options, &block);
    if (status == EXPAR_OK) {
        memory_divide(&test.memory, block, test.ranks);
        status = run_all(&test);
    }
    keep(&test, status, "self-test", test.rank);
    if (status == EXPAR_OK) status = expar_free(group, block);
    free(test.mine);
    return status;
}
