/* SPDX-License-Identifier: Apache-2.0 */
/* Handles in kernels: the litmus suite with delays at random, scripts against what the host knows, growth, and bad
 * input. The target is the CPU, or a GPU, which several ranks may share. Ranks are threads, or processes, also on
 * several simulated nodes. */
#include "pgas/device/setting.h"

static void pass_messages(setting *s, expar_group *group, expar_memory_kind words, expar_memory_kind data)
{
    for (int with = 0; with < HANDLES_WITHS; with++)
        for (int scope = EXPAR_DEV_THREAD; scope <= EXPAR_DEV_BLOCK; scope++) {
            handles_call call = call_open(group, HANDLES_PASS, words, data, &s->runner);
            call.with = with;
            call.scope = scope;
            run_well(s, group, &s->handle, &call);
            call_close(group, &call, &s->runner);
        }
}

static void pass_all_messages(setting *s, expar_group *group)
{
    const expar_memory_kind kind = runner_kind();
    pass_messages(s, group, kind, kind);
    if (kind == EXPAR_MEMORY_HOST || seed != 1) return; /* one seed, whose rings are often full, for other kinds */
    pass_messages(s, group, EXPAR_MEMORY_PINNED, EXPAR_MEMORY_PINNED);
    pass_messages(s, group, kind, EXPAR_MEMORY_PINNED);
    pass_messages(s, group, EXPAR_MEMORY_PINNED, kind);
}

static void run_one(setting *s, expar_group *group, handles_test test, int scope)
{
    handles_call call = call_open(group, test, runner_kind(), runner_kind(), &s->runner);
    call.scope = scope;
    if (test == HANDLES_SCRIPT) call.rounds = 60;
    run_well(s, group, &s->handle, &call);
    call_close(group, &call, &s->runner);
}

static void litmus(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 3)) return;
    pass_all_messages(&s, group);
    run_one(&s, group, HANDLES_STORES, EXPAR_DEV_BLOCK);
    run_one(&s, group, HANDLES_ADDS, EXPAR_DEV_BLOCK);
    for (int scope = EXPAR_DEV_THREAD; scope <= EXPAR_DEV_BLOCK; scope++)
        run_one(&s, group, HANDLES_BARRIERS, scope);
    setting_close(&s, group);
}

/* More threads than a warp has. */
static void two_warps(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 35)) return;
    run_one(&s, group, HANDLES_BARRIERS, EXPAR_DEV_WARP);
    handles_call call = call_open(group, HANDLES_PASS, runner_kind(), runner_kind(), &s.runner);
    call.rounds = 3;
    call.scope = EXPAR_DEV_WARP;
    run_well(&s, group, &s.handle, &call);
    call_close(group, &call, &s.runner);
    setting_close(&s, group);
}

static void scripts(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    for (uint32_t number = 0; number < 4; number++) {
        const bool pinned = runner_target() == EXPAR_DEVICE_GPU && number % 2 == 1;
        const expar_memory_kind kind = pinned ? EXPAR_MEMORY_PINNED : runner_kind();
        handles_call call = call_open(group, HANDLES_SCRIPT, kind, kind, &s.runner);
        call.rounds = 60;
        call.seed += number;
        run_well(&s, group, &s.handle, &call);
        check_script(group, &call);
        call_close(group, &call, &s.runner);
    }
    setting_close(&s, group);
}

static void run_litmus(void)
{
    for (seed = 0; seed < 3; seed++) {
        kind_run((ranks_plan){0}, seed == 1 ? RANKS : 2, litmus);
    }
    seed = 0;
}

static void test_order_holds_with_threads_that_are_late(void **state)
{
    (void)state;
    run_litmus();
}

static void test_warps_meet(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, two_warps);
}

static void test_scripts_leave_what_they_say(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, scripts);
}

/* A rank by itself, whose kernel waits for no other one: scripts on both kinds, barriers, and adds of a stream. Tools
   that let one kernel run at a time take this test (scripts/gpu.sh). */
