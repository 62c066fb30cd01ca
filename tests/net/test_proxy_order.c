/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the proxy and their times, seen by a transport that only records them: order, rejections, fences, and
 * signals. Also the prefix of completed operations, the bound on pending ones, invalid commands, and PEs that are gone.
 * */
#include "base/knobs.h"
#include "net/proxy/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PES          3
#define HEAP_BYTES   65536 /* as far as the heap may grow */
#define PINNED_BYTES 4096  /* of the pinned segment */
#define GROWN_BYTES  32768
#define BEGIN        4096 /* of the heap proper */
#define MAX_POSTS    1024
#define DEADLINE_NS  INT64_C(60000000000)

/* ---- the transport that records ---------------------------------------------------------------------------------- */

typedef struct noted {
    transport_request request;
    transport_batch *batch; /* NULL once it has been completed or dropped */
} noted;

/* A transport that passes all to its stage. */
typedef struct recorder {
    transport base; /* first */
    struct stage *stage;
} recorder;

typedef struct stage {
    recorder both, other; /* all goes by `both`; a test may send words by `other` */
    pthread_mutex_t lock;
    noted posts[MAX_POSTS];
    size_t num_posts;
    bool busy[PES];            /* turn its posts away */
    uint32_t turned_away[PES]; /* how often that was done */
    uint32_t dropped[PES];
    _Atomic bool gone[PES];          /* site->check fails for it */
    _Atomic uint32_t delivered[PES]; /* told so often */
    boot ctl;
    mem_region heap;
    _Atomic uint64_t grown_bytes, pinned_bytes;
    transport_site site;
    transport_ways ways[TRANSPORT_MEMORIES * PES];
    transport_list driven;
    proxy *proxy;
} stage;

