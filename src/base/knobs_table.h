/* SPDX-License-Identifier: Apache-2.0 */
/* All tuning constants of the library: `X(id, name, value, least, most, unit, meaning)`. The id is the name in
 * capitals; `ns` or `bytes` follow it if it is measured so. Formats, bounds, lengths of arrays and facts of hardware
 * are no knobs and stay where they are used; test_knob_list.sh checks both. docs/reference/tuning.md has the same rows.
 *
 * A knob that all ranks need alike says so: it decides what ranks do together. Ranks compare those of a group when they
 * join (KNOBS_ALIKE), and those of a buffer when they make it. Sleeps are shorter than a second, because the
 * nanoseconds of a timespec hold no more. Included by knobs.h. */
#ifndef EXPAR_BASE_KNOBS_TABLE_H
#define EXPAR_BASE_KNOBS_TABLE_H

/* A cache line holds eight values. The values that each call reads come first, in two lines, because the first calls
   after a pause find them in no cache. */
/* shmem: waits */
#define KNOBS_WAIT(X)                                                                                                  \
    X(WAIT_CROWDED_SPINS, "wait.crowded_spins", 4, 0, 1000000000, "count",                                             \
      "turns of a wait that spin, where ranks outnumber cores")                                                        \
    X(WAIT_CROWDED_YIELDS, "wait.crowded_yields", 64, 0, 1000000000, "count",                                          \
      "turns of a wait that yield the core after them, where ranks outnumber cores")                                   \
    X(WAIT_YIELDS, "wait.yields", 8, 0, 1000000000, "count",                                                           \
      "turns of a wait that yield the core once EXPAR_SPIN is over, where ranks have a core each")                     \
    X(WAIT_FIRST_LOOK, "wait.first_look", 3, 0, 1000000000, "count",                                                   \
      "turns that spin before the first look at the clock and at the threads that share the core")                     \
    X(WAIT_TURNS_A_LOOK, "wait.turns_a_look", 16, 1, 1000000000, "count",                                              \
      "turns that spin from one look at the clock and at the threads that share the core to the next")                 \
    X(WAIT_DRIVEN_SPINS, "wait.driven_spins", 1000, 0, 1000000000, "count",                                            \
      "the least turns that spin where the waiting thread drives a network")                                           \
    X(WAIT_SLEEP_NS, "wait.sleep", 1000000, 1000, 999000000, "ns",                                                     \
      "the first sleep of a wait, which a peer's doorbell ends sooner; later ones double")                             \
    X(WAIT_MOST_SLEEP_NS, "wait.most_sleep", 50000000, 1000, 999000000, "ns",                                          \
      "the longest sleep of a wait: plain stores of a peer ring no doorbell")

/* exec/cpu: what each call reads */
#define KNOBS_CPU_CALL(X)                                                                                              \
    X(CPU_CHECK_TURNS, "cpu.check_turns", 16, 1, 1000000, "count",                                                     \
      "turns without a row between two looks of a worker at words that may have been overwritten")                     \
    X(CPU_WORKER_BYTES, "cpu.worker", 262144, 1, 1099511627776, "bytes",                                               \
      "what a normal-mode call moves for each worker beyond the first: a worker takes time to wake")                   \
    X(CPU_STREAM_BYTES, "cpu.stream", 1048576, 0, 1099511627776, "bytes",                                              \
      "rows of a normal-mode dispatch that are more together bypass the cache on their way out")                       \
    X(CPU_LL_WORKER_BYTES, "cpu.ll_worker", 8388608, 1, 1099511627776, "bytes",                                        \
      "what a low-latency call moves for each worker beyond the first")                                                \
    X(CPU_PACE_SPEED, "cpu.pace_speed", 5, 1, 1000, "bytes/ns",                                                        \
      "a low-latency send through the cache that is slower counts as slow: its peer is on another socket")             \
    X(CPU_PACE_LEAST_BYTES, "cpu.pace_least", 8192, 0, 1099511627776, "bytes",                                         \
      "the smallest low-latency send whose time tells something")                                                      \
    X(CPU_PACE_SLOW, "cpu.pace_slow", 3, 1, 1000000, "count",                                                          \
      "slow low-latency sends in a row after which the next ones bypass the cache")                                    \
    X(CPU_PACE_TIMED, "cpu.pace_timed", 8, 1, 1000000, "count",                                                        \
      "one in so many low-latency sends through the cache is timed")

