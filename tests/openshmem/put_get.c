/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and gets of many types and all sizes, with contexts and without. */
#include "expect.h"
#include <string.h>

static float floats[64];
static long double longs[8];
static char bytes[4096];
static short shorts[16];
static int64_t words[16];
static long sent[100], flag;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    float f[64];
    long double l[8];
    char b[4096];
    for (int i = 0; i < 64; i++)
        f[i] = (float)(i * n + me);
    for (int i = 0; i < 8; i++)
        l[i] = i + me / 4.0L;
    memset(b, me + 1, sizeof b);
    shmem_put(floats, f, 64, next);
    shmem_put(longs, l, 8, next);
    shmem_putmem(bytes, b, 1000, next);
    shmem_put128_nbi(bytes + 1024, b, 8, next);
    shmem_short_p(&shorts[3], (short)(me - 9), next);
    shmem_put(SHMEM_CTX_DEFAULT, words, (int64_t[]){me, 2 * me}, 2, next);
    shmem_barrier_all();
    for (int i = 0; i < 64; i++)
        EXPECT(floats[i] == (float)(i * n + last));
    EXPECT(longs[7] == 7 + last / 4.0L);
    EXPECT(bytes[999] == last + 1 && bytes[1000] == 0 && bytes[1024 + 127] == last + 1 && bytes[1024 + 128] == 0);
    EXPECT(shorts[3] == last - 9 && words[1] == 2 * last);
    float back[64] = {0};
    shmem_get(back, floats, 64, next);
    EXPECT(back[63] == (float)(63 * n + me));
    EXPECT(shmem_g(&shorts[3], next) == me - 9);
    shmem_getmem_nbi(b, bytes, 4096, next);
    shmem_quiet();
    EXPECT(b[999] == me + 1 && b[1000] == 0);
    shmem_double_put_nbi((double *)words, &(double){0.25}, 1, next);
    shmem_barrier_all();
    double quarter;
    memcpy(&quarter, words, sizeof quarter);
    EXPECT(quarter == 0.25);
    /* A PE that sees the flag sees the data that were put before the fence. */
    long numbers[100];
    for (int i = 0; i < 100; i++)
        numbers[i] = 1000l * me + i;
    shmem_put_nbi(sent, numbers, 100, next);
    shmem_fence();
    shmem_p(&flag, 1l, next);
    shmem_wait_until(&flag, SHMEM_CMP_EQ, 1l);
    for (int i = 0; i < 100; i++)
        EXPECT(sent[i] == 1000l * last + i);
    shmem_quiet(); /* before the numbers are gone */
    shmem_finalize();
    return 0;
}
