/* SPDX-License-Identifier: Apache-2.0 */
/* Acknowledgements that leave with a rank's next call. A rank that sends two calls ahead by hooks needs them before.
 * The others wait until it has sent, in a barrier of the group or in no call of the library at all. On two buffers,
 * each of which has words of its own. And from ranks that have died, or answer no more. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/case.h"
#include "ep/low_latency/ll.h"
#include "ep/low_latency/reach.h"
#include "exec/cpu/low_latency/create.h"
#include "exec/cpu/low_latency/far/links.h"
#include "oracle/unit.h"
#include "shmem/kind.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 2, ROUNDS = 2, LEADER = 1 };
#define DEADLINE_MS 60000 /* all tests fail within ctest's limit */

static ranks_kind kind;

static const ll_case four_ranks = {.ranks = 4,
                                   .max_tokens = 6,
                                   .hidden = 24,
                                   .topk = 4,
                                   .experts = 12,
                                   .tokens = {6, 4, 5, 3},
                                   .seed = 3,
                                   .weights = true};

/* Calls of a kind on one buffer, with three rounds of their own: plain ones, the sends of two, and their hooks. */
typedef struct calls {
    bool (*plain)(ll_round *rounds[3], expar_ll *ll);
    bool (*ahead)(ll_round *rounds[3], expar_ll *ll);
    bool (*hooks)(ll_round *rounds[3]);
} calls;

typedef struct scene {
    ll_case c;
    const calls *calls;
    bool in_barrier; /* the others wait there, else for a byte of the leader's */
    int go[2];       /* a pipe for these */
} scene;

/* ---- dispatches -------------------------------------------------------------------------------------------------- */

static bool dispatch_plain(ll_round *rounds[3], expar_ll *ll)
{
    return round_dispatch(rounds[0], ll);
}

static bool dispatch_ahead(ll_round *rounds[3], expar_ll *ll)
{
    rounds[1]->dispatch.hook = rounds[2]->dispatch.hook = 1;
    return round_dispatch(rounds[1], ll) && round_dispatch(rounds[2], ll);
}

static bool dispatch_hooks(ll_round *rounds[3])
{
    return round_dispatch_hook(rounds[1]) && round_dispatch_hook(rounds[2]);
}

static const calls dispatches = {.plain = dispatch_plain, .ahead = dispatch_ahead, .hooks = dispatch_hooks};

/* ---- combines ---------------------------------------------------------------------------------------------------- */

static bool combine_plain(ll_round *rounds[3], expar_ll *ll)
{
    for (int i = 0; i < 3; i++) {
        if (!round_dispatch(rounds[i], ll)) return false;
        round_prepare_combine(rounds[i]);
    }
    return round_combine(rounds[0], ll);
}

static bool combine_ahead(ll_round *rounds[3], expar_ll *ll)
{
    rounds[1]->combine.hook = rounds[2]->combine.hook = 1;
    return round_combine(rounds[1], ll) && round_combine(rounds[2], ll);
}

static bool combine_hooks(ll_round *rounds[3])
{
    return round_combine_hook(rounds[1]) && round_combine_hook(rounds[2]);
}

static const calls combines = {.plain = combine_plain, .ahead = combine_ahead, .hooks = combine_hooks};

/* ---- the leader and the others ----------------------------------------------------------------------------------- */

/* Until the leader has sent, well or not. */
static bool await_leader(const scene *s, expar_group *group)
{
    const char bytes[CASE_MOST_RANKS] = {0};
    const size_t others = (size_t)s->c.ranks - 1;
    char byte;
    if (s->in_barrier) return CHECK_OK(expar_group_barrier(group));
    if (expar_group_rank(group) == LEADER) return CHECK(write(s->go[1], bytes, others) == (ssize_t)others, "the pipe");
    return CHECK(read(s->go[0], &byte, 1) == 1, "the pipe");
}

static bool send_ahead(const scene *s, ll_round *rounds[BUFFERS][3], expar_ll *ll[BUFFERS])
{
    bool good = true;
    for (int i = 0; i < BUFFERS; i++)
        good = good && s->calls->ahead(rounds[i], ll[i]);
    return good;
}

