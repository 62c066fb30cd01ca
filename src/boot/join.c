/* SPDX-License-Identifier: Apache-2.0 */
/* join: how a process becomes a rank: rendezvous, control sockets, boot. */
#include "base/interrupt.h"
#include "boot/boot.h"
#include "boot/meet/meet.h"
#include "boot/place.h"
#include "boot/sockets/create.h"
#include "boot/wire/wire.h"

#include <stdlib.h>
#include <string.h>

static expar_status request_check(const boot_request *request)
{
    if (request->size < 1 || request->size > BOOT_MAX_RANKS)
        return error_set(EXPAR_ERR_RANGE, "join: size is %d, expected 1 to %d", request->size, BOOT_MAX_RANKS);
    if (request->rank < 0 || request->rank >= request->size)
        return error_set(EXPAR_ERR_RANGE, "join: rank is %d, expected 0 to %d", request->rank, request->size - 1);
    if (request->timeout_ms < 1 || request->timeout_ms > BOOT_MAX_TIMEOUT_MS)
        return error_set(EXPAR_ERR_RANGE, "join: timeout_ms is %lld, expected 1 to %lld",
                         (long long)request->timeout_ms, (long long)BOOT_MAX_TIMEOUT_MS);
    if (request->size > 1 && !request->have_id && !request->meeting[0])
        return error_set(EXPAR_ERR_ARGUMENT, "join: a group of %d ranks needs a unique id or a meeting place",
                         request->size);
    return EXPAR_OK;
}

static expar_status joined_make(const boot_request *request, boot_joined *all)
{
    const size_t size = (size_t)request->size;
    all->fds = malloc(BOOT_LINES * size * sizeof *all->fds);
    all->places = calloc(size, sizeof *all->places);
    if (all->fds) memset(all->fds, -1, BOOT_LINES * size * sizeof *all->fds);
    if (!all->fds || !all->places) return error_set(EXPAR_ERR_MEMORY, "join: out of memory");
    place_find(&all->places[request->rank]);
    return EXPAR_OK;
}

static void joined_end(const boot_request *request, boot_joined *all)
{
    for (int32_t i = 0; all->fds && i < BOOT_LINES * request->size; i++)
        wire_close(&all->fds[i]);
    free(all->fds);
    free(all->places);
}

expar_status boot_join_sockets(const boot_request *request, boot **out)
{
    expar_status status = request_check(request);
    if (status == EXPAR_OK) status = auth_ready();
    if (status != EXPAR_OK) return status;
    boot_joined all = {0};
    interrupt_begin();
    status = joined_make(request, &all);
    if (status == EXPAR_OK && request->size > 1) status = boot_meet(request, &all);
    if (status == EXPAR_OK) status = boot_sockets_create(request, all.fds, all.places, out);
    status = interrupt_take(status, "joining");
    if (status != EXPAR_OK) {
        joined_end(request, &all);
        return status;
    }
    memcpy((*out)->ip, all.ip, sizeof all.ip);
    return EXPAR_OK;
}
