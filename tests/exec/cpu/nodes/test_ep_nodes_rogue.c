/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of a broken peer over the network: headers with counts that cannot be, records for ranks that they cannot be
 * for, sums, tails and heads out of turn. The rank of its rail says what it has seen, and of whom, and writes nowhere.
 *
 * Ranks 0 and 1 are a node, ranks 2 and 3 another. Contents are spoilt at rank 2, between the step that fills them and
 * the one that sends them. Words, which the network stores by themselves, are spoilt in rank 0's memory, before it
 * looks at them. After its error rank 0 takes the buffer away under the others, which wait for it. In one scene they
 * learn by themselves, in one they have all that they waited for. */
#include "ep/harness/pitched.h"
#include "ep/harness/stage.h"
#include "exec/cpu/create.h"
#include "exec/cpu/nodes/carrier.h"
#include "oracle/unit.h"

#include <limits.h>
#include <string.h>

enum { RANKS = 4, RANKS_PER_NODE = 2, VICTIM = 0, ROGUE = 2, FAR = 1 };

typedef enum rogue_call { DISPATCH, CACHED, COMBINE } rogue_call;

/* Words in rank 0's memory that rank 2 writes, by the network; and that rank 1 does, which is on rank 0's node. */
typedef enum word_kind {
    TAIL,
    HEAD,
    HEADER_FLAG,
    DONE_FLAG,
    NEAR_HEADER_FLAG,
    NEAR_DONE_FLAG,
    NEAR_TAIL,
    NEAR_HEAD
} word_kind;

typedef struct rogue {
    const char *name;
    rogue_call call;
    void (*header)(const cpu_executor *cpu, ep_rail_header *header); /* at rank 2, else NULL */
    void (*chunk)(const cpu_executor *cpu, ep_rail_end *end);        /* at rank 2, else NULL */
    int32_t tail, head;                                              /* at rank 0: beyond what was read; 0: sound */
    uint64_t garbage; /* at rank 0: in all words of that kind; 0: sound */
    word_kind word;
    const char *text;    /* rank 0's */
    expar_status status; /* rank 0's; 0: EXPAR_ERR_PEER */
    bool expert_major;   /* what is wrong shows in rank 0's own rows, when all have come */
} rogue;

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static int32_t *records_of(const cpu_executor *cpu, ep_rail_header *header)
{
    return rail_header_counts(cpu, header, cpu->shape.local_experts);
}

/* The counts of the node's second rank, which is not the one that looks at them for itself. */
static int32_t *counts_of(const cpu_executor *cpu, ep_rail_header *header)
{
    const int32_t each = cpu->shape.channels + cpu->shape.local_experts;
    return records_of(cpu, header) + cpu->shape.channels + each;
}

static void no_kind(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.kind = EP_ROUTE + 1;
}

static void kind_below_0(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.kind = INT_MIN;
}

static void kind_of_nothing(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.kind = 0;
}

static void no_type(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.dtype = INT_MAX;
}

static void experts_without_end(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.experts = INT_MAX;
}

static void experts_below_0(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->form.experts = INT_MIN;
}

static void two_counts(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->with_counts = 2;
}

static void no_counts(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->with_counts = 0;
}

static void records_below_0(const cpu_executor *cpu, ep_rail_header *header)
{
    records_of(cpu, header)[0] = -1;
}

static void records_that_shrink(const cpu_executor *cpu, ep_rail_header *header)
{
    records_of(cpu, header)[1] = records_of(cpu, header)[0] - 1;
}

static void records_without_end(const cpu_executor *cpu, ep_rail_header *header)
{
    for (int32_t c = 0; c < cpu->shape.channels; c++)
        records_of(cpu, header)[c] = INT_MAX / RANKS + 1;
}

static void rows_below_0(const cpu_executor *cpu, ep_rail_header *header)
{
    counts_of(cpu, header)[0] = INT_MIN;
}

