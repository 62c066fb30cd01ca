/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of rma.cu, as host and device both see them. Compiles as C17, under nvcc and under NVRTC. */
#ifndef EXPAR_BENCH_GPU_KERNELS_RMA_FORMS_H
#define EXPAR_BENCH_GPU_KERNELS_RMA_FORMS_H

#include <expar/device.h>

enum { RMA_GPU_THREADS = 256 };
typedef enum rma_gpu_op { RMA_GPU_PUT = 0, RMA_GPU_GET, RMA_GPU_SIGNAL, RMA_GPU_OPS } rma_gpu_op;

typedef struct rma_gpu_call {
    expar_device_handle handle;
    /* this rank's symmetric memory */
    unsigned char *dest, *source;
    expar_uint64 *signal;
    /* the peer's copies of them, by loads and stores */
    unsigned char *peer_dest, *peer_source;
    expar_uint64 *peer_signal;
    expar_uint64 bytes;
    /* signals have the values first + 1, first + 2, …; they go to and fro, and one rank starts */
    expar_uint64 first;
    expar_int32 op, scope, rounds, peer, starts;
    expar_int32 bare; /* by loads and stores of the kernel's own */
    /* pinned memory, which the host reads after the kernel: the time of all rounds, and 1 if a wait ended in vain */
    expar_uint64 *ns, *failed;
} rma_gpu_call;

#endif
