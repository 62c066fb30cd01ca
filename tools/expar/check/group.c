/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that need several ranks: who is where, what all ranks found, and what lies between them. */
#include "check.h"
#include "group/tools.h"
#include <expar/expar.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Beyond this the table of pairs would exceed what the control sockets carry at once. */
#define MOST_PAIRED 4096

/* ---- hosts ------------------------------------------------------------------------------------------------------- */

static void hosts_free(struct check_host *hosts)
{
    free(hosts->of);
    free(hosts->node);
    free(hosts->first);
    free(hosts->names);
}

/* Makes a name safe to print, and different from that of any other host: containers often share one. */
static void name_host(struct check_host *hosts, int32_t rank)
{
    char *name = hosts->names[rank];
    name[sizeof *hosts->names - 1] = 0;
    for (unsigned char *c = (unsigned char *)name; *c; c++)
        if (*c <= 0x20 || *c >= 0x7f) *c = '?';
    const int32_t first = hosts->first[hosts->of[rank]];
    if (first != rank) {
        memcpy(name, hosts->names[first], sizeof *hosts->names);
        return;
    }
    const size_t length = strnlen(name, sizeof *hosts->names - 1);
    for (int32_t host = 0; host < hosts->of[rank]; host++)
        if (strncmp(name, hosts->names[hosts->first[host]], length) == 0) {
            snprintf(name + (length < 50 ? length : 50), 15, "/%d", hosts->of[rank]);
            return;
        }
}

static void hosts_number(struct check_host *hosts, const expar_group *group)
{
    for (int32_t rank = 0; rank < group->size; rank++) {
        int32_t host = 0;
        while (host < hosts->count && group_host(group, hosts->first[host]) != group_host(group, rank))
            host++;
        if (host == hosts->count) hosts->first[hosts->count++] = rank;
        hosts->of[rank] = host;
        hosts->node[rank] = group->nodes[rank];
    }
}

static expar_status hosts_find(expar_group *group, struct check_host *hosts)
{
    const size_t ranks = (size_t)group->size;
    char mine[sizeof *hosts->names] = "host";
    *hosts = (struct check_host){.of = calloc(ranks, sizeof *hosts->of),
                                 .node = calloc(ranks, sizeof *hosts->node),
                                 .first = calloc(ranks, sizeof *hosts->first),
                                 .names = calloc(ranks, sizeof *hosts->names)};
    if (!hosts->of || !hosts->node || !hosts->first || !hosts->names) return EXPAR_ERR_MEMORY;
    gethostname(mine, sizeof mine - 1);
    expar_status status = expar_group_allgather(group, mine, hosts->names, sizeof mine);
    if (status != EXPAR_OK) return status;
    hosts_number(hosts, group);
    for (int32_t rank = 0; rank < group->size; rank++)
        name_host(hosts, rank);
    return EXPAR_OK;
}

/* ---- rows of all ranks ------------------------------------------------------------------------------------------- */

/* Gathers the longest text's length from all ranks; a rank without a text gives 0. */
static expar_status longest_text(expar_group *group, const char *text, size_t *most)
{
    const size_t ranks = (size_t)group->size;
    uint64_t mine = text ? strlen(text) + 1 : 0, *all = calloc(ranks, sizeof *all);
    expar_status status = all ? expar_group_allgather(group, &mine, all, sizeof mine) : EXPAR_ERR_MEMORY;
    *most = 0;
    for (size_t i = 0; i < ranks && status == EXPAR_OK; i++) {
        if (all[i] == 0 || all[i] > EXPAR_CONTROL_MAX_BYTES) status = EXPAR_ERR_MEMORY;
        if (all[i] > *most) *most = all[i];
    }
    free(all);
    return status;
}

/* Parses the texts of all ranks, texts[ranks][bytes], and merges them. NULL: a text is none. */
static json_t *texts_merge(int32_t ranks, char *texts, size_t bytes)
{
    json_t **lists = calloc((size_t)ranks, sizeof(json_t *)), *merged = NULL;
    bool good = lists != NULL;
    for (int32_t rank = 0; rank < ranks && good; rank++) {
        char *text = texts + (size_t)rank * bytes;
        text[bytes - 1] = 0;
        lists[rank] = json_loads(text, 0, NULL);
        good = json_is_array(lists[rank]);
    }
    if (good) merged = check_merge(ranks, lists);
    for (int32_t rank = 0; rank < ranks && lists; rank++)
        json_decref(lists[rank]);
    free(lists);
    return merged;
}

