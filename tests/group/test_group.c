/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of both kinds: making, facts, set-up collectives, several at once, and every rejection. */
#include "netns/netns.h"
#include "shmem/kind.h"

#include <expar/info.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAP_BYTES ((size_t)4 << 20)

/* Each rank tells where it is, and all know it of all. */
static void check_places(expar_group *group)
{
    expar_group_place own = EXPAR_GROUP_PLACE_INIT, place = EXPAR_GROUP_PLACE_INIT, told[6], unset = {0};
    CHECK_OK(expar_group_get_place(group, group->rank, &own));
    CHECK(own.cores > 0 && own.numa_node >= -1, "%d cores, NUMA node %d", own.cores, own.numa_node);
    CHECK(!netns_on() || strstr(own.nics, NETNS_INTERFACE), "devices '%s'", own.nics);
    CHECK_OK(expar_group_allgather(group, &own, told, sizeof own));
    for (int32_t r = 0; r < 6; r++) {
        CHECK_OK(expar_group_get_place(group, r, &place));
        CHECK(place.node == r / 2 && place.cores == told[r].cores && place.numa_node == told[r].numa_node, "rank %d",
              r);
        CHECK(strcmp(place.nics, told[r].nics) == 0, "rank %d has '%s', not '%s'", r, told[r].nics, place.nics);
    }
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_group_get_place(group, 6, &place));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_group_get_place(group, -1, &place));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_get_place(NULL, 0, &place));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_get_place(group, 0, NULL));
    CHECK_TEXT("expar_group_get_place: place is NULL");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_group_get_place(group, 0, &unset));
    CHECK_TEXT("expar_group_get_place: place.struct_size 0, expected 8 to", "EXPAR_GROUP_PLACE_INIT");
}

static void facts(expar_group *group, void *shared)
{
    (void)shared;
    int32_t rank = expar_group_rank(group);
    CHECK(expar_group_size(group) == 6, "size %d", expar_group_size(group));
    CHECK(expar_group_num_nodes(group) == 3, "nodes %d", expar_group_num_nodes(group));
    CHECK(expar_group_ranks_per_node(group) == 2, "ranks per node %d", expar_group_ranks_per_node(group));
    check_places(group);
    CHECK(expar_group_node(group) == rank / 2, "node %d", expar_group_node(group));
    CHECK(expar_group_local_rank(group) == rank % 2, "local rank %d", expar_group_local_rank(group));
    int32_t host_ranks = 0;
    for (int32_t r = 0; r < 6; r++)
        host_ranks += netns_host_of(r, 6, 2) == netns_host_of(rank, 6, 2);
    CHECK(group->host_ranks == host_ranks && group->host_cores > 0, "host: %d ranks, %d cores", group->host_ranks,
          group->host_cores);
    int32_t all[6], mine = rank * 11;
    CHECK_OK(expar_group_allgather(group, &mine, all, sizeof mine));
    for (int32_t r = 0; r < 6; r++)
        CHECK(all[r] == r * 11, "allgather gave %d for rank %d", all[r], r);
}

static void test_facts(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES, .ranks_per_node = 2}, 6, facts);
    assert_int_equal(expar_group_rank(NULL), -1);
    assert_int_equal(expar_group_size(NULL), 0);
    assert_int_equal(expar_group_num_nodes(NULL), 0);
    assert_int_equal(expar_group_ranks_per_node(NULL), 0);
    assert_int_equal(expar_group_node(NULL), 0);
    assert_int_equal(expar_group_local_rank(NULL), 0);
}

static void collectives(expar_group *group, void *shared)
{
    (void)shared;
    enum { BYTES = 100000 };
    size_t size = (size_t)group->size;
    uint8_t *all = malloc(size * BYTES), *mine = all + (size_t)group->rank * BYTES;
    memset(mine, group->rank + 1, BYTES);
    CHECK_OK(expar_group_allgather(group, mine, all, BYTES)); /* in place */
    for (size_t i = 0; i < size * BYTES; i++)
        if (all[i] != i / BYTES + 1) {
            CHECK(false, "allgather: byte %zu is %d", i, all[i]);
            break;
        }
    for (int32_t root = 0; root < group->size; root++) {
        uint32_t word = group->rank == root ? 1000u + (uint32_t)root : 0;
        CHECK_OK(expar_group_broadcast(group, &word, sizeof word, root));
        CHECK(word == 1000u + (uint32_t)root, "broadcast from %d gave %u", root, word);
    }
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_group_allgather(group, NULL, NULL, 0));
    CHECK_OK(expar_group_broadcast(group, NULL, 0, 0));
    free(all);
}

static void test_collectives(void **state)
{
    (void)state;
    for (int32_t size = 1; size <= 5; size += 2)
        kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, size, collectives);
}

