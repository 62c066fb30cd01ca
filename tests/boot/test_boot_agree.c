/* SPDX-License-Identifier: Apache-2.0 */
/* boot_agree: all ranks come to one end, whichever rank cannot go on, and each by its own words. Over sockets and
   threads. */
#include "boot/squad.h"
#include "boot/unit.h"

#include <stdio.h>
#include <string.h>

#define SIZE    4
#define LONG_MS 60000

/* This thread's next allocation by calloc fails. */
static _Thread_local bool poor;

/* The linker's names for --wrap. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    if (!poor) return __real_calloc(count, bytes);
    poor = false;
    return NULL;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static const boot_field same[] = {{.name = "the colour", .text = "red"}, {.name = "the number", .value = 5}};

static const boot_matter plain = {.what = "the test",
                                  .rejected = "refused its part",
                                  .common = EXPAR_ERR_MEMORY,
                                  .lacks = "has no room",
                                  .fields = same,
                                  .num_fields = ARRAY_LENGTH(same)};

/* The result of an agreement on this rank; the ranks stay in step. */
#define BODY_AGREES(group, matter, own, expected, expected_text)                                                       \
    do {                                                                                                               \
        bool missed = true;                                                                                            \
        expar_status agreed = boot_agree(group, matter, own, &missed);                                                 \
        if (agreed != (expected) || missed || (agreed != EXPAR_OK && strcmp(expar_last_error(), expected_text)))       \
            return error_set(EXPAR_ERR_STATE, "line %d: %s, %s", __LINE__, expar_status_string(agreed),                \
                             expar_last_error());                                                                      \
        BODY_OK((group)->ops->barrier(group));                                                                         \
    } while (0)

/* ---- the ends ---------------------------------------------------------------------------------------------------- */

static expar_status all_are_fine(boot *group, void *context)
{
    (void)context;
    int32_t all[SIZE], mine = 100 + group->rank;
    boot_matter matter = plain;
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_OK, "");
    matter.mine = &mine;
    matter.all = all;
    matter.bytes = sizeof mine;
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_OK, "");
    for (int32_t r = 0; r < group->size; r++)
        BODY_CHECK(all[r] == 100 + r);
    /* Payload alone, of an odd size, and nothing at all. */
    const char letter = (char)('a' + group->rank);
    char letters[SIZE] = "";
    matter = (boot_matter){.mine = &letter, .all = letters, .bytes = 1};
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_OK, "");
    BODY_CHECK(memcmp(letters, "abcd", (size_t)group->size) == 0);
    BODY_AGREES(group, &(boot_matter){0}, EXPAR_OK, EXPAR_OK, "");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

#define SHAPE_TOLD                                                                                                     \
    "rank 1 refused its part: EXPAR_ERR_SHAPE (a tensor has the wrong number of dimensions or extents): x of rank 1"

