/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that failed: the text names the device, the call, its purpose, the errno or the device's syndrome, and what
 * helps. */
#include "net/gda/devx/command.h"
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define FIRST_WAIT_NS 100000
#define MOST_TRIES    13 /* the waits together take 0.8 s */

bool devx_again(int code, uint32_t *tries)
{
    if ((code != EAGAIN && code != EINTR) || *tries == MOST_TRIES) return false;
    nanosleep(&(struct timespec){.tv_nsec = (long)FIRST_WAIT_NS << *tries}, NULL);
    ++*tries;
    return true;
}

/* Writes the limit of locked memory: "64 KiB". */
static void lock_limit(char *text, size_t text_bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, text_bytes, "unlimited");
    else
        snprintf(text, text_bytes, "%llu KiB", (unsigned long long)limit.rlim_cur / 1024);
}

static void add_advice(char *text, size_t text_bytes, int code)
{
    char limit[32];
    switch (code) {
    case ENOMEM:
        lock_limit(limit, sizeof limit);
        snprintf(text, text_bytes, "; locked memory is limited to %s (ulimit -l), or the device is short of resources",
                 limit);
        break;
    case EPERM:
    case EACCES:
        snprintf(text, text_bytes, "; the user needs the right to devx");
        break;
    case EOPNOTSUPP:
    case ENOSYS:
        snprintf(text, text_bytes, "; the kernel's mlx5 driver or the firmware is too old");
        break;
    case EREMOTEIO:
        snprintf(text, text_bytes, "; the firmware rejects the command, and a later one may take it");
        break;
    case EAGAIN:
        snprintf(text, text_bytes, "; the device was busy for a second");
        break;
    default:
        text[0] = '\0';
        break;
    }
}

expar_status devx_failed(const devx *d, const char *call, const char *purpose, int code)
{
    char advice[160];
    add_advice(advice, sizeof advice, code);
    return error_set(code == ENOMEM ? EXPAR_ERR_MEMORY : EXPAR_ERR_UNSUPPORTED, "gda: %s: %s failed for %s (%s)%s",
                     d->name, call, purpose, strerror(code), advice);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

enum { STATUS_BUSY = 0x06, STATUS_LIMIT = 0x08, STATUS_NO_RESOURCES = 0x0f };

static const char *meaning_of(uint32_t status)
{
    switch (status) {
    case 0x01:
        return "internal error";
    case 0x02:
        return "unknown command";
    case 0x03:
        return "bad parameter";
    case 0x04:
        return "bad state of the system";
    case 0x05:
        return "bad resource";
    case STATUS_BUSY:
        return "resource busy";
    case STATUS_LIMIT:
        return "limit exceeded";
    case 0x09:
        return "bad state of the resource";
    case 0x0a:
        return "bad index";
    case STATUS_NO_RESOURCES:
        return "no resources";
    case 0x10:
        return "bad state of the queue pair";
    case 0x50:
        return "bad length of the command";
    case 0x51:
        return "bad length of the answer";
    default:
        return "unknown";
    }
}

int devx_code(int code, const uint8_t *out)
{
    return code == EREMOTEIO && command_get(out, 0, COMMAND_STATUS) == STATUS_BUSY ? EAGAIN : code;
}

expar_status devx_rejected(const devx *d, const char *command, const char *purpose, int code, const uint8_t *out)
{
    char advice[160];
    const uint32_t status = (uint32_t)command_get(out, 0, COMMAND_STATUS);
    add_advice(advice, sizeof advice, code);
    if (status == STATUS_LIMIT || status == STATUS_NO_RESOURCES)
        snprintf(advice, sizeof advice,
                 "; the device has no more queues, or no memory for them: EXPAR_GDA_QPS_PER_PEER is %u, "
                 "EXPAR_GDA_QUEUE_DEPTH is %u",
                 d->options.queues_per_peer, d->options.depth);
    return error_set(EXPAR_ERR_UNSUPPORTED, "gda: %s: %s failed for %s (%s, status 0x%x: %s, syndrome 0x%x)%s", d->name,
                     command, purpose, strerror(code), status, meaning_of(status),
                     (unsigned)command_get(out, 0, COMMAND_SYNDROME), advice);
}
