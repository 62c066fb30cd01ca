/* SPDX-License-Identifier: Apache-2.0 */
/* hosts: a job whose ranks run on several hosts. For each host the launcher starts ssh, and there an agent, which is
 * this same tool. The agent gets an order on its standard input, and starts its ranks as `expar run` does on one host.
 * When its input ends, it ends the ranks: so nothing is left if ssh, the network or the launcher goes.
 *
 *   hosts.c   the list of hosts, and the address at which the ranks meet
 *   order.c   the order: written by the launcher, read by the agent
 *   agent.c   the agent */
#ifndef EXPAR_TOOL_HOSTS_H
#define EXPAR_TOOL_HOSTS_H

#include "job.h"
#include <stdbool.h>
#include <stddef.h>

#define HOSTS_MOST      1024
#define HOSTS_RANKS     4096 /* of all hosts, the most that a group can have */
#define HOSTS_NAME_MOST 255
#define HOSTS_WHY       512 /* bytes of a reason for a rejection */
#define HOSTS_SSH       "ssh -T -o BatchMode=yes -o ServerAliveInterval=10"
/* The first thing that ssh runs on a host, after the path of this tool there. */
#define HOSTS_AGENT "run-agent"
/* An order must fit into a pipe, so that no host that is slow to log in delays the others. */
#define ORDER_MOST 61440

struct job_host {
    char name[HOSTS_NAME_MOST + 1]; /* as ssh takes it: "user@a" */
    int ranks, first;               /* how many, and the number of the first */
};

struct job_hosts {
    struct job_host *list; /* [count] */
    int count;
    const char *ssh;    /* a command; its words are divided by blanks */
    const char *expar;  /* path of this tool on the hosts */
    const char *folder; /* where the ranks start */
    /* The job as the agents run it: everything but its ranks. */
    const struct job *ranks;
};

/* Reads "a,b:4,user@c,[fd00::1]:4". Without counts num_ranks is divided evenly; with counts *num_ranks may be 0, and
   gets their sum. False: `why` says what is wrong. */
bool hosts_parse(const char *text, int *num_ranks, struct job_hosts *hosts, char why[HOSTS_WHY]);
void hosts_free(struct job_hosts *hosts);

/* Finds this host's address on the way to the others: loopback only if all of them are this host. False: no host has a
   name that this one knows. */
bool hosts_own_address(const struct job_hosts *hosts, char text[64]);

/* Writes the order for a host into a new buffer, which the caller frees. 0: it is too long, or memory ran out. */
size_t order_write(const struct job_hosts *hosts, int host, const char *unique_id, char **order);
/* Splits an order into a job, which points into the text. False: `why` says what is wrong with it. */
struct order {
    struct job job;
    const char *folder, *version;
    char who[HOSTS_NAME_MOST + 32];
    const char **words; /* arguments, NULL, and then variables */
};
bool order_read(char *text, size_t bytes, struct order *order, char why[HOSTS_WHY]);
void order_free(struct order *order);

/* Makes the command line of ssh; argv[0] is the program. NULL: no memory. The caller frees it with hosts_free_words. */
char **hosts_command(const struct job_hosts *hosts, int host);
void hosts_free_words(char **words);

/* Runs the agent: `expar run-agent`. --help does not list it. Returns the job's exit code. */
int agent_run(int argc, char **argv);

#endif
