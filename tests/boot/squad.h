/* SPDX-License-Identifier: Apache-2.0 */
/* squad: ranks that are threads of this process, and how each one ended; crew.h is the same for processes. */
#ifndef EXPAR_TESTS_BOOT_SQUAD_H
#define EXPAR_TESTS_BOOT_SQUAD_H

#include "boot/crew.h"

#include <pthread.h>

typedef expar_status (*squad_body)(boot *group, void *context);

typedef struct squad_rank {
    boot *group;
    squad_body body;
    void *context;
    error_kept ended;
    pthread_t thread;
} squad_rank;

/* One rank's thread; it is joined by who starts it. */
void squad_start(squad_rank *self, boot *group, squad_body body, void *context);
/* All of them, to their ends. */
void squad_run(squad_rank *ranks, int32_t size, int64_t timeout_ms, squad_body body, void *context);
void squad_assert_ok(const squad_rank *ranks, int32_t size);

#endif