static void alone(expar_group *group, void *shared)
{
    setting s;
    uint64_t sum = 0;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    for (int i = 0; i < 2; i++) {
        const expar_memory_kind kind = i == 0 ? runner_kind() : EXPAR_MEMORY_PINNED;
        if (i == 1 && runner_target() == EXPAR_DEVICE_CPU) continue;
        handles_call call = call_open(group, HANDLES_SCRIPT, kind, kind, &s.runner);
        call.rounds = 60;
        run_well(&s, group, &s.handle, &call);
        check_script(group, &call);
        const int adds = runner_add_on_stream(&s.runner, (uint64_t *)call.words + 2, 0, 3);
        CHECK_OK(expar_get(group, &sum, call.words + 2, sizeof sum, 0));
        CHECK(sum == (uint64_t)adds, "%llu adds of %d", (unsigned long long)sum, adds);
        call_close(group, &call, &s.runner);
    }
    for (int scope = EXPAR_DEV_THREAD; scope <= EXPAR_DEV_BLOCK; scope++)
        run_one(&s, group, HANDLES_BARRIERS, scope);
    setting_close(&s, group);
}

static void test_alone_a_rank_needs_no_other_kernel(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 1, alone);
}

/* ---- growth and teams -------------------------------------------------------------------------------------------- */

static void growth(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    for (int i = 0; i < 4; i++) {
        void *large = take(group, runner_kind(), (size_t)3 << 20);
        handles_call call = call_open(group, HANDLES_PASS, runner_kind(), runner_kind(), &s.runner);
        call.rounds = 2;
        run_well(&s, group, &s.handle, &call);
        call_close(group, &call, &s.runner);
        CHECK(large != NULL, "no memory");
    }
    setting_close(&s, group);
}

static void test_a_handle_serves_memory_that_is_newer(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, growth);
}

/* Every other rank, from the last one down. */
static void teams(expar_group *group, void *shared)
{
    setting s;
    expar_team *world = NULL, *team = NULL;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    for (int again = 0; again < 2; again++) {
        CHECK_OK(expar_team_split_strided(world, group->size - 1, -2, group->size / 2, NULL, &team));
        expar_device_handle handle = team ? handle_for(group, team) : s.handle;
        handles_call call = call_open(group, HANDLES_PASS, runner_kind(), runner_kind(), &s.runner);
        if (team) {
            CHECK(expar_kernel_n_pes(&handle) == group->size / 2, "%d PEs", expar_kernel_n_pes(&handle));
            CHECK(expar_kernel_translate_pe(&handle, 0, &s.handle) == group->size - 1, "PE 0 is another rank");
            CHECK(expar_kernel_translate_pe(&s.handle, group->size - 2, &handle) == -1, "a rank is no member");
            CHECK(expar_kernel_translate_pe(&s.handle, group->rank, &handle) == expar_kernel_my_pe(&handle), "not me");
            CHECK_OK(expar_team_sync(team));
            runner_start(&s.runner, &handle, &call);
            runner_await(&s.runner);
            CHECK(s.runner.status[0] == EXPAR_OK && *s.runner.wrong == 0, "%s", error_of(&handle).text);
            call.test = HANDLES_BARRIERS;
            CHECK_OK(expar_team_sync(team));
            runner_start(&s.runner, &handle, &call);
            runner_await(&s.runner);
            CHECK(s.runner.status[0] == EXPAR_OK && *s.runner.wrong == 0, "%s", error_of(&handle).text);
            CHECK_OK(expar_team_destroy(team));
            /* The handle has ended with its team. */
            call.test = HANDLES_BAD;
            call.with = HANDLES_BAD_PE;
            runner_start(&s.runner, &handle, &call);
            runner_await(&s.runner);
            CHECK(s.runner.status[0] == EXPAR_ERR_HANDLE, "ended with %d", s.runner.status[0]);
            CHECK(error_of(&handle).status == EXPAR_ERR_HANDLE, "%s", error_of(&handle).text);
            const expar_device_handle next = handle_for(group, NULL);
            /* Ranks that are threads may take each other's slots. */
            CHECK(next.number == handle.number || kind_of_ranks == RANKS_THREADS, "the slot is not used again");
            CHECK(next.number != handle.number || next.mark != handle.mark, "two handles of one generation");
            CHECK(error_of(&next).status == EXPAR_OK, "%s", error_of(&next).text);
        }
        CHECK_OK(expar_group_barrier(group));
        call_close(group, &call, &s.runner);
    }
    setting_close(&s, group);
}

