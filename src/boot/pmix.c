/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: the library is opened at run time. Rank 0 makes a unique id and puts it where the others get it; nothing waits
 * for all ranks here, so that the rendezvous can say who came and who did not. */
#include "boot/pmix.h"

#include <dlfcn.h>
#include <errno.h>
#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct pmix_library {
    __typeof__(PMIx_Init) *init;
    __typeof__(PMIx_Finalize) *finalize;
    __typeof__(PMIx_Put) *put;
    __typeof__(PMIx_Commit) *commit;
    __typeof__(PMIx_Get) *get;
    __typeof__(PMIx_Get_nb) *get_nb;
    __typeof__(PMIx_Error_string) *error_string;
} pmix_library;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pmix_library library;
static char missing[ERROR_TEXT_BYTES]; /* why the library cannot be used; "" when it can */

/* Groups that this process has formed by PMIx: each has a key of its own, since a value once got stays. All ranks form
   their groups in the same order. Raised by any thread. */
static _Atomic uint32_t generation;

bool boot_pmix_is_here(void)
{
    const char *job = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");
    return job && *job && rank && *rank;
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

static bool find(void *handle, const char *name, void *function, size_t bytes)
{
    void *address = dlsym(handle, name);
    /* ISO C has no cast from an object's pointer to a function's; POSIX promises that this works. */
    if (address) memcpy(function, &address, bytes);
    return address != NULL;
}

static void open_once(void)
{
    void *handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle && find(handle, "PMIx_Init", &library.init, sizeof library.init) &&
        find(handle, "PMIx_Finalize", &library.finalize, sizeof library.finalize) &&
        find(handle, "PMIx_Put", &library.put, sizeof library.put) &&
        find(handle, "PMIx_Commit", &library.commit, sizeof library.commit) &&
        find(handle, "PMIx_Get", &library.get, sizeof library.get) &&
        find(handle, "PMIx_Get_nb", &library.get_nb, sizeof library.get_nb) &&
        find(handle, "PMIx_Error_string", &library.error_string, sizeof library.error_string))
        return;
    const char *reason = dlerror();
    snprintf(missing, sizeof missing, "libpmix cannot be loaded (%s); Debian: apt-get install libpmix2",
             reason ? reason : "a function is missing");
}

/* ---- joining and leaving ----------------------------------------------------------------------------------------- */

/* Joined once and left at the end of the process, since a manager does not take a process twice: MPI may join after us.
   A manager that sees a process end without leaving takes it for a crash. */
static pthread_once_t joining = PTHREAD_ONCE_INIT;
static pmix_status_t joined;
static pmix_proc_t self;
static pid_t owner; /* a child that was forked is not the manager's */

static void leave(void)
{
    if (getpid() == owner) library.finalize(NULL, 0);
}

static void join_once(void)
{
    joined = library.init(&self, NULL, 0);
    owner = getpid();
    if (joined == PMIX_SUCCESS) atexit(leave);
}

static expar_status failed(const char *what, pmix_status_t code)
{
    return error_set(EXPAR_ERR_BOOTSTRAP, "PMIx: %s: %s", what, library.error_string(code));
}

/* ---- what the manager knows -------------------------------------------------------------------------------------- */

/* A number that belongs to the whole job. */
static expar_status job_number(const char *key, int32_t *out)
{
    pmix_proc_t job = self;
    pmix_value_t *value = NULL;
    job.rank = PMIX_RANK_WILDCARD;
    pmix_status_t code = library.get(&job, key, NULL, 0, &value);
    if (code != PMIX_SUCCESS) return failed(key, code);
    bool known = value->type == PMIX_UINT32 && value->data.uint32 >= 1 && value->data.uint32 <= INT32_MAX;
    if (known) *out = (int32_t)value->data.uint32;
    free(value);
    return known ? EXPAR_OK : error_set(EXPAR_ERR_BOOTSTRAP, "PMIx: %s is no number of ranks", key);
}

/* An id that other hosts cannot reach is of no use to them. */
static expar_status check_hosts(int32_t size)
{
    int32_t local_size = size;
    expar_status status = job_number(PMIX_LOCAL_SIZE, &local_size);
    if (status != EXPAR_OK || local_size == size || env_string("EXPAR_BOOTSTRAP_INTERFACE")) return status;
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "PMIx: %d of %d ranks are on this host: set EXPAR_BOOTSTRAP_INTERFACE on all ranks to the network "
                     "interface by which the hosts reach each other",
                     local_size, size);
}

/* ---- the unique id ----------------------------------------------------------------------------------------------- */

