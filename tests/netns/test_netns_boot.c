/* SPDX-License-Identifier: Apache-2.0 */
/* Groups over two hosts: how they meet, which addresses they take, and what is said when a host cannot be reached. */
#include "boot/collectives.h"
#include "boot/crew.h"
#include "boot/meet/meet.h"
#include "boot/sockets/sockets.h"
#include "group/parts.h"
#include "netns/stage.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define SILENCE_MS 1500

typedef struct trial {
    stage *stage;
    expar_unique_id id;
    bool by_torchrun; /* meet by torchrun's variables, not by the id */
    int32_t size;
    int cable;
    int64_t timeout_ms;
} trial;

static int host_of(const trial *p, int32_t rank)
{
    return netns_host_of(rank, p->size, 0);
}

static void set_number(const char *name, int32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", (int)value);
    setenv(name, text, 1);
}

static expar_status request_as_torchrun(const trial *p, int32_t rank, boot_request *request)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", p->size);
    set_number("LOCAL_WORLD_SIZE", 1);
    setenv("MASTER_ADDR", "198.18.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    setenv("EXPAR_BOOTSTRAP_SECRET", "a random text", 1);
    return boot_request_from_env(request);
}

static expar_status join(const trial *p, int32_t rank, boot **out)
{
    boot_request request = crew_request(p->by_torchrun ? NULL : &p->id, rank, p->size);
    BODY_CHECK(netns_enter(rank, p->size, 0));
    request.timeout_ms = p->timeout_ms;
    if (p->by_torchrun) BODY_OK(request_as_torchrun(p, rank, &request));
    return boot_join_sockets(&request, out);
}

/* Between hosts the control sockets find out by themselves that the other one is silent. */
static expar_status check_keep_alive(const trial *p, const boot *group)
{
    const boot_sockets *sockets = (const boot_sockets *)group;
    for (int32_t other = 0; other < p->size; other++) {
        int on = 0, idle_s = 0, user_ms = 0;
        socklen_t bytes = sizeof on;
        if (host_of(p, other) == host_of(p, group->rank)) continue;
        BODY_CHECK(getsockopt(sockets->fds[other], SOL_SOCKET, SO_KEEPALIVE, &on, &bytes) == 0 && on != 0);
        BODY_CHECK(getsockopt(sockets->fds[other], IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &bytes) == 0);
        BODY_CHECK(getsockopt(sockets->fds[other], IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, &bytes) == 0);
        BODY_CHECK(user_ms == BOOT_HOST_SILENT_MS && idle_s > 0 && idle_s < BOOT_HOST_SILENT_MS / 1000);
    }
    return EXPAR_OK;
}

static expar_status form(int32_t rank, void *context)
{
    const trial *p = context;
    boot *group;
    char ip[BOOT_IP_TEXT];
    int fds[CREW_MAX];
    expar_status status = join(p, rank, &group);
    if (status != EXPAR_OK) return status;
    snprintf(ip, sizeof ip, "198.18.%d.%d", p->cable, host_of(p, rank) + 1);
    BODY_CHECK(strcmp(group->ip, ip) == 0);
    for (int32_t other = 0; other < p->size; other++) {
        BODY_CHECK((group->places[other].host == group->places[rank].host) == (host_of(p, other) == host_of(p, rank)));
        BODY_CHECK(group->places[other].machine == group->places[rank].machine);
    }
    BODY_OK(check_keep_alive(p, group));
    BODY_OK(collectives_check_all(group));
    BODY_OK(collectives_check_errors(group));
    BODY_OK(group->ops->exchange_fds(group, STDERR_FILENO, fds));
    for (int32_t other = 0; other < p->size; other++) {
        BODY_CHECK((fds[other] >= 0) == (other != rank && host_of(p, other) == host_of(p, rank)));
        if (fds[other] >= 0) close(fds[other]);
    }
    group->ops->leave(group, true);
    return EXPAR_OK;
}

/* An id made on host 0; its process is ended by stop. */
static void serve(trial *p, ranks_host *host, const char *interface)
{
    if (interface)
        setenv("EXPAR_BOOTSTRAP_INTERFACE", interface, 1);
    else
        unsetenv("EXPAR_BOOTSTRAP_INTERFACE");
    assert_true(ranks_host_start(host));
    p->id = host->id;
}

/* ---- meeting ----------------------------------------------------------------------------------------------------- */

