/* SPDX-License-Identifier: Apache-2.0 */
/* Names, meanings and values of status codes; the version. */
#include <expar/status.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void names_carry_the_prefix(void **state)
{
    (void)state;
    assert_string_equal(expar_status_string(EXPAR_OK), "EXPAR_OK");
    assert_string_equal(expar_status_string(EXPAR_ERR_NULL), "EXPAR_ERR_NULL");
    assert_string_equal(expar_status_string(EXPAR_ERR_UNSUPPORTED), "EXPAR_ERR_UNSUPPORTED");
}

static void values_are_the_abi(void **state)
{
    (void)state;
    assert_int_equal(EXPAR_OK, 0);
    assert_int_equal(EXPAR_ERR_SHAPE, 4);
    assert_int_equal(EXPAR_ERR_MISMATCH, 13);
    assert_int_equal(EXPAR_ERR_PEER, 23);
    assert_int_equal(EXPAR_ERR_UNSUPPORTED, 25);
}

/* One more than the largest value: the table has no gaps. */
#define PLUS_ONE(name, value, text) +1
enum { STATUS_COUNT = 0 EXPAR_STATUS_TABLE(PLUS_ONE) };

static void every_status_has_its_own_name_and_text(void **state)
{
    (void)state;
    for (int a = EXPAR_OK; a < STATUS_COUNT; a++) {
        const char *name = expar_status_string((expar_status)a);
        const char *text = expar_status_text((expar_status)a);
        assert_non_null(strstr(name, "EXPAR_"));
        assert_string_not_equal(name, "EXPAR_ERR_?");
        assert_true(strlen(text) > 0);
        for (int b = EXPAR_OK; b < a; b++) {
            assert_string_not_equal(name, expar_status_string((expar_status)b));
            assert_string_not_equal(text, expar_status_text((expar_status)b));
        }
    }
}

static void unknown_values_have_a_name_too(void **state)
{
    (void)state;
    assert_string_equal(expar_status_string((expar_status)STATUS_COUNT), "EXPAR_ERR_?");
    assert_string_equal(expar_status_string((expar_status)9999), "EXPAR_ERR_?");
    assert_string_equal(expar_status_text((expar_status)STATUS_COUNT), "unknown status");
}

static void version_is_three_numbers(void **state)
{
    (void)state;
    int major, minor, patch, bytes = 0;
    assert_int_equal(sscanf(expar_version(), "%d.%d.%d%n", &major, &minor, &patch, &bytes), 3);
    assert_int_equal(bytes, strlen(expar_version()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_carry_the_prefix),
        cmocka_unit_test(values_are_the_abi),
        cmocka_unit_test(every_status_has_its_own_name_and_text),
        cmocka_unit_test(unknown_values_have_a_name_too),
        cmocka_unit_test(version_is_three_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
