/* SPDX-License-Identifier: Apache-2.0 */
/* Stars and binomial trees. Both count from the root: step 0 is the root, step 1 the place after it, and so on around
 * the circle. */
#include "shmem/tree.h"

/* The parent of a step is the step without its lowest bit; the child with the most below it comes first. */
static void add_binomial(tree *t, int32_t step, int32_t count)
{
    int64_t reach = step == 0 ? (int64_t)1 << 31 : (step & -step);
    t->parent = step == 0 ? -1 : (step & (step - 1));
    for (int64_t bit = reach / 2; bit > 0; bit /= 2)
        if (step + bit < count) t->children[t->num_children++] = (int32_t)(step + bit);
}

static void add_star(tree *t, int32_t step, int32_t count)
{
    t->parent = step == 0 ? -1 : 0;
    for (int32_t child = 1; child < count && step == 0; child++)
        t->children[t->num_children++] = child;
}

static int32_t place_at(int32_t step, int32_t root, int32_t count)
{
    return (int32_t)(((int64_t)step + root) % count);
}

tree tree_of(int32_t count, int32_t place, int32_t root, int32_t star)
{
    tree t = {.num_children = 0};
    int32_t step = (place - root + count) % count;
    if (count <= star)
        add_star(&t, step, count);
    else
        add_binomial(&t, step, count);
    if (t.parent >= 0) t.parent = place_at(t.parent, root, count);
    for (int32_t i = 0; i < t.num_children; i++)
        t.children[i] = place_at(t.children[i], root, count);
    return t;
}
