/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_create, expar_ep_get_buffer_size and expar_ep_destroy: wrong configs, configs that differ between ranks. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cpu/normal/cpu.h"
#include "oracle/unit.h"

#include <stdlib.h>
#include <sys/resource.h>

static const expar_ep_config good = {.struct_size = sizeof(expar_ep_config),
                                     .max_tokens = 8,
                                     .max_row_bytes = 64,
                                     .max_topk = 2,
                                     .max_experts = 6,
                                     .num_channels = 2,
                                     .ring_slots = 4,
                                     .pool_bytes = 1 << 20};

/* One member of the config with a value that does not do. */
typedef struct wrong_member {
    const char *words[5]; /* NULL after the last */
    expar_ep_config config;
} wrong_member;

#define WRONG(member, value, ...)                                                                                      \
    {                                                                                                                  \
        .words = {"config." #member, __VA_ARGS__}, .config = {                                                         \
            .struct_size = sizeof(expar_ep_config),                                                                    \
            .max_tokens = 8,                                                                                           \
            .max_row_bytes = 64,                                                                                       \
            .max_topk = 2,                                                                                             \
            .max_experts = 6,                                                                                          \
            .member = value                                                                                            \
        }                                                                                                              \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* each entry is the good config but for one member */
static const wrong_member wrong_members[] = {
    WRONG(struct_size, 0, "0"),
    WRONG(struct_size, sizeof(expar_ep_config) + 8, "_INIT"),
    WRONG(max_tokens, -1, "-1"),
    WRONG(max_row_bytes, -1, "-1"),
    WRONG(max_row_bytes, INT64_MAX, "9223372036854775807"),
    WRONG(max_topk, -2, "-2"),
    WRONG(max_experts, -3, "-3"),
    WRONG(max_experts, 7, "7", "3"),
    WRONG(num_channels, -3, "-3"),
    WRONG(ring_slots, -4, "-4"),
    WRONG(num_threads, -5, "-5"),
    WRONG(pool_bytes, -6, "-6"),
    WRONG(max_scales, -7, "-7"),
    WRONG(pool_limit_bytes, -8, "-8"),
    WRONG(max_scales, INT32_MAX, "2147483647"),
    {.words = {"config.pool_limit_bytes is 4095", "at least the 4096 of config.pool_bytes"},
     .config =
         {.struct_size = sizeof(expar_ep_config), .max_experts = 6, .pool_bytes = 4096, .pool_limit_bytes = 4095}},
};
#pragma GCC diagnostic pop

static void test_buffer_size_rejects(void **state)
{
    (void)state;
    check_begin(0);
    for (size_t i = 0; i < sizeof wrong_members / sizeof wrong_members[0]; i++) {
        size_t bytes = 77;
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_buffer_size(&wrong_members[i].config, 3, &bytes));
        CHECK_TEXT("expar_ep_get_buffer_size");
        check_text(__FILE__, __LINE__, wrong_members[i].words);
        CHECK(bytes == 77, "the size was written");
    }
    size_t bytes;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_get_buffer_size(NULL, 3, &bytes));
    CHECK_TEXT("expar_ep_get_buffer_size", "config");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_get_buffer_size(&good, 3, NULL));
    CHECK_TEXT("expar_ep_get_buffer_size", "bytes");
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_buffer_size(&good, 0, &bytes));
    CHECK_TEXT("expar_ep_get_buffer_size", "num_ranks", "0");
    assert_int_equal(check_failures(), 0);
}

/* Sizes whose product does not fit 64 bits are refused, not wrapped. */
static void test_buffer_size_overflow(void **state)
{
    (void)state;
    expar_ep_config config = good;
    size_t bytes = 77;
    check_begin(0);
    config.max_tokens = INT32_MAX / 3;
    config.max_row_bytes = 1 << 26;
    config.num_channels = 1024;
    config.ring_slots = 65536;
    config.pool_bytes = 0;
    expar_status status = expar_ep_get_buffer_size(&config, 3, &bytes);
    if (status == EXPAR_OK)
        CHECK(bytes > (size_t)3 * 1024 * 65536 << 26, "%zu bytes cannot hold the rings", bytes);
    else
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, status);
    config.max_tokens = INT64_MAX;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_ep_get_buffer_size(&config, 3, &bytes));
    CHECK_TEXT("config.max_tokens", "9223372036854775807");
    assert_int_equal(check_failures(), 0);
}

static void create_wrong(expar_group *group, void *shared)
{
    int32_t rank = expar_group_rank(group);
    (void)shared;
    for (size_t i = 0; i < sizeof wrong_members / sizeof wrong_members[0]; i++) {
        expar_ep *ep = NULL;
        CHECK_STATUS(rank == 1 ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE,
                     expar_ep_create(group, rank == 1 ? &wrong_members[i].config : &good, &ep));
        CHECK_TEXT("expar_ep_create");
        check_text(__FILE__, __LINE__, wrong_members[i].words);
        if (rank != 1) CHECK_TEXT("rank 1", "EXPAR_ERR_ARGUMENT");
        CHECK(!ep, "a buffer that was refused was given");
    }
    expar_ep *ep = NULL;
    if (CHECK_OK(expar_ep_create(group, &good, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static void run(int32_t size, ranks_body body)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = size};
    assert_true(ranks_run(&plan, body, NULL));
}

static void test_create_rejects(void **state)
{
    (void)state;
    run(3, create_wrong);
}

static void create_without(expar_group *group, void *shared)
{
    expar_ep *ep = NULL;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_create(NULL, &good, &ep));
    CHECK_TEXT("expar_ep_create", "group");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_create(group, NULL, &ep));
    CHECK_TEXT("expar_ep_create", "config");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_create(group, &good, NULL));
    CHECK_TEXT("expar_ep_create", "ep is NULL");
    CHECK_OK(expar_ep_destroy(NULL));
    expar_ep_output_release(NULL);
    expar_ep_handle_release(NULL);
}

