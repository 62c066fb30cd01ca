/* SPDX-License-Identifier: Apache-2.0 */
/* The making, end, fence and quiet of contexts (expar/context.h). */
#include "pgas/context.h"
#include "pgas/device/handles.h"
#include "pgas/stream/stream.h"
#include "pgas/team/team.h"

#include <stdlib.h>

#define KNOWN_FLAGS (EXPAR_CTX_SERIALIZED | EXPAR_CTX_PRIVATE | EXPAR_CTX_NOSTORE)

static expar_status check_context(const char *call, const expar_ctx *ctx)
{
    if (!ctx) return error_set(EXPAR_ERR_NULL, "%s: ctx is NULL", call);
    if (!ctx->team) return error_set(EXPAR_ERR_HANDLE, "%s: the context was destroyed, or its team was", call);
    if (ctx->flags & EXPAR_CTX_PRIVATE && !pthread_equal(ctx->owner, pthread_self()))
        return error_set(EXPAR_ERR_STATE, "%s: the context is private to the thread that made it", call);
    return EXPAR_OK;
}

expar_status context_enter(expar_ctx *ctx, ops_origin *from, int32_t *pe)
{
    expar_status status = check_context(from->call, ctx);
    if (status != EXPAR_OK) return status;
    if (*pe < 0 || *pe >= ctx->team->size)
        return error_set(EXPAR_ERR_RANGE, "%s: pe %d, expected 0 to %d, of the context's team", from->call, *pe,
                         ctx->team->size - 1);
    from->group = ctx->group;
    from->batch = &ctx->batch;
    *pe = team_rank(ctx->team, *pe);
    return EXPAR_OK;
}

/* ---- making and end ---------------------------------------------------------------------------------------------- */

static expar_status context_check_options(const char *call, const expar_ctx_options *options)
{
    if (!options) return EXPAR_OK;
    if (options->struct_size != sizeof *options)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.struct_size %zu, expected %zu (EXPAR_CTX_OPTIONS_INIT)", call,
                         options->struct_size, sizeof *options);
    if (options->flags & ~KNOWN_FLAGS)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.flags %#x, expected a sum of 1, 2 and 4", call,
                         options->flags);
    return EXPAR_OK;
}

/* One that was destroyed, or a new one; the lock is held. */
static expar_ctx *context_find_unused(team_table *table)
{
    expar_ctx *ctx = table->contexts;
    while (ctx && ctx->team)
        ctx = ctx->next;
    if (ctx || !(ctx = calloc(1, sizeof *ctx))) return ctx;
    ctx->next = table->contexts;
    table->contexts = ctx;
    return ctx;
}

expar_status expar_ctx_create(expar_team *team, const expar_ctx_options *options, expar_ctx **out)
{
    static const char call[] = "expar_ctx_create";
    expar_status status = team_check(call, team);
    if (status == EXPAR_OK && !out) status = error_set(EXPAR_ERR_NULL, "%s: ctx is NULL", call);
    if (status == EXPAR_OK) status = context_check_options(call, options);
    if (status != EXPAR_OK) return team_ended(team, status);
    team_table *table = team->table;
    pthread_mutex_lock(&table->lock);
    expar_ctx *ctx = context_find_unused(table);
    if (ctx) {
        ctx->group = team->group;
        ctx->flags = options ? options->flags : 0;
        ctx->owner = pthread_self();
        ctx->team = team;
        *out = ctx;
    }
    pthread_mutex_unlock(&table->lock);
    return team_ended(team, ctx ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "%s: no memory for a context", call));
}

/* Its handle is refused from now on. */
static void context_retire(expar_ctx *ctx)
{
    team_table *table = ctx->team->table;
    handles_end_of_context(ctx);
    pthread_mutex_lock(&table->lock);
    ctx->team = NULL;
    pthread_mutex_unlock(&table->lock);
}

static expar_status complete(const char *call, expar_ctx *ctx)
{
    expar_status status = sym_settle(ctx->group->sym, &ctx->batch);
    if (status == EXPAR_OK) status = stream_failure_take(ctx->group, ctx);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call);
}

expar_status expar_ctx_destroy(expar_ctx *ctx)
{
    static const char call[] = "expar_ctx_destroy";
    if (!ctx) return EXPAR_OK;
    expar_status status = check_context(call, ctx);
    if (status != EXPAR_OK) return ctx_ended(ctx, status);
    status = complete(call, ctx);
    context_retire(ctx);
    return ctx_ended(ctx, status);
}

expar_team *expar_ctx_team(const expar_ctx *ctx)
{
    return ctx ? ctx->team : NULL;
}

/* ---- of a team --------------------------------------------------------------------------------------------------- */

/* The team's next context after one (NULL: the first). */
static expar_ctx *next_of_team(const expar_team *team, expar_ctx *after)
{
    team_table *table = team->table;
    pthread_mutex_lock(&table->lock);
    expar_ctx *ctx = after ? after->next : table->contexts;
    while (ctx && ctx->team != team)
        ctx = ctx->next;
    pthread_mutex_unlock(&table->lock);
    return ctx;
}

expar_status context_quiet_all(const char *call, const expar_team *team)
{
    expar_status status = EXPAR_OK;
    for (expar_ctx *ctx = next_of_team(team, NULL); ctx; ctx = next_of_team(team, ctx)) {
        expar_status one = complete(call, ctx);
        if (one != EXPAR_OK) status = one;
    }
    return status;
}

void context_end_all(const expar_team *team)
{
    for (expar_ctx *ctx = next_of_team(team, NULL); ctx; ctx = next_of_team(team, ctx))
        context_retire(ctx);
}

void context_free_list(expar_ctx *list)
{
    while (list) {
        expar_ctx *next = list->next;
        free(list);
        list = next;
    }
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static expar_status check_and_complete(const char *call, expar_ctx *ctx)
{
    expar_status status = check_context(call, ctx);
    if (status == EXPAR_OK) status = sym_check_self(ctx->group->sym, call);
    return status == EXPAR_OK ? complete(call, ctx) : status;
}

/* Completed operations are ordered. */
expar_status expar_ctx_fence(expar_ctx *ctx)
{
    return ctx_ended(ctx, check_and_complete("expar_ctx_fence", ctx));
}

expar_status expar_ctx_quiet(expar_ctx *ctx)
{
    return ctx_ended(ctx, check_and_complete("expar_ctx_quiet", ctx));
}
