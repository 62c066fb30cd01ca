/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the connections of strangers, who may connect during the self-test (admission.c). libfabric does not tell who is
 * at the other end. So each rank claims its own sockets: it tells each other rank, over the control sockets, the
 * addresses from which it has connected there. After the self-test no rank needs another connection than those. */
#include "net/fabric/fabric.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ranks that are threads share their descriptors, so each claims the sockets of all. */
enum { MOST_CLAIMS = 32 };

/* An end of a connection: an IPv4 address has zeros after it. Of another family: all zeros. */
typedef struct tcp_end {
    uint8_t ip[16];
    uint16_t port; /* in network order */
} tcp_end;

/* The ends from which a rank has connected to another one. */
typedef struct claims {
    uint32_t count; /* more than MOST_CLAIMS: not all of them are here */
    tcp_end from[MOST_CLAIMS];
} claims;

/* One of this process's connections. */
typedef struct connection {
    int fd;
    tcp_end here, there;
} connection;

static tcp_end tcp_end_of(const struct sockaddr_storage *address)
{
    const struct sockaddr_in *v4 = (const void *)address;
    const struct sockaddr_in6 *v6 = (const void *)address;
    tcp_end end = {.port = 0};
    if (address->ss_family == AF_INET) {
        memcpy(end.ip, &v4->sin_addr, sizeof v4->sin_addr);
        end.port = v4->sin_port;
    } else if (address->ss_family == AF_INET6) {
        memcpy(end.ip, &v6->sin6_addr, sizeof v6->sin6_addr);
        end.port = v6->sin6_port;
    }
    return end;
}

static bool same_end(const tcp_end *a, const tcp_end *b)
{
    return a->port != 0 && a->port == b->port && memcmp(a->ip, b->ip, sizeof a->ip) == 0;
}

/* False for other descriptors, and for one that another thread is closing. */
static bool connection_of(int fd, connection *out)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0)
        return false;
    *out = (connection){.fd = fd, .here = tcp_end_of(&here), .there = tcp_end_of(&there)};
    return out->here.port != 0;
}

typedef void visitor(const connection *one, void *context);

