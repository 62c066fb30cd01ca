/* SPDX-License-Identifier: Apache-2.0 */
/* That a GPU serves on after a group has failed there. */
#ifndef TESTS_GPU_SERVES_H
#define TESTS_GPU_SERVES_H

#include "ep/harness/traffic.h"
#include <stdbool.h>

/* Memory, copies and this thread's stream, in the context of GPU `device`. By a rank of a mirrored buffer. */
bool serves_context(int32_t device);
/* A whole round on fresh thread ranks. */
bool serves_ranks(const traffic *t);

#endif
