/* SPDX-License-Identifier: Apache-2.0 */
/* Strided teams: numbers, translation, collectives among their members. */
#include "expect.h"

static long in, out;

/* Results of shmem_ptr for a member, by its number in the team of even PEs; all have written their own number. */
static void check_pointers(shmem_team_t even, long own)
{
    for (int pe = 0; pe < shmem_team_n_pes(even); pe++) {
        const long *there = shmem_team_ptr(even, &in, pe);
        EXPECT(there == shmem_ptr(&in, 2 * pe));
        EXPECT(!there || *there == 2 * pe);
    }
    EXPECT(shmem_team_ptr(even, &in, shmem_team_my_pe(even)) == &in);
    EXPECT(!shmem_team_ptr(even, &in, -1) && !shmem_team_ptr(even, &in, shmem_team_n_pes(even)));
    EXPECT(!shmem_team_ptr(even, &own, shmem_team_my_pe(even)));
    EXPECT(!shmem_team_ptr(SHMEM_TEAM_INVALID, &in, 0));
    for (int pe = 0; pe < shmem_team_n_pes(SHMEM_TEAM_SHARED); pe++)
        EXPECT(shmem_team_ptr(SHMEM_TEAM_SHARED, &in, pe) ==
               shmem_ptr(&in, shmem_team_translate_pe(SHMEM_TEAM_SHARED, pe, SHMEM_TEAM_WORLD)));
}

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
        check_pointers(even, me);
        shmem_team_destroy(even);
    }
    EXPECT(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &odd) != 0);
    EXPECT(odd == SHMEM_TEAM_INVALID);
    EXPECT(shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1 && shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1);
    EXPECT(shmem_team_n_pes(SHMEM_TEAM_SHARED) >= 1);
    shmem_finalize();
    return 0;
}
