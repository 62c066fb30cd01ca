/* SPDX-License-Identifier: Apache-2.0 */
/* The frame's requests to a mode, and their order: a mode that was made up records the requests. */
#include "bench/frame/measure.h"
#include "bench/frame/session.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A letter for each thing asked for: o(pen), f(ill), d(ispatch), r(eceive), v(erify), x: release, c(lose), e(nded). */
static char asked[256];
static int num_asked;
static uint64_t filled;       /* the salt of what is there */
static int wrong_from;        /* verifications that find nothing wrong; -1: all */
static bool opens, has_space; /* what the mode can do */

static bool ask(char letter)
{
    asked[num_asked++] = letter;
    asked[num_asked] = '\0';
    assert_true(num_asked < (int)sizeof asked - 1);
    return true;
}

static bool made_open(struct bench_call *call)
{
    (void)call;
    return ask('o') && opens;
}

static void made_close(struct bench_call *call)
{
    (void)call;
    ask('c');
}

static bool made_fill(const struct bench_call *call, uint64_t salt)
{
    (void)call;
    filled = salt;
    return ask('f');
}

static bool made_dispatch(void *context)
{
    ((struct bench_call *)context)->count++;
    return ask('d');
}

static bool made_receive(void *context)
{
    assert_true(((const struct bench_call *)context)->kind.hooked);
    return ask('r');
}

static bool made_verify(const struct bench_call *call, uint64_t salt)
{
    (void)call;
    assert_true(salt == filled);
    ask('v');
    return wrong_from < 0 || wrong_from-- > 0;
}

static void made_release(struct bench_call *call)
{
    (void)call;
    ask('x');
}

static bool made_in_loop(struct bench_call *call, expar_event **event)
{
    assert_null(*event);
    return made_dispatch(call);
}

static bool made_ended(struct bench_call *call, int turn)
{
    (void)call, (void)turn;
    return ask('e');
}

static void made_amounts(const struct bench_call *call, double *messages, double *bytes)
{
    *messages = 3;
    *bytes = call->kind.hooked ? 200 : 100;
}

static bool made_describe(const struct bench_call *call, struct bench_result *result)
{
    (void)call;
    result->format = "made";
    return true;
}

static bool made_limit_open(struct bench_contest *contest)
{
    contest->limit = has_space ? contest : NULL;
    return has_space;
}

static bool limit_run(void *context)
{
    (void)context;
    return ask('l');
}

static int made_limit_add(struct bench_contest *contest, struct contender *contenders)
{
    contenders[0] = (struct contender){.run = limit_run, .context = contest->limit};
    return 1;
}

static bool made_limit_verify(const struct bench_contest *contest, uint64_t salt)
{
    assert_true(salt == filled);
    return contest->limit != NULL;
}

static const struct bench_mode made_mode = {.label = "",
                                            .settled = true,
                                            .open = made_open,
                                            .close = made_close,
                                            .fill = made_fill,
                                            .dispatch = made_dispatch,
                                            .receive = made_receive,
                                            .in_loop = made_in_loop,
                                            .ended = made_ended,
                                            .verify = made_verify,
                                            .release = made_release,
                                            .amounts = made_amounts,
                                            .describe = made_describe,
                                            .limit_open = made_limit_open,
                                            .limit_add = made_limit_add,
                                            .limit_verify = made_limit_verify};

/* Every turn takes 5 µs. */
static bool made_up_turn(const struct bench_world *world, struct contender *contender, struct bench_span *span)
{
    (void)world;
    *span = (struct bench_span){.start_ns = 1000, .end_ns = 6000};
    return contender->run(contender->context);
}

/* A session of one rank, with a whole and a hooked call. */
struct made {
    struct bench_site site;
    struct bench_device device;
    struct bench_world world;
    struct bench_options options;
    struct problem problem;
    struct bench_session session;
    struct bench_call whole, hooked;
    struct bench_results results;
};

static void make(struct made *made, enum bench_pattern pattern)
{
    *made = (struct made){.options = {.iters = 2, .warmup = 1, .seed = 4}, .problem = {.tokens = 7}};
    made->device = (struct bench_device){.turn = made_up_turn, .sites = {&made->site}};
    made->world = (struct bench_world){.size = 1, .nodes = 1, .each = 1, .device = &made->device};
    made->world.place.type = EXPAR_CPU;
    made->session = (struct bench_session){
        .world = &made->world, .options = &made->options, .mode = &made_mode, .problem = &made->problem, .workers = 9};
    made->whole = (struct bench_call){.session = &made->session,
                                      .op = "dispatch",
                                      .verified = true,
                                      .kind = {.pattern = pattern, .dispatches = true}};
    made->hooked = made->whole;
    made->hooked.kind.hooked = true;
    num_asked = 0;
    wrong_from = -1;
    opens = has_space = true;
    assert_int_equal(expar_group_create_threads(1, NULL, &made->world.group), EXPAR_OK);
}