static void test_handles_have_the_numbers_of_their_team(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, teams);
}

static void meet_in_formed(setting *s, expar_group *group, expar_team *team, const handles_call *call)
{
    if (!team) return;
    const expar_device_handle handle = handle_for(group, team);
    runner_start(&s->runner, &handle, call);
    runner_await(&s->runner);
    CHECK(s->runner.status[0] == EXPAR_OK && *s->runner.wrong == 0, "%s", error_of(&handle).text);
}

/* Two teams that share ranks meet in one order, each with words of its own. Ranks of one team do not wait for the
   other. */
static void formed_teams(expar_group *group, void *shared)
{
    setting s;
    expar_team *low = NULL, *high = NULL;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    handles_call first = call_open(group, HANDLES_BARRIERS, runner_kind(), runner_kind(), &s.runner);
    handles_call second = call_open(group, HANDLES_BARRIERS, runner_kind(), runner_kind(), &s.runner);
    CHECK_OK(expar_team_form(group, 0, 1, group->size - 1, &low));
    CHECK_OK(expar_team_form(group, 1, 1, group->size - 1, &high));
    meet_in_formed(&s, group, low, &first);
    meet_in_formed(&s, group, high, &second);
    CHECK_OK(expar_group_barrier(group));
    meet_in_formed(&s, group, high, &first);
    CHECK_OK(expar_team_destroy(low));
    CHECK_OK(expar_team_destroy(high));
    CHECK_OK(expar_group_barrier(group));
    call_close(group, &second, &s.runner);
    call_close(group, &first, &s.runner);
    setting_close(&s, group);
}

static void test_formed_teams_have_barriers(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, formed_teams);
}

static void contexts(expar_group *group, void *shared)
{
    setting s;
    expar_team *world = NULL;
    expar_ctx *ctx = NULL;
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    CHECK_OK(expar_team_get_world(group, &world));
    CHECK_OK(expar_ctx_create(world, NULL, &ctx));
    expar_device_options options = options_for(NULL);
    options.ctx = ctx;
    expar_device_handle handle;
    CHECK_OK(expar_device_get(group, &options, &handle));
    handles_call call = call_open(group, HANDLES_PASS, runner_kind(), runner_kind(), &s.runner);
    run_well(&s, group, &handle, &call);
    CHECK_OK(expar_ctx_destroy(ctx));
    CHECK(error_of(&handle).status == EXPAR_ERR_HANDLE, "%s", error_of(&handle).text);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_device_get(group, &options, &handle));
    CHECK(error_of(&s.handle).status == EXPAR_OK, "%s", error_of(&s.handle).text);
    call_close(group, &call, &s.runner);
    setting_close(&s, group);
}

static void test_handles_end_with_their_context(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, contexts);
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void one_bad(setting *s, expar_group *group, handles_call call, handles_bad bad, expar_status expected,
                    const char *text)
{
    uint64_t words[2] = {3, 4}, seen = 0;
    const expar_device_handle handle = handle_for(group, NULL);
    call.with = bad;
    CHECK_OK(expar_put(group, s->first, words, sizeof words, group->rank));
    CHECK_OK(expar_group_barrier(group));
    runner_start(&s->runner, &handle, &call);
    runner_await(&s->runner);
    const expar_device_error error = error_of(&handle);
    CHECK(s->runner.status[0] == (int)expected, "bad %d: status %d", bad, s->runner.status[0]);
    CHECK(*s->runner.wrong == 0, "bad %d: %llu wrong", bad, (unsigned long long)*s->runner.wrong);
    CHECK(error.status == expected, "bad %d: %d, %s", bad, (int)error.status, error.text);
    CHECK(strstr(error.text, text) != NULL, "bad %d: '%s' has no '%s'", bad, error.text, text);
    CHECK_OK(expar_get(group, &seen, s->first, sizeof seen, group->rank));
    CHECK(seen == 3, "bad %d: the word holds %llu", bad, (unsigned long long)seen);
    CHECK_OK(expar_group_barrier(group));
}

