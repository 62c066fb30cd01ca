/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of the parallel run. */
#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The objects of this rank. */
typedef struct rank_state {
    expar_group *group;
    const demo_task *task;
    int32_t rank;
    compute *c;
    sequence_list texts;
    model *m;
    moe_counts counts;
    moe *normal, *low_latency; /* the latter NULL where decode is in normal mode, too */
    forward *f;
    double seconds;
} rank_state;

/* ---- agreement before anything collective starts ----------------------------------------------------------------- */

typedef struct readiness {
    uint64_t task_hash;
    uint64_t ready;
    demo_error error;
} readiness;

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    return hash;
}

/* A hash of all that must be equal on all ranks. */
static uint64_t task_hash(const demo_task *task)
{
    uint64_t hash = 14695981039346656037u;
    const int32_t numbers[] = {task->ranks,         task->nodes,       task->bytes,
                               (int32_t)task->path, task->low_latency, task->prompts.count};
    hash = hash_bytes(hash, numbers, sizeof numbers);
    hash = hash_bytes(hash, &task->config.sizes, sizeof task->config.sizes);
    for (int32_t i = 0; i < task->prompts.count; i++) {
        const prompt *p = &task->prompts.items[i];
        hash = hash_bytes(hash, &p->count, sizeof p->count);
        hash = hash_bytes(hash, p->bytes, (size_t)p->count);
    }
    return hash;
}

static bool judge(const readiness *all, int32_t ranks, demo_error *error)
{
    for (int32_t rank = 0; rank < ranks; rank++)
        if (!all[rank].ready) return demo_fail(error, "rank %d: %.480s", rank, all[rank].error.text);
    for (int32_t rank = 1; rank < ranks; rank++)
        if (all[rank].task_hash != all[0].task_hash)
            return demo_fail(error, "rank %d was started with other prompts, options or model sizes than rank 0", rank);
    return true;
}

