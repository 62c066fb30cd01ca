/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of rma.cu, as host and device both see them. Compiles as C17, under nvcc and under NVRTC. */
#ifndef EXPAR_BENCH_GPU_KERNELS_RMA_FORMS_H
#define EXPAR_BENCH_GPU_KERNELS_RMA_FORMS_H

#include <expar/device.h>

enum { RMA_GPU_THREADS = 256 };
/* bench_rma_post: threads of all blocks together put so many words at a time, which the smallest queue holds. */
enum { RMA_GPU_POST_BLOCKS = 4, RMA_GPU_POST_THREADS = 128 };
enum { RMA_GPU_POSTS = RMA_GPU_POST_BLOCKS * RMA_GPU_POST_THREADS };
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
    expar_int32 bare;  /* by loads and stores of the kernel's own */
    expar_int32 peers; /* bench_rma_post: word i goes to PE 1 + i % peers */
    /* pinned memory, which the host reads after the kernel: the time of all rounds, and 1 if a wait ended in vain */
    expar_uint64 *ns, *failed;
    /* bench_rma_post, pinned memory: of block b, at 3 * b, when it began and ended, and its time of issuing */
    expar_uint64 *spans;
    /* bench_rma_post, memory of the GPU: [rounds] cycles of each word that one thread waits for; NULL: all threads put
       one, and then wait */
    expar_uint32 *cycles;
} rma_gpu_call;

#endif