/* Memory of a kind that the target does not load: kernels of GPUs get the host's. */
static void bad_kernels(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    handles_call call = {.test = HANDLES_BAD, .words = s.first, .own = runner_alloc(&s.runner, 64), .bytes = 8};
    uint64_t *elsewhere = runner_alloc(&s.runner, 64);
    one_bad(&s, group, call, HANDLES_BAD_PE, EXPAR_ERR_RANGE, "put: PE 2, expected 0 to 1");
    one_bad(&s, group, call, HANDLES_BAD_NEGATIVE_PE, EXPAR_ERR_RANGE, "g: PE -1");
    one_bad(&s, group, call, HANDLES_BAD_END, EXPAR_ERR_ADDRESS, "get: address");
    one_bad(&s, group, call, HANDLES_BAD_COUNT, EXPAR_ERR_ADDRESS, "put: address");
    one_bad(&s, group, call, HANDLES_BAD_ALIGNMENT, EXPAR_ERR_ALIGNMENT, "atomic: address");
    one_bad(&s, group, call, HANDLES_BAD_CMP, EXPAR_ERR_ARGUMENT, "wait_until: ");
    one_bad(&s, group, call, HANDLES_BAD_OP, EXPAR_ERR_ARGUMENT, "signal_op: ");
    call.words = elsewhere;
    one_bad(&s, group, call, HANDLES_BAD_ADDRESS, EXPAR_ERR_ADDRESS, "put_signal: address");
    one_bad(&s, group, call, HANDLES_BAD_WAIT, EXPAR_ERR_ADDRESS, "wait_until: address");
    if (runner_target() == EXPAR_DEVICE_GPU) {
        call.words = take(group, EXPAR_MEMORY_HOST, 64);
        one_bad(&s, group, call, HANDLES_BAD_ADDRESS, EXPAR_ERR_ADDRESS, "device or pinned");
    }
    expar_group *other = ranks_join_again(group);
    if (other) {
        call.words = take(other, runner_kind(), 4096);
        const expar_device_handle ended = handle_for(other, NULL);
        one_bad(&s, group, call, HANDLES_BAD_ADDRESS, EXPAR_ERR_ADDRESS, "put_signal: address");
        CHECK_OK(expar_group_destroy(other));
        CHECK(error_of(&ended).status == EXPAR_ERR_HANDLE, "%s", error_of(&ended).text);
        call.words = s.first;
        runner_start(&s.runner, &ended, &call);
        runner_await(&s.runner);
        CHECK(s.runner.status[0] == EXPAR_ERR_HANDLE, "ended with %d", s.runner.status[0]);
    }
    runner_free(&s.runner, elsewhere);
    runner_free(&s.runner, call.own);
    setting_close(&s, group);
}

static void test_the_first_error_of_a_kernel_stays(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, bad_kernels);
}

/* Nodes of one rank: all goes by rings. */
static void test_order_holds_between_nodes(void **state)
{
    const ranks_plan apart = {.ranks_per_node = 1};
    (void)state;
    if (kind_is_mix || !network_can_be_judged) skip();
    kind_run(apart, 2, litmus);
    seed = 1;
    kind_run(apart, 3, litmus);
    delay_ns = 10000;
    kind_run(apart, 2, scripts);
    /* Data by stores, and atomics by transports. */
    kind_run((ranks_plan){0}, 2, litmus);
    seed = 0;
    delay_ns = 0;
    kind_run(apart, RANKS, scripts);
    kind_run(apart, 2, growth);
    kind_run(apart, RANKS, teams);
    kind_run(apart, RANKS, formed_teams);
    kind_run(apart, 2, bad_kernels);
}

