/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: sparse, discardable, mapped by a second process, and refused where they cannot be had. */
#include "mem/machine.h"
#include "mem/mem.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static uint64_t blocks_bytes(int fd)
{
    struct stat facts;
    assert_int_equal(fstat(fd, &facts), 0);
    return (uint64_t)facts.st_blocks * 512;
}

static void test_sparse_and_discard(void **state)
{
    (void)state;
    mem_region region;
    assert_int_equal(mem_region_create(256 * GIB, true, &region), EXPAR_OK);
    assert_int_equal((uintptr_t)region.base % GIB, 0);
    assert_int_equal(region.bytes, 256 * GIB);
    assert_int_equal(mem_region_open(&region, 256 * GIB), EXPAR_OK);
    assert_int_equal(blocks_bytes(region.fd), 0);
    uint8_t *base = region.base;
    memset(base + 100 * GIB, 7, 8 * MIB);
    uint64_t touched = blocks_bytes(region.fd);
    assert_true(touched >= 8 * MIB && touched <= 32 * MIB);
    mem_region_discard(&region, 100 * GIB + 1, 4 * MIB); /* rounded inwards: the first and the last page stay */
    assert_int_equal(base[100 * GIB], 7);
    assert_int_equal(base[100 * GIB + 4095], 7);
    assert_int_equal(base[100 * GIB + 4096], 0);
    assert_int_equal(base[100 * GIB + 4 * MIB - 1], 0);
    assert_int_equal(base[100 * GIB + 4 * MIB], 7);
    assert_true(blocks_bytes(region.fd) < touched);
    mem_region_discard(&region, 100 * GIB + 5 * MIB, 100); /* no whole page: nothing happens */
    assert_int_equal(base[100 * GIB + 5 * MIB], 7);
    mem_region_discard(&region, 256 * GIB - 4096, SIZE_MAX); /* outside: nothing happens */
    mem_region_close(&region);
    assert_null(region.base);
}

static void test_anonymous(void **state)
{
    (void)state;
    mem_region region;
    assert_int_equal(mem_region_create(3 * MIB + 1, false, &region), EXPAR_OK);
    assert_int_equal(region.fd, -1);
    assert_int_equal((uintptr_t)region.base % (2 * MIB), 0);
    assert_int_equal(mem_region_open(&region, 3 * MIB + 1), EXPAR_OK);
    memset(region.base, 9, 3 * MIB + 1);
    mem_region_discard(&region, 0, 2 * MIB);
    assert_int_equal(((uint8_t *)region.base)[2 * MIB - 1], 0);
    assert_int_equal(((uint8_t *)region.base)[2 * MIB], 9);
    mem_region_close(&region);
}

/* In the child: maps its parent's region, checks what is in it and answers. */
static int map_in_child(int fd, size_t bytes)
{
    mem_region peer;
    if (mem_region_map(fd, bytes, &peer) != EXPAR_OK || peer.fd != -1 || peer.bytes != bytes) return 1;
    uint32_t *words = peer.base;
    if (words[0] != 4711 || words[bytes / 4 - 1] != 42) return 2;
    words[1] = 815;
    mem_region_close(&peer);
    return fcntl(fd, F_GETFD) == -1 ? 0 : 3; /* the descriptor is gone */
}

static void test_map_in_another_process(void **state)
{
    (void)state;
    mem_region region;
    assert_int_equal(mem_region_create(64 * MIB, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, 64 * MIB), EXPAR_OK);
    assert_true(fcntl(region.fd, F_GETFD) & FD_CLOEXEC);
    uint32_t *words = region.base;
    words[0] = 4711;
    words[64 * MIB / 4 - 1] = 42;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd = dup(region.fd);
        munmap(region.base, region.bytes);
        _exit(map_in_child(fd, 64 * MIB));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(words[1], 815);
    mem_region_close(&region);
}

