/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench across nodes that its ranks play: what it says of the network is what the routing demands. Where every
 * token goes to every expert, or all to one, that is known without looking at it. */
#include "printed.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS    20
#define ROW_BYTES (64 * 2)

static double member(const json_t *result, const char *object, const char *name)
{
    return results_real(json_object_get(result, object), name);
}

/* Members of each result that was measured across nodes. */
static void assert_across(const json_t *result)
{
    const double limit_us = results_real(result, "network_limit_us"), median_us = results_real(result, "median_us");
    const double fraction = results_real(result, "fraction_of_network_limit");
    assert_string_equal(results_text(result, "path"), "network");
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_true(json_is_null(json_object_get(result, "copy_limit_us")));
    assert_true(limit_us > 0 && fraction > 0.99 * limit_us / median_us && fraction < 1.01 * limit_us / median_us);
    assert_true(member(result, "network", "messages") >= 1);
}

/* Means over ranks: rows to other nodes, rows from other ranks of the node. */
static void assert_rows(const json_t *result, double network, double node)
{
    assert_true(member(result, "network", "rows") == network);
    assert_true(member(result, "network", "bytes") >= network * ROW_BYTES);
    if (json_object_get(result, "node")) assert_true(member(result, "node", "rows") == node);
}

/* The links, which follow from the routing, carry as many rows as were counted where the provider is called. */
static void assert_links(const json_t *result, int ranks)
{
    const int64_t network = results_links(result, "network", "messages");
    assert_true(network == (int64_t)(member(result, "network", "rows") * ranks + 0.5));
    assert_true(results_links(result, "network", "bytes") == network * ROW_BYTES);
    assert_true(results_links(result, "memory", "messages") == (int64_t)(member(result, "node", "rows") * ranks + 0.5));
    assert_true(results_links(result, NULL, "messages") == network + results_links(result, "memory", "messages"));
}

static json_t *measure(const char *operations, int ranks, int nodes, const char *routing)
{
    char arguments[256];
    snprintf(arguments, sizeof arguments,
             "%s -n %d --nodes %d --tokens %d --hidden 64 --experts 12 --iters 2 --warmup 1 %s", operations, ranks,
             nodes, TOKENS, routing);
    json_t *json = results_of(arguments);
    assert_int_equal(results_real(json_object_get(json, "config"), "nodes"), nodes);
    return json;
}

/* Every token goes to all ranks, but as one record to each other node. */
static void every_node_gets_a_token_once(void **state)
{
    (void)state;
    static const int shapes[][2] = {{4, 2}, {3, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int ranks = shapes[i][0], nodes = shapes[i][1], each = ranks / nodes;
        json_t *json = measure("dispatch combine", ranks, nodes, "--topk 12 --cached=both");
        assert_int_equal(json_array_size(results_list(json)), 3);
        for (size_t r = 0; r < 3; r++) {
            assert_across(json_array_get(results_list(json), r));
            assert_links(json_array_get(results_list(json), r), ranks);
            assert_rows(json_array_get(results_list(json), r), TOKENS * (nodes - 1), TOKENS * nodes * (each - 1));
        }
        json_decref(json);
    }
}

/* All tokens to one expert: those of its own node stay there. */
static void a_node_alone_is_sent_to(void **state)
{
    (void)state;
    json_t *json = measure("all --path all", 4, 2, "--topk 1 --routing onehot");
    assert_int_equal(json_array_size(results_list(json)), 4);
    for (size_t r = 0; r < 4; r++) {
        const json_t *result = json_array_get(results_list(json), r);
        assert_across(result);
        assert_rows(result, TOKENS / 2.0, TOKENS * 2 / 4.0);
        assert_string_equal(results_text(json_object_get(result, "node"), "path"), r < 2 ? "direct" : "queue");
    }
    json_decref(json);
}

/* One message for each rank of the other node, or, in an exact combine, one row for each expert there. */
static void low_latency_knows_no_forwarders(void **state)
{
    (void)state;
    json_t *json = measure("ll", 4, 2, "--topk 12");
    static const double rows[] = {2 * TOKENS, 6 * TOKENS, 2 * TOKENS};
    assert_int_equal(json_array_size(results_list(json)), 3);
    for (size_t r = 0; r < 3; r++) {
        assert_across(json_array_get(results_list(json), r));
        assert_rows(json_array_get(results_list(json), r), rows[r], 0);
    }
    json_decref(json);
}

static void assert_printed(const char *command, const char *first, const char *second)
{
    struct shell_result result = shell(command);
    assert_int_equal(result.code, 0);
    assert_non_null(strstr(result.out, first));
    assert_non_null(strstr(result.out, second));
    shell_free(&result);
}

static void tables_and_csv_say_it(void **state)
{
    (void)state;
    assert_printed("$EXPAR bench ll dispatch -n 2 --nodes 2 --tokens 3" SMALL, "2 ranks on 2 nodes", "of puts");
    assert_printed("EXPAR_TRANSPORTS=fabric $EXPAR bench dispatch --routing grouped --csv -n 2 --tokens 0,3" SMALL,
                   "network_limit_us", ",nodes,node_path,network_bytes,");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_node_gets_a_token_once),
        cmocka_unit_test(a_node_alone_is_sent_to),
        cmocka_unit_test(low_latency_knows_no_forwarders),
        cmocka_unit_test(tables_and_csv_say_it),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