static bool trial_round(const scene *s, expar_group *group, expar_ll *ll[BUFFERS])
{
    const int32_t rank = expar_group_rank(group);
    ll_round *rounds[BUFFERS][3];
    bool good = true;
    for (uint32_t i = 0; i < BUFFERS; i++)
        for (uint32_t k = 0; k < 3; k++)
            rounds[i][k] = round_make(&s->c, rank, 3 * i + k);
    for (int i = 0; i < BUFFERS; i++)
        good = good && s->calls->plain(rounds[i], ll[i]);
    if (rank == LEADER) good = good && send_ahead(s, rounds, ll);
    good = await_leader(s, group) && good;
    if (rank != LEADER) good = good && send_ahead(s, rounds, ll);
    for (int i = 0; i < BUFFERS; i++)
        good = good && s->calls->hooks(rounds[i]);
    for (int i = 0; i < BUFFERS; i++)
        for (int k = 0; k < 3; k++)
            round_free(rounds[i][k]);
    return good;
}

static void trial(expar_group *group, void *shared)
{
    const scene *s = shared;
    const expar_ll_config config = case_config(&s->c);
    expar_ll *ll[BUFFERS];
    bool good = true;
    for (int i = 0; i < BUFFERS; i++)
        if (!CHECK_OK(expar_ll_create(group, &config, &ll[i]))) return;
    for (int round = 0; round < ROUNDS && good; round++)
        good = trial_round(s, group, ll);
    for (int i = 0; i < BUFFERS && good; i++)
        good = CHECK_OK(expar_ll_destroy(ll[i]));
}

static void run(const calls *of, bool in_barrier)
{
    scene s = {.c = four_ranks, .calls = of, .in_barrier = in_barrier};
    const ranks_plan plan = {.kind = kind,
                             .size = s.c.ranks,
                             .ranks_per_node = reach_ranks_per_node(s.c.ranks),
                             .late_limit_ms = DEADLINE_MS};
    assert_int_equal(pipe(s.go), 0);
    assert_true(ranks_run(&plan, trial, &s));
    close(s.go[0]);
    close(s.go[1]);
}

static void test_dispatches_and_a_barrier(void **state)
{
    (void)state;
    run(&dispatches, true);
}

static void test_combines_and_a_barrier(void **state)
{
    (void)state;
    run(&combines, true);
}

static void test_dispatches_and_a_pipe(void **state)
{
    (void)state;
    run(&dispatches, false);
}

static void test_combines_and_a_pipe(void **state)
{
    (void)state;
    run(&combines, false);
}

/* ---- an old answer ----------------------------------------------------------------------------------------------- */

#define STAMPS  0xfffffffcu /* so many calls later words are the same */
#define BETWEEN 5           /* calls after the skip, which write every copy of a header anew */

/* The leader's question to a rank, as the first one was answered. */
typedef struct old_answer {
    uint64_t asked_at, asked, answer;
} old_answer;

static void keep_answers(const ll_cpu *self, old_answer *old)
{
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        const ll_far_question *question = &self->links->ranks[r].question;
        if (!ll_is_far(self, r)) continue;
        CHECK(link_is_quiet(&question->batch) && ll_word_is_of(question->answer, 1), "rank %d was not asked", r);
        old[r] = (old_answer){question->asked_at, question->asked, question->answer};
    }
}

/* As if no rank had been asked since. */
static void put_answers_back(const ll_cpu *self, const old_answer *old)
{
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        ll_far_question *question = &self->links->ranks[r].question;
        if (!ll_is_far(self, r)) continue;
        while (!link_is_quiet(&question->batch) && ranks_clock_ms() < until_ms)
            usleep(1000);
        if (!CHECK(link_is_quiet(&question->batch), "rank %d does not answer", r)) continue;
        question->asked_at = old[r].asked_at;
        question->asked = old[r].asked;
        question->answer = old[r].answer;
    }
}