static void more_rows_than_records(const cpu_executor *cpu, ep_rail_header *header)
{
    for (int32_t c = 0; c < cpu->shape.channels; c++)
        counts_of(cpu, header)[c] = records_of(cpu, header)[c] + 1;
}

static void expert_below_0(const cpu_executor *cpu, ep_rail_header *header)
{
    counts_of(cpu, header)[cpu->shape.channels] = -7;
}

static void expert_without_end(const cpu_executor *cpu, ep_rail_header *header)
{
    counts_of(cpu, header)[cpu->shape.channels + 1] = INT_MAX;
}

/* A count of rank 0, which becomes one more. */
static void more_for_an_expert(const cpu_executor *cpu, ep_rail_header *header)
{
    (records_of(cpu, header) + cpu->shape.channels)[cpu->shape.channels + 1]++;
}

static void less_for_an_expert(const cpu_executor *cpu, ep_rail_header *header)
{
    (records_of(cpu, header) + cpu->shape.channels)[cpu->shape.channels]--;
}

static void text_without_end(const cpu_executor *cpu, ep_rail_header *header)
{
    (void)cpu;
    header->rejection.status = EXPAR_ERR_ARGUMENT;
    memset(header->rejection.text, 'x', sizeof header->rejection.text);
}

/* ---- records and sums -------------------------------------------------------------------------------------------- */

/* A slot of a full chunk. */
static uint8_t *slot_of(const cpu_executor *cpu, ep_rail_end *end, uint32_t slot)
{
    return (uint8_t *)end - (cpu->rails->slots - slot) * cpu->rails->slot.bytes;
}

/* A record begins with it. */
static uint64_t *mask_of(const cpu_executor *cpu, ep_rail_end *end, uint32_t slot)
{
    return (uint64_t *)slot_of(cpu, end, slot);
}

static void rank_after_the_last(const cpu_executor *cpu, ep_rail_end *end)
{
    *mask_of(cpu, end, 0) |= (uint64_t)1 << RANKS_PER_NODE;
}

static void rank_64(const cpu_executor *cpu, ep_rail_end *end)
{
    *mask_of(cpu, end, 0) |= (uint64_t)1 << 63;
}

static void fewer_ranks(const cpu_executor *cpu, ep_rail_end *end)
{
    *mask_of(cpu, end, 0) = 0;
}

/* All records of the chunk: for some rank there is a row too many, which the channel's last record shows. */
static void more_ranks(const cpu_executor *cpu, ep_rail_end *end)
{
    for (uint32_t i = 0; i < cpu->rails->slots; i++)
        *mask_of(cpu, end, i) = 3;
}

static void other_sum(const cpu_executor *cpu, ep_rail_end *end)
{
    const uint32_t number = 5;
    memcpy(slot_of(cpu, end, 0) + cpu->rails->slot.number, &number, sizeof number);
}

static void one_slot_less(const cpu_executor *cpu, ep_rail_end *end)
{
    end->bytes -= cpu->rails->slot.bytes;
}

static void other_chunk(const cpu_executor *cpu, ep_rail_end *end)
{
    (void)cpu;
    atomic_fetch_add(&end->tail, 1);
}

#define NO_CALL UINT64_C(0x5555555500000001)

