/* SPDX-License-Identifier: Apache-2.0 */
/* Huge pages of hugetlbfs: with some set aside for the test, where this may be done, and without any. */
#include "shmem/kind.h"

#include "mem/mem.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

#define MIB       ((size_t)1 << 20)
#define PAGE      (2 * MIB)
#define NUM_PAGES "/proc/sys/vm/nr_hugepages"
#define FREE      "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

/* ---- the system's pages ------------------------------------------------------------------------------------------ */

static long read_number(const char *path)
{
    long number = -1;
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    if (fscanf(file, "%ld", &number) != 1) number = -1;
    fclose(file);
    return number;
}

static bool write_number(const char *path, long number)
{
    FILE *file = fopen(path, "we");
    if (!file) return false;
    bool written = fprintf(file, "%ld\n", number) > 0;
    return fclose(file) == 0 && written;
}

/* How many there were before this test; -1: they cannot be changed here. */
static long pages_before = -1;

/* Skips where that many cannot be set aside. */
static void set_aside(long pages)
{
    long before = read_number(NUM_PAGES);
    if (before < 0 || !write_number(NUM_PAGES, before + pages)) {
        print_message("skipped: huge pages cannot be set aside here\n");
        skip();
    }
    pages_before = before;
    if (read_number(FREE) >= pages) return;
    print_message("skipped: the system has no memory in one piece for %ld huge pages\n", pages);
    skip();
}

