/* SPDX-License-Identifier: Apache-2.0 */
/* check: what `expar check` looks at. Each check appends rows to a JSON array, so that ranks can exchange theirs.
 *
 *   cmd_check.c  options, the order of the checks, the exit status     report.c  the rows for a person
 *   rows.c       a row: its status, value, expectation and remedy      files.c   small files below /proc and /sys
 *   host.c       CPUs, NUMA, governor, huge pages, shared memory       limits.c  memlock, open files, pidfd, ptrace
 *   network.c    interfaces, rendezvous, providers                     rdma.c    ports, GIDs, error counters
 *   mtu.c        the MTU, equal and true along the path
 *   gpu.c        driver, compiler, peers, places                       nvml.c    links, ECC, throttling, MIG
 *   group.c      what all ranks found, and what lies between                       clocks.c  offsets between clocks
 *   pairs.c      latency and rate of each pair, load                   judge.c   which pairs are slow
 *   gpu_rates.c  rates of copies between GPUs
 *   selftest.c   put, get, atomics and signals of a transport          merge.c   the rows of all ranks as one list
 *
 * Called by main.c and by tests, which give other folders for /proc and /sys. It uses the public calls, the info
 * folder's facts, and the library's internals for addresses. */
#ifndef EXPAR_TOOL_CHECK_H
#define EXPAR_TOOL_CHECK_H

#include <expar/group.h>
#include <expar/rma.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- rows.c ------------------------------------------------------------------------------------------------------ */

/* In the order of severity. */
enum check_status { CHECK_SKIPPED, CHECK_OK, CHECK_WARNING, CHECK_FAILURE };

/* Exit codes. Wrong usage ends with 64, and a signal with 128 + its number, as in all subcommands. */
enum { CHECK_EXIT_WARNING = 1, CHECK_EXIT_FAILURE = 2, CHECK_EXIT_UNCHECKED = 3 };

struct check_row {
    const char *area; /* "host", "network", "GPU", "group" */
    const char *name;
    enum check_status status;
    const char *expected;
    const char *remedy; /* the command that mends it; it is dropped when the status is ok */
};

/* Appends a row. The value is a text in UTF-8: bytes of other forms become '?', control characters become \xNN. */
__attribute__((format(printf, 3, 4))) void check_add(json_t *rows, const struct check_row *row, const char *format,
                                                     ...);
const char *check_status_text(enum check_status status);
/* Reads the status of a row; CHECK_SKIPPED if the text is none. */
enum check_status check_status_of(const json_t *row);
/* Returns the exit code of a list. With `strict`, warnings count. */
int check_exit_code(const json_t *rows, bool strict);
/* A text that is put together piece by piece; a full one ends with "...". */
struct check_text {
    char text[512];
    size_t used;
};
__attribute__((format(printf, 2, 3))) void check_text_add(struct check_text *text, const char *format, ...);

/* ---- files.c ----------------------------------------------------------------------------------------------------- */

/* The places that are looked at. Tests name others. */
struct check_site {
    const char *proc, *sys; /* "/proc", "/sys" */
    const char *shm;        /* "/dev/shm" */
    const char *nvml;       /* NVIDIA's management library */
    int32_t ranks_here;     /* ranks of the job on this host */
    int32_t ranks;          /* ranks of the job */
};

/* Reads the first line of a file. False when it cannot be read. */
__attribute__((format(printf, 3, 4))) bool check_read(char *text, size_t bytes, const char *format, ...);
/* Reads a number from the start of the file's first line. False when there is none. */
__attribute__((format(printf, 2, 3))) bool check_read_number(int64_t *value, const char *format, ...);
/* Lists a folder by name, without those that begin with '.'. Returns their number, 0 for an absent folder. */
struct check_names {
    char (*names)[256];
    size_t count;
};
__attribute__((format(printf, 2, 3))) void check_names_read(struct check_names *list, const char *format, ...);
void check_names_free(struct check_names *list);
/* Finds a line "NAME:\tVALUE" or "NAME VALUE" and copies the value. False when there is none. */
bool check_read_field(const char *path, const char *name, char *text, size_t bytes);

