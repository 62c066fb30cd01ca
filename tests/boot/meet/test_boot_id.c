/* SPDX-License-Identifier: Apache-2.0 */
/* Unique ids: making, retiring, text. */
#include "boot/meet/meet.h"
#include "boot/unit.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static void text_round_trip(void **state)
{
    (void)state;
    expar_unique_id id, again;
    char text[EXPAR_UNIQUE_ID_TEXT];
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    expar_unique_id_format(&id, text);
    assert_int_equal(strlen(text), EXPAR_UNIQUE_ID_TEXT - 1);
    assert_int_equal(expar_unique_id_parse(text, &again), EXPAR_OK);
    assert_memory_equal(&id, &again, sizeof id);
    for (char *c = text; *c; c++)
        *c = (char)toupper(*c);
    memset(&again, 0, sizeof again);
    assert_int_equal(expar_unique_id_parse(text, &again), EXPAR_OK);
    assert_memory_equal(&id, &again, sizeof id);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

static void assert_not_parsed(const char *text, const char *part)
{
    expar_unique_id untouched, id;
    memset(&id, 0x5a, sizeof id);
    untouched = id;
    assert_int_equal(expar_unique_id_parse(text, &id), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), part));
    assert_memory_equal(&id, &untouched, sizeof id);
}

static void damaged_text_is_rejected(void **state)
{
    (void)state;
    expar_unique_id id;
    char text[EXPAR_UNIQUE_ID_TEXT + 1] = {0};
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    expar_unique_id_format(&id, text);
    assert_not_parsed("", "only 0 characters");
    for (size_t i = 0; i < EXPAR_UNIQUE_ID_TEXT - 1; i += 5) {
        char kept = text[i];
        text[i] = kept == '0' ? '1' : '0';
        assert_not_parsed(text, "unique id");
        text[i] = 'g';
        assert_not_parsed(text, "hexadecimal");
        text[i] = 0;
        assert_not_parsed(text, "characters");
        text[i] = kept;
    }
    text[EXPAR_UNIQUE_ID_TEXT - 1] = '0';
    assert_not_parsed(text, "more than 256");
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

static void ids_differ_and_end_once(void **state)
{
    (void)state;
    expar_unique_id a, b;
    unique_id_parts parts_a, parts_b;
    assert_int_equal(expar_unique_id_create(&a), EXPAR_OK);
    assert_int_equal(expar_unique_id_create(&b), EXPAR_OK);
    assert_int_equal(unique_id_unpack(&a, &parts_a), EXPAR_OK);
    assert_int_equal(unique_id_unpack(&b, &parts_b), EXPAR_OK);
    assert_memory_not_equal(parts_a.secret, parts_b.secret, sizeof parts_a.secret);
    assert_int_not_equal(parts_a.ip.port, parts_b.ip.port);
    static const unsigned char loopback[4] = {127, 0, 0, 1};
    assert_memory_equal(parts_a.ip.bytes, loopback, sizeof loopback);
    assert_int_equal(expar_unique_id_retire(&a), EXPAR_OK);
    assert_int_equal(expar_unique_id_retire(&a), EXPAR_ERR_ARGUMENT);
    assert_int_equal(expar_unique_id_retire(&b), EXPAR_OK);
}

static void null_is_rejected(void **state)
{
    (void)state;
    expar_unique_id id = {{0}};
    char text[EXPAR_UNIQUE_ID_TEXT] = "as it was";
    assert_int_equal(expar_unique_id_create(NULL), EXPAR_ERR_NULL);
    assert_int_equal(expar_unique_id_retire(NULL), EXPAR_ERR_NULL);
    assert_int_equal(expar_unique_id_parse(NULL, &id), EXPAR_ERR_NULL);
    assert_int_equal(expar_unique_id_parse("", NULL), EXPAR_ERR_NULL);
    expar_unique_id_format(&id, NULL);
    assert_string_equal(expar_last_error(), "expar_unique_id_format: text is NULL");
    expar_unique_id_format(NULL, NULL);
    expar_unique_id_format(NULL, text);
    assert_string_equal(expar_last_error(), "expar_unique_id_format: id is NULL");
    assert_string_equal(text, "");
}

static void interface_is_the_one_told(void **state)
{
    (void)state;
    expar_unique_id id;
    unique_id_parts parts;
    static const unsigned char told[4] = {127, 0, 0, 9};
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "127.0.0.9", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    assert_int_equal(unique_id_unpack(&id, &parts), EXPAR_OK);
    assert_memory_equal(parts.ip.bytes, told, sizeof told);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "lo", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "no-such-interface", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "no-such-interface"));
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "0.0.0.0", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_ERR_ARGUMENT);
    unsetenv("EXPAR_BOOTSTRAP_INTERFACE");
}

/* Arguments of the caller win over the environment. */
static void interface_is_the_argument(void **state)
{
    (void)state;
    expar_unique_id id;
    unique_id_parts parts;
    static const unsigned char argument[4] = {127, 0, 0, 7}, told[4] = {127, 0, 0, 9};
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "127.0.0.9", 1);
    assert_int_equal(expar_unique_id_create_on("127.0.0.7", &id), EXPAR_OK);
    assert_int_equal(unique_id_unpack(&id, &parts), EXPAR_OK);
    assert_memory_equal(parts.ip.bytes, argument, sizeof argument);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
    const char *const none[] = {NULL, ""};
    for (size_t i = 0; i < ARRAY_LENGTH(none); i++) {
        assert_int_equal(expar_unique_id_create_on(none[i], &id), EXPAR_OK);
        assert_int_equal(unique_id_unpack(&id, &parts), EXPAR_OK);
        assert_memory_equal(parts.ip.bytes, told, sizeof told);
        assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
    }
    assert_int_equal(expar_unique_id_create_on("no-such-interface", &id), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "expar_unique_id_create_on: interface=no-such-interface"));
    assert_int_equal(expar_unique_id_create_on("::", &id), EXPAR_ERR_ARGUMENT);
    assert_int_equal(expar_unique_id_create_on("lo", NULL), EXPAR_ERR_NULL);
    assert_non_null(strstr(expar_last_error(), "expar_unique_id_create_on: id is NULL"));
    unsetenv("EXPAR_BOOTSTRAP_INTERFACE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_round_trip),           cmocka_unit_test(damaged_text_is_rejected),
        cmocka_unit_test(ids_differ_and_end_once),   cmocka_unit_test(null_is_rejected),
        cmocka_unit_test(interface_is_the_one_told), cmocka_unit_test(interface_is_the_argument),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
