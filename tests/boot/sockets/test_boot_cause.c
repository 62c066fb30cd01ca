/* SPDX-License-Identifier: Apache-2.0 */
/* The first cause is named. A rank dies or falls silent, and another one that knows goes because of it. A third one, to
 * which the first one's sockets still seem open, names that one all the same.
 *
 * Those of a dead rank seem open because a child of it holds them, as the kernel may: it closes them one by one. */
#include "boot/crew.h"
#include "boot/sockets/ask.h"
#include "boot/sockets/sockets.h"
#include "boot/unit.h"
#include "boot/wire/wire.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LATE, EARLY, VICTIM, SIZE };
#define DEADLINE_NS ((int64_t)30 * 1000 * 1000 * 1000)

/* How the early one learns of it, how it goes, and how the late one learns. */
typedef struct trial {
    bool early_watches; /* else it is in a collective */
    bool says_bye;      /* else its process just ends */
    bool late_watches;
    expar_unique_id id;
} trial;

/* Whom the monitor has reported, in order. */
typedef struct gone_list {
    atomic_int count;
    int32_t ranks[SIZE];
    bool clean[SIZE];
} gone_list;

static void note_gone(void *context, int32_t rank, bool clean)
{
    gone_list *list = context;
    int count = atomic_load(&list->count);
    list->ranks[count] = rank;
    list->clean[count] = clean;
    atomic_store(&list->count, count + 1);
}

