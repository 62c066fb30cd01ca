/* SPDX-License-Identifier: Apache-2.0 */
/* A window for the software NIC (world_window). It accesses words as the device's thread does without one. */
#ifndef TESTS_NET_GDA_WINDOW_H
#define TESTS_NET_GDA_WINDOW_H

#include "world.h"

static inline void *window_behind(const void *at)
{
    return (void *)((uintptr_t)at - WORLD_BEYOND);
}

static inline bool window_is_words(uintptr_t at, size_t bytes)
{
    return at % 4 == 0 && bytes % 4 == 0;
}

static inline bool window_read(nic_window *self, void *dest, const void *at, size_t bytes)
{
    const void *from = window_behind(at);
    (void)self;
    if (bytes == 8 && (uintptr_t)from % 8 == 0) {
        const uint64_t word = __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE);
        memcpy(dest, &word, sizeof word);
    } else if (bytes == 4 && (uintptr_t)from % 4 == 0) {
        const uint32_t word = __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE);
        memcpy(dest, &word, sizeof word);
    } else {
        memcpy(dest, from, bytes);
    }
    return true;
}

static inline bool window_write(nic_window *self, void *at, const void *source, size_t bytes)
{
    uint8_t *to = window_behind(at);
    (void)self;
    if (bytes == 8 && (uintptr_t)to % 8 == 0) {
        uint64_t word;
        memcpy(&word, source, sizeof word);
        __atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELEASE);
        return true;
    }
    if (!window_is_words((uintptr_t)to, bytes)) memcpy(to, source, bytes);
    for (size_t i = 0; window_is_words((uintptr_t)to, bytes) && i < bytes; i += 4) {
        uint32_t word;
        memcpy(&word, (const uint8_t *)source + i, sizeof word);
        __atomic_store_n((uint32_t *)(void *)(to + i), word, __ATOMIC_RELEASE);
    }
    return true;
}

#endif
