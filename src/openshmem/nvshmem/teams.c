/* SPDX-License-Identifier: Apache-2.0 */
/* Teams by their numbers. Those of the standing teams are fixed; a new team takes the lowest free number of its PE. */
#include "openshmem/nvshmem/nv.h"

#define FIRST_OWN_TEAM (NVSHMEMX_TEAM_SAME_MYPE_NODE + 1)

/* EXPAR_TEAM_MAX counts the standing teams, of which two numbers here name one. */
_Static_assert(EXPAR_NV_TEAMS > EXPAR_TEAM_MAX, "every team of expar's has a number");

static nvshmem_team_t number_team(expar_team *team)
{
    nvshmem_team_t number = FIRST_OWN_TEAM;
    if (!team) return NVSHMEM_TEAM_INVALID;
    while (number < EXPAR_NV_TEAMS && nv.teams[number])
        number++;
    if (number == EXPAR_NV_TEAMS) exit_fail("too many teams");
    nv.teams[number] = team;
    nv_handle_make(number);
    return number;
}

/* Errors of the program's arguments are its own to deal with; a lost PE ends the job. */
static int nv_split_result(expar_status status)
{
    const bool is_own = status == EXPAR_ERR_RANGE || status == EXPAR_ERR_LIMIT || status == EXPAR_ERR_REMOTE;
    if (!is_own) exit_must(status);
    if (status == EXPAR_OK) return NVSHMEMX_SUCCESS;
    return expar_nvshmem_rejects(expar_last_error(), NVSHMEMX_ERROR_INVALID_VALUE);
}

static expar_team_config nv_config_of(const nvshmem_team_config_t *config, long mask)
{
    expar_team_config mine = EXPAR_TEAM_CONFIG_INIT;
    if (config && (mask & NVSHMEM_TEAM_NUM_CONTEXTS)) mine.num_contexts = config->num_contexts;
    return mine;
}

int nvshmem_team_split_strided(nvshmem_team_t parent, int start, int stride, int size,
                               const nvshmem_team_config_t *config, long config_mask, nvshmem_team_t *new_team)
{
    const expar_team_config mine = nv_config_of(config, config_mask);
    expar_team *team = NULL;
    *new_team = NVSHMEM_TEAM_INVALID;
    const expar_status status = expar_team_split_strided(expar_nvshmem_team(parent), start, stride, size, &mine, &team);
    if (status == EXPAR_OK) *new_team = number_team(team);
    return nv_split_result(status);
}

int nvshmem_team_split_2d(nvshmem_team_t parent, int xrange, const nvshmem_team_config_t *xaxis_config, long xaxis_mask,
                          nvshmem_team_t *xaxis_team, const nvshmem_team_config_t *yaxis_config, long yaxis_mask,
                          nvshmem_team_t *yaxis_team)
{
    const expar_team_config x = nv_config_of(xaxis_config, xaxis_mask), y = nv_config_of(yaxis_config, yaxis_mask);
    expar_team *row = NULL, *column = NULL;
    *xaxis_team = *yaxis_team = NVSHMEM_TEAM_INVALID;
    const expar_status status = expar_team_split_2d(expar_nvshmem_team(parent), xrange, &x, &y, &row, &column);
    if (status == EXPAR_OK) {
        *xaxis_team = number_team(row);
        *yaxis_team = number_team(column);
    }
    return nv_split_result(status);
}

int nvshmem_team_get_config(nvshmem_team_t team, nvshmem_team_config_t *config)
{
    expar_team_config known = EXPAR_TEAM_CONFIG_INIT;
    if (!expar_nvshmem_team(team)) return NVSHMEMX_ERROR_INVALID_VALUE;
    exit_must(expar_team_get_config(expar_nvshmem_team(team), &known));
    config->num_contexts = known.num_contexts;
    return NVSHMEMX_SUCCESS;
}

void nvshmem_team_destroy(nvshmem_team_t team)
{
    expar_team *own = expar_nvshmem_team(team);
    if (!own) return;
    exit_must(expar_team_destroy(own)); /* a standing team: says so and ends the job */
    nv.teams[team] = NULL;
    nv_handle_drop(team);
}

int expar_nvshmem_translate(nvshmem_team_t source, int pe, nvshmem_team_t dest)
{
    int32_t translated = -1;
    expar_team *from = expar_nvshmem_team(source), *to = expar_nvshmem_team(dest);
    if (!from || !to || pe < 0 || pe >= expar_team_n_pes(from)) return -1;
    exit_must(expar_team_translate_pe(from, pe, to, &translated));
    return translated;
}
