/* SPDX-License-Identifier: Apache-2.0 */
/* fabric on a fake provider (fake/fake.h). Traffic classes reach it, the self-test finds faults, quirks are worked
 * around, and its operations are counted. Ranks are threads, so that all share its controls. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "net/fake/fake.h"
#include <expar/info.h>

#include <dlfcn.h>
#include <rdma/fabric.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

static fake_controls *controls;

/* The library has been opened by a group before, as expar wants it. */
static int find_controls(void **state)
{
    expar_group *group;
    fake_controls_function *controls_of;
    (void)state;
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    unsetenv("FI_OFI_RXM_BUFFER_SIZE");
    if (expar_group_create_threads(1, NULL, &group) != EXPAR_OK) return 1;
    expar_group_destroy(group);
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *address = library ? dlsym(library, "fake_controls_of") : NULL;
    if (!address) return 1;
    memcpy(&controls_of, &address, sizeof controls_of);
    controls = controls_of();
    return 0;
}

static int clear(void **state)
{
    (void)state;
    atomic_store(&controls->classes, FAKE_CLASSES_REAL);
    atomic_store(&controls->fault, FAKE_NO_FAULT);
    atomic_store(&controls->one_endpoint, 0);
    atomic_store(&controls->local_memory, 0);
    atomic_store(&controls->locks, 0);
    atomic_store(&controls->key_bytes, 0);
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    unsetenv("EXPAR_FABRIC_TRAFFIC_CLASS");
    unsetenv("EXPAR_FABRIC_CHANNELS");
    unsetenv("FAKE_PROVIDER");
    return 0;
}

static void order_fault(fake_fault fault, int32_t faults)
{
    atomic_store(&controls->faults, faults);
    atomic_store(&controls->fault, (int32_t)fault);
}

/* libfabric reads it when it is opened. */
static void test_bounce_buffers_are_small(void **state)
{
    const char *set = getenv("FI_OFI_RXM_BUFFER_SIZE");
    (void)state;
    assert_non_null(set);
    assert_string_equal(set, "1024");
}

/* ---- traffic classes --------------------------------------------------------------------------------------------- */

/* How a group's network describes itself. */
static void describe(char *text, size_t bytes)
{
    expar_group *group = NULL;
    assert_int_equal(expar_group_create_threads(1, NULL, &group), EXPAR_OK);
    assert_true(expar_transport_describe(group, 0, NULL, text, bytes));
    assert_int_equal(expar_group_destroy(group), EXPAR_OK);
}

static void test_classes_reach_the_provider(void **state)
{
    static const struct {
        const char *text;
        uint32_t value;
    } classes[] = {
        {"best-effort", FI_TC_BEST_EFFORT},
        {"low-latency", FI_TC_LOW_LATENCY},
        {"dedicated", FI_TC_DEDICATED_ACCESS},
        {"bulk", FI_TC_BULK_DATA},
        {"scavenger", FI_TC_SCAVENGER},
        {"control", FI_TC_NETWORK_CTRL},
        {"0", FI_TC_DSCP},
        {"46", FI_TC_DSCP | 46},
        {"63", FI_TC_DSCP | 63},
    };
    (void)state;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        char text[512], expected[64];
        bool own = i % 2 == 0; /* the endpoint's, or its domain's */
        atomic_store(&controls->classes, own ? FAKE_CLASSES_TAKEN : FAKE_CLASSES_DOMAIN);
        setenv("EXPAR_FABRIC_TRAFFIC_CLASS", classes[i].text, 1);
        describe(text, sizeof text);
        snprintf(expected, sizeof expected, ", traffic class %s; self-test", classes[i].text);
        assert_non_null(strstr(text, expected));
        assert_int_equal(own ? controls->endpoint_class : controls->domain_class, classes[i].value);
    }
}

static void test_bad_classes(void **state)
{
    static const char *const bad[] = {"fast", "64", "-1", "Bulk", "bulk ", "4x"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char expected[64];
        expar_group *group = NULL;
        setenv("EXPAR_FABRIC_TRAFFIC_CLASS", bad[i], 1);
        assert_int_equal(expar_group_create_threads(1, NULL, &group), EXPAR_ERR_ARGUMENT);
        snprintf(expected, sizeof expected, "EXPAR_FABRIC_TRAFFIC_CLASS=%s: expected best-effort", bad[i]);
        assert_non_null(strstr(expar_last_error(), expected));
        assert_null(group);
    }
}

