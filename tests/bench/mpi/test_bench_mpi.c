/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench --mpi as users run it. */
#include "results.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void mpi_is_compared_or_named_as_missing(void **state)
{
    (void)state;
#ifdef HAVE_MPI_BENCH
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI keeps memory to its end, */
    setenv("TSAN_OPTIONS", "report_bugs=0", 1);  /* and takes locks in either order */
    json_t *json = results_of("all -n 2 --tokens 16 --mpi" SMALL);
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(results_list(json), i);
        results_assert_sound(result);
        double speedup = results_real(result, "mpi_us") / results_real(result, "median_us");
        assert_true(results_real(result, "speedup_over_mpi") > speedup * 0.999);
        assert_true(results_real(result, "speedup_over_mpi") < speedup * 1.001);
    }
    json_decref(json);
    unsetenv("TSAN_OPTIONS");
    unsetenv("LSAN_OPTIONS");
    shell_expect("PATH=/nowhere $EXPAR bench -n 2 --mpi" SMALL, 1, "", "cannot start mpirun");
#else
    shell_expect("$EXPAR bench -n 2 --mpi" SMALL, 1, "", "--mpi needs expar-bench-mpi");
#endif
}

/* Each rank of the job would start all of them. */
static void a_job_does_not_start_mpirun(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -n 2 -- $EXPAR bench -n 2 --mpi" SMALL, 64, "", "--mpi starts its ranks itself");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mpi_is_compared_or_named_as_missing),
                                       cmocka_unit_test(a_job_does_not_start_mpirun)};
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
