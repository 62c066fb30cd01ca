/* SPDX-License-Identifier: Apache-2.0 */
/* Loops that the compiler vectorises, once for each of some instruction sets. Private to this folder. */
#ifndef EXPAR_EXEC_CPU_CORE_CLONES_H
#define EXPAR_EXEC_CPU_CORE_CLONES_H

/* Sanitizers instrument code that runs before they are ready to resolve clones. Tests make each clone by itself. */
#if defined(TESTS_ONE_CLONE)
#define LOOP_CLONES
#elif defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LOOP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOOP_CLONES
#endif

/* A part of a clone: it must be compiled together with it. */
#define LOOP_PART static inline __attribute__((always_inline))

#endif
