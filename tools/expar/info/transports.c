/* SPDX-License-Identifier: Apache-2.0 */
/* Transports. A group of thread ranks on this machine is formed and asked which ranks reach which others, and how. */
#include "info.h"
#include <expar/group.h>
#include <expar/info.h>
#include <stdlib.h>

#define HEAP_BYTES ((size_t)16 << 20)

/* Returns a cell such as "MPGA": map, put, get, atomics. A capital is selected. With a small letter another transport
   is preferred; '-' is not available. */
static json_t *cell(const expar_group *group, int32_t index, int32_t pe)
{
    static const char letters[] = "mpga";
    unsigned reach = expar_transport_reach(group, index, expar_group_rank(group), pe);
    unsigned selected = expar_transport_selected(group, index, pe);
    char text[5] = "----";
    for (int bit = 0; bit < 4; bit++) {
        if (reach & 1u << bit) text[bit] = letters[bit];
        if (selected & 1u << bit) text[bit] = (char)(letters[bit] - 'a' + 'A');
    }
    return json_string(text);
}

static json_t *matrix(expar_group *const *groups, int num_ranks, int32_t index)
{
    json_t *rows = json_array();
    for (int rank = 0; rank < num_ranks; rank++) {
        json_t *row = json_array();
        for (int pe = 0; pe < num_ranks; pe++)
            json_array_append_new(row, cell(groups[rank], index, pe));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Returns how the transport carries data of each kind of memory. */
static json_t *ways_of(const expar_group *group, int32_t index)
{
    return json_pack("{s:s, s:s, s:s}", "host", expar_transport_way(group, index, EXPAR_MEMORY_HOST), "pinned",
                     expar_transport_way(group, index, EXPAR_MEMORY_PINNED), "device",
                     expar_transport_way(group, index, EXPAR_MEMORY_DEVICE));
}

static json_t *list_of(expar_group *const *groups, int num_ranks)
{
    json_t *list = json_array();
    const char *name;
    char text[512];
    for (int32_t i = 0; expar_transport_describe(groups[0], i, &name, text, sizeof text); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o, s:o}", "name", name, "reach",
                                              expar_transport_summary(groups[0], i), "note", text, "memory",
                                              ways_of(groups[0], i), "matrix", matrix(groups, num_ranks, i)));
    return list;
}

/* Returns the place of this machine, where all these ranks are. */
static json_t *place_of(const expar_group *group)
{
    expar_group_place place = EXPAR_GROUP_PLACE_INIT;
    if (expar_group_get_place(group, 0, &place) != EXPAR_OK) return json_null();
    return json_pack("{s:i, s:i, s:s}", "cores", place.cores, "numa_node", place.numa_node, "nics", place.nics);
}

static void destroy(expar_group **groups, int num_ranks)
{
    /* One thread cannot make the collective call for all ranks. */
    for (int rank = 0; rank < num_ranks; rank++)
        expar_group_abort(groups[rank]);
    for (int rank = 0; rank < num_ranks; rank++)
        expar_group_destroy(groups[rank]);
}

json_t *info_transports(int num_ranks, int num_nodes)
{
    expar_group_options options = EXPAR_GROUP_OPTIONS_INIT;
    expar_group **groups = calloc((size_t)num_ranks, sizeof *groups);
    if (!groups) return NULL;
    options.ranks_per_node = num_ranks / num_nodes;
    options.heap_bytes = HEAP_BYTES;
    json_t *found = NULL;
    if (expar_group_create_threads(num_ranks, &options, groups) != EXPAR_OK) {
        found = json_pack("{s:i, s:i, s:[], s:s}", "ranks", num_ranks, "nodes", num_nodes, "list", "missing",
                          expar_last_error());
    } else {
        found = json_pack("{s:i, s:i, s:o, s:o, s:s?}", "ranks", num_ranks, "nodes", num_nodes, "place",
                          place_of(groups[0]), "list", list_of(groups, num_ranks), "missing",
                          expar_transport_missing(groups[0]));
        destroy(groups, num_ranks);
    }
    free(groups);
    return found;
}
