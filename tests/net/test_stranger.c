/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger on the ranks' host, without the group's secret. It is a process that knows the addresses at which ranks
 * listen, connects there, and reads and writes memory by keys that it guesses. All of it fails, the ranks go on
 * meanwhile, and their bytes are right.
 *
 * Ranks and stranger share a page. The ranks exchange bytes until the stranger has ended. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "group/group.h"
#include "net/fabric/fabric.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 2, BLOCK_BYTES = 1 << 20, PART_BYTES = 4096 };

typedef struct place {
    uint8_t name[FABRIC_NAME_BYTES];
    fabric_key key; /* of the self-test's page, which no rank uses any more */
} place;

typedef struct scene {
    bool stays; /* the stranger's connections stay until ranks end them; set before the fork */
    bool opens; /* ranks let strangers connect, as they do to each other in the self-test; set before the fork */
    _Atomic int32_t met;  /* ranks that have written their place (release); read by the stranger (acquire) */
    _Atomic int32_t came; /* 1: the stranger has connected, and ranks shall end that; by the stranger, read by ranks */
    _Atomic int32_t gone; /* 1: the stranger has ended; written by the test, read by rank 0 */
    place places[RANKS];
} scene;

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static fabric *network_of(expar_group *group)
{
    for (int32_t i = 0; i < TRANSPORT_MOST; i++) {
        transport *one = group->sym->transports[i];
        if (one && one->ops == &transport_fabric) return (fabric *)one;
    }
    return NULL;
}

static bool show_place(expar_group *group, scene *s)
{
    fabric *f = network_of(group);
    size_t bytes = FABRIC_NAME_BYTES;
    if (!CHECK(f != NULL, "there is no fabric") || !CHECK(f->channels[0].listener >= 0, "no socket listens"))
        return false;
    if (s->opens) fabric_admission_open(f);
    int code = fi_getname(&f->channels[0].ep->fid, s->places[group->rank].name, &bytes);
    s->places[group->rank].key = f->page->peers[group->rank];
    atomic_fetch_add_explicit(&s->met, 1, memory_order_release);
    return CHECK(code == 0, "fi_getname: %d", code);
}

static uint8_t byte_of(int32_t rank, uint64_t round, size_t at)
{
    return (uint8_t)(at * 7 + round * 31 + (uint64_t)rank * 13 + 5);
}

static int64_t count_wrong(const uint8_t *bytes, size_t count, int32_t rank, uint64_t round)
{
    int64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += bytes[i] != byte_of(rank, round, i);
    return wrong;
}

/* Puts a part into the other rank's block and gets it back. */
static void exchange(expar_group *group, uint8_t *block, uint64_t round)
{
    uint8_t sent[PART_BYTES], back[PART_BYTES];
    const int32_t other = 1 - group->rank;
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = byte_of(group->rank, round, i);
    CHECK_OK(expar_put(group, block, sent, sizeof sent, other));
    CHECK_OK(expar_barrier_all(group));
    CHECK(count_wrong(block, PART_BYTES, other, round) == 0, "bytes that were put are wrong");
    CHECK_OK(expar_get(group, back, block, sizeof back, other));
    CHECK(memcmp(back, sent, sizeof back) == 0, "bytes that were got are wrong");
    CHECK_OK(expar_barrier_all(group));
}

static int32_t count_descriptors(void)
{
    int32_t count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all))
        count++;
    if (all) closedir(all);
    return count;
}

/* The end of the self-test comes once more, with a stranger's connections. Their descriptors are free once libfabric
   makes progress. */
static void end_strangers(expar_group *group, const scene *s, int32_t before)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS / 3;
    fabric *f = network_of(group);
    while (!s->came && ranks_clock_ms() < until_ms)
        usleep(1000);
    CHECK_OK(expar_barrier_all(group));
    CHECK(s->came, "no stranger is connected");
    fabric_admission_shut(f);
    CHECK_OK(fabric_end_strangers(f));
    while (count_descriptors() > before && ranks_clock_ms() < until_ms)
        if (!fabric_progress(f)) usleep(1000);
    CHECK(count_descriptors() <= before, "%d descriptors more than before", count_descriptors() - before);
    CHECK_OK(expar_barrier_all(group));
}

