/* SPDX-License-Identifier: Apache-2.0 */
/* All environment variables of expar: X(name, values, fallback, meaning). The library's lookups, `expar info --env` and
 * the man page are made from this table. Included by env.c only. */
#ifndef EXPAR_BASE_ENV_TABLE_H
#define EXPAR_BASE_ENV_TABLE_H

#include "transport_names.h" /* made from the folders of transports (cmake/transports.cmake) */

#define ENV_TABLE(X)                                                                                                   \
    X("EXPAR_LOG", "error, warn, info, debug, trace", "warn", "how much is logged")                                    \
    X("EXPAR_LOG_FILE", "a path; %r: the rank, %p: the process, %%: %", "stderr",                                      \
      "the file that log lines are appended to")                                                                       \
    X("EXPAR_RANK", "0 to EXPAR_SIZE - 1", "none", "rank of this process; set by expar run")                           \
    X("EXPAR_SIZE", "1 to 4096", "none", "number of ranks of the job; set by expar run")                               \
    X("EXPAR_UNIQUE_ID", "256 hexadecimal digits", "none", "where the ranks meet, with the secret; set by expar run")  \
    X("EXPAR_LOCAL_RANK", "0 to EXPAR_LOCAL_SIZE - 1", "none", "number of this process on its host; set by expar run") \
    X("EXPAR_LOCAL_SIZE", "1 to EXPAR_SIZE", "none", "ranks of the job on this host; set by expar run")                \
    X("EXPAR_JOB_FLAGS", "a path", "none", "where ranks say that others made them fail; set by expar run")             \
    X("EXPAR_BOOTSTRAP_INTERFACE", "an interface's name or an address", "127.0.0.1",                                   \
      "where an id is served; ranks of other hosts must reach it")                                                     \
    X("EXPAR_BOOTSTRAP_TIMEOUT", "seconds", "30", "how long a rank waits for all others when a group is formed")       \
    X("EXPAR_BOOTSTRAP_PORT", "1 to 65535", "MASTER_PORT + 1", "port of the rendezvous when torchrun started the job") \
    X("EXPAR_BOOTSTRAP_SECRET", "any text", "none", "shared secret for launchers that ship none")                      \
    X("EXPAR_TIMEOUT", "seconds", "30, OpenSHMEM programs: no limit",                                                  \
      "how long a peer that is waited for may be silent before the call fails")                                        \
    X("EXPAR_LATE_LIMIT", "seconds, 0: no limit", "0",                                                                 \
      "how long a peer that answers is waited for before the call fails")                                              \
    X("EXPAR_SPIN", "0 to 1000000 microseconds", "50",                                                                 \
      "how long a wait spins before it sleeps, where the ranks of a host have a core each; 0: it does not")            \
    X("EXPAR_HEAP_SIZE", "bytes, or with a suffix K, M, G, T", "16G",                                                  \
      "the most that the symmetric heap of each rank may grow to; all of a static heap")                               \
    X("EXPAR_HEAP_KIND", "dynamic, static", "dynamic",                                                                 \
      "whether memory is added to the symmetric heap as it is needed, or all is taken at the start")                   \
    X("EXPAR_HEAP_PAGES", "system, huge", "system",                                                                    \
      "huge: the heap has pages of 2 MiB that were set aside, if enough are free")                                     \
    X("EXPAR_THREADS", "1 to 1024", "cores / ranks of the host", "worker threads of each rank")                        \
    X("EXPAR_TRANSPORTS", "names of transports, separated by commas", TRANSPORT_NAMES,                                 \
      "transports that may be used, in order of preference; the default names all of this build")                      \
    X("EXPAR_PROXY", "0, 1", "0", "1: a thread carries out the rank's non-blocking operations, from a ring")           \
    X("EXPAR_PROXY_RINGS", "1 to 16", "4", "rings of commands, with a thread each: of EXPAR_PROXY=1, and of kernels")  \
    X("EXPAR_PROXY_NAP", "0 to 1000000", "50",                                                                         \
      "the longest nap, in microseconds, of a thread with a ring of kernels that no call uses; 0: it never naps")      \
    X("EXPAR_FABRIC_PROVIDER", "a provider of libfabric", "cxi, efa, verbs;ofi_rxm or tcp;ofi_rxm",                    \
      "what carries the network's operations")                                                                         \
    X("EXPAR_FABRIC_INTERFACE", "an interface's name, an address, or a device of the provider",                        \
      "the address at which the ranks met", "where the network's endpoints are; a name serves all hosts")              \
    X("EXPAR_FABRIC_CHANNELS", "1 to 16", "1", "endpoints of each rank on the network")                                \
    X("EXPAR_FABRIC_TRAFFIC_CLASS", "best-effort, low-latency, dedicated, bulk, scavenger, control, or 0 to 63",       \
      "the provider's", "class of the network's traffic, or its number in the IP header")                              \
    X("EXPAR_GDA_NIC", "software, process, device", "none",                                                            \
      "software: the transport gda runs on a network device in software, for tests; process: the same, in a process "  \
      "of its own for each rank; device: on an mlx5 device")                                                           \
    X("EXPAR_GDA_NIC_PROGRAM", "a path", "gda-nic near the library", "the program of EXPAR_GDA_NIC=process")           \
    X("EXPAR_GDA_NIC_FAULTS", "words name=number, separated by commas", "none",                                        \
      "trouble that the device in software makes, once in so many requests")                                           \
    X("EXPAR_GDA_QPS_PER_PEER", "1 to 64", "1", "queues of the transport gda to each PE")                              \
    X("EXPAR_GDA_QUEUE_DEPTH", "256 to 32768, a power of two", "1024", "blocks of 64 bytes of each queue")             \
    X("EXPAR_GDA_BATCH", "1 to 128, a power of two", "16", "requests after which a thread rings, though more follow")  \
    X("EXPAR_GDA_DEVICES", "names of devices, separated by commas", "all", "mlx5 devices that gda may use")            \
    X("EXPAR_GDA_GID_INDEX", "0 to 255", "the first that is fit", "the GID of a device's port that gda uses")          \
    X("EXPAR_GDA_MTU", "256 to 4096, a power of two", "that of the ports", "the most bytes of a packet of gda")        \
    X("EXPAR_GDA_HOP_LIMIT", "0 to 255", "255", "hops of packets of gda between subnets, and on Ethernet")             \
    X("EXPAR_GDA_TRAFFIC_CLASS", "0 to 255", "0", "traffic class of packets of gda")                                   \
    X("EXPAR_GDA_SERVICE_LEVEL", "0 to 15", "0", "service level of packets of gda; on Ethernet the priority")          \
    X("EXPAR_GDA_RETRIES", "0 to 7", "7", "how often a device sends again what no peer has acknowledged")              \
    X("EXPAR_GDA_RNR_RETRIES", "0 to 7", "7",                                                                          \
      "how often a device sends again what a peer was not ready for; 7: always")                                       \
    X("EXPAR_GDA_RNR_TIMER", "0 to 31", "12", "code of the time that a peer waits which is not ready")                 \
    X("EXPAR_GDA_ACK_TIMEOUT", "0 to 31", "20",                                                                        \
      "a device waits for 4.096 us, doubled so often, before it sends again")                                          \
    X("EXPAR_GDA_READS", "1 to 128, a power of two", "16", "gets and atomics that each queue of gda has in flight")    \
    X("EXPAR_GDA_ADAPTIVE_ROUTING", "0, 1", "0", "1: the network may deliver writes of gda in another order")          \
    X("EXPAR_GDA_QUEUE_MEMORY", "host, pinned, device", "no queues for kernels",                                       \
      "where queues for kernels lie; host: for kernels that the CPU runs, the others: for those of the GPU")           \
    X("EXPAR_GDA_RINGER", "gpu, cpu, auto", "auto", "who rings: the threads that post, or a thread of the host")       \
    X("EXPAR_RANKS_PER_NODE", "a divisor of the number of ranks", "ranks of the host",                                 \
      "splits the ranks into nodes of this size")                                                                      \
    X("EXPAR_NVRTC", "a path", "where the loader, a CUDA toolkit or a Python wheel has it",                            \
      "the library of NVRTC, which compiles kernels for this GPU")                                                     \
    X("EXPAR_CUDA_ORPHAN_TIMEOUT", "seconds", "3600", "how long a kernel waits while its own process does not run")    \
    X("EXPAR_CUDA_IPC", "0 or 1", "0",                                                                                 \
      "1: processes share GPU memory by CUDA IPC, as where the driver gives no file descriptors for it")               \
    X("EXPAR_DEVICE_HEAP_SIZE", "bytes, or with a suffix K, M, G, T", "256M",                                          \
      "by CUDA IPC: the symmetric memory of a rank's GPU, all of which its first allocation takes")                    \
    X("EXPAR_DEVICE_TRANSPORTS", "mapped, gda, proxy, separated by commas", "mapped,gda,proxy",                        \
      "by what kernels of programs and of low latency send, in order of preference; what is not named is not used")    \
    X("EXPAR_DEVICE_ATOMICS", "auto, node, owner", "auto",                                                             \
      "node: kernels do atomics on device memory, inside a node alone; owner: the owner's CPU does them, without SMs") \
    X("EXPAR_SHMEM_MEMORY", "host, pinned", "host",                                                                    \
      "OpenSHMEM programs: the kind of memory that shmem_malloc and its relatives give; pinned needs a GPU")           \
    X("EXPAR_STAGE", "0 or 1", "0",                                                                                    \
      "1: calls reach symmetric memory of other ranks' GPUs only through pinned memory of its owner")                  \
    X("EXPAR_STREAM_CALLS", "1 to 1048576", "4096",                                                                    \
      "calls on streams for which a rank with memory of a GPU prepares; calls in graphs keep their place, 64 bytes")   \
    X("EXPAR_MAP_SEGMENTS", "0 or 1", "1",                                                                             \
      "0: combines on GPUs copy rows that lie in the caller's memory, and peers do not map it")                        \
    X("EXPAR_DEEP_EP_SUM", "exact, reduced", "exact", "what low-latency combines of the Python module deep_ep send")   \
    X("EXPAR_DEEP_EP_MASK_TIMEOUT", "seconds", "EXPAR_TIMEOUT, else 100",                                              \
      "how long low-latency calls of the Python module deep_ep with enable_shrink wait for a living rank")             \
    X("EXPAR_DEEP_EP_OUTPUTS", "pool, torch", "pool", "whose memory results of the Python module deep_ep lie in")

#endif
