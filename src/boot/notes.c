/* SPDX-License-Identifier: Apache-2.0 */
/* notes: what a rank says of its own waits. */
#include "boot/notes.h"

void boot_note(boot *self, int32_t subject, boot_doing doing, int32_t rank)
{
    uint64_t word = (uint64_t)doing << 32 | (uint32_t)rank;
    atomic_store_explicit(&self->notes->words[subject], word, memory_order_relaxed);
}

void boot_note_blamed(boot *self, int32_t rank)
{
    uint64_t none = 0;
    atomic_compare_exchange_strong_explicit(&self->notes->blamed, &none, (uint64_t)rank + 1, memory_order_relaxed,
                                            memory_order_relaxed);
}

void notes_read(const boot_notes *self, int32_t subject, boot_answer *out)
{
    uint64_t word = atomic_load_explicit(&self->words[subject], memory_order_relaxed);
    out->came = true;
    out->doing = (boot_doing)(word >> 32);
    out->rank = out->doing == BOOT_IDLE ? -1 : (int32_t)(uint32_t)word;
    out->blamed = (int32_t)atomic_load_explicit(&self->blamed, memory_order_relaxed) - 1;
}
