/* SPDX-License-Identifier: Apache-2.0 */
/* server: the rendezvous thread. */
#include "boot/meet/server.h"
#include "boot/meet/attempt.h"
#include "boot/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    MAX_STRANGERS = 128, /* connections that have not proved the secret */
    MAX_CLIENTS = MAX_STRANGERS + 2 * BOOT_MAX_RANKS,
    MAX_ACCEPTS = 64 /* accepted in one round, so that a flood does not starve known clients */
};
/* how long a connection may stay unproved; and how long a last word may take */
#define STRANGER_NS ((int64_t)5000 * 1000 * 1000)
#define PAUSE_NS    ((int64_t)50 * 1000 * 1000)  /* pause in accepting when descriptors are short */
#define FLUSH_NS    ((int64_t)500 * 1000 * 1000) /* for last words when the server stops */

struct boot_server {
    pthread_t thread;
    int listener;
    int stop_event; /* eventfd: written by boot_server_stop, polled by the thread */
    auth_key key;
    /* The members below belong to the thread. */
    attempt attempt;
    client *clients[MAX_CLIENTS];
    int32_t num_clients;
    int64_t paused_until_ns;
    struct pollfd polls[MAX_CLIENTS + 2];
};

/* ---- clients ----------------------------------------------------------------------------------------------------- */

static bool is_transient(const client *one)
{
    return one->state != CLIENT_MEMBER;
}

static void server_drop(boot_server *server, int32_t index)
{
    client *one = server->clients[index];
    attempt_lost(&server->attempt, one);
    client_destroy(one);
    server->clients[index] = server->clients[--server->num_clients];
}

/* Drops the oldest client that is not a member. Clients move when one is dropped, so it is found by its time. False:
   there is none. */
static bool drop_oldest_transient(boot_server *server)
{
    int32_t oldest = -1;
    for (int32_t i = 0; i < server->num_clients; i++) {
        const client *one = server->clients[i];
        if (is_transient(one) && (oldest < 0 || one->since_ns < server->clients[oldest]->since_ns)) oldest = i;
    }
    if (oldest < 0) return false;
    LOG(LOG_DEBUG, "rendezvous: too many unknown connections, dropping the oldest");
    server_drop(server, oldest);
    return true;
}

static int32_t count_transient(const boot_server *server)
{
    int32_t count = 0;
    for (int32_t i = 0; i < server->num_clients; i++)
        count += is_transient(server->clients[i]);
    return count;
}

