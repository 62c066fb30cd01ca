/* SPDX-License-Identifier: Apache-2.0 */
/* Threads ask for programs while another thread makes one. The simulated driver lets no module in while kernels of its
 * context run (fake/modules.c), and the compiler can be held. A thread that asks for another program does not wait. A
 * thread that asks for the same one gets the same, or the same error. */
#include "cuda/find_controls.h"
#include <expar/interrupt.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const cuda_source sources[] = {{.name = "tests/one.cu", .text = "one"},
                                      {.name = "tests/other.cu", .text = "other"},
                                      {.name = "tests/refused.cu", .text = "refused"},
                                      {.name = "tests/held.cu", .text = "held"},
                                      {.name = "tests/held_too.cu", .text = "held, too"}};
enum { ONE, OTHER, REJECTED, HELD, HELD_TOO };

static fake_controls *controls;
static fake_compiler_controls *compiler;
static cuda_device *gpus[FAKE_GPUS];
static cuda_program *spin_program; /* of GPU 0, made before any test */
static cu_function spin;

/* ---- waits for conditions, seen by way of the linker ------------------------------------------------------------- */

static atomic_int waiters; /* threads in one; they add themselves and take themselves off, in sequential order */

int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end);

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end)
{
    atomic_fetch_add(&waiters, 1);
    int result = __real_pthread_cond_timedwait(condition, mutex, end);
    atomic_fetch_sub(&waiters, 1);
    return result;
}

/* ---- a kernel that keeps modules out of GPU 0 -------------------------------------------------------------------- */

typedef struct runner {
    pthread_t thread;
    atomic_int end; /* the test sets it to 1, the kernel reads it */
    expar_status status;
} runner;

static void *run_kernel(void *argument)
{
    static char stream; /* of the fake driver any address is one */
    runner *self = argument;
    fake_spin_args args = {.end = &self->end};
    const cuda_launch launch = {.function = spin, .stream = (cu_stream)(void *)&stream, .blocks = 1, .threads = 1};
    self->status = cuda_enter(gpus[0]);
    if (self->status != EXPAR_OK) return NULL;
    self->status = cuda_launch_kernel(&launch, (void *[]){&args});
    cuda_leave();
    return NULL;
}

static void start_kernel(runner *self)
{
    *self = (runner){.end = 0};
    assert_int_equal(pthread_create(&self->thread, NULL, run_kernel, self), 0);
    assert_true(controls_await(&controls->running[0], 1));
}

static void end_kernel(runner *self)
{
    atomic_store(&self->end, 1);
    pthread_join(self->thread, NULL);
    assert_int_equal(self->status, EXPAR_OK);
}

/* ---- threads that ask -------------------------------------------------------------------------------------------- */

#define ASKERS 4

typedef struct asker {
    pthread_t thread;
    int number, source, gpu;
    expar_status status;
    cuda_program *program;
    char why[ERROR_TEXT_BYTES];
    int surprises;
} asker;

static expar_status ask(const cuda_device *device, int source, cuda_program **out)
{
    return cuda_program_make(device, &sources[source], NULL, 0, out);
}

static void *ask_once(void *argument)
{
    asker *self = argument;
    self->status = ask(gpus[self->gpu], self->source, &self->program);
    if (self->status != EXPAR_OK) snprintf(self->why, sizeof self->why, "%s", expar_last_error());
    return NULL;
}

static void start_asker(asker *self, int source, int gpu)
{
    *self = (asker){.source = source, .gpu = gpu};
    assert_int_equal(pthread_create(&self->thread, NULL, ask_once, self), 0);
}

/* All ask for the same program of GPU 0, while a kernel runs there: the first loads it, the others wait for that. */
static void ask_at_once(asker *askers)
{
    runner kernel;
    int loads = atomic_load(&controls->loads);
    start_kernel(&kernel);
    for (int i = 0; i < ASKERS; i++)
        start_asker(&askers[i], ONE, 0);
    assert_true(controls_await(&controls->waiting, 1));
    assert_true(controls_await(&waiters, ASKERS - 1));
    end_kernel(&kernel);
    for (int i = 0; i < ASKERS; i++)
        pthread_join(askers[i].thread, NULL);
    assert_int_equal(atomic_load(&controls->loads), loads + 1);
}

