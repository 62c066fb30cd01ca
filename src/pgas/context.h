/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: operations that are completed apart from a rank's others. A context is a batch that counts what was started
 * on it, and a team by whose numbers its PEs go. Private to pgas. */
#ifndef EXPAR_PGAS_CONTEXT_H
#define EXPAR_PGAS_CONTEXT_H

#include "group/group.h"
#include "link/link.h"
#include <expar/context.h>

/* The origin of an operation: its call, its owner, and when it ends. */
typedef struct ops_origin {
    const char *call; /* the public one */
    expar_group *group;
    link_batch *batch; /* of its context, which counts it until it is complete; NULL: the default context */
    bool nbi;          /* returns when it has been started; the caller's memory is its own until quiet */
} ops_origin;

struct expar_ctx {
    struct expar_ctx *next; /* of all that the group ever had; changed under the lock of the group's team_table */
    /* NULL: destroyed, and free to be used again. Contexts live as long as their group, so that one that is gone can
       still be told from one that is there. */
    expar_team *team;
    expar_group *group;
    uint32_t flags;
    pthread_t owner; /* of a private one */
    link_batch batch;
};

/* How a public call on a context ends, which may be NULL or destroyed. */
static inline expar_status ctx_ended(const expar_ctx *ctx, expar_status status)
{
    return status == EXPAR_OK ? status : group_ended(ctx ? ctx->group : NULL, status);
}
/* Checks a context, and a PE of its team, and fills the origin's group and batch; *pe becomes a rank of the group. */
expar_status context_enter(expar_ctx *ctx, ops_origin *from, int32_t *pe);
/* Completes what was started on the team's contexts. */
expar_status context_quiet_all(const char *call, const expar_team *team);
/* The team is no more, and so are its contexts, which have been completed. */
void context_end_all(const expar_team *team);
/* Frees them all. */
void context_free_list(expar_ctx *list);

#endif
