/* SPDX-License-Identifier: Apache-2.0 */
/* Groups that cannot form: every rank that came says why. */
#include "boot/crew.h"
#include "boot/meet/meet.h"
#include "boot/meet/peer.h"
#include "boot/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 4

/* How rank 3 differs. */
typedef struct trial {
    expar_unique_id id;
    int32_t odd_rank, odd_size, odd_ranks_per_node;
    uint64_t odd_heap_bytes;
    int64_t timeout_ms;
    bool odd_first; /* it comes before the others */
    int order[2];   /* pipe: the odd rank or the others write when they have come */
} trial;

static trial trial_new(void)
{
    trial self = {.odd_rank = 3, .odd_size = SIZE, .odd_heap_bytes = 1 << 20, .timeout_ms = 20000};
    assert_int_equal(expar_unique_id_create(&self.id), EXPAR_OK);
    return self;
}

static expar_status join(int32_t rank, void *context)
{
    const trial *self = context;
    boot *group;
    boot_request request = crew_request(&self->id, rank, SIZE);
    request.timeout_ms = self->timeout_ms;
    if (rank == 3) {
        request.rank = self->odd_rank;
        request.size = self->odd_size;
        request.ranks_per_node = self->odd_ranks_per_node;
        request.heap_bytes = self->odd_heap_bytes;
    }
    expar_status status = boot_join_sockets(&request, &group);
    if (status != EXPAR_OK) return status;
    status = group->ops->barrier(group);
    group->ops->leave(group, status == EXPAR_OK);
    return status;
}

/* Four ranks that agree form a group with the same id, whatever was before. */
static void assert_next_try_works(trial *self)
{
    trial plain = {.id = self->id, .odd_rank = 3, .odd_size = SIZE, .odd_heap_bytes = 1 << 20, .timeout_ms = 20000};
    crew_run_ok(SIZE, join, &plain);
    assert_int_equal(expar_unique_id_retire(&self->id), EXPAR_OK);
}

static void assert_all_fail(trial *self, expar_status status, const char *part, const char *other_part)
{
    crew ranks;
    crew_start(&ranks, SIZE, join, self);
    crew_finish(&ranks);
    for (int32_t rank = 0; rank < SIZE; rank++) {
        crew_assert_error(&ranks, rank, status, part);
        crew_assert_error(&ranks, rank, status, other_part);
    }
}

static void sizes_differ(void **state)
{
    (void)state;
    trial self = trial_new();
    self.odd_size = 5;
    /* Which size counts as odd depends on who came first. */
    assert_all_fail(&self, EXPAR_ERR_MISMATCH, "joins with size", "rank 3");
    assert_next_try_works(&self);
}

static void heaps_differ(void **state)
{
    (void)state;
    trial self = trial_new();
    self.odd_heap_bytes = 123456;
    assert_all_fail(&self, EXPAR_ERR_MISMATCH, "heap_bytes", "123456");
    assert_next_try_works(&self);
}

static void nodes_differ(void **state)
{
    (void)state;
    trial self = trial_new();
    self.odd_ranks_per_node = 2;
    assert_all_fail(&self, EXPAR_ERR_MISMATCH, "ranks_per_node", "rank 3");
    assert_next_try_works(&self);
}

static void ranks_equal(void **state)
{
    (void)state;
    trial self = trial_new();
    self.odd_rank = 1;
    assert_all_fail(&self, EXPAR_ERR_MISMATCH, "two processes join as rank 1", "pid");
    assert_next_try_works(&self);
}

static void arguments_out_of_range(void **state)
{
    (void)state;
    boot *group = NULL;
    expar_unique_id id;
    assert_int_equal(expar_unique_id_create(&id), EXPAR_OK);
    boot_request request = crew_request(&id, 4, 4);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_RANGE);
    request = crew_request(&id, 0, 0);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_RANGE);
    request = crew_request(NULL, 0, 2);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_ARGUMENT);
    request = crew_request(&id, 0, 2);
    request.timeout_ms = 0;
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_RANGE);
    request = crew_request(&id, 0, 2);
    request.id.bytes[20] ^= 1;
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_ARGUMENT);
    assert_null(group);
    assert_int_equal(expar_unique_id_retire(&id), EXPAR_OK);
}

