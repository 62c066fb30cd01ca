/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks whose builds have other values of a knob that all need alike form no group: both are told which knob, which
 * ranks and which values. */
#include "base/base.h"
#include "base/knobs.h"
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"

#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS 2

/* As a build has it whose table says so. */
static bool set_knob(knob_id id, int64_t value)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = KNOB_COUNT * sizeof knob_values[0];
    const uintptr_t begin = (uintptr_t)knob_values / page * page, end = (uintptr_t)knob_values + bytes;
    if (mprotect((void *)begin, align_up(end - begin, page), PROT_READ | PROT_WRITE) != 0) return false;
    *(volatile int64_t *)(uintptr_t)&knob_values[id] = value;
    return true;
}

static _Noreturn void be_rank(const expar_unique_id *id, int32_t rank, knob_id knob_of, int64_t other)
{
    const ranks_plan plan = {.kind = RANKS_PROCESSES, .size = RANKS, .heap_bytes = (size_t)8 << 20};
    expar_group *group = NULL;
    char text[128];
    size_t count;
    const knob_entry *entry = &knob_table(&count)[knob_of];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_begin(rank);
    if (rank == 1) CHECK(set_knob(knob_of, other), "the table cannot be written");
    const expar_status expected = other == entry->value ? EXPAR_OK : EXPAR_ERR_MISMATCH;
    CHECK_STATUS(expected, ranks_join(&plan, id, rank, &group));
    snprintf(text, sizeof text, "%s is %" PRId64 " on rank 1 and %" PRId64 " on rank 0; expected the same", entry->name,
             other, entry->value);
    if (expected != EXPAR_OK) CHECK_TEXT(text);
    CHECK_OK(expar_group_destroy(group));
    fflush(NULL);
    _exit(check_failures() ? EXIT_FAILURE : EXIT_SUCCESS);
}

static void trial(knob_id id, int64_t other)
{
    const int64_t deadline_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    ranks_host host;
    pid_t pids[RANKS];
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < RANKS; r++) {
        fflush(NULL);
        pids[r] = fork();
        if (pids[r] == 0) be_rank(&host.id, r, id, other);
        assert_true(pids[r] > 0);
    }
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(ranks_wait(pids[r], deadline_ms, NULL), 0);
    assert_true(ranks_host_stop(&host));
}

#define ALIKE(id) KNOB_##id,
static const knob_id alike[] = {KNOBS_ALIKE(ALIKE)};

static void test_other_values_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(alike); i++)
        trial(alike[i], knob(alike[i]) + 1);
}

/* Knobs that may differ from rank to rank, and the same values written in other forms. */
static void test_others_do_not_matter(void **state)
{
    (void)state;
    size_t count;
    trial(KNOB_HEAP_CHUNK_BYTES, knob_table(&count)[KNOB_HEAP_CHUNK_BYTES].value);
    trial(KNOB_TREE_STAR, knob_table(&count)[KNOB_TREE_STAR].value);
}

/* The table says of each which kind it is. Those of buffers are compared when a buffer is made. */
static void test_the_table_tells_of_them(void **state)
{
    (void)state;
    size_t count, found = 0;
    const knob_entry *table = knob_table(&count);
    for (size_t i = 0; i < count; i++) {
        const size_t length = strlen(table[i].name);
        const bool of_buffers = length > 9 && strcmp(table[i].name + length - 9, ".channels") == 0;
        found += strstr(table[i].meaning, "alike on all ranks") && !of_buffers;
    }
    assert_int_equal(found, ARRAY_LENGTH(alike));
    for (size_t i = 0; i < ARRAY_LENGTH(alike); i++)
        assert_non_null(strstr(table[alike[i]].meaning, "alike on all ranks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_values_are_told),
        cmocka_unit_test(test_others_do_not_matter),
        cmocka_unit_test(test_the_table_tells_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
