/* SPDX-License-Identifier: Apache-2.0 */
/* A wait whose other ranks are simulated. It shows which waits are a circle and which are not. It also shows the word
   that a rank of a circle leaves for the ranks that await it there. */
#include "boot/registry.h"
#include "boot/unit.h"

#include <string.h>
#include <time.h>

enum { SIZE = 3, TIMEOUT_MS = 200 };

/* Rank 0, which is this one, waits for rank 1 in the first, that one for rank 2 in the second, that one for rank 0 in
   the third. */
static const boot_topic first = {.kind = BOOT_KIND_BUFFER, .object = 1, .number = 1},
                        second = {.kind = BOOT_KIND_BUFFER, .object = 2, .number = 1},
                        third = {.kind = BOOT_KIND_BUFFER, .object = 3, .number = 2},
                        earlier = {.kind = BOOT_KIND_BUFFER, .object = 3, .number = 1},
                        ending = {.kind = BOOT_KIND_END, .object = 1};

typedef struct simulated_boot simulated_boot;

struct simulated_boot {
    boot boot;
    boot_registry registry;
    /* The answer of rank about the topic. */
    void (*answer)(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer);
    int asked;              /* times that rank 1 was asked about the first */
    bool late;              /* it answers the first of these only, until it has left the circle */
    const boot_topic *last; /* where rank 2 awaits rank 0 */
    bool tolerant;          /* rank 0's wait */
};

static void simulated_ask(boot *base, const boot_topic *topic, boot_answer *answers, int64_t wait_ns)
{
    simulated_boot *self = (simulated_boot *)base;
    (void)wait_ns;
    for (int32_t r = 0; r < SIZE; r++)
        if (answers[r].asked) self->answer(self, topic, r, &answers[r]);
}

static const boot_ops simulated_ops = {.name = "played", .ask = simulated_ask};

/* Rank 0, whose thread has made the calls on the third's buffer, too. */
static void begin_trial(simulated_boot *simulated)
{
    boot *self = &simulated->boot;
    registry_init(&simulated->registry);
    self->ops = &simulated_ops;
    self->registry = &simulated->registry;
    self->size = SIZE;
    self->timeout_ms = TIMEOUT_MS;
    boot_note_call(self, &earlier, "expar_ep_combine");
    boot_note_call(self, &first, "expar_ep_dispatch");
}

static void look_until_it_fails(boot_wait *wait)
{
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        status = boot_wait_look(wait);
    }
    assert_int_equal(status, EXPAR_ERR_PEER);
}

/* ---- leaving a circle -------------------------------------------------------------------------------------------- */

/* The answers of rank 1 about the first: that it waits; nothing, twice; that it has left. */
static void answer_first(simulated_boot *self, boot_answer *answer)
{
    const int time = self->asked++;
    answer->came = time == 0 || time == 3 || !self->late;
    answer->silent_ns = answer->came ? 0 : 1;
    answer->waits = time < 3;
    answer->topic = second;
    answer->rank = answer->waits ? 2 : -1;
    answer->blamed = -1;
    if (answer->waits) return;
    answer->ended = EXPAR_ERR_PEER;
    strcpy(answer->reason, "a deadlock");
}

/* Rank 2 is asked about the first by the way, and about the second in the chain. */
static void answer_in_circle(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer)
{
    if (rank == 1 && topic->object == first.object) {
        answer_first(self, answer);
        return;
    }
    answer->came = answer->waits = true;
    answer->topic = *self->last;
    answer->rank = 0;
    answer->blamed = -1;
}

/* Rank 1 has left before rank 0 asks, and says for whom it had waited. */
static void answer_after_circle(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer)
{
    self->asked = 3;
    answer_in_circle(self, topic, rank, answer);
    if (rank == 1) answer->rank = 2;
}