static expar_status note(transport *self, const transport_request *request, transport_batch *batch)
{
    stage *s = ((recorder *)self)->stage;
    expar_status status = EXPAR_ERR_BUSY;
    pthread_mutex_lock(&s->lock);
    if (s->busy[request->pe]) {
        s->turned_away[request->pe]++;
    } else if (s->num_posts < MAX_POSTS) {
        atomic_fetch_add(&batch->left, 1);
        s->posts[s->num_posts++] = (noted){*request, batch};
        status = EXPAR_OK;
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void drop(transport *self, int32_t pe, transport_batch *batch)
{
    stage *s = ((recorder *)self)->stage;
    pthread_mutex_lock(&s->lock);
    s->dropped[pe]++;
    for (size_t i = 0; i < s->num_posts; i++)
        if (s->posts[i].batch == batch) s->posts[i].batch = NULL;
    pthread_mutex_unlock(&s->lock);
}

static const transport_ops notes = {.name = "notes", .post = note, .drop = drop};

static expar_status check(void *context, int32_t pe, const char *what)
{
    stage *s = context;
    return pe >= 0 && atomic_load(&s->gone[pe]) ? error_set(EXPAR_ERR_PEER, "%s: rank %d died", what, pe) : EXPAR_OK;
}

static void arrived(void *context)
{
    (void)context;
}

static void delivered(void *context, int32_t pe)
{
    stage *s = context;
    atomic_fetch_add(&s->delivered[pe], 1);
}

static stage *stage_open(uint32_t num_slots, uint64_t first, int64_t timeout_ms)
{
    stage *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->both = s->other = (recorder){.base.ops = &notes, .stage = s};
    pthread_mutex_init(&s->lock, NULL);
    s->ctl = (boot){.size = PES};
    s->heap.bytes = HEAP_BYTES;
    atomic_store(&s->grown_bytes, GROWN_BYTES);
    atomic_store(&s->pinned_bytes, PINNED_BYTES);
    s->site = (transport_site){.boot = &s->ctl,
                               .segments[TRANSPORT_HOST] = {.region = &s->heap},
                               .timeout_ms = timeout_ms,
                               .check = check,
                               .arrived = arrived,
                               .context = s};
    for (int32_t pe = 0; pe < PES; pe++)
        s->ways[pe] = s->ways[TRANSPORT_PINNED * PES + pe] =
            (transport_ways){.data = &s->both.base, .words = &s->both.base};
    proxy_plan plan = {.site = &s->site,
                       .ways = s->ways,
                       .driven = &s->driven,
                       .bounds = {[TRANSPORT_HOST] = {.begin = BEGIN, .end = &s->grown_bytes},
                                  [TRANSPORT_PINNED] = {.end = &s->pinned_bytes}},
                       .num_slots = num_slots,
                       .first = first,
                       .nap_ns = 100000000,
                       .delivered = delivered,
                       .context = s};
    assert_int_equal(proxy_open(&plan, &s->proxy), EXPAR_OK);
    return s;
}

static void stage_close(stage *s)
{
    proxy_close(s->proxy);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* ---- what a test does with it ------------------------------------------------------------------------------------ */

static size_t count_posts(stage *s, int32_t pe)
{
    size_t count = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->num_posts; i++)
        if (pe < 0 || s->posts[i].request.pe == pe) count++;
    pthread_mutex_unlock(&s->lock);
    return count;
}

static void doze(int64_t since_ns)
{
    if (clock_ns() - since_ns > DEADLINE_NS) fail_msg("what was waited for did not come");
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void await_posts(stage *s, int32_t pe, size_t count)
{
    for (int64_t since_ns = clock_ns(); count_posts(s, pe) < count;)
        doze(since_ns);
}

static void await_turned_away(stage *s, int32_t pe, uint32_t times)
{
    for (int64_t since_ns = clock_ns();;) {
        pthread_mutex_lock(&s->lock);
        bool reached = s->turned_away[pe] >= times;
        pthread_mutex_unlock(&s->lock);
        if (reached) return;
        doze(since_ns);
    }
}

static void await_done(stage *s, uint64_t number)
{
    for (int64_t since_ns = clock_ns(); !proxy_has_done(proxy_port_of(s->proxy), number);)
        doze(since_ns);
}

static transport_request post_at(stage *s, size_t i)
{
    pthread_mutex_lock(&s->lock);
    assert_true(i < s->num_posts);
    transport_request request = s->posts[i].request;
    pthread_mutex_unlock(&s->lock);
    return request;
}

static void complete(stage *s, size_t i, expar_status status)
{
    pthread_mutex_lock(&s->lock);
    assert_true(i < s->num_posts);
    transport_batch *batch = s->posts[i].batch;
    s->posts[i].batch = NULL;
    pthread_mutex_unlock(&s->lock);
    assert_non_null(batch);
    if (status != EXPAR_OK) atomic_store(&batch->status, (int32_t)status);
    atomic_fetch_sub_explicit(&batch->left, 1, memory_order_release);
    proxy_wake(s->proxy);
}

static void set_busy(stage *s, int32_t pe, bool busy)
{
    pthread_mutex_lock(&s->lock);
    s->busy[pe] = busy;
    pthread_mutex_unlock(&s->lock);
}

static void issue(stage *s, proxy_command command)
{
    assert_int_equal(proxy_issue(s->proxy, "test", &command), EXPAR_OK);
}

/* at: from the beginning of the heap proper. */
static void issue_put(stage *s, int32_t pe, uint64_t at)
{
    static const uint8_t source[8];
    issue(s,
          (proxy_command){.kind = PROXY_PUT, .pe = pe, .offset = BEGIN + at, .local = (uintptr_t)source, .bytes = 8});
}

static void expect_failure(stage *s, expar_status status, const char *who)
{
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), status);
    assert_non_null(strstr(expar_last_error(), who));
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK); /* told once */
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void test_fields_arrive(void **state)
{
    (void)state;
    uint8_t here[64];
    stage *s = stage_open(8, 0, 60000);
    issue(s, (proxy_command){.kind = PROXY_PUT, .pe = 1, .offset = BEGIN, .local = (uintptr_t)here, .bytes = 33});
    issue(s,
          (proxy_command){.kind = PROXY_GET, .pe = 2, .offset = BEGIN + 8, .local = (uintptr_t)(here + 1), .bytes = 5});
    issue(s, (proxy_command){.kind = PROXY_ATOMIC,
                             .pe = 0,
                             .offset = BEGIN + 12,
                             .local = (uintptr_t)here,
                             .bytes = 4,
                             .op = TRANSPORT_COMPARE_SWAP,
                             .operand = 7,
                             .compare = 9});
    await_posts(s, -1, 3);
    transport_request put = post_at(s, 0), get = post_at(s, 1), atomic = post_at(s, 2);
    assert_true(put.kind == TRANSPORT_KIND_PUT && put.pe == 1 && put.offset == BEGIN && put.bytes == 33);
    assert_ptr_equal(put.source, here);
    assert_true(get.kind == TRANSPORT_KIND_GET && get.pe == 2 && get.offset == BEGIN + 8 && get.bytes == 5);
    assert_ptr_equal(get.dest, here + 1);
    assert_true(atomic.kind == TRANSPORT_KIND_ATOMIC && atomic.pe == 0 && atomic.offset == BEGIN + 12 &&
                atomic.bytes == 4);
    assert_true(atomic.op == TRANSPORT_COMPARE_SWAP && atomic.operand == 7 && atomic.compare == 9);
    assert_ptr_equal(atomic.dest, here);
    for (size_t i = 0; i < 3; i++)
        complete(s, i, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    assert_int_equal(s->delivered[0], 1);
    assert_int_equal(s->delivered[1], 1);
    assert_int_equal(s->delivered[2], 0); /* a get brings nothing there */
    stage_close(s);
}

static void test_busy_holds_its_pe_alone(void **state)
{
    (void)state;
    stage *s = stage_open(32, UINT64_MAX - 3, 60000);
    set_busy(s, 1, true);
    for (uint64_t i = 0; i < 8; i++)
        issue_put(s, 1 + (int32_t)(i % 2), i * 8);
    await_posts(s, 2, 4);
    await_turned_away(s, 1, 3);
    assert_int_equal(count_posts(s, 1), 0);
    set_busy(s, 1, false);
    await_posts(s, 1, 4);
    for (size_t i = 4; i < 8; i++)
        assert_int_equal(post_at(s, i).offset, BEGIN + (i - 4) * 16); /* in the order of their issue */
    for (size_t i = 0; i < 8; i++)
        complete(s, i, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

static void test_done_is_a_prefix(void **state)
{
    (void)state;
    const uint64_t first = UINT32_MAX - 1;
    stage *s = stage_open(8, first, 60000);
    for (uint64_t i = 0; i < 3; i++)
        issue_put(s, (int32_t)i, 0);
    await_posts(s, -1, 3);
    complete(s, 2, EXPAR_OK);
    complete(s, 1, EXPAR_OK);
    for (int64_t since_ns = clock_ns(); atomic_load(&s->delivered[1]) + atomic_load(&s->delivered[2]) < 2;)
        doze(since_ns);
    assert_false(proxy_has_done(proxy_port_of(s->proxy), first + 1));
    complete(s, 0, EXPAR_OK);
    await_done(s, first + 3);
    stage_close(s);
}

/* Words by another transport than data: the proxy keeps them in order. */
static void send_words_apart(stage *s)
{
    for (int32_t pe = 0; pe < PES; pe++)
        s->ways[pe].words = s->ways[TRANSPORT_PINNED * PES + pe].words = &s->other.base;
}

static void test_signal_follows_its_data(void **state)
{
    (void)state;
    uint8_t here[16];
    stage *s = stage_open(8, 0, 60000);
    send_words_apart(s);
    proxy_command command = {.kind = PROXY_PUT_SIGNAL,
                             .pe = 1,
                             .offset = BEGIN + 256,
                             .local = (uintptr_t)here,
                             .bytes = 16,
                             .signal = BEGIN + 64,
                             .operand = 5,
                             .op = TRANSPORT_ADD};
    issue(s, command);
    issue_put(s, 2, 0); /* which has to come through, so that the signal had its chance to be early */
    await_posts(s, -1, 2);
    assert_int_equal(count_posts(s, 1), 1);
    assert_int_equal(post_at(s, 0).kind, TRANSPORT_KIND_PUT);
    assert_false(post_at(s, 0).signals);
    complete(s, 0, EXPAR_OK);
    await_posts(s, 1, 2);
    transport_request signal = post_at(s, 2);
    assert_true(signal.kind == TRANSPORT_KIND_ATOMIC && signal.op == TRANSPORT_ADD && signal.bytes == 8);
    assert_true(signal.offset == BEGIN + 64 && signal.operand == 5 && !signal.dest);
    complete(s, 1, EXPAR_OK);
    assert_int_equal(s->delivered[1], 0);
    complete(s, 2, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    assert_int_equal(s->delivered[1], 1);
    /* Without data there is the signal alone. */
    command.bytes = 0;
    issue(s, command);
    await_posts(s, 1, 3);
    assert_int_equal(post_at(s, 3).kind, TRANSPORT_KIND_ATOMIC);
    complete(s, 3, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

/* One transport for both gets one request, and chooses its form. */
static void test_signal_goes_along(void **state)
{
    (void)state;
    uint8_t here[16];
    stage *s = stage_open(8, 0, 60000);
    issue(s, (proxy_command){.kind = PROXY_PUT_SIGNAL,
                             .pe = 1,
                             .memory = TRANSPORT_PINNED,
                             .offset = 8,
                             .local = (uintptr_t)here,
                             .bytes = 16,
                             .signal = BEGIN + 64,
                             .operand = 5,
                             .op = TRANSPORT_ADD});
    await_posts(s, 1, 1);
    const transport_request put = post_at(s, 0);
    assert_true(put.kind == TRANSPORT_KIND_PUT && put.memory == TRANSPORT_PINNED && put.offset == 8 && put.bytes == 16);
    assert_true(put.signals && put.op == TRANSPORT_ADD && put.operand == 5);
    assert_true(put.signal_memory == TRANSPORT_HOST && put.signal_offset == BEGIN + 64);
    complete(s, 0, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    assert_int_equal(count_posts(s, 1), 1);
    assert_int_equal(s->delivered[1], 1);
    stage_close(s);
}

/* Data and its signal each go to the segment that the command names. */
static void test_segments_of_data_and_signal(void **state)
{
    (void)state;
    uint8_t here[16];
    stage *s = stage_open(8, 0, 60000);
    send_words_apart(s);
    issue(s, (proxy_command){.kind = PROXY_PUT_SIGNAL,
                             .memory = TRANSPORT_PINNED,
                             .pe = 1,
                             .offset = 0,
                             .local = (uintptr_t)here,
                             .bytes = 16,
                             .signal = BEGIN + 64,
                             .op = TRANSPORT_SET});
    await_posts(s, 1, 1);
    assert_true(post_at(s, 0).memory == TRANSPORT_PINNED && post_at(s, 0).offset == 0);
    complete(s, 0, EXPAR_OK);
    await_posts(s, 1, 2);
    assert_true(post_at(s, 1).memory == TRANSPORT_HOST && post_at(s, 1).offset == BEGIN + 64);
    complete(s, 1, EXPAR_OK);
    issue(s,
          (proxy_command){
              .kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = 8, .signal_memory = TRANSPORT_PINNED, .op = TRANSPORT_ADD});
    await_posts(s, 1, 3);
    assert_true(post_at(s, 2).memory == TRANSPORT_PINNED && post_at(s, 2).offset == 8);
    complete(s, 2, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

static void test_fence_orders_to_each_pe(void **state)
{
    (void)state;
    stage *s = stage_open(16, 0, 60000);
    issue_put(s, 1, 0);
    issue_put(s, 1, 8);
    issue(s, (proxy_command){.kind = PROXY_FENCE});
    issue_put(s, 1, 16);
    issue_put(s, 2, 24); /* nothing to this one came before the fence */
    await_posts(s, 2, 1);
    assert_int_equal(count_posts(s, 1), 2);
    complete(s, 1, EXPAR_OK);
    issue_put(s, 2, 32);
    await_posts(s, 2, 2);
    assert_int_equal(count_posts(s, 1), 2);
    complete(s, 0, EXPAR_OK);
    await_posts(s, 1, 3);
    for (size_t i = 2; i < 5; i++)
        complete(s, i, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

/* ---- bounds ------------------------------------------------------------------------------------------------------ */

/* messages to one PE on their way: 64 of a ring, shared out among three */
#define SHARE 21u
/* commands of a ring of four slots that its thread holds, and those in the ring */
#define HELD (256u + 4u)

/* A producer of more than the ring and its thread hold together. */
static void *issue_many(void *argument)
{
    for (uint64_t i = 0; i < HELD + 40; i++)
        issue_put(argument, 1, i * 8);
    return NULL;
}

static void await_head(stage *s, uint64_t head)
{
    for (int64_t since_ns = clock_ns(); proxy_head(proxy_port_of(s->proxy)) != head;)
        doze(since_ns);
}

static void test_bounds_what_is_under_way(void **state)
{
    (void)state;
    pthread_t producer;
    const uint64_t first = UINT64_MAX - 70;
    stage *s = stage_open(4, first, 60000);
    proxy_command put = {.kind = PROXY_PUT, .pe = 2};
    assert_int_equal(knob(KNOB_PROXY_MESSAGES) / PES, SHARE);
    assert_int_equal(pthread_create(&producer, NULL, issue_many, s), 0);
    await_head(s, first + HELD); /* the ring is full, and that can be seen */
    assert_int_equal(proxy_try_issue(proxy_port_of(s->proxy), &put), 0);
    assert_int_equal(count_posts(s, -1), SHARE);
    for (size_t i = 0; i < HELD + 40; i++) {
        await_posts(s, 1, i + 1);
        assert_true(count_posts(s, 1) <= i + SHARE);
        complete(s, i, EXPAR_OK);
    }
    pthread_join(producer, NULL);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    for (size_t i = 0; i < HELD + 40; i++)
        assert_int_equal(post_at(s, i).offset, BEGIN + i * 8);
    stage_close(s);
}

/* A PE that completes nothing has its share on the way, and the others go on. Its counter tells what it owes. */
static void test_slow_ones_hold_up_nobody(void **state)
{
    (void)state;
    stage *s = stage_open(256, 0, 60000);
    PORTABLE_SHARED(uint64_t) *done_to = proxy_done_to(s->proxy->ring, 256);
    for (uint64_t i = 0; i < 2 * SHARE; i++)
        issue_put(s, 1, i * 8);
    await_posts(s, 1, SHARE);
    for (uint64_t i = 0; i < 50; i++) {
        issue_put(s, 2, i * 8);
        await_posts(s, 2, i + 1);
        complete(s, SHARE + i, EXPAR_OK);
    }
    for (int64_t since_ns = clock_ns(); !proxy_end_is_at(proxy_load(&done_to[2]), 2 * SHARE + 50);)
        doze(since_ns);
    assert_int_equal(proxy_load(&done_to[1]), 0);
    assert_int_equal(proxy_load(&s->proxy->ring->done), 0);
    complete(s, 1, EXPAR_OK);
    complete(s, 0, EXPAR_OK);
    for (int64_t since_ns = clock_ns(); !proxy_end_is_at(proxy_load(&done_to[1]), 2);)
        doze(since_ns);
    stage_close(s);
}

/* A PE has at most 4 MiB under way. So four pieces of 1 MiB less a byte go, and the fifth waits. */
static void test_bounds_bytes(void **state)
{
    (void)state;
    static uint8_t source[1];
    stage *s = stage_open(16, 0, 60000);
    atomic_store(&s->grown_bytes, (uint64_t)64 << 20);
    for (uint64_t i = 0; i < 6; i++)
        issue(s, (proxy_command){.kind = PROXY_PUT,
                                 .pe = 1,
                                 .offset = BEGIN + (i << 21),
                                 .local = (uintptr_t)source,
                                 .bytes = (1 << 20) - 1});
    issue_put(s, 2, 0); /* has its turn after the others have had theirs */
    await_posts(s, 2, 1);
    assert_int_equal(count_posts(s, 1), 4);
    complete(s, 0, EXPAR_OK);
    await_posts(s, 1, 5);
    stage_close(s);
}

/* ---- puts that touch --------------------------------------------------------------------------------------------- */

static uint8_t touching[4 * 64];

static proxy_command touching_put(uint64_t i)
{
    return (proxy_command){
        .kind = PROXY_PUT, .pe = 1, .offset = BEGIN + 64 * i, .local = (uintptr_t)(touching + 64 * i), .bytes = 64};
}

/* Holds the puts back until all have been taken. */
static stage *stage_with_busy_peer(void)
{
    stage *s = stage_open(32, 0, 60000);
    set_busy(s, 1, true);
    return s;
}

static void let_go(stage *s, uint64_t taken)
{
    for (int64_t since_ns = clock_ns(); proxy_load(&s->proxy->ring->consumed) != taken;)
        doze(since_ns);
    set_busy(s, 1, false);
    proxy_wake(s->proxy);
}

static void test_touching_puts_go_as_one(void **state)
{
    (void)state;
    stage *s = stage_with_busy_peer();
    proxy_command last = touching_put(2), after = touching_put(3);
    last.kind = PROXY_PUT_SIGNAL;
    last.op = TRANSPORT_SET;
    last.signal = BEGIN + 4096;
    last.operand = 7;
    issue(s, touching_put(0));
    issue(s, touching_put(1));
    issue(s, last);
    issue(s, after);
    let_go(s, 4);
    await_posts(s, 1, 2);
    const transport_request one = post_at(s, 0), two = post_at(s, 1);
    assert_true(one.offset == BEGIN && one.bytes == 3 * 64 && one.source == touching);
    assert_true(one.signals && one.signal_offset == BEGIN + 4096 && one.operand == 7);
    assert_true(two.offset == BEGIN + 3 * 64 && two.bytes == 64 && !two.signals);
    complete(s, 1, EXPAR_OK);
    assert_int_equal(proxy_load(&s->proxy->ring->done), 0);
    complete(s, 0, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

/* Words by another transport: the signal follows when all of the message is there. */
static void test_joined_signal_follows(void **state)
{
    (void)state;
    stage *s = stage_with_busy_peer();
    send_words_apart(s);
    proxy_command last = touching_put(1);
    last.kind = PROXY_PUT_SIGNAL;
    last.op = TRANSPORT_SET;
    last.signal = BEGIN + 4096;
    issue(s, touching_put(0));
    issue(s, last);
    let_go(s, 2);
    await_posts(s, 1, 1);
    assert_true(post_at(s, 0).bytes == 2 * 64 && !post_at(s, 0).signals);
    complete(s, 0, EXPAR_OK);
    await_posts(s, 1, 2);
    assert_true(post_at(s, 1).kind == TRANSPORT_KIND_ATOMIC && post_at(s, 1).offset == BEGIN + 4096);
    assert_int_equal(proxy_load(&proxy_done_to(s->proxy->ring, 32)[1]), proxy_end(1, 0));
    complete(s, 1, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

/* A gap on either side, another segment, a fence, a get between them, or more than 1 MiB: they stay apart. */
static void test_others_stay_apart(void **state)
{
    (void)state;
    for (int32_t i = 0; i < 6; i++) {
        stage *s = stage_with_busy_peer();
        proxy_command first = touching_put(0), second = touching_put(1);
        if (i == 0) second.offset += 64;
        if (i == 1) second.local += 1;
        if (i == 2) {
            atomic_store(&s->pinned_bytes, HEAP_BYTES);
            second.memory = TRANSPORT_PINNED;
        }
        if (i == 5) {
            atomic_store(&s->grown_bytes, (uint64_t)4 << 20);
            first.bytes = 1 << 20;
            second.offset = first.offset + first.bytes;
            second.local = first.local + first.bytes;
        }
        issue(s, first);
        if (i == 3) issue(s, (proxy_command){.kind = PROXY_FENCE});
        if (i == 4)
            issue(s, (proxy_command){
                         .kind = PROXY_GET, .pe = 1, .offset = BEGIN, .local = (uintptr_t)touching, .bytes = 8});
        issue(s, second);
        let_go(s, i == 3 || i == 4 ? 3 : 2);
        await_posts(s, 1, 1);
        assert_int_equal(post_at(s, 0).bytes, first.bytes);
        complete(s, 0, EXPAR_OK);
        await_posts(s, 1, i == 4 ? 3 : 2);
        stage_close(s);
    }
}

/* A joined message that fails is the failure of all of its commands. */
static void test_joined_ones_fail_together(void **state)
{
    (void)state;
    stage *s = stage_with_busy_peer();
    for (uint64_t i = 0; i < 3; i++)
        issue(s, touching_put(i));
    let_go(s, 3);
    await_posts(s, 1, 1);
    complete(s, 0, EXPAR_ERR_PEER);
    expect_failure(s, EXPAR_ERR_PEER, "rank 1");
    assert_int_equal(proxy_failure_count(proxy_load(&s->proxy->ring->failure)), 3);
    assert_int_equal(s->delivered[1], 0);
    stage_close(s);
}

/* ---- commands that make no sense --------------------------------------------------------------------------------- */

static void test_rejects_nonsense(void **state)
{
    (void)state;
    static const struct {
        proxy_command command;
        expar_status status;
    } cases[] = {
        {{.kind = 0, .pe = 1}, EXPAR_ERR_ARGUMENT},
        {{.kind = 99, .pe = 1}, EXPAR_ERR_ARGUMENT},
        {{.kind = PROXY_PUT, .pe = -1}, EXPAR_ERR_RANGE},
        {{.kind = PROXY_PUT, .pe = PES}, EXPAR_ERR_RANGE},
        {{.kind = PROXY_PUT, .pe = 1, .offset = HEAP_BYTES, .bytes = 1}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_GET, .pe = 1, .offset = BEGIN + 8, .bytes = UINT64_MAX}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_GET, .pe = 1, .offset = UINT64_MAX, .bytes = 2}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .offset = BEGIN + 4, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .offset = BEGIN, .bytes = 2}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .offset = BEGIN, .bytes = 4, .op = TRANSPORT_XOR + 1}, EXPAR_ERR_ARGUMENT},
        {{.kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = BEGIN + 4, .op = TRANSPORT_SET}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = BEGIN, .op = TRANSPORT_XOR}, EXPAR_ERR_ARGUMENT},
        /* After the memory that has grown, wholly or in part. */
        {{.kind = PROXY_PUT, .pe = 1, .offset = GROWN_BYTES, .bytes = 1}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_GET, .pe = 1, .offset = GROWN_BYTES - 8, .bytes = 9}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .offset = GROWN_BYTES, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = GROWN_BYTES, .op = TRANSPORT_SET}, EXPAR_ERR_ADDRESS},
        /* Segments have bounds of their own, and what the ranks do not have is refused. */
        {{.kind = PROXY_PUT, .pe = 1, .memory = TRANSPORT_PINNED, .offset = PINNED_BYTES - 4, .bytes = 8},
         EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_GET, .pe = 1, .memory = TRANSPORT_DEVICE, .offset = BEGIN, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .memory = 200, .offset = BEGIN, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = BEGIN, .signal_memory = TRANSPORT_DEVICE, .op = TRANSPORT_SET},
         EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_PUT_SIGNAL,
          .pe = 1,
          .signal = PINNED_BYTES,
          .signal_memory = TRANSPORT_PINNED,
          .op = TRANSPORT_SET},
         EXPAR_ERR_ADDRESS},
        /* The words that keep the ranks together. */
        {{.kind = PROXY_PUT, .pe = 1, .offset = 0, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_GET, .pe = 1, .offset = BEGIN - 1, .bytes = 2}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_ATOMIC, .pe = 1, .offset = BEGIN - 8, .bytes = 8}, EXPAR_ERR_ADDRESS},
        {{.kind = PROXY_PUT_SIGNAL, .pe = 1, .signal = 64, .op = TRANSPORT_SET}, EXPAR_ERR_ADDRESS},
    };
    stage *s = stage_open(4, 0, 60000);
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        issue(s, cases[i].command);
        expect_failure(s, cases[i].status, "failed");
    }
    s->ways[2] = (transport_ways){0}; /* the thread sees it with the next command */
    issue_put(s, 2, 0);
    expect_failure(s, EXPAR_ERR_UNSUPPORTED, "rank 2");
    assert_int_equal(count_posts(s, -1), 0);
    stage_close(s);
}

/* ---- memory that the host looks up ------------------------------------------------------------------------------- */

/* Two blocks of a GPU that touch, and memory of the CPU before them. Nothing else is known. */
static uint8_t local_memory[4][64];

static bool lies_in(const void *at, uint64_t bytes, const uint8_t *begin, uint64_t size)
{
    const uint64_t from = (uint64_t)((uintptr_t)at - (uintptr_t)begin);
    return from < size && bytes <= size - from;
}

static bool find_local(void *context, const void *at, uint64_t bytes, bool *on_device)
{
    (void)context;
    const bool by_cpu = lies_in(at, bytes, local_memory[0], 64);
    *on_device = !by_cpu;
    return by_cpu || lies_in(at, bytes, local_memory[1], 64) || lies_in(at, bytes, local_memory[2], 64);
}

static bool serves(void *context, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    (void)context;
    return memory == TRANSPORT_DEVICE && offset == 128 && bytes <= 64;
}

/* The other transport carries what a GPU has. */
static stage *stage_with_device(void)
{
    stage *s = stage_with_busy_peer();
    s->proxy->plan.find_local = find_local;
    s->proxy->plan.serves = serves;
    s->proxy->plan.on_device = &s->other.base;
    s->ways[TRANSPORT_DEVICE * PES + 1] = (transport_ways){.data = &s->other.base, .words = &s->other.base};
    return s;
}

static proxy_command found_put(int block, uint64_t at, uint64_t bytes)
{
    return (proxy_command){.kind = PROXY_PUT,
                           .pe = 1,
                           .memory = TRANSPORT_HOST | PROXY_FIND_LOCAL,
                           .offset = BEGIN + (uint64_t)block * 64 + at,
                           .local = (uintptr_t)&local_memory[block][at],
                           .bytes = bytes};
}

/* Puts of one block join. Those of two blocks do not, nor those of a GPU and of the CPU. */
static void test_looks_whose_memory_it_is(void **state)
{
    (void)state;
    stage *s = stage_with_device();
    proxy_command get = found_put(1, 0, 8), plain = touching_put(9);
    get.kind = PROXY_GET;
    issue(s, found_put(0, 32, 32));
    issue(s, found_put(1, 0, 32));
    issue(s, found_put(1, 32, 32));
    issue(s, found_put(2, 0, 64));
    issue(s, get);
    issue(s, plain);
    let_go(s, 6);
    await_posts(s, 1, 5);
    const bool on_device[] = {false, true, true, true, false};
    const size_t bytes[] = {32, 64, 64, 8, 64};
    for (size_t i = 0; i < 5; i++) {
        const transport_request one = post_at(s, i);
        assert_int_equal(one.on_device, on_device[i]);
        assert_int_equal(one.memory, TRANSPORT_HOST);
        assert_int_equal(one.bytes, bytes[i]);
        complete(s, i, EXPAR_OK);
    }
    assert_true(post_at(s, 3).kind == TRANSPORT_KIND_GET && post_at(s, 3).dest == local_memory[1]);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

static void test_memory_that_is_not_known_fails(void **state)
{
    (void)state;
    stage *s = stage_with_device();
    let_go(s, 0);
    issue(s, found_put(3, 0, 8));
    expect_failure(s, EXPAR_ERR_ADDRESS, "rank 1");
    issue(s, found_put(2, 32, 40)); /* it ends later than the block */
    expect_failure(s, EXPAR_ERR_ADDRESS, "rank 1");
    proxy_command word = found_put(0, 0, 8); /* an atomic has no memory of the caller's */
    word.kind = PROXY_ATOMIC;
    issue(s, word);
    expect_failure(s, EXPAR_ERR_ADDRESS, "rank 1");
    assert_int_equal(count_posts(s, -1), 0);
    /* No memory of a GPU can be carried. */
    s->proxy->plan.on_device = NULL; /* the thread sees it with the next command */
    issue(s, found_put(1, 0, 8));
    expect_failure(s, EXPAR_ERR_UNSUPPORTED, "rank 1");
    stage_close(s);
}

static void test_asks_what_memory_without_bounds_serves(void **state)
{
    (void)state;
    stage *s = stage_with_device();
    let_go(s, 0);
    proxy_command put = found_put(1, 0, 8);
    put.memory = TRANSPORT_DEVICE | PROXY_FIND_LOCAL;
    issue(s, put);
    expect_failure(s, EXPAR_ERR_ADDRESS, "rank 1");
    put.offset = 128;
    issue(s, put);
    await_posts(s, 1, 1);
    assert_true(post_at(s, 0).memory == TRANSPORT_DEVICE && post_at(s, 0).on_device);
    complete(s, 0, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

static _Atomic bool held;
static _Atomic int32_t returned; /* the status of a quiet; -1: it has not returned */

/* A post that is complete when it returns. */
static expar_status hold(transport *self, const transport_request *request, transport_batch *batch)
{
    (void)self, (void)request, (void)batch;
    for (int64_t since_ns = clock_ns(); atomic_load(&held);)
        doze(since_ns);
    return EXPAR_OK;
}

static void *call_quiet(void *argument)
{
    stage *s = argument;
    atomic_store(&returned, (int32_t)proxy_quiet(s->proxy, "quiet"));
    return NULL;
}

/* However late the transport is, a caller waits for it. */
static void test_a_post_that_waits_is_waited_for(void **state)
{
    static const transport_ops holds = {.name = "holds", .post = hold, .drop = drop};
    pthread_t caller;
    (void)state;
    stage *s = stage_open(32, 0, 20);
    s->proxy->plan.find_local = find_local;
    s->other.base.ops = &holds;
    s->proxy->plan.on_device = &s->other.base;
    atomic_store(&held, true);
    atomic_store(&returned, -1);
    issue(s, found_put(1, 0, 8));
    assert_int_equal(pthread_create(&caller, NULL, call_quiet, s), 0);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    assert_int_equal(atomic_load(&returned), -1);
    atomic_store(&held, false);
    pthread_join(caller, NULL);
    assert_int_equal(atomic_load(&returned), EXPAR_OK);
    stage_close(s);
}

/* ---- growth ------------------------------------------------------------------------------------------------------ */

/* The last byte of what has grown is the heap's, and what grows later is so from then on. */
static void test_takes_what_has_grown(void **state)
{
    (void)state;
    stage *s = stage_open(4, 0, 60000);
    issue_put(s, 1, GROWN_BYTES - 8 - BEGIN);
    await_posts(s, 1, 1);
    complete(s, 0, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    atomic_store(&s->grown_bytes, GROWN_BYTES + 8);
    issue_put(s, 1, GROWN_BYTES - BEGIN);
    await_posts(s, 1, 2);
    complete(s, 1, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

static void test_nothing_is_done_at_once(void **state)
{
    (void)state;
    stage *s = stage_open(4, 0, 60000);
    issue(s, (proxy_command){.kind = PROXY_PUT, .pe = 1});
    issue(s, (proxy_command){.kind = PROXY_GET, .pe = 1, .offset = HEAP_BYTES});
    issue(s, (proxy_command){.kind = PROXY_FENCE, .pe = -7});
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    assert_int_equal(count_posts(s, -1), 0);
    stage_close(s);
}

static void test_failed_ones_are_told(void **state)
{
    (void)state;
    stage *s = stage_open(8, 0, 60000);
    issue_put(s, 1, 0);
    issue_put(s, 2, 0);
    await_posts(s, -1, 2);
    complete(s, 0, EXPAR_ERR_PEER);
    complete(s, 1, EXPAR_OK);
    expect_failure(s, EXPAR_ERR_PEER, "rank 1");
    assert_int_equal(s->delivered[1], 0);
    assert_int_equal(s->delivered[2], 1);
    stage_close(s);
}

static void test_the_dead_do_not_hold_up_others(void **state)
{
    (void)state;
    stage *s = stage_open(32, 0, 60000);
    set_busy(s, 1, true);
    issue_put(s, 1, 0);
    set_busy(s, 1, false);
    issue_put(s, 1, 8);
    issue_put(s, 1, 16);
    issue_put(s, 2, 0);
    await_posts(s, -1, 4);
    atomic_store(&s->gone[1], true);
    proxy_wake(s->proxy);
    size_t other = 0;
    while (post_at(s, other).pe != 2)
        other++;
    complete(s, other, EXPAR_OK);
    expect_failure(s, EXPAR_ERR_PEER, "rank 1");
    assert_int_equal(s->dropped[1], 3);
    assert_int_equal(s->delivered[2], 1);
    /* Later ones fail without being posted, while others go on. */
    issue_put(s, 1, 24);
    expect_failure(s, EXPAR_ERR_PEER, "rank 1");
    assert_int_equal(count_posts(s, 1), 3);
    issue_put(s, 2, 8);
    await_posts(s, 2, 2);
    complete(s, 4, EXPAR_OK);
    assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    stage_close(s);
}

/* The thread gives the put up by itself; quiet, which waits for the thread no longer than twice the time-out, is asked
   when it has. */
static void test_silence_ends(void **state)
{
    (void)state;
    stage *s = stage_open(8, 0, 200);
    issue_put(s, 1, 0);
    await_done(s, 1);
    expect_failure(s, EXPAR_ERR_PEER, "rank 1");
    assert_int_equal(s->dropped[1], 1);
    stage_close(s);
}

/* A silent PE is lost until it is forgiven. A PE that is gone is found lost again. */
static void test_forgives_the_silent(void **state)
{
    (void)state;
    stage *s = stage_open(8, 0, 200);
    issue_put(s, 1, 0);
    await_done(s, 1);
    assert_int_equal(proxy_failed_to(s->proxy, 1), EXPAR_ERR_PEER);
    assert_int_equal(proxy_failed_to(s->proxy, 2), EXPAR_OK);
    issue_put(s, 1, 8);
    await_done(s, 2);
    assert_int_equal(count_posts(s, 1), 1);
    proxy_forgive(s->proxy, 1);
    assert_int_equal(proxy_failed_to(s->proxy, 1), EXPAR_OK);
    issue_put(s, 1, 16);
    await_posts(s, 1, 2);
    assert_false(proxy_has_ended_to(s->proxy, 1, 3));
    complete(s, 1, EXPAR_OK);
    await_done(s, 3);
    assert_true(proxy_has_ended_to(s->proxy, 1, 3));
    assert_int_equal(proxy_failed_to(s->proxy, 1), EXPAR_OK);
    issue_put(s, 1, 24);
    await_done(s, 4);
    atomic_store(&s->gone[1], true);
    proxy_forgive(s->proxy, 1);
    issue_put(s, 1, 32);
    await_done(s, 5);
    assert_int_equal(proxy_failed_to(s->proxy, 1), EXPAR_ERR_PEER);
    stage_close(s);
}

static void test_close_gives_up_what_is_left(void **state)
{
    (void)state;
    stage *s = stage_open(8, 0, 60000);
    issue_put(s, 1, 0);
    issue_put(s, 2, 0);
    await_posts(s, -1, 2);
    proxy_stop(s->proxy);
    assert_int_equal(s->dropped[1] + s->dropped[2], 2);
    stage_close(s);
}

static void test_sleeps_when_idle(void **state)
{
    (void)state;
    stage *s = stage_open(8, 0, 60000);
    for (uint64_t round = 0; round < 50; round++) {
        for (int64_t since_ns = clock_ns(); atomic_load(&s->proxy->work.sleepers) == 0;)
            doze(since_ns);
        issue_put(s, 1, 0);
        await_posts(s, 1, round + 1);
        complete(s, round, EXPAR_OK);
        assert_int_equal(proxy_quiet(s->proxy, "quiet"), EXPAR_OK);
    }
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_arrive),
        cmocka_unit_test(test_busy_holds_its_pe_alone),
        cmocka_unit_test(test_done_is_a_prefix),
        cmocka_unit_test(test_signal_follows_its_data),
        cmocka_unit_test(test_signal_goes_along),
        cmocka_unit_test(test_segments_of_data_and_signal),
        cmocka_unit_test(test_fence_orders_to_each_pe),
        cmocka_unit_test(test_bounds_what_is_under_way),
        cmocka_unit_test(test_slow_ones_hold_up_nobody),
        cmocka_unit_test(test_bounds_bytes),
        cmocka_unit_test(test_touching_puts_go_as_one),
        cmocka_unit_test(test_joined_signal_follows),
        cmocka_unit_test(test_others_stay_apart),
        cmocka_unit_test(test_joined_ones_fail_together),
        cmocka_unit_test(test_rejects_nonsense),
        cmocka_unit_test(test_looks_whose_memory_it_is),
        cmocka_unit_test(test_memory_that_is_not_known_fails),
        cmocka_unit_test(test_asks_what_memory_without_bounds_serves),
        cmocka_unit_test(test_a_post_that_waits_is_waited_for),
        cmocka_unit_test(test_takes_what_has_grown),
        cmocka_unit_test(test_nothing_is_done_at_once),
        cmocka_unit_test(test_failed_ones_are_told),
        cmocka_unit_test(test_the_dead_do_not_hold_up_others),
        cmocka_unit_test(test_silence_ends),
        cmocka_unit_test(test_forgives_the_silent),
        cmocka_unit_test(test_close_gives_up_what_is_left),
        cmocka_unit_test(test_sleeps_when_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