/* Output on stderr meanwhile goes to a file. */
static int begin_listening(FILE *heard)
{
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    assert_true(before >= 0 && dup2(fileno(heard), STDERR_FILENO) >= 0);
    return before;
}

static int end_listening(FILE *heard, int before, const char *word)
{
    char line[512];
    int count = 0;
    fflush(stderr);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    rewind(heard);
    while (fgets(line, sizeof line, heard))
        count += strstr(line, word) != NULL;
    fclose(heard);
    return count;
}

static void nothing(expar_group *group, void *shared)
{
    (void)group;
    (void)shared;
}

static void test_dropped_classes_are_told(void **state)
{
    static const fake_classes ways[] = {FAKE_CLASSES_IGNORED, FAKE_CLASSES_REJECTED};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char text[512];
        FILE *heard = tmpfile();
        assert_non_null(heard);
        atomic_store(&controls->classes, (int32_t)ways[i]);
        setenv("EXPAR_FABRIC_TRAFFIC_CLASS", "bulk", 1);
        describe(text, sizeof text);
        assert_non_null(strstr(text, ", without traffic classes (bulk dropped); self-test"));
        assert_int_equal(controls->endpoint_class, FI_TC_UNSPEC);
        int before = begin_listening(heard);
        bool formed = ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 2}, nothing, NULL);
        assert_int_equal(end_listening(heard, before, "EXPAR_FABRIC_TRAFFIC_CLASS=bulk is dropped"), 1);
        assert_true(formed);
    }
}

/* ---- self-test --------------------------------------------------------------------------------------------------- */

static const struct {
    fake_fault fault;
    const char *text;
} faults[] = {
    {FAKE_LOSE_PUT, "what was put and had been delivered was not there to be got"},
    {FAKE_WRONG_ADD, "an atomic operation gave a wrong value"},
};

/* Asked for by name: no group. That of one rank alone is the end of it for all. */
static void test_a_provider_that_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        expar_group *groups[3] = {NULL};
        order_fault(faults[i].fault, 1000);
        assert_int_equal(expar_group_create_threads(3, NULL, groups), EXPAR_ERR_UNSUPPORTED);
        assert_non_null(strstr(expar_last_error(), "the self-test of provider tcp;ofi_rxm failed"));
        assert_non_null(strstr(expar_last_error(), faults[i].text));
        order_fault(faults[i].fault, 1);
        assert_int_equal(expar_group_create_threads(3, NULL, groups), EXPAR_ERR_UNSUPPORTED);
        assert_non_null(strstr(expar_last_error(), "the self-test of "));
        assert_null(groups[0]);
        /* And without any it is there again. */
        assert_true(ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 3}, nothing, NULL));
    }
}

/* Not asked for: ranks of other nodes are not reached, and the error says why. */
static void near_alone(expar_group *group, void *shared)
{
    uint64_t *box, local = 1;
    int32_t me = expar_group_rank(group);
    CHECK_OK(expar_calloc(group, 1, sizeof *box, (void **)&box));
    CHECK(strstr(expar_transport_missing(group), shared), "missing: %s", expar_transport_missing(group));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, box, &local, sizeof local, (me + 2) % 4));
    CHECK_TEXT("another node", "the self-test of provider tcp;ofi_rxm failed", shared);
    CHECK_OK(expar_put(group, box, &local, sizeof local, me ^ 1));
    CHECK_OK(expar_barrier_all(group));
    CHECK(*box == 1, "the neighbour's put is missing");
    CHECK_OK(expar_free(group, box));
}

static void test_a_group_without_it(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 4, .ranks_per_node = 2};
    (void)state;
    unsetenv("EXPAR_TRANSPORTS");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        order_fault(faults[i].fault, 1000);
        assert_true(ranks_run(&plan, near_alone, (void *)(uintptr_t)faults[i].text));
    }
}

