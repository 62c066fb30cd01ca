/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm when: all thresholds of the collectives, and why. docs/internals/pgas.md has the table. Private to
 * pgas/team.
 *
 * They are compared with sizes that all members know to be the same, so that all choose alike. */
#ifndef EXPAR_PGAS_TEAM_CHOICE_H
#define EXPAR_PGAS_TEAM_CHOICE_H

#include <stddef.h>

/* From here on all ranks of a node fetch data at once, where one rank would else copy for all of them. Below, that
   rank's copying costs less than telling that everybody has fetched. */
#define CHOICE_PULL_BYTES ((size_t)16 << 10)

/* Up to here everybody (of a node, or of the leaders) combines all of a small reduction itself: each takes as many
   pieces, and nobody passes on a result. */
#define CHOICE_FLAT_MEMBERS 16

/* A message between leaders, with the packing and forwarding around it, costs as much as so many messages between two
   members. alltoall goes by leaders where this saves some. (2 and 4 simulated nodes of 8 ranks on 2 cores, tcp: a round
   between 2 leaders takes some 200 us. A block that each of 4 members sends to 4 others by itself takes 1200 us; with 4
   rounds both take the same.) */
#define CHOICE_RELAY_COST 2

#endif
