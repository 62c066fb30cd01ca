/* SPDX-License-Identifier: Apache-2.0 */
/* A table: thread or process ranks with one EP buffer on which deals are run by hand. */
#ifndef TESTS_EP_HARNESS_TABLE_H
#define TESTS_EP_HARNESS_TABLE_H

#include "ep/harness/deal.h"
#include "ep/harness/ranks.h"

#define TABLE_MAX_RANKS 8

/* One case: a routing, and the calls that are made with it, by every path in turn. All zero but for what a case names;
   see table_case. */
typedef struct table_case {
    deal_plan plan;                                  /* without choices */
    deal_choice choice;                              /* of every rank's dispatches */
    move_form there, back;                           /* kinds are filled in */
    deal_choice back_choice;                         /* of every rank's combines */
    void (*shape)(deal *d);                          /* changes what was drawn; may be NULL */
    void (*vary)(deal_choice *choice, int32_t rank); /* of dispatches, by rank; may be NULL */
    int32_t num_channels, ring_slots;
    int64_t pool_bytes;
} table_case;

/* 3 ranks of 2 experts, 5 tokens each, K 3, rows of 32 bytes of bf16 both ways. */
table_case table_case_make(void);

typedef struct table {
    expar_group *group;
    expar_ep *ep;
    int32_t rank;
    trial_area area;
    const table_case *what;
    void *shared;
} table;

/* Cases of one test, one added after the other. All zero at its beginning. */
#define TABLE_MOST_CASES 16
typedef struct table_cases {
    table_case cases[TABLE_MOST_CASES];
    size_t count;
} table_cases;
void table_add(table_cases *list, const table_case *what);

typedef void (*table_body)(table *t);
/* Sets the table on all ranks, runs, and clears it. True when no check failed. */
bool table_run(const table_case *what, ranks_kind kind, table_body body, void *shared);
/* Several cases of as many ranks each, one after another by the same ranks: to start ranks that are processes takes
   longer than most cases do, on GPUs in particular. */
bool table_run_all(const table_case *cases, size_t count, ranks_kind kind, table_body body, void *shared);

/* A body: a first dispatch, repeats and combines, by every path, sync and async. */
void table_trial_all_paths(table *t);

/* For bodies that play move by move: all ranks draw the same from `random`. */
deal *table_deal(const table *t, const deal_choice *choice, random_source *random);
deal_move *table_move(const table *t, const deal *d, move_kind kind, const deal_choice *choice, random_source *random);
/* One call with the handle, which a first dispatch sets. */
bool table_trial_move(table *t, const deal *d, move_kind kind, const deal_choice *choice, random_source *random,
                      expar_ep_handle **handle);
/* A call's event that has ended badly: EXPAR_ERR_DROPPED, "three of five". */
expar_event *table_failed_event(void);

#endif