/* exec: events */
#define KNOBS_EVENT(X)                                                                                                 \
    X(EVENT_LOOK_NS, "event.look", 20000000, 1000, 10000000000, "ns",                                                  \
      "from one look of a waiting thread at its event to the next, where another thread signals it")                   \
    X(EVENT_MARK_LOOKS, "event.mark_looks", 200, 0, 1000000000, "count",                                               \
      "looks at a mark on a stream that yield the core, before those that sleep")                                      \
    X(EVENT_MARK_SLEEP_NS, "event.mark_sleep", 50000, 1000, 999000000, "ns",                                           \
      "a sleep between two looks at a mark on a stream")

/* exec/cuda */
#define KNOBS_CUDA(X)                                                                                                  \
    X(CUDA_SMS, "cuda.sms", 24, 1, 65536, "count",                                                                     \
      "SMs of a normal-mode call without a choice of the caller's: enough to saturate the links")                      \
    X(CUDA_LL_SMS, "cuda.ll_sms", 128, 1, 65536, "count",                                                              \
      "SMs of a low-latency call without a choice of the caller's: each has a token or two")                           \
    X(CUDA_HOSTED_SMS, "cuda.hosted_sms", 8, 1, 65536, "count",                                                        \
      "SMs of a normal-mode call that the host carries out: enough to saturate the bus")                               \
    X(CUDA_HOSTED_LOOK_NS, "cuda.hosted_look", 500000000, 1000000, 60000000000, "ns",                                  \
      "how often a wait for the copies of such a call asks the driver whether the context is lost")                    \
    X(CUDA_BOUNCE_BYTES, "cuda.bounce", 262144, 4096, 67108864, "bytes",                                               \
      "pinned memory through which such a call's copies go that have none; a multiple of 16")                          \
    X(CUDA_CHANNELS, "cuda.channels", 24, 1, 1024, "count",                                                            \
      "channels of a normal-mode buffer without a choice of the caller's, alike on all ranks")                         \
    X(CUDA_FIRST_EXPERTS, "cuda.first_experts", 16384, 1, 4194304, "count",                                            \
      "experts for which a normal-mode buffer's first counters suffice; more experts take new ones")                   \
    X(CUDA_STAGE_BYTES, "cuda.stage", 32768, 1024, 65536, "bytes",                                                     \
      "the longest row that a dispatch's warp stages whole in shared memory; longer ones go in parts")                 \
    X(CUDA_COMBINE_SPACE_BYTES, "cuda.combine_space", 14336, 1024, 65536, "bytes",                                     \
      "shared memory of a combine's warp, for the parts of rows that it adds")                                         \
    X(CUDA_COMBINE_SLOTS, "cuda.combine_slots", 2, 1, 8, "count",                                                      \
      "slots that share a combine warp's memory: one is added while the others are on their way")                      \
    X(CUDA_REQUEST_CALLS, "cuda.request_calls", 8, 1, 1000000, "count",                                                \
      "calls that wait for a growth of pools after another rank has asked for one")                                    \
    X(CUDA_VAIN_REQUESTS, "cuda.vain_requests", 64, 1, 1000000, "count",                                               \
      "calls that ask for a growth of pools in vain before the rank stops asking for a while")                         \
    X(CUDA_PATIENCE_CALLS, "cuda.patience_calls", 16, 1, 1000000, "count",                                             \
      "calls that do not ask after the first growth of pools that failed; twice as many after the next")               \
    X(CUDA_MOST_PATIENCE_CALLS, "cuda.most_patience_calls", 4096, 1, 1000000, "count",                                 \
      "the most calls that do not ask after growths of pools that failed")                                             \
    X(CUDA_SEGMENT_IDLE_CALLS, "cuda.segment_idle_calls", 256, 1, 1000000000, "count",                                 \
      "calls without use after which another segment of the caller's takes a mapped one's place")                      \
    X(CUDA_SEGMENT_SWEEP_CALLS, "cuda.segment_sweep_calls", 256, 1, 1000000000, "count",                               \
      "calls between two looks for segments that the caller has freed")                                                \
    X(CUDA_POLLS, "cuda.polls", 2000, 0, 1000000000, "count",                                                          \
      "polls for a kernel's word that spin, of 25 ns each, before those that yield the core; where ranks share "       \
      "cores, none spins")                                                                                             \
    X(CUDA_POLLS_A_LOOK, "cuda.polls_a_look", 64, 1, 1000000, "count",                                                 \
      "polls that yield from one look at the stream and the group to the next")                                        \
    X(CUDA_STREAM_LOOKS, "cuda.stream_looks", 200, 1, 1000000000, "count",                                             \
      "looks at a stream that yield the core, before those that sleep; and sleeps of equal length")                    \
    X(CUDA_STREAM_SLEEP_NS, "cuda.stream_sleep", 20000, 1000, 999000000, "ns",                                         \
      "the first sleep between two looks at a stream, and what later ones are longer by")                              \
    X(CUDA_STREAM_MOST_SLEEP_NS, "cuda.stream_most_sleep", 1000000, 1000, 999000000, "ns",                             \
      "the longest sleep between two looks at a stream")                                                               \
    X(CUDA_LENT_SLEEP_NS, "cuda.lent_sleep", 1000000, 1000, 999000000, "ns",                                           \
      "a sleep between two looks at a block from beside the pool that a stream still uses")                            \
    X(CUDA_ABORT_GRACE_NS, "cuda.abort_grace", 1000000000, 0, 60000000000, "ns",                                       \
      "how long a kernel may take to say what it waited for, once the group has failed")                               \
    X(CUDA_ABANDON_NS, "cuda.abandon", 100000000, 0, 60000000000, "ns",                                                \
      "how long a buffer that is given up waits for what is still on its streams")                                     \
    X(CUDA_PART_NS, "cuda.part", 100000000, 0, 60000000000, "ns",                                                      \
      "how long a rank that leaves a buffer with masks waits for its calls, to tell the others")                       \
    X(CUDA_GUARD_BEAT_NS, "cuda.guard_beat", 50000000, 1000000, 999000000, "ns",                                       \
      "from one beat of the guard, which looks at those whom kernels await, to the next")                              \
    X(CUDA_GUARD_LINGER_NS, "cuda.guard_linger", 1000000000, 0, 60000000000, "ns",                                     \
      "how long the guard goes on beating after the last call")                                                        \
    X(CUDA_GUARD_FRESH_BEATS, "cuda.guard_fresh_beats", 4, 1, 1000, "count",                                           \
      "beats without a word of a kernel after which the ranks that it awaits are no longer read")                      \
    X(CUDA_LOSS_LOG_BEATS, "cuda.loss_log_beats", 20, 1, 1000, "count",                                                \
      "beats without a loss of a rank after which its next loss is logged again")

