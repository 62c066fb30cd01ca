/* SPDX-License-Identifier: Apache-2.0 */
/* All cases of a run: for each transport a group is formed, the ways are opened, and each operation is measured with
 * each size. */
#include "bench/bench.h"
#include "bench/frame/machine.h"
#include "bench/rma/rma.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

enum { MAX_TRANSPORTS = 5, KINDS = 16, MAX_RESULTS = MAX_TRANSPORTS * KINDS * BENCH_MAX_SIZES };

struct run {
    const struct bench_options *options;
    struct rma_transport_note notes[MAX_TRANSPORTS + 1];
    int num_notes, rank;
    struct rma_result results[MAX_RESULTS];
    int count;
    struct rma_producer producers[2 * BENCH_MAX_SIZES];
    int num_producers;
    bool misfit; /* more or fewer ranks have come than were asked for */
};

/* One transport's group, memory and ways. */
struct session {
    struct bench_world world;
    struct rma_memory memory;
    struct rma_contest contest;
};

/* ---- session ----------------------------------------------------------------------------------------------------- */

static struct rma_layout lay_out(const struct rma_options *options, int num_ranks)
{
    const size_t least_bytes = (size_t)4 << 20; /* more than a core's own caches hold */
    size_t largest = 64;
    for (int i = 0; i < options->num_sizes; i++)
        if (options->sizes_bytes[i] > largest) largest = options->sizes_bytes[i];
    /* One more block: segments of a reduction are rounded up. */
    size_t area = ((largest + 8) * ((size_t)num_ranks + 1) + 4095) / 4096 * 4096;
    if (area < least_bytes) area = least_bytes;
    return (struct rma_layout){
        .bytes = 2 * area + 4096, .area_bytes = area, .source = 0, .dest = area, .words = 2 * area};
}

static bool make_memory(struct session *s, const struct bench_options *options)
{
    void *base;
    s->memory = (struct rma_memory){.group = s->world.group,
                                    .rank = s->world.rank,
                                    .size = s->world.size,
                                    .layout = lay_out(&options->rma, s->world.size)};
    if (!bench_good(&s->world, expar_align(s->world.group, 4096, s->memory.layout.bytes, &base))) return false;
    memset(base, 0, s->memory.layout.bytes);
    s->memory.base = base;
    return bench_good(&s->world, expar_barrier_all(s->world.group));
}

static void describe_baseline(const struct rma_way *base, char *note, size_t note_bytes)
{
    char tcp[32];
    const char *provider = rma_way_fabric_provider(base);
    bench_tcp_congestion_control(tcp, sizeof tcp);
    if (strstr(provider, "tcp"))
        snprintf(note, note_bytes, "baseline: %s, TCP's congestion control: %s", provider, tcp);
    else
        snprintf(note, note_bytes, "baseline: %s", provider);
}

/* A device in software has no baseline: other ways run on real ones. */
static bool make_ways_on_software(struct session *s, char *note, size_t note_bytes)
{
    s->contest.expar = rma_way_expar(&s->memory);
    s->contest.network = true;
    snprintf(note, note_bytes, "a network device in software%s; its bytes a second tell nothing about a real one",
             s->contest.proxy ? ", by EXPAR_PROXY=1" : "");
    return bench_all_true(&s->world, s->contest.expar != NULL);
}

/* Makes the other ways: bare libfabric for the network, loads and stores for mapped memory. */
static bool make_ways(struct session *s, char *note, size_t note_bytes)
{
    char missing[128];
    if (s->contest.software) return make_ways_on_software(s, note, note_bytes);
    s->contest.expar = rma_way_expar(&s->memory);
    s->contest.base = rma_way_mapped(&s->memory);
    s->contest.network = !s->contest.base;
    if (s->contest.base) {
        s->contest.flag = rma_way_flag(&s->memory);
        snprintf(note, note_bytes, "loads and stores in mapped memory");
    } else {
        s->contest.base = rma_way_fabric(&s->memory, missing, sizeof missing);
        if (s->contest.base)
            describe_baseline(s->contest.base, note, note_bytes);
        else
            snprintf(note, note_bytes, "baseline: %s", missing);
    }
    if (s->contest.base) s->contest.base_name = s->contest.base->ops->name;
    return bench_all_true(&s->world, s->contest.expar != NULL);
}

/* Memory is the ways' own. */
static const struct bench_device clock_only = {.name = "cpu", .turn = bench_cpu_turn};

