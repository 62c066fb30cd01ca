/* SPDX-License-Identifier: Apache-2.0 */
/* Random delays for litmus tests. With EXPAR_DELAYS, a seed, kernels delay threads at random at every ordered access
 * and at every token, so that only correct order gives correct results. Without it this file adds nothing. Timing on a
 * GPU cannot be replayed: the seed only changes which threads tend to be late. */
#ifndef EXPAR_LINK_DEVICE_DELAY_H
#define EXPAR_LINK_DEVICE_DELAY_H

#ifdef EXPAR_DELAYS
#ifndef COUNT_DELAY
/* Number of delays in the module. All threads add to it; tests read it when no kernel runs. */
__device__ unsigned long long gpu_delays;
#define COUNT_DELAY() atomicAdd(&gpu_delays, 1ull)
#endif

GPU_FUNC void hold_back(void)
{
    uint32_t mix =
        cycles_now() ^ (threadIdx.x + blockIdx.x * blockDim.x) * 0x9e3779b9u ^ (uint32_t)EXPAR_DELAYS * 0x85ebca6bu;
    mix = (mix ^ mix >> 16) * 0x7feb352du;
    mix = (mix ^ mix >> 15) * 0x846ca68bu;
    mix ^= mix >> 16;
    uint32_t choice = mix & 255;
    if (choice < 200) return;
    uint32_t most_ns = choice == 255 ? 100000 : choice > 248 ? 10000 : 600;
    COUNT_DELAY();
    __nanosleep((mix >> 8) % most_ns);
}
#else
GPU_FUNC void hold_back(void)
{
}
#endif

#endif
