/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces way_fabric.c if libfabric's headers were not found. */
#include "bench/rma/rma.h"
#include <stdio.h>

struct rma_way *rma_way_fabric(const struct rma_memory *memory, char *missing, size_t missing_bytes)
{
    (void)memory;
    snprintf(missing, missing_bytes,
             "this build found no headers of libfabric (Debian: apt-get install libfabric-dev)");
    return NULL;
}

const char *rma_way_fabric_provider(const struct rma_way *way)
{
    (void)way;
    return "none";
}
