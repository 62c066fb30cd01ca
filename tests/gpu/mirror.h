/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the CPU's tests on GPUs: the harness and the tests of tests/ep are compiled a second time with the library's
 * calls renamed to these. Each copies the test's arguments to the rank's GPU, makes the call there on a stream of the
 * thread's own, and copies back when the call is done. The test sees host memory and compares with the same oracle.
 *
 * Rank r has GPU r modulo the number of GPUs. All calls are made with async_finish, whose event tells all that the CPU
 * tells at once; for a test that does not ask for an event the mirror waits. With EXPAR_TEST_PLAIN=1 such calls are
 * made without, but for those with num_worst_tokens, which then tell nobody. Numbers that only the device knows, with
 * num_worst_tokens, are read there. Rows for memory that peers cannot reach pass through the pool on a GPU, where they
 * come by the queue on the CPU: the test is told the latter.
 *
 * mirror_ll.h has the calls of low-latency mode.
 *
 *   worker.h  a thread's stream and memory   mirrored.h  what a call was lent   kept.h  results that a test looks at */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "gpu/mirror_ll.h"
#include <expar/expar.h>

expar_status mirror_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep);
expar_status mirror_ep_destroy(expar_ep *ep);
expar_status mirror_ep_get_layout(const expar_group *group, const expar_tensor *topk_idx, int32_t num_experts,
                                  const expar_ep_layout *layout);
expar_status mirror_ep_find_terms(const expar_group *group, const expar_ep_terms_args *args);
expar_status mirror_ep_sum_terms(const expar_group *group, const expar_ep_sum_args *args);
expar_status mirror_ep_route(expar_ep *ep, const expar_ep_route_args *args, expar_ep_route_result *result);
expar_status mirror_ep_dispatch(expar_ep *ep, const expar_ep_dispatch_args *args, expar_ep_dispatch_result *result);
expar_status mirror_ep_combine(expar_ep *ep, const expar_ep_combine_args *args, expar_ep_combine_result *result);
void mirror_output_release(expar_ep_output *output);
expar_status mirror_event_wait(expar_event *event);
expar_status mirror_event_query(expar_event *event, int *done);
void mirror_event_release(expar_event *event);

#ifdef MIRROR_RENAMES
#define expar_ep_create         mirror_ep_create
#define expar_ep_destroy        mirror_ep_destroy
#define expar_ep_get_layout     mirror_ep_get_layout
#define expar_ep_find_terms     mirror_ep_find_terms
#define expar_ep_sum_terms      mirror_ep_sum_terms
#define expar_ep_route          mirror_ep_route
#define expar_ep_dispatch       mirror_ep_dispatch
#define expar_ep_combine        mirror_ep_combine
#define expar_ep_output_release mirror_output_release
#define expar_event_wait        mirror_event_wait
#define expar_event_query       mirror_event_query
#define expar_event_release     mirror_event_release
/* Tests that need to know (tests/ep/harness/deal.h). */
#define EVENTS_HOLD_UP_THE_CALLER true
#define COUNTS_ARE_SHOWN          true
#define STAGE_MOST_PROCESSES      8
#endif

#endif
