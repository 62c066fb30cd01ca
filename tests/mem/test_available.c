/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is left, read from files as the kernel writes them, in a directory of the test's own. */
#include "mem/mem.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define KIB ((uint64_t)1024)
#define MIB ((uint64_t)1 << 20)

static char root[64];

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/expar-room-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

/* Writes root/path, with the directories that it needs. */
static void write_file(const char *path, const char *text)
{
    char whole[PATH_MAX];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static mem_available found(void)
{
    mem_available spare;
    mem_available_find(root, &spare);
    return spare;
}

static void write_machine(void)
{
    write_file("proc/meminfo",
               "MemTotal:       2000 kB\nMemAvailable:   1500 kB\nSwapTotal: 900 kB\nSwapFree:        100 kB\n");
}

static void test_nothing_known(void **state)
{
    (void)state;
    assert_int_equal(found().bytes, UINT64_MAX);
}

static void test_machine(void **state)
{
    (void)state;
    write_machine();
    mem_available spare = found();
    assert_int_equal(spare.bytes, 1600 * KIB);
    assert_non_null(strstr(spare.limit, "machine"));
}

/* The tightest of a cgroup and those around it; page cache counts as free. */
static void test_version_2(void **state)
{
    (void)state;
    write_file("proc/meminfo", "MemAvailable: 99999999 kB\n");
    write_file("proc/self/cgroup", "0::/outer/inner\n");
    write_file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    write_file("sys/fs/cgroup/outer/inner/memory.current", "1048576\n");
    write_file("sys/fs/cgroup/outer/memory.max", "10485760\n");
    write_file("sys/fs/cgroup/outer/memory.current", "5242880\n");
    write_file("sys/fs/cgroup/outer/memory.stat", "anon 7\ninactive_file 1048576\nactive_file 1048576\n");
    mem_available spare = found();
    assert_int_equal(spare.bytes, 7 * MIB);
    assert_non_null(strstr(spare.limit, "cgroup /outer"));
    write_file("sys/fs/cgroup/outer/inner/memory.max", "3145728\n");
    assert_int_equal(found().bytes, 2 * MIB);
    assert_non_null(strstr(found().limit, "cgroup /outer/inner"));
    write_file("sys/fs/cgroup/outer/inner/memory.current", "9999999999\n"); /* over its limit */
    assert_int_equal(found().bytes, 0);
}

/* A container sees its own part of the tree alone, at the mount. */
static void test_path_that_is_not_mounted(void **state)
{
    (void)state;
    write_file("proc/self/cgroup", "0::/somewhere/else\n");
    write_file("sys/fs/cgroup/memory.max", "4194304\n");
    write_file("sys/fs/cgroup/memory.current", "1048576\n");
    assert_int_equal(found().bytes, 3 * MIB);
    assert_non_null(strstr(found().limit, "cgroup /"));
}

static void test_version_1(void **state)
{
    (void)state;
    write_machine();
    write_file("proc/self/cgroup", "9:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
    write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n");
    write_file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1048576\n");
    write_file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "524288\n");
    write_file("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 9\ntotal_inactive_file 131072\n");
    assert_int_equal(found().bytes, 640 * KIB);
    assert_non_null(strstr(found().limit, "cgroup /job"));
}

/* Lines as no kernel writes them change nothing. */
static void test_nonsense(void **state)
{
    (void)state;
    write_file("proc/meminfo", "MemAvailable: lots\nSwapFree\n\n");
    write_file("proc/self/cgroup", "\nmemory\n4:memory\n:::\n0:memory:\n");
    write_file("sys/fs/cgroup/memory/memory.limit_in_bytes", "");
    assert_int_equal(found().bytes, UINT64_MAX);
}

int main(void)
{
#define SPACE_TEST(f) cmocka_unit_test_setup_teardown(f, make_root, drop_root)
    const struct CMUnitTest tests[] = {
        SPACE_TEST(test_nothing_known), SPACE_TEST(test_machine),
        SPACE_TEST(test_version_2),     SPACE_TEST(test_path_that_is_not_mounted),
        SPACE_TEST(test_version_1),     SPACE_TEST(test_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
