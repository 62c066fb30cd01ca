/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over control sockets, with ranks that are processes. */
#include "boot/collectives.h"
#include "boot/crew.h"
#include "boot/unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct trial {
    expar_unique_id id;
    int32_t size;
} trial;

static expar_status join(const trial *self, int32_t rank, boot **out)
{
    boot_request request = crew_request(&self->id, rank, self->size);
    return boot_join_sockets(&request, out);
}

static expar_status all_collectives(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    BODY_OK(join(self, rank, &group));
    BODY_CHECK(group->rank == rank && group->size == self->size && !group->threads);
    BODY_CHECK(strcmp(group->ops->name, "sockets") == 0);
    BODY_CHECK(group->places[rank].pid == getpid() && group->places[rank].num_cores >= 1);
    for (int32_t other = 0; other < self->size; other++)
        BODY_CHECK(group->places[other].host == group->places[rank].host);
    BODY_OK(collectives_check_all(group));
    BODY_OK(collectives_check_errors(group));
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static void collectives_of_any_size(void **state)
{
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 8};
    for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++) {
        trial self = {.size = sizes[i]};
        assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
        crew_run_ok(self.size, all_collectives, &self);
        assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
    }
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

static int open_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Each rank gives the reading end of a pipe in which it wrote its rank once for every peer. */
static expar_status exchange_pipes(boot *group)
{
    int ends[2], fds[CREW_MAX];
    BODY_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    for (int32_t peer = 0; peer < group->size; peer++)
        BODY_CHECK(write(ends[1], &group->rank, sizeof group->rank) == sizeof group->rank);
    BODY_OK(group->ops->exchange_fds(group, ends[0], fds));
    for (int32_t peer = 0; peer < group->size; peer++) {
        int32_t said = -1;
        BODY_CHECK((fds[peer] < 0) == (peer == group->rank));
        if (peer == group->rank) continue;
        BODY_CHECK(fcntl(fds[peer], F_GETFD) & FD_CLOEXEC);
        BODY_CHECK(read(fds[peer], &said, sizeof said) == sizeof said && said == peer);
        close(fds[peer]);
    }
    close(ends[0]);
    close(ends[1]);
    return EXPAR_OK;
}

static expar_status descriptors(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    bool inherited[256];
    int before = open_fds();
    for (int fd = 0; fd < 256; fd++)
        inherited[fd] = fcntl(fd, F_GETFD) >= 0;
    BODY_OK(join(self, rank, &group));
    for (int fd = 0; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        BODY_CHECK(inherited[fd] || flags < 0 || (flags & FD_CLOEXEC));
    }
    int during = open_fds();
    for (int round = 0; round < 20; round++)
        BODY_OK(exchange_pipes(group));
    /* One that gives none, in step with the others. */
    int fds[CREW_MAX];
    BODY_OK(group->ops->exchange_fds(group, -1, fds));
    for (int32_t peer = 0; peer < self->size; peer++)
        BODY_CHECK(fds[peer] == -1);
    /* A mismatch closes what came. */
    if (rank == 0)
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_MISMATCH);
    else
        BODY_CHECK(group->ops->exchange_fds(group, STDOUT_FILENO, fds) == EXPAR_ERR_MISMATCH);
    BODY_CHECK(open_fds() == during);
    BODY_OK(collectives_check_size(group, 9));
    group->ops->leave(group, true);
    BODY_CHECK(open_fds() == before);
    return EXPAR_OK;
}

static void descriptors_travel_and_none_leak(void **state)
{
    (void)state;
    trial self = {.size = 4};
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    crew_run_ok(self.size, descriptors, &self);
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

/* ---- one after another ------------------------------------------------------------------------------------------- */

static expar_status many_groups(int32_t rank, void *context)
{
    const trial *self = context;
    for (int round = 0; round < 10; round++) {
        boot *group;
        BODY_OK(join(self, rank, &group));
        BODY_OK(collectives_check_size(group, 11));
        group->ops->leave(group, true);
    }
    return EXPAR_OK;
}

static void groups_one_after_another(void **state)
{
    (void)state;
    trial self = {.size = 4};
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    crew_run_ok(self.size, many_groups, &self);
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

static expar_status two_at_once(int32_t rank, void *context)
{
    const trial *self = context;
    boot *first, *second;
    BODY_OK(join(self, rank, &first));
    BODY_OK(join(self, rank, &second));
    BODY_OK(collectives_check_size(first, 100));
    BODY_OK(collectives_check_size(second, 100));
    first->ops->leave(first, true);
    BODY_OK(collectives_check_size(second, 100));
    second->ops->leave(second, true);
    return EXPAR_OK;
}

static void two_groups_live_together(void **state)
{
    (void)state;
    trial self = {.size = 3};
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    crew_run_ok(self.size, two_at_once, &self);
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

static expar_status join_and_leave(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    int64_t start_ns = clock_ns();
    BODY_OK(join(self, rank, &group));
    int64_t ready_ns = clock_ns();
    if (rank == 0) print_message("group of %d ready in %.1f ms\n", self->size, (double)(ready_ns - start_ns) / 1e6);
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* Prints how long it takes; the time decides nothing. */
static void group_of_eight(void **state)
{
    (void)state;
    trial self = {.size = 8};
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    crew_run_ok(self.size, join_and_leave, &self);
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_any_size),  cmocka_unit_test(descriptors_travel_and_none_leak),
        cmocka_unit_test(groups_one_after_another), cmocka_unit_test(two_groups_live_together),
        cmocka_unit_test(group_of_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