/* Rank 0's answer about the last of the circle, once its own wait has failed. */
static expar_status trial_circle(simulated_boot *simulated)
{
    boot_wait wait;
    boot_answer answer = {0};
    begin_trial(simulated);
    boot_wait_begin(&wait, &simulated->boot, &first, "dispatch");
    wait.tolerant = simulated->tolerant;
    boot_wait_for(&wait, 1);
    look_until_it_fails(&wait);
    assert_int_equal(wait.verdict, BOOT_WILL_NOT_COME);
    boot_wait_end(&wait);
    registry_read(&simulated->registry, simulated->last, TIMEOUT_MS, &answer);
    registry_destroy(&simulated->registry);
    if (answer.ended != EXPAR_OK) { /* and so a rank that awaits rank 0 finds the circle, too */
        assert_int_equal(answer.rank, 1);
        assert_int_equal(answer.topic.object, first.object);
    }
    return answer.ended;
}

static expar_status left_behind(const boot_topic *last, bool late)
{
    simulated_boot simulated = {.answer = answer_in_circle, .late = late, .last = last};
    return trial_circle(&simulated);
}

static void who_leaves_a_circle_says_so(void **state)
{
    (void)state;
    assert_int_equal(left_behind(&third, false), EXPAR_ERR_PEER);
}

static void late_answers_undo_no_circle(void **state)
{
    (void)state;
    assert_int_equal(left_behind(&third, true), EXPAR_ERR_PEER);
}

/* Otherwise a rank that awaits rank 0, and has not seen the circle either, waits for ever. */
static void a_circle_is_found_after_who_has_left_it(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_after_circle, .last = &third};
    assert_int_equal(trial_circle(&simulated), EXPAR_ERR_PEER);
    simulated = (simulated_boot){.answer = answer_after_circle, .last = &ending};
    assert_int_equal(trial_circle(&simulated), EXPAR_OK);
}

/* The rank comes there next. */
static void who_leaves_a_circle_comes_to_the_end(void **state)
{
    (void)state;
    assert_int_equal(left_behind(&ending, false), EXPAR_OK);
    assert_int_equal(left_behind(&ending, true), EXPAR_OK);
}

/* It goes on without rank 1, and then comes to where rank 2 awaits it. */
static void who_tolerates_a_circle_comes_after_all(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_in_circle, .last = &third, .tolerant = true};
    assert_int_equal(trial_circle(&simulated), EXPAR_OK);
}

/* ---- ranks of one call that await each other --------------------------------------------------------------------- */

static bool all_are_missed(const void *context, int32_t rank)
{
    (void)context;
    return rank != 0;
}

/* Rank 1 is in the first as rank 0 is, and has looked in vain there for rank 0, for as long. */
static void wait_in_first(boot_answer *answer)
{
    *answer = (boot_answer){.asked = true, .came = true, .waits = true, .rank = 0, .topic = first, .blamed = -1};
    answer->waited_ns = INT64_MAX;
    strcpy(answer->doing, "in the first");
}

static void answer_where_rank_2_computes(simulated_boot *self, const boot_topic *topic, int32_t rank,
                                         boot_answer *answer)
{
    (void)self;
    (void)topic;
    wait_in_first(answer);
    if (rank == 2) *answer = (boot_answer){.asked = true, .came = true, .rank = -1, .blamed = -1};
}

static void answer_where_rank_2_is_in_third(simulated_boot *self, const boot_topic *topic, int32_t rank,
                                            boot_answer *answer)
{
    (void)self;
    (void)topic;
    wait_in_first(answer);
    if (rank == 2) answer->topic = third;
}

static void answer_where_all_are_in_first(simulated_boot *self, const boot_topic *topic, int32_t rank,
                                          boot_answer *answer)
{
    (void)self;
    (void)topic;
    (void)rank;
    wait_in_first(answer);
}

/* The error that ends rank 0's wait for both others, or for rank 1 alone. */
static boot_verdict verdict_on(bool both, void (*answer)(simulated_boot *, const boot_topic *, int32_t, boot_answer *),
                               int32_t *culprit)
{
    simulated_boot simulated = {.answer = answer};
    boot_wait wait;
    begin_trial(&simulated);
    simulated.boot.late_limit_ms = 3 * TIMEOUT_MS;
    boot_wait_begin(&wait, &simulated.boot, &first, "dispatch");
    if (both) wait.misses = all_are_missed;
    if (!both) boot_wait_for(&wait, 1);
    look_until_it_fails(&wait);
    boot_wait_end(&wait);
    registry_destroy(&simulated.registry);
    *culprit = wait.culprit;
    return wait.verdict;
}

