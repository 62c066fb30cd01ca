/* SPDX-License-Identifier: Apache-2.0 */
/* environment: what a launcher has told this process: expar run, torchrun, PMIx or Open MPI.
 *
 * Ranks of one host meet at an abstract Unix socket whose name follows from user and job; its users are checked by the
 * kernel. Ranks of several hosts meet at a TCP port, and need a secret that the launcher or the user ships. */
#include "base/interrupt.h"
#include "base/shown.h"
#include "boot/boot.h"
#include "boot/launch/launch.h"
#include "boot/meet/meet.h"
#include "boot/wire/wire.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static expar_status foreign_int(const char *name, int64_t low, int64_t high, int32_t *value)
{
    int64_t number = 0;
    if (!env_foreign(name))
        return error_set(EXPAR_ERR_ARGUMENT, "environment: %s is not set, expected a whole number", name);
    expar_status status = env_foreign_int(name, low, high, &number);
    if (status != EXPAR_OK) return error_prefix(status, "environment");
    *value = (int32_t)number;
    return EXPAR_OK;
}

static expar_status foreign_rank_and_size(const char *rank_name, const char *size_name, boot_request *request)
{
    expar_status status = foreign_int(size_name, 1, BOOT_MAX_RANKS, &request->size);
    if (status == EXPAR_OK) status = foreign_int(rank_name, 0, (int64_t)request->size - 1, &request->rank);
    return status;
}

/* ---- meeting places ---------------------------------------------------------------------------------------------- */

static void set_secret(boot_request *request, const char *text)
{
    unique_id_parts parts = {0};
    auth_secret_from_text(text, parts.secret);
    unique_id_pack(&parts, &request->id);
    request->have_id = false;
}

/* The name is a hash, so that jobs and users do not meet by accident; the kernel says which user is at the other
   end. */
static void meet_on_host(boot_request *request, const char *launcher, const char *job, const char *port)
{
    char all[512], digits[2 * AUTH_SECRET_BYTES + 1];
    unsigned char digest[AUTH_SECRET_BYTES];
    const char *secret = env_string("EXPAR_BOOTSTRAP_SECRET");
    snprintf(all, sizeof all, "name|%s|%ld|%.200s|%.16s", launcher, (long)geteuid(), job, port);
    auth_secret_from_text(all, digest);
    sodium_bin2hex(digits, sizeof digits, digest, sizeof digest);
    snprintf(request->meeting, sizeof request->meeting, "unix:expar-%s", digits);
    snprintf(all, sizeof all, "secret|%s|%ld|%.200s|%.16s|%.200s", launcher, (long)geteuid(), job, port,
             secret ? secret : "");
    set_secret(request, all);
    roll_answer(request->meeting, request);
}

static expar_status meet_by_tcp(boot_request *request, const char *secret)
{
    int32_t master_port = 0;
    const char *host = env_foreign("MASTER_ADDR");
    if (!host) return error_set(EXPAR_ERR_ARGUMENT, "environment: MASTER_ADDR is not set, expected the host of rank 0");
    expar_status status = foreign_int("MASTER_PORT", 1, 65534, &master_port);
    if (status != EXPAR_OK) return status;
    int64_t port = (int64_t)master_port + 1;
    status = env_int("EXPAR_BOOTSTRAP_PORT", 1, 65535, &port);
    if (status != EXPAR_OK) return status;
    int length = snprintf(request->meeting, sizeof request->meeting, "tcp:%s:%" PRId64, host, port);
    if (length >= (int)sizeof request->meeting)
        return error_set(EXPAR_ERR_ARGUMENT, "environment: MASTER_ADDR=%s: expected a host name of at most %d bytes",
                         SHOWN(host), (int)sizeof request->meeting - 11);
    set_secret(request, secret);
    return EXPAR_OK;
}

/* ---- launchers --------------------------------------------------------------------------------------------------- */

static bool is_expar_run(void)
{
    return env_string("EXPAR_RANK") || env_string("EXPAR_SIZE") || env_string("EXPAR_UNIQUE_ID");
}

/* The library finds its neighbours itself. But programs read these variables, and they must hold numbers. */
static expar_status check_local(int64_t size)
{
    int64_t local_size = size, local_rank = 0;
    expar_status status = env_int("EXPAR_LOCAL_SIZE", 1, size, &local_size);
    return status == EXPAR_OK ? env_int("EXPAR_LOCAL_RANK", 0, local_size - 1, &local_rank) : status;
}

static expar_status from_expar_run(boot_request *request)
{
    int64_t rank = -1, size = -1;
    const char *id = env_string("EXPAR_UNIQUE_ID");
    expar_status status = env_int("EXPAR_SIZE", 1, BOOT_MAX_RANKS, &size);
    if (status != EXPAR_OK) return status;
    if (size < 0)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "environment: EXPAR_SIZE is not set, but EXPAR_RANK or EXPAR_UNIQUE_ID is");
    status = env_int("EXPAR_RANK", 0, size - 1, &rank);
    if (status != EXPAR_OK) return status;
    if (rank < 0) return error_set(EXPAR_ERR_ARGUMENT, "environment: EXPAR_RANK is not set, but EXPAR_SIZE is");
    status = check_local(size);
    if (status != EXPAR_OK) return status;
    if (id) {
        status = expar_unique_id_parse(id, &request->id);
        if (status != EXPAR_OK) return error_prefix(status, "environment: EXPAR_UNIQUE_ID=\"%.8s…\"", SHOWN(id));
        request->have_id = true;
    } else if (size > 1) {
        return error_set(EXPAR_ERR_ARGUMENT, "environment: EXPAR_UNIQUE_ID is not set, but EXPAR_SIZE is %" PRId64,
                         size);
    }
    request->rank = (int32_t)rank;
    request->size = (int32_t)size;
    return EXPAR_OK;
}

