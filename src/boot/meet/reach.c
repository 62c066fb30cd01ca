/* SPDX-License-Identifier: Apache-2.0 */
/* reach: tries whether ranks could connect to the place where an id is served. */
#include "boot/meet/meet.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#define PATIENCE_MS 1000

int boot_id_reach(const expar_unique_id *id, char text[BOOT_PLACE_TEXT], bool *loopback)
{
    unique_id_parts parts;
    address at;
    _Static_assert(BOOT_PLACE_TEXT >= ADDRESS_TEXT, "an address fits");
    text[0] = 0;
    *loopback = false;
    if (unique_id_unpack(id, &parts) != EXPAR_OK || !address_from_ip(&parts.ip, &at)) return EINVAL;
    address_format(&at, text);
    *loopback = address_is_loopback(&at);
    const int fd = address_connect(&at);
    if (fd < 0) return errno;
    struct pollfd connected = {.fd = fd, .events = POLLOUT};
    const int error = poll(&connected, 1, PATIENCE_MS) > 0 ? address_connect_error(fd) : ETIMEDOUT;
    close(fd);
    return error;
}
