/* SPDX-License-Identifier: Apache-2.0 */
/* Before main: without a GPU the program ends as skipped. Tests of what GPUs do not have (CMakeLists.txt) are left out.
 * It also ends as skipped without ready kernels where only these are to be used. */
#include "cuda/gpus.h"
#include "gpu/worker.h"
#include "oracle/unit.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* EXPAR_NVRTC=/nowhere leaves nothing but ready kernels. EXPAR_TEST_QUICK=1 takes them where there are any, and else
   what NVRTC compiles, which takes longer. */
static void choose_kernels(void)
{
    const char *nvrtc = getenv("EXPAR_NVRTC");
    bool only_ready = nvrtc && strcmp(nvrtc, "/nowhere") == 0, quick = getenv("EXPAR_TEST_QUICK") != NULL;
    if (!only_ready && !quick) return;
    bool ready = gpus_have_ready_kernels();
    if (ready) setenv("EXPAR_NVRTC", "/nowhere", 1);
    if (ready || !only_ready) return;
    printf("SKIPPED: this build has no ready kernels for GPU 0\n");
    fflush(stdout);
    _Exit(GPUS_SKIP);
}

/* The C library passes main's arguments to constructors. */
__attribute__((constructor)) static void gate(int argc, char **argv)
{
    bool threads = argc < 2 || strcmp(argv[1], "processes") != 0;
    /* Streams beyond this many share queues to the GPU, where a kernel that waits would delay the one that it waits
       for. Tests run up to 16 ranks on one GPU. Contexts of many processes do not fit so many. */
    if (threads) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    cmocka_set_skip_filter(GPU_LEAVES_OUT);
    if (worker_is_host()) return;
    if (gpus_count(1) < 1) _Exit(GPUS_SKIP);
    choose_kernels();
}
