// SPDX-License-Identifier: Apache-2.0
// OpenSHMEM in C++17, by generic names. Its arguments are the number of PEs, "-np" and "two words".
#include <shmem.h>

#include <cstdlib>
#include <cstring>

static long token;
static std::complex<double> mine, sum;

int main(int argc, char **argv)
{
    if (argc != 4 || std::strcmp(argv[2], "-np") != 0 || std::strcmp(argv[3], "two words") != 0) return 2;
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const long sent = me + 1;
    shmem_put(&token, &sent, 1, (me + 1) % n);
    shmem_wait_until(&token, SHMEM_CMP_NE, 0);
    bool good = n == std::atoi(argv[1]) && token == (me + n - 1) % n + 1;
    shmem_p(SHMEM_CTX_DEFAULT, &token, 7, me); // an int, which becomes a long as in any call
    shmem_quiet();
    good = good && shmem_g(&token, me) == 7 && shmem_atomic_fetch_add(&token, 1, me) == 7;
    mine = {1.0, static_cast<double>(me)};
    shmem_sync(SHMEM_TEAM_WORLD);
    shmem_sum_reduce(SHMEM_TEAM_WORLD, &sum, &mine, 1);
    good = good && sum == std::complex<double>(n, n * (n - 1) / 2);
    shmem_finalize();
    return good ? 0 : 1;
}
