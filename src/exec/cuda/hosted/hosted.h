/* SPDX-License-Identifier: Apache-2.0 */
/* Normal mode on GPUs whose ranks do not all map each other's memory: the host carries out each call. Private to this
 * folder, and to exec/cuda/create.c, which makes the object.
 *
 * A step copies what it reads from the GPU to host memory, has the CPU executor carry it out there, and copies what it
 * wrote back to the GPU. The CPU executor is an object of its own (`inner`), with the records and rings of the buffer.
 * The payload of rows stays on the GPU where the buffer has a carrier: the CPU executor then says what to copy and add,
 * and the mover does it.
 *
 * There are two ways to copy, and a buffer has one of them (hosted_mover_make). With the mover, a kernel on the call's
 * stream copies what the host asks for until the call ends. So the call has its place on the stream, and may return
 * before its end. Without it the host waits for the stream and copies by a stream of its own. Then the call returns
 * after its end. With the mover a graph can have calls: a thread carries them out when the mover begins.
 *
 *   create.c    the object, and its operations
 *   memory.c    memory on the GPU for outputs
 *   calls.c     a call's place on its stream
 *   mover.c     runs of the mover: launches, commands, ends
 *   replays.c   calls of graphs, and the thread that carries them out
 *   carrier.c   copies and sums of rows by the mover
 *   stage.c     pinned memory for the copies of calls
 *   copies.c    host copies of memory on the GPU, which a call keeps until its end
 *   dispatch.c  notify, dispatch, counts
 *   combine.c   combine, and the sums before it
 *   results.c   steps that make results from the rows that came
 *
 * docs/internals/across-nodes.md has the way of a token, and the order on the stream. */
#ifndef EXPAR_EXEC_CUDA_HOSTED_HOSTED_H
#define EXPAR_EXEC_CUDA_HOSTED_HOSTED_H

#include "exec/cpu/create.h"
#include "exec/cuda/core/gpu.h"
#include "exec/cuda/kernels/hosted/mover_args.h"
#include "exec/normal.h"

#include <pthread.h>

/* The source of the store on the GPU (memory.c). */
typedef struct hosted_source hosted_source;
/* The carrier for the CPU executor (carrier.c). */
typedef struct hosted_carrier hosted_carrier;
/* The calls of graphs (replays.c). */
typedef struct hosted_replays hosted_replays;

/* Runs of the mover at a time: calls that are issued and have not ended. The next one waits for the first. */
#define HOSTED_RINGS 16
/* The ring after those, which all runs of graphs use. One of them runs at a time. */
enum { HOSTED_GRAPH_RING = HOSTED_RINGS, HOSTED_ALL_RINGS };

/* Pinned memory of the buffer, which the copies of one call at a time use (stage.c). */
typedef struct hosted_stage {
    mem_block *block; /* of the pool that peers reach; NULL: there is none yet */
    bool used;        /* by a call, or by the thread that makes it larger */
} hosted_stage;
/* Two calls may be open at a time. */
#define HOSTED_STAGES 2
typedef struct hosted_stages {
    pthread_mutex_t lock; /* guards the members below, and the CPU executor's private pool */
    hosted_stage all[HOSTED_STAGES];
    uint64_t bytes; /* the most that the copies of a call have needed */
    bool refused;   /* the driver does not register the host's memory, so there are no stages */
} hosted_stages;

/* The mover's code and memory. The buffer has a reference, and so has the list of its graphs' calls, which lives as
   long as such a graph. A graph may still launch the kernel after the buffer's end. */
typedef struct hosted_parts {
    atomic_int references; /* acq_rel */
    cuda_program *program;
    gpu_scratch *scratch;
    cuda_task task;
} hosted_parts;

/* The kernel that copies, and the memory that it shares with the host. */
typedef struct hosted_mover {
    bool on;             /* false: the buffer copies without it */
    hosted_parts *parts; /* NULL: there is no memory for the record */
    cu_function kernel;
    mover_ring *rings;             /* [HOSTED_ALL_RINGS] pinned, at the host's address; the GPU has the same */
    uint8_t *bounces;              /* [HOSTED_ALL_RINGS] pinned, hosted_bounce_bytes() each, likewise */
    uint64_t *lists;               /* [HOSTED_ALL_RINGS][MOVER_COMMANDS][MOVER_LIST_WORDS] pinned, likewise */
    pthread_mutex_t lock;          /* guards the members below */
    uint64_t runs;                 /* number of the last run */
    uint64_t run_of[HOSTED_RINGS]; /* the run that has the ring, until the mover has left it; 0: none */
} hosted_mover;

