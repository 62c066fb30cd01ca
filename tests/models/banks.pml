/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The double buffer of low-latency dispatches: where a source's messages lie at a receiver (bank_choose, bank_is_free
 * in src/exec/cpu/low_latency/dispatch.c).
 *
 * Two ranks make dispatches, each to the other and to itself, of one message. Two may be open at a time; hooks are
 * called in any order. Parities alternate, and say who may send: data of epoch e wait for the peer's acknowledgement of
 * e - 2, or for its message header of e. The source chooses one of two slots for a message: it may want either, and
 * takes the other one if that is not free. The flag names the slot.
 *
 * Checked: no message is written over before its receiver, which has made that call or will, has read it; and each
 * receive reads the message of its own epoch.
 *
 *   spin -a OPTIONS banks.pml && cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -E -n -m200000
 *
 * Options (-DNAME=VALUE)
 *   CALLS    calls of each rank                                                          (default 4)
 *   REFUSE   so many of them are refused, any call of any rank                           (default 0)
 *   STATES   1: a rank may make a call while its half is open, which is refused           (default 0)
 *   RULE     0: as it is; 1: there is one bank; 2: the bank that is wanted is taken; 3: only a read word says that a
 *            bank is free                                                                 (default 0)
 *   WANTS    2: any bank; 0: always the one of the last dispatch; 1: always the other one  (default 2)
 */
#ifndef CALLS
#define CALLS 4
#endif
#ifndef REFUSE
#define REFUSE 0
#endif
#ifndef STATES
#define STATES 0
#endif
#ifndef RULE
#define RULE 0
#endif
#ifndef WANTS
#define WANTS 2
#endif

#define OK      0
#define REFUSED 1

/* At rank r, written by rank s: message headers (epoch * 2 + status), kept four times; acknowledgements by parity;
   flags by parity (epoch * 2 + slot); messages by slot (epoch). */
#define AT(r, s) ((r) * 2 + (s))
byte unit[2 * 2 * 4];
#define UNIT(r, s, e) unit[AT(r, s) * 4 + (e) % 4]
#define HAS_UNIT(r, s, e) ((UNIT(r, s, e) >> 1) == (e))
byte readw[2 * 2 * 2];
#define READ(r, s, h) readw[AT(r, s) * 2 + (h)]
byte flag[2 * 2 * 2];
#define FLAG(r, s, h) flag[AT(r, s) * 2 + (h)]
byte message[2 * 2 * 2];
#define MESSAGE(r, s, b) message[AT(r, s) * 2 + (b)]

/* For each rank: its last epoch, and the last dispatch to each slot of each receiver. By parity: the open call, whose
   headers are known, which messages were read, and whether the last call was not read. */
byte epoch[2];
byte open[2 * 2];
#define OPEN(r, h) open[(r) * 2 + (h)]
byte got[2 * 2];  /* 1: the peer's header came; 2: and it rejects */
#define GOT(r, h) got[(r) * 2 + (h)]
byte taken[2 * 2];
#define TAKEN(r, h) taken[(r) * 2 + (h)]
bit unread[2 * 2];
#define UNREAD(r, h) unread[(r) * 2 + (h)]
byte last[2 * 2 * 2];
#define LAST(r, p, b) last[AT(r, p) * 2 + (b)]
byte refusals = REFUSE;

#define PEER (1 - _pid)
/* Rank r has still to read what source s has sent in epoch e. */
#define WANTED(r, s, e) \
    ((e) != 0 && (epoch[r] < (e) || (OPEN(r, (e) & 1) == (e) && !((TAKEN(r, (e) & 1) >> (s)) & 1))))

#define OTHER_OF_HALF(p, b) \
    (LAST(_pid, p, 1 - (b)) > LAST(_pid, p, b) && ((LAST(_pid, p, 1 - (b)) ^ LAST(_pid, p, b)) & 1) == 0)
#define WAS_READ(p, b) \
    ((p) == _pid -> OPEN(_pid, LAST(_pid, p, b) & 1) != LAST(_pid, p, b) \
                  : READ(_pid, p, LAST(_pid, p, b) & 1) == LAST(_pid, p, b))
