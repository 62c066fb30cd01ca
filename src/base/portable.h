/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for headers that compile as C17, under nvcc and under NVRTC: fixed-width integers without libc, functions,
 * and words shared between threads. It includes nothing else. */
#ifndef EXPAR_BASE_PORTABLE_H
#define EXPAR_BASE_PORTABLE_H

#ifdef __CUDACC_RTC__ /* there are no headers under NVRTC */
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#ifdef __CUDACC__
#define PORTABLE_FUNC      static __device__ inline
#define PORTABLE_SHARED(T) T /* accessed by instructions with an order and a scope */
#else
#include <stdatomic.h>
#define PORTABLE_FUNC      static inline
#define PORTABLE_SHARED(T) _Atomic(T)
#endif

#endif
