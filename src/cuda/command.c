/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of streams, and the threads that carry them out. */
#include "cuda/command.h"
#include "base/interrupt.h"
#include "base/knobs.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- words ------------------------------------------------------------------------------------------------------- */

#define PAGE_WORDS 256
#define LINE_BYTES 64

/* Words of one context. A stream writes only words that its own context has pinned. Never freed. */
typedef struct word_pool {
    unsigned long long context; /* the driver's number, which no other context of the process has */
    struct cuda_word *unused;   /* guarded by words_lock, as is the next */
    uint32_t num_unused;
    struct word_pool *next;
} word_pool;

/* A word in pinned memory. Pages of words stay until the process ends, as a stream may come to a wait late. */
typedef struct cuda_word {
    /* The stream writes the number of its command, after all that it did before. The server reads it (acquire), and
       writes the next number when it has carried the command out (release), which the stream awaits (>=, cyclic). */
    _Atomic uint32_t *state;
    cu_address device; /* its address for streams */
    uint32_t number;   /* of the last command; guarded by words_lock while no command has the word */
    word_pool *pool;
    struct cuda_word *next;
} cuda_word;

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static word_pool *pools; /* guarded by words_lock */

/* Gives the pool of the context that is current to this thread, and makes it if there is none. */
static expar_status word_pool_find(word_pool **out)
{
    cu_context context = NULL;
    unsigned long long number = 0;
    expar_status status = CUDA_CALL(StreamGetCtx, NULL, &context);
    if (status == EXPAR_OK) status = CUDA_CALL(CtxGetId, context, &number);
    if (status != EXPAR_OK) return status;
    pthread_mutex_lock(&words_lock);
    word_pool *found = pools;
    while (found && found->context != number)
        found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        *found = (word_pool){.context = number, .next = pools};
        pools = found;
    }
    pthread_mutex_unlock(&words_lock);
    *out = found;
    return found ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "no memory for calls on streams");
}

/* Captures of other threads do not forbid it. */
static expar_status words_allocate(size_t bytes, void **host, cu_address *device)
{
    int mode = CU_CAPTURE_RELAXED;
    expar_status status = CUDA_CALL(ThreadExchangeStreamCaptureMode, &mode);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemHostAlloc, host, bytes, CU_HOST_PORTABLE | CU_HOST_MAPPED);
    if (status == EXPAR_OK && (status = CUDA_CALL(MemHostGetDevicePointer, device, *host, 0)) != EXPAR_OK)
        cuda_driver()->MemFreeHost(*host);
    cuda_driver()->ThreadExchangeStreamCaptureMode(&mode);
    return status;
}

/* With words_lock, and the pool's context. */
static expar_status words_add(word_pool *pool)
{
    void *host;
    cu_address device;
    const size_t bytes = (size_t)PAGE_WORDS * LINE_BYTES;
    cuda_word *words = calloc(PAGE_WORDS, sizeof *words);
    if (!words) return error_set(EXPAR_ERR_MEMORY, "no memory for calls on streams");
    expar_status status = words_allocate(bytes, &host, &device);
    if (status != EXPAR_OK) {
        free(words);
        return error_prefix(status, "%zu bytes of pinned memory for calls on streams", bytes);
    }
    memset(host, 0, bytes);
    for (size_t i = 0; i < PAGE_WORDS; i++) {
        words[i].state = (_Atomic uint32_t *)(void *)((char *)host + i * LINE_BYTES);
        words[i].device = device + i * LINE_BYTES;
        words[i].pool = pool;
        words[i].next = pool->unused;
        pool->unused = &words[i];
    }
    pool->num_unused += PAGE_WORDS;
    return EXPAR_OK;
}

static expar_status words_prepare(word_pool *pool, uint32_t least)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&words_lock);
    while (pool->num_unused < least && status == EXPAR_OK)
        status = words_add(pool);
    pthread_mutex_unlock(&words_lock);
    return status;
}

/* A capture must not allocate. */
static expar_status word_take(word_pool *pool, bool in_capture, cuda_word **out)
{
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&words_lock);
    if (!pool->unused && in_capture)
        status = error_set(EXPAR_ERR_STATE, "the call needs more pinned memory, which a capture cannot take; expected "
                                            "fewer calls in graphs, or a larger EXPAR_STREAM_CALLS");
    else if (!pool->unused)
        status = words_add(pool);
    if (status == EXPAR_OK) {
        *out = pool->unused;
        pool->unused = pool->unused->next;
        pool->num_unused--;
        (*out)->number += 2;
    }
    pthread_mutex_unlock(&words_lock);
    return status;
}

static void word_give(cuda_word *word)
{
    pthread_mutex_lock(&words_lock);
    word->next = word->pool->unused;
    word->pool->unused = word;
    word->pool->num_unused++;
    pthread_mutex_unlock(&words_lock);
}

/* ---- servers ----------------------------------------------------------------------------------------------------- */