static void end(struct made *made)
{
    assert_int_equal(expar_group_destroy(made->world.group), EXPAR_OK);
    bench_results_free(&made->results);
}

static bool isolated(struct made *made, int num_calls)
{
    struct bench_contest contest = {
        .session = &made->session, .calls = {&made->whole, &made->hooked}, .num_calls = num_calls};
    return bench_isolated(&contest, 1, &made->results);
}

/* First calls are verified with other contents, turns only after the measured ones; a limit takes turns with them. */
static void isolated_calls_take_turns(void **state)
{
    (void)state;
    struct made made;
    make(&made, BENCH_ISOLATED);
    assert_true(isolated(&made, 2));
    assert_string_equal(asked, "oo"
                               "f"
                               "dvx"
                               "drvx"
                               "f"
                               "dxdrxl" /* warm-up */
                               "dxdrxl"
                               "dxdrxl"
                               "dvxdrvxl"
                               "cc");
    assert_true(filled == bench_measured_salt(&made.session));
    assert_int_equal(made.results.count, 3);
    static const char *const phases[] = {"call", "send", "receive"};
    for (int i = 0; i < 3; i++) {
        const struct bench_result *r = &made.results.items[i];
        assert_string_equal(r->phase, phases[i]);
        assert_string_equal(r->format, "made");
        assert_true(r->verified && r->expar.median_us == 5 && r->messages == 3 && r->bytes == (i ? 200 : 100));
        assert_true(r->tokens == 7 && r->workers == 9 && r->sum == NULL);
        assert_int_equal(r->num_copies, i == 0);
    }
    assert_true(made.whole.count == 5 && made.hooked.count == 5);
    end(&made);
}

/* An error stays: in the first call, and in the last one. */
static void wrong_calls_are_told(void **state)
{
    (void)state;
    for (int good = 0; good < 2; good++) {
        struct made made;
        make(&made, BENCH_ISOLATED);
        wrong_from = good;
        assert_true(isolated(&made, 1));
        assert_int_equal(made.results.count, 1);
        assert_false(made.results.items[0].verified);
        end(&made);
    }
}

/* All calls are closed, whatever was opened, and there is no result. */
static void what_cannot_be_opened_has_no_result(void **state)
{
    (void)state;
    for (int what = 0; what < 2; what++) {
        struct made made;
        make(&made, BENCH_ISOLATED);
        opens = what == 0;
        has_space = what == 1;
        assert_false(isolated(&made, 2));
        assert_string_equal(asked, what == 0 ? "cc" : "occ");
        assert_int_equal(made.results.count, 0);
        end(&made);
    }
}

/* A call that takes turns for another result has none. */
static void unreported_calls_have_no_result(void **state)
{
    (void)state;
    struct made made;
    make(&made, BENCH_ISOLATED);
    made.whole.unreported = true;
    assert_true(isolated(&made, 2));
    assert_int_equal(made.results.count, 2);
    assert_string_equal(made.results.items[0].phase, "send");
    end(&made);
}

/* Contents change before the loop that is checked; the last call of each loop is released after it. */
static void loops_are_verified_at_their_end(void **state)
{
    (void)state;
    struct made made;
    make(&made, BENCH_STEADY);
    assert_true(bench_loops(&made.whole, &made.results));
    assert_string_equal(asked, "of"
                               "dxdex" /* warm-up */
                               "dxdex"
                               "dxdex"
                               "dxdex"
                               "dxdex"
                               "dxdefx"
                               "dxdevx"
                               "c");
    assert_int_equal(made.results.count, 1);
    assert_true(made.results.items[0].verified && made.results.items[0].expar.median_us == 2.5);
    assert_true(made.results.items[0].pattern == BENCH_STEADY);
    end(&made);
}

/* A waiting user is told which case of a sweep this is. */
static void labels_name_the_case(void **state)
{
    (void)state;
    struct problem problem = {.tokens = 64};
    const struct bench_mode mode = {.label = "ll "};
    struct bench_session session = {.mode = &mode, .problem = &problem, .number = 7, .count = 13};
    char label[BENCH_LABEL_BYTES];
    bench_session_label(&session, "dispatch", label);
    assert_string_equal(label, "ll dispatch, 64 tokens (case 7 of 13)");
    session.number = session.count = 1;
    bench_session_label(&session, "dispatch", label);
    assert_string_equal(label, "ll dispatch, 64 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(isolated_calls_take_turns),           cmocka_unit_test(wrong_calls_are_told),
        cmocka_unit_test(what_cannot_be_opened_has_no_result), cmocka_unit_test(unreported_calls_have_no_result),
        cmocka_unit_test(loops_are_verified_at_their_end),     cmocka_unit_test(labels_name_the_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
