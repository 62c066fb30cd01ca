/* SPDX-License-Identifier: Apache-2.0 */
/* pmix: ranks from a PMIx process manager. The library is opened at run time. Rank 0 makes a unique id and publishes it
 * for the others. Nothing here waits for all ranks, so that the rendezvous can say which ranks came and which did not.
 *
 * PMIx_Init, Commit, Get and Finalize wait for the manager without a limit, and some managers do not answer. A thread
 * makes these calls (bounded.h), and the rank gives up on it at its deadline. */
#include "boot/bounded.h"
#include "boot/launch/launch.h"
#include "boot/meet/meet.h"

#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS ((int64_t)2000 * 1000 * 1000) /* for the thread to say itself why nothing came */
#define LEAVE_NS ((int64_t)5000 * 1000 * 1000)

typedef struct pmix_library {
    __typeof__(PMIx_Init) *init;
    __typeof__(PMIx_Finalize) *finalize;
    __typeof__(PMIx_Put) *put;
    __typeof__(PMIx_Commit) *commit;
    __typeof__(PMIx_Get) *get;
    __typeof__(PMIx_Error_string) *error_string;
} pmix_library;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pmix_library library;
static char missing[ERROR_TEXT_BYTES]; /* why the library cannot be used; "" when it can */

/* Number of groups that this process has formed by PMIx. Each group has a key of its own, since a fetched value never
   changes. All ranks form their groups in the same order. Any thread raises it. */
static _Atomic uint32_t generation;

/* ---- the library ------------------------------------------------------------------------------------------------- */

static bool pmix_find(void *handle, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(handle, name);
    /* ISO C has no cast from an object's pointer to a function's; POSIX promises that this works. */
    if (symbol) memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

static void pmix_open(void)
{
    void *handle = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle && pmix_find(handle, "PMIx_Init", &library.init, sizeof library.init) &&
        pmix_find(handle, "PMIx_Finalize", &library.finalize, sizeof library.finalize) &&
        pmix_find(handle, "PMIx_Put", &library.put, sizeof library.put) &&
        pmix_find(handle, "PMIx_Commit", &library.commit, sizeof library.commit) &&
        pmix_find(handle, "PMIx_Get", &library.get, sizeof library.get) &&
        pmix_find(handle, "PMIx_Error_string", &library.error_string, sizeof library.error_string))
        return;
    const char *reason = dlerror();
    snprintf(missing, sizeof missing, "libpmix cannot be loaded (%s); Debian: apt-get install libpmix2",
             reason ? reason : "a function is missing");
}

/* ---- joining and leaving ----------------------------------------------------------------------------------------- */

/* The process joins once and leaves at its end, since a manager does not take a process twice: MPI may join after us. A
   manager takes the end of a process that has not left for a crash, also after quick_exit. */
static pthread_once_t joining = PTHREAD_ONCE_INIT;
static pmix_status_t joined;
static pmix_proc_t self;
static pid_t owner; /* a forked child is not known to the manager */

static void finalize(bounded *bound)
{
    (void)bound;
    library.finalize(NULL, 0);
}

static void dispose(bounded *bound)
{
    free(bound);
}

/* The manager may be gone, or ignore this process. */
static void pmix_leave(void)
{
    if (getpid() != owner) return;
    bounded *bound = calloc(1, sizeof *bound);
    if (!bound || bounded_start(bound, finalize, dispose) != EXPAR_OK) return;
    bounded_wait(bound, clock_ns() + LEAVE_NS);
    bounded_drop(bound);
}

static void join_once(void)
{
    joined = library.init(&self, NULL, 0);
    owner = getpid();
    if (joined != PMIX_SUCCESS) return;
    atexit(pmix_leave);
    (void)at_quick_exit(pmix_leave);
}

static expar_status failed(const char *what, pmix_status_t code)
{
    return error_set(EXPAR_ERR_BOOTSTRAP, "PMIx: %s: %s", what, library.error_string(code));
}

/* ---- facts from the manager -------------------------------------------------------------------------------------- */

/* Gets a number of the whole job. */
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

/* An id that other hosts cannot reach is useless to them. *here: all ranks are on this host. */
static expar_status pmix_check_hosts(int32_t size, bool *here)
{
    int32_t local_size = size;
    expar_status status = job_number(PMIX_LOCAL_SIZE, &local_size);
    *here = local_size == size;
    if (status != EXPAR_OK || *here || env_string("EXPAR_BOOTSTRAP_INTERFACE")) return status;
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "PMIx: %d of %d ranks are on this host: set EXPAR_BOOTSTRAP_INTERFACE on all ranks to the network "
                     "interface by which the hosts reach each other",
                     local_size, size);
}

/* ---- the unique id ----------------------------------------------------------------------------------------------- */

/* If the id could not be made, an empty text is published, so that the others need not wait for it. */
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

/* Asks the manager once. If rank 0 is on this host, the manager answers at once, even if there is nothing yet. An open
   question must not outlive its process: Open MPI 4.1's manager would then ignore the next process that joins. From
   another host the answer is fetched, so it must be waited for. */
