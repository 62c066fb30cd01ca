/* SPDX-License-Identifier: Apache-2.0 */
/* Running a subcommand as a job of its own. */
#include "launch.h"
#include "job.h"
#include "text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

/* True if a PMIx server started this process. The server sets one variable for each version of its protocol. */
static bool is_pmix(void)
{
    static const char server[] = "PMIX_SERVER_URI";
    bool named = false;
    for (char **entry = environ; *entry && !named; entry++)
        named = strncmp(*entry, server, sizeof server - 1) == 0;
    return named && is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK");
}

bool launch_inside(void)
{
    bool expar = is_set("EXPAR_RANK") && is_set("EXPAR_UNIQUE_ID");
    bool torchrun = is_set("RANK") && is_set("WORLD_SIZE") && is_set("MASTER_ADDR");
    return expar || torchrun || is_set("OMPI_COMM_WORLD_RANK") || is_pmix();
}

int launch_job_size(void)
{
    static const char *const names[] = {"EXPAR_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"};
    int64_t size = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && launch_inside(); i++)
        if (is_set(names[i]) && text_to_int(getenv(names[i]), 1, INT32_MAX, &size)) break;
    return (int)size;
}

void launch_prepare_gpus(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

int launch_self(int num_ranks, bool bind, int argc, char **argv)
{
    char program[4096];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    char **args = calloc((size_t)argc + 2, sizeof *args);
    if (length < 0 || !args) {
        fprintf(stderr, "expar: cannot start ranks: %s\n", strerror(errno));
        free(args);
        return JOB_EXIT_CANNOT_START;
    }
    program[length] = '\0';
    args[0] = program;
    memcpy(args + 1, argv, (size_t)argc * sizeof *args);
    struct job job = {.num_ranks = num_ranks, .bind = bind, .who = "expar", .file = program, .argv = args};
    int code = job_run(&job);
    free(args);
    return code;
}
