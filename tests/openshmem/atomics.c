/* SPDX-License-Identifier: Apache-2.0 */
/* Every atomic of the standard types, on another PE. What gives nothing back is complete after a quiet. */
#include "expect.h"

static int i32;
static unsigned long bits;
static long long wide;
static double real;
static size_t size;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n;
    shmem_atomic_set(&i32, -5, next);
    shmem_quiet();
    EXPECT(shmem_atomic_fetch(&i32, next) == -5);
    EXPECT(shmem_atomic_swap(&i32, 6, next) == -5);
    EXPECT(shmem_atomic_compare_swap(&i32, 5, 7, next) == 6);
    EXPECT(shmem_atomic_compare_swap(&i32, 6, 7, next) == 6);
    EXPECT(shmem_int_atomic_fetch_inc(&i32, next) == 7);
    shmem_atomic_set(&bits, 0xf0ul, next);
    shmem_quiet();
    EXPECT(shmem_atomic_fetch_and(&bits, 0x3cul, next) == 0xf0);
    EXPECT(shmem_atomic_fetch_or(&bits, 0x03ul, next) == 0x30);
    EXPECT(shmem_atomic_fetch_xor(&bits, 0xfful, next) == 0x33);
    shmem_atomic_xor(&bits, 0x0ful, next);
    shmem_quiet();
    EXPECT(shmem_ulong_atomic_fetch(&bits, next) == 0xc3);
    long long old = 0;
    shmem_atomic_add(&wide, -3ll, next);
    shmem_quiet();
    shmem_atomic_fetch_add_nbi(&old, &wide, 10ll, next);
    shmem_quiet();
    EXPECT(old == -3 && shmem_atomic_fetch(&wide, next) == 7);
    shmem_atomic_set(&real, 0.5, next);
    shmem_quiet();
    EXPECT(shmem_atomic_swap(&real, -2.25, next) == 0.5 && shmem_atomic_fetch(&real, next) == -2.25);
    shmem_size_atomic_add(&size, 3, next);
    shmem_quiet();
    EXPECT(shmem_size_atomic_fetch(&size, next) == 3);
    shmem_finalize();
    return 0;
}
