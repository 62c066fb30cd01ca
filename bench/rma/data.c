/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of buffers, computed from their source and destination rank, so that received data can be checked in
 * place. */
#include "bench/rma/rma.h"
#include <string.h>

static uint64_t key_of(int from, int to, uint64_t salt)
{
    return (salt + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)(unsigned)from << 32 | (unsigned)to);
}

/* Returns bytes 8·i … 8·i + 7. Multiplying by odd numbers keeps different words apart. */
static uint64_t word_of(uint64_t key, size_t i)
{
    uint64_t word = (key + i) * UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ (word >> 31)) * UINT64_C(0x94d049bb133111eb);
    return word ^ (word >> 29);
}

void rma_fill(void *at, size_t bytes, int from, int to, uint64_t salt)
{
    const uint64_t key = key_of(from, to, salt);
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word = word_of(key, done / 8);
        memcpy((unsigned char *)at + done, &word, bytes - done < 8 ? bytes - done : 8);
    }
}

int64_t rma_first_wrong(const void *at, size_t bytes, int from, int to, uint64_t salt)
{
    const uint64_t key = key_of(from, to, salt);
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word = word_of(key, done / 8);
        unsigned char expected[8];
        memcpy(expected, &word, 8);
        for (size_t i = done; i < bytes && i < done + 8; i++)
            if (((const unsigned char *)at)[i] != expected[i - done]) return (int64_t)i;
    }
    return -1;
}

int64_t rma_term(int rank, size_t i, uint64_t salt)
{
    return (int64_t)(word_of(key_of(rank, 0, salt), i) % 1000);
}

int64_t rma_total(int num_ranks, size_t i, uint64_t salt)
{
    int64_t total = 0;
    for (int rank = 0; rank < num_ranks; rank++)
        total += rma_term(rank, i, salt);
    return total;
}
