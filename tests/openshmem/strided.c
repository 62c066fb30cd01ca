/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix column travels by strided puts and gets. */
#include "expect.h"

enum { ROWS = 12, COLUMNS = 7 };
static int matrix[ROWS][COLUMNS];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    int column[ROWS], back[2 * ROWS] = {0};
    for (int r = 0; r < ROWS; r++)
        column[r] = 100 * me + r;
    shmem_iput(&matrix[0][3], column, COLUMNS, 1, ROWS, next);
    shmem_barrier_all();
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            EXPECT(matrix[r][c] == (c == 3 ? 100 * last + r : 0));
    shmem_iget(back, &matrix[0][3], 2, COLUMNS, ROWS, next);
    for (int r = 0; r < ROWS; r++)
        EXPECT(back[2 * r] == 100 * me + r && back[2 * r + 1] == 0);
    shmem_iget32(back, &matrix[0][3], 1, 2 * COLUMNS, ROWS / 2, next);
    EXPECT(back[ROWS / 2 - 1] == 100 * me + ROWS - 2);
    shmem_finalize();
    return 0;
}
