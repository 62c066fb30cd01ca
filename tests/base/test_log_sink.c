/* SPDX-License-Identifier: Apache-2.0 */
/* Sinks of the log: what they are given, that they may call the library, that they are done when they are taken off. */
#include "base/base.h"
#include "base/log_child.h"

#include <expar/expar.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

typedef struct heard {
    int lines;
    expar_log_level level;
    int32_t rank;
    char place[256], text[2 * ERROR_TEXT_BYTES];
} heard;

static void hear(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    heard *all = context;
    all->lines++;
    all->level = level;
    all->rank = rank;
    snprintf(all->place, sizeof all->place, "%s", place);
    snprintf(all->text, sizeof all->text, "%s", text);
}

static void require(bool what)
{
    if (!what) _exit(1);
}

static void log_to_a_sink(void)
{
    heard all = {0};
    expar_log_set(hear, &all);
    LOG(LOG_INFO, "not wanted");
    LOG(LOG_WARN, "two\nlines");
    require(all.lines == 1 && all.level == EXPAR_LOG_WARN && all.rank == -1);
    require(strcmp(all.text, "two lines") == 0);
    const char *number = strstr(all.place, "tests/base/test_log_sink.c:");
    require(number && atoi(strchr(number, ':') + 1) > 0);
    log_set_rank(3);
    LOG(LOG_ERROR, "of rank %d", 3);
    require(all.lines == 2 && all.level == EXPAR_LOG_ERROR && all.rank == 3);
    log_write_as(5, LOG_WARN, "here.c", 7, "of rank 5");
    require(all.rank == 5 && strcmp(all.place, "here.c:7") == 0);
    expar_log_set(NULL, NULL);
    LOG(LOG_WARN, "on stderr again");
    require(all.lines == 3);
}

static void a_sink_takes_what_went_to_stderr(void **state)
{
    (void)state;
    char text[4096];
    log_of_child(NULL, log_to_a_sink, text, sizeof text);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "on stderr again"));
}

/* A sink that calls the library: what fails in it is logged, but not to itself, and it may put another in its place. */
static void call_the_library(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    int *depth = context;
    (void)level, (void)rank, (void)place, (void)text;
    require(++*depth == 1);
    expar_unique_id id;
    require(expar_unique_id_parse("no id", &id) == EXPAR_ERR_ARGUMENT);
    require(expar_group_barrier(NULL) == EXPAR_ERR_NULL);
    require(expar_env_describe(0, NULL, NULL, NULL, NULL));
    LOG(LOG_ERROR, "out of the sink");
    expar_log_set(call_the_library, context);
    --*depth;
}

static void log_to_a_sink_that_calls(void)
{
    int depth = 0;
    expar_log_set(call_the_library, &depth);
    require(expar_event_create(NULL) == EXPAR_ERR_NULL);
    require(depth == 0);
    /* The caller's error is the one of its own call, not of those that the sink made meanwhile. */
    require(strcmp(expar_last_error(), "expar_event_create: event is NULL") == 0);
}

static void a_sink_may_call_the_library(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("info", log_to_a_sink_that_calls, text, sizeof text);
    assert_int_equal(count_lines(text), 3);
    assert_non_null(strstr(text, "EXPAR_ERR_ARGUMENT: expar_unique_id_parse"));
    assert_non_null(strstr(text, "EXPAR_ERR_NULL: expar_group_barrier"));
    assert_non_null(strstr(text, "out of the sink"));
    assert_null(strstr(text, "expar_event_create"));
}

/* Written by the sinks' threads, but go_on by the one that takes the sink away; each read by the other side. In their
   default order, since they stand for what happened. */
static atomic_int entered, go_on, left;

static void stay(void *context, expar_log_level level, int32_t rank, const char *place, const char *text)
{
    (void)context, (void)level, (void)rank, (void)place, (void)text;
    atomic_fetch_add(&entered, 1);
    while (!atomic_load(&go_on))
        usleep(1000);
    usleep(20000);
    atomic_fetch_add(&left, 1);
}

static void *log_a_line(void *argument)
{
    LOG(LOG_WARN, "of a thread");
    return argument;
}

static void take_away_a_running_sink(void)
{
    pthread_t threads[4];
    expar_log_set(stay, NULL);
    for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
        require(pthread_create(&threads[i], NULL, log_a_line, NULL) == 0);
    while (atomic_load(&entered) < (int)ARRAY_LENGTH(threads))
        usleep(1000);
    atomic_store(&go_on, 1);
    expar_log_set(NULL, NULL);
    require(atomic_load(&left) == (int)ARRAY_LENGTH(threads));
    for (size_t i = 0; i < ARRAY_LENGTH(threads); i++)
        pthread_join(threads[i], NULL);
    LOG(LOG_WARN, "nobody hears");
    require(atomic_load(&entered) == (int)ARRAY_LENGTH(threads));
}

static void a_sink_that_was_taken_away_is_done(void **state)
{
    (void)state;
    char text[4096];
    log_of_child(NULL, take_away_a_running_sink, text, sizeof text);
    assert_int_equal(count_lines(text), 1);
}

/* From the lines of two ranks that are threads, and of whatever else runs in the process. */
static void fail_with_a_rank(void)
{
    heard all = {0};
    expar_group *groups[2];
    require(expar_group_create_threads(2, NULL, groups) == EXPAR_OK);
    expar_log_set(hear, &all);
    require(expar_put(groups[1], NULL, NULL, 8, 0) != EXPAR_OK);
    require(all.lines == 1 && all.rank == 1 && all.level == EXPAR_LOG_INFO);
    require(strncmp(all.text, "EXPAR_ERR_", 10) == 0 && strstr(all.text, ": expar_put: "));
    require(strstr(all.place, "src/") != NULL);
    require(expar_get(groups[0], NULL, NULL, 8, 1) != EXPAR_OK);
    require(all.lines == 2 && all.rank == 0);
    expar_log_set(NULL, NULL);
}

static void a_call_that_fails_says_so_with_its_rank(void **state)
{
    (void)state;
    char text[4096];
    log_of_child("info", fail_with_a_rank, text, sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sink_takes_what_went_to_stderr),
        cmocka_unit_test(a_sink_may_call_the_library),
        cmocka_unit_test(a_sink_that_was_taken_away_is_done),
        cmocka_unit_test(a_call_that_fails_says_so_with_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