typedef struct hosted_executor {
    /* Only these members are used: base, group, sym, device, device_state, heap, own_stream, order, fallback,
       capturing, called_on, with_threads, num_sms, halted. */
    gpu_core core;
    hosted_mover mover;
    hosted_replays *replays; /* NULL: no graph has had a call */
    bool late_replays;       /* a stream may still come to one, after the end of their thread */
    /* Calls that have opened. Hosts of all ranks count them alike, for each opens in its turn. Only the thread that has
       the turn uses it. */
    uint32_t epoch;
    hosted_stages stages;
    executor *inner; /* the CPU executor; NULL: it is not made yet */
    /* Has the mover copy and add rows; NULL: workers of the CPU executor do. */
    hosted_carrier *carrier;
    cuda_device *device; /* core.device, which this executor closes */
    mem_store *store;    /* memory of the pool */
    hosted_source *source;
    int32_t near_ranks; /* ranks of this node, as the CPU executor counts them */
    /* The pool lies in the per-GPU state, and the GPUs of this node's ranks map it. Otherwise it has a source of its
       own. The same on all ranks. */
    bool mapped;
    bool limited;         /* the pool has a limit */
    uint64_t start_bytes; /* that the per-GPU state keeps for this buffer's pool */
    normal_ops normal;    /* the table of operations: `stages` depends on the pool */
} hosted_executor;

static inline hosted_executor *hosted_of(executor *base)
{
    return (hosted_executor *)base;
}

/* A copy in host memory of a range on the GPU. */
typedef struct hosted_copy {
    struct hosted_copy *next;
    const uint8_t *device; /* NULL: rows of a tensor that is not contiguous, which no later step finds */
    uint64_t bytes;
    uint8_t *data;
    uint64_t offset;  /* in the host's heap, if peers reach it */
    bool reached;     /* peers reach it */
    bool pinned;      /* the mover reaches it */
    mem_block *block; /* of its own; NULL: it lies in the call's stage */
} hosted_copy;

/* Addresses of a call of a graph, and whether each is memory of the GPU. The capture asks the driver, and replays find
   the answers here: the driver may wait for kernels in another thread, and the mover waits for this one. */
enum { HOSTED_PLACES = EXEC_REPLAY_PLACES };
typedef struct hosted_places {
    int32_t count;
    struct {
        const void *data;
        bool far;
    } all[HOSTED_PLACES];
} hosted_places;

/* A run of the mover for a call. Only the thread that carries the call out uses it, and in a step that is carried the
   workers of the CPU executor (carrier.c). */
typedef struct hosted_run {
    uint64_t number; /* 0: there is none */
    int32_t ring;
    uint64_t posted; /* commands */
    cuda_mark *mark; /* after it */
} hosted_run;

/* A call keeps this from step to step (exec_call.own). */
typedef struct hosted_call {
    cuda_mark *mark; /* on the call's stream: its inputs come before it, and so do earlier uses of its outputs */
    bool ready;      /* the mark has been passed */
    hosted_run run;
    uint32_t epoch;        /* once the call has opened */
    bool of_graph;         /* the memory of this object belongs to a call of a graph */
    hosted_places *places; /* of that call; NULL: it is none */
    bool departed;         /* its run was begun for a thread that carries out all of its steps */
    error_kept departing;  /* how that went */
    hosted_stage *stage;
    uint64_t stage_used, stage_needed; /* bytes */
    hosted_copy *copies;
    bool carried; /* the carrier moves the payload of its rows */
    /* Between send and receive: the step on host memory. */
    ep_dispatch_step dispatch;
    ep_combine_step combine;
} hosted_call;

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */
/* Makes the store and the pool of a buffer. */
expar_status hosted_pool_make(hosted_executor *self, const executor_plan *plan);
/* Collective: takes the memory that a mapped pool begins with. */
expar_status hosted_pool_start(hosted_executor *self, const executor_plan *plan);
/* Blocks that are out stay valid. A second time it does nothing. */
void hosted_pool_close(hosted_executor *self);
/* Collective: has the pool in a per-GPU state, if all ranks can use one and reach the GPUs of their nodes. */
expar_status hosted_pool_map(hosted_executor *self);
/* Leaves that state. Collective if sound. quiet: no kernel of this rank uses the pool of any rank. */
void hosted_pool_unmap(hosted_executor *self, bool sound, bool quiet);
/* Chooses what the header of a fresh dispatch says of growth. */
ep_growth hosted_choose_growth(hosted_executor *self, const ep_notify_step *step);
expar_status hosted_grow_pool(executor *base, const uint64_t *bytes, int32_t count);
/* Gives the offset from which kernels of this node's ranks reach memory on this GPU. False: they do not. */
bool hosted_offset_on_gpu(const hosted_executor *self, const void *data, uint64_t bytes, uint64_t *offset);
/* Operations. */
expar_status hosted_take(executor *base, const mem_allocator *from, uint64_t bytes, mem_block **out);
exec_reach hosted_reach(executor *base, const exec_call *call, const void *data, uint64_t bytes, bool maps,
                        exec_mapping *out);
