/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts on the world and on a team, by whose numbers their PEs go. */
#include "expect.h"

static int box[8];

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    shmem_ctx_t ctx, of_team;
    shmem_team_t back, team;
    const int next = (me + 1) % n;
    EXPECT(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
    shmem_put(ctx, &box[0], &(int){me + 10}, 1, next);
    shmem_p(ctx, &box[1], me + 20, next);
    shmem_ctx_fence(ctx);
    shmem_atomic_add(ctx, &box[2], 5, next);
    shmem_ctx_quiet(ctx);
    EXPECT(shmem_g(ctx, &box[1], next) == me + 20);
    EXPECT(shmem_ctx_get_team(ctx, &team) == 0 && team == SHMEM_TEAM_WORLD);
    shmem_ctx_destroy(ctx);
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
    EXPECT(shmem_team_create_ctx(back, 0, &of_team) == 0);
    shmem_int_atomic_inc(&box[3], 0);
    shmem_ctx_int_atomic_add(of_team, &box[4], 2, 0);
    shmem_ctx_quiet(of_team); /* the barrier completes what is on the default context */
    shmem_barrier_all();
    EXPECT(box[0] == (me + n - 1) % n + 10 && box[2] == 5);
    EXPECT(box[3] == (me == 0 ? n : 0) && box[4] == (me == n - 1 ? 2 * n : 0));
    EXPECT(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
    shmem_ctx_destroy(of_team);
    shmem_team_destroy(back);
    shmem_finalize();
    return 0;
}
