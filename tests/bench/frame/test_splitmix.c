/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark's random bits. */
#include "bench/frame/splitmix.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The generator's published outputs. */
static void splitmix_is_the_known_one(void **state)
{
    (void)state;
    static const uint64_t known[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                     UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                     UINT64_C(16408922859458223821)};
    uint64_t counter = 1234567;
    assert_true(splitmix_of(counter) == known[0]);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(splitmix_next(&counter) == known[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(splitmix_is_the_known_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
