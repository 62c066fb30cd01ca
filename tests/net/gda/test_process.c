/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as a process of its own: it has what was passed to it and nothing else, at addresses of its own.
 * Requests of all kinds are carried out, bad orders are named, and its death ends waits.
 * usage: test_gda_process PROGRAM */
#include "made.h"
#include "net/gda/nic/process.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define REGION_BYTES 1048576
#define HEAP_BYTES   65536
#define REMOTE       UINT64_C(0x600000000000) /* peers know the second heap by this address */
#define LOCAL_KEY    0x11u
#define REMOTE_KEY   0x22u
#define RESULTS_KEY  0x33u
#define LATE_MS      20000

static const char *program;

/* All memory that both processes share: two heaps and a queue. */
typedef struct shared {
    uint8_t heaps[2][HEAP_BYTES];
    gda_block blocks[64];
    _Atomic uint32_t cqes[64 * GDA_CQE_WORDS];
    uint64_t results[17];
    _Atomic uint32_t record[2], cq_record;
    _Atomic uint64_t doorbell;
} shared;

typedef struct setting {
    shared *mem;
    int fd;
    nic_process *nic;
    uint32_t region;
    gda_queue queue;
    _Atomic uint64_t stop;
} setting;

static const gda_plan plan = {.depth = 64,
                              .cq_entries = 64,
                              .batch = 8,
                              .most = 16,
                              .num_results = 16,
                              .scope = GDA_SCOPE_SYSTEM,
                              .collapsed = true,
                              .first = 0xfff0};

static nic_queue queue_plan(void)
{
    return (nic_queue){.qpn = 0x55,
                       .port = 0,
                       .peer_port = 1,
                       .peer_qpn = 0x56,
                       .depth = plan.depth,
                       .first = plan.first,
                       .collapsed = true,
                       .cq_entries = plan.cq_entries};
}

static const nic_places places = {.blocks = offsetof(shared, blocks),
                                  .record = offsetof(shared, record),
                                  .doorbell = offsetof(shared, doorbell),
                                  .cqes = offsetof(shared, cqes)};

static const nic_faults harmless = {.seed = 9, .delay_turns = 1, .coalesce_one_in = 3, .rnr_retries = 3};

static void begin(setting *s)
{
    memset(s, 0, sizeof *s);
    s->fd = memfd_create("gda-shared", MFD_CLOEXEC);
    assert_true(s->fd >= 0);
    assert_int_equal(ftruncate(s->fd, REGION_BYTES), 0);
    s->mem = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_true(s->mem != MAP_FAILED);
    const nic_process_plan start = {.program = program, .faults = harmless, .late_ms = LATE_MS};
    assert_int_equal(nic_process_start(&start, &s->nic), EXPAR_OK);
    assert_int_equal(nic_pass_region(s->nic, s->fd, REGION_BYTES, &s->region), EXPAR_OK);
    const gda_parts parts = {.blocks = s->mem->blocks,
                             .record = s->mem->record,
                             .doorbell = &s->mem->doorbell,
                             .cqes = s->mem->cqes,
                             .stop = &s->stop,
                             .results = s->mem->results,
                             .results_address = (uintptr_t)s->mem->results,
                             .results_lkey = htobe32(RESULTS_KEY)};
    gda_cqes_clear(&plan, s->mem->cqes);
    gda_record_clear(&plan, s->mem->record);
    gda_queue_start(&s->queue, &plan, &parts, 0x55, 1);
    const nic_memory memories[] = {
        {.port = 0,
         .key = LOCAL_KEY,
         .address = (uintptr_t)s->mem->heaps[0],
         .bytes = HEAP_BYTES,
         .access = NIC_LOCAL_WRITE},
        {.port = 0,
         .key = RESULTS_KEY,
         .address = (uintptr_t)s->mem->results,
         .bytes = sizeof s->mem->results,
         .access = NIC_LOCAL_WRITE},
        {.port = 1,
         .key = REMOTE_KEY,
         .address = REMOTE,
         .bytes = HEAP_BYTES,
         .access = NIC_REMOTE_READ | NIC_REMOTE_WRITE | NIC_REMOTE_ATOMIC},
    };
    const uint64_t offsets[] = {0, offsetof(shared, results), HEAP_BYTES};
    for (int i = 0; i < 3; i++)
        assert_int_equal(nic_pass_memory(s->nic, &memories[i], s->region, offsets[i]), EXPAR_OK);
    const nic_queue queue = queue_plan();
    assert_int_equal(nic_pass_queue(s->nic, &queue, s->region, &places), EXPAR_OK);
}

static void end(setting *s)
{
    nic_process_end(s->nic);
    munmap(s->mem, REGION_BYTES);
    close(s->fd);
}

static gda_request request_of(const setting *s, gda_form form, uint64_t offset, uint32_t bytes)
{
    return (gda_request){.form = form,
                         .remote = REMOTE + offset,
                         .rkey = htobe32(REMOTE_KEY),
                         .local = (uintptr_t)s->mem->heaps[0] + offset,
                         .lkey = htobe32(LOCAL_KEY),
                         .bytes = bytes};
}