/* Opens a session. False with *absent set: the transport is not available here. */
static bool session_open(struct session *s, const struct bench_options *options, const char *transport, bool *absent)
{
    const expar_group_options group = bench_group_options(options);
    const bool gda = strncmp(transport, "gda", 3) == 0, proxy = strcmp(transport, "gda by proxy") == 0;
    if (strcmp(transport, "auto") != 0) setenv("EXPAR_TRANSPORTS", gda ? "gda" : transport, 1);
    if (gda) setenv("EXPAR_GDA_NIC", "software", 0);
    if (proxy) setenv("EXPAR_PROXY", "1", 1);
    *s = (struct session){
        .world = {.device = &clock_only, .place = {.type = EXPAR_CPU}},
        .contest = {.world = &s->world, .options = options, .transport = transport, .software = gda, .proxy = proxy}};
    expar_status status = expar_group_create(&group, &s->world.group);
    *absent = status == EXPAR_ERR_UNSUPPORTED;
    if (!bench_good(&s->world, status)) return false;
    s->world.rank = expar_group_rank(s->world.group);
    s->world.size = expar_group_size(s->world.group);
    return make_memory(s, options);
}

static void close_way(struct rma_way *way)
{
    if (way) way->ops->close(way);
}

/* Closes a session. After a failure it aborts the group first, so that no rank waits for one that failed. */
static bool session_close(struct session *s, bool sound)
{
    if (!sound) expar_group_abort(s->world.group);
    bool good = sound;
    if (s->memory.base && sound) good = bench_good(&s->world, expar_barrier_all(s->world.group));
    close_way(s->contest.flag);
    close_way(s->contest.base);
    close_way(s->contest.expar);
    if (s->memory.base && good) good = bench_good(&s->world, expar_free(s->world.group, s->memory.base));
    return expar_group_destroy(s->world.group) == EXPAR_OK && good;
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static bool run_kind(struct run *run, const struct session *s, const struct rma_kind *kind)
{
    const struct rma_options *options = &run->options->rma;
    for (int i = 0; i < (kind->sized ? options->num_sizes : 1); i++) {
        size_t bytes = kind->sized ? options->sizes_bytes[i] : 0;
        if (!rma_measure(&s->contest, kind, bytes, &run->results[run->count])) return false;
        run->count++;
    }
    return true;
}

static bool run_producers(struct run *run, const struct session *s)
{
    const struct rma_options *options = &run->options->rma;
    bool good = true;
    for (int i = 0; i < options->num_sizes && good; i++) {
        good = rma_measure_producer(&s->contest, options->sizes_bytes[i], &run->producers[run->num_producers]);
        run->num_producers += good;
    }
    return good;
}

static bool check_size(struct run *run, const struct session *s)
{
    run->misfit = s->world.size != run->options->num_ranks;
    if (run->misfit)
        fprintf(stderr, "expar bench: -n %d, but this job has %d ranks\n", run->options->num_ranks, s->world.size);
    return !run->misfit;
}

static bool run_transport(struct run *run, const char *transport, bool asked_for)
{
    struct session s;
    bool absent;
    struct rma_transport_note *note = &run->notes[run->num_notes];
    if (!session_open(&s, run->options, transport, &absent)) {
        if (s.world.group) session_close(&s, false);
        return absent && !asked_for;
    }
    run->rank = s.world.rank;
    bool good = check_size(run, &s) && make_ways(&s, note->text, sizeof note->text);
    if (good) {
        note->name = transport;
        run->num_notes++;
    }
    for (int i = 0; i < rma_num_kinds && good; i++)
        if (rma_wants(&run->options->rma, &rma_kinds[i])) good = run_kind(run, &s, &rma_kinds[i]);
    if (good && s.contest.software) good = run_producers(run, &s);
    return session_close(&s, good);
}

static bool all_verified(const struct run *run)
{
    for (int i = 0; i < run->count; i++)
        if (!run->results[i].verified) return false;
    for (int i = 0; i < run->num_producers; i++)
        if (!run->producers[i].verified) return false;
    return true;
}

static bool run_transports(struct run *run)
{
    static const char *const names[] = {"p2p", "fabric", "auto", "gda", "gda by proxy"};
    static const char *const words[] = {"p2p", "fabric", "auto", "gda", "gda"};
    const char *given = run->options->rma.transports;
    const char *list = given ? given : run->options->nodes > 1 ? "auto" : "p2p,fabric";
    bool good = true;
    for (size_t i = 0; i < sizeof names / sizeof *names && good; i++)
        if (rma_list_has(list, words[i])) good = run_transport(run, names[i], given != NULL);
    return good;
}

int rma_run(const struct bench_options *options)
{
    struct run *run = calloc(1, sizeof *run);
    if (!run) {
        fprintf(stderr, "expar bench: out of memory\n");
        return 1;
    }
    run->options = options;
    bool good = run_transports(run);
    const struct rma_results results = {run->notes, run->results, run->count, run->producers, run->num_producers};
    if (good && run->rank == 0) good = rma_report(options, &results);
    good = good && all_verified(run);
    int code = good ? 0 : run->misfit ? EX_USAGE : 1;
    free(run);
    return code;
}
