/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue of src/net/gda/queue.h: threads reserve, write, commit and ring; a device reads the record after it has seen
 * the register (gda_reserve, gda_write, gda_commit, gda_ring, gda_look_collapsed).
 *
 * Each thread makes submissions of one or two requests. A block holds the index for which it was written. The device
 * writes its counter after each submission's last request, as the collapsed completion queue has it.
 *
 * Checked: the device never reads a block that was not written for that index. No block is written again before its
 * request is complete. The record never goes back. All requests are carried out, and nobody waits for ever.
 *
 *   spin -a OPTIONS gda_queue.pml && cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -E -n -m200000
 *
 * Options (-DNAME=VALUE)
 *   THREADS  that post                                                                    (default 2)
 *   EACH     submissions of each thread                                                   (default 2)
 *   DEPTH    blocks of the queue; DEPTH >= BATCH + 2                                       (default 4)
 *   BATCH    a thread rings when it crosses a multiple of this                             (default 2)
 *   RULE     0: as it is; 1: nobody rings at a border; 2: nobody rings at the end; 3: threads commit out of turn;
 *            4: threads ring without the lock; 5: the register comes before the record; 6: a reservation does not wait;
 *            7: threads write after their commit                                           (default 0)
 *
 * Every rule but 0 is found to be wrong.
 */
#ifndef THREADS
#define THREADS 2
#endif
#ifndef EACH
#define EACH 2
#endif
#ifndef DEPTH
#define DEPTH 4
#endif
#ifndef BATCH
#define BATCH 2
#endif
#ifndef RULE
#define RULE 0
#endif

byte resv_head, ready_head, prod_idx, cons_idx;
bit lock;
byte record;
bit doorbell;
byte block[DEPTH]; /* index + 1 of the request that was written there */
bit last[DEPTH];   /* it asks for a completion */
byte done;         /* the device's next request */
byte counter;      /* end of what the device has reported */
byte finished;     /* threads that have come to their end */

inline write_blocks()
{
    i = base;
    do
    :: i < end ->
        assert(i < DEPTH || done > i - DEPTH);
        d_step { block[i % DEPTH] = i + 1; last[i % DEPTH] = (i + 1 == end); i++ }
    :: else -> break
    od
}

inline ring_record(target)
{
    assert(target >= record);
    record = target
}

/* By the holder of the lock. */
inline ring_once()
{
    target = ready_head;
    if
    :: prod_idx < target ->
        prod_idx = target;
        if
        :: RULE == 5 -> doorbell = 1; ring_record(target)
        :: else -> ring_record(target); doorbell = 1
        fi
    :: else
    fi
}

inline ring()
{
    do
    :: prod_idx >= end -> break
    :: prod_idx < end ->
        if
        :: RULE == 4 -> ring_once()
        :: else ->
            atomic { lock == 0 -> lock = 1 };
            ring_once();
            lock = 0
        fi
    od
}

proctype thread()
{
    byte n, i, base, end, count, target;
    for (n : 1 .. EACH) {
        if
        :: count = 1
        :: count = 2
        fi;
        d_step { base = resv_head; resv_head = resv_head + count };
        end = base + count;
        /* waits until the blocks are free: those before end - DEPTH are rung and complete */
        do
        :: RULE == 6 || cons_idx + DEPTH >= end -> break
        :: cons_idx + DEPTH < end && prod_idx + DEPTH >= end && counter + DEPTH >= end ->
            d_step { if :: counter > cons_idx -> cons_idx = counter :: else fi }
        od;
        if :: RULE != 7 -> write_blocks() :: else fi;
        if
        :: RULE == 3 -> d_step { if :: end > ready_head -> ready_head = end :: else fi }
        :: else -> atomic { ready_head == base -> ready_head = end }
        fi;
        if :: RULE == 7 -> write_blocks() :: else fi;
        if
        :: RULE != 2 && resv_head == end -> ring()
        :: else ->
            if
            :: RULE != 1 && base / BATCH != end / BATCH -> ring()
            :: else
            fi
        fi
    }
    finished++
}

proctype device()
{
    byte limit;
    do
    :: atomic { doorbell == 1 -> doorbell = 0 };
        limit = record;
        do
        :: done < limit ->
            assert(block[done % DEPTH] == done + 1);
            if
            :: last[done % DEPTH] -> d_step { done++; counter = done }
            :: else -> done++
            fi
        :: else -> break
        od
    :: finished == THREADS && doorbell == 0 && done == resv_head -> break
    od
}

/* Nothing can go on: then all must be done. */
proctype watch()
{
    timeout;
    assert(finished == THREADS && done == resv_head)
}

init
{
    byte t;
    atomic {
        run device();
        run watch();
        for (t : 1 .. THREADS) {
            run thread()
        }
    }
}
