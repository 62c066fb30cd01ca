/* SPDX-License-Identifier: Apache-2.0 */
/* clones: plain loops that the compiler vectorises, once for each generation of processors. */
#ifndef EXPAR_BENCH_FRAME_CLONES_H
#define EXPAR_BENCH_FRAME_CLONES_H

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

#endif
