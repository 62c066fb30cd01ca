/* SPDX-License-Identifier: Apache-2.0 */
/* Handles whose operations are requests, which kernels write to queues of a network device. The litmus suite and
 * scripts run under faults of a device in software. Others test borders of chunks, and failures. The environment names
 * the transport gda, the memory of its queues, and the ways of kernels. Ranks are nodes of their own. */
#include "pgas/device/setting.h"

/* After it, since it asks expar/device.h for checks. */
#include "net/gda/kernels.h"

/* Both kinds of the CPU are served, and the pinned one of GPUs. */
static expar_memory_kind served(void)
{
    return runner_target() == EXPAR_DEVICE_CPU ? EXPAR_MEMORY_HOST : EXPAR_MEMORY_PINNED;
}

static transport_memory served_memory(void)
{
    return runner_target() == EXPAR_DEVICE_CPU ? TRANSPORT_HOST : TRANSPORT_PINNED;
}

static gda *gda_of_group(const expar_group *group)
{
    for (int32_t t = 0; t < group->sym->num_transports; t++)
        if (group->sym->transports[t]->ops->kernels) return (gda *)group->sym->transports[t];
    return NULL;
}

/* The other ranks' words and data of that kind are reached by requests. */
static void check_ways(const expar_group *group, const expar_device_handle *handle)
{
    const int32_t kind = runner_target() == EXPAR_DEVICE_CPU ? EXPAR_DEV_HOST : EXPAR_DEV_PINNED;
    for (int32_t r = 0; r < group->size; r++) {
        const expar_dev_entry entry = entry_of(handle, kind, r);
        const uint32_t expected = r == group->rank ? EXPAR_DEV_WAY_MAPPED : EXPAR_DEV_WAY_GDA;
        CHECK(entry.way == expected, "rank %d is reached by way %u", r, entry.way);
        if (r != group->rank)
            CHECK(entry.atomics == EXPAR_DEV_WAY_GDA, "atomics of rank %d go by way %u", r, entry.atomics);
    }
}

/* ---- calls that succeed ------------------------------------------------------------------------------------------ */

/* All memory of a call, the source, too, is symmetric. */
static handles_call gda_call(expar_group *group, handles_test test)
{
    return (handles_call){.test = test,
                          .scope = EXPAR_DEV_BLOCK,
                          .rounds = test == HANDLES_SCRIPT ? 60 : ROUNDS,
                          .seed = 5 + seed,
                          .words = take(group, served(), WORDS * sizeof(uint64_t)),
                          .data = take(group, served(), (size_t)group->size * BYTES),
                          .bytes = BYTES,
                          .own = take(group, served(), HANDLES_OWN_BYTES(group->size, BYTES))};
}

static void give(expar_group *group, const handles_call *call)
{
    CHECK_OK(expar_free(group, call->words));
    CHECK_OK(expar_free(group, call->data));
    CHECK_OK(expar_free(group, call->own));
}

static void run_call(setting *s, expar_group *group, handles_test test, int with, int scope)
{
    handles_call call = gda_call(group, test);
    call.with = with;
    call.scope = scope;
    run_well(s, group, &s->handle, &call);
    if (test == HANDLES_SCRIPT) check_script(group, &call);
    give(group, &call);
}

static void litmus(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 3)) return;
    for (int with = 0; with < HANDLES_WITHS; with++)
        for (int scope = EXPAR_DEV_THREAD; scope <= EXPAR_DEV_BLOCK; scope++)
            run_call(&s, group, HANDLES_PASS, with, scope);
    check_ways(group, &s.handle);
    run_call(&s, group, HANDLES_STORES, 0, EXPAR_DEV_BLOCK);
    run_call(&s, group, HANDLES_ADDS, 0, EXPAR_DEV_BLOCK);
    for (int scope = EXPAR_DEV_THREAD; scope <= EXPAR_DEV_BLOCK; scope++)
        run_call(&s, group, HANDLES_BARRIERS, 0, scope);
    setting_close(&s, group);
}

