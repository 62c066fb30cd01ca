/* SPDX-License-Identifier: Apache-2.0 */
/* expar bench --mpi as users run it. */
#include "printed.h"
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#ifdef HAVE_MPI_BENCH
/* MPI's rows and sums are compared as the library's are, or nothing would be verified. */
static void assert_compared(const json_t *result)
{
    double speedup = results_real(result, "mpi_us") / results_real(result, "median_us");
    assert_true(json_is_true(json_object_get(result, "verified")));
    assert_true(results_real(result, "speedup_over_mpi") > speedup * 0.999);
    assert_true(results_real(result, "speedup_over_mpi") < speedup * 1.001);
}

/* The result has how much faster than MPI the copy roofline is. */
static void assert_limit_compared(const json_t *result)
{
    const double speedup = results_real(result, "mpi_us") / results_real(result, "copy_limit_us");
    assert_true(results_real(result, "copy_limit_speedup_over_mpi") > speedup * 0.999);
    assert_true(results_real(result, "copy_limit_speedup_over_mpi") < speedup * 1.001);
}
#endif

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
        assert_compared(result);
    }
    json_decref(json);
#ifdef HAVE_FABRIC
    json = results_of("all -n 2 --nodes 2 --tokens 16 --mpi" SMALL);
    for (size_t i = 0; i < 2; i++)
        assert_compared(json_array_get(results_list(json), i));
    json_decref(json);
#endif
    unsetenv("TSAN_OPTIONS");
    unsetenv("LSAN_OPTIONS");
    shell_expect("PATH=/nowhere $EXPAR bench -n 2 --mpi" SMALL, 1, "", "cannot start mpirun");
#else
    shell_expect("$EXPAR bench -n 2 --mpi" SMALL, 1, "", "--mpi needs expar-bench-mpi");
#endif
}

/* Low-latency mode, with ranks that a token does not go to and without; coded rows have no baseline. */
static void mpi_delivers_the_layout_of_low_latency_mode(void **state)
{
    (void)state;
#ifdef HAVE_MPI_BENCH
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI keeps memory to its end, */
    setenv("TSAN_OPTIONS", "report_bugs=0", 1);  /* and takes locks in either order */
    static const char *const arguments[] = {"ll -n 1 --tokens 0,3 --mpi" SMALL, "ll -n 2 --tokens 0,9 --mpi" SMALL,
                                            "ll -n 4 --tokens 1,9 --dtype f32 --mpi" SMALL,
                                            "ll -n 2 --tokens 5,9 --routing onehot --mpi" SMALL};
    for (size_t a = 0; a < sizeof arguments / sizeof *arguments; a++) {
        json_t *json = results_of(arguments[a]);
        assert_int_equal(json_array_size(results_list(json)), 6);
        for (size_t i = 0; i < 6; i++)
            assert_compared(json_array_get(results_list(json), i));
        for (size_t i = 3; i < 6; i++)
            assert_limit_compared(json_array_get(results_list(json), i));
        json_decref(json);
    }
    json_t *json = results_of("ll dispatch -n 2 --tokens 5 --hidden 256 --iters 3 --format fp8 --mpi");
    assert_true(json_is_true(json_object_get(json_array_get(results_list(json), 0), "verified")));
    assert_null(json_object_get(json_array_get(results_list(json), 0), "mpi_us"));
    json_decref(json);
    unsetenv("TSAN_OPTIONS");
    unsetenv("LSAN_OPTIONS");
#else
    shell_expect("$EXPAR bench ll -n 2 --mpi" SMALL, 1, "", "--mpi needs expar-bench-mpi");
#endif
}

/* mpirun gives rank 0 a terminal, also where the user has a pipe. */
static void a_pipe_gets_all_columns(void **state)
{
    (void)state;
#ifdef HAVE_MPI_BENCH
    setenv("LSAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI keeps memory to its end, */
    setenv("TSAN_OPTIONS", "report_bugs=0", 1);  /* and takes locks in either order */
    shell_expect("$EXPAR bench dispatch -n 2 --tokens 16 --mpi" SMALL " >$TMP/table && grep Hidden $TMP/table", 1, "",
                 "");
    shell_expect("grep -c \"$(printf '\\033')\" $TMP/table", 1, "0\n", "");
    shell_expect("head -n 3 $TMP/table", 0, "bus GB/s", "");
    unsetenv("TSAN_OPTIONS");
    unsetenv("LSAN_OPTIONS");
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
                                       cmocka_unit_test(mpi_delivers_the_layout_of_low_latency_mode),
                                       cmocka_unit_test(a_pipe_gets_all_columns),
                                       cmocka_unit_test(a_job_does_not_start_mpirun)};
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
