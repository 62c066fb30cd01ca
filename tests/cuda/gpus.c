/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/gpus.h"

#include "cuda/cuda.h"
#include <expar/info.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The result of the body in a child, 0 to 255, with its output; 0 when it did not end well. */
static int in_child(int (*body)(int32_t), int32_t argument)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int code = body(argument);
        fflush(NULL);
        _exit(code);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status);
}

static int count(int32_t needed)
{
    int32_t found = 0;
    if (cuda_device_count(&found) != EXPAR_OK) printf("SKIPPED: %s\n", expar_last_error());
    if (found > 0 && found < needed) printf("SKIPPED: needs %d GPUs, there are %d\n", needed, found);
    return found > 100 ? 100 : found;
}

int32_t gpus_count(int32_t needed)
{
    return in_child(count, needed);
}

static int is_served(int32_t index)
{
    cuda_device device;
    return cuda_device_read(index, &device) == EXPAR_OK && expar_cuda_ready_kernels() / 10 == device.major;
}

bool gpus_have_ready_kernels(void)
{
    return in_child(is_served, 0) == 1;
}