/* Rank 1, or ranks 1 and 3. Who refuses gets its own error, the others the lowest one's. */
static expar_status some_reject(boot *group, void *context)
{
    (void)context;
    int32_t all[SIZE] = {0};
    for (int32_t refusing = 1; refusing <= 2; refusing++) {
        const bool rejects = group->rank == 1 || (refusing == 2 && group->rank == 3);
        boot_matter matter = plain;
        matter.mine = &refusing;
        matter.all = all;
        matter.bytes = sizeof refusing;
        expar_status own = rejects ? error_set(EXPAR_ERR_SHAPE, "x of rank %d", group->rank) : EXPAR_OK;
        BODY_AGREES(group, &matter, own, rejects ? EXPAR_ERR_SHAPE : EXPAR_ERR_REMOTE,
                    group->rank == 1 ? "x of rank 1"
                    : rejects        ? "x of rank 3"
                                     : "the test: " SHAPE_TOLD);
        matter.what = NULL;
        own = rejects ? error_set(EXPAR_ERR_SHAPE, "x of rank %d", group->rank) : EXPAR_OK;
        BODY_AGREES(group, &matter, own, rejects ? EXPAR_ERR_SHAPE : EXPAR_ERR_REMOTE,
                    group->rank == 1 ? "x of rank 1"
                    : rejects        ? "x of rank 3"
                                     : SHAPE_TOLD);
        BODY_CHECK(all[0] == 0 && all[1] == 0);
    }
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* A reason without a text. */
static expar_status one_says_nothing(boot *group, void *context)
{
    (void)context;
    expar_status own = EXPAR_OK;
    if (group->rank == 2) own = error_set(EXPAR_ERR_NULL, "%s", "");
    BODY_AGREES(group, &plain, own, own ? own : EXPAR_ERR_REMOTE,
                own ? "" : "the test: rank 2 refused its part: EXPAR_ERR_NULL (a required pointer is NULL)");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static expar_status a_field_differs(boot *group, void *context)
{
    (void)context;
    boot_field fields[] = {same[0], same[1], {.name = "the hour", .value = 12}};
    boot_matter matter = plain;
    matter.fields = fields;
    matter.num_fields = ARRAY_LENGTH(fields);
    if (group->rank == 3) fields[2].value = UINT64_MAX - 1;
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_ERR_MISMATCH,
                "the test: the hour is 18446744073709551614 on rank 3 and 12 on rank 0; expected the same");
    if (group->rank == 2) fields[0].text = "blue";
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_ERR_MISMATCH,
                "the test: the colour is blue on rank 2 and red on rank 0; expected the same");
    /* A rank that does not know a field is not compared. */
    if (group->rank == 0) fields[0].text = "";
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_ERR_MISMATCH,
                "the test: the colour is blue on rank 2 and red on rank 1; expected the same");
    if (group->rank == 2) fields[0].text = "";
    if (group->rank == 3) fields[2].value = BOOT_UNKNOWN;
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_OK, "");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* A rank's own reason counts before fields, and fields before a common one. */
static expar_status a_reason_is_common(boot *group, void *context)
{
    (void)context;
    static const char told[] = "the test: rank 1 has no room: EXPAR_ERR_MEMORY (out of memory): none for 1";
    boot_field fields[] = {same[0], same[1]};
    boot_matter matter = plain;
    matter.fields = fields;
    const bool poor_ones = group->rank == 1 || group->rank == 2;
    expar_status own = poor_ones ? error_set(EXPAR_ERR_MEMORY, "none for %d", group->rank) : EXPAR_OK;
    BODY_AGREES(group, &matter, own, EXPAR_ERR_MEMORY,
                group->rank == 1   ? "none for 1"
                : group->rank == 2 ? "none for 2"
                                   : told);
    if (group->rank == 1) fields[1].value = 6;
    own = poor_ones ? error_set(EXPAR_ERR_MEMORY, "none for %d", group->rank) : EXPAR_OK;
    BODY_AGREES(group, &matter, own, EXPAR_ERR_MISMATCH,
                "the test: the number is 6 on rank 1 and 5 on rank 0; expected the same");
    own = poor_ones ? error_set(EXPAR_ERR_MEMORY, "none for %d", group->rank) : EXPAR_OK;
    if (group->rank == 3) own = error_set(EXPAR_ERR_NULL, "x is NULL");
    BODY_AGREES(group, &matter, own, group->rank == 3 ? EXPAR_ERR_NULL : EXPAR_ERR_REMOTE,
                group->rank == 3
                    ? "x is NULL"
                    : "the test: rank 3 refused its part: EXPAR_ERR_NULL (a required pointer is NULL): x is NULL");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* Others get as much of the text as fits; the rank that said it has all of it. */
static expar_status a_text_is_cut(boot *group, void *context)
{
    (void)context;
    char own_text[800], told[ERROR_TEXT_BYTES];
    memset(own_text, 'x', sizeof own_text - 1);
    own_text[sizeof own_text - 1] = '\0';
    snprintf(told, sizeof told, "the test: rank 0 refused its part: EXPAR_ERR_STATE (%s): %.*s",
             expar_status_text(EXPAR_ERR_STATE), BOOT_REASON_TEXT - 1, own_text);
    expar_status own = group->rank == 0 ? error_set(EXPAR_ERR_STATE, "%s", own_text) : EXPAR_OK;
    BODY_AGREES(group, &plain, own, own ? own : EXPAR_ERR_REMOTE, own ? own_text : told);
    /* The part of a field that is cut off is not compared. */
    boot_field field = {.name = "the name", .text = own_text};
    boot_matter matter = {.fields = &field, .num_fields = 1};
    if (group->rank == 2) own_text[BOOT_FIELD_TEXT - 1] = 'y';
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_OK, "");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* ---- no end ------------------------------------------------------------------------------------------------------ */

/* Rank 2 has no memory to hear the others, and says so to each rank that asks; the others hear that it left. */
static expar_status one_is_poor(boot *group, void *context)
{
    (void)context;
    bool out_of_step = false;
    char all[SIZE] = "....", mine = 'm';
    boot_matter matter = plain;
    matter.mine = &mine;
    matter.all = all;
    matter.bytes = 1;
    poor = group->rank == 2;
    expar_status status = boot_agree(group, &matter, EXPAR_OK, &out_of_step);
    BODY_CHECK(out_of_step && memcmp(all, "....", SIZE) == 0);
    BODY_CHECK(status == (group->rank == 2 ? EXPAR_ERR_MEMORY : EXPAR_ERR_PEER));
    if (group->rank == 2) BODY_CHECK(strcmp(expar_last_error(), "no memory for the records of 4 ranks") == 0);
    group->ops->leave(group, false);
    return EXPAR_OK;
}

/* Rank 0 is in another call: all hear of it, and are in step again. */
static expar_status one_is_elsewhere(boot *group, void *context)
{
    (void)context;
    bool out_of_step = true;
    if (group->rank == 0) {
        BODY_CHECK(group->ops->barrier(group) == EXPAR_ERR_MISMATCH);
    } else {
        BODY_CHECK(boot_agree(group, &plain, EXPAR_OK, &out_of_step) == EXPAR_ERR_MISMATCH);
        BODY_CHECK(out_of_step);
    }
    BODY_AGREES(group, &plain, EXPAR_OK, EXPAR_OK, "");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* Rank 1 agrees on something else, by records of the same size. */
static expar_status one_is_at_another_matter(boot *group, void *context)
{
    (void)context;
    static const boot_field others[] = {{.name = "the shade", .text = "red"}, {.name = "the number", .value = 5}};
    boot_matter matter = plain;
    if (group->rank == 1) matter.fields = others;
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_ERR_MISMATCH, "the test: rank 1 is in another call than rank 0");
    matter = plain;
    if (group->rank == 1) matter.rejected = "refused another part";
    BODY_AGREES(group, &matter, EXPAR_OK, EXPAR_ERR_MISMATCH, "the test: rank 1 is in another call than rank 0");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* ---- on both kinds of ranks -------------------------------------------------------------------------------------- */

typedef struct trial {
    expar_unique_id id;
    int32_t size;
    squad_body body;
} trial;

static expar_status trial_process(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    boot_request request = crew_request(&self->id, rank, self->size);
    BODY_OK(boot_join_sockets(&request, &group));
    return self->body(group, NULL);
}

#ifdef __SANITIZE_THREAD__
static const bool only_threads = true; /* others are not seen */
#else
static const bool only_threads = false;
#endif

static void run(int32_t size, squad_body body)
{
    squad_rank ranks[CREW_MAX];
    trial by_processes = {.size = size, .body = body};
    if (!only_threads) {
        assert_int_equal(expar_unique_id_create(&by_processes.id), EXPAR_OK);
        crew_run_ok(size, trial_process, &by_processes);
        assert_int_equal(expar_unique_id_retire(&by_processes.id), EXPAR_OK);
    }
    squad_run(ranks, size, LONG_MS, body, NULL);
    squad_assert_ok(ranks, size);
}

static void fine_on_all(void **state)
{
    (void)state;
    run(1, all_are_fine);
    run(SIZE, all_are_fine);
}

static void rejections_are_told(void **state)
{
    (void)state;
    run(SIZE, some_reject);
    run(SIZE, one_says_nothing);
}

static expar_status alone(boot *group, void *context)
{
    (void)context;
    const expar_status own = error_set(EXPAR_ERR_NULL, "x is NULL");
    BODY_AGREES(group, &plain, own, EXPAR_ERR_NULL, "x is NULL");
    BODY_AGREES(group, &plain, error_set(EXPAR_ERR_MEMORY, "none"), EXPAR_ERR_MEMORY, "none");
    group->ops->leave(group, true);
    return EXPAR_OK;
}

static void one_rank_hears_itself(void **state)
{
    (void)state;
    run(1, alone);
}

static void fields_are_compared(void **state)
{
    (void)state;
    run(SIZE, a_field_differs);
}

static void a_common_reason_is_everybodys(void **state)
{
    (void)state;
    run(SIZE, a_reason_is_common);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    run(SIZE, a_text_is_cut);
}

static void no_memory_is_out_of_step(void **state)
{
    (void)state;
    run(SIZE, one_is_poor);
}

static void another_call_is_noticed(void **state)
{
    (void)state;
    run(SIZE, one_is_elsewhere);
    run(SIZE, one_is_at_another_matter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fine_on_all),
        cmocka_unit_test(rejections_are_told),
        cmocka_unit_test(one_rank_hears_itself),
        cmocka_unit_test(fields_are_compared),
        cmocka_unit_test(a_common_reason_is_everybodys),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(no_memory_is_out_of_step),
        cmocka_unit_test(another_call_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
