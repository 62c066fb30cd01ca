/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the host and the mover share (mover.cu). The mover is a kernel on the stream of a call that the host
 * carries out. It copies and adds rows of this GPU and of pinned memory, as the host's commands say, until the host
 * ends it. Compiles as C17, under NVRTC and under nvcc.
 *
 *   mover_ring    pinned memory: the host's commands, and the mover's answers
 *   lists         pinned memory: MOVER_LIST_WORDS for each place of a ring, written and read as the command there
 *   mover_state   device memory: what block 0 tells the other blocks
 *
 * One launch of the mover is a run. A run has a ring and a state of its own, which later runs use again. Runs of graphs
 * share one ring, since the calls of a rank follow each other. The host knows of no launch there, so the mover numbers
 * these runs itself. */
#ifndef EXPAR_EXEC_CUDA_KERNELS_HOSTED_MOVER_ARGS_H
#define EXPAR_EXEC_CUDA_KERNELS_HOSTED_MOVER_ARGS_H

#include "base/portable.h"

#define MOVER_THREADS    256
#define MOVER_COMMANDS   32   /* places of a ring */
#define MOVER_LIST_WORDS 1024 /* of the list of a command, in pinned memory */

typedef enum mover_kind {
    MOVER_COPY = 1,
    MOVER_END = 2,  /* the last command of each run */
    MOVER_SKIP = 3, /* a command of a call that has failed; only block 0 makes it */
    MOVER_ROWS = 4, /* copies `rows` rows by a list of mover_row */
    MOVER_SUMS = 5  /* adds up `rows` sums by a list of mover_sum, each with `entry_words` words */
} mover_kind;

/* Addresses are in the GPU's view. */
typedef struct mover_command {
    uint64_t dest, source;
    uint64_t rows, row_bytes;
    uint64_t dest_pitch, source_pitch; /* bytes from row to row */
    uint32_t kind, entry_words;
    uint64_t list; /* address of the list; 0: the command has none */
} mover_command;

/* A row to copy. */
typedef struct mover_row {
    uint64_t dest, source;
} mover_row;

/* A sum: FP32 from +0 in the order of the rows, rounded once to nearest even. The addresses of the rows follow, after
 * them those of the group, and then the weights of the rows, two in a word. The group, which has no weights, is added
 * up by itself first, from +0. Its sum then takes the place before row `group_at`. */
typedef struct mover_sum {
    uint64_t sum;
    uint16_t dtype; /* expar_dtype of the rows, and of the sum */
    uint16_t flags; /* MOVER_WIDE_…, MOVER_WEIGHTED */
    uint16_t rows, group_rows;
    uint16_t wide_from; /* rows from this one on are FP32 */
    uint16_t group_at;  /* at most `rows` */
    uint32_t unused;
} mover_sum;
#define MOVER_SUM_WORDS  3
#define MOVER_WIDE_SUM   1 /* the sum is FP32, and not rounded */
#define MOVER_WIDE_GROUP 2 /* the group's sum is not rounded to the rows' type */
#define MOVER_WEIGHTED   4 /* rows have weights, and there is no group; each product is rounded */

typedef struct mover_ring {
    /* The host writes these two. Command n of a run, from 0 on, stands in place n mod MOVER_COMMANDS. The host fills it
       when the command that was there before is done, and then sets `posted` to n + 1 commands (mover_count, release).
       Block 0 polls `posted` (acquire). */
    uint64_t posted;
    /* The run whose call has failed. The host sets it before the run's last command. Block 0 reads it for each command,
       and passes none of the copies on that it finds afterwards. */
    uint64_t over;
    uint64_t unused[6];
    /* The mover writes these four, the host polls the first three (acquire). `started` is the run: block 0 stores it
       (release), and then reads `over`. The host sets `over`, and then reads `started`. Both have a full fence between,
       so at least one of them sees the other's word. `done` is how many commands of the run are complete (mover_count,
       release). `exited` is the run (release): no block uses the ring any more, nor anything that commands named.
       `record` is the call of a graph to which the run belongs. Block 0 stores it before `started`. */
    uint64_t started;
    uint64_t done;
    uint64_t exited;
    uint64_t record;
    uint64_t unused2[4];
    mover_command commands[MOVER_COMMANDS];
} mover_ring;

typedef struct mover_state {
    /* The commands that all blocks may carry out (mover_count). Block 0 writes it (release) after the copy of the
       command below; the other blocks poll it (acquire). */
    uint64_t ready;
    /* The last run that has ended. The last block of a run writes it when no block reads it any more. All blocks of a
       later launch read it. */
    uint64_t ended;
    uint32_t arrived[MOVER_COMMANDS]; /* blocks that have carried the command out; the last one sets 0 */
    mover_command commands[MOVER_COMMANDS];
} mover_state;

/* So many commands of a run, below 2^24. Runs are numbered from 1, so an earlier run's word is lower than all of a
 * later run. */
PORTABLE_FUNC uint64_t mover_count(uint64_t run, uint32_t commands)
{
    return run << 24 | commands;
}

typedef struct mover_args {
    mover_ring *ring;
    mover_state *state;
    uint64_t run;    /* 0: a launch of a graph, whose run is the next one of the ring */
    uint64_t record; /* the call of the graph; else 0 */
} mover_args;

#endif
