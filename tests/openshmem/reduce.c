/* SPDX-License-Identifier: Apache-2.0 */
/* Every reduction, on integers, reals and complex numbers, also in place. */
#include "expect.h"

enum { COUNT = 3000 };
static int in[COUNT], out[COUNT];
static unsigned int ubits[4], uout[4];
static double reals[8], rout[8];
static double _Complex z[2], zout[2];
static long double wide, wide_out;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const shmem_team_t world = SHMEM_TEAM_WORLD;
    for (int i = 0; i < COUNT; i++)
        in[i] = i + me;
    ubits[0] = 1u << me % 31 | 0x80000000u;
    reals[0] = 1.0 + me;
    z[0] = me + 2.0 * (double _Complex)_Complex_I;
    wide = me + 0.5L;
    shmem_barrier_all();
    shmem_sum_reduce(world, out, in, COUNT);
    for (int i = 0; i < COUNT; i++)
        EXPECT(out[i] == n * i + n * (n - 1) / 2);
    shmem_sync_all();
    shmem_max_reduce(world, out, in, 10);
    EXPECT(out[9] == 9 + n - 1);
    shmem_sync_all();
    shmem_min_reduce(world, in, in, COUNT);
    EXPECT(in[COUNT - 1] == COUNT - 1);
    shmem_or_reduce(world, uout, ubits, 1);
    EXPECT(uout[0] == (0x80000000u | (n >= 31 ? 0x7fffffffu : (1u << n) - 1)));
    shmem_sync_all();
    shmem_and_reduce(world, uout, ubits, 1);
    EXPECT(n == 1 || uout[0] == 0x80000000u);
    shmem_sync_all();
    shmem_xor_reduce(world, uout, ubits, 1);
    EXPECT((uout[0] >> 31) == (unsigned)n % 2);
    double factorial = 1;
    for (int pe = 1; pe <= n; pe++)
        factorial *= pe;
    shmem_prod_reduce(world, rout, reals, 1);
    EXPECT(rout[0] == factorial);
    shmem_sum_reduce(world, zout, z, 1);
    EXPECT(zout[0] == n * (n - 1) / 2.0 + 2.0 * n * (double _Complex)_Complex_I);
    shmem_sum_reduce(world, &wide_out, &wide, 1);
    EXPECT(wide_out == n * (n - 1) / 2.0L + n * 0.5L);
    shmem_finalize();
    return 0;
}