static void test_by_id(void **state)
{
    static const char *const interfaces[] = {"net0", "net1", "198.18.1.1"};
    for (int i = 0; i < 3; i++) {
        trial p = {.stage = *state, .size = 2 + i, .cable = i > 0, .timeout_ms = 20000};
        ranks_host host;
        serve(&p, &host, interfaces[i]);
        crew_run_ok(p.size, form, &p);
        assert_true(ranks_host_stop(&host));
    }
}

static void test_by_torchrun(void **state)
{
    trial p = {.stage = *state, .size = 4, .by_torchrun = true, .timeout_ms = 20000};
    crew_run_ok(p.size, form, &p);
}

/* ---- the network's own address ----------------------------------------------------------------------------------- */

static void check_endpoint(expar_group *group, const char *ip)
{
    char text[512] = "";
    const transport *fabric = sym_ways(group->sym, TRANSPORT_HOST, (group->rank + 1) % group->size)->data;
    if (!CHECK(fabric && fabric->ops->describe, "no transport reaches the other host")) return;
    fabric->ops->describe(fabric, text, sizeof text);
    CHECK(strstr(text, ip) != NULL, "\"%s\" does not say \"%s\"", text, ip);
}

/* The ranks met at net0. stage.number: the cable at which their endpoints should be. */
static void endpoints(expar_group *group, void *shared)
{
    const stage *s = shared;
    char ip[BOOT_IP_TEXT];
    snprintf(ip, sizeof ip, "198.18.%d.%d:", (int)s->number, (int)group->rank + 1);
    check_endpoint(group, ip);
}

static void run_endpoints(stage *s, int cable, const char *variable, const char *value)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2, .heap_bytes = (size_t)4 << 20};
    stage_ranks ranks;
    s->number = cable;
    if (variable) setenv(variable, value, 1);
    stage_start(s, &plan, endpoints, &ranks);
    stage_finish(&ranks);
    if (variable) unsetenv(variable);
}

static void test_endpoints(void **state)
{
    run_endpoints(*state, 0, NULL, NULL);
    run_endpoints(*state, 1, "EXPAR_FABRIC_INTERFACE", "net1");
    run_endpoints(*state, 1, "FI_TCP_IFACE", "net1");
}

/* An address is that of one host only. */
static void no_endpoint(expar_group *group, void *shared)
{
    (void)shared;
    uint64_t *word, one = 1;
    CHECK_OK(expar_calloc(group, 1, sizeof *word, (void **)&word));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, word, &one, sizeof one, 1 - group->rank));
    if (group->rank == 1) CHECK_TEXT("rank 0 is on another node", "EXPAR_FABRIC_INTERFACE=198.18.1.1");
    if (group->rank == 0) CHECK_TEXT("rank 1 is on another node", "rank 1 cannot open it");
    CHECK_OK(expar_group_barrier(group));
}

static void test_foreign_endpoint(void **state)
{
    ranks_plan plan = {.kind = RANKS_PROCESSES, .size = 2, .heap_bytes = (size_t)4 << 20};
    stage_ranks ranks;
    setenv("EXPAR_FABRIC_INTERFACE", "198.18.1.1", 1);
    stage_start(*state, &plan, no_endpoint, &ranks);
    stage_finish(&ranks);
    unsetenv("EXPAR_FABRIC_INTERFACE");
}

/* An interface without an IPv4 address has only a link-local one, which means nothing on another host. */
static void test_link_local(void **state)
{
    stage *s = *state;
    expar_unique_id id;
    assert_true(netns_command(&s->net, 0, "ip -4 addr flush dev net1"));
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "net1", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "no address that other hosts could reach"));
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "net7", 1);
    assert_int_equal(expar_unique_id_create(&id), EXPAR_ERR_ARGUMENT);
    assert_non_null(strstr(expar_last_error(), "no such interface"));
}

/* ---- out of reach ------------------------------------------------------------------------------------------------ */

#define LOST_MS 2500 /* rank 0 gets so long to be heard by the rendezvous, on a busy machine, too */

/* Rank 1, on host 1, fails with that text; rank 0 waits for it in vain. */
static void expect_lost(const trial *p, const char *part)
{
    crew ranks;
    crew_start(&ranks, p->size, form, (void *)(uintptr_t)p);
    crew_finish(&ranks);
    crew_assert_error(&ranks, 1, EXPAR_ERR_BOOTSTRAP, part);
    crew_assert_error(&ranks, 0, EXPAR_ERR_BOOTSTRAP, "missing: 1");
}

static void test_id_on_loopback(void **state)
{
    trial p = {.stage = *state, .size = 2, .timeout_ms = LOST_MS};
    ranks_host host;
    serve(&p, &host, NULL);
    expect_lost(&p, "EXPAR_BOOTSTRAP_INTERFACE must be set where the id is made");
    assert_true(ranks_host_stop(&host));
}

