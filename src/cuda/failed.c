/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of work on streams. A process has few: the first of each stream is kept until a caller has got it. After
 * that, marks from before still have it, until newer failures have taken its place. */
#include "cuda/cuda.h"

#include <pthread.h>

#define KEPT 32

typedef struct failure {
    uint64_t number; /* 0: none */
    unsigned long long stream;
    /* Marks have it that were begun after `moment` and before `told`; told 0: no caller has got it yet. */
    uint64_t moment, told;
    error_kept why;
} failure;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Guarded by lock. A new failure takes the place of the oldest. */
static failure failures[KEPT];
static uint64_t last;

/* With the lock. Returns the stream's failure that no caller has got; NULL: there is none. */
static failure *failure_find_open(unsigned long long stream)
{
    for (size_t i = 0; i < KEPT; i++)
        if (failures[i].number && failures[i].stream == stream && !failures[i].told) return &failures[i];
    return NULL;
}

uint64_t cuda_failure_keep(unsigned long long stream, uint64_t moment, const error_kept *why)
{
    pthread_mutex_lock(&lock);
    failure *kept = failure_find_open(stream);
    if (!kept) {
        kept = &failures[last++ % KEPT];
        *kept = (failure){.number = last, .stream = stream, .moment = moment, .why = *why};
    }
    const uint64_t number = kept->number;
    pthread_mutex_unlock(&lock);
    return number;
}

void cuda_failure_told(uint64_t number)
{
    pthread_mutex_lock(&lock);
    failure *kept = number ? &failures[(number - 1) % KEPT] : NULL;
    if (kept && kept->number == number && !kept->told) kept->told = cuda_moment();
    pthread_mutex_unlock(&lock);
}

expar_status cuda_failure_before(const cuda_mark *mark)
{
    const cuda_mark_place place = cuda_mark_place_of(mark);
    expar_status status = EXPAR_OK;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < KEPT && status == EXPAR_OK; i++) {
        const failure *one = &failures[i];
        if (one->number && one->stream == place.stream && one->moment < place.begun &&
            (!one->told || place.begun < one->told))
            status = error_restore(&one->why);
    }
    pthread_mutex_unlock(&lock);
    return status;
}