static const rogue rogues[] = {
    {"no kind", .header = no_kind, .text = "a call of kind 5"},
    {"a kind below 0", .header = kind_below_0, .text = "a call of kind -2147483648"},
    {"counts twice", .header = two_counts, .text = "with_counts 2"},
    {"no counts", .header = no_counts, .text = "with_counts 0"},
    {"records below 0", .header = records_below_0, .text = "-1 records in channel 0"},
    {"records that shrink", .header = records_that_shrink, .text = "-1 records in channel 1"},
    {"records without end", .header = records_without_end, .text = "536870912 records in channel 0, of 536870911"},
    {"rows below 0", .header = rows_below_0, .text = "for rank 1: -2147483648 rows in channel 0"},
    {"more rows than records", .header = more_rows_than_records, .text = "rows in channel 0, of"},
    {"an expert below 0", .header = expert_below_0, .text = "for rank 1: -7 rows for its expert 0"},
    {"an expert without end", .header = expert_without_end, .text = "for rank 1: 2147483647 rows for its expert 1"},
    {"more for an expert", .header = more_for_an_expert, .text = "rows for expert 1 here, and", .expert_major = true},
    {"less for an expert", .header = less_for_an_expert, .text = "rows for expert 0 here, and", .expert_major = true},
    {"a text without end", .header = text_without_end, .text = "rejected its arguments", .status = EXPAR_ERR_REMOTE},
    {"a kind of nothing", .header = kind_of_nothing, .text = "rank 2 called", .status = EXPAR_ERR_MISMATCH},
    {"no type", .header = no_type, .text = "dtype of x is", .status = EXPAR_ERR_MISMATCH},
    {"experts without end", .header = experts_without_end, .text = "2147483647 experts, where the buffer takes"},
    {"experts below 0", .header = experts_below_0, .text = "-2147483648 experts, where the buffer takes"},
    {"a rank behind the last", .chunk = rank_after_the_last, .text = "a record for ranks that it cannot be for"},
    {"rank 64", .chunk = rank_64, .text = "a record for ranks that it cannot be for (0x8000000000000"},
    {"fewer ranks", .chunk = fewer_ranks, .text = "where it has told of"},
    {"more ranks", .chunk = more_ranks, .text = "than it has told of"},
    {"other ranks than before", .call = CACHED, .chunk = fewer_ranks, .text = "ranks that it cannot be for (0)"},
    {"another sum", .call = COMBINE, .chunk = other_sum, .text = "has sent sum 5 where 0 was to come"},
    {"a chunk too short", .chunk = one_slot_less, .text = "has sent chunk 1 of"},
    {"a chunk of sums too short", .call = COMBINE, .chunk = one_slot_less, .text = "has sent chunk 1 of"},
    {"another chunk", .chunk = other_chunk, .text = "has sent chunk 2 of"},
    {"a tail too far", .tail = 1000, .text = "has sent chunk"},
    {"a sum's tail too far", .call = COMBINE, .tail = 1000, .text = "has sent chunk"},
    {"a head too far", .head = 1000000, .text = "has read 1000000 chunks of"},
    {"a tail of no call", .garbage = NO_CALL, .word = TAIL,
     .text = "a count of chunks of rank 2 holds 0x5555555500000001"},
    {"a sum's tail of no call", .call = COMBINE, .garbage = NO_CALL, .word = TAIL,
     .text = "a count of chunks of rank 2"},
    {"a tail without end", .garbage = UINT64_MAX, .word = TAIL, .text = "a count of chunks of rank 2 holds 0xffff"},
    {"a head of no call", .garbage = NO_CALL, .word = HEAD, .text = "a count of chunks of rank 2 holds 0x5555"},
    {"a head without end", .garbage = UINT64_MAX, .word = HEAD, .text = "a count of chunks of rank 2 holds 0xffff"},
    {"a hello of no call", .garbage = NO_CALL, .word = HEADER_FLAG, .text = "a flag of rank 2 holds 0x5555"},
    {"a hello without end", .garbage = UINT64_MAX, .word = HEADER_FLAG, .text = "a flag of rank 2 holds 0xffff"},
    {"a done of no call", .garbage = NO_CALL, .word = DONE_FLAG, .text = "a flag of rank 2 holds 0x5555"},
    {"a done without end", .garbage = UINT64_MAX, .word = DONE_FLAG, .text = "a flag of rank 2 holds 0xffff"},
    {"a neighbour's hello of no call", .garbage = NO_CALL, .word = NEAR_HEADER_FLAG, .text = "a flag of rank 1 holds"},
    {"a neighbour's done without end", .garbage = UINT64_MAX, .word = NEAR_DONE_FLAG, .text = "a flag of rank 1 holds"},
    {"a neighbour's tail of no call", .garbage = NO_CALL, .word = NEAR_TAIL, .text = "a tail of rank 1 holds 0x5555"},
    {"a neighbour's tail without end", .garbage = UINT64_MAX, .word = NEAR_TAIL, .text = "a tail of rank 1 holds"},
    {"a neighbour's head of no call", .garbage = NO_CALL, .word = NEAR_HEAD, .text = "a head of rank 1 holds 0x5555"},
    {"a neighbour's head without end", .garbage = UINT64_MAX, .word = NEAR_HEAD, .text = "a head of rank 1 holds"},
    {"a sum's head too far", .call = COMBINE, .head = 1000000, .text = "has read 1000000 chunks of"},
};