/* ---- another version --------------------------------------------------------------------------------------------- */

/* Rank 3 is of another version; what it is told is its outcome. */
static expar_status join_with_next_protocol(int32_t rank, void *context)
{
    trial *self = context;
    char byte = 0;
    if (rank != 3) {
        close(self->order[1]);
        BODY_CHECK(!self->odd_first || read(self->order[0], &byte, 1) == 0);
        return join(rank, self);
    }
    unsigned char payload[sizeof(handshake_verdict)];
    wire_inbox inbox = {.payload = payload, .limit_bytes = sizeof payload};
    handshake_verdict verdict;
    handshake greeting = peer_handshake(3, SIZE);
    greeting.prefix.protocol = BOOT_PROTOCOL + 1;
    snprintf(greeting.prefix.version, sizeof greeting.prefix.version, "0.2.0");
    int fd = peer_connect(&self->id);
    BODY_CHECK(fd >= 0 && peer_prove(fd, &self->id) && peer_send_handshake(fd, &greeting));
    BODY_CHECK(peer_await_frame(fd, &inbox) && inbox.header.kind == WIRE_REJECTED);
    close(self->order[1]);
    verdict_read(inbox.payload, inbox.header.bytes, &verdict);
    wire_close(&fd);
    return error_set((expar_status)verdict.status, "%s", verdict.text);
}

static void versions_differ(void **state)
{
    (void)state;
    char text[96];
    snprintf(text, sizeof text, "rank 3 speaks protocol %d (expar 0.2.0), this group protocol %d", BOOT_PROTOCOL + 1,
             BOOT_PROTOCOL);
    for (int odd_first = 0; odd_first < 2; odd_first++) {
        crew ranks;
        trial self = trial_new();
        self.odd_first = odd_first;
        assert_int_equal(pipe2(self.order, O_CLOEXEC), 0);
        crew_start(&ranks, SIZE, join_with_next_protocol, &self);
        close(self.order[0]);
        close(self.order[1]);
        crew_finish(&ranks);
        for (int32_t rank = 0; rank < SIZE; rank++)
            crew_assert_error(&ranks, rank, EXPAR_ERR_VERSION, text);
        assert_next_try_works(&self);
    }
}

/* ---- somebody is missing ----------------------------------------------------------------------------------------- */

/* The one that joins last; the others, of more patience, have come by then. */
typedef struct latecomer {
    const expar_unique_id *id;
    int32_t rank, size;
} latecomer;

static expar_status join_last(int32_t index, void *context)
{
    const latecomer *self = context;
    boot *group;
    boot_request request = crew_request(self->id, self->rank, self->size);
    (void)index;
    request.timeout_ms = 400;
    return boot_join_sockets(&request, &group);
}

/* The rank of this connection was welcomed. Then it is rejected with that text. */
static void assert_rejected(int fd, const char *part)
{
    unsigned char payload[sizeof(handshake_verdict)];
    wire_inbox inbox = {.payload = payload, .limit_bytes = sizeof payload};
    handshake_verdict verdict;
    assert_true(peer_await_frame(fd, &inbox));
    assert_int_equal(inbox.header.kind, WIRE_REJECTED);
    verdict_read(inbox.payload, inbox.header.bytes, &verdict);
    assert_int_equal(verdict.status, EXPAR_ERR_BOOTSTRAP);
    if (!strstr(verdict.text, part)) fail_msg("expected \"%s\": %s", part, verdict.text);
    wire_close(&fd);
}

static void assert_last_is_told(const latecomer *last, const char *part)
{
    crew ranks;
    crew_start(&ranks, 1, join_last, (void *)last);
    crew_finish(&ranks);
    crew_assert_error(&ranks, 0, EXPAR_ERR_BOOTSTRAP, part);
}