static void scripts(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    for (int i = 0; i < 3; i++)
        run_call(&s, group, HANDLES_SCRIPT, 0, EXPAR_DEV_BLOCK);
    setting_close(&s, group);
}

static const ranks_plan apart = {.ranks_per_node = 1};

static void test_order_holds_by_requests(void **state)
{
    (void)state;
    kind_run(apart, 2, litmus);
    seed = 1;
    kind_run(apart, 3, litmus);
    seed = 0;
}

static void test_scripts_leave_what_they_say(void **state)
{
    (void)state;
    kind_run(apart, RANKS, scripts);
}

/* Faults of the device, rings that wrap around, several queues, and a thread that rings. */
static void test_faults_change_nothing(void **state)
{
    static const struct {
        const char *variables[4][2];
    } worlds[] = {
        {{{"EXPAR_GDA_NIC_FAULTS", "seed=3,delay=3,drop=20,lose=20,coalesce=3,shuffle=2,late=3"},
          {"EXPAR_GDA_QUEUE_DEPTH", "256"},
          {"EXPAR_GDA_BATCH", "4"}}},
        {{{"EXPAR_GDA_QPS_PER_PEER", "3"}, {"EXPAR_GDA_RINGER", "cpu"}}},
        {{{"EXPAR_GDA_NIC_FAULTS", "seed=7,reroute=3"}, {"EXPAR_GDA_ADAPTIVE_ROUTING", "1"}}},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(worlds); i++) {
        for (int v = 0; v < 4 && worlds[i].variables[v][0]; v++)
            setenv(worlds[i].variables[v][0], worlds[i].variables[v][1], 1);
        kind_run(apart, 2, litmus);
        kind_run(apart, 3, scripts);
        for (int v = 0; v < 4 && worlds[i].variables[v][0]; v++)
            unsetenv(worlds[i].variables[v][0]);
    }
}

/* The data of a script lie over each border of chunks in a large block. */
static void borders(expar_group *group, void *shared)
{
    enum { LARGE = 13 << 20 };
    setting s;
    int met = 0;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    unsigned char *block = take(group, served(), LARGE);
    const gda_keys *keys = &gda_of_group(group)->segments[served_memory()].keys;
    const uint64_t bytes = (uint64_t)group->size * BYTES;
    const uint8_t *heap = group->sym->site.segments[served_memory()].region->base;
    const uint64_t at = (uint64_t)(block - heap), chunks = gda_load(&keys->num_chunks);
    for (uint64_t c = 0; c < chunks; c++) {
        if (keys->ends[c] < at + bytes || keys->ends[c] + bytes > at + LARGE) continue;
        handles_call call = gda_call(group, HANDLES_SCRIPT);
        unsigned char *data = call.data;
        call.data = block + (keys->ends[c] - at - bytes / 2 - 1);
        run_well(&s, group, &s.handle, &call);
        check_script(group, &call);
        call.data = data;
        give(group, &call);
        met++;
    }
    CHECK(met > 0, "the block has no border of a chunk");
    CHECK_OK(expar_free(group, block));
    setting_close(&s, group);
}

static void test_transfers_cross_borders_of_chunks(void **state)
{
    (void)state;
    kind_run(apart, 2, borders);
}

/* A kernel ends with a request under way, and the barrier of the host completes it. */
static void leave_behind(expar_group *group, void *shared)
{
    setting s;
    uint64_t seen = 0, sent = 71;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    handles_call call = gda_call(group, HANDLES_SEND);
    call.peer = 1 - group->rank;
    CHECK_OK(expar_put(group, call.own, &sent, sizeof sent, group->rank));
    run_well(&s, group, &s.handle, &call);
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_get(group, &seen, call.words + 8, sizeof seen, group->rank));
    CHECK(seen == sent, "the word is %llu", (unsigned long long)seen);
    CHECK_OK(expar_barrier_all(group));
    give(group, &call);
    setting_close(&s, group);
}