/* ---- spoiling ---------------------------------------------------------------------------------------------------- */

/* One rank's, for one call. By its one thread, and once it is done by the one that takes the buffer away. */
typedef struct spoiler {
    const rogue *what;
    cpu_executor *cpu;
    uint32_t epoch;
    _Atomic bool done;
} spoiler;

/* The header goes to the other node after the first step of a call. A chunk goes after the first step that follows its
   filling. */
static void spoil_contents(void *context)
{
    spoiler *s = context;
    if (s->done) return;
    const cpu_rails *rails = s->cpu->rails;
    if (s->what->header) {
        s->what->header(s->cpu, cpu_at(s->cpu, ROGUE, ep_rail_outgoing_at(&rails->space, 2, s->epoch, 0)));
        s->done = true;
    } else if (s->what->chunk && rail_ring_of(s->cpu, 0, 0)->chunks_put == 1) {
        s->what->chunk(s->cpu, cpu_at(s->cpu, ROGUE, rails->space.staged + ep_rail_chunk_end(&rails->shape, 0, 0)));
        s->done = true;
    }
}

static void spoil_word(const spoiler *s, uint64_t at, uint32_t value)
{
    _Atomic uint64_t *word = cpu_at(s->cpu, VICTIM, at);
    atomic_store_explicit(word, ep_word(s->epoch, value), memory_order_release);
}

static uint64_t place_of_flag(const spoiler *s)
{
    const ep_rail_space *far = &s->cpu->rails->space;
    const ep_space *near = &s->cpu->space;
    switch (s->what->word) {
    case HEADER_FLAG:
        return ep_rail_header_at(far, 2, s->epoch, FAR) + offsetof(ep_rail_header, flag);
    case DONE_FLAG:
        return ep_rail_done_at(far, 2, s->epoch, FAR);
    case NEAR_HEADER_FLAG:
        return ep_header_at(near, RANKS, s->epoch, 1) + offsetof(ep_header, flag);
    default:
        return ep_completion_at(near, RANKS, s->epoch, 1);
    }
}

static void store_garbage(const spoiler *s, uint64_t at)
{
    _Atomic uint64_t *word = cpu_at(s->cpu, VICTIM, at);
    atomic_store_explicit(word, s->what->garbage, memory_order_release);
}

/* Those of all places of all rings. */
static void spoil_rings(const spoiler *s)
{
    const cpu_rails *rails = s->cpu->rails;
    for (int32_t c = 0; c < s->cpu->shape.channels; c++)
        for (int32_t place = 0; place < rails->shape.chunks; place++) {
            const uint64_t ring = ep_rail_ring(2, c, FAR);
            const uint64_t end = rails->space.places + ep_rail_chunk_end(&rails->shape, ring, place);
            store_garbage(s, s->what->word == TAIL ? end + offsetof(ep_rail_end, tail)
                                                   : ep_rail_head_at(&rails->space, ring, place));
        }
}

