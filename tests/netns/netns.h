/* SPDX-License-Identifier: Apache-2.0 */
/* netns: a network of two hosts for tests, or of more: network namespaces joined by virtual cables.
 *
 * The namespaces have no names. They live by descriptors and processes alone, so whatever ends a test leaves nothing
 * behind, and tests that run at once do not meet. Two hosts have two cables. On them the hosts are called 198.18.C.1
 * (host 0) and 198.18.C.2 (host 1), where C is the cable; its ends are called netC on both hosts. More hosts have one
 * cable each, net0, to a bridge that is net0 of host 0, and host h is called 198.18.0.(h + 1). */
#ifndef TESTS_NETNS_NETNS_H
#define TESTS_NETNS_NETNS_H

#include <stdbool.h>
#include <stdint.h>

#define NETNS_INTERFACE "net0"             /* where ranks meet, unless a test says otherwise */
#define NETNS_VARIABLE  "EXPAR_TEST_NETNS" /* "HOST0:HOST1…": paths of the namespaces, for ranks to enter */
#define NETNS_MOST      4                  /* hosts */
#define NETNS_SKIPPED   77                 /* exit code of a test for which namespaces are not to be had */

typedef struct netns {
    int hosts[NETNS_MOST], count;
} netns;

/* Makes two hosts, or so many, moves this process (which has one thread) to host 0, and sets NETNS_VARIABLE and
   EXPAR_BOOTSTRAP_INTERFACE. False, and the reason on stderr, when this machine does not allow it. */
bool netns_make(netns *self);
bool netns_make_hosts(netns *self, int count);
/* The network ends with the last of its processes. */
void netns_drop(netns *self);
/* The status of a test that cannot have namespaces: NETNS_SKIPPED, or failure where EXPAR_REQUIRE_NETNS=1. */
int netns_skip(void);
/* Runs a shell's command on a host; false, and its output on stderr, when it fails. */
bool netns_command(const netns *self, int host, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The host of a rank, 0 where there are none: nodes (ranks_per_node 0: single ranks) are dealt out in equal parts, in
 * order. */
int netns_host_of(int32_t rank, int32_t size, int32_t ranks_per_node);
/* Whether ranks are on such hosts: then groups are dear, and suites that have been run on one host leave out sizes. */
bool netns_on(void);
/* How often a test repeats what it does `rounds` times on one host: between hosts a round takes far longer. */
uint64_t netns_rounds(uint64_t rounds);
/* Moves a rank's process, which has one thread, to its host, where there are any. */
bool netns_enter(int32_t rank, int32_t size, int32_t ranks_per_node);

#endif
