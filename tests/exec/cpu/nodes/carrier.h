/* SPDX-License-Identifier: Apache-2.0 */
/* The executor of the CPU that carries out a buffer's calls across nodes: the buffer's own, or inside one for GPUs. */
#ifndef TESTS_EXEC_CPU_NODES_CARRIER_H
#define TESTS_EXEC_CPU_NODES_CARRIER_H

#include "ep/normal/normal.h"
#include "exec/cpu/nodes/rails.h"

#ifdef MIRROR_RENAMES
#include "exec/cuda/hosted/hosted.h"

static inline cpu_executor *carrier_of(const expar_ep *ep)
{
    return cpu_of(hosted_of(ep->base.exec)->inner);
}
#else
static inline cpu_executor *carrier_of(const expar_ep *ep)
{
    return cpu_of(ep->base.exec);
}
#endif

#endif
