/* SPDX-License-Identifier: Apache-2.0 */
/* The clock: nanoseconds that never go back. */
#include "base/base.h"

#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_coarse_ns(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}