static int give_back(void **state)
{
    (void)state;
    if (pages_before >= 0 && !write_number(NUM_PAGES, pages_before)) return 1;
    pages_before = -1;
    return 0;
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static void test_region(void **state)
{
    (void)state;
    mem_region region, peer;
    mem_budget budget = {.sharers = 1};
    set_aside(4);
    assert_int_equal(mem_region_create_huge(64 * MIB, 1, 0, &region), EXPAR_OK);
    assert_int_equal(region.page_bytes, PAGE);
    assert_int_equal(mem_region_memory(&region), PAGE);
    assert_int_equal(mem_region_open(&region, 5 * MIB), EXPAR_OK);
    assert_int_equal(region.open_bytes, 6 * MIB);
    assert_int_equal(mem_region_commit(&region, &budget, MIB, 2 * MIB), EXPAR_OK);
    assert_int_equal(mem_region_huge_bytes(&region), 4 * MIB);
    memset(region.base, 7, 4 * MIB);
    assert_int_equal(mem_region_map(dup(region.fd), region.bytes, &peer), EXPAR_OK);
    assert_int_equal(((uint8_t *)peer.base)[3 * MIB], 7);
    assert_int_equal(mem_region_commit(&region, &budget, 0, 3 * MIB), EXPAR_OK); /* what it holds stays */
    assert_int_equal(((uint8_t *)region.base)[MIB], 7);
    mem_region_discard(&region, MIB, 3 * MIB); /* rounded inwards: the second page */
    assert_int_equal(((uint8_t *)region.base)[2 * MIB - 1], 7);
    assert_int_equal(mem_region_memory(&region), PAGE);
    assert_int_equal(mem_region_commit(&region, &budget, PAGE, PAGE), EXPAR_OK);
    assert_int_equal(((uint8_t *)peer.base)[PAGE], 0);
    mem_region_close(&peer);
    mem_region_close(&region);
}

/* Lack of pages is an error and no signal. */
static void test_region_runs_out(void **state)
{
    (void)state;
    mem_region region, other;
    mem_budget budget = {.sharers = 1};
    set_aside(2);
    const size_t all = (size_t)read_number(FREE) * PAGE;
    assert_int_equal(mem_region_create_huge(all + 64 * MIB, all, 0, &region), EXPAR_OK);
    assert_int_equal(mem_region_open(&region, all + PAGE), EXPAR_OK);
    assert_int_equal(mem_region_commit(&region, &budget, all, 1), EXPAR_ERR_MEMORY);
    assert_non_null(strstr(expar_last_error(), "no huge pages for 2097152 more bytes: 0 of "));
    assert_int_equal(mem_region_create_huge(PAGE, PAGE, 0, &other), EXPAR_ERR_MEMORY);
    mem_region_close(&region);
}

/* Pages that the kernel makes huge by itself are counted, too. */
static void test_kernel_pages(void **state)
{
    (void)state;
    char word[128] = "";
    mem_region region;
    mem_budget budget = {.sharers = 1};
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (file) {
        if (!fgets(word, sizeof word, file)) word[0] = 0;
        fclose(file);
    }
    if (!strstr(word, "[advise]") && !strstr(word, "[always]")) {
        print_message("skipped: the kernel makes no huge pages for shared memory here\n");
        skip();
    }
    assert_int_equal(mem_region_create(64 * MIB, true, &region), EXPAR_OK);
    assert_int_equal(mem_region_huge_bytes(&region), 0);
    assert_int_equal(mem_region_open(&region, 64 * MIB), EXPAR_OK);
    assert_int_equal(mem_region_commit(&region, &budget, 0, 64 * MIB), EXPAR_OK);
    assert_int_not_equal(mem_region_huge_bytes(&region), 0);
    assert_true(mem_region_huge_bytes(&region) <= mem_region_memory(&region));
    mem_region_close(&region);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static size_t expected_page_bytes;

static void use_heap(expar_group *group, void *shared)
{
    uint64_t *block = NULL;
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    (void)shared;
    CHECK_OK(expar_malloc(group, MIB, (void **)&block));
    int32_t rank, size;
    CHECK_OK(expar_heap_read_stats(group->sym->heap.fd, &stats, &rank, &size));
    CHECK(stats.page_bytes == expected_page_bytes, "the card's: %llu bytes", (unsigned long long)stats.page_bytes);
    CHECK_OK(expar_heap_get_stats(group, &stats));
    CHECK(stats.page_bytes == expected_page_bytes, "pages of %llu bytes", (unsigned long long)stats.page_bytes);
    CHECK(stats.page_bytes < PAGE || stats.huge_bytes == stats.memory_bytes, "%llu of %llu bytes are huge",
          (unsigned long long)stats.huge_bytes, (unsigned long long)stats.memory_bytes);
    CHECK(stats.huge_bytes <= stats.memory_bytes, "more is huge than there is");
    const int32_t next = (group->rank + 1) % group->size;
    const uint64_t sent = 40 + (uint64_t)group->rank;
    CHECK_OK(expar_put(group, block, &sent, sizeof sent, next));
    CHECK_OK(expar_barrier_all(group));
    CHECK(*block == 40 + (uint64_t)((group->rank + group->size - 1) % group->size), "another value came");
    CHECK_OK(expar_free(group, block));
}

/* A file under which the kernel may lay huge pages is none that consists of them. This process alone
   sees where it is. */
static void read_card(expar_group *group, void *shared)
{
    int32_t rank, size;
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    (void)shared;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("card", "/tmp", "tmpfs", 0, "huge=always,size=8m") != 0) {
        printf("not tested: no file system of the kernel's own huge pages is to be had here\n");
        return;
    }
    int file = open("/tmp/card", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0 && write(file, group->sym->heap.base, SYM_CONTROL_BYTES) == SYM_CONTROL_BYTES, "a copy");
    CHECK_OK(expar_heap_read_stats(file, &stats, &rank, &size));
    CHECK(stats.page_bytes == (uint64_t)sysconf(_SC_PAGESIZE), "%llu", (unsigned long long)stats.page_bytes);
    close(file);
}

static void test_card(void **state)
{
    (void)state;
    assert_true(ranks_run(&(ranks_plan){.kind = RANKS_PROCESSES, .size = 1}, read_card, NULL));
}

static void reject_variables(expar_group *group, void *shared)
{
    (void)shared;
    CHECK(expar_globals_share(group) == EXPAR_ERR_UNSUPPORTED && strstr(expar_last_error(), "huge pages"), "%s",
          expar_last_error());
    CHECK_OK(expar_barrier_all(group));
}

static void run_group(ranks_body body)
{
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2, .heap_bytes = 64 * MIB};
    setenv("EXPAR_HEAP_PAGES", "huge", 1);
    assert_true(ranks_run(&plan, body, NULL));
    unsetenv("EXPAR_HEAP_PAGES");
}

static void test_group(void **state)
{
    (void)state;
    set_aside(8);
    expected_page_bytes = PAGE;
    run_group(use_heap);
    run_group(reject_variables);
}

/* Nothing is refused for want of huge pages. */
static void test_group_without(void **state)
{
    (void)state;
    if (read_number(FREE) > 0) {
        print_message("skipped: somebody has set huge pages aside\n");
        skip();
    }
    expected_page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    run_group(use_heap);
}

static void test_bad_word(void **state)
{
    (void)state;
    expar_group *group;
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    setenv("EXPAR_HEAP_PAGES", "vast", 1);
    assert_int_equal(expar_group_create(NULL, &group), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "EXPAR_HEAP_PAGES=vast: expected system or huge"));
    unsetenv("EXPAR_HEAP_PAGES");
    options.heap_pages = (expar_heap_pages)3;
    assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "options.heap_pages 3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_region, give_back),
        cmocka_unit_test_teardown(test_region_runs_out, give_back),
        cmocka_unit_test(test_kernel_pages),
        cmocka_unit_test_teardown(test_group, give_back),
        cmocka_unit_test(test_group_without),
        cmocka_unit_test(test_card),
        cmocka_unit_test(test_bad_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
