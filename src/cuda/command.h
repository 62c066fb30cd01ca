/* SPDX-License-Identifier: Apache-2.0 */
/* command: a stream asks a thread of the library to do something, and may wait until it has.
 *
 * Called by pgas/stream; calls the driver and base. A command has a word in pinned memory. The stream writes a number
 * there when it comes to the command. A server, which is a thread, looks at the words of its commands, carries a
 * command out, and writes the next number. The stream waits for that number if it is to wait. So no function runs on
 * the stream, no SM takes part, and the server can always release the stream.
 *
 * The numbers of a command are fixed when it is put on the stream. A graph that has it may run any number of times, and
 * keeps its word. A word of other commands is used again, with greater numbers. */
#ifndef EXPAR_CUDA_COMMAND_H
#define EXPAR_CUDA_COMMAND_H

#include "cuda/cuda.h"

#include <stdatomic.h>

typedef struct cuda_server cuda_server;
struct cuda_word;

/* A command. It is the first member of its caller's object, which has the arguments. */
typedef struct cuda_command {
    /* Carries it out; the server's thread calls it. Returns false to be called again soon: the command goes on. It must
       not return false if the stream does not wait. */
    bool (*run)(struct cuda_command *self);
    /* The server ends while the command is in progress, which is now over. Called by the server's thread. */
    void (*stop)(struct cuda_command *self);
    /* A stream came to it after its server had ended. Touches nothing that ended with the server. Any thread. */
    void (*miss)(struct cuda_command *self);
    /* Frees the object. Calls no driver. Any thread. */
    void (*drop)(struct cuda_command *self);
    /* the stream waits until it is carried out */
    bool waits;

    /* ---- private to command.c ---- */
    struct cuda_word *word;
    /* The stream writes `number` when it comes to the command, the server writes number + 1. */
    uint32_t number;
    /* The command is a graph's. The driver sets `given_up` when the last graph with it has gone; the server reads it.
       Relaxed: the word itself orders the command. */
    bool in_graph;
    _Atomic bool given_up;
    /* run has returned false; the server's thread alone uses it */
    bool begun;
    struct cuda_command *next;
} cuda_command;

/* How a server works. */
typedef struct cuda_server_plan {
    int32_t rank;   /* for the log */
    uint32_t words; /* prepares for so many commands at least */
    bool crowded;   /* threads outnumber cores, so it seldom looks */
} cuda_server_plan;
/* Starts a server. The device must have been entered. EXPAR_ERR_MEMORY: there is no pinned memory. */
expar_status cuda_server_start(const cuda_server_plan *plan, cuda_server **out);
/* Ends the server. A command that is in progress is given up: waits of its thread end as if the program had interrupted
   them. Streams that come to its commands later go on, and the commands are missed. NULL is allowed. */
void cuda_server_end(cuda_server *server);

/* Takes the word of a command that is put later, when the word cannot be missing any more. On failure, which is that of
   cuda_command_put, it drops the command. capture: the stream's; 0: none. */
expar_status cuda_command_prepare(cuda_server *server, cuda_command *command, unsigned long long capture);
/* Drops a command that was prepared, and is not put. */
void cuda_command_cancel(cuda_command *command);
/* Puts the command on the stream, whose capture is `capture` (0: none), and takes it over, also on failure. The device
   must have been entered. EXPAR_ERR_STATE: a capture would need more words than there are. EXPAR_ERR_UNSUPPORTED: the
   GPU's streams have no operations on words. */
expar_status cuda_command_put(cuda_server *server, cuda_command *command, void *stream, unsigned long long capture);

#endif