static void bad_collectives(expar_group *group, void *shared)
{
    (void)shared;
    char data[64] = {0}, all[256];
    const size_t over = EXPAR_CONTROL_MAX_BYTES + 1;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_allgather(NULL, data, all, 8));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_allgather(group, NULL, all, 8));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_allgather(group, data, NULL, 8));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_group_allgather(group, data, all, over));
    CHECK_TEXT("expar_group_allgather", "1048577", "1048576");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_broadcast(NULL, data, 8, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_broadcast(group, NULL, 8, 0));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_group_broadcast(group, data, 8, group->size));
    CHECK_STATUS(EXPAR_ERR_RANGE, expar_group_broadcast(group, data, 8, -1));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_group_broadcast(group, data, over, 0));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_barrier(NULL));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_group_abort(NULL));
    CHECK_OK(expar_group_destroy(NULL));
    /* Different sizes on the ranks: found on all, and the group is as good as before. */
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_group_allgather(group, data, all, group->rank == 1 ? 4 : 8));
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_barrier_all(group));
}

static void test_bad_collectives(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 3, bad_collectives);
}

/* EP buffers that are alive keep a group from being destroyed. */
static void users(expar_group *group, void *shared)
{
    (void)shared;
    atomic_fetch_add(&group->users, 1);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_destroy(group));
    CHECK_TEXT("expar_group_destroy", "1 EP buffer");
    atomic_fetch_sub(&group->users, 1);
    CHECK_OK(expar_barrier_all(group));
}

static void test_users_keep_a_group(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, users);
}

/* Memory is shared without names: neither a file in /dev/shm nor one that others may open. */
static void nameless(expar_group *group, void *shared)
{
    (void)shared;
    struct stat facts_of_heap;
    if (group->sym->heap.fd < 0) return;
    CHECK(fstat(group->sym->heap.fd, &facts_of_heap) == 0 && facts_of_heap.st_nlink == 0, "the heap has a name");
}

static void test_heaps_have_no_names(void **state)
{
    (void)state;
    kind_run((ranks_plan){.heap_bytes = HEAP_BYTES}, 2, nameless);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    expar_unique_id id;
    expar_group *group = NULL, *groups[4] = {0};
    memset(&id, 1, sizeof id);
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    assert_int_equal(expar_group_create(&options, NULL), EXPAR_ERR_NULL);
    options.id = &id;
    assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_RANGE);
    assert_non_null(strstr(expar_last_error(), "size 0"));
    options.size = 2;
    options.rank = 2;
    assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_RANGE);
    assert_non_null(strstr(expar_last_error(), "rank 2"));
    options.rank = -1;
    assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_RANGE);
    options.id = NULL;
    options.rank = 1;
    assert_int_equal(expar_group_create(&options, &group), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "options.id"));
    assert_null(group);

    expar_group_options threads = EXPAR_GROUP_OPTIONS_INIT;
    assert_int_equal(expar_group_create_threads(4, &threads, NULL), EXPAR_ERR_NULL);
    assert_int_equal(expar_group_create_threads(0, &threads, groups), EXPAR_ERR_RANGE);
    assert_int_equal(expar_group_create_threads(1 << 20, &threads, groups), EXPAR_ERR_RANGE);
    threads.size = 3;
    assert_int_equal(expar_group_create_threads(4, &threads, groups), EXPAR_ERR_ARGUMENT);
    threads.size = 4;
    threads.ranks_per_node = 3;
    threads.heap_bytes = HEAP_BYTES;
    assert_int_equal(expar_group_create_threads(4, &threads, groups), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "does not divide"));
    for (int r = 0; r < 4; r++)
        assert_null(groups[r]);
}

/* Two groups in one process, used alternately, and one of a single rank without any options. */
static void test_several_groups(void **state)
{
    (void)state;
    expar_group *groups[3];
    void *blocks[3];
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    options.heap_bytes = HEAP_BYTES;
    for (int i = 0; i < 2; i++)
        assert_int_equal(expar_group_create_threads(1, &options, &groups[i]), EXPAR_OK);
    assert_int_equal(expar_group_create(NULL, &groups[2]), EXPAR_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(expar_group_size(groups[i]), 1);
        assert_int_equal(expar_malloc(groups[i], 100, &blocks[i]), EXPAR_OK);
    }
    assert_null(expar_ptr(groups[0], blocks[1], 0));
    assert_int_equal(expar_group_abort(groups[0]), EXPAR_OK);
    assert_int_equal(expar_barrier_all(groups[0]), EXPAR_ERR_ABORTED);
    assert_int_equal(expar_barrier_all(groups[1]), EXPAR_OK);
    assert_int_equal(expar_barrier_all(groups[2]), EXPAR_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(expar_group_destroy(groups[i]), EXPAR_OK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts),
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_bad_collectives),
        cmocka_unit_test(test_users_keep_a_group),
        cmocka_unit_test(test_heaps_have_no_names),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_several_groups),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
