/* SPDX-License-Identifier: Apache-2.0 */
/* Before main: without a GPU the program ends as skipped; tests of what GPUs do not have (CMakeLists.txt) are left out.
 */
#include "cuda/gpus.h"
#include "oracle/unit.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The C library hands main's arguments to constructors. */
__attribute__((constructor)) static void gate(int argc, char **argv)
{
    bool threads = argc < 2 || strcmp(argv[1], "processes") != 0;
    /* Streams beyond this many share queues to the GPU, where a kernel that waits would hold up the one that it waits
       for. Tests run up to 16 ranks on one GPU. Contexts of many processes have no room for so many. */
    if (threads) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (gpus_count(1) < 1) _Exit(GPUS_SKIP);
    cmocka_set_skip_filter(GPU_LEAVES_OUT);
}