/* Each to each. */
static void put_around(expar_group *group, void *shared)
{
    uint64_t *box, me = (uint64_t)expar_group_rank(group), size = (uint64_t)expar_group_size(group);
    (void)shared;
    CHECK_OK(expar_calloc(group, size, sizeof *box, (void **)&box));
    for (int32_t pe = 0; pe < (int32_t)size; pe++)
        CHECK_OK(expar_p_u64(group, &box[me], me + 1, pe));
    CHECK_OK(expar_barrier_all(group));
    for (uint64_t r = 0; r < size; r++)
        CHECK(box[r] == r + 1, "word %llu is %llu", (unsigned long long)r, (unsigned long long)box[r]);
    CHECK_OK(expar_free(group, box));
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

#define LOCK_BYTES ((size_t)4 << 20)

/* All say whose limit it is, and the group goes on. */
static void take_too_much(expar_group *group, void *shared)
{
    char host[64] = "";
    void *large = NULL;
    (void)shared;
    gethostname(host, sizeof host - 1);
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_malloc(group, 4 * LOCK_BYTES, &large));
    CHECK_TEXT(host, "lets a process lock 4194304 bytes", "ulimit -l");
    put_around(group, NULL);
}

static void test_locked_memory(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 3};
    struct rlimit before, small;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    small = (struct rlimit){.rlim_cur = LOCK_BYTES, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    atomic_store(&controls->locks, 1);
    const bool passed = ranks_run(&plan, take_too_much, NULL);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_true(passed);
}

/* ---- quirks ------------------------------------------------------------------------------------------------------ */

/* Memory that is registered for one endpoint alone is reached through that one, whatever was asked for. */
static void test_one_endpoint(void **state)
{
    char text[512];
    FILE *heard = tmpfile();
    (void)state;
    assert_non_null(heard);
    setenv("EXPAR_FABRIC_CHANNELS", "3", 1);
    describe(text, sizeof text);
    assert_non_null(strstr(text, ", 3 channels"));
    atomic_store(&controls->one_endpoint, 1);
    int before = begin_listening(heard);
    describe(text, sizeof text);
    assert_int_equal(end_listening(heard, before, "EXPAR_FABRIC_CHANNELS=3"), 1);
    assert_non_null(strstr(text, ", 1 channel;"));
    assert_true(ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 3}, put_around, NULL));
}

static int32_t number_of(const expar_group *group, const char *wanted)
{
    const char *name;
    for (int32_t i = 0; expar_transport_describe(group, i, &name, NULL, 0); i++)
        if (!strcmp(name, wanted)) return i;
    return -1;
}

/* A provider whose atomics must not meet a processor's carries all atomics, inside a node too, where loads and stores
   carry the rest. */
static void atomics_by_network(expar_group *group, void *shared)
{
    const unsigned rma = EXPAR_REACH_PUT | EXPAR_REACH_GET;
    int32_t size = expar_group_size(group), me = expar_group_rank(group);
    int32_t fabric = number_of(group, "fabric"), p2p = number_of(group, "p2p");
    uint64_t *word, sum = 0;
    (void)shared;
    CHECK_OK(expar_calloc(group, 1, sizeof *word, (void **)&word));
    for (int32_t pe = 0; pe < size; pe++) {
        bool near = pe / 2 == me / 2;
        CHECK(expar_transport_selected(group, fabric, pe) == (near ? EXPAR_REACH_ATOMIC : rma | EXPAR_REACH_ATOMIC),
              "fabric to %d", pe);
        CHECK(expar_transport_selected(group, p2p, pe) == (near ? rma | EXPAR_REACH_MAP : 0u), "p2p to %d", pe);
    }
    uint64_t before = atomic_load(&controls->atomics);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(expar_atomic_fetch_add_u64(group, word, i, me ^ 1, &sum));
    CHECK(atomic_load(&controls->atomics) - before >= 100, "atomics on the neighbour did not go by the network");
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_atomic_fetch_u64(group, word, me, &sum));
    CHECK(sum == 4950, "sum %llu", (unsigned long long)sum);
    CHECK_OK(expar_free(group, word));
}

static void test_incoherent_atomics(void **state)
{
    (void)state;
    unsetenv("EXPAR_TRANSPORTS");
    setenv("FAKE_PROVIDER", "cxi", 1);
    assert_true(
        ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 4, .ranks_per_node = 2}, atomics_by_network, NULL));
}

/* Rank 0 puts so often to rank 1. */
enum { SMALL = 40, LARGE_BYTES = 100000, PUTS = SMALL + 3 };

