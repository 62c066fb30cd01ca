/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose kernels the compiler rejects (cuda/fake/nvrtc.c). Each fails and names the source, its log comes once for
 * each shape of rows, in whatever turn they come, and the buffer stays usable. */
#include "shmem/kind.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 3

static void dispatch_rows(expar_ep *ep, int64_t hidden)
{
    static char stream; /* of the fake driver any address is one */
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(NULL, EXPAR_F32, 0, hidden);
    args.topk_idx = expar_tensor_2d(NULL, EXPAR_I32, 0, 1);
    args.x.device = args.topk_idx.device = (expar_device){.type = EXPAR_CUDA};
    args.num_experts = 1;
    args.stream = &stream;
    CHECK_STATUS(EXPAR_ERR_CUDA, expar_ep_dispatch(ep, &args, &result));
    CHECK_TEXT("expar_ep_dispatch", "exec/cuda/kernels/normal/dispatch.cu: nvrtcCompileProgram");
}

static void two_shapes_in_turns(expar_group *group, void *shared)
{
    (void)shared;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    expar_ep *ep = NULL;
    config.max_tokens = 4;
    config.max_row_bytes = 128;
    config.max_topk = config.max_experts = 1;
    config.device = (expar_device){.type = EXPAR_CUDA};
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    for (int32_t round = 0; round < ROUNDS; round++) {
        dispatch_rows(ep, 16);
        dispatch_rows(ep, 32);
    }
    CHECK_OK(expar_ep_destroy(ep));
}

static int32_t count_of(const char *text, const char *part)
{
    int32_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        count++;
    return count;
}

static void the_log_comes_once_a_shape(void **state)
{
    static char text[1 << 16];
    (void)state;
    int file = memfd_create("log", 0), saved = dup(STDERR_FILENO);
    fflush(stderr);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = 1};
    bool passed = ranks_run(&plan, two_shapes_in_turns, NULL);
    fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    close(file);
    close(saved);
    if (!passed) fail_msg("%s", text);
    assert_int_equal(count_of(text, "compiling exec/cuda/kernels/normal/dispatch.cu"), 2);
    assert_int_equal(count_of(text, "fake error: this is refused"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_log_comes_once_a_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