static void exchange_beside(expar_group *group, void *shared)
{
    scene *s = shared;
    uint8_t *block;
    uint64_t *last, ends = 1;
    CHECK_OK(expar_malloc(group, BLOCK_BYTES, (void **)&block));
    CHECK_OK(expar_calloc(group, 1, sizeof *last, (void **)&last));
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        block[i] = byte_of(group->rank, 0, i);
    const int32_t before = count_descriptors();
    bool shown = show_place(group, s);
    CHECK_OK(expar_barrier_all(group));
    if (shown && s->stays) end_strangers(group, s, before);
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    /* Both ranks find *last set in the same round: rank 0 sets it before a barrier. */
    for (uint64_t round = 1; shown && check_failures() == 0 && *last == 0; round++) {
        exchange(group, block, round);
        const bool over = s->gone || ranks_clock_ms() > until_ms;
        for (int32_t pe = 0; group->rank == 0 && pe < RANKS && over; pe++)
            CHECK_OK(expar_put(group, last, &ends, sizeof ends, pe));
        CHECK_OK(expar_barrier_all(group));
    }
    CHECK(s->gone, "the stranger has not ended");
    int64_t wrong = 0;
    for (size_t i = PART_BYTES; i < BLOCK_BYTES; i++)
        wrong += block[i] != byte_of(group->rank, 0, i);
    CHECK(wrong == 0, "%lld bytes that no rank wrote have changed", (long long)wrong);
    CHECK_OK(expar_free(group, last));
    CHECK_OK(expar_free(group, block));
}

/* ---- the stranger ------------------------------------------------------------------------------------------------ */

/* Waits until the ranks have shown their places. */
static bool ranks_have_met(const scene *s)
{
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (atomic_load_explicit(&s->met, memory_order_acquire) < RANKS && ranks_clock_ms() < until_ms)
        usleep(2000);
    return CHECK(s->met == RANKS, "the ranks have not met");
}

/* A connection that the kernel would accept at once. Where it drops them, the attempt ends by itself. */
static void connect_in_vain(const scene *s)
{
    const struct timeval brief = {.tv_usec = 300000};
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const struct sockaddr *address = (const void *)s->places[rank].name;
        int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief) == 0, "no socket");
        CHECK(connect(fd, address, sizeof(struct sockaddr_in)) != 0, "rank %d let a stranger connect", rank);
        CHECK(errno == EINPROGRESS, "connecting to rank %d: %s", rank, strerror(errno));
        close(fd);
    }
}

typedef struct thief {
    const fabric_library *library;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t victims[RANKS];
} thief;

static bool thief_open(thief *t, const scene *s)
{
    struct fi_cq_attr queue = {.size = 256, .format = FI_CQ_FORMAT_DATA};
    struct fi_av_attr table = {.type = FI_AV_TABLE, .count = RANKS};
    if (!CHECK_OK(fabric_library_open(&t->library))) return false;
    struct fi_info *hints = t->library->dupinfo(NULL);
    hints->caps = FI_RMA | FI_ATOMIC | FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
    int code = t->library->getinfo(FI_VERSION(1, 15), "127.0.0.1", NULL, FI_SOURCE, hints, &t->info);
    t->library->freeinfo(hints);
    if (code == 0) code = t->library->fabric(t->info->fabric_attr, &t->fabric, NULL);
    if (code == 0) code = fi_domain(t->fabric, t->info, &t->domain, NULL);
    if (code == 0) code = fi_av_open(t->domain, &table, &t->av, NULL);
    if (code == 0) code = fi_cq_open(t->domain, &queue, &t->cq, NULL);
    if (code == 0) code = fi_endpoint(t->domain, t->info, &t->ep, NULL);
    if (code == 0) code = fi_ep_bind(t->ep, &t->av->fid, 0);
    if (code == 0) code = fi_ep_bind(t->ep, &t->cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0) code = fi_enable(t->ep);
    for (int32_t rank = 0; code == 0 && rank < RANKS; rank++)
        if (fi_av_insert(t->av, s->places[rank].name, 1, &t->victims[rank], 0, NULL) != 1) code = -1;
    return CHECK(code == 0, "the stranger's endpoint: %d", code);
}

