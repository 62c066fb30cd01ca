/* SPDX-License-Identifier: Apache-2.0 */
/* The transport on software NICs that are processes (EXPAR_GDA_NIC=process): memory without a descriptor, heaps that
 * grow, processes that are killed or stopped, and where such NICs are rejected. Ranks are processes. */
#include "net/gda/parts.h"
#include "net/gda/software.h"
#include "net/stage.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#define RANKS 3
/* More than all memory for copies together, and no multiple of a copy. */
#define LARGE_BYTES ((size_t)GDA_STAGE_BYTES + 3 * GDA_MOST_STAGED + 1000)

static bool open_over(stage *s, expar_group *group, const transport_site *site, uint64_t bytes)
{
    const subject who = {transport_find("gda", 3), false};
    return CHECK(who.ops != NULL, "there is no gda") && stage_open_at(s, group, &who, site, bytes);
}

static int nic_pid(const stage *s)
{
    return gda_software_process(((const gda *)s->via)->device);
}

/* Stops the process, and returns when all of its threads stand still. */
static void stop_nic(const stage *s)
{
    siginfo_t info;
    kill(nic_pid(s), SIGSTOP);
    CHECK(waitid(P_PID, (id_t)nic_pid(s), &info, WSTOPPED) == 0, "the process was not stopped");
}

