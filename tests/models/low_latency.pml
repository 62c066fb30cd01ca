/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency mode: message headers, acknowledgements, parities, hooks, rejections, STATE.
 * The rules are in docs/internals/low-latency.md, "Words". scripts/models.sh runs the checks.
 *
 *   spin -a OPTIONS low_latency.pml && cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -E -n -m200000
 *
 * Checked properties
 *   no deadlock      pan reports 'invalid end state'
 *   units            no opening unit is written over before its reader is done with it
 *   data             no message is written over before it was read, none comes before
 *                    the older one of its place was read
 *   right epoch      every receive reads data of its own epoch and from the right source
 *   in step          each of these also after refusals, mismatches and STATE
 *
 * Options (-DNAME=VALUE), the program that the ranks run:
 *   N        ranks, 2 or 3
 *   CALLS    calls each rank makes, in the same order everywhere
 *   KINDS    1 dispatches only, 2 dispatches and combines in any mixture,
 *            3 combines only
 *   REFUSE   so many calls are refused, any call of any rank       (default 0)
 *   MISMATCH so many calls have another tag than the others'       (default 0)
 *   STATES   1: a rank may make a call while its half is pending   (default 0)
 *   NEVER    1: hooks may be left uncalled at the end              (default 0)
 * Options, the protocol. The defaults are the repaired text:
 *   COPIES   units kept for each kind, by epoch                    (default 4)
 *   READWORD 0 one word a kind, each receive stores its own epoch (the text taken
 *              literally); 1 one word a kind, stored only when all before are read;
 *              2 one word for each half                            (default 2)
 *   ANYUNIT  1: data of epoch e to a peer waits for its read word of e-2 OR its unit
 *            of e; 0: for the read word or a unit with a refusal   (default 1)
 *   AWAIT    1: a send whose half holds a call (e-2) that was not read here waits for
 *            every peer's unit of e-1 before its own units leave, and keeps the units
 *            of a call that is still pending in its record; 2: waits only for the units of
 *            e-2 (too little); 0: waits for nothing                (default 1)
 *   REFREAD  1: a refused call stores its read word at once        (default 0)
 *   -DTEXT   the text before the repair: READWORD 0, ANYUNIT 0, AWAIT 0
 *
 * Left out: values of counts, time-outs, wrap of epochs, the network's own reordering.
 * Each store is seen by all at once; the spec asks for release, acquire and
 * one ordered path between a pair.
 */
#ifdef TEXT
#define READWORD 0
#define ANYUNIT 0
#define AWAIT 0
#endif
#ifndef N
#define N 2
#endif
#ifndef CALLS
#define CALLS 4
#endif
#ifndef KINDS
#define KINDS 2
#endif
#ifndef REFUSE
#define REFUSE 0
#endif
#ifndef MISMATCH
#define MISMATCH 0
#endif
#ifndef STATES
#define STATES 0
#endif
#ifndef NEVER
#define NEVER 0
#endif
#ifndef COPIES
#define COPIES 4
#endif
#ifndef READWORD
#define READWORD 2
#endif
#ifndef ANYUNIT
#define ANYUNIT 1
#endif
#ifndef AWAIT
#define AWAIT 1
#endif
#ifndef REFREAD
#define REFREAD 0
#endif

/* Status of a message header, two bits; the third is the tag of the call's form. */
#define OK      0
#define REFUSED 1
#define STATE   2

/* ---- Memory of the ranks. Everything is written by one rank only, but for combine's places. */

/* Message header that source s wrote at rank r: epoch * 8 + tag * 4 + status. */
byte unit[N * N * 2 * COPIES];
#define UNIT(r, s, k, e)  unit[(((r) * N + (s)) * 2 + (k)) * COPIES + (e) % COPIES]
#define EPOCH(u)  ((u) >> 3)
#define TAG(u)    (((u) >> 2) & 1)
#define STATUS(u) ((u) & 3)

/* Acknowledgement that receiver d wrote at source r. */
byte readw[N * N * 2 * 2];
#define READ(r, d, k, h)  readw[(((r) * N + (d)) * 2 + (k)) * 2 + (READWORD == 2 -> (h) : 0)]

/* Slots by parity. Dispatch: a share for each source. Combine: places belong to tokens, and the
 * source that writes a place changes from call to call; one such place is modelled. */
#define PLACE(r, k, h, s) ((((r) * 2 + (k)) * 2 + (h)) * N + ((k) == 0 -> (s) : 0))
#define OWNER(r, e)       (((r) + 1 + ((e) >> 1)) % N)
#define SENDS(s, r, k, e) ((k) == 0 -> (s) != (r) : OWNER(r, e) == (s))
byte data[N * 2 * 2 * N];       /* epoch * 4 + source */
byte flag[N * 2 * 2 * N];       /* epoch */