static bool await_gone(const gone_list *list, int count)
{
    int64_t deadline_ns = clock_ns() + DEADLINE_NS;
    while (atomic_load(&list->count) < count && clock_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(&list->count) >= count;
}

/* Set by the late one when it has seen what it had to; in memory that all share. */
static atomic_bool *seen;

/* Dies, and leaves behind who holds its sockets to the late one. */
static void die_slowly(const boot *group)
{
    const boot_sockets *sockets = (const boot_sockets *)group;
    int64_t deadline_ns = clock_ns() + DEADLINE_NS;
    if (fork() != 0) raise(SIGKILL);
    close(sockets->fds[EARLY]);
    close(sockets->lines[EARLY]);
    while (!atomic_load(seen) && clock_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    _exit(0);
}

static expar_status go_early(boot *group, const trial *self)
{
    gone_list list = {0};
    if (self->early_watches) {
        BODY_OK(group->ops->watch(group, note_gone, &list));
        BODY_CHECK(await_gone(&list, 1) && list.ranks[0] == VICTIM && !list.clean[0]);
    } else {
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
        BODY_CHECK(strstr(expar_last_error(), "rank 2 (pid ") && strstr(expar_last_error(), "died"));
    }
    if (self->says_bye) group->ops->leave(group, false);
    return EXPAR_OK;
}

static expar_status come_late(boot *group, const trial *self)
{
    gone_list list = {0};
    if (self->late_watches) {
        BODY_OK(group->ops->watch(group, note_gone, &list));
        BODY_CHECK(await_gone(&list, 2));
        BODY_CHECK(list.ranks[0] == VICTIM && !list.clean[0]);
        BODY_CHECK(list.ranks[1] == EARLY && list.clean[1] == self->says_bye);
    } else {
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
        BODY_CHECK(strstr(expar_last_error(), "rank 2 (pid ") && strstr(expar_last_error(), "died"));
        BODY_CHECK(!strstr(expar_last_error(), "rank 1"));
    }
    atomic_store(seen, true);
    group->ops->leave(group, false);
    /* Reported once, whatever its own sockets say later. */
    BODY_CHECK(!self->late_watches || atomic_load(&list.count) == 2);
    return EXPAR_OK;
}

static expar_status trial_rank(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    boot_request request = crew_request(&self->id, rank, SIZE);
    BODY_OK(boot_join_sockets(&request, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == VICTIM) die_slowly(group);
    return rank == EARLY ? go_early(group, self) : come_late(group, self);
}

static void run(trial self)
{
    crew ranks;
    print_message("early %s and %s, late %s\n", self.early_watches ? "watches" : "is in a collective",
                  self.says_bye ? "says good-bye" : "ends", self.late_watches ? "watches" : "is in a collective");
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    atomic_store(seen, false);
    crew_start(&ranks, SIZE, trial_rank, &self);
    crew_finish(&ranks);
    crew_assert_error(&ranks, LATE, EXPAR_OK, "");
    crew_assert_error(&ranks, EARLY, EXPAR_OK, "");
    assert_true(WIFSIGNALED(ranks.outcomes[VICTIM].wait_status));
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
}

static void named_to_a_monitor(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        run((trial){.early_watches = i & 1, .says_bye = i & 2, .late_watches = true});
}

static void named_in_a_collective(void **state)
{
    (void)state;
    run((trial){.early_watches = true, .says_bye = true});
    run((trial){.early_watches = true});
}

/* ---- a silence --------------------------------------------------------------------------------------------------- */

/* Stands still in all that others can see of it, but for the answers of its monitor, for which nobody asks. */
static expar_status stand_still(boot *group)
{
    const int64_t deadline_ns = clock_ns() + DEADLINE_NS;
    while (!atomic_load(seen) && clock_ns() < deadline_ns)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static expar_status give_up_early(boot *group, const trial *self)
{
    boot_note_blamed(group, VICTIM);
    boot_note_blamed(group, LATE); /* a second one explains nothing */
    if (!self->says_bye) _exit(0);
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static expar_status learn_late(boot *group, const trial *self)
{
    gone_list list = {0};
    bool clean;
    if (self->late_watches) {
        BODY_OK(group->ops->watch(group, note_gone, &list));
        BODY_CHECK(await_gone(&list, 1));
        BODY_CHECK(list.ranks[0] == EARLY && list.clean[0] == self->says_bye);
    } else {
        const char *how = self->says_bye ? "has left the group" : "died";
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_PEER);
        BODY_CHECK(strstr(expar_last_error(), "rank 2 fell silent, and rank 1 (pid "));
        BODY_CHECK(strstr(expar_last_error(), how));
        /* A rank that goes because of that says so in turn. */
        BODY_CHECK(registry_blamed(group->registry) == VICTIM);
    }
    BODY_CHECK(group->ops->blame_of(group, EARLY) == VICTIM);
    BODY_CHECK(group->ops->blame_of(group, VICTIM) == -1);
    BODY_CHECK(!self->late_watches || (group->ops->first_gone(group, &clean) == EARLY && clean == self->says_bye));
    atomic_store(seen, true);
    group->ops->leave(group, false);
    return EXPAR_OK;
}

static expar_status trial_silence(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    boot_request request = crew_request(&self->id, rank, SIZE);
    BODY_OK(boot_join_sockets(&request, &group));
    BODY_OK(group->ops->barrier(group));
    if (rank == VICTIM) return stand_still(group);
    return rank == EARLY ? give_up_early(group, self) : learn_late(group, self);
}

static void a_silence_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        trial self = {.says_bye = i & 1, .late_watches = i & 2};
        crew ranks;
        print_message("early %s, late %s\n", self.says_bye ? "says good-bye" : "ends",
                      self.late_watches ? "watches" : "is in a collective");
        assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
        atomic_store(seen, false);
        crew_start(&ranks, SIZE, trial_silence, &self);
        crew_finish(&ranks);
        crew_assert_error(&ranks, LATE, EXPAR_OK, "");
        crew_assert_error(&ranks, VICTIM, EXPAR_OK, "");
        if (self.says_bye) crew_assert_error(&ranks, EARLY, EXPAR_OK, "");
        assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
    }
}

/* ---- one rank's asker -------------------------------------------------------------------------------------------- */

#define ASKERS 4

/* Rank 0's asker, with the other ends of its lines. */
typedef struct office {
    int lines[ASKERS], ends[ASKERS];
    boot_registry registry;
    boot boot;
    asker *asker;
} office;

static int office_open(void **state)
{
    static office self;
    self = (office){.lines = {-1}, .ends = {-1}};
    for (int32_t peer = 1; peer < ASKERS; peer++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return 1;
        self.lines[peer] = pair[0];
        self.ends[peer] = pair[1];
    }
    *state = &self;
    registry_init(&self.registry);
    self.boot = (boot){.size = ASKERS, .registry = &self.registry, .timeout_ms = 1000};
    return ask_open(&self.boot, self.lines, &self.asker) != EXPAR_OK;
}

static int office_close(void **state)
{
    office *self = *state;
    ask_close(self->asker);
    registry_destroy(&self->registry);
    for (int32_t peer = 1; peer < ASKERS; peer++) {
        wire_close(&self->lines[peer]);
        wire_close(&self->ends[peer]);
    }
    return 0;
}

static void say(const office *self, int32_t peer, int32_t dead)
{
    const ask_record record = {.mark = ASK_MARK | ASK_DEATH, .rank = dead, .blamed = -1};
    size_t moved = 0;
    assert_int_equal(wire_push(self->ends[peer], &record, sizeof record, &moved), WIRE_DONE);
}

/* A peer learns this: one death, or with -1 nothing. */
static void assert_hears(const office *self, int32_t peer, int32_t dead)
{
    ask_record came;
    size_t moved = 0;
    if (dead >= 0) {
        assert_int_equal(wire_pull(self->ends[peer], &came, sizeof came, &moved), WIRE_DONE);
        assert_int_equal(came.mark, ASK_MARK | ASK_DEATH);
        assert_int_equal(came.rank, dead);
        moved = 0;
    }
    assert_int_equal(wire_pull(self->ends[peer], &came, sizeof came, &moved), WIRE_AGAIN);
}

static void a_death_is_passed_on_once(void **state)
{
    const office *self = *state;
    assert_int_equal(ask_first_death(self->asker), -1);
    say(self, 1, 3);
    say(self, 2, 1);
    assert_true(ask_hear(self->asker, 1));
    assert_true(ask_hear(self->asker, 2));
    assert_int_equal(ask_first_death(self->asker), 3);
    /* One that is seen later is none to tell of. */
    assert_int_equal(ask_tell_death(self->asker, 2), 3);
    for (int32_t peer = 1; peer < ASKERS; peer++)
        assert_hears(self, peer, 3);
}

static void a_death_that_is_seen_is_told(void **state)
{
    const office *self = *state;
    assert_int_equal(ask_tell_death(self->asker, 2), 2);
    say(self, 1, 3);
    assert_true(ask_hear(self->asker, 1));
    assert_int_equal(ask_first_death(self->asker), 2);
    for (int32_t peer = 1; peer < ASKERS; peer++)
        assert_hears(self, peer, 2);
}

/* This rank knows better than to believe in its own. */
static void ones_own_death_is_no_news(void **state)
{
    const office *self = *state;
    say(self, 1, 0);
    assert_true(ask_hear(self->asker, 1));
    assert_int_equal(ask_first_death(self->asker), -1);
    for (int32_t peer = 1; peer < ASKERS; peer++)
        assert_hears(self, peer, -1);
}

/* The first one counts. Nobody is gone because of this rank, which knows better, or of itself. */
static void a_blame_is_kept(void **state)
{
    office *self = *state;
    ask_record blame = {.mark = ASK_MARK | ASK_BLAME, .blamed = -1};
    const int32_t said[ASKERS][2] = {{0}, {3, 2}, {0, 3}, {3, 1}}, kept[ASKERS] = {-1, 3, 3, 1};
    for (int32_t peer = 1; peer < ASKERS; peer++) {
        assert_int_equal(ask_blame_of(self->asker, peer), -1);
        for (int i = 0; i < 2; i++) {
            size_t moved = 0;
            blame.rank = said[peer][i];
            assert_int_equal(wire_push(self->ends[peer], &blame, sizeof blame, &moved), WIRE_DONE);
        }
        assert_true(ask_hear(self->asker, peer));
        assert_int_equal(ask_blame_of(self->asker, peer), kept[peer]);
        assert_hears(self, peer, -1);
    }
    assert_int_equal(ask_first_death(self->asker), -1);
}

static void a_blame_is_told_to_all(void **state)
{
    const office *self = *state;
    ask_tell_blame(self->asker, 2);
    for (int32_t peer = 1; peer < ASKERS; peer++) {
        ask_record came;
        size_t moved = 0;
        assert_int_equal(wire_pull(self->ends[peer], &came, sizeof came, &moved), WIRE_DONE);
        assert_int_equal(came.mark, ASK_MARK | ASK_BLAME);
        assert_int_equal(came.rank, 2);
        assert_true(ask_record_check(&came, ASKERS));
    }
}

/* More than is taken at once lies before it. */
static void last_words_are_heard_out(void **state)
{
    office *self = *state;
    const ask_record question = {.mark = ASK_MARK | ASK_QUESTION, .rank = -1, .blamed = -1};
    for (int i = 0; i < 100; i++) {
        size_t moved = 0;
        assert_int_equal(wire_push(self->ends[1], &question, sizeof question, &moved), WIRE_DONE);
    }
    say(self, 1, 3);
    wire_close(&self->ends[1]);
    ask_hear_out(self->asker, 1, clock_ns() + DEADLINE_NS);
    assert_int_equal(ask_first_death(self->asker), 3);
    assert_false(ask_hear(self->asker, 1));
}

static int share_seen(void **state)
{
    (void)state;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED;
}

static int unshare_seen(void **state)
{
    (void)state;
    return munmap(seen, sizeof *seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_to_a_monitor),
        cmocka_unit_test(named_in_a_collective),
        cmocka_unit_test(a_silence_is_named),
        cmocka_unit_test_setup_teardown(a_death_is_passed_on_once, office_open, office_close),
        cmocka_unit_test_setup_teardown(a_death_that_is_seen_is_told, office_open, office_close),
        cmocka_unit_test_setup_teardown(ones_own_death_is_no_news, office_open, office_close),
        cmocka_unit_test_setup_teardown(a_blame_is_kept, office_open, office_close),
        cmocka_unit_test_setup_teardown(a_blame_is_told_to_all, office_open, office_close),
        cmocka_unit_test_setup_teardown(last_words_are_heard_out, office_open, office_close),
    };
    return cmocka_run_group_tests(tests, share_seen, unshare_seen);
}