/* Exchanges whether each rank is ready. Either all ranks go on or none does. */
static bool agree(const rank_state *s, bool ready, demo_error *error)
{
    readiness mine = {.task_hash = task_hash(s->task), .ready = ready, .error = *error};
    readiness *all = demo_calloc(error, (size_t)s->task->ranks, sizeof *all);
    if (!all) return false;
    if (!demo_check(error, "exchange", expar_group_allgather(s->group, &mine, all, sizeof mine))) {
        free(all);
        return false;
    }
    bool ok = judge(all, s->task->ranks, error);
    if (!ok && s->rank != 0) error->text[0] = '\0';
    free(all);
    return ok;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static bool load(rank_state *s, demo_error *error)
{
    const model_sizes *sizes = &s->task->config.sizes;
    int32_t share = sizes->experts / s->task->ranks;
    return s->task->kind->create(sizes, expar_group_local_rank(s->group), expar_group_ranks_per_node(s->group), &s->c,
                                 error) &&
           demo_task_sequences(s->task, s->c, s->rank, s->task->ranks, &s->texts, error) &&
           model_load(s->task->directory, s->c, s->rank * share, share, &s->m, error);
}

/* Returns the largest number of rows that any rank brings to a pass. */
static int64_t max_rows(const demo_task *task)
{
    int64_t rows = demo_task_texts_of(task, 0);
    for (int32_t i = 0; i < task->prompts.count; i++)
        rows = task->prompts.items[i].count > rows ? task->prompts.items[i].count : rows;
    return rows;
}

/* Makes the MoE layer in the task's modes. A decode pass has one row of each text. */
static bool make_experts(rank_state *s, demo_error *error)
{
    const demo_task *task = s->task;
    if (!moe_counts_create(s->m, &s->counts, error) ||
        !moe_normal_create(s->group, s->m, max_rows(task), task->path, &s->counts, &s->normal, error))
        return false;
    return !task->low_latency ||
           moe_low_latency_create(s->group, s->m, demo_task_texts_of(task, 0), &s->counts, &s->low_latency, error);
}

static void free_experts(rank_state *s)
{
    if (s->low_latency) s->low_latency->free(s->low_latency);
    if (s->normal) s->normal->free(s->normal);
    moe_counts_free(&s->counts);
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool generate(rank_state *s, generate_listener *listener, void *context, demo_error *error)
{
    const generate_plan plan = {.texts = &s->texts,
                                .prefill = s->normal,
                                .decode = s->low_latency ? s->low_latency : s->normal,
                                .prefill_rounds = demo_task_texts_of(s->task, 0),
                                .bytes = s->task->bytes,
                                .listener = listener,
                                .context = context};
    if (!demo_check(error, "barrier", expar_group_barrier(s->group))) return false;
    double start = now_seconds();
    bool ok = generate_run(s->f, &plan, error);
    s->seconds = now_seconds() - start;
    return ok;
}

/* ---- telling rank 0 ---------------------------------------------------------------------------------------------- */

/* The report of one rank: this head, the loads of its experts, then its texts, each in a slot of `context` bytes. */
typedef struct report_head {
    double seconds;
    int64_t rows, rows_between_ranks;
    int64_t path; /* an expar_ep_path */
    moe_traffic prefill, decode;
} report_head;

static size_t load_bytes(const demo_task *task)
{
    return (size_t)(task->config.sizes.experts / task->ranks) * sizeof(int64_t);
}

static size_t report_bytes(const demo_task *task)
{
    return sizeof(report_head) + load_bytes(task) +
           (size_t)demo_task_texts_of(task, 0) * (size_t)task->config.sizes.context;
}

static moe_traffic traffic_of(const moe *experts)
{
    return experts ? experts->traffic(experts) : (moe_traffic){0};
}

static void add_traffic(moe_traffic *sum, const moe_traffic *part)
{
    sum->layers += part->layers;
    sum->messages += part->messages;
    sum->bytes += part->bytes;
}

static void fill_report(const rank_state *s, uint8_t *report)
{
    const moe_counts *counts = &s->counts;
    const report_head head = {.seconds = s->seconds,
                              .rows = counts->rows,
                              .rows_between_ranks = counts->rows_between_ranks,
                              .path = counts->path,
                              .prefill = traffic_of(s->normal),
                              .decode = traffic_of(s->low_latency)};
    memcpy(report, &head, sizeof head);
    memcpy(report + sizeof head, counts->tokens_per_expert, load_bytes(s->task));
    uint8_t *slot = report + sizeof head + load_bytes(s->task);
    for (int32_t i = 0; i < s->texts.count; i++, slot += s->task->config.sizes.context)
        memcpy(slot, s->texts.items[i]->text, (size_t)s->texts.items[i]->length);
}

static void read_report(const demo_task *task, int32_t rank, const uint8_t *report, demo_results *results)
{
    report_head head;
    memcpy(&head, report, sizeof head);
    if (rank == 0) results->path = (expar_ep_path)head.path;
    int64_t row_bytes = task->config.sizes.hidden * (int64_t)sizeof(float);
    results->seconds = head.seconds > results->seconds ? head.seconds : results->seconds;
    add_traffic(&results->prefill, &head.prefill);
    add_traffic(&results->decode, &head.decode);
    results->bytes_moved += 2 * head.rows * row_bytes;
    results->bytes_between_ranks += 2 * head.rows_between_ranks * row_bytes;
    int32_t share = task->config.sizes.experts / task->ranks;
    memcpy(results->expert_load + rank * share, report + sizeof head, load_bytes(task));
    const uint8_t *slot = report + sizeof head + load_bytes(task);
    for (int32_t i = rank; i < results->num_texts; i += task->ranks, slot += task->config.sizes.context)
        memcpy(results->texts[i].bytes, slot, (size_t)results->texts[i].count);
}

static bool gather(const rank_state *s, demo_results *results, demo_error *error)
{
    size_t bytes = report_bytes(s->task);
    uint8_t *mine = demo_calloc(error, 1, bytes);
    uint8_t *all = demo_calloc(error, (size_t)s->task->ranks, bytes);
    bool ok = mine && all;
    if (ok) {
        fill_report(s, mine);
        ok = demo_check(error, "exchange of texts", expar_group_allgather(s->group, mine, all, bytes));
    }
    for (int32_t rank = 0; ok && rank < s->task->ranks; rank++)
        read_report(s->task, rank, all + (size_t)rank * bytes, results);
    free(mine);
    free(all);
    return ok;
}

bool demo_ranks_run(expar_group *group, const demo_task *task, generate_listener *listener, void *context,
                    demo_results *results, demo_error *error)
{
    rank_state s = {.group = group, .task = task, .rank = expar_group_rank(group)};
    bool loaded = load(&s, error), agreed = agree(&s, loaded, error);
    bool ok = agreed && make_experts(&s, error) && forward_create(s.m, generate_max_rows(&s.texts), &s.f, error) &&
              generate(&s, listener, context, error) && gather(&s, results, error);
    if (agreed && !ok) {
        const demo_error reason = *error;
        demo_fail(error, "rank %d: %.480s", s.rank, reason.text);
    }
    forward_free(s.f);
    free_experts(&s);
    model_free(s.m);
    sequence_list_free(&s.texts);
    compute_free(s.c);
    return ok;
}