/* ---- the host ---------------------------------------------------------------------------------------------------- */

void check_cpus(const struct check_site *site, json_t *rows);   /* cpuset, numa, governor */
void check_memory(const struct check_site *site, json_t *rows); /* huge_pages, dev_shm */
/* memlock, open_files, pidfd_getfd, ptrace_scope */
void check_limits(const struct check_site *site, json_t *rows);
/* Takes a descriptor of a child by pidfd_getfd. Returns 0, or the errno of the call that failed. */
int check_pidfd_getfd(void);

/* ---- the network ------------------------------------------------------------------------------------------------- */

void check_interfaces(json_t *rows);
void check_rendezvous(json_t *rows); /* outside of a job */
/* Row providers: describes the network's transport of a group. needed: the ranks are on several hosts. */
void check_providers(const struct check_site *site, const expar_group *group, bool needed, json_t *rows);
void check_rdma(const struct check_site *site, json_t *rows); /* rdma_ports, gid, error_counters */
/* Sums the error counters of all interfaces and ports; `first` names the first that is not 0. Returns false if there is
   no counter at all. */
bool check_count_errors(const struct check_site *site, int64_t *sum, struct check_text *first);
/* Counts RDMA devices. */
size_t check_count_rdma(const struct check_site *site);

/* ---- mtu.c ------------------------------------------------------------------------------------------------------- */

struct check_host;
/* Adds the rows mtu and mtu_path; collective. The first ranks of all hosts send each other datagrams of full size.
   hosts says which ranks are first. *whole becomes false if full packets are lost. Then long messages of the control
   sockets are lost, too, and only time-outs would end calls that send some. All ranks get the same. */
expar_status check_mtu(expar_group *group, const struct check_host *hosts, bool *whole, json_t *rows);
/* Judges mtus, [count] of the hosts, and got: [count·count], from × to, 0 nothing, 1 small datagrams, 2 full ones. */
void check_judge_mtu(const struct check_host *hosts, const int32_t *mtus, const uint8_t *got, json_t *rows);

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* cuda: as info_cuda has it. */
void check_gpus(const struct check_site *site, const json_t *cuda, json_t *rows);
/* nvlink, ecc, throttling, mig; gpus: the list of info_cuda, not empty. */
void check_nvml(const struct check_site *site, const json_t *gpus, json_t *rows);

/* ---- the group --------------------------------------------------------------------------------------------------- */

/* The hosts of a group. */
struct check_host {
    int32_t count;     /* of hosts */
    int32_t *of;       /* [ranks] the host of each rank */
    int32_t *node;     /* [ranks] the node of each rank; a host may simulate several */
    int32_t *first;    /* [count] the first rank of each host */
    char (*names)[65]; /* [ranks] the name of each rank's host, safe to print */
};

/* Describes how a job or a group of threads is checked. */
struct check_plan {
    const struct check_site *site;
    double load_s; /* 0: links are not loaded */
    bool in_job;   /* else all ranks are threads of this process */
};

/* Facts that the ranks found out about their hosts. */
struct check_found {
    int32_t num_hosts;
    bool blocked; /* full packets are lost: no step that sends many bytes can follow */
};

/* Compares what all ranks found, their hosts' MTUs and clocks; collective. In a job *rows becomes the list of the
   rows of all ranks, on rank 0. In a group of threads only rank 0 has rows; the others give an empty list. The group
   needs no network: a fault of it would stop its transport. */
expar_status check_hosts(expar_group *group, const struct check_plan *plan, struct check_found *found, json_t **rows);
/* Measures the pairs, and loads the links; collective. Rank 0 gets the rows. */
expar_status check_links(expar_group *group, const struct check_plan *plan, json_t *rows);
/* The row of the network's transport of a group of several nodes, which may be simulated; collective. Rank 0 gets
   it. */
expar_status check_network(expar_group *group, const struct check_plan *plan, bool needed, json_t *rows);