static void who_asks_for_the_same_program_gets_the_same(void **state)
{
    (void)state;
    asker askers[ASKERS];
    int modules = atomic_load(&controls->modules);
    ask_at_once(askers);
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(askers[i].status, EXPAR_OK);
        assert_ptr_equal(askers[i].program, askers[0].program);
    }
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(atomic_load(&controls->modules), modules + 1);
        cuda_program_release(askers[i].program);
    }
    assert_int_equal(atomic_load(&controls->modules), modules);
}

static void all_hear_why_it_was_not_made(void **state)
{
    (void)state;
    asker askers[ASKERS];
    cuda_program *program = NULL;
    int modules = atomic_load(&controls->modules);
    atomic_store(&controls->rejections, 1);
    ask_at_once(askers);
    for (int i = 0; i < ASKERS; i++) {
        assert_int_equal(askers[i].status, EXPAR_ERR_CUDA);
        assert_null(askers[i].program);
        assert_non_null(strstr(askers[i].why, "tests/one.cu: cuModuleLoadData"));
        assert_string_equal(askers[i].why, askers[0].why);
    }
    /* The next one tries again. */
    assert_int_equal(ask(gpus[0], ONE, &program), EXPAR_OK);
    assert_int_equal(atomic_load(&controls->modules), modules + 1);
    cuda_program_release(program);
    assert_int_equal(atomic_load(&controls->modules), modules);
}

static void nobody_waits_for_a_load_of_another_program(void **state)
{
    (void)state;
    runner kernel;
    asker first;
    cuda_program *made = NULL, *other = NULL, *elsewhere = NULL, *rejected = NULL;
    assert_int_equal(ask(gpus[0], OTHER, &made), EXPAR_OK);
    start_kernel(&kernel);
    start_asker(&first, ONE, 0);
    assert_true(controls_await(&controls->waiting, 1));
    /* One that is made already; the same source on the other GPU; one that is not even loaded. */
    assert_int_equal(ask(gpus[0], OTHER, &other), EXPAR_OK);
    assert_ptr_equal(other, made);
    assert_int_equal(ask(gpus[1], ONE, &elsewhere), EXPAR_OK);
    assert_int_equal(ask(gpus[0], REJECTED, &rejected), EXPAR_ERR_CUDA);
    assert_non_null(strstr(expar_last_error(), "tests/refused.cu: nvrtcCompileProgram"));
    cuda_program_release(made);
    cuda_program_release(other);
    cuda_program_release(elsewhere);
    assert_int_equal(atomic_load(&controls->waiting), 1);
    end_kernel(&kernel);
    pthread_join(first.thread, NULL);
    assert_int_equal(first.status, EXPAR_OK);
    assert_ptr_not_equal(first.program, elsewhere);
    cuda_program_release(first.program);
}

/* A thread that wants it on the second GPU waits for the compiler, and finds it on the disk. A thread that wants
   another one does not wait. */
static void a_source_is_compiled_once_for_all_gpus(void **state)
{
    (void)state;
    asker first, second;
    cuda_program *other = NULL;
    const int begun = atomic_load(&compiler->begun);
    atomic_store(&compiler->hold, 1);
    start_asker(&first, HELD, 0);
    assert_true(controls_await(&compiler->begun, begun + 1));
    start_asker(&second, HELD, 1);
    assert_true(controls_await(&waiters, 1));
    assert_int_equal(ask(gpus[0], OTHER, &other), EXPAR_OK);
    cuda_program_release(other);
    const int with_others = atomic_load(&compiler->begun);
    atomic_store(&compiler->hold, 0);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    assert_int_equal(first.status, EXPAR_OK);
    assert_int_equal(second.status, EXPAR_OK);
    assert_ptr_not_equal(first.program, second.program);
    assert_int_equal(atomic_load(&compiler->begun), with_others);
    cuda_program_release(first.program);
    cuda_program_release(second.program);
}

/* ---- interrupts -------------------------------------------------------------------------------------------------- */

static pthread_t stopped;

static int stop(void *context)
{
    (void)context;
    return pthread_equal(pthread_self(), stopped) != 0;
}