/* The shortest patience decides, for all. */
static void missing_rank_is_named(void **state)
{
    (void)state;
    static const char told[] = "time-out: 3 of 4 ranks came: 0-2; missing: 3";
    trial self = trial_new();
    int first = peer_enter(&self.id, 0, SIZE), second = peer_enter(&self.id, 1, SIZE);
    assert_true(first >= 0 && second >= 0);
    assert_last_is_told(&(latecomer){.id = &self.id, .rank = 2, .size = SIZE}, told);
    assert_rejected(first, told);
    assert_rejected(second, told);
    assert_next_try_works(&self);
}

static void most_ranks_missing(void **state)
{
    (void)state;
    static const char told[] = "2 of 8 ranks came: 2,5; missing: 0-1,3-4,6-7";
    trial self = trial_new();
    int first = peer_enter(&self.id, 5, 8);
    assert_true(first >= 0);
    assert_last_is_told(&(latecomer){.id = &self.id, .rank = 2, .size = 8}, told);
    assert_rejected(first, told);
    assert_next_try_works(&self);
}

static void retired_id_ends_waiting(void **state)
{
    (void)state;
    crew ranks;
    trial self = trial_new();
    int inside = peer_enter(&self.id, 3, SIZE);
    assert_true(inside >= 0);
    crew_start(&ranks, 1, join, &self);
    /* The rank inside is told to come again, and finds nobody; so does one that is on its way. */
    assert_int_equal(expar_unique_id_retire(&self.id), EXPAR_OK);
    crew_finish(&ranks);
    crew_assert_error(&ranks, 0, EXPAR_ERR_BOOTSTRAP, "nobody serves the unique id");
    wire_close(&inside);
}

/* ---- death during set-up ----------------------------------------------------------------------------------------- */

typedef enum stage { AFTER_HANDSHAKE, AFTER_TABLE, AFTER_ONE_CONTROL_SOCKET, AFTER_STANDS, STAGES } stage;

typedef struct death {
    trial trial;
    stage stage;
    int alive[2]; /* pipe: rank 3 alone keeps its writing end */
} death;

/* Connects to rank 0 as far as the proof, at the address in the table. */
static bool meet_rank_0(const unsigned char *table, const expar_unique_id *id)
{
    handshake_entry entry;
    address where;
    auth proof;
    auth_key key;
    unique_id_parts parts;
    memcpy(&entry, table + sizeof(handshake_table_head), sizeof entry);
    if (!address_from_unix_name(entry.contact.unix_name, &where)) return false;
    if (unique_id_unpack(id, &parts) != EXPAR_OK) return false;
    int fd = address_connect(&where);
    auth_key_derive(parts.secret, &key);
    auth_begin(&proof, &key, AUTH_CONNECTS, AUTH_MESH);
    return fd >= 0 && auth_run(&proof, fd, clock_ns() + PEER_WAIT_NS) == WIRE_DONE;
}

static expar_status die_at_stage(const death *self)
{
    static unsigned char table[1 << 16];
    wire_inbox inbox = {.payload = table, .limit_bytes = sizeof table};
    int fd = peer_enter(&self->trial.id, 3, SIZE);
    BODY_CHECK(fd >= 0);
    if (self->stage >= AFTER_TABLE) BODY_CHECK(peer_await_frame(fd, &inbox) && inbox.header.kind == WIRE_TABLE);
    if (self->stage >= AFTER_ONE_CONTROL_SOCKET) BODY_CHECK(meet_rank_0(table, &self->trial.id));
    if (self->stage >= AFTER_STANDS)
        BODY_CHECK(wire_send_frame(fd, WIRE_STANDS, NULL, 0, clock_ns() + PEER_WAIT_NS) == WIRE_DONE);
    raise(SIGKILL);
    return EXPAR_OK;
}