/* ---- Records of each rank, by rank, kind and half. */
#define IX(r, k, h) (((r) * 2 + (k)) * 2 + (h))
byte ep[N * 2];                 /* epoch of the last call of a kind */
byte open[N * 4];               /* epoch of the call that waits for its receive, or 0 */
bit  otag[N * 4];               /* its tag */
byte got[N * 4];                /* sources whose header was read */
byte silent[N * 4];             /* sources that send it no data: refused or STATE */
bit  mism[N * 4];               /* a source has another tag */
bit  unread[N * 4];             /* the last call of this parity was not read here: rejected, STATE, mismatch */
byte upto[N * 2];               /* READWORD 1: all up to here are read */
byte later[N * 2];              /* READWORD 1: one beyond it that was read first */

/* ---- The program, found as it runs: kind of call i. */
byte known, kinds;
byte refusals = REFUSE;
byte mismatches = MISMATCH;

/* ---- Ghosts: for the checks only. */
byte need[N * 2 * 2 * N];       /* epoch of data that the receiver has still to read at a place */

/* The reader p still needs a header: it has not made that call yet, or the call is open and its
 * record has not got the header. */
#define WANTED(p, s, k, e0) ((e0) != 0 && (ep[(p) * 2 + (k)] < (e0) || \
    (open[IX(p, k, (e0) & 1)] == (e0) && !((got[IX(p, k, (e0) & 1)] >> (s)) & 1))))

/* The next peer after s; s starts at FIRST. Loop counters move in the same step as the
 * memory action before them: only memory actions interleave. */
#define FIRST (_pid == 0 -> 1 : 0)
inline next_peer() {
    s++;
    if
    :: s == _pid -> s++
    :: else
    fi
}
inline store_unit(p) {
    assert(!WANTED(p, _pid, k, EPOCH(UNIT(p, _pid, k, e))));        /* a header was lost */
    UNIT(p, _pid, k, e) = e * 8 + st
}

inline store_data(p) {
    atomic {
        x = PLACE(p, k, h, _pid);
        assert(need[x] == 0 || e <= need[x]);                           /* too early */
        assert(!(need[x] != 0 && need[x] != e && (data[x] >> 2) == need[x]));   /* unread data lost */
        data[x] = e * 4 + _pid
    }
    atomic {
        x = PLACE(p, k, h, _pid);
        assert(!(need[x] != 0 && need[x] != e && flag[x] == need[x]));
        flag[x] = e;
        x = 0
    }
}

/* Reads the header u of source s into the record IX of an open call. */
inline take_header(j, u) {
    got[j] = got[j] | (1 << s);
    if
    :: STATUS(u) != OK -> silent[j] = silent[j] | (1 << s)
    :: STATUS(u) == OK && TAG(u) != otag[j] -> mism[j] = 1
    :: else
    fi
}

#define NEXTKIND  ((kinds >> i) & 1)
#define NEXTHALF  ((ep[_pid * 2 + NEXTKIND] + 1) & 1)
#define ME        IX(_pid, k, h)