/* Replaces this rank's rows by those of all ranks, on rank 0. */
static expar_status gather_rows(expar_group *group, json_t **rows)
{
    char *mine = json_dumps(*rows, JSON_COMPACT), *padded = NULL, *texts = NULL;
    size_t bytes = 0;
    expar_status status = longest_text(group, mine, &bytes);
    if (status == EXPAR_OK && bytes > 0) {
        padded = calloc(bytes, 1);
        texts = calloc((size_t)group->size, bytes);
        if (padded) snprintf(padded, bytes, "%s", mine);
        status = padded && texts ? expar_group_allgather(group, padded, texts, bytes) : EXPAR_ERR_MEMORY;
    }
    if (status == EXPAR_OK && group->rank == 0) {
        json_t *merged = texts_merge(group->size, texts, bytes);
        status = merged ? EXPAR_OK : EXPAR_ERR_MEMORY;
        if (merged) json_decref(*rows);
        if (merged) *rows = merged;
    }
    free(texts);
    free(padded);
    free(mine);
    return status;
}

/* ---- between the ranks ------------------------------------------------------------------------------------------- */

static void skip(json_t *rows, const char *area, const char *name, const char *why)
{
    check_add(rows, &(struct check_row){area, name, CHECK_SKIPPED, "ranks on several hosts", NULL}, "%s", why);
}

/* Says on rank 0 why these rows have no value. */
static void skip_rows(const expar_group *group, json_t *rows, const char *const *names, size_t count, const char *why)
{
    for (size_t i = 0; i < count && group->rank == 0; i++)
        skip(rows, strncmp(names[i], "mtu", 3) == 0 || strcmp(names[i], "providers") == 0 ? "network" : "group",
             names[i], why);
}

static expar_status check_pairs(expar_group *group, const struct check_host *hosts, json_t *rows)
{
    const size_t ranks = (size_t)group->size;
    static const char *const names[] = {"pair_latency", "pair_rate"};
    for (size_t i = 0; i < 2 && (ranks < 2 || ranks > MOST_PAIRED) && group->rank == 0; i++)
        check_add(rows, &(struct check_row){"group", names[i], CHECK_SKIPPED, "2 to 4096 ranks", NULL}, "%zu ranks",
                  ranks);
    if (ranks < 2 || ranks > MOST_PAIRED) return EXPAR_OK;
    struct check_pair *pairs = calloc(ranks * ranks, sizeof *pairs);
    expar_status status = pairs ? check_measure_pairs(group, pairs) : EXPAR_ERR_MEMORY;
    if (status == EXPAR_OK && group->rank == 0) check_judge_pairs(hosts, group->size, pairs, rows);
    free(pairs);
    return status;
}

/* The first rank of each host measures its GPUs, while the others wait. */
static expar_status check_gpu_pairs(expar_group *group, const struct check_host *hosts, json_t *rows)
{
    struct check_gpu_rates mine = {0}, *all = calloc((size_t)group->size, sizeof *all);
    if (!all) return EXPAR_ERR_MEMORY;
    if (hosts->first[hosts->of[group->rank]] == group->rank) check_measure_gpus(&mine);
    expar_status status = expar_group_allgather(group, &mine, all, sizeof mine);
    if (status == EXPAR_OK && group->rank == 0) check_judge_gpus(hosts, all, rows);
    free(all);
    return status;
}

/* A transport that does not reach all ranks leaves some pairs unmeasured: the whole group must. */
static bool reaches_all(const expar_group *group)
{
    for (int32_t pe = 0; pe < group->size; pe++) {
        unsigned reach = 0;
        for (int32_t i = 0; expar_transport_summary(group, i); i++)
            reach |= expar_transport_selected(group, i, pe);
        if (!(reach & EXPAR_REACH_PUT)) return false;
    }
    return true;
}

