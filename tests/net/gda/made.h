/* SPDX-License-Identifier: Apache-2.0 */
/* A queue with memory of its own, for tests that are its device themselves, or give it to the software NIC. */
#ifndef TESTS_NET_GDA_MADE_H
#define TESTS_NET_GDA_MADE_H

#include "net/gda/gda.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MADE_QPN  0x123456
#define MADE_PE   3
#define MADE_LKEY 0x00ee1100u

typedef struct made {
    gda_plan plan;
    gda_queue queue;
    _Atomic uint32_t record[GDA_RECORD_WORDS], cq_record;
    _Atomic uint64_t doorbell, stop, told;
    gda_block *blocks;
    _Atomic uint32_t *cqes;
    uint64_t *results;
} made;

static const gda_plan made_small = {.depth = 16,
                                    .cq_entries = 16,
                                    .batch = 4,
                                    .most = 8,
                                    .num_results = 4,
                                    .scope = GDA_SCOPE_SYSTEM,
                                    .ringer = GDA_RINGER_GPU,
                                    .collapsed = true,
                                    .first = 0xfff8};

static inline void made_begin(made *m, const gda_plan *plan)
{
    *m = (made){.plan = *plan};
    assert_int_equal(gda_plan_check(plan), EXPAR_OK);
    m->blocks = aligned_alloc(GDA_BLOCK_BYTES, (size_t)plan->depth * GDA_BLOCK_BYTES);
    m->cqes = calloc((size_t)plan->cq_entries * GDA_CQE_WORDS, sizeof *m->cqes);
    m->results = calloc((size_t)plan->num_results + 1, sizeof *m->results);
    assert_true(m->blocks && m->cqes && m->results);
    memset(m->blocks, 0xee, (size_t)plan->depth * GDA_BLOCK_BYTES);
    gda_cqes_clear(plan, m->cqes);
    gda_record_clear(plan, m->record);
    const gda_parts parts = {.blocks = m->blocks,
                             .record = m->record,
                             .doorbell = &m->doorbell,
                             .cqes = m->cqes,
                             .cq_record = &m->cq_record,
                             .stop = &m->stop,
                             .told = &m->told,
                             .results = m->results,
                             .results_address = (uintptr_t)m->results,
                             .results_lkey = MADE_LKEY};
    gda_queue_start(&m->queue, plan, &parts, MADE_QPN, MADE_PE);
}

static inline void made_end(made *m)
{
    free(m->blocks);
    free((void *)m->cqes);
    free(m->results);
}

#endif
