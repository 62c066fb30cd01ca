/* SPDX-License-Identifier: Apache-2.0 */
/* Atomics that give nothing back return before their target answers: here it is stopped, and goes on when all have
 * returned. They are complete after a quiet. */
#include "expect.h"

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

static long its_pid;
static int sum;
static unsigned long bits = 0xff;
static float number;
static long counts[2];

/* The letter after the name in parentheses; T is stopped. */
static int state_of(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    EXPECT(file != NULL);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *end = bytes > 0 ? strrchr(text, ')') : NULL;
    EXPECT(end != NULL && end[1] == ' ');
    return end[2];
}

static void send_all(shmem_ctx_t ctx)
{
    shmem_atomic_set(&number, 1.5f, 1);
    shmem_ctx_float_atomic_set(ctx, &number, 1.5f, 1);
    shmem_int_atomic_add(&sum, 5, 1);
    shmem_atomic_add(ctx, &sum, 6, 1);
    shmem_atomic_inc(&counts[0], 1);
    shmem_ctx_long_atomic_inc(ctx, &counts[1], 1);
    shmem_atomic_and(&bits, 0x3ful, 1);
    shmem_atomic_or(ctx, &bits, 0x300ul, 1);
    shmem_ulong_atomic_xor(&bits, 0x8000ul, 1);
}

int main(void)
{
    shmem_init();
    shmem_ctx_t ctx;
    EXPECT(shmem_n_pes() == 2 && shmem_ctx_create(0, &ctx) == 0);
    its_pid = getpid();
    shmem_barrier_all();
    if (shmem_my_pe() == 0) {
        const pid_t pid = (pid_t)shmem_g(&its_pid, 1);
        EXPECT(kill(pid, SIGSTOP) == 0);
        while (state_of(pid) != 'T')
            sched_yield();
        send_all(ctx);
        EXPECT(state_of(pid) == 'T' && kill(pid, SIGCONT) == 0);
        shmem_ctx_quiet(ctx);
    }
    shmem_barrier_all();
    if (shmem_my_pe() == 1) EXPECT(number == 1.5f && sum == 11 && counts[0] == 1 && counts[1] == 1 && bits == 0x833f);
    shmem_ctx_destroy(ctx);
    shmem_finalize();
    return 0;
}