struct cuda_server {
    pthread_t thread;
    cuda_server_plan plan;
    word_pool *pool; /* of the GPU whose streams have its commands; NULL: only commands of others come to it */
    pthread_mutex_t lock;
    pthread_cond_t change;
    cuda_command *arrived; /* commands that the thread has not taken yet; guarded by lock */
    bool sleeps;           /* the thread waits for `change`; guarded by lock */
    /* Waits of the thread end once it is true; cuda_server_end sets it. Relaxed: the lock orders the rest. */
    atomic_bool ends;
    /* The thread's own commands, and when one last arrived, began or ended. */
    cuda_command *commands;
    int64_t active_ns;
};

static void command_free(cuda_command *command)
{
    word_give(command->word);
    command->drop(command);
}

static bool was_requested(const cuda_command *command)
{
    return atomic_load_explicit(command->word->state, memory_order_acquire) == command->number;
}

/* A command for which no stream waits may be requested again at once, so its word moves on first. */
static bool command_carry_out(cuda_command *command)
{
    uint32_t number = command->number;
    if (!command->waits) {
        atomic_compare_exchange_strong_explicit(command->word->state, &number, number + 1, memory_order_acq_rel,
                                                memory_order_relaxed);
        command->run(command);
        return true;
    }
    command->begun = true;
    if (!command->run(command)) return false;
    command->begun = false;
    atomic_store_explicit(command->word->state, number + 1, memory_order_release);
    return true;
}

/* Looks at a command. *over: nothing asks for it any more. Returns whether the command has begun or ended. */
static bool serve_command(cuda_command *command, bool *over)
{
    const bool begun = command->begun;
    *over = false;
    if (was_requested(command)) {
        const bool ended = command_carry_out(command);
        *over = ended && !command->in_graph;
        return ended || !begun;
    }
    *over = command->in_graph && atomic_load_explicit(&command->given_up, memory_order_relaxed);
    return false;
}

static void take_arrived(cuda_server *server)
{
    pthread_mutex_lock(&server->lock);
    cuda_command *arrived = server->arrived;
    server->arrived = NULL;
    pthread_mutex_unlock(&server->lock);
    if (arrived) server->active_ns = clock_ns();
    while (arrived) {
        cuda_command *next = arrived->next;
        arrived->next = server->commands;
        server->commands = arrived;
        arrived = next;
    }
}

static bool serve_commands(cuda_server *server)
{
    bool busy = false, over;
    take_arrived(server);
    for (cuda_command **place = &server->commands; *place;) {
        cuda_command *one = *place;
        busy |= serve_command(one, &over);
        if (!over) {
            place = &one->next;
            continue;
        }
        *place = one->next;
        command_free(one);
    }
    return busy;
}

/* Sleeps for that time, or until a command arrives; 0: only a command ends it. */
static void server_sleep(cuda_server *server, int64_t span_ns)
{
    const int64_t end_ns = clock_ns() + span_ns;
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    int ended = 0;
    pthread_mutex_lock(&server->lock);
    server->sleeps = true;
    while (!ended && !server->arrived && !atomic_load_explicit(&server->ends, memory_order_relaxed))
        ended = span_ns > 0 ? pthread_cond_timedwait(&server->change, &server->lock, &end)
                            : pthread_cond_wait(&server->change, &server->lock);
    server->sleeps = false;
    pthread_mutex_unlock(&server->lock);
}

/* Streams ring no doorbell, so the thread naps between two looks, the longer the longer nothing has come. */
static void server_rest(cuda_server *server)
{
    const int64_t idle_ns = clock_ns() - server->active_ns;
    const bool idle = server->plan.crowded || idle_ns >= knob(KNOB_STREAM_SHORT_NS);
    if (!server->commands)
        server_sleep(server, 0);
    else if (!server->plan.crowded && idle_ns < knob(KNOB_STREAM_YIELD_NS))
        sched_yield();
    else
        server_sleep(server, knob(idle ? KNOB_STREAM_MOST_NAP_NS : KNOB_STREAM_NAP_NS));
}

static void *command_server_run(void *argument)
{
    cuda_server *server = argument;
    log_set_rank(server->plan.rank);
    interrupt_follow(&server->ends);
    server->active_ns = clock_ns();
    while (!atomic_load_explicit(&server->ends, memory_order_relaxed)) {
        if (serve_commands(server)) server->active_ns = clock_ns();
        server_rest(server);
    }
    for (cuda_command *one = server->commands; one; one = one->next)
        if (one->begun) one->stop(one);
    return NULL;
}

static expar_status server_make(const cuda_server_plan *plan, word_pool *pool, cuda_server **out)
{
    sigset_t all, before;
    cuda_server *server = calloc(1, sizeof *server);
    if (!server) return error_set(EXPAR_ERR_MEMORY, "no memory for calls on streams");
    server->plan = *plan;
    server->pool = pool;
    pthread_mutex_init(&server->lock, NULL);
    interrupt_cond_init(&server->change);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool runs = pthread_create(&server->thread, NULL, command_server_run, server) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (runs) {
        *out = server;
        return EXPAR_OK;
    }
    pthread_cond_destroy(&server->change);
    pthread_mutex_destroy(&server->lock);
    free(server);
    return error_set(EXPAR_ERR_SYSTEM, "the thread for calls on streams cannot be started");
}