void hosted_trim(executor *base);
expar_status hosted_map_make(executor *base, int64_t slots, mem_block **out);

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_begin(executor *base, exec_call *call, void *stream);
expar_status hosted_end(executor *base, exec_call *call);
/* Checks a number of SMs, which nothing uses here. */
expar_status hosted_check_sms(const hosted_executor *self, const char *name, int32_t asked);
/* Waits until the call's stream has come to the call. The call's first step that reads or writes the caller's memory
   calls it. With the mover it first begins a run, unless the call has one. */
expar_status hosted_await_inputs(hosted_executor *self, const exec_call *call);
/* Waits for the turn of a step that reads and writes no memory of the caller's, if graphs have calls of the buffer.
   Such a call may have no stream. *alone gets a run if the call has none. If this fails, the call is lost, since it has
   not opened in its turn. hosted_turn_end comes after the step in any case. */
expar_status hosted_turn_begin(hosted_executor *self, exec_call *call, hosted_run *alone);
void hosted_turn_end(hosted_executor *self, hosted_run *alone);
/* Returns the number with which the call opens. It has its turn. */
static inline uint32_t hosted_open(hosted_executor *self, const exec_call *call)
{
    hosted_call *own = call->own;
    self->epoch++;
    if (own) own->epoch = self->epoch;
    return self->epoch;
}
void hosted_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper);
/* Returns why a wait of the call must end: the buffer was abandoned, the group has failed, or the program interrupts
   the wait. */
expar_status hosted_look(const hosted_executor *self, int64_t *asked_ns);
/* Ends the run of a step after which the caller's thread calls the driver. A departed call keeps its run. */
void hosted_pause(hosted_executor *self, hosted_call *call);

/* ---- mover.c ----------------------------------------------------------------------------------------------------- */
/* Makes the mover. If this rank cannot use it, logs why, and the buffer copies without it. It is not used where ranks
   of this process share the GPU: one rank's run would hold up what the driver does for the other. */
void hosted_mover_make(hosted_executor *self, int32_t num_sms);
static inline hosted_parts *hosted_parts_hold(hosted_parts *parts)
{
    atomic_fetch_add_explicit(&parts->references, 1, memory_order_relaxed);
    return parts;
}
/* The last drop frees the parts. in_driver: the driver may have called this thread, so another thread frees them. */
void hosted_parts_drop(hosted_parts *parts, bool in_driver);
/* Waits for the ends of all runs, and frees the mover, the carrier, the stages and the pool. If a run does not end, all
   of them stay. */
void hosted_mover_close(hosted_executor *self);
/* Launches the mover on the call's stream, after earlier calls. */
expar_status hosted_run_begin(hosted_executor *self, const exec_call *call, hosted_run *run);
/* Puts a launch of the mover into the graph of the call's stream, for the call of that number. */
expar_status hosted_run_record(hosted_executor *self, const exec_call *call, uint64_t record);
/* Finds the run of a graph that has begun after the run `last`, and the number of its call. False: there is none. */
bool hosted_run_of_graph(const hosted_executor *self, uint64_t last, hosted_run *run, uint64_t *record);
/* From now on runs of graphs end at once. No thread uses their ring any more. */
void hosted_graph_ring_close(hosted_executor *self);
/* Waits until the stream has come to the run. */
expar_status hosted_run_reach(const hosted_executor *self, const hosted_run *run);
/* Comes if a step fails while rows move, in which other ranks wait for this one: `status` is that of the step, and may
   be EXPAR_OK. The call is broken off if the others would not learn of it otherwise. The run ends, so that the mover
   uses none of the call's memory any more. Returns status. */