/* An id that could not be made goes round as no text, so that the others need not wait for it. */
static expar_status put_id(const char *key, boot_request *request)
{
    char text[EXPAR_UNIQUE_ID_TEXT] = "";
    expar_status status = expar_unique_id_create(&request->id);
    if (status == EXPAR_OK) expar_unique_id_format(&request->id, text);
    request->own_id = status == EXPAR_OK;
    pmix_value_t value = {.type = PMIX_STRING, .data.string = text};
    pmix_status_t code = library.put(PMIX_GLOBAL, key, &value);
    if (code == PMIX_SUCCESS) code = library.commit();
    if (status != EXPAR_OK) return status;
    return code == PMIX_SUCCESS ? EXPAR_OK : failed("publishing the unique id", code);
}

/* An answer that a rank waits for, and that may come after it has given up. */
typedef struct answer {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t came;
    int holders; /* the rank and the library's thread; the last one frees */
    bool done;
    pmix_status_t code;
    char text[EXPAR_UNIQUE_ID_TEXT];
} answer;

static answer *answer_new(void)
{
    answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&a->came, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&a->lock, NULL);
    a->holders = 2;
    return a;
}

/* With the lock held, which it gives back. */
static void answer_drop(answer *a)
{
    bool last = --a->holders == 0;
    pthread_mutex_unlock(&a->lock);
    if (!last) return;
    pthread_cond_destroy(&a->came);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* From the library's thread. */
static void on_answer(pmix_status_t code, pmix_value_t *value, void *context)
{
    answer *a = context;
    pthread_mutex_lock(&a->lock);
    a->code = code;
    if (code == PMIX_SUCCESS && value && value->type == PMIX_STRING && value->data.string)
        snprintf(a->text, sizeof a->text, "%s", value->data.string);
    a->done = true;
    pthread_cond_signal(&a->came);
    answer_drop(a);
}

/* Waits for the answer until end_ns and lets go of it. False: none came. */
static bool answer_wait(answer *a, int64_t end_ns, pmix_status_t *code, char text[EXPAR_UNIQUE_ID_TEXT])
{
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    pthread_mutex_lock(&a->lock);
    while (!a->done && pthread_cond_timedwait(&a->came, &a->lock, &end) != ETIMEDOUT) {
    }
    bool came = a->done;
    *code = a->code;
    memcpy(text, a->text, EXPAR_UNIQUE_ID_TEXT);
    answer_drop(a);
    return came;
}

/* One question to the manager, which may answer that there is nothing yet. */
static pmix_status_t ask(const pmix_proc_t *whom, const char *key, int64_t end_ns, char text[EXPAR_UNIQUE_ID_TEXT])
{
    answer *waiting = answer_new();
    if (!waiting) return PMIX_ERR_NOMEM;
    pmix_status_t code = library.get_nb(whom, key, NULL, 0, on_answer, waiting);
    if (code != PMIX_SUCCESS) on_answer(code, NULL, waiting);
    return answer_wait(waiting, end_ns, &code, text) ? code : PMIX_ERR_TIMEOUT;
}

static expar_status get_id(const char *key, boot_request *request)
{
    static const struct timespec pause = {.tv_nsec = 5000000};
    const int64_t end_ns = clock_ns() + request->timeout_ms * 1000000;
    char text[EXPAR_UNIQUE_ID_TEXT];
    pmix_proc_t first = self;
    pmix_status_t code;
    first.rank = 0;
    while ((code = ask(&first, key, end_ns, text)) == PMIX_ERR_NOT_FOUND && clock_ns() < end_ns)
        nanosleep(&pause, NULL);
    if (code == PMIX_ERR_NOT_FOUND || code == PMIX_ERR_TIMEOUT)
        return error_set(EXPAR_ERR_BOOTSTRAP,
                         "PMIx: rank 0 has not come within %lld ms (EXPAR_BOOTSTRAP_TIMEOUT): it has published no "
                         "unique id",
                         (long long)request->timeout_ms);
    if (code != PMIX_SUCCESS) return failed("the unique id of rank 0", code);
    if (!text[0]) return error_set(EXPAR_ERR_REMOTE, "PMIx: rank 0 could not make a unique id");
    return expar_unique_id_parse(text, &request->id);
}

static expar_status meet(boot_request *request)
{
    char key[32];
    expar_status status = job_number(PMIX_JOB_SIZE, &request->size);
    if (status != EXPAR_OK) return status;
    request->rank = (int32_t)self.rank;
    snprintf(key, sizeof key, "expar.id.%u", (unsigned)atomic_fetch_add(&generation, 1));
    if (request->size == 1) return EXPAR_OK;
    status = check_hosts(request->size);
    if (status == EXPAR_OK) status = request->rank == 0 ? put_id(key, request) : get_id(key, request);
    request->have_id = status == EXPAR_OK;
    return status;
}

expar_status boot_pmix_request(boot_request *request)
{
    pthread_once(&once, open_once);
    if (missing[0]) return error_set(EXPAR_ERR_UNSUPPORTED, "PMIx: %s", missing);
    pthread_once(&joining, join_once);
    if (joined != PMIX_SUCCESS) return failed("joining the process manager", joined);
    expar_status status = meet(request);
    if (status != EXPAR_OK) boot_request_end(request);
    return status;
}
