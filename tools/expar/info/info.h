/* SPDX-License-Identifier: Apache-2.0 */
/* info: what `expar info` finds out, collected into one JSON object and printed from it.
 *
 *   cmd_info.c    options, the parts in order
 *   machine.c     processors, caches, NUMA nodes, launchers
 *   memory.c      memory, its limits, huge pages
 *   across.c      how calls on GPUs reach other nodes
 *   cuda.c        GPUs, their links, the driver, the compiler of kernels
 *   transports.c  who reaches whom by which transport
 *   heaps.c       how full the symmetric heaps of running programs are, by itself
 *   advice.c      what is missing for a faster path, and the command that provides it
 *   print.c       the object as text for a person */
#ifndef EXPAR_TOOL_INFO_H
#define EXPAR_TOOL_INFO_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Each returns a new reference, or NULL when memory is out. */
json_t *
info_cpu(void); /* model, packages, cores, threads, usable, numa_nodes: [bytes], caches: [{level, bytes, count}] */
json_t *info_launchers(void); /* [{name, path}]; path null where it is not found */
json_t *info_memory(void); /* total_bytes, available_bytes, memlock_bytes, address_space_bytes, shared_huge_pages, … */
json_t *
info_cuda(void); /* driver: {version, missing}, compiler: {version, path, missing}, ready_kernels, gpus: [{…}] */
/* ranks, nodes, place: {cores, numa_node, nics}, list: [{name, reach, note, matrix: [[text]]}], missing: why others are
   not there, or null */
json_t *info_transports(int num_ranks, int num_nodes);
/* low_latency, normal: {way, buffers} of calls on GPUs to other nodes; reason: why not a faster way. The member kernels
   is {ways, atomics, wrong} of programs' kernels, as the settings say; wrong: why a setting is rejected, or null. The
   argument is that of info_transports. */
json_t *info_across(const json_t *transports);
/* [{pid, program, rank, ranks, limit_bytes, grown_bytes, chunks, memory_bytes, used_bytes, high_water_bytes, …}] */
json_t *info_heaps(void);
/* Prints them as a table on stdout. False: memory ran out, and stderr says so. */
bool info_heaps_print(const json_t *list);
/* [{missing, effect, command}] */
json_t *info_advice(const json_t *memory, const json_t *launchers, const json_t *cuda, const json_t *transports);

/* Prints the whole object as text on stdout. False: memory ran out, and stderr says so. */
bool info_print(const json_t *info);

/* ---- facts and decisions that `expar check` shares --------------------------------------------------------------- */

/* Says below /sys whether shared memory gets huge pages, and the command that lets it. */
#define INFO_SHARED_HUGE_PAGES        "kernel/mm/transparent_hugepage/shmem_enabled"
#define INFO_SHARED_HUGE_PAGES_REMEDY "echo advise | sudo tee /sys/" INFO_SHARED_HUGE_PAGES
#define INFO_NETWORK_REMEDY           "sudo apt-get install libfabric1"
#define INFO_COMPILER_REMEDY          "pip install nvidia-cuda-nvrtc   (or install CUDA's toolkit, or set EXPAR_NVRTC)"
#define INFO_PEERS_REMEDY             "nvidia-smi topo -p2p r   (shows which do)"
/* Copies the word in brackets of "always within_size [advise] never"; "unknown" if there is none. */
void info_chosen_word(const char *path, char *word, size_t bytes);
/* True if the heap gets huge pages with this word. */
bool info_shared_huge_pages(const char *word);
/* Returns the command for a driver that is `missing` for the reason that info_cuda gives. */
const char *info_driver_remedy(const char *missing);
/* True if each GPU reaches all others; gpus: the list of info_cuda. */
bool info_peers_complete(const json_t *gpus);

/* Reads the first line of a file, without its end. False when it cannot be read. */
bool info_read_line(const char *path, char *text, size_t bytes);

#endif
