/* SPDX-License-Identifier: Apache-2.0 */
/* The devices near a rank that it reports, from trees that look like /sys. */
#include "boot/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char sys[] = "/tmp/expar-place-XXXXXX";

static void make_folder(const char *below)
{
    char command[512];
    snprintf(command, sizeof command, "mkdir -p %s/%s", sys, below);
    assert_int_equal(system(command), 0);
}

static int make_tree(void **state)
{
    (void)state;
    return mkdtemp(sys) ? 0 : -1;
}

static int remove_tree(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", sys);
    return system(command);
}

static void test_numa_node(void **state)
{
    cpu_set_t cores;
    (void)state;
    CPU_ZERO(&cores);
    assert_int_equal(place_numa_node(sys, &cores), -1);
    CPU_SET(2, &cores);
    assert_int_equal(place_numa_node(sys, &cores), -1); /* a system without nodes */
    make_folder("devices/system/node/node0/cpu0");
    make_folder("devices/system/node/node0/cpu1");
    make_folder("devices/system/node/node1/cpu2");
    make_folder("devices/system/node/node1/cpu3");
    assert_int_equal(place_numa_node(sys, &cores), 1);
    CPU_SET(3, &cores);
    assert_int_equal(place_numa_node(sys, &cores), 1);
    CPU_SET(0, &cores);
    assert_int_equal(place_numa_node(sys, &cores), -1); /* of both */
    CPU_CLR(2, &cores);
    CPU_CLR(3, &cores);
    assert_int_equal(place_numa_node(sys, &cores), 0);
}

/* Without an RDMA device those interfaces that are up, of this machine. */
static void test_nics(void **state)
{
    char text[BOOT_NICS_TEXT];
    (void)state;
    place_nics(sys, text);
    assert_non_null(memchr(text, 0, sizeof text));
    assert_int_not_equal(strncmp(text, "lo,", 3), 0);
    make_folder("class/infiniband/mlx5_0");
    place_nics(sys, text);
    assert_string_equal(text, "mlx5_0");
}

/* The kernel allows any name without a slash. Peers reject a text with control characters. */
static void test_hostile_nic(void **state)
{
    char text[BOOT_NICS_TEXT], path[256];
    (void)state;
    make_folder("class/infiniband/a\033[7m");
    place_nics(sys, text);
    assert_non_null(strstr(text, "a?[7m"));
    assert_null(strchr(text, '\033'));
    snprintf(path, sizeof path, "%s/class/infiniband/a\033[7m", sys);
    assert_int_equal(rmdir(path), 0);
}

/* Whole names, as many as fit. */
static void test_many_nics(void **state)
{
    char text[BOOT_NICS_TEXT], name[64];
    (void)state;
    for (int i = 1; i < 20; i++) {
        snprintf(name, sizeof name, "class/infiniband/mlx5_%d", i + 10);
        make_folder(name);
    }
    place_nics(sys, text);
    assert_non_null(memchr(text, 0, sizeof text));
    assert_int_equal(strncmp(text, "mlx5_0,mlx5_11,mlx5_12,", 23), 0);
    assert_int_equal(strlen(text) % 8, 6); /* the first has six letters, each other one a comma and seven */
    assert_true(strlen(text) + 8 >= sizeof text);
}

static void test_own(void **state)
{
    boot_place place;
    (void)state;
    place_find(&place);
    assert_true(place.numa_node >= -1 && place.numa_node < PLACE_MAX_NUMA_NODES);
    assert_non_null(memchr(place.nics, 0, sizeof place.nics));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numa_node), cmocka_unit_test(test_nics),
                                       cmocka_unit_test(test_hostile_nic), cmocka_unit_test(test_many_nics),
                                       cmocka_unit_test(test_own)};
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
}
