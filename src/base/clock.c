/* SPDX-License-Identifier: Apache-2.0 */
/* The clock: nanoseconds that never go back. */
#include "base/base.h"

#include <time.h>

int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
