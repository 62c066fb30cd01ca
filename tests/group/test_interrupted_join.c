/* SPDX-License-Identifier: Apache-2.0 */
/* A program gives up joining a group while the other rank has not come, wherever ranks meet: at a unique id, at a
 * launcher's socket, over TCP. It can join again once that one is there. */
#include "shmem/kind.h"

#include <expar/interrupt.h>

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef enum place { AT_ID, ON_HOST, BY_TCP, PLACES } place;
static const char *const place_names[PLACES] = {"unique id", "one host", "TCP"};

typedef struct scene {
    place where;
    int32_t alone; /* the rank that comes first, and is interrupted */
    char port[8], run[24];
    expar_unique_id id;
    _Atomic int32_t *given_up; /* 1 once it was; written by that rank, read by the other; in memory that both share */
} scene;

static int stop(void *context)
{
    return *(const bool *)context;
}

/* As torchrun does. */
static void set_environment(const scene *s, int32_t rank)
{
    setenv("RANK", rank ? "1" : "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", s->where == ON_HOST ? "2" : "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", s->port, 1);
    setenv("TORCHELASTIC_RUN_ID", s->run, 1);
}

static expar_status join(const scene *s, int32_t rank, expar_group **group)
{
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2, .heap_bytes = (size_t)4 << 20};
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    if (s->where == AT_ID) return ranks_join(&plan, &s->id, rank, group);
    set_environment(s, rank);
    options.heap_bytes = plan.heap_bytes;
    options.bootstrap_timeout_ms = RANKS_TIMEOUT_MS;
    return expar_group_create(&options, group);
}

/* A rank that comes before the other rank has come again is told once that it left. */
static expar_status join_after(const scene *s, int32_t rank, expar_group **group)
{
    expar_status status = join(s, rank, group);
    const bool told = status == EXPAR_ERR_BOOTSTRAP && strstr(expar_last_error(), "left while the group was formed");
    return told && rank != s->alone ? join(s, rank, group) : status;
}

static void give_up(const scene *s)
{
    bool stops = true;
    expar_group *group = NULL;
    CHECK_OK(expar_interrupt_set(stop, &stops));
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, join(s, s->alone, &group));
    CHECK_TEXT("joining", "interrupted");
    CHECK(!group, "there is a group");
    CHECK_OK(expar_interrupt_set(NULL, NULL));
    atomic_store(s->given_up, 1);
}

static void await_given_up(const scene *s)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (!atomic_load(s->given_up) && ranks_clock_ms() < until_ms)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static _Noreturn void run_rank(const scene *s, int32_t rank)
{
    expar_group *group = NULL;
    check_begin(rank);
    if (rank == s->alone)
        give_up(s);
    else
        await_given_up(s);
    if (CHECK_OK(join_after(s, rank, &group))) {
        CHECK_OK(expar_barrier_all(group));
        CHECK_OK(expar_group_destroy(group));
    }
    fflush(NULL);
    _exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
}

static bool is_free(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const bool is = fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    return is;
}

/* Below those that the system assigns to clients: they come and go. */
static void find_port(char port[8])
{
    uint16_t number = (uint16_t)(20000 + getpid() % 10000);
    while (!is_free(number))
        number++;
    snprintf(port, 8, "%u", (unsigned)number);
}

static bool run_scene(scene *s)
{
    pid_t pids[2];
    bool good = true;
    atomic_store(s->given_up, 0);
    find_port(s->port);
    snprintf(s->run, sizeof s->run, "expar-test-%d-%d-%d", (int)getpid(), (int)s->where, (int)s->alone);
    fflush(NULL);
    for (int32_t r = 0; r < 2; r++) {
        pids[r] = fork();
        if (pids[r] == 0) run_rank(s, r);
    }
    for (int32_t r = 0; r < 2; r++)
        good &= pids[r] > 0 && ranks_wait(pids[r], ranks_clock_ms() + RANKS_TIMEOUT_MS, NULL) == 0;
    if (!good) print_message("at %s, rank %d came first\n", place_names[s->where], s->alone);
    return good;
}

static void test_joining(void **state)
{
    (void)state;
    ranks_host host;
    bool good = true;
    assert_true(ranks_host_start(&host));
    scene s = {.id = host.id};
    s.given_up = mmap(NULL, sizeof *s.given_up, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s.given_up != MAP_FAILED);
    for (s.where = AT_ID; s.where < PLACES; s.where++)
        for (s.alone = 0; s.alone < 2; s.alone++)
            good &= run_scene(&s);
    munmap(s.given_up, sizeof *s.given_up);
    assert_true(ranks_host_stop(&host) & good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_joining)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