/* Those by which rows come from rank 1, and go to it, through queues. */
static void spoil_near_rings(const spoiler *s)
{
    for (int32_t c = 0; c < s->cpu->shape.channels; c++)
        store_garbage(s, s->what->word == NEAR_TAIL ? ep_tail_at(&s->cpu->space, RANKS, c, 1)
                                                    : ep_head_at(&s->cpu->space, RANKS, c, 1));
}

static void spoil_by_garbage(void *context)
{
    const spoiler *s = context;
    if (s->what->word >= NEAR_TAIL)
        spoil_near_rings(s);
    else if (s->what->word == TAIL || s->what->word == HEAD)
        spoil_rings(s);
    else
        store_garbage(s, place_of_flag(s));
}

/* Words that the network brings meanwhile are replaced before each look. */
static void spoil_words(void *context)
{
    const spoiler *s = context;
    const cpu_rails *rails = s->cpu->rails;
    for (int32_t c = 0; c < s->cpu->shape.channels; c++) {
        const uint64_t ring = ep_rail_ring(2, c, FAR);
        for (int32_t place = 0; place < rails->shape.chunks; place++) {
            if (s->what->tail)
                spoil_word(s,
                           rails->space.places + ep_rail_chunk_end(&rails->shape, ring, place) +
                               offsetof(ep_rail_end, tail),
                           rail_ring_of(s->cpu, c, FAR)->chunks_taken + (uint32_t)s->what->tail);
            if (s->what->head) spoil_word(s, ep_rail_head_at(&rails->space, ring, place), (uint32_t)s->what->head);
        }
    }
}

/* For the next call on the buffer. */
static void plant(spoiler *s, const rogue *what, expar_ep *ep, int32_t rank)
{
    *s = (spoiler){.what = what, .cpu = carrier_of(ep), .epoch = (uint32_t)ep->base.calls + 1};
    if (rank == ROGUE && (what->header || what->chunk)) executor_cpu_delay(&s->cpu->base, spoil_contents, s);
    if (rank == VICTIM && (what->tail || what->head)) executor_cpu_delay(&s->cpu->base, spoil_words, s);
    if (rank == VICTIM && what->garbage) executor_cpu_delay(&s->cpu->base, spoil_by_garbage, s);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

typedef struct scene {
    traffic *traffic;
    expar_ep *eps[RANKS]; /* by their ranks before a barrier; rank 0 takes them away */
    bool alone;           /* rank 0 takes none away */
    /* Each of one rank; rank 0 takes steps of a buffer that it takes away, whose call has ended well. */
    spoiler spoilers[RANKS];
} scene;

static expar_status dispatch(const stage *s, expar_ep *ep, const traffic *t, const expar_ep_handle *handle,
                             const rogue *what, expar_ep_dispatch_result *result)
{
    const trial_choice plain = {.path = what->word >= NEAR_TAIL ? EXPAR_EP_PATH_QUEUE : EXPAR_EP_PATH_AUTO};
    void *own_out = NULL;
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, &own_out), given = args;
    given.expert_major = what->expert_major;
    if (handle) {
        given.handle = handle;
        given.num_experts = 0;
        given.topk_idx = given.topk_weights = (expar_tensor){0};
    }
    expar_status status = expar_ep_dispatch(ep, &given, result);
    trial_dispatch_args_free(&args);
    return status;
}

static expar_status combine(const stage *s, expar_ep *ep, const traffic *t, const expar_ep_dispatch_result *came)
{
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = came->recv_x;
    args.out_y = pitched_make(traffic_dtype(t), t->inputs[s->rank].num_tokens, t->job.hidden, 0, false);
    args.handle = came->handle;
    expar_status status = expar_ep_combine(ep, &args, NULL);
    pitched_free(&args.out_y);
    return status;
}

