/* SPDX-License-Identifier: Apache-2.0 */
/* A wait whose other ranks are played: what a rank that was in a circle leaves behind for those who await it there. */
#include "boot/notes.h"
#include "boot/unit.h"

#include <string.h>
#include <time.h>

enum { SIZE = 3, TIMEOUT_MS = 200 };

/* Rank 0, which is this one, waits for rank 1 in the first, that one for rank 2 in the second, that one for rank 0 in
   the third. */
static const boot_topic first = {.kind = BOOT_KIND_BUFFER, .object = 1, .number = 1},
                        second = {.kind = BOOT_KIND_BUFFER, .object = 2, .number = 1},
                        third = {.kind = BOOT_KIND_BUFFER, .object = 3, .number = 2},
                        earlier = {.kind = BOOT_KIND_BUFFER, .object = 3, .number = 1};

typedef struct played_boot {
    boot boot;
    boot_notes notes;
    int asked; /* times that rank 1 was asked about the first */
    bool late; /* it answers the first of these only, until it has left the circle */
} played_boot;

/* What rank 1 says of the first: that it waits; nothing, twice; that it has left. */
static void answer_first(played_boot *self, boot_answer *answer)
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

static void played_ask(boot *base, const boot_topic *topic, boot_answer *answers, int64_t wait_ns)
{
    played_boot *self = (played_boot *)base;
    const bool of_first = topic->object == first.object;
    (void)wait_ns;
    for (int32_t r = 0; r < SIZE; r++) {
        if (!answers[r].asked) continue;
        if (r == 1 && of_first) {
            answer_first(self, &answers[r]);
            continue;
        }
        /* Rank 2 is asked about the first by the way, and about the second in the chain. */
        answers[r].came = answers[r].waits = true;
        answers[r].topic = third;
        answers[r].rank = 0;
        answers[r].blamed = -1;
    }
}

static const boot_ops played_ops = {.name = "played", .ask = played_ask};

/* How rank 0 answers whoever asks it about the third once its own wait has failed. */
static expar_status left_behind(bool late)
{
    played_boot played = {.late = late};
    boot *self = &played.boot;
    boot_wait wait;
    boot_answer answer = {0};
    notes_init(&played.notes);
    self->ops = &played_ops;
    self->notes = &played.notes;
    self->size = SIZE;
    self->timeout_ms = TIMEOUT_MS;
    /* The thread that makes the calls on the third's buffer, too. */
    boot_note_call(self, &earlier, "expar_combine");
    boot_note_call(self, &first, "expar_dispatch");
    boot_wait_begin(&wait, self, &first, "dispatch");
    boot_wait_for(&wait, 1);
    expar_status status = EXPAR_OK;
    while (status == EXPAR_OK) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        status = boot_wait_look(&wait);
    }
    assert_int_equal(status, EXPAR_ERR_PEER);
    assert_int_equal(wait.verdict, BOOT_WILL_NOT_COME);
    boot_wait_end(&wait);
    notes_read(&played.notes, &third, TIMEOUT_MS, &answer);
    notes_destroy(&played.notes);
    return answer.ended;
}

static void who_leaves_a_circle_says_so(void **state)
{
    (void)state;
    assert_int_equal(left_behind(false), EXPAR_ERR_PEER);
}

static void late_answers_undo_no_circle(void **state)
{
    (void)state;
    assert_int_equal(left_behind(true), EXPAR_ERR_PEER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_leaves_a_circle_says_so),
        cmocka_unit_test(late_answers_undo_no_circle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