static void test_create_without_pointers(void **state)
{
    (void)state;
    run(1, create_without);
}

static void create_different(expar_group *group, void *shared)
{
    (void)shared;
    struct {
        const char *name;
        expar_ep_config config;
    } others[] = {{"max_tokens", good},   {"max_row_bytes", good}, {"max_topk", good},   {"max_experts", good},
                  {"num_channels", good}, {"ring_slots", good},    {"pool_bytes", good}, {"max_scales", good}};
    others[0].config.max_tokens = 9;
    others[1].config.max_row_bytes = 80;
    others[2].config.max_topk = 3;
    others[3].config.max_experts = 9;
    others[4].config.num_channels = 3;
    others[5].config.ring_slots = 5;
    others[6].config.pool_bytes = 2 << 20;
    others[7].config.max_scales = 5;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        expar_ep *ep = NULL;
        CHECK_STATUS(EXPAR_ERR_MISMATCH,
                     expar_ep_create(group, expar_group_rank(group) == 2 ? &others[i].config : &good, &ep));
        CHECK_TEXT("expar_ep_create", others[i].name, "rank 2", "rank 0");
    }
}

static void test_create_with_different_configs(void **state)
{
    (void)state;
    run(3, create_different);
}

static bool workers_are_chosen(const expar_ep *ep)
{
    return ((const cpu_executor *)ep->base.exec)->chose_workers;
}

/* Only the number of worker threads is each rank's own; one that was given is kept to in every call. */
static void create_with_own_threads(expar_group *group, void *shared)
{
    expar_ep_config config = good;
    expar_ep *ep = NULL;
    (void)shared;
    config.num_threads = 1 + expar_group_rank(group);
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    CHECK(!workers_are_chosen(ep), "the caller's number is not kept to");
    CHECK_OK(expar_ep_destroy(ep));
    config.num_threads = 0;
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    CHECK(workers_are_chosen(ep) == !getenv("EXPAR_THREADS"), "who chose the number is not known");
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_threads_may_differ(void **state)
{
    (void)state;
    run(3, create_with_own_threads);
}

/* The text says how much there is. */
static void create_too_large(expar_group *group, void *shared)
{
    expar_ep_config config = good;
    expar_ep *ep = NULL;
    (void)shared;
    config.pool_bytes = (int64_t)1 << 40;
    CHECK_STATUS(EXPAR_ERR_MEMORY, expar_ep_create(group, &config, &ep));
    CHECK_TEXT("expar_ep_create");
    if (CHECK_OK(expar_ep_create(group, &good, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static void test_create_without_space(void **state)
{
    (void)state;
    run(3, create_too_large);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow memory needs the address space */
/* Rank 1 may map no more memory, and so cannot start its threads: nobody gets a buffer, and the heap is as it was. */
static void create_without_threads(expar_group *group, void *shared)
{
    (void)shared;
    bool poor = expar_group_rank(group) == 1;
    expar_ep_config config = good;
    config.num_threads = poor ? 1024 : 1;
    expar_ep *ep = NULL;
    struct rlimit before, none;
    getrlimit(RLIMIT_AS, &before);
    none = before;
    none.rlim_cur = 1;
    if (poor) setrlimit(RLIMIT_AS, &none);
    expar_status status = expar_ep_create(group, &config, &ep);
    setrlimit(RLIMIT_AS, &before);
    CHECK_STATUS(poor ? EXPAR_ERR_SYSTEM : EXPAR_ERR_REMOTE, status);
    if (poor)
        CHECK_TEXT("expar_ep_create", "of 1024");
    else
        CHECK_TEXT("expar_ep_create", "rank 1 could not make its part", "EXPAR_ERR_SYSTEM");
    config.num_threads = 1;
    if (CHECK_OK(expar_ep_create(group, &config, &ep))) CHECK_OK(expar_ep_destroy(ep));
}

static void test_create_without_threads(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 3};
    assert_true(ranks_run(&plan, create_without_threads, NULL));
}
#endif

/* EXPAR_ERR_STATE while a buffer is alive. */
static void leave_early(expar_group *group, void *shared)
{
    expar_ep *ep = NULL;
    (void)shared;
    if (!CHECK_OK(expar_ep_create(group, &good, &ep))) return;
    CHECK_STATUS(EXPAR_ERR_STATE, expar_group_destroy(group));
    CHECK_TEXT("expar_group_destroy", "buffer");
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_group_waits_for_its_buffers(void **state)
{
    (void)state;
    run(2, leave_early);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffer_size_rejects),
        cmocka_unit_test(test_buffer_size_overflow),
        cmocka_unit_test(test_create_rejects),
        cmocka_unit_test(test_create_without_pointers),
        cmocka_unit_test(test_create_with_different_configs),
        cmocka_unit_test(test_threads_may_differ),
        cmocka_unit_test(test_create_without_space),
        cmocka_unit_test(test_group_waits_for_its_buffers),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_create_without_threads),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