/* exec/cpu */
#define KNOBS_CPU(X)                                                                                                   \
    X(CPU_CHANNELS, "cpu.channels", 4, 1, 1024, "count",                                                               \
      "channels of a normal-mode buffer without a choice of the caller's, alike on all ranks")                         \
    X(CPU_LL_STREAM_BYTES, "cpu.ll_stream", 33554432, 0, 1099511627776, "bytes",                                       \
      "rows of all ranks' low-latency dispatches that are more together bypass the cache")                             \
    X(CPU_COLUMN_ROWS, "cpu.column_rows", 64, 1, 1000000, "count",                                                     \
      "rows whose scales stay in the cache while columns of scales are written")                                       \
    X(CPU_PACE_PROBE, "cpu.pace_probe", 64, 1, 1000000, "count",                                                       \
      "one in so many low-latency sends that would bypass the cache goes through it, and is timed")                    \
    X(CPU_FAR_SETTLE_NS, "cpu.far_settle", 1000000000, 0, 60000000000, "ns",                                           \
      "how long a call waits for its headers to other nodes before it looks for silent ranks")                         \
    X(CPU_FAR_REASON_NS, "cpu.far_reason", 1000000000, 0, 60000000000, "ns",                                           \
      "how long a rank that the network has lost has to be known as one that left")                                    \
    X(CPU_FAR_ASK_NS, "cpu.far_ask", 1000000, 0, 60000000000, "ns",                                                    \
      "how long a far rank's acknowledgement is missed before the rank is asked, and between two questions")