static void test_bad_peers(void **state)
{
    (void)state;
    mem_region region, peer = {.fd = -7};
    assert_int_equal(mem_region_create(4 * MIB, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_map(dup(region.fd), 4 * MIB, &peer), EXPAR_ERR_MISMATCH); /* nothing is open */
    assert_int_equal(mem_region_open(&region, 4 * MIB), EXPAR_OK);
    assert_int_equal(ftruncate(region.fd, 4096), -1); /* sealed */
    assert_int_equal(mem_region_map(dup(region.fd), 2 * MIB, &peer), EXPAR_ERR_MISMATCH);
    assert_non_null(strstr(expar_last_error(), "4194304"));

    int soft = memfd_create("soft", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(soft, 4 * MIB), 0);
    assert_int_equal(mem_region_map(soft, 4 * MIB, &peer), EXPAR_ERR_MISMATCH);
    assert_non_null(strstr(expar_last_error(), "sealed"));
    assert_int_equal(fcntl(soft, F_GETFD), -1); /* closed all the same */
    assert_int_equal(mem_region_map(-1, 4 * MIB, &peer), EXPAR_ERR_SYSTEM);
    assert_int_equal(peer.fd, -7);
    mem_region_close(&region);
}

/* Opened step by step, in the middle of a process that has mapped all of it already. */
static void test_open(void **state)
{
    (void)state;
    mem_region region, peer;
    assert_int_equal(mem_region_create(8 * MIB, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, 1), EXPAR_OK);
    assert_int_equal(region.open_bytes, sysconf(_SC_PAGESIZE));
    assert_int_equal(mem_region_map(dup(region.fd), 8 * MIB, &peer), EXPAR_OK);
    ((uint8_t *)region.base)[0] = 1;
    assert_int_equal(mem_region_open(&region, 8 * MIB), EXPAR_OK);
    ((uint8_t *)region.base)[8 * MIB - 1] = 5;
    assert_int_equal(((uint8_t *)peer.base)[8 * MIB - 1], 5);
    assert_int_equal(((uint8_t *)peer.base)[0], 1);
    assert_int_equal(mem_region_open(&region, MIB), EXPAR_OK); /* it never closes */
    assert_int_equal(region.open_bytes, 8 * MIB);
    assert_int_equal(mem_region_open(&region, 8 * MIB + 1), EXPAR_ERR_ARGUMENT);
    mem_region_close(&peer);
    mem_region_close(&region);
}

static void check_commit(bool shareable)
{
    mem_region region;
    mem_budget budget = {.sharers = 1};
    assert_int_equal(mem_region_create(64 * MIB, shareable, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, 40 * MIB), EXPAR_OK);
    uint8_t *base = region.base;
    base[5 * MIB] = 77;
    assert_int_equal(mem_region_commit(&region, &budget, 4 * MIB + 1, 34 * MIB), EXPAR_OK);
    assert_int_equal(base[5 * MIB], 77); /* what was there stays */
    assert_int_equal(base[6 * MIB], 0);
    if (shareable) assert_true(mem_region_memory(&region) >= 34 * MIB);
    if (shareable) assert_true(mem_region_memory(&region) <= 40 * MIB);
    if (!shareable) assert_int_equal(mem_region_memory(&region), 0);
    mem_region_close(&region);
}

static void test_commit(void **state)
{
    (void)state;
    check_commit(true);
    check_commit(false);
}

/* Nothing of what there is not enough of is taken. */
static void test_commit_too_much(void **state)
{
    (void)state;
    mem_region region;
    mem_budget budget = {.sharers = 1};
    const size_t bytes = (machine_memory_bytes() + GIB) & ~(MIB - 1);
    assert_true(bytes > GIB);
    if (bytes > (size_t)1 << 40) skip(); /* more than a region can be made for everywhere */
    assert_int_equal(mem_region_create(bytes, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, bytes), EXPAR_OK);
    assert_int_equal(mem_region_commit(&region, &budget, 0, bytes), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "bytes of memory are left"));
    assert_int_equal(blocks_bytes(region.fd), 0);
    budget = (mem_budget){.sharers = INT32_MAX};
    assert_int_equal(mem_region_commit(&region, &budget, 0, MIB), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "2147483647 ranks"));
    mem_region_close(&region);
}

/* In a child, since the limit stays. The kernel would answer with SIGXFSZ. */
static int open_under_file_limit(void)
{
    struct rlimit limit = {.rlim_cur = MIB, .rlim_max = MIB};
    mem_region region;
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    if (mem_region_create(4 * MIB, true, &region) != EXPAR_OK) return 2;
    if (mem_region_open(&region, MIB) != EXPAR_OK) return 3;
    if (mem_region_open(&region, 2 * MIB) != EXPAR_ERR_MEMORY) return 4;
    return strstr(expar_last_error(), "ulimit -f") && region.open_bytes == MIB ? 0 : 5;
}

static void test_limit_of_files(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(open_under_file_limit());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In the child, since the limit stays. */
static int create_under_limit(void)
{
    struct rlimit limit = {.rlim_cur = GIB, .rlim_max = GIB};
    mem_region region;
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    if (mem_region_create(4 * GIB, true, &region) != EXPAR_ERR_MEMORY) return 2;
    bool names_all = strstr(expar_last_error(), "4294967296") && strstr(expar_last_error(), "EXPAR_HEAP_SIZE");
    return names_all ? 0 : 3;
}

static void test_limits(void **state)
{
    (void)state;
    mem_region region = {.fd = -7};
    assert_int_equal(mem_region_create(0, true, &region), EXPAR_ERR_ARGUMENT);
    assert_int_equal(mem_region_create(SIZE_MAX, true, &region), EXPAR_ERR_ARGUMENT);
    assert_int_equal(mem_region_create((size_t)1 << 62, false, &region), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "EXPAR_HEAP_SIZE"));
    assert_int_equal(region.fd, -7);
}

static void test_limit_of_address_space(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("skipped: the sanitizers themselves need more address space than the limit\n");
    skip();
#endif
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(create_under_limit());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparse_and_discard),
        cmocka_unit_test(test_anonymous),
        cmocka_unit_test(test_map_in_another_process),
        cmocka_unit_test(test_bad_peers),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_commit),
        cmocka_unit_test(test_commit_too_much),
        cmocka_unit_test(test_limit_of_files),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limit_of_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