static void ranks_of_one_call_are_no_circle(void **state)
{
    (void)state;
    int32_t culprit;
    assert_int_equal(verdict_on(true, answer_where_all_are_in_first, &culprit), BOOT_LATE);
    assert_int_equal(verdict_on(true, answer_where_rank_2_computes, &culprit), BOOT_LATE);
    assert_int_equal(culprit, 2);
}

/* Though the first who is missed waits in this rank's own call. */
static void a_circle_after_them_is_found(void **state)
{
    (void)state;
    int32_t culprit;
    assert_int_equal(verdict_on(true, answer_where_rank_2_is_in_third, &culprit), BOOT_DEADLOCK);
    assert_int_equal(culprit, 2);
}

/* As with two roots of one collective. */
static void ranks_that_await_one_each_are_a_circle(void **state)
{
    (void)state;
    int32_t culprit;
    assert_int_equal(verdict_on(false, answer_where_all_are_in_first, &culprit), BOOT_DEADLOCK);
    assert_int_equal(culprit, 1);
}

/* ---- who is not missed any more ---------------------------------------------------------------------------------- */

static bool rank_1_is_missed(const void *context, int32_t rank)
{
    (void)context;
    return rank == 1;
}

static void answer_where_rank_2_has_left(simulated_boot *self, const boot_topic *topic, int32_t rank,
                                         boot_answer *answer)
{
    (void)self;
    (void)topic;
    wait_in_first(answer);
    answer->rank = 2;
    if (rank != 2) return;
    *answer = (boot_answer){.asked = true, .came = true, .rank = -1, .blamed = -1, .ended = EXPAR_ERR_PEER};
    strcpy(answer->reason, "it has abandoned the buffer");
}

/* Rank 0 goes on without rank 2 already, and rank 1 will: it is late, and not lost with that one. */
static void who_awaits_one_that_is_not_missed_is_not_lost(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_rank_2_has_left};
    boot_wait wait;
    begin_trial(&simulated);
    simulated.boot.late_limit_ms = 3 * TIMEOUT_MS;
    boot_wait_begin(&wait, &simulated.boot, &first, "clean");
    wait.misses = rank_1_is_missed;
    wait.missed_alone = true;
    look_until_it_fails(&wait);
    boot_wait_end(&wait);
    registry_destroy(&simulated.registry);
    assert_int_equal(wait.verdict, BOOT_LATE);
}

/* ---- a limit of a wait's own ------------------------------------------------------------------------------------- */

/* Ranks 1 and 2 are missed, and wait for nobody; rank 1 has come by the questions after the limit, or never comes. */
typedef struct absence {
    simulated_boot simulated;
    boot_wait wait;
    bool comes, came;
    bool held; /* this process was held up from before the limit until after all of it was over */
} absence;

static bool is_absent(const void *context, int32_t rank)
{
    return rank == 2 || (rank == 1 && !((const absence *)context)->came);
}

static void answer_elsewhere(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer)
{
    absence *both = (absence *)self;
    (void)topic;
    *answer = (boot_answer){.asked = true, .came = true, .rank = -1, .blamed = -1};
    const int64_t waited_ms = registry_looked_for_ns(&both->wait) / 1000000;
    if (rank != 2 || !both->comes || both->came || waited_ms < TIMEOUT_MS) return;
    both->came = true;
    both->held = waited_ms >= TIMEOUT_MS + TIMEOUT_MS / 2;
}