/* It waits for the compiler that another thread has called, and for that thread's load: the program ends both. */
static void who_waits_for_another_can_be_interrupted(void **state)
{
    (void)state;
    asker first;
    runner kernel;
    cuda_program *program = NULL, *elsewhere = NULL;
    const int begun = atomic_load(&compiler->begun), modules = atomic_load(&controls->modules);
    stopped = pthread_self();
    assert_int_equal(expar_interrupt_set(stop, NULL), EXPAR_OK);
    atomic_store(&compiler->hold, 1);
    start_asker(&first, HELD_TOO, 0);
    assert_true(controls_await(&compiler->begun, begun + 1));
    assert_int_equal(ask(gpus[0], HELD_TOO, &program), EXPAR_ERR_INTERRUPTED);
    assert_int_equal(ask(gpus[1], HELD_TOO, &elsewhere), EXPAR_ERR_INTERRUPTED);
    assert_non_null(strstr(expar_last_error(), "kernels that another thread makes: interrupted"));
    start_kernel(&kernel);
    atomic_store(&compiler->hold, 0);
    assert_true(controls_await(&controls->waiting, 1));
    assert_int_equal(ask(gpus[0], HELD_TOO, &program), EXPAR_ERR_INTERRUPTED);
    end_kernel(&kernel);
    pthread_join(first.thread, NULL);
    assert_int_equal(expar_interrupt_set(NULL, NULL), EXPAR_OK);
    assert_int_equal(first.status, EXPAR_OK);
    assert_null(program);
    assert_null(elsewhere);
    cuda_program_release(first.program);
    assert_int_equal(atomic_load(&controls->modules), modules);
}

/* ---- many threads, many programs --------------------------------------------------------------------------------- */

#define ROUNDS          300
#define REJECTED_ROUNDS 50 /* loads that fail, of all */

static bool is_as_expected(int source, expar_status status)
{
    if (status == EXPAR_OK) return source != REJECTED;
    const char *text = source == REJECTED ? "tests/refused.cu: nvrtcCompileProgram" : ".cu: cuModuleLoadData";
    return status == EXPAR_ERR_CUDA && strstr(expar_last_error(), text);
}

/* Holds two programs at a time, so that some outlive those who made them. */
static void *ask_again_and_again(void *argument)
{
    asker *self = argument;
    cuda_program *last = NULL;
    for (int round = 0; round < ROUNDS; round++) {
        cuda_program *program = NULL;
        int source = (self->number + round) % (REJECTED + 1);
        expar_status status = ask(gpus[round / (REJECTED + 1) % FAKE_GPUS], source, &program);
        cu_function unused;
        if (!is_as_expected(source, status)) self->surprises++;
        if (program && cuda_program_kernel(program, "some", 0, &unused) != EXPAR_OK) self->surprises++;
        cuda_program_release(last);
        last = program;
    }
    cuda_program_release(last);
    return NULL;
}

static void programs_come_and_go(void **state)
{
    (void)state;
    asker askers[ASKERS];
    int modules = atomic_load(&controls->modules);
    atomic_store(&controls->rejections, REJECTED_ROUNDS);
    for (int i = 0; i < ASKERS; i++) {
        askers[i] = (asker){.number = i};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_again_and_again, &askers[i]), 0);
    }
    for (int i = 0; i < ASKERS; i++)
        pthread_join(askers[i].thread, NULL);
    atomic_store(&controls->rejections, 0);
    for (int i = 0; i < ASKERS; i++)
        assert_int_equal(askers[i].surprises, 0);
    assert_int_equal(atomic_load(&controls->modules), modules);
}

int main(void)
{
    const cuda_source source = {.name = "tests/spin.cu", .text = "spin"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_asks_for_the_same_program_gets_the_same),
        cmocka_unit_test(all_hear_why_it_was_not_made),
        cmocka_unit_test(nobody_waits_for_a_load_of_another_program),
        cmocka_unit_test(a_source_is_compiled_once_for_all_gpus),
        cmocka_unit_test(who_waits_for_another_can_be_interrupted),
        cmocka_unit_test(programs_come_and_go),
    };
    char root[] = "/tmp/expar-programs-XXXXXX", remove[64];
    if (!mkdtemp(root)) return 1;
    setenv("XDG_CACHE_HOME", root, 1);
    if (cuda_device_open(0, &gpus[0]) != EXPAR_OK || cuda_device_open(1, &gpus[1]) != EXPAR_OK) return 1;
    if (cuda_program_make(gpus[0], &source, NULL, 0, &spin_program) != EXPAR_OK) return 1;
    if (cuda_program_kernel(spin_program, FAKE_SPIN, 0, &spin) != EXPAR_OK) return 1;
    controls = controls_find();
    compiler = controls_find_compiler();
    if (!controls || !compiler) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda_program_release(spin_program);
    for (int i = 0; i < FAKE_GPUS; i++)
        cuda_device_close(gpus[i]);
    snprintf(remove, sizeof remove, "rm -r %s", root);
    return system(remove) || failed;
}
