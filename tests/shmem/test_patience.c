/* SPDX-License-Identifier: Apache-2.0 */
/* A rank whose process does not make the network's progress, for some time-outs of an operation. It is late, and waited
 * for, as long as it may still answer on its line. */
#include "base/knobs.h"
#include "shmem/kind.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RANKS   2
#define STOPPED 1
/* The time-out of an operation, and how long the rank stands still. What makes it silent is longer than any machine
   takes to wake it. */
#define SHORT_MS 200
#define PAUSE_MS 900

static bool is_stopped(const expar_group *group)
{
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)group->boot->places[STOPPED].pid);
    FILE *file = fopen(path, "r");
    const bool seen = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    if (file) fclose(file);
    return seen && state == 'T';
}

static void await_stop(const expar_group *group)
{
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS / 3;
    while (!is_stopped(group) && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(is_stopped(group), "rank 1 does not stand still");
}

static void set_timeout(expar_group *group, int64_t timeout_ms)
{
    group->sym->timeout_ms = group->sym->site.timeout_ms = timeout_ms;
}

static void *wake_later(void *argument)
{
    const expar_group *group = argument;
    nanosleep(&(struct timespec){.tv_sec = PAUSE_MS / 1000, .tv_nsec = PAUSE_MS % 1000 * 1000000}, NULL);
    if (kill(group->boot->places[STOPPED].pid, SIGCONT)) abort();
    return NULL;
}

/* Large enough to need the other process in any case. */
#define ITEMS ((size_t)1 << 16)

typedef expar_status operation(expar_group *group, uint64_t *block, uint64_t *mine);

static expar_status get_all(expar_group *group, uint64_t *block, uint64_t *mine)
{
    return expar_get(group, mine, block, ITEMS * sizeof *mine, STOPPED);
}

static expar_status put_all(expar_group *group, uint64_t *block, uint64_t *mine)
{
    expar_status status = expar_put(group, block, mine, ITEMS * sizeof *mine, STOPPED);
    return status == EXPAR_OK ? expar_quiet(group) : status;
}

static expar_status add_one(expar_group *group, uint64_t *block, uint64_t *mine)
{
    return expar_atomic_fetch_add_u64(group, block, 1, STOPPED, mine);
}

/* Many at once, more than there are places for. */
static expar_status put_many(expar_group *group, uint64_t *block, uint64_t *mine)
{
    expar_status status = EXPAR_OK;
    for (size_t i = 0; i < 20000 && status == EXPAR_OK; i++)
        status = expar_put_nbi(group, &block[i], &mine[i], sizeof *mine, STOPPED);
    return status == EXPAR_OK ? expar_quiet(group) : status;
}

static void wait_for_stopped(expar_group *group, void *shared)
{
    static operation *const operations[] = {get_all, put_all, add_one, put_many};
    uint64_t *block = NULL, *mine = calloc(ITEMS, sizeof *mine);
    pthread_t waker;
    (void)shared;
    if (!CHECK_OK(expar_calloc(group, ITEMS, sizeof *block, (void **)&block))) return;
    CHECK_OK(expar_barrier_all(group));
    for (size_t i = 0; i < sizeof operations / sizeof operations[0] && !check_failures(); i++) {
        if (group->rank == STOPPED) {
            raise(SIGSTOP);
        } else {
            await_stop(group);
            if (pthread_create(&waker, NULL, wake_later, group)) abort();
            set_timeout(group, SHORT_MS);
            CHECK_OK(operations[i](group, block, mine));
            set_timeout(group, RANKS_TIMEOUT_MS);
            pthread_join(waker, NULL);
        }
        CHECK_OK(expar_group_barrier(group));
    }
    CHECK_OK(expar_free(group, block));
    free(mine);
}

static void a_rank_that_stands_still_is_waited_for(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    kind_run((ranks_plan){0}, RANKS, wait_for_stopped);
}

static void so_it_is_by_the_proxy(void **state)
{
    (void)state;
    if (kind_of_ranks == RANKS_THREADS) skip();
    setenv("EXPAR_PROXY", "1", 1);
    kind_run((ranks_plan){0}, RANKS, wait_for_stopped);
    unsetenv("EXPAR_PROXY");
}

/* ---- what is told of a long wait --------------------------------------------------------------------------------- */

static _Thread_local char told[700];

static void take_line(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)rank;
    if (level == EXPAR_LOG_WARN && strstr(place, "shmem/silence.c")) snprintf(told, sizeof told, "%s", text);
}

/* Asks as a transport does whose operation has waited for so long. */
static int64_t ask_after(const expar_group *group, int64_t waited_ns)
{
    const transport_site *site = &group->sym->site;
    told[0] = '\0';
    return site->patience(site->context, STOPPED, waited_ns);
}

/* Rank 1 answers on its line, so it is late, and the line says what can end the wait. */
static void hear_of_long_wait(expar_group *group, void *shared)
{
    const int64_t first_ns = knob(KNOB_SILENCE_LOG_NS);
    (void)shared;
    expar_log_set(take_line, NULL);
    if (group->rank != STOPPED) {
        CHECK(ask_after(group, first_ns / 2) > 0 && !told[0], "before its time: %s", told);
        group->boot->late_limit_ms = 0;
        CHECK(ask_after(group, first_ns) > 0, "rank 1 is given up");
        CHECK(strstr(told, "nothing has come over the network from rank 1, which is alive"), "\"%s\"", told);
        CHECK(strstr(told, "no limit ends it (EXPAR_LATE_LIMIT in seconds or the group's late_limit_ms sets one)"),
              "\"%s\"", told);
        group->boot->late_limit_ms = first_ns / 1000000 + 1;
        CHECK(ask_after(group, first_ns) > 0, "rank 1 is given up");
        CHECK(strstr(told, "the late limit (EXPAR_LATE_LIMIT, late_limit_ms) ends it"), "\"%s\"", told);
        CHECK(ask_after(group, 2 * first_ns) == 0 && !told[0], "the limit does not end it: %s", told);
        group->boot->late_limit_ms = RANKS_TIMEOUT_MS;
    }
    CHECK_OK(expar_group_barrier(group));
    expar_log_set(NULL, NULL);
}

static void a_long_wait_is_told(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, RANKS, hear_of_long_wait);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_stands_still_is_waited_for),
        cmocka_unit_test(so_it_is_by_the_proxy),
        cmocka_unit_test(a_long_wait_is_told),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