static void thief_close(thief *t)
{
    struct fid *all[] = {&t->ep->fid, &t->cq->fid, &t->av->fid, &t->domain->fid, &t->fabric->fid};
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        fi_close(all[i]);
    t->library->freeinfo(t->info);
}

typedef enum deed { DEED_READ, DEED_WRITE, DEED_ADD, DEED_TELL, DEEDS } deed;
static const char *const deed_names[] = {"read", "write", "add", "write with data"};

static ssize_t try(thief *t, deed what, int32_t rank, const fabric_key *by, struct fi_context2 *context)
{
    static uint64_t words[8];
    const fi_addr_t to = t->victims[rank];
    const uint64_t at = by->address, key = by->key;
    switch (what) {
    case DEED_READ:
        return fi_read(t->ep, words, sizeof words, NULL, to, at, key, context);
    case DEED_WRITE:
        return fi_write(t->ep, words, sizeof words, NULL, to, at, key, context);
    case DEED_ADD:
        return fi_atomic(t->ep, words, 1, NULL, to, at, key, FI_UINT64, FI_SUM, context);
    default:
        return fi_writedata(t->ep, words, 8, NULL, 7, to, at, key, context);
    }
}

/* 0: it was carried out; else why not. */
static int outcome(thief *t, deed what, int32_t rank, const fabric_key *by)
{
    struct fi_context2 context;
    struct fi_cq_data_entry entry;
    struct fi_cq_err_entry error = {0};
    const int64_t until_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    ssize_t code = -FI_EAGAIN;
    while ((code = try(t, what, rank, by, &context)) == -FI_EAGAIN && ranks_clock_ms() < until_ms)
        fi_cq_read(t->cq, &entry, 0);
    if (code != 0) return (int)-code;
    while ((code = fi_cq_read(t->cq, &entry, 1)) == -FI_EAGAIN && ranks_clock_ms() < until_ms)
        usleep(100);
    if (code == 1) return 0;
    CHECK(code == -FI_EAVAIL, "the stranger's %s stands still", deed_names[what]);
    return fi_cq_readerr(t->cq, &error, 0) == 1 ? error.err : FI_EOTHER;
}

static void steal(const scene *s)
{
    static const uint64_t guesses[] = {
        0, 1, 2, 3, 4, 5, 6, 7, UINT64_C(1) << 32, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    thief t = {0};
    if (!thief_open(&t, s)) return;
    for (int32_t rank = 0; rank < RANKS; rank++)
        for (size_t i = 0; i < ARRAY_LENGTH(guesses); i++)
            for (deed what = 0; what < DEEDS; what++)
                CHECK(outcome(&t, what, rank, &(fabric_key){.key = guesses[i]}) != 0,
                      "rank %d: a stranger's %s by key %llx was carried out", rank, deed_names[what],
                      (unsigned long long)guesses[i]);
    thief_close(&t);
}

/* The stranger has got hold of keys. Its writes with immediate data end as completions that no rank has asked for. */
static void tell(const scene *s)
{
    enum { TIMES = 100 };
    thief t = {0};
    if (!thief_open(&t, s)) return;
    int code = 0;
    for (int i = 0; i < TIMES && code == 0; i++) {
        code = outcome(&t, DEED_TELL, i % RANKS, &s->places[i % RANKS].key);
        CHECK(code == 0, "rank %d: a write by its key: %d", i % RANKS, code);
    }
    thief_close(&t);
}

/* Connects often, says something on every other connection, and waits until all of them have been ended. */
static void stay_connected(const scene *s)
{
    enum { EACH = 20 };
    const struct timeval patience = {.tv_sec = RANKS_TIMEOUT_MS / 3000};
    int fds[RANKS * EACH];
    char byte;
    for (int i = 0; i < RANKS * EACH; i++) {
        const struct sockaddr *address = (const void *)s->places[i % RANKS].name;
        fds[i] = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(connect(fds[i], address, sizeof(struct sockaddr_in)) == 0, "connecting: %s", strerror(errno));
        CHECK(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0, "no time limit");
        if (i % 4 < 2) CHECK(send(fds[i], "hello", 5, MSG_NOSIGNAL) == 5, "sending: %s", strerror(errno));
    }
    atomic_store(&((scene *)(uintptr_t)s)->came, 1);
    for (int i = 0; i < RANKS * EACH; i++) {
        ssize_t count = recv(fds[i], &byte, 1, 0);
        CHECK(count == 0 || (count < 0 && errno == ECONNRESET), "connection %d stays: %s", i, strerror(errno));
        close(fds[i]);
    }
}

static pid_t stranger_start(scene *s, void (*work)(const scene *))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_begin(99);
    if (ranks_have_met(s)) work(s);
    int64_t failures = check_failures();
    s->gone = 1;
    fflush(NULL);
    _exit(failures == 0 ? 0 : 1);
}

