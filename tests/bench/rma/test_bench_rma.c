/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench rma as users run it: the members of its JSON, its other forms, its rejections. Times are never judged.
 * And its verifier must say no: a way that changes one byte is found out. */
#include "bench/rma/rma.h"
#include "printed.h"
#include "shell.h"
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BRIEF " --iters 2 --warmup 1 "

/* ---- the command ------------------------------------------------------------------------------------------------- */

static bool is(const json_t *object, const char *name, const char *value)
{
    return strcmp(results_text(object, name), value) == 0;
}

static void assert_sound(const json_t *result, const char *transport, const char *baseline)
{
    double fraction = results_real(result, "baseline_us") / results_real(result, "median_us");
    assert_true(is(result, "transport", transport));
    assert_true(is(result, "baseline", baseline));
    assert_true(results_real(result, "min_us") <= results_real(result, "median_us"));
    assert_true(results_real(result, "median_us") <= results_real(result, "p99_us"));
    assert_true(results_real(result, "fraction_of_baseline") > fraction * 0.999);
    assert_true(results_real(result, "fraction_of_baseline") < fraction * 1.001);
    assert_true(json_is_true(json_object_get(result, "verified")));
    if (is(result, "metric", "bandwidth")) assert_true(results_real(result, "gbps") > 0);
    if (is(result, "op", "put_signal") && is(result, "baseline", "memcpy"))
        assert_true(results_real(result, "flag_us") > 0);
}

static size_t count_of(const json_t *results, const char *op, double bytes)
{
    size_t i, count = 0;
    json_t *result;
    json_array_foreach(results, i, result)
    {
        if (is(result, "op", op) && results_real(result, "bytes") == bytes) count++;
    }
    return count;
}

/* Sized operations once a size, put and get by two measures; the others once. */
static void assert_complete(const json_t *json, const char *transport, const char *baseline)
{
    static const char *const once[] = {"put_signal", "broadcast", "fcollect", "collect", "alltoall", "reduce"};
    const json_t *results = json_object_get(json, "results");
    size_t i;
    json_t *result;
    assert_int_equal(json_array_size(results), 2 * (2 * 2 + 6) + 3);
    json_array_foreach(results, i, result)
    {
        assert_sound(result, transport, baseline);
    }
    assert_int_equal(count_of(results, "put", 9), 2);
    assert_int_equal(count_of(results, "get", 5000), 2);
    for (i = 0; i < sizeof once / sizeof *once; i++) {
        assert_int_equal(count_of(results, once[i], 9), 1);
        assert_int_equal(count_of(results, once[i], 5000), 1);
    }
    assert_int_equal(count_of(results, "fetch_add", 0), 1);
    assert_int_equal(count_of(results, "add", 0), 1);
    assert_int_equal(count_of(results, "barrier", 0), 1);
}

static void all_operations_in_mapped_memory(void **state)
{
    (void)state;
    json_t *json = results_of("rma -n 3 --transports p2p --sizes 9,5000" BRIEF);
    const json_t *config = json_object_get(json, "config");
    assert_complete(json, "p2p", "memcpy");
    assert_true(strlen(json_string_value(json_object_get(json_object_get(json, "machine"), "cpu"))) > 0);
    assert_true(results_real(config, "ranks") == 3);
    assert_true(results_real(config, "iters") == 2);
    assert_int_equal(json_array_size(json_object_get(config, "sizes")), 2);
    assert_true(is(json_array_get(json_object_get(config, "transports"), 0), "name", "p2p"));
    json_decref(json);
}

static void all_operations_over_the_network(void **state)
{
    (void)state;
#ifdef HAVE_FABRIC
    json_t *json = results_of("rma -n 2 --transports fabric --sizes 9,5000" BRIEF);
    assert_complete(json, "fabric", "libfabric");
    json_decref(json);
    json = results_of("rma -n 2 --nodes 2 --ops put,alltoall --sizes 64" BRIEF);
    assert_int_equal(json_array_size(json_object_get(json, "results")), 3);
    assert_sound(json_array_get(json_object_get(json, "results"), 0), "auto", "libfabric");
    assert_true(results_real(json_object_get(json, "config"), "nodes") == 2);
    json_decref(json);
#else
    shell_expect("$EXPAR bench rma --transports fabric" BRIEF, 1, "", "no transport 'fabric'");
#endif
}