expar_status hosted_break_off(hosted_executor *self, exec_call *call, expar_status status);
/* Posts the last command. Afterwards the mover uses no memory of the call's: either all copies are complete, or those
   that are not are dropped. */
void hosted_run_end(hosted_executor *self, hosted_run *run);
/* Posts a copy between the GPU and pinned memory. */
expar_status hosted_run_post(hosted_executor *self, hosted_run *run, const mover_command *command);
/* Posts a command with a list of so many words, which is copied. */
expar_status hosted_run_post_list(hosted_executor *self, hosted_run *run, mover_command *command, const uint64_t *list,
                                  uint32_t words);
/* Waits until all posted copies are complete. */
expar_status hosted_run_await(hosted_executor *self, hosted_run *run);
/* Returns how many commands of the run are complete. */
uint64_t hosted_run_done(const hosted_executor *self, const hosted_run *run);
/* For waits that last: now and then asks whether the context is lost. The times are the caller's, who sets `next_ns` to
   when it shall be asked first. */
expar_status hosted_run_look(const hosted_executor *self, const hosted_run *run, int64_t *asked_ns, int64_t *next_ns);
/* Pinned memory through which rows of other host memory go. */
static inline uint64_t hosted_bounce_bytes(void)
{
    return (uint64_t)knob(KNOB_CUDA_BOUNCE_BYTES);
}
static inline uint8_t *hosted_bounce(const hosted_executor *self, const hosted_run *run)
{
    return self->mover.bounces + (uint64_t)run->ring * hosted_bounce_bytes();
}

/* ---- replays.c --------------------------------------------------------------------------------------------------- */
/* Operation. */
expar_status hosted_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay);
/* Waits until no thread is in a call of a graph. The caller has its turn, so none begins before its end. */
void hosted_replays_settle(hosted_executor *self);
/* Waits until all launches of graphs have ended, for wait_ns at most. Then ends the thread, and drops the calls.
   Returns whether the launches had ended. If not, the buffer is halted, so that a replay that is under way ends. Later
   ones do nothing then. They get wait_ns once more before late_replays is set. A second time it does nothing. */
bool hosted_replays_stop(hosted_executor *self, int64_t wait_ns);

/* ---- carrier.c --------------------------------------------------------------------------------------------------- */
/* Makes the carrier, for a buffer that has a mover and the CPU executor. If there is none, the host moves rows. */
void hosted_carrier_make(hosted_executor *self);
/* Comes when all runs have ended, before the CPU executor is destroyed. Without a carrier it does nothing. */
void hosted_carrier_close(hosted_executor *self);
/* The step that follows moves rows by this run, if it is carried. */
void hosted_carrier_use(hosted_carrier *carrier, hosted_run *run);

/* ---- stage.c ----------------------------------------------------------------------------------------------------- */
void hosted_stages_make(hosted_executor *self);
/* Takes host memory of this rank alone. Threads that make calls and threads that carry them out need it. */
expar_status hosted_take_private(hosted_executor *self, uint64_t bytes, mem_block **out);
/* Makes a stage large enough for calls like those before. The driver may wait for running kernels meanwhile, so the
   thread has no run. */
void hosted_stage_grow(hosted_executor *self);
/* Takes memory from the call's stage for the copy, whose `bytes` are set. False: there is too little. */
bool hosted_stage_take(hosted_executor *self, hosted_call *call, hosted_copy *copy);
/* The call has ended. */
void hosted_stage_leave(hosted_executor *self, hosted_call *call);
/* Frees the stages that no call uses. */
void hosted_stages_trim(hosted_executor *self);
/* Frees all stages, which no copy uses any more. */
void hosted_stages_close(hosted_executor *self);

/* ---- copies.c ---------------------------------------------------------------------------------------------------- */
/* A step that is being prepared. The first failure stays, and nothing is done after it. */
typedef struct hosted_step {
    hosted_executor *self;
    hosted_call *call;
    expar_status status;
    bool out_of_turn; /* the call did not get its turn, so it cannot open */
} hosted_step;
/* Waits for the call's inputs. */
hosted_step hosted_step_begin(hosted_executor *self, const exec_call *call);

