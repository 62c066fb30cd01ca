/* SPDX-License-Identifier: Apache-2.0 */
/* 2-D heat with halos by put-with-signal, against the same on one PE. */
#include "expect.h"

enum { WIDTH = 16, HEIGHT = 8, STEPS = 20 };
static double field[2][HEIGHT + 2][WIDTH];
static uint64_t from_above, from_below;

static double start_value(int row, int column)
{
    return (row * 37 + column * 11) % 23;
}

static void step(double (*to)[WIDTH], double (*from)[WIDTH], int rows)
{
    for (int r = 1; r <= rows; r++)
        for (int c = 0; c < WIDTH; c++)
            to[r][c] =
                (from[r - 1][c] + from[r + 1][c] + from[r][(c + 1) % WIDTH] + from[r][(c + WIDTH - 1) % WIDTH]) / 4;
}

/* The whole field, rows wrapping round, on this PE alone. */
static void check(int me, int n, double (*mine)[WIDTH])
{
    const int rows = n * HEIGHT;
    double(*all[2])[WIDTH] = {calloc((size_t)rows + 2, sizeof **all), calloc((size_t)rows + 2, sizeof **all)};
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < WIDTH; c++)
            all[0][r + 1][c] = start_value(r, c);
    for (int s = 0; s < STEPS; s++) {
        memcpy(all[s % 2][0], all[s % 2][rows], sizeof **all);
        memcpy(all[s % 2][rows + 1], all[s % 2][1], sizeof **all);
        step(all[1 - s % 2], all[s % 2], rows);
    }
    EXPECT(memcmp(mine[1], all[STEPS % 2][me * HEIGHT + 1], HEIGHT * sizeof *mine) == 0);
    free(all[0]);
    free(all[1]);
}

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    const int above = (me + n - 1) % n, below = (me + 1) % n;
    for (int r = 0; r < HEIGHT; r++)
        for (int c = 0; c < WIDTH; c++)
            field[0][r + 1][c] = start_value(me * HEIGHT + r, c);
    shmem_barrier_all();
    for (int s = 0; s < STEPS; s++) {
        double(*now)[WIDTH] = field[s % 2];
        shmem_put_signal(now[HEIGHT + 1], now[1], WIDTH, &from_below, 1, SHMEM_SIGNAL_ADD, above);
        shmem_put_signal_nbi(now[0], now[HEIGHT], WIDTH, &from_above, 1, SHMEM_SIGNAL_ADD, below);
        shmem_signal_wait_until(&from_above, SHMEM_CMP_GE, (uint64_t)s + 1);
        shmem_signal_wait_until(&from_below, SHMEM_CMP_GE, (uint64_t)s + 1);
        step(field[1 - s % 2], now, HEIGHT);
    }
    check(me, n, field[STEPS % 2]);
    shmem_finalize();
    return 0;
}