static expar_status call(const stage *s, scene *one, const rogue *what)
{
    expar_ep *ep = one->eps[s->rank];
    const traffic *t = one->traffic;
    expar_ep_dispatch_result before = EXPAR_EP_DISPATCH_RESULT_INIT, result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status;
    if (what->call != DISPATCH) CHECK_OK(dispatch(s, ep, t, NULL, what, &before));
    plant(&one->spoilers[s->rank], what, ep, s->rank);
    if (what->call == COMBINE)
        status = combine(s, ep, t, &before);
    else
        status = dispatch(s, ep, t, before.handle, what, &result);
    expar_ep_handle_release(result.handle);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(before.handle);
    expar_ep_output_release(before.output);
    return status;
}

static void check_victim(const rogue *what, expar_status status)
{
    char whole[EP_REJECTION_TEXT + 1] = "";
    memset(whole, 'x', EP_REJECTION_TEXT); /* and the bytes after it */
    CHECK(!strstr(expar_last_error(), whole), "%s: the text has no end", what->name);
    const char *named = what->word >= NEAR_HEADER_FLAG ? "rank 1" : "rank 2";
    const expar_status expected = what->status ? what->status : EXPAR_ERR_PEER;
    CHECK(status == expected && strstr(expar_last_error(), named) && strstr(expar_last_error(), what->text),
          "%s: %s: %s", what->name, expar_status_string(status), expar_last_error());
}

static void trial_rogue(const stage *s, scene *one, const rogue *what)
{
    expar_ep_config config = stage_plan_for(one->traffic, RANKS_THREADS).config;
    config.ring_slots = 8; /* chunks of two slots and more */
    config.num_threads = 1;
    if (!CHECK_OK(expar_ep_create(s->group, &config, &one->eps[s->rank]))) return;
    CHECK_OK(expar_group_barrier(s->group));
    const expar_status status = call(s, one, what);
    if (s->rank == VICTIM)
        check_victim(what, status);
    else if (!what->expert_major && what->word != DONE_FLAG && what->word != NEAR_DONE_FLAG)
        CHECK(status != EXPAR_OK, "%s: the call has ended well on rank %d", what->name, (int)s->rank);
    if (one->alone) CHECK(status == EXPAR_ERR_PEER, "%s on rank %d", expar_status_string(status), (int)s->rank);
    for (int32_t r = 0; r < RANKS && s->rank == VICTIM && !one->alone; r++)
        CHECK_OK(expar_ep_abandon(one->eps[r]));
    CHECK_OK(expar_group_barrier(s->group));
    if (one->alone) CHECK_OK(expar_ep_destroy(one->eps[s->rank]));
}

static void trial_rogues(stage *s, void *shared)
{
    for (size_t i = 0; i < sizeof rogues / sizeof *rogues; i++)
        trial_rogue(s, shared, &rogues[i]);
}

/* Before rows move, and among them: what is under way then has come when the buffer has ended. */
static void trial_two(stage *s, void *shared)
{
    const rogue among_rows = {.name = "more ranks", .chunk = more_ranks, .text = "than it has told of"};
    trial_rogue(s, shared, &rogues[0]);
    trial_rogue(s, shared, &among_rows);
}

static void run(stage_body body, bool alone)
{
    static const int64_t num_tokens[RANKS] = {80, 3, 80, 12};
    const traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    random_source random = random_start(51);
    scene one = {.traffic = traffic_make(&plan, &random), .alone = alone};
    stage_plan setting = stage_plan_for(one.traffic, RANKS_THREADS);
    setting.spare_heap_bytes = (size_t)128 << 20;
    const bool passed = stage_run(&setting, body, &one);
    traffic_free(one.traffic);
    assert_true(passed);
}

static void test_what_was_seen(void **state)
{
    (void)state;
    run(trial_rogues, false);
}

static void test_others_learn(void **state)
{
    (void)state;
    run(trial_two, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_was_seen), cmocka_unit_test(test_others_learn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