/* Bits of the ranks that the wait has found late. */
static int who_is_late(absence *both, int64_t *waited_ms)
{
    begin_trial(&both->simulated);
    boot_wait_begin(&both->wait, &both->simulated.boot, &first, "dispatch");
    both->wait.misses = is_absent;
    both->wait.context = both;
    both->wait.missed_alone = both->wait.tolerant = true;
    both->wait.late_limit_ms = TIMEOUT_MS;
    look_until_it_fails(&both->wait);
    assert_int_equal(both->wait.verdict, BOOT_LATE);
    assert_non_null(both->wait.silent);
    const int late = both->wait.silent[1] << 1 | both->wait.silent[2] << 2;
    *waited_ms = registry_looked_for_ns(&both->wait) / 1000000;
    boot_wait_end(&both->wait);
    registry_destroy(&both->simulated.registry);
    return late;
}

/* Rank 1 may have waited for rank 2 until then: it has half of the limit more. */
static void who_is_on_the_way_is_not_late(void **state)
{
    (void)state;
    absence both;
    int64_t waited_ms;
    int late;
    do {
        both = (absence){.simulated = {.answer = answer_elsewhere}, .comes = true};
        late = who_is_late(&both, &waited_ms);
    } while (both.held);
    assert_int_equal(late, 1 << 2);
    assert_true(both.came && waited_ms >= TIMEOUT_MS);
}

static void all_who_stay_away_are_late(void **state)
{
    (void)state;
    absence both = {.simulated = {.answer = answer_elsewhere}};
    int64_t waited_ms;
    assert_int_equal(who_is_late(&both, &waited_ms), 1 << 1 | 1 << 2);
    assert_true(waited_ms >= TIMEOUT_MS + TIMEOUT_MS / 2);
}

/* ---- what comes while others are asked --------------------------------------------------------------------------- */

/* Rank 1 tells what rank 0 waits for, if it does, and then that it does not come any more. */
typedef struct last_word {
    simulated_boot simulated;
    bool tells, told;
} last_word;

static bool has_been_told(const void *context)
{
    return ((const last_word *)context)->told;
}

static void answer_and_leave(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer)
{
    last_word *last = (last_word *)self;
    (void)topic;
    *answer = (boot_answer){.asked = true, .came = true, .rank = -1, .blamed = -1};
    if (rank != 1) return;
    last->told = last->tells;
    answer->ended = EXPAR_ERR_ABORTED;
    strcpy(answer->reason, "interrupted");
}

/* How it goes on once rank 1 has been asked. */
static expar_status await_last_word(last_word *last, boot_wait *wait)
{
    boot_answer own;
    expar_status status = EXPAR_OK;
    begin_trial(&last->simulated);
    boot_wait_begin(wait, &last->simulated.boot, &first, "barrier");
    boot_wait_for(wait, 1);
    wait->has_come = has_been_told;
    wait->context = last;
    while (status == EXPAR_OK && !last->told) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        status = boot_wait_look(wait);
    }
    boot_wait_end(wait);
    registry_read(&last->simulated.registry, &first, TIMEOUT_MS, &own);
    registry_destroy(&last->simulated.registry);
    assert_int_equal(own.ended, status); /* nobody is told of a failure that was none */
    return status;
}

static void what_came_before_an_end_counts(void **state)
{
    (void)state;
    boot_wait wait;
    last_word tells = {.simulated = {.answer = answer_and_leave}, .tells = true};
    last_word does_not = {.simulated = {.answer = answer_and_leave}};
    assert_int_equal(await_last_word(&tells, &wait), EXPAR_OK);
    assert_int_equal(wait.verdict, BOOT_GOES_ON);
    assert_int_equal(wait.culprit, -1);
    assert_int_equal(await_last_word(&does_not, &wait), EXPAR_ERR_PEER);
    assert_int_equal(wait.verdict, BOOT_WILL_NOT_COME);
    assert_int_equal(wait.culprit, 1);
}

/* ---- who is held up ---------------------------------------------------------------------------------------------- */

static void hold_up(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * TIMEOUT_MS * 1000000}, NULL);
}