static void test_requests(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    for (uint64_t round = 0; round < 100; round++) {
        uint64_t until = 0, old = 0;
        gda_request put = request_of(&s, GDA_WRITE, 64 * round, 1000), get = request_of(&s, GDA_READ, 64 * round, 1000);
        gda_request add = request_of(&s, GDA_ADD_64, HEAP_BYTES - 8, 8);
        add.operand = 3;
        memset(s.mem->heaps[0] + 64 * round, (int)round + 1, 1000);
        assert_true(gda_post(&s.queue, &put, &until) && gda_poll(&s.queue, until));
        assert_memory_equal(s.mem->heaps[1] + 64 * round, s.mem->heaps[0] + 64 * round, 1000);
        memset(s.mem->heaps[1] + 64 * round, 0xcc, 1000);
        assert_true(gda_post(&s.queue, &get, &until) && gda_poll(&s.queue, until));
        assert_memory_equal(s.mem->heaps[0] + 64 * round, s.mem->heaps[1] + 64 * round, 1000);
        assert_true(gda_fetch(&s.queue, &add, &old));
        assert_int_equal(old, 3 * round);
    }
    end(&s);
}

/* Memory of this process that was not passed cannot be reached: its key is not known, nor is that of what was taken
   back. */
static void test_nothing_else(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    uint64_t own = 5, until = 0;
    gda_request put = request_of(&s, GDA_WRITE, 0, 8);
    assert_int_equal(nic_pass_memory_removal(s.nic, 0, LOCAL_KEY), EXPAR_OK);
    put.local = (uintptr_t)&own;
    assert_true(gda_post(&s.queue, &put, &until));
    assert_false(gda_poll(&s.queue, until));
    assert_int_equal(gda_failure_syndrome(gda_error(&s.queue)), GDA_SYNDROME_LOCAL_PROTECTION);
    end(&s);
}

static void rejects(expar_status expected, expar_status status, const char *text)
{
    assert_int_equal(status, expected);
    if (!strstr(expar_last_error(), text)) fail_msg("'%s' without '%s'", expar_last_error(), text);
}

static void test_bad_orders(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    nic_memory memory = {.key = 0x77, .address = 0x1000, .bytes = 4096};
    nic_queue queue = queue_plan();
    nic_places wrong = places;
    uint32_t region = 0;
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.nic, &memory, s.region, REGION_BYTES - 4095), "is not inside region 0");
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.nic, &memory, s.region, UINT64_MAX), "is not inside region 0");
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.nic, &memory, s.region + 1, 0), "is not inside region 1");
    rejects(EXPAR_ERR_ARGUMENT, nic_pass_region(s.nic, -1, 4096, &region), "no descriptor came");
    rejects(EXPAR_ERR_ARGUMENT, nic_pass_queue(s.nic, &queue, s.region, &places), "expected a new one");
    queue.qpn = 0x57;
    wrong.blocks = REGION_BYTES - plan.depth * 64 + 64;
    rejects(EXPAR_ERR_NULL, nic_pass_queue(s.nic, &queue, s.region, &wrong), "lacks an address");
    end(&s);
}

/* Memory may be registered as far as its file has grown, and no further. */
static void test_growth(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    const int fd = memfd_create("gda-grows", MFD_CLOEXEC);
    const nic_memory memory = {.key = 0x77, .address = 0x1000, .bytes = 8192};
    uint32_t region = 0;
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(nic_pass_region(s.nic, fd, REGION_BYTES, &region), EXPAR_OK);
    assert_int_equal(region, s.region + 1);
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.nic, &memory, region, 0), "is not inside region 1 and its file");
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(nic_pass_memory(s.nic, &memory, region, 0), EXPAR_OK);
    close(fd);
    end(&s);
}

/* A removed queue is not looked at any more: nobody takes its rings. */
static void test_removed_queue(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    uint64_t until = 0;
    nic_counts counts = {0};
    gda_request put = request_of(&s, GDA_WRITE, 0, 8);
    assert_true(gda_post(&s.queue, &put, &until) && gda_poll(&s.queue, until));
    assert_int_equal(nic_pass_count(s.nic, &counts), EXPAR_OK);
    assert_int_equal(counts.requests, 1);
    assert_int_equal(nic_pass_queue_removal(s.nic, 0, 0x55), EXPAR_OK);
    atomic_store(&s.mem->doorbell, 5);
    assert_int_equal(nic_pass_count(s.nic, &counts), EXPAR_OK);
    assert_int_equal(counts.requests, 1);
    assert_int_equal(atomic_load(&s.mem->doorbell), 5);
    end(&s);
}

static void posts_in_vain(setting *s)
{
    uint64_t until = 0;
    gda_request put = request_of(s, GDA_WRITE, 0, 8);
    assert_true(gda_post(&s->queue, &put, &until));
    gda_store_system(&s->stop, gda_failure(GDA_FAILED_BY_HOST, GDA_DEVICE_IS_GONE, 0, 0));
    assert_false(gda_poll(&s->queue, until));
    assert_int_equal(gda_failure_by(gda_error(&s->queue)), GDA_FAILED_BY_HOST);
}

