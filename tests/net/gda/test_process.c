/* SPDX-License-Identifier: Apache-2.0 */
/* The software NIC as a process of its own: it has what was passed to it and nothing else, at addresses of its own.
 * Requests of all kinds are carried out, bad orders are named, and its death ends waits.
 * usage: test_gda_process PROGRAM */
#include "made.h"
#include "net/gda/nic/process.h"

#include <endian.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define REGION_BYTES 1048576
#define HEAP_BYTES   65536
#define REMOTE       UINT64_C(0x600000000000) /* peers know the second heap by this address */
#define LOCAL_KEY    0x11u
#define REMOTE_KEY   0x22u
#define RESULTS_KEY  0x33u

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
    int fd, socket;
    pid_t pid;
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

static void spawn(setting *s)
{
    int ends[2];
    char number[16];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const int kept = dup(ends[1]); /* this one outlives exec */
    snprintf(number, sizeof number, "%d", kept);
    char *const arguments[] = {(char *)(uintptr_t)program, number, NULL};
    assert_int_equal(posix_spawn(&s->pid, program, NULL, NULL, arguments, environ), 0);
    close(kept);
    close(ends[1]);
    s->socket = ends[0];
}

static void begin(setting *s)
{
    memset(s, 0, sizeof *s);
    s->fd = memfd_create("gda-shared", MFD_CLOEXEC);
    assert_true(s->fd >= 0);
    assert_int_equal(ftruncate(s->fd, REGION_BYTES), 0);
    s->mem = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_true(s->mem != MAP_FAILED);
    spawn(s);
    assert_int_equal(nic_pass_region(s->socket, s->fd, REGION_BYTES, &s->region), EXPAR_OK);
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
        assert_int_equal(nic_pass_memory(s->socket, &memories[i], s->region, offsets[i]), EXPAR_OK);
    const nic_queue queue = queue_plan();
    assert_int_equal(nic_pass_queue(s->socket, &queue, s->region, &places), EXPAR_OK);
}

/* Returns the exit status of the device's process. */
static int end(setting *s)
{
    int status = 0;
    close(s->socket);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    munmap(s->mem, REGION_BYTES);
    close(s->fd);
    return status;
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
    assert_int_equal(end(&s), 0);
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
    assert_int_equal(nic_pass_removal(s.socket, 0, LOCAL_KEY), EXPAR_OK);
    put.local = (uintptr_t)&own;
    assert_true(gda_post(&s.queue, &put, &until));
    assert_false(gda_poll(&s.queue, until));
    assert_int_equal(gda_failure_syndrome(gda_error(&s.queue)), GDA_SYNDROME_LOCAL_PROTECTION);
    assert_int_equal(end(&s), 0);
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
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.socket, &memory, s.region, REGION_BYTES - 4095),
            "is not inside region 0");
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.socket, &memory, s.region, UINT64_MAX), "is not inside region 0");
    rejects(EXPAR_ERR_RANGE, nic_pass_memory(s.socket, &memory, s.region + 1, 0), "is not inside region 1");
    rejects(EXPAR_ERR_ARGUMENT, nic_pass_region(s.socket, -1, 4096, &region), "no descriptor came");
    rejects(EXPAR_ERR_ARGUMENT, nic_pass_queue(s.socket, &queue, s.region, &places), "expected a new one");
    queue.qpn = 0x57;
    wrong.blocks = REGION_BYTES - plan.depth * 64 + 64;
    rejects(EXPAR_ERR_NULL, nic_pass_queue(s.socket, &queue, s.region, &wrong), "lacks an address");
    assert_int_equal(end(&s), 0);
}

/* The device's process is killed: orders say so, and the host ends waits. */
static void test_killed(void **state)
{
    (void)state;
    setting s;
    begin(&s);
    int status;
    uint64_t until = 0;
    nic_memory memory = {.key = 0x77, .address = 0x1000, .bytes = 4096};
    kill(s.pid, SIGKILL);
    assert_int_equal(waitpid(s.pid, &status, 0), s.pid);
    rejects(EXPAR_ERR_PEER, nic_pass_memory(s.socket, &memory, s.region, 0), "its process is gone");
    gda_request put = request_of(&s, GDA_WRITE, 0, 8);
    assert_true(gda_post(&s.queue, &put, &until));
    gda_store_system(&s.stop, gda_failure(GDA_FAILED_BY_HOST, 0, 0, 0));
    assert_false(gda_poll(&s.queue, until));
    assert_int_equal(gda_failure_by(gda_error(&s.queue)), GDA_FAILED_BY_HOST);
    close(s.socket);
    munmap(s.mem, REGION_BYTES);
    close(s.fd);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_nothing_else),
        cmocka_unit_test(test_bad_orders),
        cmocka_unit_test(test_killed),
    };
    if (argc != 2) return 64;
    program = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