/* Nodes of one rank. The host does not know memory of the program that was not registered. */
static void bad_memory(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    handles_call call = {
        .test = HANDLES_BAD, .words = s.first, .own = runner_alloc(&s.runner, 64), .peer = 1 - group->rank};
    CHECK_OK(expar_unregister(group, call.own));
    one_bad(&s, group, call, HANDLES_BAD_LOCAL, EXPAR_ERR_ADDRESS, "expar_register");
    one_bad(&s, group, call, HANDLES_BAD_DEST, EXPAR_ERR_ADDRESS, "get: PE");
    CHECK_OK(expar_register(group, call.own, 64));
    runner_free(&s.runner, call.own);
    setting_close(&s, group);
}

static void test_memory_that_the_host_does_not_know_is_told(void **state)
{
    (void)state;
    if (runner_target() == EXPAR_DEVICE_CPU) skip();
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, bad_memory);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

static void run_with(const char *variable, const char *value, ranks_plan plan, int32_t size, ranks_body body)
{
    setenv(variable, value, 1);
    kind_run(plan, size, body);
    unsetenv(variable);
}

/* All goes by rings inside a node, too. */
static void test_order_holds_by_commands_inside_a_node(void **state)
{
    (void)state;
    if (!network_can_be_judged && kind_is_mix) skip();
    seed = 1;
    run_with("EXPAR_DEVICE_TRANSPORTS", "proxy,mapped", (ranks_plan){0}, 2, litmus);
    run_with("EXPAR_DEVICE_TRANSPORTS", "proxy", (ranks_plan){0}, RANKS, scripts);
    seed = 0;
}

/* Nodes of one rank, whose kernels have no commands. */
static void far_ranks(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    handles_call call = {
        .test = HANDLES_BAD, .words = s.first, .own = runner_alloc(&s.runner, 64), .peer = 1 - group->rank};
    one_bad(&s, group, call, HANDLES_BAD_FAR, EXPAR_ERR_UNSUPPORTED, "EXPAR_DEVICE_TRANSPORTS");
    one_bad(&s, group, call, HANDLES_BAD_SYNC, EXPAR_ERR_UNSUPPORTED, "no way of kernels leads to");
    runner_free(&s.runner, call.own);
    setting_close(&s, group);
}

static void test_a_way_that_is_not_named_is_not_used(void **state)
{
    (void)state;
    run_with("EXPAR_DEVICE_TRANSPORTS", "mapped", (ranks_plan){.ranks_per_node = 1}, 2, far_ranks);
}

/* The host, streams and the kernels of all ranks add to one word of that kind. */
static void count_in(setting *s, expar_group *group, expar_memory_kind kind)
{
    enum { ADDS = 20, ON_STREAM = 10 };
    uint64_t sum = 0;
    handles_call call = call_open(group, HANDLES_COUNT, kind, kind, &s->runner);
    CHECK_OK(expar_group_barrier(group));
    runner_start(&s->runner, &s->handle, &call);
    for (int i = 0; i < ADDS; i++)
        CHECK_OK(expar_atomic_add_u64(group, call.words + 2, 1, 0));
    const int on_stream = runner_add_on_stream(&s->runner, (uint64_t *)call.words + 2, 0, ON_STREAM);
    runner_await(&s->runner);
    CHECK_OK(expar_quiet(group));
    CHECK_OK(expar_group_barrier(group));
    CHECK_OK(expar_get(group, &sum, call.words + 2, sizeof sum, 0));
    const uint64_t each = ADDS + (uint64_t)on_stream + (uint64_t)(call.rounds * s->runner.threads);
    const uint64_t expected = (uint64_t)group->size * each;
    CHECK(sum == expected, "%llu adds, expected %llu", (unsigned long long)sum, (unsigned long long)expected);
    CHECK_OK(expar_group_barrier(group));
    call_close(group, &call, &s->runner);
}