/* A device in software: no baseline, no bytes a second; the producer's figures, beside a proxy's. */
static void producers_on_a_device_in_software(void **state)
{
    (void)state;
#ifdef HAVE_GDA
    json_t *json = results_of("rma -n 2 --transports gda --ops put --sizes 8,64" BRIEF), *entry;
    const json_t *results = json_object_get(json, "results"), *producers = json_object_get(json, "producers");
    size_t i;
    assert_int_equal(json_array_size(results), 2 * 4);
    assert_null(json_object_get(json_array_get(results, 1), "gbps"));
    assert_null(json_object_get(json_array_get(results, 1), "baseline"));
    assert_int_equal(json_array_size(producers), 4);
    json_array_foreach(producers, i, entry)
    {
        assert_true(is(entry, "by", i < 2 ? "threads" : "proxy"));
        assert_true(results_real(entry, "bytes") == (i % 2 ? 64 : 8));
        assert_true(results_real(entry, "commands_per_s") > 0);
        assert_true(results_real(entry, "request_bytes") == 64 * results_real(entry, "requests"));
        assert_true(results_real(entry, "doorbells") > 0 &&
                    results_real(entry, "doorbells") <= results_real(entry, "requests"));
        assert_true(results_real(entry, "device_us") > 0);
        assert_true(json_is_true(json_object_get(entry, "verified")));
    }
    assert_true(results_real(json_array_get(producers, 0), "requests") == 1);
    json_decref(json);
#else
    shell_expect("$EXPAR bench rma --transports gda" BRIEF, 1, "", "no transport 'gda'");
#endif
}

static void sizes_by_list_and_range(void **state)
{
    (void)state;
    static const int expected[] = {1, 1024, 1025, 2048, 3000};
    json_t *json = results_of("rma --transports p2p --ops put_signal --sizes 1,1K,1025..3000" BRIEF);
    const json_t *results = json_object_get(json, "results");
    assert_int_equal(json_array_size(results), 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(results_real(json_array_get(results, i), "bytes") == expected[i]);
    json_decref(json);
}

static void other_forms_of_output(void **state)
{
    (void)state;
    shell_expect("$EXPAR bench rma --transports p2p --ops put --sizes 64" BRIEF "--csv", 0,
                 "\nput,bandwidth,p2p,2,1,64,", "");
    shell_expect("$EXPAR bench rma --transports p2p --ops barrier" BRIEF, 0, "2 ranks on 1 node; ", "");
    shell_expect("$EXPAR bench rma --transports p2p --ops barrier" BRIEF, 0, " yes\n", "");
}

static void runs_inside_a_job(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 --no-prefix -- $EXPAR bench rma --transports p2p --ops atomics" BRIEF "--csv", 0,
                 "\nfetch_add,", "");
    shell_expect("$EXPAR run -n 3 --no-prefix -- $EXPAR bench rma --transports p2p --ops atomics" BRIEF, 0,
                 "3 ranks on 1 node; ", "");
    shell_expect("$EXPAR run -n 3 -- $EXPAR bench rma -n 2 --transports p2p --ops atomics" BRIEF, 64, "",
                 "-n 2, but this job has 3 ranks");
}

static void bad_options_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *message;
        int code;
    } cases[] = {
        {"--sizes 0", "--sizes '0'", 64},
        {"--sizes 65M", "--sizes '65M'", 64},
        {"--sizes 8,x", "--sizes 'x'", 64},
        {"--sizes 9..3", "from the smaller to the larger", 64},
        {"--sizes ''", "--sizes ''", 64},
        {"--ops ''", "--ops '': expected one or more of put,", 64},
        {"--transports ''", "--transports '': expected one or more of p2p,fabric,gda,auto", 64},
        {"--ops ,put", "--ops: '' is not known", 64},
        {"--ops put,push",
         "--ops: 'push' is not known; expected one or more of put,get,put_signal,atomics,fetch_add,add,barrier,", 64},
        {"--transports p2p,ether", "--transports: 'ether' is not known; expected one or more of p2p,fabric,gda,auto",
         64},
        {"--nodes 3 -n 4", "--nodes 3 does not divide -n 4", 64},
        {"-n 1", "rma needs 2 ranks", 64},
        {"dispatch", "rma is measured by itself", 64},
        {"--mpi", "--mpi is for dispatch, combine and ll", 64},
        {"--nodes 2 --transports p2p --ops put" BRIEF, "--transports p2p: it reaches ranks of one node", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[256];
        snprintf(command, sizeof command, "$EXPAR bench rma %s", cases[i].arguments);
        shell_expect(command, cases[i].code, "", cases[i].message);
    }
}

/* ---- the verifier ------------------------------------------------------------------------------------------------ */

static void contents_are_compared_to_the_last_byte(void **state)
{
    (void)state;
    enum { BYTES = 100 };
    unsigned char data[BYTES + 1];
    for (size_t bytes = 1; bytes <= BYTES; bytes++) {
        memset(data, 0x5a, sizeof data);
        rma_fill(data, bytes, 1, 2, 3);
        assert_int_equal(data[bytes], 0x5a);
        assert_int_equal(rma_first_wrong(data, bytes, 1, 2, 3), -1);
        for (size_t i = 0; i < bytes; i++) {
            data[i] ^= 1;
            assert_int_equal(rma_first_wrong(data, bytes, 1, 2, 3), i);
            data[i] ^= 1;
        }
    }
    assert_true(rma_first_wrong(data, BYTES, 2, 2, 3) >= 0);
    assert_true(rma_first_wrong(data, BYTES, 1, 1, 3) >= 0);
    assert_true(rma_first_wrong(data, BYTES, 1, 2, 4) >= 0);
}

