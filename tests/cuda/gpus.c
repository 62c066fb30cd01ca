/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/gpus.h"

#include "cuda/cuda.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int32_t gpus_count(int32_t needed)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int32_t count = 0;
        if (cuda_device_count(&count) != EXPAR_OK) printf("SKIPPED: %s\n", expar_last_error());
        if (count > 0 && count < needed) printf("SKIPPED: needs %d GPUs, there are %d\n", needed, count);
        fflush(NULL);
        _exit(count > 100 ? 100 : count);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status);
}