/* Before the table the group must not be complete: rank 0 comes only after the death, and is told of it too. */
static expar_status join_or_die(int32_t rank, void *context)
{
    death *self = context;
    char byte;
    if (rank == 3) return die_at_stage(self);
    close(self->alive[1]);
    if (rank == 0 && self->stage == AFTER_HANDSHAKE) BODY_CHECK(read(self->alive[0], &byte, 1) == 0);
    return join(rank, &self->trial);
}

static void death_at_each_stage(void **state)
{
    (void)state;
    for (stage at = 0; at < STAGES; at++) {
        crew ranks;
        death self = {.trial = trial_new(), .stage = at};
        assert_int_equal(pipe2(self.alive, O_CLOEXEC), 0);
        crew_start(&ranks, SIZE, join_or_die, &self);
        close(self.alive[0]);
        close(self.alive[1]);
        crew_finish(&ranks);
        for (int32_t rank = 0; rank < 3; rank++)
            crew_assert_error(&ranks, rank, EXPAR_ERR_BOOTSTRAP, "rank 3");
        assert_true(WIFSIGNALED(ranks.outcomes[3].wait_status));
        assert_next_try_works(&self.trial);
    }
}

/* Kills rank 3 at a random moment; the survivors end with its name, in the join or in the barrier after it. */
static void death_at_random_moments(void **state)
{
    (void)state;
    const char *text = getenv("EXPAR_TEST_SEED");
    unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)clock_ns();
    print_message("seed %u\n", seed);
    trial self = trial_new();
    /* One that dies before its greeting has never come: the others wait as long as they were told to. */
    self.timeout_ms = 3000;
    for (int round = 0; round < 40; round++) {
        crew ranks;
        crew_start(&ranks, SIZE, join, &self);
        nanosleep(&(struct timespec){.tv_nsec = rand_r(&seed) % 6000000}, NULL);
        kill(ranks.pids[3], SIGKILL);
        crew_finish(&ranks);
        for (int32_t rank = 0; rank < 3; rank++) {
            const outcome *one = &ranks.outcomes[rank];
            bool in_time = ranks.outcomes[3].reported && ranks.outcomes[3].status == EXPAR_OK;
            if (one->status == EXPAR_OK || in_time) continue;
            assert_true(one->status == EXPAR_ERR_BOOTSTRAP || one->status == EXPAR_ERR_PEER);
            if (!strstr(one->text, "rank 3") && !strstr(one->text, "missing: "))
                fail_msg("rank %d: %s", rank, one->text);
        }
    }
    assert_next_try_works(&self);
}

/* Rank 0 is stopped after it has begun to listen: connections come, and nothing answers. */
static void a_stopped_rank_0_is_named(void **state)
{
    (void)state;
    unique_id_parts parts = {.secret = {1}};
    address any, bound;
    boot *group;
    boot_request request = {.rank = 1, .size = 2, .timeout_ms = 300};
    snprintf(request.meeting, sizeof request.meeting, "unix:expar-test-stopped-%ld", (long)getpid());
    assert_int_equal(address_parse(request.meeting, clock_ns() + INT64_C(1000000000), &any), EXPAR_OK);
    int listener = address_listen(&any);
    assert_true(listener >= 0);
    unique_id_pack(&parts, &request.id);
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(strstr(expar_last_error(), "time-out: "));
    assert_non_null(strstr(expar_last_error(), "rank 0, which serves it, is stopped or cannot be reached"));
    wire_close(&listener);

    assert_int_equal(address_parse("tcp:127.0.0.1:0", clock_ns() + INT64_C(1000000000), &any), EXPAR_OK);
    listener = address_listen(&any);
    assert_true(listener >= 0 && address_local(listener, &bound));
    address_to_ip(&bound, &parts.ip);
    unique_id_pack(&parts, &request.id);
    request.have_id = true;
    assert_int_equal(boot_join_sockets(&request, &group), EXPAR_ERR_BOOTSTRAP);
    assert_non_null(
        strstr(expar_last_error(), "the process that made the unique id (rank 0, where the ranks made it)"));
    wire_close(&listener);
}

