/* SPDX-License-Identifier: Apache-2.0 */
/* Teams and contexts: their handles are expar's own, but for the constants. */
#include "openshmem/shm.h"

expar_team *shm_team(shmem_team_t team)
{
    if (team == SHMEM_TEAM_WORLD) return shm.world;
    return team == SHMEM_TEAM_SHARED ? shm.shared : (expar_team *)team;
}

expar_ctx *shm_ctx(shmem_ctx_t ctx)
{
    if (ctx == SHMEM_CTX_INVALID) shm_fail("SHMEM_CTX_INVALID is no context to communicate on");
    return (expar_ctx *)ctx;
}

int shmem_team_my_pe(shmem_team_t team)
{
    return expar_team_my_pe(shm_team(team));
}

int shmem_team_n_pes(shmem_team_t team)
{
    return team == SHMEM_TEAM_INVALID ? -1 : expar_team_n_pes(shm_team(team));
}

int shmem_team_get_config(shmem_team_t team, long config_mask, shmem_team_config_t *config)
{
    expar_team_config known = EXPAR_TEAM_CONFIG_INIT;
    if (team == SHMEM_TEAM_INVALID) return -1;
    shm_must(expar_team_get_config(shm_team(team), &known));
    if (config_mask & SHMEM_TEAM_NUM_CONTEXTS) config->num_contexts = known.num_contexts;
    return 0;
}

int shmem_team_translate_pe(shmem_team_t src_team, int src_pe, shmem_team_t dest_team)
{
    int32_t pe = -1;
    if (src_team == SHMEM_TEAM_INVALID || dest_team == SHMEM_TEAM_INVALID) return -1;
    if (src_pe < 0 || src_pe >= shmem_team_n_pes(src_team)) return -1;
    shm_must(expar_team_translate_pe(shm_team(src_team), src_pe, shm_team(dest_team), &pe));
    return pe;
}

void *shmem_team_ptr(shmem_team_t team, const void *dest, int pe)
{
    const int world_pe = shmem_team_translate_pe(team, pe, SHMEM_TEAM_WORLD);
    return world_pe < 0 ? NULL : shmem_ptr(dest, world_pe);
}

static expar_team_config config_of(const shmem_team_config_t *config, long mask)
{
    expar_team_config known = EXPAR_TEAM_CONFIG_INIT;
    if (config && (mask & SHMEM_TEAM_NUM_CONTEXTS)) known.num_contexts = config->num_contexts;
    return known;
}

/* The standard wants a failed split to be told by its result: wrong members, or too many teams. */
static int split_result(expar_status status)
{
    if (status == EXPAR_ERR_RANGE || status == EXPAR_ERR_LIMIT) return -1;
    return shm_done(status);
}

int shmem_team_split_strided(shmem_team_t parent, int start, int stride, int size, const shmem_team_config_t *config,
                             long config_mask, shmem_team_t *new_team)
{
    expar_team_config known = config_of(config, config_mask);
    expar_team *team = NULL;
    *new_team = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return -1;
    int result = split_result(expar_team_split_strided(shm_team(parent), start, stride, size, &known, &team));
    *new_team = (shmem_team_t)team;
    return result;
}

int shmem_team_split_2d(shmem_team_t parent, int xrange, const shmem_team_config_t *xaxis_config, long xaxis_mask,
                        shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config, long yaxis_mask,
                        shmem_team_t *yaxis_team)
{
    expar_team_config x_known = config_of(xaxis_config, xaxis_mask), y_known = config_of(yaxis_config, yaxis_mask);
    expar_team *x = NULL, *y = NULL;
    *xaxis_team = *yaxis_team = SHMEM_TEAM_INVALID;
    if (parent == SHMEM_TEAM_INVALID) return -1;
    int result = split_result(expar_team_split_2d(shm_team(parent), xrange, &x_known, &y_known, &x, &y));
    *xaxis_team = (shmem_team_t)x;
    *yaxis_team = (shmem_team_t)y;
    return result;
}

void shmem_team_destroy(shmem_team_t team)
{
    shm_must(expar_team_destroy(shm_team(team)));
}

int shmem_team_sync(shmem_team_t team)
{
    return team == SHMEM_TEAM_INVALID ? -1 : shm_done(expar_team_sync(shm_team(team)));
}

int shmem_ctx_create(long options, shmem_ctx_t *ctx)
{
    return shmem_team_create_ctx(SHMEM_TEAM_WORLD, options, ctx);
}

/* The standard's options are expar's. One that is not known is a failure to create the context, as
   want of memory is. */
int shmem_team_create_ctx(shmem_team_t team, long options, shmem_ctx_t *ctx)
{
    expar_ctx_options known = EXPAR_CTX_OPTIONS_INIT;
    expar_ctx *made;
    *ctx = SHMEM_CTX_INVALID;
    if (team == SHMEM_TEAM_INVALID) return -1;
    known.flags = (uint32_t)options;
    expar_status status = expar_ctx_create(shm_team(team), &known, &made);
    if (status == EXPAR_ERR_ARGUMENT || status == EXPAR_ERR_MEMORY) return -1;
    shm_must(status);
    *ctx = (shmem_ctx_t)made;
    return 0;
}

void shmem_ctx_destroy(shmem_ctx_t ctx)
{
    if (ctx == SHMEM_CTX_INVALID) return;
    if (ctx == SHMEM_CTX_DEFAULT) shm_fail("shmem_ctx_destroy: the default context cannot be destroyed");
    shm_must(expar_ctx_destroy(shm_ctx(ctx)));
}

/* The program knows other handles of the standing teams. */
static shmem_team_t handle_of(expar_team *team)
{
    if (team == shm.world) return SHMEM_TEAM_WORLD;
    return team == shm.shared ? SHMEM_TEAM_SHARED : (shmem_team_t)team;
}

int shmem_ctx_get_team(shmem_ctx_t ctx, shmem_team_t *team)
{
    *team = SHMEM_TEAM_INVALID;
    if (ctx == SHMEM_CTX_INVALID) return -1;
    *team = ctx == SHMEM_CTX_DEFAULT ? SHMEM_TEAM_WORLD : handle_of(expar_ctx_team(shm_ctx(ctx)));
    return 0;
}

void shmem_ctx_fence(shmem_ctx_t ctx)
{
    if (ctx == SHMEM_CTX_INVALID) return;
    shm_must(ctx == SHMEM_CTX_DEFAULT ? expar_fence(shm.group) : expar_ctx_fence(shm_ctx(ctx)));
}

void shmem_ctx_quiet(shmem_ctx_t ctx)
{
    if (ctx == SHMEM_CTX_INVALID) return;
    shm_must(ctx == SHMEM_CTX_DEFAULT ? expar_quiet(shm.group) : expar_ctx_quiet(shm_ctx(ctx)));
}