expar_status cuda_server_start(const cuda_server_plan *plan, cuda_server **out)
{
    word_pool *pool = NULL;
    expar_status status = word_pool_find(&pool);
    if (status == EXPAR_OK) status = words_prepare(pool, plan->words);
    return status == EXPAR_OK ? server_make(plan, pool, out) : status;
}

static void server_add(cuda_server *server, cuda_command *command)
{
    pthread_mutex_lock(&server->lock);
    command->next = server->arrived;
    server->arrived = command;
    if (server->sleeps) pthread_cond_signal(&server->change);
    pthread_mutex_unlock(&server->lock);
}

/* ---- without a server -------------------------------------------------------------------------------------------- */

static bool run_missed(cuda_command *command)
{
    command->miss(command);
    return true;
}

static void stop_missed(cuda_command *command)
{
    (void)command;
}

static pthread_once_t orphanage_once = PTHREAD_ONCE_INIT;
static cuda_server *orphanage; /* set once, and kept until the process ends */

static void open_orphanage(void)
{
    const cuda_server_plan plan = {.rank = -1, .crowded = true};
    if (server_make(&plan, NULL, &orphanage) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
}

/* A stream may come to a command after its server has ended. Somebody must release it. */
static void command_orphan(cuda_command *command)
{
    command->begun = false;
    command->run = run_missed;
    command->stop = stop_missed;
    server_add(orphanage, command);
}

void cuda_server_end(cuda_server *server)
{
    if (!server) return;
    pthread_mutex_lock(&server->lock);
    atomic_store_explicit(&server->ends, true, memory_order_relaxed);
    pthread_cond_signal(&server->change);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->thread, NULL);
    take_arrived(server);
    if (server->commands) pthread_once(&orphanage_once, open_orphanage);
    while (server->commands && orphanage) {
        cuda_command *one = server->commands;
        server->commands = one->next;
        command_orphan(one);
    }
    pthread_cond_destroy(&server->change);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* ---- putting ----------------------------------------------------------------------------------------------------- */

/* The driver calls it from a thread of its own. */
static void command_give_up(void *context)
{
    cuda_command *command = context;
    atomic_store_explicit(&command->given_up, true, memory_order_relaxed);
}

/* The graph keeps the command until it and all that was made of it are gone. *given: command_give_up is called some
   time. */
static expar_status command_keep(cuda_command *command, void *stream, bool *given)
{
    cu_graph graph = NULL;
    cu_user_object object = NULL;
    int capturing;
    expar_status status = CUDA_CALL(StreamGetCaptureInfo, stream, &capturing, NULL, &graph, NULL, NULL);
    if (status == EXPAR_OK)
        status = CUDA_CALL(UserObjectCreate, &object, command, command_give_up, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (status != EXPAR_OK) return status;
    *given = true;
    status = CUDA_CALL(GraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (status != EXPAR_OK) cuda_driver()->UserObjectRelease(object, 1);
    return status;
}

static expar_status put_on_stream(const cuda_command *command, void *stream)
{
    const cu_address word = command->word->device;
    const cu_result result = cuda_driver()->StreamWriteValue32(stream, word, command->number, CU_WRITE_FENCED);
    if (result == CU_ERROR_NOT_SUPPORTED)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "the GPU's streams cannot write words (cuStreamWriteValue32), which calls on streams need");
    expar_status status = cuda_status(result, __FILE__, __LINE__, "cuStreamWriteValue32");
    if (status != EXPAR_OK || !command->waits) return status;
    return CUDA_CALL(StreamWaitValue, stream, word, command->number + 1, CU_WAIT_AT_LEAST);
}

expar_status cuda_command_prepare(cuda_server *server, cuda_command *command, unsigned long long capture)
{
    expar_status status = word_take(server->pool, capture != 0, &command->word);
    if (status != EXPAR_OK) command->drop(command);
    return status;
}

void cuda_command_cancel(cuda_command *command)
{
    command_free(command);
}

expar_status cuda_command_put(cuda_server *server, cuda_command *command, void *stream, unsigned long long capture)
{
    bool given = false;
    expar_status status = command->word ? EXPAR_OK : cuda_command_prepare(server, command, capture);
    if (status != EXPAR_OK) return status;
    command->number = command->word->number;
    command->in_graph = capture != 0;
    atomic_init(&command->given_up, false);
    if (command->in_graph) status = command_keep(command, stream, &given);
    if (status == EXPAR_OK) status = put_on_stream(command, stream);
    if (status == EXPAR_OK || given)
        server_add(server, command);
    else
        command_free(command);
    return status;
}