/* Waits until the leader waits in this call or a later one. */
static bool await_waiting_leader(const expar_group *group, uint64_t call)
{
    static const boot_topic any = {.kind = BOOT_KIND_ALL};
    const int64_t until_ms = ranks_clock_ms() + DEADLINE_MS;
    bool waits = false;
    while (!waits && ranks_clock_ms() < until_ms) {
        boot_answer replies[CASE_MOST_RANKS] = {{0}};
        replies[LEADER].asked = true;
        group->boot->ops->ask(group->boot, &any, replies, INT64_C(1000000000));
        const boot_answer *its = &replies[LEADER];
        waits = its->came && its->waits && its->topic.kind == BOOT_KIND_LOW_LATENCY && its->topic.number >= call;
        usleep(1000);
    }
    return CHECK(waits, "the leader does not wait");
}

/* The call of stamp 1 is read by the others only when the leader waits: in its call after the next one, for their
   acknowledgements. If it took the old answers for these, it would overwrite what they have not read. */
static bool trial_second_stamp_1(expar_group *group, ll_round *rounds[3], expar_ll *ll, const old_answer *old)
{
    const ll_cpu *self = ll_cpu_of(ll->base.exec);
    for (int i = 0; i < 3; i++)
        rounds[i]->dispatch.hook = 1;
    bool good = round_dispatch(rounds[0], ll) && round_dispatch(rounds[1], ll);
    const uint64_t second = ll->base.kind->number(ll->base.calls);
    if (group->rank == LEADER) {
        good = good && round_dispatch_hook(rounds[0]);
        put_answers_back(self, old);
        good = good && round_dispatch(rounds[2], ll) && round_dispatch_hook(rounds[1]);
    } else {
        good = good && await_waiting_leader(group, second) && round_dispatch_hook(rounds[0]);
        good = good && round_dispatch_hook(rounds[1]) && round_dispatch(rounds[2], ll);
    }
    return good && round_dispatch_hook(rounds[2]);
}

static void trial_old_answers(expar_group *group, void *shared)
{
    const scene *s = shared;
    const expar_ll_config config = case_config(&s->c);
    old_answer old[CASE_MOST_RANKS] = {{0}};
    ll_round *rounds[3 + BETWEEN + 3];
    expar_ll *ll = NULL;
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (uint32_t i = 0; i < ARRAY_LENGTH(rounds); i++)
        rounds[i] = round_make(&s->c, group->rank, i);
    bool good = dispatch_plain(rounds, ll); /* epoch 1 */
    if (group->rank == LEADER) good = good && dispatch_ahead(rounds, ll);
    CHECK_OK(expar_group_barrier(group));
    if (group->rank == LEADER) keep_answers(ll_cpu_of(ll->base.exec), old);
    if (group->rank != LEADER) good = good && dispatch_ahead(rounds, ll);
    good = good && dispatch_hooks(rounds);
    CHECK_OK(expar_group_barrier(group));
    ll_executor_cpu_skip(ll->base.exec, STAMPS - 3 - BETWEEN);
    CHECK_OK(expar_group_barrier(group));
    for (int i = 0; i < BETWEEN; i++)
        good = good && dispatch_plain(rounds + 3 + i, ll); /* up to epoch STAMPS */
    if (good && trial_second_stamp_1(group, rounds + 3 + BETWEEN, ll, old)) CHECK_OK(expar_ll_destroy(ll));
    for (size_t i = 0; i < ARRAY_LENGTH(rounds); i++)
        round_free(rounds[i]);
}

static void test_an_old_answer_of_the_same_stamp(void **state)
{
    (void)state;
    scene s = {.c = four_ranks};
    const ranks_plan plan = {.kind = kind,
                             .size = s.c.ranks,
                             .ranks_per_node = reach_ranks_per_node(s.c.ranks),
                             .late_limit_ms = DEADLINE_MS};
    if (reach_is_mapped() && !reach_unmapped()) skip();
    assert_true(ranks_run(&plan, trial_old_answers, &s));
}

/* ---- ranks that answer no more ----------------------------------------------------------------------------------- */

enum { VICTIM = 0, SILENCE_MS = 1500 };

typedef struct strike {
    ll_case c;
    int signal;  /* that the victim sends itself: SIGKILL, or SIGSTOP */
    int word[2]; /* a pipe, for the victim's words to the leader */
} strike;

