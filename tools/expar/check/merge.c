/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of all ranks as one list. */
#include "check.h"
#include <stdlib.h>
#include <string.h>

/* Rows whose values must be equal on all ranks, and what a difference is. */
static const struct equal_rule {
    const char *name;
    enum check_status status;
    const char *remedy;
} equal_rules[] = {
    {"versions", CHECK_FAILURE, "install one version of expar on all hosts"},
    {"providers", CHECK_WARNING, "EXPAR_FABRIC_PROVIDER=NAME on all ranks   (fi_info -l lists the providers)"},
    {"gpu_driver", CHECK_WARNING, "install one version of NVIDIA's driver on all hosts"},
    {"nvrtc", CHECK_WARNING, "install one version of NVRTC on all hosts"},
    {"governor", CHECK_WARNING, "sudo cpupower frequency-set -g performance   (on all hosts)"},
    {"huge_pages", CHECK_WARNING, "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled"},
};

static const struct equal_rule *rule_of(const char *name)
{
    for (size_t i = 0; i < sizeof equal_rules / sizeof *equal_rules; i++)
        if (strcmp(equal_rules[i].name, name) == 0) return &equal_rules[i];
    return NULL;
}

void check_ranks_text(const bool *set, int32_t ranks, struct check_text *text)
{
    for (int32_t rank = 0; rank < ranks; rank++) {
        if (!set[rank]) continue;
        int32_t last = rank;
        while (last + 1 < ranks && set[last + 1])
            last++;
        check_text_add(text, "%s%d", text->used ? ", " : "", rank);
        if (last > rank) check_text_add(text, "-%d", last);
        rank = last;
    }
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = row ? json_string_value(json_object_get(row, key)) : NULL;
    return text ? text : "";
}

/* Finds a rank's row of that name. A peer's list may hold anything. */
static const json_t *row_find(const json_t *list, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row)
    {
        if (strcmp(text_of(row, "name"), name) == 0) return row;
    }
    return NULL;
}

/* The rows of one name on all ranks. */
struct same_rows {
    const json_t **rows; /* [ranks]; NULL: the rank has none */
    bool *set;           /* [ranks] scratch */
    int32_t ranks;
};

/* Returns the first row of the worst status. */
static const json_t *worst_of(const struct same_rows *same)
{
    const json_t *worst = NULL;
    for (int32_t rank = 0; rank < same->ranks; rank++)
        if (same->rows[rank] && (!worst || check_status_of(same->rows[rank]) > check_status_of(worst)))
            worst = same->rows[rank];
    return worst;
}

static bool is_equal(const struct same_rows *same, int32_t a, int32_t b)
{
    return strcmp(text_of(same->rows[a], "value"), text_of(same->rows[b], "value")) == 0;
}

/* Writes "VALUE on ranks A; VALUE on ranks B". Returns the number of different values. */
static int values_text(const struct same_rows *same, struct check_text *text)
{
    int count = 0;
    for (int32_t rank = 0; rank < same->ranks; rank++) {
        struct check_text ranks = {0};
        bool first = true;
        for (int32_t other = 0; other < rank && first; other++)
            first = !is_equal(same, other, rank);
        if (!first) continue;
        for (int32_t other = 0; other < same->ranks; other++)
            same->set[other] = is_equal(same, other, rank);
        check_ranks_text(same->set, same->ranks, &ranks);
        const char *value = text_of(same->rows[rank], "value");
        check_text_add(text, "%s%s (ranks %s)", count ? "; " : "", *value ? value : "nothing", ranks.text);
        count++;
    }
    return count;
}

static void ranks_of_status(const struct same_rows *same, enum check_status status, struct check_text *text)
{
    for (int32_t rank = 0; rank < same->ranks; rank++)
        same->set[rank] = same->rows[rank] && check_status_of(same->rows[rank]) == status;
    check_ranks_text(same->set, same->ranks, text);
}

static void merge_row(const struct same_rows *same, const char *name, json_t *merged)
{
    const json_t *worst = worst_of(same);
    const struct equal_rule *rule = rule_of(name);
    struct check_text values = {0}, ranks = {0};
    const int count = values_text(same, &values);
    enum check_status status = check_status_of(worst);
    const bool differs = rule && count > 1 && status < rule->status;
    ranks_of_status(same, status, &ranks);
    const char *remedy = text_of(worst, "remedy");
    struct check_row row = {text_of(worst, "area"), name, differs ? rule->status : status,
                            differs ? "equal on all ranks" : text_of(worst, "expected"),
                            differs   ? rule->remedy
                            : *remedy ? remedy
                                      : NULL};
    check_add(merged, &row, "%s", count > 1 ? values.text : text_of(worst, "value"));
    json_t *added = json_array_get(merged, json_array_size(merged) - 1);
    if (differs) ranks = (struct check_text){0};
    if (differs) check_text_add(&ranks, "0-%d", same->ranks - 1);
    json_object_set_new(added, "ranks", json_string(ranks.text));
}

/* Merges the rows that have the names of a list's rows and are not merged yet. */
static void merge_names(const json_t *names, json_t *const *lists, const struct same_rows *same, json_t *merged)
{
    size_t i;
    json_t *row;
    json_array_foreach(names, i, row)
    {
        const char *name = text_of(row, "name");
        if (row_find(merged, name)) continue;
        for (int32_t rank = 0; rank < same->ranks; rank++)
            same->rows[rank] = row_find(lists[rank], name);
        merge_row(same, name, merged);
    }
}

json_t *check_merge(int32_t ranks, json_t *const *lists)
{
    json_t *merged = json_array();
    struct same_rows same = {
        .rows = calloc((size_t)ranks, sizeof(json_t *)), .set = calloc((size_t)ranks, sizeof(bool)), .ranks = ranks};
    bool good = merged && same.rows && same.set;
    for (int32_t rank = 0; rank < ranks && good; rank++)
        merge_names(lists[rank], lists, &same, merged);
    free(same.rows);
    free(same.set);
    if (good) return merged;
    json_decref(merged);
    return NULL;
}
