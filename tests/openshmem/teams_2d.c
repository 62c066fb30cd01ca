/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and columns of a grid: sums along both. */
#include "expect.h"

static long in, along_row, along_column;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    shmem_team_t row, column;
    const int width = n > 1 ? 2 : 1;
    EXPECT(shmem_team_split_2d(SHMEM_TEAM_WORLD, width, NULL, 0, &row, NULL, 0, &column) == 0);
    in = me + 1;
    shmem_barrier_all();
    shmem_sum_reduce(row, &along_row, &in, 1);
    shmem_sum_reduce(column, &along_column, &in, 1);
    long row_sum = 0, column_sum = 0;
    for (int pe = 0; pe < n; pe++) {
        if (pe / width == me / width) row_sum += pe + 1;
        if (pe % width == me % width) column_sum += pe + 1;
    }
    EXPECT(along_row == row_sum && along_column == column_sum);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
    shmem_finalize();
    return 0;
}
