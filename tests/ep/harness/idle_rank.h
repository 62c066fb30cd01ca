/* SPDX-License-Identifier: Apache-2.0 */
/* A rank without tokens, for tests on the simulated driver: so much of the kernels is simulated
 * (cuda/fake/kernels.c). */
#ifndef TESTS_EP_HARNESS_IDLE_RANK_H
#define TESTS_EP_HARNESS_IDLE_RANK_H

#include "cuda/cuda.h"
#include "group/group.h"
#include <expar/ep.h>

#define IDLE_HIDDEN 32

typedef struct idle_rank {
    expar_group *group;
    cuda_device *gpu;
    cu_stream stream; /* its own */
    expar_ep *ep;
    expar_ep_dispatch_result came; /* of the last idle_dispatch */
} idle_rank;

/* On GPU 0 or the one given, whose context is entered until the end. pool_bytes: also the pool's
   limit; 0: neither is set. */
bool idle_begin(idle_rank *one, expar_group *group);
bool idle_begin_with(idle_rank *one, expar_group *group, int64_t pool_bytes);
bool idle_begin_at(idle_rank *one, expar_group *group, int32_t gpu);
/* Frees what the last dispatch left. */
void idle_forget(idle_rank *one);
/* Likewise with a config, that of the others or any. */
expar_ep_config idle_config(const expar_group *group);
bool idle_begin_as(idle_rank *one, expar_group *group, const expar_ep_config *config);
/* On the simulated driver it also checks that no stream of the process has ever had a host function. */
void idle_end(idle_rank *one);

/* Takes the buffer's pool, but for the handle that the next dispatch makes: its results do not fit. */
mem_block *idle_fill_pool(const idle_rank *one);

/* Without elements, on GPU 0. */
expar_tensor idle_tensor(expar_dtype dtype, int64_t columns);
/* Valid calls. The combine's handle is that of the last idle_dispatch. */
expar_ep_dispatch_args idle_dispatch_args(const idle_rank *one, expar_dtype dtype);
expar_ep_combine_args idle_combine_args(const idle_rank *one);
bool idle_dispatch(idle_rank *one, expar_dtype dtype);
bool idle_combine(idle_rank *one);

#endif
