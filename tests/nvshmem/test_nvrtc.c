/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC compiles kernels with NVSHMEM's names, with no headers but expar's, and without a message. The module has the
 * variable that the library fills. */
#include "cuda/parts.h"
#include "cuda/test_sources.h"
#include "cuda/without_nvrtc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char kernel[] =
    "#include <expar/compat/nvshmemx.h>\n"
    "extern \"C\" __global__ void pass(float *row, const float *from, expar_uint64 *signal)\n"
    "{\n"
    "    const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();\n"
    "    nvshmemx_float_put_signal_block(row, from, 100, signal, 1, NVSHMEM_SIGNAL_SET, next);\n"
    "    if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_EQ, 1);\n"
    "    nvshmemx_float_max_reduce_block(NVSHMEM_TEAM_WORLD, row, row, 100);\n"
    "}\n";

static void names_compile(void **state)
{
    (void)state;
    static const int32_t archs[] = {80, 100};
    for (size_t i = 0; i < ARRAY_LENGTH(archs); i++) {
        const cuda_source source = {
            .name = "tests/pass.cu", .text = kernel, .table = test_sources, .table_count = test_num_sources};
        cuda_options options;
        void *cubin = NULL;
        size_t bytes = 0;
        char *log = NULL;
        assert_int_equal(cuda_options_make(archs[i], NULL, 0, &options), EXPAR_OK);
        const expar_status status = cuda_source_compile(&source, &options, &cubin, &bytes, &log);
        if (status != EXPAR_OK) fail_msg("sm_%d: %s\n%s", archs[i], expar_last_error(), log ? log : "");
        assert_string_equal(log, "");
        assert_non_null(memmem(cubin, bytes, "expar_nvshmem_state", sizeof "expar_nvshmem_state" - 1));
        free(log);
        free(cubin);
        cuda_options_free(&options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_compile),
    };
    const char *path;
    int32_t version;
    if (cuda_nvrtc_find(&path, &version) != EXPAR_OK) return without_nvrtc();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