/* Between its look and the question, where what it waits for may have come since: it is to look once more. */
static void who_is_held_up_looks_again(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_all_are_in_first};
    boot_wait wait;
    begin_trial(&simulated);
    simulated.boot.late_limit_ms = TIMEOUT_MS;
    boot_wait_begin(&wait, &simulated.boot, &first, "dispatch");
    boot_wait_for(&wait, 1);
    assert_int_equal(boot_wait_look(&wait), EXPAR_OK);
    hold_up();
    assert_int_equal(boot_wait_look(&wait), EXPAR_OK);
    assert_int_equal(boot_wait_look(&wait), EXPAR_ERR_PEER); /* in vain */
    boot_wait_end(&wait);
    registry_destroy(&simulated.registry);
}

static void others_are_not_told_of_more_than_its_look(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_all_are_in_first};
    boot_wait wait;
    boot_answer answer = {0};
    begin_trial(&simulated);
    boot_wait_begin(&wait, &simulated.boot, &first, "dispatch");
    boot_wait_for(&wait, 1);
    assert_int_equal(boot_wait_look(&wait), EXPAR_OK);
    hold_up();
    assert_int_equal(boot_wait_look(&wait), EXPAR_OK);
    registry_read(&simulated.registry, &first, TIMEOUT_MS, &answer);
    assert_true(answer.waits && answer.waited_ns == 0);
    boot_wait_end(&wait);
    registry_destroy(&simulated.registry);
}

/* The first it asks has gone on by the time that the last answers. */
static void answer_slowly(simulated_boot *self, const boot_topic *topic, int32_t rank, boot_answer *answer)
{
    answer_where_rank_2_is_in_third(self, topic, rank, answer);
    if (rank == 2) nanosleep(&(struct timespec){.tv_nsec = TIMEOUT_MS / 2 * 1000000}, NULL);
}

static void a_circle_is_walked_at_once(void **state)
{
    (void)state;
    int32_t culprit;
    assert_int_equal(verdict_on(true, answer_slowly, &culprit), BOOT_LATE);
}

/* ---- between a failed wait and the record of its call ------------------------------------------------------------ */

static void fail_late(simulated_boot *simulated, boot_wait *wait)
{
    begin_trial(simulated);
    simulated->boot.late_limit_ms = 1;
    boot_wait_begin(wait, &simulated->boot, &first, "dispatch");
    wait->misses = all_are_missed;
    look_until_it_fails(wait);
    assert_int_equal(wait->verdict, BOOT_LATE);
    boot_wait_end(wait);
}

/* Or others, whose limits end in that moment, would take this rank for the late one. */
static void who_has_given_up_is_not_late(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_rank_2_computes};
    boot_wait wait;
    boot_answer answer = {0};
    fail_late(&simulated, &wait);
    registry_read(&simulated.registry, &first, TIMEOUT_MS, &answer);
    assert_int_equal(answer.ended, EXPAR_ERR_PEER);
    assert_int_equal(answer.blamed, 2);
    assert_non_null(strstr(answer.reason, "rank 2"));
    registry_destroy(&simulated.registry);
}

/* A second failed wait takes nothing away from that, either. */
static void what_the_call_registry_comes_in_its_place(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_rank_2_computes};
    boot_wait wait;
    boot_answer answer = {0};
    fail_late(&simulated, &wait);
    boot_note_ended(&simulated.boot, &first, EXPAR_ERR_ABORTED, "expar_ep_dispatch: dispatch: given up");
    registry_failed(&simulated.registry, &wait, EXPAR_ERR_PEER, "dispatch");
    registry_read(&simulated.registry, &first, TIMEOUT_MS, &answer);
    assert_int_equal(answer.ended, EXPAR_ERR_ABORTED);
    assert_string_equal(answer.reason, "expar_ep_dispatch: dispatch: given up");
    assert_int_equal(answer.blamed, 2);
    registry_destroy(&simulated.registry);
}

/* ---- who is out of step ------------------------------------------------------------------------------------------ */