/* A way that does everything right but for one thing. */
enum fault { NO_FAULT, WRONG_PUT, WRONG_GET, SHORT_PUT, LOST_ADD, NO_PUT };
static enum fault fault;
static const struct rma_way_ops *right;

static bool faulty_put(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    if (fault == NO_PUT) return true;
    if (fault == SHORT_PUT) bytes--;
    if (fault == WRONG_PUT) way->memory->base[source + bytes / 2] ^= 0x10;
    return right->put(way, pe, dest, source, bytes) && right->quiet(way);
}

static bool faulty_put_signal(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes, int number,
                              uint64_t value)
{
    return faulty_put(way, pe, dest, source, bytes) && right->put_signal(way, pe, dest, source, 0, number, value);
}

static bool faulty_get(struct rma_way *way, int pe, size_t dest, size_t source, size_t bytes)
{
    bool good = right->get(way, pe, dest, source, bytes);
    if (fault == WRONG_GET) way->memory->base[dest + bytes - 1] ^= 1;
    return good;
}

static bool faulty_add(struct rma_way *way, int pe, int number, uint64_t value)
{
    static _Atomic int calls;
    return (fault == LOST_ADD && calls++ == 5) || right->add(way, pe, number, value);
}

struct verifier {
    expar_group *group;
    bool verdict[32]; /* of each kind */
};

static void *verify_all(void *argument)
{
    struct verifier *self = argument;
    struct rma_memory memory = {.group = self->group,
                                .rank = expar_group_rank(self->group),
                                .size = expar_group_size(self->group),
                                .layout = {.bytes = 20480, .area_bytes = 8192, .dest = 8192, .words = 16384}};
    void *base;
    if (expar_align(self->group, 64, memory.layout.bytes, &base) != EXPAR_OK) return NULL;
    memory.base = base;
    memset(base, 0, memory.layout.bytes);
    struct rma_way *way = rma_way_expar(&memory);
    struct rma_way_ops ops = *way->ops;
    ops.put = ops.put_nbi = faulty_put;
    ops.put_signal = faulty_put_signal;
    ops.get = ops.get_nbi = faulty_get;
    ops.add = faulty_add;
    if (memory.rank == 0) right = way->ops;
    way->ops = &ops;
    for (int i = 0; i < rma_num_kinds; i++) {
        self->verdict[i] = expar_barrier_all(self->group) == EXPAR_OK &&
                           rma_kinds[i].verify(way, &rma_kinds[i], rma_kinds[i].sized ? 1000 : 0, 7);
        if (expar_barrier_all(self->group) != EXPAR_OK) break;
    }
    way->ops->close(way);
    return NULL;
}

/* Whether all kinds of that name are found right on both of two ranks under the fault. */
static bool found_right(enum fault with, const char *op)
{
    expar_group *groups[2];
    struct verifier verifiers[2] = {{0}};
    pthread_t threads[2];
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.heap_bytes = (size_t)64 << 20;
    fault = with;
    assert_int_equal(expar_group_create_threads(2, &options, groups), EXPAR_OK);
    for (int r = 0; r < 2; r++) {
        verifiers[r].group = groups[r];
        assert_int_equal(pthread_create(&threads[r], NULL, verify_all, &verifiers[r]), 0);
    }
    bool all = true;
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    for (int i = 0; i < rma_num_kinds; i++)
        if (!strcmp(rma_kinds[i].name, op)) all &= verifiers[0].verdict[i] && verifiers[1].verdict[i];
    for (int r = 0; r < 2; r++)
        expar_group_abort(groups[r]);
    for (int r = 0; r < 2; r++)
        expar_group_destroy(groups[r]);
    return all;
}

static void a_wrong_byte_is_found(void **state)
{
    (void)state;
    for (int i = 0; i < rma_num_kinds; i++)
        assert_true(found_right(NO_FAULT, rma_kinds[i].name));
    assert_false(found_right(WRONG_PUT, "put"));
    assert_false(found_right(SHORT_PUT, "put"));
    assert_false(found_right(NO_PUT, "put"));
    assert_false(found_right(WRONG_PUT, "put_signal"));
    assert_false(found_right(SHORT_PUT, "put_signal"));
    assert_false(found_right(WRONG_GET, "get"));
    assert_false(found_right(LOST_ADD, "add"));
    assert_false(found_right(NO_PUT, "barrier"));
    assert_true(found_right(WRONG_GET, "put"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_operations_in_mapped_memory),
        cmocka_unit_test(all_operations_over_the_network),
        cmocka_unit_test(producers_on_a_device_in_software),
        cmocka_unit_test(sizes_by_list_and_range),
        cmocka_unit_test(other_forms_of_output),
        cmocka_unit_test(runs_inside_a_job),
        cmocka_unit_test(bad_options_are_named),
        cmocka_unit_test(contents_are_compared_to_the_last_byte),
        cmocka_unit_test(a_wrong_byte_is_found),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
