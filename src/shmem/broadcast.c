/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcast. Small ones, and all that leave the node, go down a tree: from the root to one leader on every node, and
 * from the leaders to the rest of their nodes, each a binomial tree, so that data crosses the network once a node.
 * Large ones among ranks that map each other are pulled from the root by all at once. */
#include "shmem/collective.h"

#define PULL_BYTES ((size_t)16 << 10)

/* The members of a node stand side by side in a team: ranks are numbered node by node. */
typedef struct block {
    int32_t first, size;
} block;

/* What a member does in the tree: from whom it has the data, and whom it gives them. */
#define MOST_CHILDREN 64
typedef struct tree {
    int32_t parent; /* -1: the root */
    int32_t children[MOST_CHILDREN];
    int32_t num_children;
} tree;

static int32_t node_of(const expar_team *team, int32_t member)
{
    return team->group->nodes[team_rank(team, member)];
}

static block block_of(const expar_team *team, int32_t member)
{
    int32_t node = node_of(team, member), first = member, end = member + 1;
    while (first > 0 && node_of(team, first - 1) == node)
        first--;
    while (end < team->size && node_of(team, end) == node)
        end++;
    return (block){first, end - first};
}

/* The root leads its own node, the first member any other. */
static int32_t leader_of(const block *b, int32_t root)
{
    return root >= b->first && root < b->first + b->size ? root : b->first;
}

/* Binomial tree over places 0 … count - 1: the parent of a place is the place without its lowest bit. Calls add for
   every child of `place`, the one with the most below it first. */
static int32_t parent_place(int32_t place)
{
    return place & (place - 1);
}

static void add_children(tree *t, int32_t place, int32_t count, int32_t (*member_at)(const void *, int32_t),
                         const void *places)
{
    int64_t reach = place == 0 ? (int64_t)1 << 31 : (place & -place);
    for (int64_t bit = reach / 2; bit > 0; bit /= 2)
        if (place + bit < count) t->children[t->num_children++] = member_at(places, (int32_t)(place + bit));
}

/* Places of the members of one node, the leader first. */
typedef struct node_places {
    block members;
    int32_t leader;
} node_places;

static int32_t node_member_at(const void *places, int32_t place)
{
    const node_places *p = places;
    return p->members.first + (p->leader - p->members.first + place) % p->members.size;
}

static int32_t node_place_of(const node_places *p, int32_t member)
{
    return (member - p->leader + p->members.size) % p->members.size;
}

/* Places of the nodes, the root's first. */
typedef struct leader_places {
    const expar_team *team;
    int32_t root, count, root_number; /* the root's node is the root_number-th in the team's order */
} leader_places;

static int32_t leader_at(const void *places, int32_t place)
{
    const leader_places *p = places;
    block b = block_of(p->team, 0);
    for (int32_t skip = (p->root_number + place) % p->count; skip > 0; skip--)
        b = block_of(p->team, b.first + b.size);
    return leader_of(&b, p->root);
}

/* Counts the nodes, and says which one in the team's order a member is on. */
static int32_t count_nodes(const expar_team *team, int32_t member, int32_t *number)
{
    int32_t count = 0;
    for (int32_t first = 0; first < team->size; count++) {
        block b = block_of(team, first);
        if (member >= b.first && member < b.first + b.size) *number = count;
        first += b.size;
    }
    return count;
}

static void add_leaders(tree *t, const expar_team *team, int32_t root)
{
    int32_t mine = 0;
    leader_places places = {.team = team, .root = root};
    places.count = count_nodes(team, root, &places.root_number);
    count_nodes(team, team->me, &mine);
    int32_t place = (mine - places.root_number + places.count) % places.count;
    t->parent = place == 0 ? -1 : leader_at(&places, parent_place(place));
    add_children(t, place, places.count, leader_at, &places);
}

static tree tree_of(const expar_team *team, int32_t root)
{
    tree t = {.parent = -1};
    node_places places = {.members = block_of(team, team->me)};
    places.leader = leader_of(&places.members, root);
    int32_t place = node_place_of(&places, team->me);
    if (place == 0)
        add_leaders(&t, team, root);
    else
        t.parent = node_member_at(&places, parent_place(place));
    add_children(&t, place, places.members.size, node_member_at, &places);
    return t;
}

static expar_status push_down(const collective *c, size_t bytes, int32_t root)
{
    tree t = tree_of(c->team, root);
    const void *data = t.parent < 0 ? c->source : c->dest;
    expar_status status = t.parent < 0 ? EXPAR_OK : channel_hear(c->team, t.parent, c->call);
    for (int32_t i = 0; i < t.num_children && status == EXPAR_OK; i++) {
        status = channel_put(c->team, t.children[i], c->dest_offset, data, bytes);
        if (status == EXPAR_OK) status = channel_tell(c->team, t.children[i]);
    }
    return status;
}

/* The root says that its source is ready, and returns when all have fetched it. */
static expar_status pull(const collective *c, size_t bytes, int32_t root, uint64_t source_offset)
{
    if (c->team->me == root) {
        expar_status status = collective_tell_others(c);
        return status == EXPAR_OK ? collective_hear_others(c) : status;
    }
    expar_status status = channel_hear(c->team, root, c->call);
    if (status == EXPAR_OK) status = channel_get(c->team, root, c->dest, source_offset, bytes);
    return status == EXPAR_OK ? channel_tell(c->team, root) : status;
}

/* Does rank map pe's heap? All ranks know of all. */
static bool maps(const sym *self, int32_t rank, int32_t pe)
{
    bool mapped = rank == pe;
    for (int32_t t = 0; t < self->num_transports; t++)
        mapped = mapped || (sym_reach(self, rank, pe, t) & TRANSPORT_MAP);
    return mapped;
}

/* The same answer on all members, or they would wait for each other in different ways. */
static bool is_for_pulling(const expar_team *team, size_t bytes, int32_t root)
{
    bool mapped = bytes >= PULL_BYTES;
    for (int32_t member = 0; member < team->size && mapped; member++)
        mapped = maps(team->group->sym, team_rank(team, member), team_rank(team, root));
    return mapped;
}

static expar_status broadcast(const char *call, expar_team *team, void *dest, const void *source, size_t bytes,
                              int32_t root, bool own_too)
{
    uint64_t source_offset = 0;
    collective c = {.call = call, .team = team, .dest = dest, .source = source};
    expar_status status = collective_check(&c, bytes, bytes);
    if (status == EXPAR_OK && (root < 0 || root >= team->size))
        status = error_set(EXPAR_ERR_RANGE, "%s: root %d, expected 0 to %d", call, root, team->size - 1);
    if (status == EXPAR_OK && bytes > 0)
        status = target_check_range(call, team->group, "source", source, bytes, &source_offset);
    if (status != EXPAR_OK) return status;
    if (team->size > 1)
        status = is_for_pulling(team, bytes, root) ? pull(&c, bytes, root, source_offset) : push_down(&c, bytes, root);
    if (status == EXPAR_OK && own_too && team->me == root) collective_copy(dest, source, bytes);
    return status;
}

expar_status expar_broadcast(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root)
{
    return broadcast("expar_broadcast", team, dest, source, bytes, root, true);
}

expar_status expar_broadcast_others(expar_team *team, void *dest, const void *source, size_t bytes, int32_t root)
{
    return broadcast("expar_broadcast_others", team, dest, source, bytes, root, false);
}