static void put_all(expar_group *group, uint8_t *box, uint64_t *signal)
{
    uint8_t *source = malloc(LARGE_BYTES);
    memset(source, 7, LARGE_BYTES);
    for (size_t i = 0; i < SMALL; i++)
        CHECK_OK(expar_put_nbi(group, box + 3 * i, source, 3, 1));
    CHECK_OK(expar_put(group, box, source, LARGE_BYTES, 1));
    CHECK_OK(expar_put_signal_nbi(group, box, source, 16, signal, 1, EXPAR_SIGNAL_ADD, 1));
    CHECK_OK(expar_put_signal(group, box, source, 16, signal, 1, EXPAR_SIGNAL_ADD, 1));
    CHECK_OK(expar_quiet(group));
    free(source);
}

static void put_and_count(expar_group *group, void *shared)
{
    const bool *confirms = shared;
    uint8_t *box;
    uint64_t *signal;
    CHECK_OK(expar_calloc(group, 1, LARGE_BYTES, (void **)&box));
    CHECK_OK(expar_calloc(group, 1, sizeof *signal, (void **)&signal));
    if (expar_group_rank(group) == 0) {
        uint64_t puts = atomic_load(&controls->puts), gets = atomic_load(&controls->gets);
        uint64_t get_bytes = atomic_load(&controls->get_bytes);
        put_all(group, box, signal);
        puts = atomic_load(&controls->puts) - puts;
        gets = atomic_load(&controls->gets) - gets;
        get_bytes = atomic_load(&controls->get_bytes) - get_bytes;
        CHECK(puts == PUTS, "%llu puts", (unsigned long long)puts);
        CHECK(gets == (*confirms ? puts : 0), "%llu gets", (unsigned long long)gets);
        CHECK(get_bytes == (*confirms ? SMALL * 3 + 3 * 8 : 0), "of %llu bytes", (unsigned long long)get_bytes);
    } else {
        CHECK_OK(expar_signal_wait_until(group, signal, EXPAR_CMP_EQ, 2, NULL));
        CHECK(box[0] == 7 && box[15] == 7 && box[LARGE_BYTES - 1] == 7, "data behind its signal");
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_free(group, signal));
    CHECK_OK(expar_free(group, box));
}

/* Where a provider is known to tell too early that a put has been delivered, it is asked for what was put. */
static void test_early_puts_are_confirmed(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 2};
    bool confirms = false;
    (void)state;
    assert_true(ranks_run(&plan, put_and_count, &confirms));
    confirms = true;
    setenv("FAKE_PROVIDER", "verbs;ofi_rxm", 1);
    order_fault(FAKE_EARLY_PUT, 1000);
    assert_true(ranks_run(&plan, put_and_count, &confirms));
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

/* The library's counts of posted operations equal those of the provider. One rank, alone with itself. */
static void count_both(expar_group *group, void *shared)
{
    expar_network_stats now = EXPAR_NETWORK_STATS_INIT;
    uint64_t puts = atomic_load(&controls->puts), put_bytes = atomic_load(&controls->put_bytes);
    uint64_t gets = atomic_load(&controls->gets), get_bytes = atomic_load(&controls->get_bytes);
    uint64_t atomics = atomic_load(&controls->atomics), *words, old;
    (void)shared;
    CHECK_OK(expar_network_get_stats(group, &now));
    CHECK(now.puts + now.gets + now.atomics == 0, "the self-test is counted");
    CHECK_OK(expar_calloc(group, 1000, sizeof *words, (void **)&words));
    for (uint64_t i = 0; i < 20; i++) {
        CHECK_OK(expar_put(group, words, words + 500, 8 * i, 0));
        CHECK_OK(expar_get(group, words + 500, words, 4 * i, 0));
        CHECK_OK(expar_atomic_fetch_inc_u64(group, words, 0, &old));
    }
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_network_get_stats(group, &now));
    CHECK(now.puts == controls->puts - puts && now.put_bytes == controls->put_bytes - put_bytes, "puts");
    CHECK(now.gets == controls->gets - gets && now.get_bytes == controls->get_bytes - get_bytes, "gets");
    CHECK(now.atomics == controls->atomics - atomics && now.atomics >= 20 && now.atomic_bytes == 8 * now.atomics,
          "atomics");
    CHECK(now.put_bytes == 8 * 190 && now.get_bytes == 4 * 190, "bytes");
    CHECK_OK(expar_free(group, words));
}

static void test_counts_are_the_providers(void **state)
{
    (void)state;
    assert_true(ranks_run(&(ranks_plan){.kind = RANKS_THREADS, .size = 1}, count_both, NULL));
}