static void count_together(expar_group *group, void *shared)
{
    setting s;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    count_in(&s, group, runner_kind());
    setting_close(&s, group);
}

/* Kernels change the words, also those of the host and of streams. */
static void test_all_atomics_meet(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, count_together);
    if (runner_target() == EXPAR_DEVICE_CPU) return;
    run_with("FAKE_CHANGES", "0", (ranks_plan){0}, 2, count_together);
    run_with("EXPAR_STAGE", "1", (ranks_plan){0}, 2, count_together);
}

static void test_owners_let_all_atomics_meet(void **state)
{
    (void)state;
    run_with("EXPAR_DEVICE_ATOMICS", "owner", (ranks_plan){0}, 2, count_together);
    run_with("EXPAR_DEVICE_ATOMICS", "owner", (ranks_plan){0}, 2, litmus);
    /* Between nodes they do so without being told. */
    kind_run((ranks_plan){.ranks_per_node = 1}, 2, count_together);
}

/* Kernels change pinned words by stores if their GPU's atomics meet those of CPUs, else by commands to the host. */
static void count_in_pinned(expar_group *group, void *shared)
{
    setting s;
    int native = 0;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    CHECK_OK(CUDA_CALL(DeviceGetAttribute, &native, CU_ATTRIBUTE_HOST_ATOMICS, runner_gpu(group)));
    count_in(&s, group, EXPAR_MEMORY_PINNED);
    handles_call call = call_open(group, HANDLES_ADDS, EXPAR_MEMORY_PINNED, EXPAR_MEMORY_PINNED, &s.runner);
    run_well(&s, group, &s.handle, &call);
    for (int32_t r = 0; r < group->size; r++) {
        const expar_dev_entry entry = entry_of(&s.handle, EXPAR_DEV_PINNED, r);
        const uint32_t expected = native ? EXPAR_DEV_WAY_MAPPED : EXPAR_DEV_WAY_PROXY;
        CHECK(entry.way == EXPAR_DEV_WAY_MAPPED, "data go by way %u", entry.way);
        CHECK(entry.atomics == expected, "atomics go by way %u, expected %u", entry.atomics, expected);
    }
    call_close(group, &call, &s.runner);
    setting_close(&s, group);
}

/* Where they are not native, kernels of the owner pass commands, too. */
static void test_atomics_meet_in_pinned_memory(void **state)
{
    (void)state;
    if (runner_target() == EXPAR_DEVICE_CPU || kind_is_mix) skip();
    kind_run((ranks_plan){0}, 2, count_in_pinned);
}

/* Kernels load and store memory of the GPUs that theirs reaches. Commands go to the others. */
static void reach_gpus(expar_group *group, void *shared)
{
    setting s;
    const int32_t own = runner_gpu(group);
    (void)shared;
    if (!setting_open(&s, group, 2)) return;
    run_one(&s, group, HANDLES_SCRIPT, EXPAR_DEV_BLOCK);
    for (int32_t r = 0; r < group->size; r++) {
        void *at = NULL;
        int reaches = 1;
        const int32_t gpu = runner_gpu(&(expar_group){.rank = r});
        if (gpu != own) CHECK_OK(CUDA_CALL(DeviceCanAccessPeer, &reaches, own, gpu));
        const uint32_t expected = reaches ? EXPAR_DEV_WAY_MAPPED : EXPAR_DEV_WAY_PROXY;
        const expar_dev_entry entry = entry_of(&s.handle, EXPAR_DEV_DEVICE, r);
        CHECK(entry.way == expected, "rank %d is reached by way %u, expected %u", r, entry.way, expected);
        at = expar_device_ptr(group, s.first, r);
        CHECK((at != NULL) == (reaches != 0), "rank %d is at %p", r, at);
    }
    setting_close(&s, group);
}

