/* SPDX-License-Identifier: Apache-2.0 */
/* The order that an agent gets: words "KEY=VALUE", each ended by a zero byte, and an empty word at the end. It comes by
 * ssh's input and not by its command line, since it has the secret of the job, and command lines are for all to see. */
#include "base/shown.h"
#include "hosts.h"
#include "text.h"
#include <expar/info.h>
#include <expar/status.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Variables of the launcher that each agent sets anew, or that mean something on the launcher's host alone. */
static bool stays_here(const char *entry)
{
    static const char *const names[] = {
        "EXPAR_RANK=", "EXPAR_SIZE=", "EXPAR_UNIQUE_ID=", "EXPAR_LOCAL_RANK=", "EXPAR_LOCAL_SIZE=", "EXPAR_JOB_FLAGS="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(entry, names[i], strlen(names[i])) == 0) return true;
    return strncmp(entry, "EXPAR_", 6) != 0;
}

__attribute__((format(printf, 2, 3))) static void put(FILE *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fputc(0, out);
}

static void put_all(FILE *out, const struct job_hosts *hosts, int host, const char *unique_id)
{
    const struct job *job = hosts->ranks;
    const struct job_host *here = &hosts->list[host];
    put(out, "version=%s", expar_version());
    put(out, "host=%s", here->name);
    put(out, "id=%s", unique_id);
    put(out, "first=%d", here->first);
    put(out, "ranks=%d", here->ranks);
    put(out, "size=%d", job->num_ranks);
    put(out, "nodes=%d", job->num_nodes);
    put(out, "bind=%d", job->bind);
    put(out, "keep_going=%d", job->keep_going);
    put(out, "prefix=%d", job->prefix);
    put(out, "folder=%s", hosts->folder);
    if (job->log_folder) put(out, "logs=%s", job->log_folder);
    for (char **entry = environ; *entry; entry++)
        if (!stays_here(*entry)) put(out, "set=%s", *entry);
    for (size_t i = 0; i < job->num_variables; i++)
        put(out, "set=%s", job->variables[i]);
    for (char *const *word = job->argv; *word; word++)
        put(out, "arg=%s", *word);
    fputc(0, out);
}

size_t order_write(const struct job_hosts *hosts, int host, const char *unique_id, char **order)
{
    size_t bytes = 0;
    FILE *out = open_memstream(order, &bytes);
    if (!out) return 0;
    put_all(out, hosts, host, unique_id);
    if (fclose(out) == 0 && bytes <= ORDER_MOST) return bytes;
    free(*order);
    *order = NULL;
    return 0;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

struct number_key {
    const char *key;
    int64_t low, high;
    size_t offset;
    bool is_flag;
};

#define NUMBER(key, low, high, member)                                                                                 \
    {                                                                                                                  \
        key "=", low, high, offsetof(struct job, member), false                                                        \
    }
#define FLAG(key, member)                                                                                              \
    {                                                                                                                  \
        key "=", 0, 1, offsetof(struct job, member), true                                                              \
    }

/* Takes a word with a number. Returns 1 if it was one, 0 if it is another word, -1 if the number is out of range. */
static int number_take(struct job *job, const char *word)
{
    static const struct number_key keys[] = {NUMBER("first", 0, 65535, first_rank),
                                             NUMBER("ranks", 1, 65536, num_ranks),
                                             NUMBER("size", 1, 65536, job_size),
                                             NUMBER("nodes", 0, 65536, num_nodes),
                                             FLAG("bind", bind),
                                             FLAG("keep_going", keep_going),
                                             FLAG("prefix", prefix)};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const size_t length = strlen(keys[i].key);
        int64_t number;
        if (strncmp(word, keys[i].key, length) != 0) continue;
        if (!text_to_int(word + length, keys[i].low, keys[i].high, &number)) return -1;
        char *member = (char *)job + keys[i].offset;
        if (keys[i].is_flag)
            *(bool *)(void *)member = number != 0;
        else
            *(int *)(void *)member = (int)number;
        return 1;
    }
    return 0;
}

static const char *value_of(const char *word, const char *key)
{
    const size_t length = strlen(key);
    return strncmp(word, key, length) == 0 ? word + length : NULL;
}

/* Takes a word with a text. False: there is no such word. */
static bool text_take(struct order *order, const char *word, size_t *num_words)
{
    const char *value;
    if ((value = value_of(word, "version=")))
        order->version = value;
    else if ((value = value_of(word, "id=")))
        order->job.unique_id = value;
    else if ((value = value_of(word, "folder=")))
        order->folder = value;
    else if ((value = value_of(word, "logs=")))
        order->job.log_folder = value;
    else if ((value = value_of(word, "host=")))
        snprintf(order->who, sizeof order->who, "expar run: host %s", value);
    else if ((value = value_of(word, "arg=")))
        order->words[(*num_words)++] = value;
    return value != NULL || value_of(word, "set=") != NULL;
}

static bool take(struct order *order, const char *word, size_t *num_words, char why[HOSTS_WHY])
{
    const int number = number_take(&order->job, word);
    if (number == 1 || (number == 0 && text_take(order, word, num_words))) return true;
    snprintf(why, HOSTS_WHY, "the order has '%s', which this version does not know", SHOWN(word));
    return false;
}

/* Variables follow the arguments in the list. */
static void variables_take(struct order *order, const char *text, const char *end, size_t num_words)
{
    order->job.variables = order->words + num_words + 1;
    for (const char *word = text; word < end; word += strlen(word) + 1)
        if (value_of(word, "set=")) order->words[++num_words] = value_of(word, "set=");
    order->job.num_variables = (size_t)(order->words + num_words + 1 - order->job.variables);
}

static bool is_whole(const struct order *order, char why[HOSTS_WHY])
{
    const struct job *job = &order->job;
    if (!order->version || strcmp(order->version, expar_version()) != 0)
        snprintf(why, HOSTS_WHY, "the launcher has version %s of expar, and this host %s",
                 SHOWN(order->version ? order->version : "?"), expar_version());
    else if (!order->words[0] || !order->folder || !job->unique_id || job->num_ranks < 1 ||
             job->first_rank + job->num_ranks > job->job_size)
        snprintf(why, HOSTS_WHY, "the order is not whole");
    return !*why;
}

bool order_read(char *text, size_t bytes, struct order *order, char why[HOSTS_WHY])
{
    size_t num_words = 0;
    *order = (struct order){.words = calloc(bytes / 5 + 4, sizeof *order->words)};
    *why = 0;
    if (!order->words) {
        snprintf(why, HOSTS_WHY, "out of memory");
        return false;
    }
    if (bytes < 2 || text[bytes - 1] || text[bytes - 2]) {
        snprintf(why, HOSTS_WHY, "the order was cut short, or is longer than %d bytes", ORDER_MOST);
        return false;
    }
    char *const end = text + bytes - 1;
    for (char *word = text; word < end; word += strlen(word) + 1)
        if (!take(order, word, &num_words, why)) return false;
    variables_take(order, text, end, num_words);
    order->job.argv = (char *const *)(uintptr_t)order->words;
    order->job.file = order->words[0];
    order->job.who = order->who;
    order->job.lifeline = true;
    return is_whole(order, why);
}

void order_free(struct order *order)
{
    free(order->words);
    *order = (struct order){0};
}