/* The device's process is killed: the check and all orders say so, and the host ends waits. */
static void test_killed(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    nic_memory memory = {.key = 0x77, .address = 0x1000, .bytes = 4096};
    assert_int_equal(nic_process_check(s.nic), EXPAR_OK);
    kill(nic_process_id(s.nic), SIGKILL);
    while (nic_process_check(s.nic) == EXPAR_OK) {
    }
    rejects(EXPAR_ERR_PEER, nic_process_check(s.nic), "was ended by signal 9 (Killed)");
    rejects(EXPAR_ERR_PEER, nic_pass_memory(s.nic, &memory, s.region, 0), "was ended by signal 9 (Killed)");
    /* no zombie */
    assert_int_equal(waitpid(nic_process_id(s.nic), NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    posts_in_vain(&s);
    end(&s);
}

/* A stopped process owes an answer. It is killed, so that it does not touch memory later. */
static void test_stopped(void **state)
{
    (void)state;
    nic_process *own = NULL;
    nic_counts counts;
    const nic_process_plan start = {.program = program, .late_ms = 100};
    assert_int_equal(nic_process_start(&start, &own), EXPAR_OK);
    kill(nic_process_id(own), SIGSTOP);
    siginfo_t info; /* all threads stand still when it is filled */
    assert_int_equal(waitid(P_PID, (id_t)nic_process_id(own), &info, WSTOPPED), 0);
    rejects(EXPAR_ERR_PEER, nic_pass_count(own, &counts), "gave no answer for 100 ms, and was killed");
    assert_int_equal(waitpid(nic_process_id(own), NULL, WNOHANG), -1);
    nic_process_end(own);
}

static void test_wrong_program(void **state)
{
    (void)state;
    nic_process *own = NULL;
    nic_process_plan start = {.program = "/nowhere/gda-nic", .late_ms = LATE_MS};
    rejects(EXPAR_ERR_SYSTEM, nic_process_start(&start, &own),
            "its program /nowhere/gda-nic cannot be started: No such file or directory");
    start.program = "/bin/false";
    rejects(EXPAR_ERR_SYSTEM, nic_process_start(&start, &own), "/bin/false: software NIC: its process");
    rejects(EXPAR_ERR_SYSTEM, nic_process_start(&start, &own), "ended with status 1");
}

/* Waits until the process has gone; a zombie that nobody awaits counts as gone. */
static void await_gone(pid_t pid)
{
    char path[64], name[64] = "", letter = 0;
    int number;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (;;) {
        FILE *stat = fopen(path, "r");
        if (!stat) return;
        const int count = fscanf(stat, "%d %63s %c", &number, name, &letter);
        fclose(stat);
        if (count != 3 || letter == 'Z' || letter == 'X') return;
        usleep(1000);
    }
}

/* A rank is killed while a child of it keeps the socket open: the device's process ends all the same. */
static void test_killed_rank(void **state)
{
    (void)state;
    int told[2], hold[2];
    pid_t pids[2];
    char nothing;
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    const pid_t rank = fork();
    if (rank == 0) {
        setting s;
        begin(&s);
        const pid_t child = fork();
        if (child == 0) { /* keeps all descriptors until the test ends */
            close(hold[1]);
            _exit(read(hold[0], &nothing, 1) > 0);
        }
        pids[0] = nic_process_id(s.nic);
        pids[1] = child;
        if (write(told[1], pids, sizeof pids) != sizeof pids) _exit(1);
        pause();
    }
    assert_int_equal(read(told[0], pids, sizeof pids), sizeof pids);
    assert_int_equal(kill(pids[0], 0), 0);
    kill(rank, SIGKILL);
    assert_int_equal(waitpid(rank, NULL, 0), rank);
    await_gone(pids[0]);
    assert_int_equal(kill(pids[1], 0), 0);
    close(hold[0]);
    close(hold[1]);
    close(told[0]);
    close(told[1]);
}

/* The process keeps none of the rank's descriptors but its own end of the socket and what it opens itself. */
static void test_descriptors(void **state)
{
    (void)state;
    nic_process *own = NULL;
    char path[64];
    int count = 0;
    const int left_open = dup(STDERR_FILENO);
    const nic_process_plan start = {.program = program, .late_ms = LATE_MS};
    assert_int_equal(nic_process_start(&start, &own), EXPAR_OK);
    snprintf(path, sizeof path, "/proc/%d/fd", nic_process_id(own));
    DIR *list = opendir(path);
    assert_non_null(list);
    for (const struct dirent *one; (one = readdir(list));)
        count += one->d_name[0] != '.';
    closedir(list);
    close(left_open);
    assert_in_range(count, 4, 5); /* standard ones, the socket, and a pidfd where there are such */
    nic_process_end(own);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),    cmocka_unit_test(test_nothing_else),  cmocka_unit_test(test_bad_orders),
        cmocka_unit_test(test_growth),      cmocka_unit_test(test_removed_queue), cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),     cmocka_unit_test(test_wrong_program), cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_descriptors),
    };
    if (argc != 2) return 64;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