static expar_status agree_on_reach(expar_group *group, bool *all_reached)
{
    unsigned char mine = reaches_all(group), *all = calloc((size_t)group->size, 1);
    expar_status status = all ? expar_group_allgather(group, &mine, all, 1) : EXPAR_ERR_MEMORY;
    *all_reached = true;
    for (int32_t rank = 0; rank < group->size && status == EXPAR_OK; rank++)
        *all_reached = *all_reached && all[rank];
    free(all);
    return status;
}

static expar_status measure(expar_group *group, const struct check_plan *plan, const struct check_host *hosts,
                            json_t *rows)
{
    bool all_reached;
    expar_status status = agree_on_reach(group, &all_reached);
    if (status != EXPAR_OK) return status;
    if (!all_reached) {
        if (group->rank == 0)
            check_add(rows,
                      &(struct check_row){"group", "pair_rate", CHECK_FAILURE, "a transport reaches each pair of ranks",
                                          "expar info -n N --nodes M   (shows who reaches whom, and what is missing)"},
                      "some ranks reach each other by no transport");
        return EXPAR_OK;
    }
    status = check_pairs(group, hosts, rows);
    if (status == EXPAR_OK && plan->load_s > 0 && group->size > 1) status = check_load(group, plan, hosts, rows);
    return status;
}

/* Rows of all ranks, and their clocks. */
static expar_status compare_ranks(expar_group *group, const struct check_plan *plan, const struct check_host *hosts,
                                  json_t **rows)
{
    static const char *const same_host[] = {"mtu", "mtu_path", "clocks"};
    static const char *const same_process[] = {"versions"};
    expar_status status = EXPAR_OK;
    if (plan->in_job) {
        check_add(*rows, &(struct check_row){"group", "versions", CHECK_OK, "equal on all ranks", NULL}, "%s",
                  expar_version());
        status = gather_rows(group, rows);
    } else {
        skip_rows(group, *rows, same_process, 1, "all ranks are in one process");
    }
    if (hosts->count == 1) skip_rows(group, *rows, same_host, 3, "all ranks are on one host");
    return status == EXPAR_OK && hosts->count > 1 ? check_clocks(group, hosts, *rows) : status;
}

expar_status check_hosts(expar_group *group, const struct check_plan *plan, struct check_found *found, json_t **rows)
{
    static const char *const blocked[] = {"versions", "clocks",    "pair_latency", "pair_rate",
                                          "gpu_rate", "providers", "selftest"};
    struct check_host hosts = {0};
    bool whole = true;
    json_t *paths = json_array();
    expar_status status = paths ? hosts_find(group, &hosts) : EXPAR_ERR_MEMORY;
    if (status == EXPAR_OK && hosts.count > 1) status = check_mtu(group, &hosts, &whole, paths);
    *found = (struct check_found){.num_hosts = hosts.count, .blocked = !whole};
    if (status == EXPAR_OK && whole) status = compare_ranks(group, plan, &hosts, rows);
    if (status == EXPAR_OK && !whole)
        skip_rows(group, *rows, blocked, sizeof blocked / sizeof *blocked,
                  "full packets are lost: mend mtu_path first");
    if (paths && group->rank == 0) json_array_extend(*rows, paths);
    json_decref(paths);
    hosts_free(&hosts);
    return status;
}

expar_status check_links(expar_group *group, const struct check_plan *plan, json_t *rows)
{
    struct check_host hosts = {0};
    expar_status status = hosts_find(group, &hosts);
    if (status == EXPAR_OK) status = check_gpu_pairs(group, &hosts, rows);
    if (status == EXPAR_OK) status = measure(group, plan, &hosts, rows);
    hosts_free(&hosts);
    return status;
}

expar_status check_network(expar_group *group, const struct check_plan *plan, bool needed, json_t *rows)
{
    json_t *mine = json_array();
    expar_status status = mine ? EXPAR_OK : EXPAR_ERR_MEMORY;
    if (status == EXPAR_OK) check_providers(plan->site, group, needed, mine);
    if (status == EXPAR_OK && plan->in_job) status = gather_rows(group, &mine);
    if (status == EXPAR_OK && group->rank == 0) json_array_extend(rows, mine);
    json_decref(mine);
    return status;
}