static void test_kernels_store_where_their_gpu_reaches(void **state)
{
    (void)state;
    if (runner_target() == EXPAR_DEVICE_CPU || kind_is_mix) skip();
    kind_run((ranks_plan){0}, 3, reach_gpus);
}

/* Two nodes of two ranks: words of another node are for its own kernels. */
static void add_across(expar_group *group, void *shared)
{
    setting s;
    const int32_t far = (group->rank + 2) % 4;
    (void)shared;
    if (!setting_open(&s, group, 1)) return;
    handles_call call = {.test = HANDLES_BAD, .words = s.first, .own = runner_alloc(&s.runner, 64), .peer = far};
    one_bad(&s, group, call, HANDLES_BAD_ADD, EXPAR_ERR_UNSUPPORTED, "EXPAR_DEVICE_ATOMICS");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_atomic_add_u64(group, s.first, 1, far));
    CHECK_TEXT("another node: EXPAR_DEVICE_ATOMICS=node");
    CHECK_OK(expar_atomic_set_u64(group, call.words + 8, 1, far));
    CHECK_OK(expar_quiet(group));
    runner_free(&s.runner, call.own);
    setting_close(&s, group);
}

static void differ_in_atomics(expar_group *group, void *shared)
{
    void *block = NULL;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    (void)shared;
    options.kind = EXPAR_MEMORY_DEVICE;
    options.device = runner_gpu(group);
    options.bytes = 64;
    setenv("EXPAR_DEVICE_ATOMICS", group->rank == 0 ? "node" : "owner", 1);
    CHECK_STATUS(EXPAR_ERR_MISMATCH, expar_memory_alloc(group, &options, &block));
    CHECK_TEXT("EXPAR_DEVICE_ATOMICS is node on rank 0 and owner on rank 1");
}

static void test_atomics_stay_in_a_node(void **state)
{
    (void)state;
    if (runner_target() == EXPAR_DEVICE_CPU) skip();
    run_with("EXPAR_DEVICE_ATOMICS", "node", (ranks_plan){.ranks_per_node = 2}, 4, add_across);
    if (kind_of_ranks == RANKS_PROCESSES) kind_run((ranks_plan){0}, 2, differ_in_atomics);
}

static void bad_settings(expar_group *group, void *shared)
{
    expar_device_handle handle;
    void *block = NULL;
    const expar_device_options options = options_for(NULL);
    expar_memory_options memory = EXPAR_MEMORY_OPTIONS_INIT;
    (void)shared;
    memory.kind = runner_kind();
    memory.device = memory.kind == EXPAR_MEMORY_HOST ? 0 : runner_gpu(group);
    memory.bytes = 64;
    expar_status status = expar_memory_alloc(group, &memory, &block);
    if (status == EXPAR_OK) status = expar_device_get(group, &options, &handle);
    CHECK(status == EXPAR_ERR_ARGUMENT || status == EXPAR_ERR_REMOTE, "status %d", (int)status);
    CHECK_TEXT("EXPAR_DEVICE_", "expected ");
}

static void test_settings_are_checked(void **state)
{
    (void)state;
    run_with("EXPAR_DEVICE_TRANSPORTS", "mapped,", (ranks_plan){0}, 1, bad_settings);
    run_with("EXPAR_DEVICE_TRANSPORTS", "mapped,mapped", (ranks_plan){0}, 1, bad_settings);
    run_with("EXPAR_DEVICE_TRANSPORTS", "wire", (ranks_plan){0}, 2, bad_settings);
    if (runner_target() == EXPAR_DEVICE_GPU)
        run_with("EXPAR_DEVICE_ATOMICS", "nodes", (ranks_plan){0}, 2, bad_settings);
}

/* ---- bad calls --------------------------------------------------------------------------------------------------- */

