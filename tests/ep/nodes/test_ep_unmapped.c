/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one host that reach each other by the network alone (EXPAR_TRANSPORTS=fabric): each is a node of its own,
 * and random scripts give the bytes of such nodes. */
#include "ep/harness/script.h"
#include "oracle/unit.h"

#define SCRIPTS 4
#define OPS     6

static void test_each_a_node(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("scripts by the network alone");
    for (int i = 0; i < SCRIPTS; i++, seed++) {
        ranks_plan ranks = {.kind = RANKS_PROCESSES, .size = 2 + (int32_t)(seed % 3), .ranks_per_node = 1};
        script *s = script_make_on(seed, &ranks, OPS);
        s->ranks.ranks_per_node = 0;
        assert_true(script_run(s));
    }
}

int main(void)
{
    routing_recorded();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_a_node)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
