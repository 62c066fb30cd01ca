/* SPDX-License-Identifier: Apache-2.0 */
/* A group's transports behind the shim (net/shim.h), so that a test decides when what was started is carried out. */
#ifndef TESTS_PGAS_LATE_H
#define TESTS_PGAS_LATE_H

#include "net/shim.h"
#include "shmem/kind.h"

/* Every transport of the group is delayed from now on, by at most longest_ns; the group's end closes them. */
void late_begin(expar_group *group, int64_t longest_ns);
/* While held, nothing that is started is carried out. Blocking operations would wait, barriers over the network, too:
   ranks meet by expar_group_barrier meanwhile. */
void late_hold(expar_group *group, bool held);
/* Operations that have been started and are not complete. */
size_t late_count(expar_group *group);

/* A thread that calls quiet on the group, or on a context where there is one. */
typedef struct late_quiet {
    pthread_t id;
    expar_group *group;
    expar_ctx *ctx;
    expar_status status;
    /* Set by the thread when quiet has returned (release), read by the test (acquire). */
    _Atomic bool returned;
} late_quiet;
void late_quiet_start(late_quiet *quiet, expar_group *group, expar_ctx *ctx);
/* Checks that it has not returned, though it had the time to. */
void late_quiet_expect_waiting(late_quiet *quiet);
void late_quiet_join(late_quiet *quiet);

#endif
