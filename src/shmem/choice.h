/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm when: all thresholds of the collectives, and why. docs/pgas.md has the table. Private to shmem.
 *
 * They are compared with sizes that all members know to be the same, so that all choose alike. */
#ifndef EXPAR_SHMEM_CHOICE_H
#define EXPAR_SHMEM_CHOICE_H

#include <stddef.h>

/* Up to here a node's leader reads and writes all others' flags itself: a store and a look each, and nobody waits for
   a rank in between to get a core. Above, a binomial tree. */
#define CHOICE_STAR_MEMBERS 16

/* From here on data inside a node are fetched by all at once, where one rank would else copy for all of them; below,
   that rank's copying costs less than the telling that everybody has fetched. */
#define CHOICE_PULL_BYTES ((size_t)16 << 10)

/* Up to here everybody (of a node, or of the leaders) combines all of a small reduction itself: each takes as many
   pieces, and nobody hands on a result. */
#define CHOICE_FLAT_MEMBERS 16

/* The most bytes of a block that alltoall sends by way of leaders: what is saved is messages, and what it costs is that
   leaders copy for their nodes. */
#define CHOICE_LEADER_BLOCK_BYTES ((size_t)1 << 10)

#endif
