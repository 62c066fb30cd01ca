/* SPDX-License-Identifier: Apache-2.0 */
/* late_clock: preloaded, it puts the clock of the day 50 ms back. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    const int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result != 0 || clock != CLOCK_REALTIME) return result;
    time->tv_nsec -= 50000000;
    if (time->tv_nsec >= 0) return 0;
    time->tv_nsec += 1000000000;
    time->tv_sec--;
    return 0;
}