/* In a capture: finds where the addresses of the call lie. */
void hosted_places_fill(hosted_places *places, const exec_replay *replay);
/* Returns whether the bytes lie on the GPU, and the call has no copy of them in host memory. */
bool hosted_only_on_gpu(const hosted_step *step, const void *data, uint64_t bytes);
/* Says whether the carrier can carry out a step of this rank alone on rows that lie so. It then uses the call's run.
   topk: the most rows of a sum. */
bool hosted_carry_step(const hosted_step *step, const void *rows, uint64_t bytes, int32_t topk);
/* Returns where the host has these bytes: a copy, which is complete after hosted_sync, or `data` itself if that is host
   memory, NULL or empty. A range that the call has copied or written before is not copied again. */
const void *hosted_read(hosted_step *step, const void *data, uint64_t bytes);
/* Returns host memory for bytes that the step writes; hosted_write_back copies them to `data`. If `keeps`, the step may
   leave some of them as they are. */
void *hosted_write(hosted_step *step, void *data, uint64_t bytes, bool keeps);
/* The same as hosted_read for rows that are *pitch_bytes apart. *pitch_bytes gets the pitch of the copy. */
const void *hosted_read_rows(hosted_step *step, const void *data, int64_t rows, int64_t row_bytes,
                             int64_t *pitch_bytes);
/* Puts the first `bytes` of what hosted_write gave for `data` on their way to the GPU. */
void hosted_write_back(hosted_step *step, const void *data, uint64_t bytes);
/* Puts contiguous rows in host memory on their way to rows that are pitch_bytes apart on the GPU. */
void hosted_send_rows(hosted_step *step, void *data, const void *host, int64_t rows, int64_t row_bytes,
                      int64_t pitch_bytes);
/* Waits until all these copies are complete. Returns the step's status. */
expar_status hosted_sync(hosted_step *step);
/* Marks the call as lost if the driver has failed in the step, or the call has not got its turn. Returns the mark. Then
   the rank breaks the call off, since the GPU's context may be lost, or since the other ranks would take its header for
   that of another call. Other failures before rows move are told to the other ranks. */
static inline bool hosted_mark_loss(const hosted_step *step, exec_call *call)
{
    if (step->status == EXPAR_ERR_CUDA || step->out_of_turn) call->lost = true;
    return call->lost;
}
/* Returns whether peers reach that host memory, which is the call's, and its offset in the heap. They reach absent
   memory (NULL). */
bool hosted_is_symmetric(const hosted_step *step, const void *host, uint64_t *offset);
/* Returns host memory for so many bytes, which belongs to the call. Peers reach it if there is space. */
void *hosted_scratch(hosted_step *step, uint64_t bytes);
/* Copies a range of the GPU's to another one; either may be host memory. */
void hosted_move(hosted_step *step, void *dest, const void *source, uint64_t bytes);
void hosted_copies_free(hosted_executor *self, hosted_call *call);

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_notify(executor *base, exec_call *call, ep_notify_step *step);
expar_status hosted_dispatch_send(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status hosted_dispatch_receive(executor *base, exec_call *call, ep_dispatch_step *step);
expar_status hosted_tell_counts(executor *base, exec_call *call, const ep_counts_step *step);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_reduce(executor *base, exec_call *call, const ep_reduce_step *step);
expar_status hosted_combine_send(executor *base, exec_call *call, ep_combine_step *step);
expar_status hosted_combine_receive(executor *base, exec_call *call, ep_combine_step *step);

/* ---- results.c --------------------------------------------------------------------------------------------------- */
/* Operations. */
expar_status hosted_map(executor *base, exec_call *call, const ep_map_step *step);
expar_status hosted_arrange(executor *base, exec_call *call, const ep_arrange_step *step);
expar_status hosted_sources(executor *base, exec_call *call, const ep_sources_step *step);
expar_status hosted_copy_bytes(executor *base, exec_call *call, void *dest, const void *source, uint64_t bytes);

/* ---- create.c ---------------------------------------------------------------------------------------------------- */
/* Makes the executor (executor_kind.create) for a group whose ranks do not all map each other. */
expar_status hosted_create(const executor_plan *plan, executor **out);

#endif
