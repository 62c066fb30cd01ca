/* SPDX-License-Identifier: Apache-2.0 */
/* The run-time compiler, which needs no GPU: what compiles, what does not, and what is said. */
#include "cuda/parts.h"
#include "cuda/without_nvrtc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const cuda_source good = {.name = "tests/good.cu",
                                 .text = "#include \"proto/normal.h\"\n"
                                         "extern \"C\" __global__ void fill(uint64_t *out)\n"
                                         "{\n"
                                         "    out[threadIdx.x] = ep_word(FIRST, threadIdx.x);\n"
                                         "}\n"};
static const cuda_source bad = {.name = "tests/bad.cu",
                                .text = "extern \"C\" __global__ void fill(int *out)\n{\n    *out = nonsense;\n}\n"};

static expar_status compile(const cuda_source *source, const cuda_macro *macros, size_t count, char **log)
{
    cuda_options options;
    void *cubin = NULL;
    size_t bytes = 0;
    expar_status status = cuda_options_make(90, macros, count, &options);
    assert_int_equal(status, EXPAR_OK);
    status = cuda_source_compile(source, &options, &cubin, &bytes, log);
    if (status == EXPAR_OK) {
        assert_true(bytes > 64);
        assert_memory_equal(cubin, "\177ELF", 4);
        free(cubin);
    }
    cuda_options_free(&options);
    return status;
}

static void a_kernel_compiles_with_its_macros_and_headers(void **state)
{
    (void)state;
    char *log = NULL;
    assert_int_equal(compile(&good, &(cuda_macro){"FIRST", 7}, 1, &log), EXPAR_OK);
    assert_string_equal(log, "");
    free(log);
}

static void a_missing_macro_is_an_error(void **state)
{
    (void)state;
    char *log = NULL;
    assert_int_equal(compile(&good, NULL, 0, &log), EXPAR_ERR_CUDA);
    assert_non_null(strstr(log, "FIRST"));
    free(log);
}

static void an_error_names_file_and_line(void **state)
{
    (void)state;
    char *log = NULL;
    assert_int_equal(compile(&bad, NULL, 0, &log), EXPAR_ERR_CUDA);
    assert_non_null(strstr(expar_last_error(), "tests/bad.cu"));
    assert_non_null(strstr(log, "tests/bad.cu(3)"));
    free(log);
}

static void an_unknown_kernel_is_named(void **state)
{
    (void)state;
    void *cubin;
    size_t bytes;
    assert_int_equal(cuda_compile("nothing.cu", NULL, 0, 90, &cubin, &bytes, NULL), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "nothing.cu"));
}

static void the_compiler_says_where_it_is(void **state)
{
    (void)state;
    const char *path;
    int32_t version;
    assert_int_equal(cuda_nvrtc_find(&path, &version), EXPAR_OK);
    assert_true(version >= 11080);
    assert_non_null(strstr(path, "libnvrtc"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_compiles_with_its_macros_and_headers),
        cmocka_unit_test(a_missing_macro_is_an_error),
        cmocka_unit_test(an_error_names_file_and_line),
        cmocka_unit_test(an_unknown_kernel_is_named),
        cmocka_unit_test(the_compiler_says_where_it_is),
    };
    const char *path;
    int32_t version;
    if (cuda_nvrtc_find(&path, &version) != EXPAR_OK) return without_nvrtc();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