static void run_scene(const scene *plan, void (*work)(const scene *))
{
    int status = -1;
    scene *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(s, MAP_FAILED);
    s->opens = plan->opens;
    s->stays = plan->stays;
    pid_t pid = stranger_start(s, work);
    assert_true(pid > 0);
    bool right = ranks_run(&(ranks_plan){.kind = RANKS_PROCESSES, .size = RANKS}, exchange_beside, s);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    munmap(s, sizeof *s);
    assert_int_equal(status, 0);
    assert_true(right);
}

static void run(bool opens, void (*work)(const scene *))
{
    run_scene(&(scene){.opens = opens}, work);
}

static void strangers_do_not_connect(void **state)
{
    (void)state;
    run(false, connect_in_vain);
}

static void strangers_guess_no_key(void **state)
{
    (void)state;
    run(true, steal);
}

static void strangers_do_not_stay_connected(void **state)
{
    (void)state;
    run_scene(&(scene){.opens = true, .stays = true}, stay_connected);
}

static void completions_of_strangers_are_skipped(void **state)
{
    (void)state;
    run(true, tell);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* Two ranks, and two groups of the same ranks, have no key in common, and none is small. */
static void see_keys(expar_group *group, void *shared)
{
    (void)shared;
    expar_group *again = ranks_join_again(group);
    if (!again) return;
    const fabric *one = network_of(group), *other = network_of(again);
    for (int32_t rank = 0; CHECK(one && other, "no fabric") && rank < RANKS; rank++) {
        uint64_t keys[] = {one->page->peers[rank].key, other->page->peers[rank].key,
                           one->page->peers[(rank + 1) % RANKS].key};
        for (size_t i = 0; i < ARRAY_LENGTH(keys); i++)
            CHECK(keys[i] >> 24 != 0, "a key is %llx", (unsigned long long)keys[i]);
        CHECK(keys[0] != keys[1] && keys[0] != keys[2], "keys come twice");
    }
    CHECK_OK(expar_group_destroy(again));
}

static void keys_are_random(void **state)
{
    (void)state;
    assert_true(ranks_run(&(ranks_plan){.kind = RANKS_PROCESSES, .size = RANKS}, see_keys, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_random),
        cmocka_unit_test(strangers_do_not_connect),
        cmocka_unit_test(strangers_guess_no_key),
        cmocka_unit_test(strangers_do_not_stay_connected),
        cmocka_unit_test(completions_of_strangers_are_skipped),
    };
    setenv("EXPAR_TRANSPORTS", "fabric", 1);
    setenv("EXPAR_FABRIC_PROVIDER", "tcp;ofi_rxm", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