static void test_barriers_complete_what_kernels_leave(void **state)
{
    (void)state;
    setenv("EXPAR_GDA_NIC_FAULTS", "seed=5,delay=200", 1);
    kind_run(apart, 2, leave_behind);
    unsetenv("EXPAR_GDA_NIC_FAULTS");
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Sends to rank 1, until that fails. Rank 0's kernels do so alone. */
static void expect_failure(setting *s, expar_group *group, const handles_call *call, const char *text)
{
    runner *r = &s->runner;
    if (group->rank == 0) {
        runner_start(r, &s->handle, call);
        runner_await(r);
        const expar_device_error error = error_of(&s->handle);
        CHECK(r->status[0] == EXPAR_ERR_PEER && error.status == EXPAR_ERR_PEER, "%d, %d: %s", r->status[0],
              (int)error.status, error.text);
        CHECK(error.pe == 1, "PE %d: %s", error.pe, error.text);
        CHECK(strstr(error.text, text) != NULL, "'%s' has no '%s'", error.text, text);
        CHECK(*r->wrong == 0, "%llu wrong", (unsigned long long)*r->wrong);
    }
    CHECK_OK(expar_group_barrier(group));
}

/* A key that the device does not know. */
static void bad_key(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    gda *g = gda_of_group(group);
    gda_kernels *k = atomic_load(&g->kernels);
    const kernels_layout at = gda_kernels_lay_out(g);
    const transport_memory memory = served_memory();
    const uint64_t table = at.tables + memory * at.table_bytes + at.rkeys;
    uint32_t keys[GDA_CHUNKS];
    handles_call call = gda_call(group, HANDLES_LOST);
    call.peer = 1;
    for (int i = 0; i < GDA_CHUNKS; i++)
        keys[i] = gda_be32(0xfffff);
    CHECK_OK(gda_space_write(&k->state, table + GDA_CHUNKS * sizeof *keys, keys, sizeof keys));
    expect_failure(&s, group, &call, "failed with syndrome 0x");
    give(group, &call);
    setting_close(&s, group);
}

static void test_a_bad_key_is_told(void **state)
{
    (void)state;
    kind_run(apart, 2, bad_key);
}

/* The device of rank 0 stops answering. */
static void silent_device(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    int64_t (*patience)(void *, int32_t, int64_t) = group->sym->site.patience;
    const int64_t timeout_ms = group->sym->site.timeout_ms;
    handles_call call = gda_call(group, HANDLES_LOST);
    call.peer = 1;
    if (group->rank == 0) {
        group->sym->site.timeout_ms = 300;
        group->sym->site.patience = NULL;
        nic_hold(gda_of_group(group)->nic, true);
    }
    expect_failure(&s, group, &call, "does not answer");
    nic_hold(gda_of_group(group)->nic, false);
    group->sym->site.timeout_ms = timeout_ms;
    group->sym->site.patience = patience;
    give(group, &call);
    setting_close(&s, group);
}

static void test_a_device_that_stands_still_ends_waits(void **state)
{
    const char *device = getenv("EXPAR_GDA_NIC");
    (void)state;
    if (device && strcmp(device, "device") == 0) skip(); /* the simulated one is out of reach of this program */
    kind_run(apart, 2, silent_device);
}

/* No command may carry what requests cannot: memory of the caller that the device does not know. */
static void unknown_memory(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    uint64_t seen = 0, word = 3;
    handles_call call = {.test = HANDLES_BAD, .with = HANDLES_BAD_DEST, .peer = 1 - group->rank};
    call.words = take(group, served(), 4096);
    call.own = runner_alloc(&s.runner, 64);
    CHECK_OK(expar_put(group, call.words, &word, sizeof word, group->rank));
    CHECK_OK(expar_group_barrier(group));
    runner_start(&s.runner, &s.handle, &call);
    runner_await(&s.runner);
    const expar_device_error error = error_of(&s.handle);
    CHECK(error.status == EXPAR_ERR_ADDRESS && s.runner.status[0] == EXPAR_ERR_ADDRESS, "%s", error.text);
    CHECK(strstr(error.text, "is not known to the network device") != NULL, "%s", error.text);
    CHECK_OK(expar_get(group, &seen, call.words, sizeof seen, group->rank));
    CHECK(seen == 3, "a call after the error has changed the word to %llu", (unsigned long long)seen);
    CHECK_OK(expar_group_barrier(group));
    runner_free(&s.runner, call.own);
    CHECK_OK(expar_free(group, call.words));
    setting_close(&s, group);
}

static int run_with(setting *s, const expar_device_handle *handle, const handles_call *call)
{
    runner_start(&s->runner, handle, call);
    runner_await(&s->runner);
    return s->runner.status[0];
}

/* Requests name memory that expar_register knows, as source and as destination, and do not after expar_unregister. On a
   GPU the first registration comes before the queues, the second one after them. */
static void registered_memory(expar_group *group, void *shared)
{
    setting s;
    enum { OWN_WORDS = 512 };
    const size_t bytes = OWN_WORDS * sizeof(uint64_t);
    uint64_t *own = aligned_alloc(4096, 2 * bytes);
    (void)shared;
    CHECK(own != NULL, "no memory");
    if (!own) return;
    CHECK_OK(expar_register(group, own, 2 * bytes));
    if (!setting_open(&s, group, 1)) return;
    handles_call call = {.test = HANDLES_OWN, .peer = 1 - group->rank, .bytes = bytes};
    call.words = take(group, served(), bytes);
    call.own = (unsigned char *)own;
    for (int again = 0; again < 2; again++) {
        const expar_device_handle handle = handle_for(group, NULL);
        for (int i = 0; i < 2 * OWN_WORDS; i++)
            own[i] = (uint64_t)(again * 10000 + group->rank * 1000 + i);
        CHECK_OK(expar_group_barrier(group));
        CHECK(run_with(&s, &handle, &call) == EXPAR_OK, "%s", error_of(&handle).text);
        /* The second half of `own` has what was sent from the first one. */
        CHECK(memcmp(own, own + OWN_WORDS, bytes) == 0, "what was sent and fetched differs");
        CHECK_OK(expar_unregister(group, own));
        const int status = run_with(&s, &handle, &call);
        CHECK(status == EXPAR_ERR_ADDRESS, "memory that is no longer registered gave %d", status);
        CHECK_OK(expar_register(group, own, 2 * bytes));
    }
    CHECK_OK(expar_unregister(group, own));
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_free(group, call.words));
    setting_close(&s, group);
    free(own);
}

