/* SPDX-License-Identifier: Apache-2.0 */
/* Strided teams: numbers, translation, collectives among their members. */
#include "expect.h"

static long in, out;

int main(void)
{
    shmem_init();
    const int me = shmem_my_pe(), n = shmem_n_pes();
    shmem_team_t even, odd;
    shmem_team_config_t config = {.num_contexts = 2}, got = {0};
    EXPECT(shmem_team_my_pe(SHMEM_TEAM_WORLD) == me && shmem_team_n_pes(SHMEM_TEAM_WORLD) == n);
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, &config, SHMEM_TEAM_NUM_CONTEXTS, &even) == 0);
    EXPECT((even != SHMEM_TEAM_INVALID) == (me % 2 == 0));
    in = me;
    if (even != SHMEM_TEAM_INVALID) {
        EXPECT(shmem_team_my_pe(even) == me / 2 && shmem_team_n_pes(even) == (n + 1) / 2);
        EXPECT(shmem_team_translate_pe(even, me / 2, SHMEM_TEAM_WORLD) == me);
        EXPECT(shmem_team_translate_pe(SHMEM_TEAM_WORLD, n > 1 ? 1 : 0, even) == (n > 1 ? -1 : 0));
        EXPECT(shmem_team_get_config(even, SHMEM_TEAM_NUM_CONTEXTS, &got) == 0 && got.num_contexts == 2);
        EXPECT(shmem_sum_reduce(even, &out, &in, 1) == 0);
        EXPECT(out == (n - 1) / 2 * ((n - 1) / 2 + 1));
        EXPECT(shmem_sync(even) == 0);
        shmem_team_destroy(even);
    }
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &odd) != 0);
    EXPECT(odd == SHMEM_TEAM_INVALID);
    EXPECT(shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1 && shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1);
    EXPECT(shmem_team_n_pes(SHMEM_TEAM_SHARED) >= 1);
    shmem_finalize();
    return 0;
}
