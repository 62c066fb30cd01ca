/* SPDX-License-Identifier: Apache-2.0 */
/* The environments of launchers, and groups that meet by them. */
#include "boot/crew.h"
#include "boot/unit.h"
#include "boot/wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 4

static const char *const variables[] = {
    "EXPAR_RANK",
    "EXPAR_SIZE",
    "EXPAR_UNIQUE_ID",
    "EXPAR_LOCAL_RANK",
    "EXPAR_LOCAL_SIZE",
    "EXPAR_BOOTSTRAP_PORT",
    "EXPAR_BOOTSTRAP_SECRET",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
};

static void clear(void)
{
    for (size_t i = 0; i < ARRAY_LENGTH(variables); i++)
        unsetenv(variables[i]);
}

static void set_number(const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A job name that no other run of this test has at the same time. */
static void set_job(const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "job-%ld-%lld", (long)getpid(), (long long)clock_ns());
    setenv(name, text, 1);
}

static void set_torchrun(int32_t rank, int32_t size, int32_t local_size)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_WORLD_SIZE", local_size);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
}

static void set_open_mpi(int32_t rank, int32_t size, int32_t local_size)
{
    set_number("OMPI_COMM_WORLD_RANK", rank);
    set_number("OMPI_COMM_WORLD_SIZE", size);
    set_number("OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void nothing_means_one_rank(void **state)
{
    (void)state;
    boot *group;
    boot_request request = {.timeout_ms = 1000};
    clear();
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_int_equal(request.rank, 0);
    assert_int_equal(request.size, 1);
    assert_false(request.have_id);
    assert_int_equal(request.timeout_ms, 1000);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_OK);
    assert_int_equal(group->ops->barrier(group), EXPAR_OK);
    group->ops->leave(group, true);
}

static void expar_run_comes_first(void **state)
{
    (void)state;
    expar_unique_id id;
    char text[EXPAR_UNIQUE_ID_TEXT];
    boot_request request = {0};
    clear();
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    expar_unique_id_format(&id, text);
    setenv("EXPAR_RANK", "2", 1);
    setenv("EXPAR_SIZE", "5", 1);
    setenv("EXPAR_UNIQUE_ID", text, 1);
    set_torchrun(1, 3, 3);
    set_open_mpi(0, 2, 2);
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_int_equal(request.rank, 2);
    assert_int_equal(request.size, 5);
    assert_true(request.have_id);
    assert_memory_equal(&request.id, &id, sizeof id);
    unsetenv("EXPAR_RANK");
    unsetenv("EXPAR_SIZE");
    unsetenv("EXPAR_UNIQUE_ID");
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_int_equal(request.size, 3);
    assert_false(request.have_id);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

typedef struct bad_value {
    const char *name, *value, *said; /* value NULL: unset */
} bad_value;

static void assert_rejected(const bad_value *bad, expar_status status)
{
    boot_request request, untouched;
    memset(&request, 0x33, sizeof request);
    untouched = request;
    if (bad->value)
        setenv(bad->name, bad->value, 1);
    else
        unsetenv(bad->name);
    if (boot_request_from_env(&request) != status || !strstr(expar_last_error(), bad->said))
        fail_msg("%s=%s: %s", bad->name, bad->value ? bad->value : "(unset)", expar_last_error());
    assert_memory_equal(&request, &untouched, sizeof request);
}

static void malformed_expar_run(void **state)
{
    (void)state;
    static const bad_value bad[] = {
        {"EXPAR_RANK", "4", "EXPAR_RANK"},
        {"EXPAR_RANK", "-1", "EXPAR_RANK"},
        {"EXPAR_RANK", "two", "EXPAR_RANK"},
        {"EXPAR_RANK", NULL, "EXPAR_RANK"},
        {"EXPAR_SIZE", "0", "EXPAR_SIZE"},
        {"EXPAR_SIZE", "4x", "EXPAR_SIZE"},
        {"EXPAR_SIZE", "99999999999999999999", "EXPAR_SIZE"},
        {"EXPAR_SIZE", NULL, "EXPAR_SIZE"},
        {"EXPAR_LOCAL_SIZE", "nan", "EXPAR_LOCAL_SIZE=nan: expected a whole number from 1 to 4"},
        {"EXPAR_LOCAL_SIZE", "5", "EXPAR_LOCAL_SIZE=5"},
        {"EXPAR_LOCAL_RANK", "-1", "EXPAR_LOCAL_RANK=-1: expected a whole number from 0 to 3"},
        {"EXPAR_LOCAL_RANK", "1\a", "EXPAR_LOCAL_RANK=1\\x07: expected"},
        {"EXPAR_UNIQUE_ID", "abcdef", "EXPAR_UNIQUE_ID"},
        {"EXPAR_UNIQUE_ID", NULL, "EXPAR_UNIQUE_ID"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        char text[EXPAR_UNIQUE_ID_TEXT];
        clear();
        memset(text, 'a', sizeof text);
        text[sizeof text - 1] = 0;
        setenv("EXPAR_RANK", "0", 1);
        setenv("EXPAR_SIZE", "4", 1);
        setenv("EXPAR_UNIQUE_ID", text, 1);
        assert_rejected(&bad[i], EXPAR_ERR_ARGUMENT);
    }
}

static void malformed_torchrun(void **state)
{
    (void)state;
    static const bad_value bad[] = {
        {"RANK", "4", "RANK=4: expected a whole number from 0 to 3"},
        {"RANK", " 1", "RANK= 1"},
        {"RANK", "+1", "RANK=+1"},
        {"RANK", "\033[2J", "RANK=\\x1b[2J: expected"},
        {"RANK", "1.5", "RANK=1.5"},
        {"WORLD_SIZE", "-3", "WORLD_SIZE=-3"},
        {"WORLD_SIZE", "many", "WORLD_SIZE"},
        {"LOCAL_WORLD_SIZE", "5", "LOCAL_WORLD_SIZE"},
        {"MASTER_PORT", "65535", "MASTER_PORT"},
        {"MASTER_PORT", NULL, "MASTER_PORT"},
        {"MASTER_ADDR", NULL, "MASTER_ADDR"},
        {"EXPAR_BOOTSTRAP_PORT", "0", "EXPAR_BOOTSTRAP_PORT"},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(bad); i++) {
        clear();
        set_torchrun(0, 4, 2);
        setenv("TORCHELASTIC_RUN_ID", "a-random-text", 1);
        assert_rejected(&bad[i], EXPAR_ERR_ARGUMENT);
    }
}

static void several_hosts_need_a_secret(void **state)
{
    (void)state;
    boot_request request = {0};
    clear();
    set_torchrun(1, 4, 2);
    assert_rejected(&(bad_value){"TORCHELASTIC_RUN_ID", NULL, "EXPAR_BOOTSTRAP_SECRET"}, EXPAR_ERR_BOOTSTRAP);
    assert_rejected(&(bad_value){"TORCHELASTIC_RUN_ID", "none", "EXPAR_BOOTSTRAP_SECRET"}, EXPAR_ERR_BOOTSTRAP);
    assert_rejected(&(bad_value){"LOCAL_WORLD_SIZE", NULL, "LOCAL_WORLD_SIZE is not: set it to 4"},
                    EXPAR_ERR_BOOTSTRAP);
    setenv("TORCHELASTIC_RUN_ID", "a-random-text", 1);
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_string_equal(request.meeting, "tcp:127.0.0.1:29501");
    setenv("EXPAR_BOOTSTRAP_PORT", "4000", 1);
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_string_equal(request.meeting, "tcp:127.0.0.1:4000");

    clear();
    set_open_mpi(1, 4, 2);
    setenv("PMIX_NAMESPACE", "77", 1);
    assert_rejected(&(bad_value){"EXPAR_BOOTSTRAP_SECRET", NULL, "MASTER_ADDR"}, EXPAR_ERR_BOOTSTRAP);
    setenv("EXPAR_BOOTSTRAP_SECRET", "s", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_string_equal(request.meeting, "tcp:127.0.0.1:29501");
    clear();
}

static void jobs_meet_apart(void **state)
{
    (void)state;
    boot_request a = {0}, b = {0};
    clear();
    set_open_mpi(1, 2, 2);
    setenv("PMIX_NAMESPACE", "1", 1);
    assert_int_equal(boot_request_from_env(&a), EXPAR_OK);
    setenv("PMIX_NAMESPACE", "2", 1);
    assert_int_equal(boot_request_from_env(&b), EXPAR_OK);
    assert_string_not_equal(a.meeting, b.meeting);
    assert_memory_not_equal(&a.id, &b.id, sizeof a.id);
    clear();
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

static expar_status join_from_env(boot_request *request)
{
    boot *group;
    request->timeout_ms = 20000;
    BODY_OK(boot_request_from_env(request));
    /* Groups follow each other at the same place without a pause. */
    for (int round = 0; round < 5; round++) {
        BODY_OK(boot_join_sockets(request, &group));
        BODY_OK(group->ops->barrier(group));
        group->ops->leave(group, true);
    }
    return EXPAR_OK;
}

static expar_status join_by_torchrun(int32_t rank, void *context)
{
    boot_request request = {0};
    (void)context;
    set_torchrun(rank, SIZE, SIZE);
    BODY_OK(join_from_env(&request));
    BODY_CHECK(strncmp(request.meeting, "unix:", 5) == 0);
    return EXPAR_OK;
}

static void torchrun_on_one_host(void **state)
{
    (void)state;
    clear();
    set_job("TORCHELASTIC_RUN_ID");
    crew_run_ok(SIZE, join_by_torchrun, NULL);
    clear();
}

static expar_status join_by_open_mpi(int32_t rank, void *context)
{
    boot_request request = {0};
    (void)context;
    set_open_mpi(rank, SIZE, SIZE);
    return join_from_env(&request);
}

static void open_mpi_on_one_host(void **state)
{
    (void)state;
    clear();
    set_job("PMIX_NAMESPACE");
    crew_run_ok(SIZE, join_by_open_mpi, NULL);
    clear();
}

/* A free port below those that the kernel assigns, so that no other program takes it meanwhile. */
static int32_t free_port(void)
{
    for (int32_t i = 0; i < 100; i++) {
        address_ip ip = {.family = 4, .bytes = {127, 0, 0, 1}, .port = (uint16_t)(20000 + (getpid() + i) % 10000)};
        address where;
        address_from_ip(&ip, &where);
        int fd = address_listen(&where);
        if (fd < 0) continue;
        wire_close(&fd);
        return ip.port;
    }
    fail_msg("100 ports in a row are taken");
    return -1;
}

static expar_status join_by_tcp(int32_t rank, void *context)
{
    boot_request request = {0};
    (void)context;
    set_torchrun(rank, SIZE, 2);
    BODY_OK(join_from_env(&request));
    BODY_CHECK(strncmp(request.meeting, "tcp:", 4) == 0);
    return EXPAR_OK;
}

static void torchrun_by_tcp(void **state)
{
    (void)state;
    clear();
    set_job("TORCHELASTIC_RUN_ID");
    set_number("EXPAR_BOOTSTRAP_PORT", free_port());
    crew_run_ok(SIZE, join_by_tcp, NULL);
    clear();
}

static expar_status join_once(int32_t rank, void *context)
{
    const int64_t *timeout_ms = context;
    boot *group;
    boot_request request = {.timeout_ms = *timeout_ms};
    set_open_mpi(rank, SIZE, SIZE);
    BODY_OK(boot_request_from_env(&request));
    return boot_join_sockets(&request, &group);
}

static bool all_miss_rank_3(const crew *ranks)
{
    bool all = true;
    for (int32_t rank = 0; rank < SIZE - 1; rank++)
        all = all && strstr(ranks->outcomes[rank].text, "missing: 3");
    return all;
}

/* Again with more patience as long as another rank has come too late as well. */
static void missing_rank_is_named(void **state)
{
    (void)state;
    crew ranks;
    int64_t timeout_ms = 200;
    do {
        timeout_ms *= 2;
        clear();
        set_job("PMIX_NAMESPACE");
        crew_start(&ranks, SIZE - 1, join_once, &timeout_ms);
        crew_finish(&ranks);
    } while (!all_miss_rank_3(&ranks) && timeout_ms < 10000);
    for (int32_t rank = 0; rank < SIZE - 1; rank++)
        crew_assert_error(&ranks, rank, EXPAR_ERR_BOOTSTRAP, "missing: 3");
    clear();
}

/* Without rank 0 there is no meeting. */
static expar_status join_without_0(int32_t index, void *context)
{
    return join_once(index + 1, context);
}

static void missing_rank_0_is_named(void **state)
{
    (void)state;
    crew ranks;
    int64_t timeout_ms = 200;
    clear();
    set_job("PMIX_NAMESPACE");
    crew_start(&ranks, 2, join_without_0, &timeout_ms);
    crew_finish(&ranks);
    for (int32_t index = 0; index < 2; index++)
        crew_assert_error(&ranks, index, EXPAR_ERR_BOOTSTRAP, "rank 0 did not come to the meeting place unix:expar-");
    clear();
}

static void taken_meeting_place(void **state)
{
    (void)state;
    boot *group;
    address where;
    boot_request request = {.timeout_ms = 1000};
    clear();
    set_job("PMIX_NAMESPACE");
    set_open_mpi(0, 2, 2);
    assert_int_equal(boot_request_from_env(&request), EXPAR_OK);
    assert_int_equal(address_parse(request.meeting, clock_ns(), &where), EXPAR_OK);
    int fd = address_listen(&where);
    assert_true(fd >= 0);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(strstr(expar_last_error(), "someone listens at the meeting place"));
    wire_close(&fd);
    clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_means_one_rank),
        cmocka_unit_test(expar_run_comes_first),
        cmocka_unit_test(malformed_expar_run),
        cmocka_unit_test(malformed_torchrun),
        cmocka_unit_test(several_hosts_need_a_secret),
        cmocka_unit_test(jobs_meet_apart),
        cmocka_unit_test(torchrun_on_one_host),
        cmocka_unit_test(open_mpi_on_one_host),
        cmocka_unit_test(torchrun_by_tcp),
        cmocka_unit_test(missing_rank_is_named),
        cmocka_unit_test(missing_rank_0_is_named),
        cmocka_unit_test(taken_meeting_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
