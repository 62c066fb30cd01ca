/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: sparse, discardable, mapped by a second process, and refused where they cannot be had. */
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
    assert_int_equal(ftruncate(region.fd, 4096), -1); /* sealed */
    assert_int_equal(mem_region_map(dup(region.fd), 8 * MIB, &peer), EXPAR_ERR_MISMATCH);
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
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_limit_of_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
