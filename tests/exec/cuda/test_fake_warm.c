/* SPDX-License-Identifier: Apache-2.0 */
/* A program's first calls on a GPU compile kernels, with a compiler that is played (cuda/fake/nvrtc.c); those of the
 * next program find them on the disk, and a shape that is known compiles nothing, whatever the number of tokens. */
#include "cuda/find_controls.h"
#include "ep/idle_rank.h"
#include "shmem/kind.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

static char root[] = "/tmp/expar-warm-XXXXXX";

static void dispatch_into(idle_rank *one, int64_t room)
{
    expar_dispatch_args args = idle_dispatch_args(one, EXPAR_F32);
    expar_dispatch_result result = EXPAR_DISPATCH_RESULT_INIT;
    args.num_worst_tokens = room;
    CHECK_OK(expar_dispatch(one->ep, &args, &result));
    expar_ep_output_release(result.output);
    expar_ep_handle_destroy(result.handle);
}

/* In a process of its own. shared: not NULL where the disk has all already. */
static void play(expar_group *group, void *shared)
{
    idle_rank one;
    if (!idle_begin(&one, group) || !idle_dispatch(&one, EXPAR_F32) || !idle_combine(&one)) return;
    const fake_compiler_controls *controls = controls_find_compiler();
    if (!CHECK(controls, "another compiler is open")) return;
    int begun = atomic_load(&controls->begun);
    CHECK(shared ? begun == 0 : begun >= 4, "%d kernel sources were compiled", begun);
    for (int64_t room = 1; room <= 16; room *= 2)
        dispatch_into(&one, room);
    CHECK(atomic_load(&controls->begun) == begun, "other numbers of tokens were compiled for");
    idle_end(&one);
}

static void a_warm_start_compiles_nothing(void **state)
{
    (void)state;
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 1};
    assert_true(ranks_run(&plan, play, NULL));
    assert_true(ranks_run(&plan, play, root));
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *walk)
{
    (void)facts, (void)kind, (void)walk;
    return remove(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_warm_start_compiles_nothing)};
    kind_read(argc, argv);
    if (!mkdtemp(root)) return 1;
    setenv("XDG_CACHE_HOME", root, 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}
