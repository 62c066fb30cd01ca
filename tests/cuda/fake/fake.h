/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the simulated driver. */
#ifndef TESTS_CUDA_FAKE_FAKE_H
#define TESTS_CUDA_FAKE_FAKE_H

#include "controls.h"
#include "cuda/driver.h"

#include <stdbool.h>
#include <time.h>

/* How a kernel is launched: blocks, threads of each, bytes of shared memory of each. */
typedef struct kernel_grid {
    unsigned int blocks, threads, shared_bytes;
} kernel_grid;

/* A stream's place in the order of work. */
typedef struct stream_lane {
    unsigned long long number; /* no other stream has it, nor one that comes later; 0: none */
    int device;
    bool is_null, blocking; /* the null stream waits for those that block, and they for it */
} stream_lane;

enum {
    INVALID_VALUE = 1,
    INVALID_CONTEXT = 201,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    ISOLATION = 905
};

/* ---- fake.c ------------------------------------------------------------------------------------------------------ */
/* A number from the environment. */
int setting(const char *name, int fallback);
/* Whether one is current to this thread: the driver needs it for all that is about memory, streams and kernels. */
bool has_context(void);
/* Returns whether a kernel has broken the context (FAKE_LOST). Calls that use streams or ask about them fail then. */
bool context_is_lost(void);
/* The GPU whose memory lies there; -1: none's. */
int fake_device_at(cu_address address);
/* Where copies reach that address, and how many of the bytes in one piece at most. */
void *fake_reach(const void *at, size_t *bytes);
/* True for what is, or was, pinned memory. Takes no lock. */
bool fake_is_pinned(const void *address);
/* With FAKE_LINK_GBPS: the time of events, which copies between GPUs alone advance (copies.c). False: it is real. */
bool simulated_time(struct timespec *now);
/* True for host memory that is pinned now, allocated so or registered. */
bool fake_knows_host(const void *address);
/* The GPU whose context is current to this thread. */
int current_device(void);
/* The number of a GPU's context, and whether that is still the one that it has. */
unsigned long long context_number(int device);
bool context_lives(unsigned long long number);
/* Makes it current to this thread, for good. */
void enter_device(int device);

/* ---- modules.c --------------------------------------------------------------------------------------------------- */
fake_controls *fake_controls_of(void);
/* A dispatch that got space ahead of its counts. */
void note_ahead(void);
/* A call asks whether its stream is being captured. */
void note_begun(void);
/* A copy within the GPUs, or a wait for an event, is put on a stream; outside: a wait, in a capture, for what comes
   before the graph's launch. */
void note_other(bool outside);
/* Somebody looks at a stream, or an event. True: the lane has come to the mark. */
bool note_look(const stream_lane *lane, unsigned long long mark);
/* Runs a kernel in this thread. False: it is not a simulated one. */
bool run_kernel(cu_function function, const kernel_grid *grid, void *arguments);

/* Puts a kernel on a stream, or runs it. False: it is not a simulated one. */
bool put_kernel(cu_stream stream, cu_function function, const kernel_grid *grid, void *arguments);

/* ---- streams.c --------------------------------------------------------------------------------------------------- */
stream_lane lane_of(cu_stream stream);
/* The number of the capture that the stream is in; 0: none. */
unsigned long long capture_of(cu_stream stream);
/* The event follows all that the stream has now. */
void record(cu_stream stream, cu_event event);
/* The stream comes to what is put there later once the event's last record has passed. */
void wait_for(cu_stream stream, cu_event event);

/* For the work of the graph of that capture. */
void let_go_of(unsigned long long capture);

/* ---- graphs.c ---------------------------------------------------------------------------------------------------- */
void graph_add_kernel(unsigned long long capture, cu_function function, const kernel_grid *grid, const void *arguments);
void graph_add_event(unsigned long long capture, cu_event event, bool waits);
/* Carried out by run, with a copy of what `of` has. */
void graph_add_copy(unsigned long long capture, void (*run)(void *of), const void *of, size_t bytes);
/* A wait until the word is at least the value. */
void graph_add_word(unsigned long long capture, const uint32_t *word, uint32_t value);
/* The capture has ended: its graph, with the caller's hold. NULL: there is nothing in it. */
cu_graph graph_close(unsigned long long capture);

/* ---- queue.c ----------------------------------------------------------------------------------------------------- */
/* Whether all work runs by itself (FAKE_ASYNC). */
bool streams_run_apart(void);
/* The number of the youngest work, where the lane has some to come to; else 0. Numbers rise. */
unsigned long long queue_mark(const stream_lane *lane);
/* Whether the lane has still to come to work up to that mark; 0: it has not. */
bool queue_has(const stream_lane *lane, unsigned long long mark);
/* Until it has not. */
void queue_await(const stream_lane *lane, unsigned long long mark);
/* Until what the device has now has run. */
void queue_await_all(int device);
/* When work is put aside, where streams do not run by themselves: never; after other such work; also when a test holds
   kernels. */
typedef enum queue_when { QUEUE_APART, QUEUE_AFTER, QUEUE_HELD } queue_when;
/* False: the stream has come to it, and the caller does it. bytes: of `of`, which are copied; 0: it is given as it
   is. */
bool queue_put(const stream_lane *lane, queue_when when, void (*run)(void *of), void *of, size_t bytes);
/* Later work there waits for the other's work up to that mark. */
void queue_wait(const stream_lane *lane, const stream_lane *other, unsigned long long mark);
/* Likewise for a word that is at least the value. */
void queue_wait_word(const stream_lane *lane, const uint32_t *word, uint32_t value);

/* ---- kernels.c --------------------------------------------------------------------------------------------------- */
/* A function of that name; NULL: the table is full. */
cu_function kernel_named(const char *name);
/* Bytes of its arguments; 0: it is not a simulated one. */
size_t kernel_argument_bytes(cu_function function);
/* Whether a capture runs it, too. */
bool kernels_run_in_captures(void);
/* A kernel that ends when a thread of the host says so, which knows of none in a capture. */
bool kernel_awaits_host(cu_function function);
/* Those that run from now on hold threads back at random, by that seed; 0: they do not. */
void kernels_delay(uint32_t seed);
/* Runs it in this thread, to its end. False: it is not a simulated one. */
bool kernel_trial(cu_function function, const kernel_grid *grid, void *arguments);

#endif