active [N] proctype Rank() {
    byte i, e, k, h, s, st, x, todo;

next:
    do
    :: atomic { i < CALLS && !((known >> i) & 1) ->
           if
           :: KINDS != 3
           :: KINDS != 1 -> kinds = kinds | (1 << i)
           fi;
           known = known | (1 << i) }
    :: atomic { i < CALLS && ((known >> i) & 1) && (STATES || open[IX(_pid, NEXTKIND, NEXTHALF)] == 0) ->
           k = NEXTKIND; ep[_pid * 2 + k]++; e = ep[_pid * 2 + k]; h = e & 1; i++ };
       goto send
    :: atomic { open[IX(_pid, 0, 0)] != 0 -> k = 0; h = 0 }; goto receive
    :: atomic { open[IX(_pid, 0, 1)] != 0 -> k = 0; h = 1 }; goto receive
    :: atomic { open[IX(_pid, 1, 0)] != 0 -> k = 1; h = 0 }; goto receive
    :: atomic { open[IX(_pid, 1, 1)] != 0 -> k = 1; h = 1 }; goto receive
    :: i == CALLS && (NEVER || (open[IX(_pid, 0, 0)] == 0 && open[IX(_pid, 0, 1)] == 0 &&
                                open[IX(_pid, 1, 0)] == 0 && open[IX(_pid, 1, 1)] == 0)) -> goto done
    od;

send:
    /* Wait for the peers where the older call of this parity was not read. */
    if
    :: AWAIT != 0 && (open[ME] != 0 || unread[ME]) ->
        s = FIRST;
        do
        :: s >= N -> break
        :: atomic { s < N && EPOCH(UNIT(_pid, s, k, e - AWAIT)) == e - AWAIT ->
                if
                :: open[ME] == e - 2 && !((got[ME] >> s) & 1) ->
                    assert(EPOCH(UNIT(_pid, s, k, e - 2)) == e - 2);
                    take_header(ME, UNIT(_pid, s, k, e - 2))
                :: else
                fi;
                next_peer() }
        od
    :: else
    fi;

    /* Status of the call. */
    atomic {
        if
        :: open[ME] != 0 -> st = STATE
        :: open[ME] == 0 -> st = OK
        :: open[ME] == 0 && refusals > 0 -> refusals--; st = REFUSED
        :: open[ME] == 0 && mismatches > 0 -> mismatches--; st = 4 + OK
        fi;
        unread[ME] = (st & 3) != OK;
        if
        :: (st & 3) == OK ->
            open[ME] = e; otag[ME] = st >> 2; got[ME] = 0; silent[ME] = 0; mism[ME] = 0;
            s = 0;
            do
            :: s < N && SENDS(s, _pid, k, e) -> need[PLACE(_pid, k, h, s)] = e; s++
            :: s < N && !SENDS(s, _pid, k, e) -> s++
            :: s == N -> break
            od
        :: else
        fi;
        s = FIRST
    }

    /* Message headers: always sent. */
    do
    :: s >= N -> break
    :: atomic { s < N -> store_unit(s); next_peer() }
    od;

    if
    :: st == REFUSED && REFREAD ->
        s = 0;
        do
        :: s == N -> break
        :: s == _pid -> s++
        :: s < N && s != _pid -> READ(s, _pid, k, h) = e; s++
        od
    :: else
    fi;
    if
    :: (st & 3) != OK -> atomic { s = 0; st = 0; e = 0; k = 0; h = 0 }; goto next
    :: else
    fi;

    /* Data: own rows first, then the peers in any order. */
    if
    :: SENDS(_pid, _pid, k, e) -> store_data(_pid)
    :: else
    fi;
    atomic {
        s = 0; todo = 0;
        do
        :: s < N && s != _pid && SENDS(_pid, s, k, e) -> todo = todo | (1 << s); s++
        :: s < N && !(s != _pid && SENDS(_pid, s, k, e)) -> s++
        :: s == N -> s = 0; break
        od
    }
    do
    :: todo == 0 -> break
    :: todo != 0 ->
        atomic {
            if
            :: todo & 1 -> s = 0
            :: todo & 2 -> s = 1
            :: todo & 4 -> s = 2
            fi;
            todo = todo & (255 - (1 << s))
        }
        if
        :: e < 3 || READ(_pid, s, k, h) >= e - 2 -> store_data(s)
        :: ANYUNIT && EPOCH(UNIT(_pid, s, k, e)) == e && STATUS(UNIT(_pid, s, k, e)) == OK -> store_data(s)
        :: EPOCH(UNIT(_pid, s, k, e)) == e && STATUS(UNIT(_pid, s, k, e)) != OK -> skip
        :: EPOCH(UNIT(_pid, s, k, e)) == e && STATUS(UNIT(_pid, s, k, e)) == OK &&
           TAG(UNIT(_pid, s, k, e)) != otag[ME] -> skip
        fi;
        s = 0
    od;
    st = 0;
    if
    :: goto receive                             /* a call that sends and receives */
    :: atomic { e = 0; k = 0; h = 0 }; goto next        /* a hook, for later */
    fi;

receive:
    atomic { e = open[ME]; s = FIRST }
    /* All headers first, then the data. */
    do
    :: s >= N -> break
    :: atomic { s < N && ((got[ME] >> s) & 1) -> next_peer() }
    :: atomic { s < N && !((got[ME] >> s) & 1) && EPOCH(UNIT(_pid, s, k, e)) == e ->
            take_header(ME, UNIT(_pid, s, k, e)); next_peer() }
    od;
    s = 0;
    do
    :: s == N -> break
    :: atomic { s < N && (!SENDS(s, _pid, k, e) || ((silent[ME] >> s) & 1) || mism[ME]) ->
            if
            :: SENDS(s, _pid, k, e) -> need[PLACE(_pid, k, h, s)] = 0
            :: else
            fi;
            s++ }
    :: atomic { s < N && SENDS(s, _pid, k, e) && !((silent[ME] >> s) & 1) && !mism[ME] &&
            flag[PLACE(_pid, k, h, s)] == e ->
            assert(data[PLACE(_pid, k, h, s)] == e * 4 + s);            /* the right data */
            need[PLACE(_pid, k, h, s)] = 0; s++ }
    od;
    /* 'Read', unless stray data of a mismatched source may still come. */
    atomic {
        s = FIRST; x = 0;
        if
        :: mism[ME] -> unread[ME] = 1; s = N
        :: !mism[ME] && READWORD == 1 ->
            if
            :: e == upto[_pid * 2 + k] + 1 ->
                upto[_pid * 2 + k] = e;
                if
                :: later[_pid * 2 + k] == e + 1 -> upto[_pid * 2 + k] = e + 1
                :: else
                fi
            :: else -> later[_pid * 2 + k] = e
            fi;
            x = upto[_pid * 2 + k]
        :: else -> x = e
        fi
    }
    do
    :: s >= N -> break
    :: atomic { s < N -> READ(s, _pid, k, h) = x; next_peer() }
    od;
    atomic { open[ME] = 0; e = 0; k = 0; h = 0; s = 0; x = 0 }
    goto next;

done:
    skip
}
