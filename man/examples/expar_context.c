/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Two transfers, of which the first is needed soon. */
expar_status send_both(expar_team *team, void *soon, void *later, const void *source, size_t bytes, int32_t pe)
{
    expar_ctx *urgent;
    expar_group *group = expar_team_group(team);
    expar_status status = expar_ctx_create(team, NULL, &urgent);
    if (status != EXPAR_OK) return status;
    status = expar_ctx_put_nbi(urgent, soon, source, bytes, pe);
    if (status == EXPAR_OK) status = expar_put_nbi(group, later, source, bytes, pe);
    if (status == EXPAR_OK) status = expar_ctx_quiet(urgent); /* the first alone */
    if (status == EXPAR_OK) status = expar_quiet(group);
    expar_status ended = expar_ctx_destroy(urgent);
    return status == EXPAR_OK ? ended : status;
}
