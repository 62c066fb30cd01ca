/* SPDX-License-Identifier: Apache-2.0 */
/* Trees over the places 0 … count - 1 of a circle. Called by the barrier and by the collectives of teams. */
#ifndef EXPAR_SHMEM_TREE_H
#define EXPAR_SHMEM_TREE_H

#include "base/knobs.h"
#include <stdint.h>

/* The part of one place in the tree: from which place it gets the data, and to which ones it gives them. */
#define TREE_MOST_CHILDREN 64
typedef struct tree {
    int32_t parent; /* -1: the root */
    int32_t children[TREE_MOST_CHILDREN];
    int32_t num_children;
} tree;

/* Returns a star if there are at most `star` places (which is at most TREE_MOST_CHILDREN), else a binomial tree. */
tree tree_of(int32_t count, int32_t place, int32_t root, int32_t star);
/* The tree of a node's ranks. In a star the leader reads and writes the flags of all others itself, one load and one
   store for each. So no rank waits until a rank in between gets a core. */
static inline tree tree_of_node(int32_t count, int32_t place, int32_t root)
{
    return tree_of(count, place, root, (int32_t)knob(KNOB_TREE_STAR));
}

#endif
