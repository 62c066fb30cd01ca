/* SPDX-License-Identifier: Apache-2.0 */
/* No network: a provider or an interface does not exist. With the argument `library` libfabric itself is missing (a
 * file of its name that is no library comes first on the library path). Errors say how to get it. A group that does not
 * need the network is formed all the same. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool no_library;

static const char *reason(void)
{
    return no_library ? "libfabric cannot be loaded" : "no provider nowhere";
}

/* Asked for by name: no group. */
static void test_asked_for(void **state)
{
    (void)state;
    expar_group *group = NULL;
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    assert_int_equal(expar_group_create_threads(1, NULL, &group), EXPAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(expar_last_error(), reason()));
    assert_non_null(strstr(expar_last_error(), "apt-get install libfabric1"));
    assert_null(group);
    unsetenv("EXPAR_TRANSPORTS");
}

/* The variable is named, and what a terminal would obey is not written to it. */
static void test_provider_that_is_no_name(void **state)
{
    (void)state;
    expar_group *group = NULL;
    if (no_library) skip();
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    setenv("EXPAR_FABRIC_PROVIDER", "no\033[2Jsense\n", 1);
    assert_int_equal(expar_group_create_threads(1, NULL, &group), EXPAR_ERR_UNSUPPORTED);
    assert_non_null(strstr(expar_last_error(), "EXPAR_FABRIC_PROVIDER: "));
    assert_non_null(strstr(expar_last_error(), "no provider no\\x1b[2Jsense\\x0a with"));
    assert_null(group);
    setenv("EXPAR_FABRIC_PROVIDER", "nowhere", 1);
    unsetenv("EXPAR_TRANSPORTS");
}

/* A wrong name is never put right in silence. */
static void test_interface(void **state)
{
    (void)state;
    expar_group *group = NULL;
    if (no_library) skip();
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    setenv("EXPAR_FABRIC_INTERFACE", "nowhere0", 1);
    unsetenv("EXPAR_FABRIC_PROVIDER");
    assert_int_equal(expar_group_create_threads(1, NULL, &group), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "EXPAR_FABRIC_INTERFACE=nowhere0"));
    assert_non_null(strstr(expar_last_error(), "is no interface that is up and has an address"));
    assert_null(group);
    setenv("EXPAR_FABRIC_PROVIDER", "nowhere", 1);
    unsetenv("EXPAR_FABRIC_INTERFACE");
    unsetenv("EXPAR_TRANSPORTS");
}

/* Not asked for: ranks of other nodes cannot be reached, and the error says what would reach them. */
static void far_and_near(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *box, local = 1;
    int32_t me = expar_group_rank(group), far = (me + 2) % 4;
    CHECK_OK(expar_calloc(group, 1, sizeof *box, (void **)&box));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, box, &local, sizeof local, far));
    CHECK_TEXT("expar_put", "another node", reason(), "apt-get install libfabric1");
    CHECK_OK(expar_put(group, box, &local, sizeof local, me ^ 1));
    CHECK_OK(expar_barrier_all(group));
    CHECK(*box == 1, "the neighbour's put is missing");
    CHECK_OK(expar_free(group, box));
}

static void test_not_asked_for(void **state)
{
    (void)state;
    ranks_plan plan = {.kind = RANKS_THREADS, .size = 4, .ranks_per_node = 2};
    assert_true(ranks_run(&plan, far_and_near, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_asked_for), cmocka_unit_test(test_not_asked_for),
                                       cmocka_unit_test(test_interface),
                                       cmocka_unit_test(test_provider_that_is_no_name)};
    no_library = argc > 1 && strcmp(argv[1], "library") == 0;
    if (!no_library) setenv("EXPAR_FABRIC_PROVIDER", "nowhere", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
