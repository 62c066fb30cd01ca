/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC compiles expar/device.h without any other header of expar, of C or of CUDA, and without a message. */
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
    "#include <expar/device.h>\n"
    "extern \"C\" __global__ void pass(expar_device_handle h, float *row, const float *from, expar_uint64 *signal)\n"
    "{\n"
    "    const int next = (expar_kernel_my_pe(&h) + 1) % expar_kernel_n_pes(&h);\n"
    "    expar_kernel_put_signal_f32_block(&h, row, from, 100, signal, 1, EXPAR_SIGNAL_SET, next);\n"
    "    if (expar_kernel_signal_wait_until_block(&h, signal, EXPAR_CMP_EQ, 1, 0) != EXPAR_OK) return;\n"
    "    expar_kernel_get_nbi_warp(&h, row, row + 1, 400, next);\n"
    "    if (threadIdx.x == 0) expar_kernel_atomic_add_u64(&h, signal, 1, next);\n"
    "    expar_kernel_barrier_block(&h);\n"
    "}\n";

static void compile_for(int32_t arch, int64_t checks)
{
    const cuda_macro macros[] = {{"EXPAR_DEVICE_CHECKS", checks}, {"EXPAR_DEVICE_GDA", checks}};
    const cuda_source *header = NULL;
    cuda_options options;
    void *cubin = NULL;
    size_t bytes = 0;
    char *log = NULL;
    for (size_t i = 0; i < test_num_sources; i++)
        if (!strcmp(test_sources[i].name, "expar/device.h")) header = &test_sources[i];
    assert_non_null(header);
    const cuda_source source = {.name = "tests/pass.cu", .text = kernel, .table = header, .table_count = 1};
    assert_int_equal(cuda_options_make(arch, macros, ARRAY_LENGTH(macros), &options), EXPAR_OK);
    const expar_status status = cuda_source_compile(&source, &options, &cubin, &bytes, &log);
    if (status != EXPAR_OK) fail_msg("sm_%d: %s\n%s", arch, expar_last_error(), log ? log : "");
    assert_string_equal(log, "");
    free(log);
    free(cubin);
    cuda_options_free(&options);
}

static void the_header_compiles_alone(void **state)
{
    (void)state;
    static const int32_t archs[] = {80, 90, 100};
    for (size_t i = 0; i < ARRAY_LENGTH(archs); i++)
        compile_for(archs[i], (int64_t)i % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_header_compiles_alone),
    };
    const char *path;
    int32_t version;
    if (cuda_nvrtc_find(&path, &version) != EXPAR_OK) return without_nvrtc();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