/* Bounds clock offsets in ns (clocks.c). Each rank took its stamps, [rounds][ranks], on its clock before it joined a
   gather. Rank r's clock minus that of rank 0 lies in [low[r], high[r]]. */
void check_clock_bounds(const int64_t *stamps, int32_t rounds, int32_t ranks, int64_t *low, int64_t *high);
expar_status check_clocks(expar_group *group, const struct check_host *hosts, json_t *rows);
void check_judge_clocks(const struct check_host *hosts, int32_t ranks, const int64_t *low, const int64_t *high,
                        json_t *rows);

/* pairs.c, judge.c: what was measured between two ranks; all 0: not measured. */
struct check_pair {
    double latency_us, gbps;
};
/* Measures pairs[from·ranks + to], from < to. Collective; all ranks get all pairs. */
expar_status check_measure_pairs(expar_group *group, struct check_pair *pairs);
/* Rows pair_latency and pair_rate. Pairs inside a node are compared with each other, pairs between nodes with each
   other. */
void check_judge_pairs(const struct check_host *hosts, int32_t ranks, const struct check_pair *pairs, json_t *rows);
/* Row load: all ranks put at once for load_s seconds. Collective. */
expar_status check_load(expar_group *group, const struct check_plan *plan, const struct check_host *hosts,
                        json_t *rows);
/* rates: [count] of all ranks together, a second each. errors: how many more the counters show; -1: there are none. */
void check_judge_load(const double *rates, size_t count, int64_t errors, json_t *rows);

/* The upper one of two medians, so that the slower one of two is found. Sorts the values. */
double check_median(double *values, size_t count);
/* A pair is slow below this share of the median. A row names at most so many. */
#define CHECK_LEAST_SHARE 0.8
#define CHECK_MOST_NAMED  6

/* gpu_rates.c: copies between the GPUs that a process sees, gbps[from][to]; 0: the two do not reach each other. */
#define CHECK_MAX_GPUS 16
struct check_gpu_rates {
    int32_t gpus;
    double gbps[CHECK_MAX_GPUS][CHECK_MAX_GPUS];
    char error[200]; /* of the call that failed; empty: none */
};
void check_measure_gpus(struct check_gpu_rates *rates);
/* Row gpu_rate; rates: [ranks], of which those of the hosts' first ranks count. All directions of all hosts are
   compared with each other. */
void check_judge_gpus(const struct check_host *hosts, const struct check_gpu_rates *rates, json_t *rows);

/* selftest.c: the operations that are tested; tests give broken ones. */
struct check_operations {
    expar_status (*put)(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
    expar_status (*get)(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe);
    expar_status (*fetch_add)(expar_group *group, uint64_t *word, uint64_t value, int32_t pe, uint64_t *old);
    expar_status (*compare_swap)(expar_group *group, uint64_t *word, uint64_t expected, uint64_t desired, int32_t pe,
                                 uint64_t *old);
    expar_status (*put_signal)(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                               uint64_t value, expar_signal_op op, int32_t pe);
};
extern const struct check_operations check_library_operations;
/* Tests the operations between all ranks that reach each other. Collective. gpu -1: memory of the host, over the
   group's first transport. Else it is this rank's GPU, whose memory is tested over all transports. `wrong` gets the
   first error of this rank, and stays empty without one. */
expar_status check_selftest(expar_group *group, const struct check_operations *operations, int32_t gpu,
                            struct check_text *wrong);

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

/* Makes one list of the rows of all ranks, lists[ranks]. The worst status of a row counts, different values are given
   with their ranks, and values that must be equal everywhere give a warning. */
json_t *check_merge(int32_t ranks, json_t *const *lists);
/* Writes ranks as "0-3, 7". */
void check_ranks_text(const bool *set, int32_t ranks, struct check_text *text);

/* ---- report.c ---------------------------------------------------------------------------------------------------- */

/* Prints the rows and a closing sentence on stdout. */
void check_print(const json_t *rows, int32_t ranks, int32_t hosts, bool strict);

#endif
