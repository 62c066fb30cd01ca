/* SPDX-License-Identifier: Apache-2.0 */
/* The list of hosts, the command line of ssh, and the address at which the ranks meet. */
#include "hosts.h"
#include "base/shown.h"
#include "text.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The port does not matter: nothing is sent. */
#define ANY_PORT "22"

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* A name that begins with '-' would be an option of ssh. */
static bool is_name(const char *name)
{
    if (!*name || *name == '-') return false;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c <= 0x20 || *c == 0x7f || strchr("'\"\\$`;&|<>()[]", *c)) return false;
    return true;
}

/* Splits "NAME[:COUNT]"; a name in brackets may have colons. False: it is no such text. */
static bool host_read(char *text, struct job_host *host)
{
    char *end = *text == '[' ? strchr(text, ']') : NULL, *colon = strrchr(end ? end : text, ':');
    int64_t ranks = 0;
    if (colon && !text_to_int(colon + 1, 1, 65536, &ranks)) return false;
    if (colon) *colon = 0;
    if (end && end[1]) return false;
    if (end) *end = 0;
    host->ranks = (int)ranks;
    if (strlen(end ? text + 1 : text) > HOSTS_NAME_MOST) return false;
    snprintf(host->name, sizeof host->name, "%s", end ? text + 1 : text);
    return is_name(host->name);
}

static bool is_twice(const struct job_hosts *hosts, const char *name)
{
    for (int i = 0; i < hosts->count; i++)
        if (strcmp(hosts->list[i].name, name) == 0) return true;
    return false;
}

static bool list_read(char *copy, struct job_hosts *hosts, char why[HOSTS_WHY])
{
    char *rest = copy, *word;
    while ((word = strsep(&rest, ","))) {
        struct job_host host;
        char shown[SHOWN_BYTES];
        shown_text(word, shown);
        if (hosts->count == HOSTS_MOST || !host_read(word, &host)) {
            snprintf(why, HOSTS_WHY, "'%s': a host or HOST:COUNT is expected, at most %d of them", shown, HOSTS_MOST);
            return false;
        }
        if (is_twice(hosts, host.name)) {
            snprintf(why, HOSTS_WHY, "'%s' is there twice; HOST:COUNT says how many ranks a host gets", shown);
            return false;
        }
        hosts->list[hosts->count++] = host;
    }
    return true;
}

/* Gives each host its ranks, in order. */
static bool ranks_divide(struct job_hosts *hosts, int *num_ranks, char why[HOSTS_WHY])
{
    int sum = 0, counted = 0;
    for (int i = 0; i < hosts->count; i++)
        counted += hosts->list[i].ranks > 0;
    if (counted > 0 && counted < hosts->count)
        snprintf(why, HOSTS_WHY, "either all hosts have a count of ranks, or none has");
    else if (counted == 0 && *num_ranks == 0)
        snprintf(why, HOSTS_WHY, "how many ranks? -n N, or HOST:COUNT for all hosts, says so");
    else if (counted == 0 && *num_ranks % hosts->count)
        snprintf(why, HOSTS_WHY, "%d hosts do not divide -n %d; HOST:COUNT gives each its ranks", hosts->count,
                 *num_ranks);
    if (*why) return false;
    for (int i = 0; i < hosts->count; i++) {
        if (counted == 0) hosts->list[i].ranks = *num_ranks / hosts->count;
        hosts->list[i].first = sum;
        sum += hosts->list[i].ranks;
    }
    if (*num_ranks && sum != *num_ranks)
        snprintf(why, HOSTS_WHY, "the hosts have %d ranks together, and -n has %d", sum, *num_ranks);
    else if (sum > HOSTS_RANKS)
        snprintf(why, HOSTS_WHY, "%d ranks are more than %d", sum, HOSTS_RANKS);
    *num_ranks = sum;
    return !*why;
}

bool hosts_parse(const char *text, int *num_ranks, struct job_hosts *hosts, char why[HOSTS_WHY])
{
    char *copy = strdup(text);
    *hosts = (struct job_hosts){.list = calloc(HOSTS_MOST, sizeof *hosts->list)};
    *why = 0;
    bool good = copy && hosts->list;
    if (!good) snprintf(why, HOSTS_WHY, "out of memory");
    good = good && list_read(copy, hosts, why) && ranks_divide(hosts, num_ranks, why);
    free(copy);
    if (!good) hosts_free(hosts);
    return good;
}

void hosts_free(struct job_hosts *hosts)
{
    free(hosts->list);
    *hosts = (struct job_hosts){0};
}

/* ---- ssh --------------------------------------------------------------------------------------------------------- */

/* Returns "exec 'PATH' run-agent", safe for the shells of hosts. */
static char *agent_command(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    fputs("exec '", out);
    for (; *path; path++)
        if (*path == '\'')
            fputs("'\\''", out);
        else
            fputc(*path, out);
    fputs("' " HOSTS_AGENT, out);
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

char **hosts_command(const struct job_hosts *hosts, int host)
{
    size_t most = strlen(hosts->ssh) / 2 + 4, count = 0;
    char **words = calloc(most, sizeof *words), *copy = strdup(hosts->ssh), *rest = copy, *word;
    while (words && rest && (word = strsep(&rest, " ")))
        if (*word) words[count++] = strdup(word);
    free(copy);
    if (!words) return NULL;
    words[count++] = strdup(hosts->list[host].name);
    words[count++] = agent_command(hosts->expar);
    for (size_t i = 0; i < count; i++)
        if (!words[i]) {
            hosts_free_words(words);
            return NULL;
        }
    return words;
}

void hosts_free_words(char **words)
{
    for (char **word = words; word && *word; word++)
        free(*word);
    free(words);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

/* Asks the kernel from which address a packet to that one would leave. */
static bool route_to(const struct addrinfo *there, char text[64], bool *loopback)
{
    struct sockaddr_storage mine = {0};
    socklen_t bytes = sizeof mine;
    int fd = socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && connect(fd, there->ai_addr, there->ai_addrlen) == 0 &&
                 getsockname(fd, (struct sockaddr *)&mine, &bytes) == 0 &&
                 getnameinfo((struct sockaddr *)&mine, bytes, text, 64, NULL, 0, NI_NUMERICHOST) == 0;
    if (fd >= 0) close(fd);
    if (found) *loopback = strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0;
    return found;
}

bool hosts_own_address(const struct job_hosts *hosts, char text[64])
{
    bool found = false;
    for (int i = 0; i < hosts->count; i++) {
        const char *at = strrchr(hosts->list[i].name, '@');
        struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *all = NULL;
        char candidate[64];
        bool loopback = true;
        if (getaddrinfo(at ? at + 1 : hosts->list[i].name, ANY_PORT, &hints, &all) != 0) continue;
        const bool routed = route_to(all, candidate, &loopback);
        freeaddrinfo(all);
        if (!routed || (found && loopback)) continue;
        snprintf(text, 64, "%s", candidate);
        found = true;
        if (!loopback) break;
    }
    return found;
}