static void bad_calls(expar_group *group, void *shared)
{
    expar_device_handle handle = {.number = 77};
    expar_device_options options = options_for(NULL);
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    expar_team *world = NULL;
    (void)shared;
    CHECK_STATUS(EXPAR_ERR_NULL, expar_device_get(NULL, &options, &handle));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_device_get(group, &options, NULL));
    if (runner_target() == EXPAR_DEVICE_GPU) {
        CHECK_STATUS(EXPAR_ERR_STATE, expar_device_get(group, &options, &handle));
        CHECK_TEXT("no device memory yet", "expar_memory_alloc");
        CHECK(take(group, EXPAR_MEMORY_DEVICE, 64) != NULL, "no memory");
    } else {
        CHECK_STATUS(EXPAR_ERR_STATE, expar_device_get(group, NULL, &handle));
    }
    options.version = EXPAR_DEVICE_VERSION + 1;
    CHECK_STATUS(EXPAR_ERR_VERSION, expar_device_get(group, &options, &handle));
    CHECK_TEXT("too new", "expected version 5");
    options.version = 0;
    CHECK_STATUS(EXPAR_ERR_VERSION, expar_device_get(group, &options, &handle));
    CHECK_TEXT("too old");
    options = options_for(NULL);
    options.struct_size = sizeof options + 1;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_device_get(group, &options, &handle));
    options = options_for(NULL);
    options.target = (expar_device_target)2;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_device_get(group, &options, &handle));
    CHECK_TEXT("options.target 2");
    expar_group *other = ranks_join_again(group);
    if (other && CHECK_OK(expar_team_get_world(other, &world))) {
        options = options_for(world);
        CHECK_STATUS(EXPAR_ERR_HANDLE, expar_device_get(group, &options, &handle));
        CHECK_TEXT("options.team is of another group");
        expar_ctx *ctx = NULL;
        CHECK_OK(expar_ctx_create(world, NULL, &ctx));
        options.ctx = ctx;
        CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_device_get(group, &options, &handle));
        CHECK_TEXT("both set");
        CHECK_OK(expar_group_destroy(other));
    }
    CHECK(handle.number == 77, "a call that failed changed the handle");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_device_get_error(NULL, &error));
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_device_get_error(&handle, &error));
    CHECK_TEXT("is none that expar_device_get has filled");
    handle = handle_for(group, NULL);
    error.struct_size = 1;
    CHECK_STATUS(EXPAR_ERR_ARGUMENT, expar_device_get_error(&handle, &error));
}

static void test_calls_reject_bad_arguments(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, bad_calls);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_holds_with_threads_that_are_late),
        cmocka_unit_test(test_warps_meet),
        cmocka_unit_test(test_scripts_leave_what_they_say),
        cmocka_unit_test(test_alone_a_rank_needs_no_other_kernel),
        cmocka_unit_test(test_a_handle_serves_memory_that_is_newer),
        cmocka_unit_test(test_handles_have_the_numbers_of_their_team),
        cmocka_unit_test(test_formed_teams_have_barriers),
        cmocka_unit_test(test_handles_end_with_their_context),
        cmocka_unit_test(test_the_first_error_of_a_kernel_stays),
        cmocka_unit_test(test_order_holds_between_nodes),
        cmocka_unit_test(test_memory_that_the_host_does_not_know_is_told),
        cmocka_unit_test(test_order_holds_by_commands_inside_a_node),
        cmocka_unit_test(test_a_way_that_is_not_named_is_not_used),
        cmocka_unit_test(test_all_atomics_meet),
        cmocka_unit_test(test_owners_let_all_atomics_meet),
        cmocka_unit_test(test_atomics_meet_in_pinned_memory),
        cmocka_unit_test(test_kernels_store_where_their_gpu_reaches),
        cmocka_unit_test(test_atomics_stay_in_a_node),
        cmocka_unit_test(test_settings_are_checked),
        cmocka_unit_test(test_calls_reject_bad_arguments),
    };
    kind_read(argc, argv);
    if (!runner_is_able()) return 77;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