#if RULE == 3
#define FREE(p, b) (LAST(_pid, p, b) == 0 || WAS_READ(p, b))
#else
#define FREE(p, b) (LAST(_pid, p, b) == 0 || ((LAST(_pid, p, b) ^ e) & 1) == 0 || OTHER_OF_HALF(p, b) || WAS_READ(p, b))
#endif

/* The credit of p has come. */
inline send_message(p) {
    atomic {
        b = (LAST(_pid, p, 1) > LAST(_pid, p, 0));
        if
        :: WANTS != 1 -> skip
        :: WANTS != 0 -> b = 1 - b
        fi;
        if
        :: RULE == 1 -> b = 0
        :: RULE != 1 && RULE != 2 && !FREE(p, b) -> b = 1 - b
        :: else
        fi;
        LAST(_pid, p, b) = e;
        assert(!WANTED(p, _pid, MESSAGE(p, _pid, b)));
        MESSAGE(p, _pid, b) = e
    }
    atomic { FLAG(p, _pid, h) = e * 2 + b; b = 0 }
}

inline take_message(s) {
    atomic {
        FLAG(_pid, s, h) >> 1 == e ->
        assert(MESSAGE(_pid, s, FLAG(_pid, s, h) & 1) == e);
        TAKEN(_pid, h) = TAKEN(_pid, h) | (1 << s)
    }
}

inline take_header() {
    GOT(_pid, h) = (UNIT(_pid, PEER, OPEN(_pid, h)) & 1 -> 2 : 1)
}

active [2] proctype rank() {
    byte e, h, b, status;

next:
    do
    :: atomic { epoch[_pid] < CALLS && (STATES || OPEN(_pid, (epoch[_pid] + 1) & 1) == 0) ->
           e = epoch[_pid] + 1; h = e & 1 };
       goto send
    :: atomic { OPEN(_pid, 0) != 0 -> h = 0 }; goto receive
    :: atomic { OPEN(_pid, 1) != 0 -> h = 1 }; goto receive
    :: epoch[_pid] == CALLS && OPEN(_pid, 0) == 0 && OPEN(_pid, 1) == 0 -> goto done
    od;

send:
    /* A half whose last call was not read here says nothing of where the peer is. */
    if
    :: OPEN(_pid, h) != 0 || UNREAD(_pid, h) ->
        atomic { HAS_UNIT(_pid, PEER, e - 1) ->
            if
            :: OPEN(_pid, h) != 0 && GOT(_pid, h) == 0 -> take_header()
            :: else
            fi }
    :: else
    fi;
    atomic {
        epoch[_pid] = e;
        if
        :: OPEN(_pid, h) != 0 -> status = REFUSED
        :: OPEN(_pid, h) == 0 -> status = OK
        :: OPEN(_pid, h) == 0 && refusals > 0 -> refusals--; status = REFUSED
        fi;
        UNREAD(_pid, h) = status;
        if
        :: status == OK -> OPEN(_pid, h) = e; GOT(_pid, h) = 0; TAKEN(_pid, h) = 0
        :: else
        fi
    }
    UNIT(PEER, _pid, e) = e * 2 + status;
    if
    :: status == REFUSED -> atomic { status = 0; e = 0; h = 0 }; goto next
    :: else
    fi;
    send_message(_pid);
    if
    :: e < 3 || READ(_pid, PEER, h) == e - 2 || (HAS_UNIT(_pid, PEER, e) && (UNIT(_pid, PEER, e) & 1) == OK) ->
        send_message(PEER)
    :: HAS_UNIT(_pid, PEER, e) && (UNIT(_pid, PEER, e) & 1) != OK
    fi;
    if
    :: goto receive
    :: atomic { e = 0; h = 0 }; goto next /* a hook, for later */
    fi;

receive:
    e = OPEN(_pid, h);
    if
    :: GOT(_pid, h) != 0
    :: atomic { GOT(_pid, h) == 0 && HAS_UNIT(_pid, PEER, e) -> take_header() }
    fi;
    take_message(_pid);
    if
    :: GOT(_pid, h) == 1 -> take_message(PEER)
    :: else
    fi;
    READ(PEER, _pid, h) = e;
    atomic { OPEN(_pid, h) = 0; e = 0; h = 0 }
    goto next;

done:
    skip
}
