/* SPDX-License-Identifier: Apache-2.0 */
/* The full fence, for doorbells and for quiet.
 *
 * ThreadSanitizer does not model fences, and the compiler warns of it. No data in this library is published by a fence
 * alone: flags are stored with release and read with acquire, which it does model. Fences only keep a sleeper and its
 * waker from missing each other. So the warning is switched off here, at this one place. */
#ifndef EXPAR_MEM_FENCE_H
#define EXPAR_MEM_FENCE_H

#include <stdatomic.h>

#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif

/* Orders all of this thread's earlier loads and stores before all of its later ones. */
static inline void fence_full(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* Orders this thread's earlier stores before its later ones. */
static inline void fence_release(void)
{
    atomic_thread_fence(memory_order_release);
}

#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