static bool is_torchrun(void)
{
    return env_foreign("RANK") && env_foreign("WORLD_SIZE");
}

/* torchrun's own default run id is "none", which can be guessed. */
static const char *torchrun_secret(void)
{
    const char *secret = env_string("EXPAR_BOOTSTRAP_SECRET");
    const char *run = env_foreign("TORCHELASTIC_RUN_ID");
    if (secret) return secret;
    return run && strcmp(run, "none") != 0 ? run : NULL;
}

/* Variables that were set by hand may be fewer than torchrun's. */
static expar_status reject_torchrun(int32_t size, int32_t local_size)
{
    if (local_size > 0)
        return error_set(
            EXPAR_ERR_BOOTSTRAP,
            "environment: torchrun's ranks are on several hosts and share no secret: give torchrun --rdzv-id "
            "with a random text, or set EXPAR_BOOTSTRAP_SECRET on all ranks");
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "environment: RANK and WORLD_SIZE are set, but LOCAL_WORLD_SIZE is not: set it to %d where all "
                     "ranks are on this host; else MASTER_ADDR, MASTER_PORT and EXPAR_BOOTSTRAP_SECRET on all ranks",
                     size);
}

static expar_status from_torchrun(boot_request *request)
{
    int32_t local_size = 0;
    expar_status status = foreign_rank_and_size("RANK", "WORLD_SIZE", request);
    if (status != EXPAR_OK || request->size == 1) return status;
    if (env_foreign("LOCAL_WORLD_SIZE")) status = foreign_int("LOCAL_WORLD_SIZE", 1, request->size, &local_size);
    if (status != EXPAR_OK) return status;
    if (local_size == request->size) {
        const char *run = env_foreign("TORCHELASTIC_RUN_ID"), *port = env_foreign("MASTER_PORT");
        meet_on_host(request, "torchrun", run ? run : "", port ? port : "");
        return EXPAR_OK;
    }
    const char *secret = torchrun_secret();
    return secret ? meet_by_tcp(request, secret) : reject_torchrun(request->size, local_size);
}

static bool is_open_mpi(void)
{
    return env_foreign("OMPI_COMM_WORLD_RANK") && env_foreign("OMPI_COMM_WORLD_SIZE");
}

static expar_status from_open_mpi(boot_request *request)
{
    int32_t local_size = 0;
    expar_status status = foreign_rank_and_size("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", request);
    if (status != EXPAR_OK || request->size == 1) return status;
    status = foreign_int("OMPI_COMM_WORLD_LOCAL_SIZE", 1, request->size, &local_size);
    if (status != EXPAR_OK) return status;
    const char *job = env_foreign("PMIX_NAMESPACE");
    if (local_size == request->size && job) {
        meet_on_host(request, "openmpi", job, "");
        return EXPAR_OK;
    }
    const char *secret = env_string("EXPAR_BOOTSTRAP_SECRET");
    if (secret && env_foreign("MASTER_ADDR") && env_foreign("MASTER_PORT")) return meet_by_tcp(request, secret);
    return error_set(
        EXPAR_ERR_BOOTSTRAP,
        "environment: %s: set EXPAR_BOOTSTRAP_SECRET, MASTER_ADDR and MASTER_PORT on all ranks (mpirun -x), install "
        "libpmix, or ship a unique id",
        job ? "Open MPI's ranks are on several hosts" : "Open MPI names no job (PMIX_NAMESPACE)");
}

/* PMIx names its server in a variable for each version of its protocol. */
static bool is_pmix(void)
{
    static const char server[] = "PMIX_SERVER_URI";
    bool named = false;
    for (char **entry = environ; *entry && !named; entry++)
        named = strncmp(*entry, server, sizeof server - 1) == 0;
    return named && env_foreign("PMIX_NAMESPACE") && env_foreign("PMIX_RANK");
}

/* If PMIx is not available, Open MPI's variables may do. */
static expar_status from_pmix(boot_request *request)
{
    expar_status status = boot_pmix_request(request);
    if (status != EXPAR_ERR_UNSUPPORTED || !is_open_mpi()) return status;
    LOG(LOG_INFO, "%s; Open MPI's variables are used", expar_last_error());
    return from_open_mpi(request);
}

/* srun without PMIx tells its tasks their numbers, but not where to meet. */
static expar_status reject_srun(void)
{
    const char *size = env_foreign("SLURM_STEP_NUM_TASKS");
    if (!size || !env_foreign("SLURM_PROCID") || strcmp(size, "1") == 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "environment: srun has started %s tasks without PMIx: use srun --mpi=pmix, or expar run inside "
                     "one task",
                     SHOWN(size));
}

expar_status boot_request_from_env(boot_request *request)
{
    boot_request found = *request;
    expar_status status = auth_ready();
    if (status != EXPAR_OK) return status;
    found.rank = 0;
    found.size = 1;
    found.have_id = false;
    found.meeting[0] = 0;
    found.roll[0] = 0;
    interrupt_begin();
    if (is_expar_run())
        status = from_expar_run(&found);
    else if (is_torchrun())
        status = from_torchrun(&found);
    else if (is_pmix())
        status = from_pmix(&found);
    else if (is_open_mpi())
        status = from_open_mpi(&found);
    else
        status = reject_srun();
    if (status == EXPAR_OK && !is_expar_run()) status = check_local(BOOT_MAX_RANKS);
    status = interrupt_take(status, "joining");
    if (status == EXPAR_OK)
        *request = found;
    else
        roll_close(&found);
    return status;
}

void boot_request_end(boot_request *request)
{
    if (request->own_id) expar_unique_id_retire(&request->id);
    request->own_id = false;
    roll_close(request);
}