static expar_status told_of(boot_kind ended, boot_kind asked)
{
    const boot_topic all = {.kind = (uint16_t)ended}, topic = {.kind = (uint16_t)asked, .object = 1, .number = 1};
    simulated_boot simulated = {.answer = answer_where_all_are_in_first};
    boot_answer answer = {0};
    begin_trial(&simulated);
    boot_note_ended(&simulated.boot, &all, EXPAR_ERR_PEER, "rank 2 died");
    registry_read(&simulated.registry, &topic, TIMEOUT_MS, &answer);
    registry_destroy(&simulated.registry);
    return answer.ended;
}

/* A wait for words does not end because somebody comes to no collective any more: it puts as before. */
static void who_meets_nobody_still_changes_words(void **state)
{
    (void)state;
    assert_int_equal(told_of(BOOT_KIND_MEETINGS, BOOT_KIND_CONTROL), EXPAR_ERR_PEER);
    assert_int_equal(told_of(BOOT_KIND_MEETINGS, BOOT_KIND_LOW_LATENCY), EXPAR_ERR_PEER);
    assert_int_equal(told_of(BOOT_KIND_MEETINGS, BOOT_KIND_NONE), EXPAR_OK);
    assert_int_equal(told_of(BOOT_KIND_ALL, BOOT_KIND_NONE), EXPAR_ERR_PEER);
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

static void assert_described(boot *self, boot_kind kind, uint64_t number, const char *expected)
{
    const boot_topic topic = {.kind = (uint16_t)kind, .object = 3, .number = number};
    boot_wait wait;
    char text[BOOT_DOING_TEXT];
    boot_wait_begin(&wait, self, &topic, "rows");
    registry_describe(self->registry, &wait, text, sizeof text);
    boot_wait_end(&wait);
    assert_string_equal(text, expected);
}

/* Replays and kernels of low-latency mode are not counted, and so their texts have no number. */
static void only_counted_calls_have_a_number(void **state)
{
    (void)state;
    simulated_boot simulated = {.answer = answer_where_all_are_in_first};
    begin_trial(&simulated);
    boot *self = &simulated.boot;
    assert_described(self, BOOT_KIND_BUFFER, 7, "in expar_ep_combine: rows (call 7 on buffer 3), waiting");
    assert_described(self, BOOT_KIND_LOW_LATENCY, 14, "in expar_ep_dispatch: rows (call 7 on buffer 3), waiting");
    assert_described(self, BOOT_KIND_BUFFER, boot_graph_number(self, BOOT_KIND_BUFFER, 3),
                     "in expar_ep_combine: rows (buffer 3), waiting");
    assert_described(self, BOOT_KIND_LOW_LATENCY, boot_graph_number(self, BOOT_KIND_LOW_LATENCY, 3),
                     "in expar_ep_dispatch: rows (buffer 3), waiting");
    registry_destroy(&simulated.registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_call_are_no_circle),
        cmocka_unit_test(a_circle_after_them_is_found),
        cmocka_unit_test(ranks_that_await_one_each_are_a_circle),
        cmocka_unit_test(who_leaves_a_circle_says_so),
        cmocka_unit_test(late_answers_undo_no_circle),
        cmocka_unit_test(a_circle_is_found_after_who_has_left_it),
        cmocka_unit_test(who_leaves_a_circle_comes_to_the_end),
        cmocka_unit_test(who_tolerates_a_circle_comes_after_all),
        cmocka_unit_test(who_awaits_one_that_is_not_missed_is_not_lost),
        cmocka_unit_test(who_is_on_the_way_is_not_late),
        cmocka_unit_test(all_who_stay_away_are_late),
        cmocka_unit_test(what_came_before_an_end_counts),
        cmocka_unit_test(who_is_held_up_looks_again),
        cmocka_unit_test(others_are_not_told_of_more_than_its_look),
        cmocka_unit_test(a_circle_is_walked_at_once),
        cmocka_unit_test(who_has_given_up_is_not_late),
        cmocka_unit_test(what_the_call_registry_comes_in_its_place),
        cmocka_unit_test(who_meets_nobody_still_changes_words),
        cmocka_unit_test(only_counted_calls_have_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