static bool out_of_descriptors(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Returns false if no connection waits. */
static bool accept_one(boot_server *server)
{
    int fd = address_accept(server->listener);
    if (fd < 0) {
        int error = errno;
        if (!out_of_descriptors(error)) return error == EINTR || error == ECONNABORTED;
        bool spare = drop_oldest_transient(server);
        if (!spare) server->paused_until_ns = clock_ns() + PAUSE_NS;
        return spare;
    }
    if (!address_same_user(fd)) {
        LOG(LOG_WARN, "rendezvous: dropping a connection from another user");
        wire_close(&fd);
        return true;
    }
    if (count_transient(server) >= MAX_STRANGERS || server->num_clients == MAX_CLIENTS) drop_oldest_transient(server);
    client *one = server->num_clients < MAX_CLIENTS ? client_create(fd, &server->key) : NULL;
    if (one)
        server->clients[server->num_clients++] = one;
    else
        wire_close(&fd);
    return true;
}

static void accept_some(boot_server *server)
{
    for (int count = 0; count < MAX_ACCEPTS && accept_one(server); count++)
        continue;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* Serves the clients that poll found ready. It starts at the end, so that dropping a client moves only those already
   seen. */
static void serve_ready(boot_server *server, int32_t polled)
{
    for (int32_t i = polled - 1; i >= 0; i--) {
        if (server->polls[i + 2].revents != 0 && !attempt_serve(&server->attempt, server->clients[i]))
            server_drop(server, i);
    }
}

static void drop_expired(boot_server *server, int64_t now_ns)
{
    for (int32_t i = server->num_clients - 1; i >= 0; i--) {
        const client *one = server->clients[i];
        bool gone = one->state == CLIENT_LEAVING && wire_outbox_empty(&one->outbox);
        if (gone || (is_transient(one) && now_ns - one->since_ns >= STRANGER_NS)) server_drop(server, i);
    }
}

static int64_t next_deadline_ns(const boot_server *server)
{
    int64_t next_ns = attempt_deadline_ns(&server->attempt);
    if (server->paused_until_ns > 0 && server->paused_until_ns < next_ns) next_ns = server->paused_until_ns;
    for (int32_t i = 0; i < server->num_clients; i++) {
        const client *one = server->clients[i];
        if (is_transient(one) && one->since_ns + STRANGER_NS < next_ns) next_ns = one->since_ns + STRANGER_NS;
    }
    return next_ns;
}

/* Returns how many clients are among the polled ones. */
static int32_t server_poll(boot_server *server)
{
    bool paused = server->paused_until_ns > 0;
    server->polls[0] = (struct pollfd){.fd = server->stop_event, .events = POLLIN};
    server->polls[1] = (struct pollfd){.fd = paused ? -1 : server->listener, .events = POLLIN};
    for (int32_t i = 0; i < server->num_clients; i++)
        server->polls[i + 2] =
            (struct pollfd){.fd = server->clients[i]->fd, .events = client_events(server->clients[i])};
    int64_t next_ns = next_deadline_ns(server);
    int32_t polled = server->num_clients;
    int wait_ms = next_ns == INT64_MAX ? -1 : wire_poll_ms(next_ns);
    if (poll(server->polls, (nfds_t)polled + 2, wait_ms) < 0) {
        for (int32_t i = 0; i < polled + 2; i++)
            server->polls[i].revents = 0;
    }
    return polled;
}

/* Sends last words that the sockets did not take at once, then drops all clients. */
static void server_say_goodbye(boot_server *server)
{
    int64_t deadline_ns = clock_ns() + FLUSH_NS;
    attempt_close(&server->attempt);
    while (server->num_clients > 0) {
        client *one = server->clients[server->num_clients - 1];
        while (one->state == CLIENT_LEAVING && client_step(one) == WIRE_AGAIN &&
               wire_wait(one->fd, POLLOUT, deadline_ns))
            continue;
        server_drop(server, server->num_clients - 1);
    }
}

static void *server_run(void *argument)
{
    boot_server *server = argument;
    for (;;) {
        int32_t polled = server_poll(server);
        if (server->polls[0].revents != 0) break;
        int64_t now_ns = clock_ns();
        if (now_ns >= server->paused_until_ns) server->paused_until_ns = 0;
        serve_ready(server, polled);
        if (server->polls[1].revents != 0) accept_some(server);
        attempt_check_time(&server->attempt, now_ns);
        drop_expired(server, now_ns);
    }
    server_say_goodbye(server);
    return NULL;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

/* Blocks signals, which are for the threads of the program. Returns what pthread_create does. */
static int server_start_thread(boot_server *server)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&server->thread, NULL, server_run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static void server_free(boot_server *server)
{
    wire_close(&server->listener);
    if (server->stop_event >= 0) close(server->stop_event);
    free(server);
}

expar_status boot_server_start(int listener, const unsigned char secret[AUTH_SECRET_BYTES], boot_server **out)
{
    boot_server *server = calloc(1, sizeof *server);
    if (!server) {
        wire_close(&listener);
        return error_set(EXPAR_ERR_MEMORY, "rendezvous: out of memory");
    }
    server->listener = listener;
    auth_key_derive(secret, &server->key);
    server->stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    expar_status status = server->stop_event >= 0 ? EXPAR_OK : error_errno("rendezvous: eventfd");
    if (status == EXPAR_OK && (errno = server_start_thread(server)) != 0)
        status = error_errno("rendezvous: cannot start its thread");
    if (status != EXPAR_OK) {
        server_free(server);
        return status;
    }
    *out = server;
    return EXPAR_OK;
}

void boot_server_stop(boot_server *server)
{
    if (!server) return;
    uint64_t one = 1;
    if (write(server->stop_event, &one, sizeof one) != sizeof one) LOG(LOG_ERROR, "rendezvous: cannot be stopped");
    pthread_join(server->thread, NULL);
    server_free(server);
}
