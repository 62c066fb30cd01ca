/* SPDX-License-Identifier: Apache-2.0 */
/* Checked sizes, rounding and the clock. */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void sums_and_products_say_when_they_overflow(void **state)
{
    (void)state;
    size_t size;
    assert_false(size_add_overflows(SIZE_MAX - 1, (size_t)1, &size));
    assert_int_equal(size, SIZE_MAX);
    assert_true(size_add_overflows(SIZE_MAX, (size_t)1, &size));
    assert_false(size_mul_overflows(SIZE_MAX / 3, (size_t)3, &size));
    assert_int_equal(size, SIZE_MAX);
    assert_true(size_mul_overflows(SIZE_MAX / 3 + 1, (size_t)3, &size));
    assert_true(size_add_overflows((int64_t)-2, (size_t)1, &size));
}

static void rounding_up_to_multiples(void **state)
{
    (void)state;
    assert_int_equal(align_up(0, 128), 0);
    assert_int_equal(align_up(1, 128), 128);
    assert_int_equal(align_up(128, 128), 128);
    assert_int_equal(align_up(129, 128), 256);
    assert_int_equal(align_up(5, 1), 5);
    assert_int_equal(align_up((UINT64_C(1) << 40) + 1, UINT64_C(1) << 21), (UINT64_C(1) << 40) + (UINT64_C(1) << 21));
}

static void clock_never_goes_back(void **state)
{
    (void)state;
    int64_t first = clock_ns();
    int64_t last = first;
    for (int i = 0; i < 100000; i++) {
        int64_t now = clock_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(last > first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products_say_when_they_overflow),
        cmocka_unit_test(rounding_up_to_multiples),
        cmocka_unit_test(clock_never_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