/* No command may carry the data instead. */
static void test_requests_name_registered_memory(void **state)
{
    static const char name[] = "EXPAR_DEVICE_TRANSPORTS";
    char *before = getenv(name) ? strdup(getenv(name)) : NULL;
    (void)state;
    setenv(name, "gda", 1);
    kind_run(apart, 2, registered_memory);
    if (before)
        setenv(name, before, 1);
    else
        unsetenv(name);
    free(before);
}

static void test_memory_that_the_device_does_not_know_is_told(void **state)
{
    const char *ways = getenv("EXPAR_DEVICE_TRANSPORTS");
    (void)state;
    if (!ways || strstr(ways, "proxy")) skip();
    kind_run(apart, 2, unknown_memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_holds_by_requests),
        cmocka_unit_test(test_scripts_leave_what_they_say),
        cmocka_unit_test(test_faults_change_nothing),
        cmocka_unit_test(test_transfers_cross_borders_of_chunks),
        cmocka_unit_test(test_barriers_complete_what_kernels_leave),
        cmocka_unit_test(test_a_bad_key_is_told),
        cmocka_unit_test(test_a_device_that_stands_still_ends_waits),
        cmocka_unit_test(test_requests_name_registered_memory),
        cmocka_unit_test(test_memory_that_the_device_does_not_know_is_told),
    };
    kind_read(argc, argv);
    if (!runner_is_able()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