/* ---- a rank that stops while control sockets are made ------------------------------------------------------------ */

typedef struct stop {
    trial trial;
    int32_t rank;
    const char *named; /* part of every rank's error */
    const char *told;  /* part of the first rank's error, which the rendezvous passes on */
} stop;

/* The stopped rank has greeted. Its kernel accepts connections, and nothing answers. What it is told is its outcome.
   Then it closes its listener, which ranks that are slower may see before their own time is up. */
static expar_status join_or_stop(int32_t rank, void *context)
{
    static unsigned char payload[1 << 16];
    const stop *self = context;
    wire_inbox inbox = {.payload = payload, .limit_bytes = sizeof payload};
    handshake_verdict verdict;
    address where;
    if (rank != self->rank) return join(rank, context);
    handshake greeting = peer_handshake(rank, SIZE);
    snprintf(greeting.contact.unix_name, sizeof greeting.contact.unix_name, "expar-test-stops-%ld", (long)getpid());
    BODY_CHECK(address_from_unix_name(greeting.contact.unix_name, &where));
    int listener = address_listen(&where), fd = peer_connect(&self->trial.id);
    BODY_CHECK(listener >= 0 && fd >= 0 && peer_prove(fd, &self->trial.id) && peer_send_handshake(fd, &greeting));
    BODY_CHECK(peer_await_frame(fd, &inbox) && inbox.header.kind == WIRE_TABLE);
    BODY_CHECK(peer_await_frame(fd, &inbox) && inbox.header.kind == WIRE_REJECTED);
    verdict_read(inbox.payload, inbox.header.bytes, &verdict);
    wire_close(&listener);
    wire_close(&fd);
    return error_set((expar_status)verdict.status, "%s", verdict.text);
}

/* Lower ranks wait for its connections, higher ranks for its answers. All groups at once: their ranks wait for seconds.
   The time is long enough that a loaded machine names the rank before the rendezvous ends the try. */
static void stopped_ranks_are_named(void **state)
{
    (void)state;
    stop stops[] = {{.rank = 3,
                     .named = "gets no control socket from rank 3: ",
                     .told = "gets no control socket from rank 3: not connected; is it stopped?"},
                    {.rank = 1,
                     .named = "gets no control socket to rank 1: ",
                     .told = "gets no control socket to rank 1: it is connected, but does not answer; is it stopped?"},
                    {.rank = 0,
                     .named = "gets no control socket to rank 0: ",
                     .told = "gets no control socket to rank 0: it is connected, but does not answer; is it stopped?"}};
    crew ranks[ARRAY_LENGTH(stops)];
    for (size_t i = 0; i < ARRAY_LENGTH(stops); i++) {
        stops[i].trial = trial_new();
        stops[i].trial.timeout_ms = 12000;
        crew_start(&ranks[i], SIZE, join_or_stop, &stops[i]);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(stops); i++) {
        crew_finish(&ranks[i]);
        for (int32_t rank = 0; rank < SIZE; rank++)
            crew_assert_error(&ranks[i], rank, EXPAR_ERR_BOOTSTRAP,
                              rank == stops[i].rank ? stops[i].told : stops[i].named);
        assert_next_try_works(&stops[i].trial);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_differ),
        cmocka_unit_test(heaps_differ),
        cmocka_unit_test(nodes_differ),
        cmocka_unit_test(ranks_equal),
        cmocka_unit_test(arguments_out_of_range),
        cmocka_unit_test(versions_differ),
        cmocka_unit_test(missing_rank_is_named),
        cmocka_unit_test(most_ranks_missing),
        cmocka_unit_test(retired_id_ends_waiting),
        cmocka_unit_test(a_stopped_rank_0_is_named),
        cmocka_unit_test(stopped_ranks_are_named),
        cmocka_unit_test(death_at_each_stage),
        cmocka_unit_test(death_at_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