/* Keys have as many random bits as the provider takes; where it chooses them itself, none is asked for. */
/* Puts data from there, and gets them back. Returns how many operations of the provider that took. */
static uint64_t move_around(expar_group *group, uint8_t *block, uint8_t *data, size_t bytes)
{
    const uint64_t before = atomic_load(&controls->puts) + atomic_load(&controls->gets);
    memset(data, 3, bytes);
    CHECK_OK(expar_put(group, block, data, bytes, 0));
    CHECK_OK(expar_quiet(group));
    memset(data, 0, bytes);
    CHECK_OK(expar_get(group, data, block, bytes, 0));
    for (size_t i = 0; i < bytes; i++)
        if (!CHECK(data[i] == 3, "byte %zu is %d", i, data[i])) break;
    return atomic_load(&controls->puts) + atomic_load(&controls->gets) - before;
}

/* One rank, alone with itself. Registered memory goes as a whole, other memory in pieces of the stage. */
static void put_registered(expar_group *group, void *shared)
{
    enum { BYTES = 1 << 20 };
    void *block = NULL;
    uint8_t *data = malloc(BYTES);
    (void)shared;
    CHECK_OK(expar_malloc(group, BYTES, &block));
    const uint64_t staged = move_around(group, block, data, BYTES);
    CHECK(staged > 2, "%llu operations with memory that is not registered", (unsigned long long)staged);
    CHECK_OK(expar_register(group, data, BYTES));
    CHECK_OK(expar_register(group, data, BYTES));
    CHECK_OK(expar_unregister(group, data));
    const uint64_t direct = move_around(group, block, data, BYTES);
    CHECK(direct == 2, "%llu operations with registered memory", (unsigned long long)direct);
    CHECK(move_around(group, block, data + 5, BYTES / 2) == 2, "a part of registered memory is copied");
    CHECK_OK(expar_unregister(group, data));
    CHECK(move_around(group, block, data, BYTES) == staged, "memory that is registered no more is not copied");
    CHECK_OK(expar_free(group, block));
    free(data);
}

static void test_registered_memory_is_not_copied(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1};
    atomic_store(&controls->local_memory, 1);
    assert_true(ranks_run(&plan, put_registered, NULL));
}

static void test_keys_fit_the_provider(void **state)
{
    (void)state;
    for (int32_t bytes = 8; bytes >= 1; bytes /= 2) {
        char text[512];
        uint64_t seen = 0;
        atomic_store(&controls->key_bytes, bytes);
        for (int i = 0; i < 16; i++) {
            describe(text, sizeof text);
            seen |= atomic_load(&controls->key);
        }
        /* In 16 random keys the upper half is not always 0. */
        assert_int_equal(bytes < 8 ? seen >> (8 * bytes) : 0, 0);
        assert_int_not_equal(seen >> (4 * bytes), 0);
    }
}

static void test_keys_of_the_providers_choice(void **state)
{
    expar_group *group = NULL;
    (void)state;
    atomic_store(&controls->key_bytes, -1);
    atomic_store(&controls->key, 7);
    expar_group_create_threads(1, NULL, &group);
    if (group) expar_group_destroy(group);
    assert_int_equal(atomic_load(&controls->key), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounce_buffers_are_small),
        cmocka_unit_test_setup(test_classes_reach_the_provider, clear),
        cmocka_unit_test_setup(test_bad_classes, clear),
        cmocka_unit_test_setup(test_dropped_classes_are_told, clear),
        cmocka_unit_test_setup(test_a_provider_that_fails, clear),
        cmocka_unit_test_setup(test_a_group_without_it, clear),
        cmocka_unit_test_setup(test_locked_memory, clear),
        cmocka_unit_test_setup(test_one_endpoint, clear),
        cmocka_unit_test_setup(test_registered_memory_is_not_copied, clear),
        cmocka_unit_test_setup(test_keys_fit_the_provider, clear),
        cmocka_unit_test_setup(test_keys_of_the_providers_choice, clear),
        cmocka_unit_test_setup(test_incoherent_atomics, clear),
        cmocka_unit_test_setup(test_early_puts_are_confirmed, clear),
        cmocka_unit_test_setup(test_counts_are_the_providers, clear),
    };
    return cmocka_run_group_tests(tests, find_controls, NULL);
}
