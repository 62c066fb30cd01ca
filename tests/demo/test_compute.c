/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of the demo's operations on the CPU: the exponential against libm's in double, and what is simple to
 * say of each operation's output. GPUs are held against the CPU in test_gpu.c. */
#include "cmocka_headers.h"
#include "exponential.h"
#include "operations.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In ulps of a float near `expected`. */
static double error_ulp(float got, double expected)
{
    int exponent;
    frexp(expected, &exponent);
    return fabs((double)got - expected) / ldexp(1, exponent - 24);
}

static void exponential_is_accurate(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = -870000; i <= 880000; i += 7) {
        float x = (float)i * 1e-4f;
        double error = error_ulp(exponential(x), exp((double)x));
        if (!(error <= worst)) worst = error;
    }
    if (!(worst <= 2)) fail_msg("%g units in the last place", worst);
    assert_true(exponential(0) == 1.0f);
}

static void exponential_stays_at_its_bounds(void **state)
{
    (void)state;
    assert_true(exponential(-1e30f) == exponential(-87.0f));
    assert_true(exponential(1e30f) == exponential(88.0f));
    assert_true(exponential(-87.0f) > 0);
    assert_true(isfinite(exponential(88.0f)));
}

static void cpu_operations_do_what_they_say(void **state)
{
    (void)state;
    demo_error error = {.text = ""};
    compute *c = NULL;
    const model_sizes sizes = operations_sizes();
    static operations_result once, again;
    assert_true(compute_cpu.create(&sizes, 0, 1, &c, &error));
    operations_run(c, 5, &once);
    operations_run(c, 5, &again);
    assert_memory_equal(&once, &again, sizeof once);
    for (int row = 0; row < OP_ROWS; row++) {
        float sum = 0;
        for (int k = 0; k < OP_TOP_K; k++) {
            int32_t expert = once.chosen[row * OP_TOP_K + k];
            assert_in_range(expert, 0, OP_EXPERTS - 1);
            sum += once.weights[row * OP_TOP_K + k];
            if (k > 0) /* no bias: the scores fall */
                assert_true(once.scores[row * OP_EXPERTS + expert] <=
                            once.scores[row * OP_EXPERTS + once.chosen[row * OP_TOP_K + k - 1]]);
        }
        assert_true(fabsf(sum - 1) < 1e-6f);
    }
    for (int i = 0; i < OP_ROWS * OP_EXPERTS; i++)
        assert_true(once.scores[i] > 0 && once.scores[i] < 1);
    operations_run(c, 6, &again);
    assert_memory_not_equal(once.sums, again.sums, sizeof once.sums);
    compute_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_is_accurate),
        cmocka_unit_test(exponential_stays_at_its_bounds),
        cmocka_unit_test(cpu_operations_do_what_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