/* The leader's calls, of which the last ones are for the victim. */
static expar_status dispatch_until_lost(ll_round *rounds[3], expar_ll *ll)
{
    expar_status status = EXPAR_OK;
    for (int i = 1; i < 3 && status == EXPAR_OK; i++) {
        rounds[i]->dispatch.hook = 1;
        status = expar_ll_dispatch(ll, &rounds[i]->dispatch, &rounds[i]->received);
    }
    return status == EXPAR_OK ? expar_ll_hook_call(rounds[1]->received.hook, NULL) : status;
}

/* Says who it is, and when it has woken. */
static bool strike_self(const strike *s, expar_ll *ll)
{
    const pid_t pid = getpid();
    if (!CHECK(write(s->word[1], &pid, sizeof pid) == sizeof pid, "the pipe")) return false;
    raise(s->signal);
    return CHECK_OK(expar_ll_abandon(ll)) && CHECK(write(s->word[1], &pid, sizeof pid) == sizeof pid, "the pipe");
}

/* The victim goes on when the leader's buffer has gone: what it answers then finds nothing of that. */
static bool lose_victim(const strike *s, ll_round *rounds[3], expar_ll *ll)
{
    pid_t pid;
    if (!CHECK_STATUS(EXPAR_ERR_PEER, dispatch_until_lost(rounds, ll)) || !CHECK_TEXT("rank 0")) return false;
    if (!CHECK_OK(expar_ll_destroy(ll)) || !CHECK(read(s->word[0], &pid, sizeof pid) == sizeof pid, "the pipe"))
        return false;
    if (s->signal == SIGKILL) return true;
    kill(pid, SIGCONT);
    return CHECK(read(s->word[0], &pid, sizeof pid) == sizeof pid, "the pipe");
}

static void trial_strike(expar_group *group, void *shared)
{
    const strike *s = shared;
    const int32_t rank = expar_group_rank(group);
    const expar_ll_config config = case_config(&s->c);
    expar_ll *ll = NULL;
    ll_round *rounds[3];
    if (!CHECK_OK(expar_ll_create(group, &config, &ll))) return;
    for (uint32_t i = 0; i < 3; i++)
        rounds[i] = round_make(&s->c, rank, i);
    bool good = round_dispatch(rounds[0], ll) && CHECK_OK(expar_group_barrier(group));
    if (rank == LEADER) kind_set_silence(group, SILENCE_MS);
    good = good && (rank == VICTIM ? strike_self(s, ll) : lose_victim(s, rounds, ll));
    for (int i = 0; i < 3; i++)
        round_free(rounds[i]);
    if (good) CHECK_OK(expar_group_destroy(group));
}

static void run_strike(int signal)
{
    strike s = {.c = four_ranks, .signal = signal};
    ranks_host host;
    pid_t pids[2];
    if (kind != RANKS_PROCESSES) skip();
    s.c.ranks = 2;
    const ranks_plan plan = {
        .kind = kind, .size = s.c.ranks, .ranks_per_node = reach_ranks_per_node(s.c.ranks), .ends_itself = true};
    check_begin(-1);
    assert_int_equal(pipe(s.word), 0);
    assert_true(ranks_host_start(&host));
    for (int32_t r = 0; r < s.c.ranks; r++)
        pids[r] = ranks_fork(&plan, &host.id, r, trial_strike, &s);
    const int led = ranks_wait(pids[LEADER], ranks_clock_ms() + DEADLINE_MS, NULL);
    const int struck = ranks_wait(pids[VICTIM], ranks_clock_ms() + DEADLINE_MS, NULL);
    assert_true(ranks_host_stop(&host));
    assert_int_equal(led, 0);
    assert_true(signal == SIGKILL ? WIFSIGNALED(struck) : struck == 0);
    close(s.word[0]);
    close(s.word[1]);
}

static void test_the_dead(void **state)
{
    (void)state;
    run_strike(SIGKILL);
}

static void test_the_silent(void **state)
{
    (void)state;
    run_strike(SIGSTOP);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatches_and_a_barrier),
        cmocka_unit_test(test_combines_and_a_barrier),
        cmocka_unit_test(test_dispatches_and_a_pipe),
        cmocka_unit_test(test_combines_and_a_pipe),
        cmocka_unit_test(test_an_old_answer_of_the_same_stamp),
        cmocka_unit_test(test_the_dead),
        cmocka_unit_test(test_the_silent),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