static void test_no_route(void **state)
{
    trial p = {.stage = *state, .size = 2, .timeout_ms = LOST_MS};
    ranks_host host;
    serve(&p, &host, "net0");
    assert_true(netns_command(&p.stage->net, 1, "ip link set net0 down"));
    expect_lost(&p, "cannot be reached (Network is unreachable)");
    assert_true(ranks_host_stop(&host));
}

static void test_no_answer(void **state)
{
    trial p = {.stage = *state, .size = 2, .timeout_ms = LOST_MS};
    ranks_host host;
    serve(&p, &host, "net0");
    assert_true(netns_command(&p.stage->net, 0, "ip link set net0 down"));
    expect_lost(&p, "the unique id at tcp:198.18.0.1:");
    assert_true(ranks_host_stop(&host));
}

/* A firewall on host 0 that lets only the rendezvous through: rank 1 says which address it could not reach, and rank 0
 * hears it, too. A quarter of the time is left for that. */
static void test_firewall(void **state)
{
    trial p = {.stage = *state, .size = 2, .timeout_ms = 8000};
    ranks_host host;
    unique_id_parts parts;
    crew ranks;
    serve(&p, &host, "net0");
    assert_int_equal(unique_id_unpack(&p.id, &parts), EXPAR_OK);
    assert_true(netns_command(&p.stage->net, 0,
                              "nft 'add table ip t; add chain ip t in { type filter hook input priority 0; }; "
                              "add rule ip t in iifname net0 tcp flags syn tcp dport != %u drop'",
                              (unsigned)parts.ip.port));
    crew_start(&ranks, p.size, form, &p);
    crew_finish(&ranks);
    for (int32_t rank = 0; rank < 2; rank++)
        crew_assert_error(&ranks, rank, EXPAR_ERR_BOOTSTRAP,
                          "rank 1 gets no control socket to rank 0 at tcp:198.18.0.1:");
    assert_true(ranks_host_stop(&host));
}

/* ---- a host falls silent ----------------------------------------------------------------------------------------- */

#define BARRIERS 20

/* The last one fails, since the cable has been pulled by then. */
static expar_status barriers(int32_t rank, void *context)
{
    const trial *p = context;
    boot *group;
    expar_status status = join(p, rank, &group);
    if (status != EXPAR_OK) return status;
    for (int i = 0; i < BARRIERS; i++) {
        BODY_OK(group->ops->barrier(group));
        atomic_fetch_add_explicit(&p->stage->steps, 1, memory_order_relaxed);
    }
    stage_hold(p->stage);
    group->timeout_ms = SILENCE_MS;
    return group->ops->barrier(group);
}

/* The rank that finds it out first names it; the other one may see the first leave. */
static bool misses_2(const outcome *one)
{
    return strstr(one->text, "silent: rank 2") != NULL;
}

static void test_silent_host(void **state)
{
    trial p = {.stage = *state, .size = 3, .timeout_ms = 20000};
    ranks_host host;
    crew ranks;
    serve(&p, &host, "net0");
    atomic_store(&p.stage->held, true);
    crew_start(&ranks, p.size, barriers, &p);
    stage_await(&p.stage->steps, p.size * BARRIERS);
    assert_true(netns_command(&p.stage->net, 1, "ip link set net0 down"));
    atomic_store(&p.stage->held, false);
    crew_finish(&ranks);
    crew_assert_error(&ranks, 2, EXPAR_ERR_PEER, "silent: rank 0-1");
    crew_assert_error(&ranks, 0, EXPAR_ERR_PEER, "rank ");
    crew_assert_error(&ranks, 1, EXPAR_ERR_PEER, "rank ");
    assert_true(misses_2(&ranks.outcomes[0]) || misses_2(&ranks.outcomes[1]));
    assert_true(ranks_host_stop(&host));
}

#define ON_A_NETWORK(test) cmocka_unit_test_setup_teardown(test, stage_set_up, stage_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_NETWORK(test_by_id),      ON_A_NETWORK(test_by_torchrun),
        ON_A_NETWORK(test_endpoints),  ON_A_NETWORK(test_foreign_endpoint),
        ON_A_NETWORK(test_link_local), ON_A_NETWORK(test_id_on_loopback),
        ON_A_NETWORK(test_no_route),   ON_A_NETWORK(test_no_answer),
        ON_A_NETWORK(test_firewall),   ON_A_NETWORK(test_silent_host),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