/* net */
#define KNOBS_NET(X)                                                                                                   \
    X(NET_POST_YIELDS, "net.post_yields", 64, 0, 1000000000, "count",                                                  \
      "turns of an operation whose queue is full, or of a wait of gda, that yield the core, before those that sleep")  \
    X(NET_POST_SLEEP_NS, "net.post_sleep", 1000000, 1000, 999000000, "ns",                                             \
      "the longest sleep of an operation whose queue is full, and of a wait of gda")                                   \
    X(NET_FIRST_ASK_NS, "net.first_ask", 1000000000, 1000000, 60000000000, "ns",                                       \
      "how long nothing comes from a rank over the network before it is asked on its line")                            \
    X(FABRIC_SPINS, "fabric.spins", 1000, 0, 1000000000, "count",                                                      \
      "turns of a wait for the network that spin, where the ranks of a host have a core each")                         \
    X(FABRIC_YIELDS, "fabric.yields", 4, 0, 1000000000, "count",                                                       \
      "turns of a wait for the network that yield the core after them, before those that sleep")                       \
    X(FABRIC_SLEEP_NS, "fabric.sleep", 1000000, 1000, 999000000, "ns",                                                 \
      "the first sleep of a wait for the network, and what later ones are longer by")                                  \
    X(FABRIC_MOST_SLEEP_NS, "fabric.most_sleep", 20000000, 1000, 999000000, "ns",                                      \
      "the longest sleep of a wait for the network")                                                                   \
    X(FABRIC_THREAD_SLEEP_NS, "fabric.thread_sleep", 100000000, 1000, 999000000, "ns",                                 \
      "the longest sleep of the progress thread: connections in the making wake it not always")                        \
    X(FABRIC_NAP_NS, "fabric.nap", 200000, 1000, 999000000, "ns",                                                      \
      "the progress thread's first nap while a waiting thread attends to the network; later ones double")              \
    X(FABRIC_LONG_NAP_NS, "fabric.long_nap", 1000000, 1000, 999000000, "ns",                                           \
      "naps from this length on are ended by the thread that stops attending to the network")                          \
    X(FABRIC_MOST_NAP_NS, "fabric.most_nap", 400000000, 1000, 999000000, "ns",                                         \
      "the longest nap of the progress thread")                                                                        \
    X(FABRIC_KEY_TRIES, "fabric.key_tries", 16, 1, 1000000, "count",                                                   \
      "random keys that are tried for a piece of memory, where the provider's keys are short")                         \
    X(FABRIC_PIECE_BYTES, "fabric.piece", 4194304, 4096, 1099511627776, "bytes",                                       \
      "the most that one operation of the network moves")                                                              \
    X(FABRIC_IN_FLIGHT, "fabric.in_flight", 256, 16, 65536, "count",                                                   \
      "operations of an endpoint that are on their way at once, where the provider's queue holds them")                \
    X(GDA_NIC_SPIN_NS, "gda.nic_spin", 500000, 0, 1000000000, "ns",                                                    \
      "how long the thread of the device in software yields the core without work before it sleeps, where each rank "  \
      "has four cores")                                                                                                \
    X(PROXY_SPINS, "proxy.spins", 32, 0, 1000000000, "count", "turns without work of the proxy's thread that spin")    \
    X(PROXY_YIELDS, "proxy.yields", 8, 0, 1000000000, "count",                                                         \
      "turns without work of the proxy's thread that yield the core after them, before those that sleep")              \
    X(PROXY_SPIN_NS, "proxy.spin", 500000, 0, 1000000000, "ns",                                                        \
      "how long the thread of a ring of kernels spins without work before it naps, where threads have a core each")    \
    X(PROXY_NAP_NS, "proxy.nap", 50000, 1000, 999000000, "ns",                                                         \
      "the first sleep of the proxy's thread with commands on their way; later ones double")                           \
    X(PROXY_MOST_NAP_NS, "proxy.most_nap", 1000000, 1000, 999000000, "ns",                                             \
      "the longest sleep of the proxy's thread with commands on their way")                                            \
    X(PROXY_IDLE_NAP_NS, "proxy.idle_nap", 100000000, 1000, 10000000000, "ns",                                         \
      "a sleep of the proxy's thread without commands; a thread that issues one ends it")                              \
    X(PROXY_REST_NS, "proxy.rest", 1000000000, 1000000, 60000000000, "ns",                                             \
      "how long a ring of kernels is idle before one thread watches all rings")                                        \
    X(PROXY_REST_NAP_NS, "proxy.rest_nap", 1000000, 1000, 999000000, "ns",                                             \
      "the longest nap of the thread that watches all idle rings of kernels")                                          \
    X(PROXY_JUDGE_NS, "proxy.judge", 1000000, 1000, 1000000000, "ns",                                                  \
      "from one look of the proxy's thread at PEs that may be lost to the next")                                       \
    X(PROXY_FLIGHTS, "proxy.flights", 256, 64, 65536, "count",                                                         \
      "the least commands that a ring's thread holds: a slow PE may fill them")                                        \
    X(PROXY_MESSAGES, "proxy.messages", 64, 1, 65536, "count",                                                         \
      "messages of a ring that are on their way at once, shared out among the PEs")                                    \
    X(PROXY_PEER_MESSAGES, "proxy.peer_messages", 32, 1, 65536, "count",                                               \
      "messages of a ring to one PE that are on their way at once")                                                    \
    X(PROXY_PEER_BYTES, "proxy.peer", 4194304, 1, 1099511627776, "bytes",                                              \
      "bytes of a ring to one PE that are on their way at once")                                                       \
    X(PROXY_WAIT_SPINS, "proxy.wait_spins", 16, 0, 1000000000, "count",                                                \
      "turns of a thread that waits for the proxy that spin")                                                          \
    X(PROXY_WAIT_YIELDS, "proxy.wait_yields", 16, 0, 1000000000, "count",                                              \
      "turns of a thread that waits for the proxy that yield the core after them, before those that sleep")            \
    X(PROXY_WAIT_SLEEP_NS, "proxy.wait_sleep", 50000000, 1000, 10000000000, "ns",                                      \
      "the longest sleep of a thread that waits for the proxy")                                                        \
    X(PROXY_TIMEOUTS, "proxy.timeouts", 2, 1, 1000, "count",                                                           \
      "time-outs without progress after which the proxy counts as stuck")

