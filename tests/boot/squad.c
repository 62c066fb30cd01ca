/* SPDX-License-Identifier: Apache-2.0 */
/* squad: ranks that are threads of this process, and how each one ended. */
#include "boot/squad.h"
#include "boot/unit.h"

static void *thread_main(void *argument)
{
    squad_rank *self = argument;
    error_keep(&self->ended, self->body(self->group, self->context));
    return NULL;
}

void squad_start(squad_rank *self, boot *group, squad_body body, void *context)
{
    *self = (squad_rank){.group = group, .body = body, .context = context};
    assert_int_equal(pthread_create(&self->thread, NULL, thread_main, self), 0);
}

void squad_run(squad_rank *ranks, int32_t size, int64_t timeout_ms, squad_body body, void *context)
{
    boot *groups[CREW_MAX];
    assert_int_equal(boot_join_threads(size, timeout_ms, groups), EXPAR_OK);
    for (int32_t rank = 0; rank < size; rank++)
        squad_start(&ranks[rank], groups[rank], body, context);
    for (int32_t rank = 0; rank < size; rank++)
        pthread_join(ranks[rank].thread, NULL);
}

void squad_assert_ok(const squad_rank *ranks, int32_t size)
{
    for (int32_t rank = 0; rank < size; rank++) {
        if (ranks[rank].ended.status != EXPAR_OK) fail_msg("rank %d: %s", rank, ranks[rank].ended.text);
    }
}
