/* SPDX-License-Identifier: Apache-2.0 */
/* roll: names of ranks, and their sockets. */
#include "base/interrupt.h"
#include "boot/meet/meet.h"
#include "boot/ranks.h"
#include "boot/wire/wire.h"

#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LINGER_NS (300 * 1000 * 1000)

static bool name_of(const boot_request *request, int32_t rank, address *out)
{
    char name[ADDRESS_UNIX_BYTES];
    int length = snprintf(name, sizeof name, "%s.%d", request->roll, rank);
    return length < (int)sizeof name && address_from_unix_name(name, out);
}

void roll_answer(const char *job, boot_request *request)
{
    char all[512], digits[2 * AUTH_SECRET_BYTES + 1];
    unsigned char digest[AUTH_SECRET_BYTES];
    address own;
    snprintf(all, sizeof all, "roll|%ld|%d|%.300s", (long)geteuid(), request->size, job);
    auth_secret_from_text(all, digest);
    sodium_bin2hex(digits, sizeof digits, digest, sizeof digest);
    snprintf(request->roll, sizeof request->roll, "expar-%s", digits);
    /* Without the socket, only a text of the others names this rank as missing. */
    request->roll_fd = name_of(request, request->rank, &own) ? address_listen(&own) : -1;
}

static bool is_here(const boot_request *request, int32_t rank)
{
    address where;
    int fd = name_of(request, rank, &where) ? address_connect(&where) : -1;
    if (fd < 0) return false;
    bool here = address_connect_error(fd) == 0 && address_same_user(fd);
    wire_close(&fd);
    return here;
}

void roll_call(const boot_request *request, char text[ROLL_TEXT])
{
    static const struct timespec linger = {.tv_nsec = LINGER_NS};
    char came[56], missing[56];
    bool *here = request->roll[0] ? calloc((size_t)request->size, sizeof *here) : NULL;
    snprintf(text, ROLL_TEXT, "the other ranks that came are not known without it");
    if (!here) return;
    for (int32_t rank = 0; rank < request->size; rank++)
        here[rank] = rank == request->rank || is_here(request, rank);
    ranks_format(here, true, request->size, came, sizeof came);
    ranks_format(here, false, request->size, missing, sizeof missing);
    snprintf(text, ROLL_TEXT, "here: %s, not here: %s", came, missing);
    free(here);
    if (!interrupt_came()) nanosleep(&linger, NULL);
}

void roll_close(boot_request *request)
{
    if (request->roll[0]) wire_close(&request->roll_fd);
    request->roll[0] = 0;
}