/* shmem */
#define KNOBS_SHMEM(X)                                                                                                 \
    X(SILENCE_MOST_NS, "silence.most", 5000000000, 1000000, 600000000000, "ns",                                        \
      "how long a broken call waits at most for answers, to find silent ranks")                                        \
    X(SILENCE_ASK_AGAIN_NS, "silence.ask_again", 1000000000, 1000000, 60000000000, "ns",                               \
      "from an answer of a rank of which nothing comes over the network to the next question")                         \
    X(SILENCE_ASK_SOON_NS, "silence.ask_soon", 250000000, 1000000, 60000000000, "ns",                                  \
      "from a question that such a rank did not answer to the next one")                                               \
    X(SILENCE_LOG_NS, "silence.log", 10000000000, 1000000, 3600000000000, "ns",                                        \
      "how long nothing comes from such a rank before the log tells; then twice as long each time")                    \
    X(HEAP_DISCARD_BYTES, "heap.discard", 65536, 0, 1099511627776, "bytes",                                            \
      "freed blocks of the symmetric heap from this size on give their pages back")                                    \
    X(HEAP_EARLY_BYTES, "heap.early", 1048576, 0, 1099511627776, "bytes",                                              \
      "blocks up to this size get memory in the same round in which ranks agree, alike on all ranks")                  \
    X(HEAP_CHUNK_BYTES, "heap.chunk", 67108864, 2097152, 1099511627776, "bytes",                                       \
      "the heap grows by as much as it has, up to this, alike on all ranks: networks pin what it has")                 \
    X(COPY_PIECE_BYTES, "copy.piece", 131072, 4096, 1073741824, "bytes",                                               \
      "pinned memory through which copies between GPUs and ordinary host memory pass; a copy uses two such pieces")    \
    X(STAGE_SLOT_BYTES, "stage.slot", 65536, 4096, 1073741824, "bytes",                                                \
      "the most pinned memory for a message to the owner of device memory, alike on all ranks")                        \
    X(TREE_STAR, "tree.star", 16, 1, 64, "count",                                                                      \
      "ranks of a node up to which its leader reads all flags itself, alike on all ranks; above: a tree")

/* link */
#define KNOBS_LINK(X)                                                                                                  \
    X(LINK_LINGER_NS, "link.linger", 1000000000, 0, 60000000000, "ns",                                                 \
      "how long a buffer that is given up waits for the network, for what is under way")

/* calls on streams */
#define KNOBS_STREAM(X)                                                                                                \
    X(STREAM_YIELD_NS, "stream.yield", 200000, 0, 60000000000, "ns",                                                   \
      "how long the thread for calls on streams yields the core, after a command, before it naps")                     \
    X(STREAM_SHORT_NS, "stream.short", 50000000, 0, 60000000000, "ns",                                                 \
      "how long after a command that thread's naps are short")                                                         \
    X(STREAM_NAP_NS, "stream.nap", 20000, 1000, 999000000, "ns", "a short nap of that thread")                         \
    X(STREAM_MOST_NAP_NS, "stream.most_nap", 200000, 1000, 999000000, "ns", "a longer nap of that thread")             \
    X(STREAM_LOOK_NS, "stream.look", 10000000, 1000, 50000000, "ns",                                                   \
      "from one look of a wait on a stream at the ranks to the next")

/* X(id): knobs that the ranks of a group need alike. */
#define KNOBS_ALIKE(X) X(HEAP_EARLY_BYTES) X(HEAP_CHUNK_BYTES) X(TREE_STAR) X(STAGE_SLOT_BYTES)

#define KNOBS_TABLE(X)                                                                                                 \
    KNOBS_WAIT(X)                                                                                                      \
    KNOBS_CPU_CALL(X)                                                                                                  \
    KNOBS_EVENT(X) KNOBS_CUDA(X) KNOBS_CPU(X) KNOBS_NET(X) KNOBS_SHMEM(X) KNOBS_LINK(X) KNOBS_STREAM(X)

#endif