static pmix_status_t pmix_ask(const char *key, bool here, int64_t end_ns, char text[EXPAR_UNIQUE_ID_TEXT])
{
    pmix_proc_t first = self;
    pmix_info_t how = {.value.type = here ? PMIX_BOOL : PMIX_INT};
    pmix_value_t *value = NULL;
    first.rank = 0;
    snprintf(how.key, sizeof how.key, "%s", here ? PMIX_IMMEDIATE : PMIX_TIMEOUT);
    if (here)
        how.value.data.flag = true;
    else
        how.value.data.integer = (int)((end_ns - clock_ns()) / 1000000000) + 1;
    pmix_status_t code = library.get(&first, key, &how, 1, &value);
    if (code != PMIX_SUCCESS) return code;
    bool known = value->type == PMIX_STRING && value->data.string;
    snprintf(text, EXPAR_UNIQUE_ID_TEXT, "%s", known ? value->data.string : "");
    if (known) free(value->data.string);
    free(value);
    return PMIX_SUCCESS;
}

static expar_status absent(const boot_request *request)
{
    char here[ROLL_TEXT];
    roll_call(request, here);
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "PMIx: rank 0 has not come within %lld ms (EXPAR_BOOTSTRAP_TIMEOUT): it has published no unique "
                     "id; %s",
                     (long long)request->timeout_ms, here);
}

static expar_status get_id(const char *key, bool here, int64_t end_ns, boot_request *request)
{
    static const struct timespec pause = {.tv_nsec = 5000000};
    char text[EXPAR_UNIQUE_ID_TEXT];
    pmix_status_t code;
    while ((code = pmix_ask(key, here, end_ns, text)) == PMIX_ERR_NOT_FOUND && clock_ns() < end_ns)
        nanosleep(&pause, NULL);
    if (code == PMIX_ERR_NOT_FOUND || code == PMIX_ERR_TIMEOUT) return absent(request);
    if (code != PMIX_SUCCESS) return failed("the unique id of rank 0", code);
    if (!text[0]) return error_set(EXPAR_ERR_REMOTE, "PMIx: rank 0 could not make a unique id");
    return expar_unique_id_parse(text, &request->id);
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

/* The work that the thread does. */
typedef struct task {
    bounded bound;
    int64_t end_ns;
    boot_request request; /* the thread owns it until it is done */
    /* The thread now only waits for rank 0's id. The thread writes this; the rank reads it only for an error text. */
    _Atomic bool awaits_first;
    error_kept ended;
    bool taken; /* the caller owns request's sockets and id */
} task;

static expar_status pmix_meet(task *e)
{
    boot_request *request = &e->request;
    char key[32];
    bool here;
    expar_status status = job_number(PMIX_JOB_SIZE, &request->size);
    if (status != EXPAR_OK) return status;
    request->rank = (int32_t)self.rank;
    snprintf(key, sizeof key, "expar.id.%u", (unsigned)atomic_fetch_add(&generation, 1));
    if (request->size == 1) return EXPAR_OK;
    status = pmix_check_hosts(request->size, &here);
    if (status != EXPAR_OK) return status;
    if (here) roll_answer(self.nspace, request);
    atomic_store_explicit(&e->awaits_first, request->rank != 0, memory_order_relaxed);
    status = request->rank == 0 ? put_id(key, request) : get_id(key, here, e->end_ns, request);
    request->have_id = status == EXPAR_OK;
    return status;
}

static void do_task(bounded *bound)
{
    task *e = (task *)bound;
    pthread_once(&joining, join_once);
    error_keep(&e->ended, joined == PMIX_SUCCESS ? pmix_meet(e) : failed("joining the process manager", joined));
}

static void dispose_task(bounded *bound)
{
    task *e = (task *)bound;
    if (!e->taken) boot_request_end(&e->request);
    free(e);
}

static expar_status pmix_report_late(task *e, const boot_request *request)
{
    if (atomic_load_explicit(&e->awaits_first, memory_order_relaxed)) return absent(request);
    return error_set(EXPAR_ERR_BOOTSTRAP,
                     "PMIx: the process manager has not answered within %lld ms (EXPAR_BOOTSTRAP_TIMEOUT)",
                     (long long)request->timeout_ms);
}

static expar_status take_task(task *e, boot_request *request)
{
    if (!bounded_wait(&e->bound, e->end_ns + GRACE_NS)) return pmix_report_late(e, request);
    if (error_restore(&e->ended) != EXPAR_OK) return e->ended.status;
    e->taken = true;
    *request = e->request;
    return EXPAR_OK;
}

expar_status boot_pmix_request(boot_request *request)
{
    pthread_once(&once, pmix_open);
    if (missing[0]) return error_set(EXPAR_ERR_UNSUPPORTED, "PMIx: %s", missing);
    task *e = calloc(1, sizeof *e);
    if (!e) return error_set(EXPAR_ERR_MEMORY, "PMIx: out of memory");
    e->request = *request;
    e->end_ns = clock_ns() + request->timeout_ms * 1000000;
    expar_status status = bounded_start(&e->bound, do_task, dispose_task);
    if (status != EXPAR_OK) return status;
    status = take_task(e, request);
    bounded_drop(&e->bound);
    return status;
}
