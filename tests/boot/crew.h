/* SPDX-License-Identifier: Apache-2.0 */
/* crew: forks the ranks of a group and collects how each one ended. */
#ifndef EXPAR_TESTS_BOOT_CREW_H
#define EXPAR_TESTS_BOOT_CREW_H

#include "boot/boot.h"
#include <sys/types.h>

#define CREW_MAX 16

/* The work of one rank in its process. Its outcome is the value it returns and the text of its last error. */
typedef expar_status (*crew_body)(int32_t rank, void *context);

typedef struct outcome {
    bool reported; /* false: it died before it could */
    expar_status status;
    char text[ERROR_TEXT_BYTES];
    int wait_status; /* of waitpid */
    int64_t end_ns;  /* clock_ns() when the body returned */
} outcome;

typedef struct crew {
    int32_t size;
    pid_t pids[CREW_MAX];
    int pipes[CREW_MAX];
    outcome outcomes[CREW_MAX];
} crew;

void crew_start(crew *self, int32_t size, crew_body body, void *context);
/* Waits for all. A rank that has not ended after a minute is killed, and the test fails. */
void crew_finish(crew *self);
/* All ranks returned OK and their processes ended well (sanitizers included). */
void crew_assert_ok(const crew *self);
void crew_run_ok(int32_t size, crew_body body, void *context);
/* The rank returned that status, with a text that contains `part`. */
void crew_assert_error(const crew *self, int32_t rank, expar_status status, const char *part);

/* In a body: ends it with EXPAR_ERR_STATE and a text when the condition does not hold. */
#define BODY_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) return error_set(EXPAR_ERR_STATE, "%s:%d: %s", __FILE__, __LINE__, #condition);              \
    } while (0)
#define BODY_OK(call)                                                                                                  \
    do {                                                                                                               \
        expar_status body_status = (call);                                                                             \
        if (body_status != EXPAR_OK) return error_prefix(body_status, "%s:%d", __FILE__, __LINE__);                    \
    } while (0)

/* A request with sensible values. */
boot_request crew_request(const expar_unique_id *id, int32_t rank, int32_t size);

#endif