static uint8_t byte_at(int32_t rank, size_t i)
{
    return (uint8_t)((size_t)rank * 31 + i * 7 + i / 4096);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void check_bytes(const uint8_t *bytes, int32_t from)
{
    size_t wrong = 0;
    for (size_t i = 0; i < LARGE_BYTES; i++)
        wrong += bytes[i] != byte_at(from, i);
    CHECK(wrong == 0, "%zu bytes of rank %d are wrong", wrong, (int)from);
}

/* A put that is larger than all copies, from memory that the NIC does not know, with a signal. Then the same bytes come
   back by a get. The heap has grown since its descriptor was passed. */
static void private_memory(expar_group *group, void *shared)
{
    stage s;
    (void)shared;
    const uint64_t before = group->sym->heap.open_bytes;
    if (!open_over(&s, group, &group->sym->site, 80 << 20)) return;
    CHECK(group->sym->heap.open_bytes > before, "the heap has not grown: %d bytes", (int)before);
    const int32_t pe = (group->rank + 1) % RANKS, from = (group->rank + RANKS - 1) % RANKS;
    uint8_t *bytes = malloc(LARGE_BYTES);
    _Atomic uint64_t *flag = (_Atomic uint64_t *)(void *)own(&s, s.area + LARGE_BYTES + 64 - LARGE_BYTES % 8);
    const transport_request put = {.kind = TRANSPORT_KIND_PUT,
                                   .pe = pe,
                                   .offset = s.area,
                                   .source = bytes,
                                   .bytes = LARGE_BYTES,
                                   .signals = true,
                                   .op = TRANSPORT_ADD,
                                   .operand = 5,
                                   .signal_offset = s.area + LARGE_BYTES + 64 - LARGE_BYTES % 8};
    transport_batch batch = {0};
    for (size_t i = 0; i < LARGE_BYTES; i++)
        bytes[i] = byte_at(group->rank, i);
    /* A registration is possible, but of no use to such a NIC. */
    CHECK_OK(s.via->ops->register_own(s.via, bytes, LARGE_BYTES));
    CHECK_OK(s.via->ops->post(s.via, &put, &batch));
    CHECK_OK(s.via->ops->settle(s.via, &batch));
    while (atomic_load_explicit(flag, memory_order_acquire) == 0)
        sched_yield();
    CHECK(atomic_load(flag) == 5, "the signal is %d", (int)atomic_load(flag));
    check_bytes(own(&s, s.area), from);
    memset(bytes, 0, LARGE_BYTES);
    CHECK_OK(stage_get(&s, pe, bytes, s.area, LARGE_BYTES));
    check_bytes(bytes, group->rank);
    s.via->ops->unregister_own(s.via, bytes);
    CHECK_OK(sym_barrier(group->sym));
    free(bytes);
    stage_close(&s);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static void await_batch(const transport_batch *batch)
{
    while (atomic_load_explicit(&batch->left, memory_order_acquire))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void post_word(const stage *s, int32_t pe, const uint64_t *word, transport_batch *batch)
{
    const transport_request put = {
        .kind = TRANSPORT_KIND_PUT, .pe = pe, .offset = s->area, .source = word, .bytes = sizeof *word};
    CHECK_OK(s->via->ops->post(s->via, &put, batch));
}

/* Rank 0's NIC is killed with a request in flight. The request ends without a call of the transport. Errors name the
   peer and the end of the process. Other ranks reach rank 0 as before. */
static void killed(expar_group *group, void *shared)
{
    stage s;
    (void)shared;
    if (!open_over(&s, group, &group->sym->site, 4096)) return;
    const int32_t pe = (group->rank + 1) % RANKS, other = (group->rank + 2) % RANKS;
    uint64_t word = 7;
    char expected[128];
    transport_batch batch = {0};
    if (group->rank == 0) {
        stop_nic(&s);
        post_word(&s, pe, &word, &batch);
        kill(nic_pid(&s), SIGKILL);
        await_batch(&batch);
        CHECK_STATUS(EXPAR_ERR_PEER, s.via->ops->settle(s.via, &batch));
        snprintf(expected, sizeof expected, "requests to PE %d were given up: the device stopped answering", pe);
        CHECK_TEXT(expected, "(no completion from request ");
        snprintf(expected, sizeof expected, "its process %d was ended by signal 9", nic_pid(&s));
        CHECK_TEXT(expected);
        CHECK_STATUS(EXPAR_ERR_PEER, stage_put(&s, pe, s.area, &word, sizeof word));
        CHECK_STATUS(EXPAR_ERR_PEER, stage_get(&s, other, &word, s.area, sizeof word));
        snprintf(expected, sizeof expected, "requests to PE %d were given up: the device stopped answering", other);
        CHECK_TEXT(expected);
        transport_traffic sum = {0};
        s.via->ops->add_traffic(s.via, &sum);
        CHECK(sum.completions == 0, "%d completions of a process that is gone", (int)sum.completions);
    } else {
        CHECK_OK(stage_put(&s, 0, s.area + 8 * (uint64_t)group->rank, &word, sizeof word));
        CHECK_OK(stage_get(&s, 0, &word, s.area + 8 * (uint64_t)group->rank, sizeof word));
        CHECK(word == 7, "%d", (int)word);
    }
    CHECK_OK(sym_barrier(group->sym));
    stage_close(&s);
}

/* A NIC that is stopped: its requests are given up, and it is killed, so that it does not touch the memory later. */
static void stopped(expar_group *group, void *shared)
{
    stage s;
    transport_site site = group->sym->site;
    (void)shared;
    site.timeout_ms = 200;
    site.patience = NULL;
    if (!open_over(&s, group, &site, 4096)) return;
    const int32_t pe = (group->rank + 1) % RANKS, other = (group->rank + 2) % RANKS;
    const uint64_t word = 7;
    char expected[64];
    transport_batch batch = {0};
    stop_nic(&s);
    post_word(&s, pe, &word, &batch);
    CHECK_STATUS(EXPAR_ERR_PEER, s.via->ops->settle(s.via, &batch));
    snprintf(expected, sizeof expected, "requests to PE %d were given up", pe);
    CHECK_TEXT(expected);
    CHECK_STATUS(EXPAR_ERR_PEER, stage_put(&s, other, s.area, &word, sizeof word));
    CHECK_TEXT("gave no answer for", "and was killed");
    kill(nic_pid(&s), SIGCONT); /* nobody is there to go on */
    CHECK_OK(sym_barrier(group->sym));
    CHECK(*(uint64_t *)(void *)own(&s, s.area) == 0, "a given-up request was carried out");
    stage_close(&s);
}

/* ---- rejections -------------------------------------------------------------------------------------------------- */

static void rejected(expar_group *group, void *text)
{
    transport *via = NULL;
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, transport_find("gda", 3)->open(&group->sym->site, &via));
    CHECK_TEXT("EXPAR_GDA_NIC=process", text);
}

static void no_program(expar_group *group, void *shared)
{
    transport *via = NULL;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_SYSTEM, transport_find("gda", 3)->open(&group->sym->site, &via));
    CHECK_TEXT("its program /nowhere/gda-nic cannot be started: No such file or directory");
}

static void run(ranks_kind kind, ranks_body body, void *shared)
{
    const ranks_plan plan = {.kind = kind, .size = RANKS};
    assert_true(ranks_run(&plan, body, shared));
}

static void test_private_memory(void **state)
{
    (void)state;
    run(RANKS_PROCESSES, private_memory, NULL);
}

static void test_killed(void **state)
{
    (void)state;
    run(RANKS_PROCESSES, killed, NULL);
}

static void test_stopped(void **state)
{
    (void)state;
    run(RANKS_PROCESSES, stopped, NULL);
}

static void test_rejected(void **state)
{
    char *program = getenv("EXPAR_GDA_NIC_PROGRAM");
    (void)state;
    run(RANKS_THREADS, rejected, (void *)(uintptr_t) "the heaps of ranks that are threads");
    program = program ? strdup(program) : NULL;
    setenv("EXPAR_GDA_NIC_PROGRAM", "/nowhere/gda-nic", 1);
    run(RANKS_PROCESSES, no_program, NULL);
    unsetenv("EXPAR_GDA_NIC_PROGRAM");
    if (program) setenv("EXPAR_GDA_NIC_PROGRAM", program, 1);
    free(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_private_memory),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_rejected),
    };
    setenv("EXPAR_GDA_NIC", "process", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
