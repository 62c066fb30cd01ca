/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error: setting, prefixing, cutting, one a thread. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void *text_of_a_new_thread(void *context)
{
    bool *was_empty = context;
    *was_empty = strcmp(expar_last_error(), "") == 0;
    error_set(EXPAR_ERR_NULL, "of the other thread");
    return NULL;
}

static void each_thread_has_its_own_text(void **state)
{
    (void)state;
    bool was_empty = false;
    pthread_t thread;
    error_set(EXPAR_ERR_RANGE, "of the first thread");
    assert_int_equal(pthread_create(&thread, NULL, text_of_a_new_thread, &was_empty), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(was_empty);
    assert_string_equal(expar_last_error(), "of the first thread");
}

static void set_formats_and_returns_the_status(void **state)
{
    (void)state;
    assert_int_equal(error_set(EXPAR_ERR_SHAPE, "x has %d dimensions, expected %s", 3, "2"), EXPAR_ERR_SHAPE);
    assert_string_equal(expar_last_error(), "x has 3 dimensions, expected 2");
}

static void prefix_goes_before_the_text(void **state)
{
    (void)state;
    error_set(EXPAR_ERR_PEER, "rank 3 died");
    assert_int_equal(error_prefix(EXPAR_ERR_PEER, "dispatch %d", 7), EXPAR_ERR_PEER);
    assert_string_equal(expar_last_error(), "dispatch 7: rank 3 died");
    assert_int_equal(error_prefix(EXPAR_OK, "combine"), EXPAR_OK);
    assert_string_equal(expar_last_error(), "dispatch 7: rank 3 died");
}

static void the_last_text_may_be_an_argument(void **state)
{
    (void)state;
    error_set(EXPAR_ERR_PEER, "rank 3 died");
    error_set(EXPAR_ERR_PEER, "first: %s, again", expar_last_error());
    assert_string_equal(expar_last_error(), "first: rank 3 died, again");
}

static void errno_is_read_before_anything_changes_it(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(error_errno("open %s", "here"), EXPAR_ERR_SYSTEM);
    assert_string_equal(expar_last_error(), "open here: No such file or directory");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    char text[3 * ERROR_TEXT_BYTES];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(EXPAR_ERR_ARGUMENT, "%s", text);
    assert_int_equal(strlen(expar_last_error()), ERROR_TEXT_BYTES - 1);

    error_prefix(EXPAR_ERR_ARGUMENT, "call");
    assert_int_equal(strlen(expar_last_error()), ERROR_TEXT_BYTES - 1);
    assert_memory_equal(expar_last_error(), "call: aaa", 9);

    error_prefix(EXPAR_ERR_ARGUMENT, "%s", text);
    assert_int_equal(strlen(expar_last_error()), ERROR_TEXT_BYTES - 1);
    assert_memory_equal(expar_last_error(), text, ERROR_TEXT_BYTES - 1);

    errno = EPERM;
    error_errno("%s", text);
    assert_int_equal(strlen(expar_last_error()), ERROR_TEXT_BYTES - 1);
}

static void a_kept_error_outlives_others(void **state)
{
    (void)state;
    error_kept kept;
    error_keep(&kept, error_set(EXPAR_ERR_PEER, "rank %d died", 3));
    error_set(EXPAR_ERR_MEMORY, "and then no memory");
    assert_int_equal(kept.status, EXPAR_ERR_PEER);
    assert_int_equal(error_restore(&kept), EXPAR_ERR_PEER);
    assert_string_equal(expar_last_error(), "rank 3 died");
    /* As often as one likes, and what is put before it stays out of what is kept. */
    error_prefix(EXPAR_ERR_PEER, "later");
    assert_int_equal(error_restore(&kept), EXPAR_ERR_PEER);
    assert_string_equal(expar_last_error(), "rank 3 died");
}

static void no_error_is_kept_as_none(void **state)
{
    (void)state;
    error_kept kept = {.status = EXPAR_ERR_PEER, .text = "of an earlier use"};
    error_set(EXPAR_ERR_MEMORY, "of a call before");
    error_keep(&kept, EXPAR_OK);
    assert_int_equal(kept.status, EXPAR_OK);
    assert_string_equal(kept.text, "");
    error_set(EXPAR_ERR_NULL, "of a call after");
    assert_int_equal(error_restore(&kept), EXPAR_OK);
    assert_string_equal(expar_last_error(), "of a call after");
    assert_int_equal(error_restore(&(error_kept){0}), EXPAR_OK);
    assert_string_equal(expar_last_error(), "of a call after");
}

static void *restore_elsewhere(void *context)
{
    const error_kept *kept = context;
    bool right = error_restore(kept) == EXPAR_ERR_RANGE && strcmp(expar_last_error(), "of the first thread") == 0;
    return right ? context : NULL;
}

static void a_kept_error_goes_to_another_thread(void **state)
{
    (void)state;
    error_kept kept;
    pthread_t thread;
    void *right;
    error_keep(&kept, error_set(EXPAR_ERR_RANGE, "of the first thread"));
    assert_int_equal(pthread_create(&thread, NULL, restore_elsewhere, &kept), 0);
    assert_int_equal(pthread_join(thread, &right), 0);
    assert_non_null(right);
}

static void a_kept_text_is_whole(void **state)
{
    (void)state;
    char text[ERROR_TEXT_BYTES];
    error_kept kept;
    memset(text, 'b', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_keep(&kept, error_set(EXPAR_ERR_ARGUMENT, "%s", text));
    error_set(EXPAR_ERR_NULL, "short");
    error_restore(&kept);
    assert_string_equal(expar_last_error(), text);
}

static void what_is_saved_comes_back_as_it_was(void **state)
{
    (void)state;
    error_kept kept;
    error_set(EXPAR_ERR_PEER, "of the call that goes on");
    error_save(&kept);
    error_set(EXPAR_ERR_NULL, "of what came between");
    error_put_back(&kept);
    assert_string_equal(expar_last_error(), "of the call that goes on");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_has_its_own_text),
        cmocka_unit_test(set_formats_and_returns_the_status),
        cmocka_unit_test(prefix_goes_before_the_text),
        cmocka_unit_test(the_last_text_may_be_an_argument),
        cmocka_unit_test(errno_is_read_before_anything_changes_it),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(a_kept_error_outlives_others),
        cmocka_unit_test(no_error_is_kept_as_none),
        cmocka_unit_test(a_kept_error_goes_to_another_thread),
        cmocka_unit_test(a_kept_text_is_whole),
        cmocka_unit_test(what_is_saved_comes_back_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