static bool visit_connections(visitor *visit, void *context)
{
    connection one;
    DIR *all = opendir("/proc/self/fd");
    if (!all) return false;
    /* The stream is this call's own. */
    // cppcheck-suppress readdirCalled
    for (struct dirent *entry; (entry = readdir(all)) != NULL;)
        if (entry->d_name[0] != '.' && connection_of(atoi(entry->d_name), &one)) visit(&one, context);
    closedir(all);
    return true;
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

typedef struct claimant {
    const fabric *f;
    tcp_end *ends; /* [size] where each rank accepts connections of this one */
    claims *mine;  /* [size] */
} claimant;

static void connection_claim(const connection *one, void *context)
{
    const claimant *c = context;
    for (int32_t pe = 0; pe < c->f->size; pe++) {
        claims *its = &c->mine[pe];
        if (!same_end(&one->there, &c->ends[pe])) continue;
        if (its->count < MOST_CLAIMS) its->from[its->count] = one->here;
        its->count++;
    }
}

static bool claim_all(const fabric *f, claims *mine)
{
    claimant c = {.f = f, .ends = calloc((size_t)f->size, sizeof *c.ends), .mine = mine};
    for (int32_t pe = 0; c.ends && pe < f->size; pe++) {
        const fabric_channel *channel = fabric_channel_of(f, pe);
        struct sockaddr_storage at = {0};
        size_t bytes = sizeof at;
        if (channel->listener >= 0 && fi_av_lookup(channel->av, channel->addresses[pe], &at, &bytes) == 0)
            c.ends[pe] = tcp_end_of(&at);
    }
    const bool done = c.ends && visit_connections(connection_claim, &c);
    free(c.ends);
    return done;
}

/* ---- strangers --------------------------------------------------------------------------------------------------- */

typedef struct judgement {
    const fabric *f;
    const claims *theirs; /* [size] */
    bool *met;            /* [size] a connection of the rank has been found; NULL: strangers are turned out */
    int32_t strangers;
} judgement;

static bool is_accepted(const fabric *f, const connection *one)
{
    for (int32_t i = 0; i < f->num_channels; i++) {
        struct sockaddr_storage at = {0};
        size_t bytes = sizeof at;
        const fabric_channel *channel = &f->channels[i];
        if (channel->listener < 0 || fi_getname(&channel->ep->fid, &at, &bytes) != 0) continue;
        const tcp_end end = tcp_end_of(&at);
        if (same_end(&one->here, &end)) return true;
    }
    return false;
}

static void connection_judge(const connection *one, void *context)
{
    judgement *j = context;
    bool claimed = false;
    if (!is_accepted(j->f, one)) return;
    for (int32_t pe = 0; pe < j->f->size; pe++)
        for (uint32_t i = 0; i < j->theirs[pe].count && i < MOST_CLAIMS; i++) {
            if (!same_end(&one->there, &j->theirs[pe].from[i])) continue;
            claimed = true;
            if (j->met) j->met[pe] = true;
        }
    if (claimed || j->met) return;
    shutdown(one->fd, SHUT_RDWR);
    j->strangers++;
}

/* Ranks have connected by then, so those that still wait to be accepted are strangers. */
static int32_t end_waiting(const fabric_channel *channel)
{
    struct pollfd waiting = {.fd = channel->listener, .events = POLLIN};
    int32_t count = 0;
    int fd;
    while (channel->listener >= 0 && poll(&waiting, 1, 0) == 1 && (fd = accept(channel->listener, NULL, NULL)) >= 0) {
        close(fd);
        count++;
    }
    return count;
}

/* Where a network translates addresses, claims name no connection here. Then it is not known which ones are strangers'.
   Each rank is connected by its own connection or by one of this rank's. */
static bool claims_are_sound(const fabric *f, const claims *mine, const claims *theirs)
{
    judgement j = {.f = f, .theirs = theirs, .met = calloc((size_t)f->size, sizeof *j.met)};
    bool sound = j.met != NULL;
    for (int32_t pe = 0; pe < f->size; pe++)
        sound = sound && theirs[pe].count <= MOST_CLAIMS;
    sound = sound && visit_connections(connection_judge, &j);
    for (int32_t pe = 0; sound && pe < f->size; pe++)
        sound = j.met[pe] || mine[pe].count > 0 || pe == f->rank;
    free(j.met);
    return sound;
}

/* Nothing else makes the provider's progress meanwhile, so its descriptors stay. */
static void end_strangers(const fabric *f, const claims *mine, const claims *theirs)
{
    judgement j = {.f = f, .theirs = theirs};
    for (int32_t i = 0; i < f->num_channels; i++)
        pthread_mutex_lock(&f->channels[i].lock);
    const bool sound = claims_are_sound(f, mine, theirs);
    if (sound) visit_connections(connection_judge, &j);
    for (int32_t i = 0; sound && i < f->num_channels; i++)
        j.strangers += end_waiting(&f->channels[i]);
    for (int32_t i = 0; i < f->num_channels; i++)
        pthread_mutex_unlock(&f->channels[i].lock);
    if (!sound) LOG(LOG_INFO, "fabric: it is not known which connections are strangers', so they stay");
    if (j.strangers > 0) LOG(LOG_WARN, "fabric: %d connections of strangers have been ended", (int)j.strangers);
}

static expar_status exchange_claims(const fabric *f, claims *mine, claims *theirs)
{
    const bool known = claim_all(f, mine);
    for (int32_t pe = 0; pe < f->size && !known; pe++)
        mine[pe].count = MOST_CLAIMS + 1;
    boot *control = f->site->boot;
    return control->ops->alltoall(control, mine, theirs, sizeof *mine);
}

expar_status fabric_end_strangers(fabric *f)
{
    claims *mine = calloc((size_t)f->size, sizeof *mine), *theirs = calloc((size_t)f->size, sizeof *theirs);
    expar_status status = mine && theirs ? exchange_claims(f, mine, theirs)
                                         : error_set(EXPAR_ERR_MEMORY, "no memory for claims of %d ranks", f->size);
    if (status == EXPAR_OK) end_strangers(f, mine, theirs);
    free(mine);
    free(theirs);
    return status;
}
