/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clean of low-latency masks: how the ranks that come agree on who they are (src/group/members.c).
 *
 * Each rank makes cleans until it has been in one of generation CLEANS. A generation is one more than the highest that
 * any rank of the decision has said, as epochs are. A rank that another waits for may be lost: at any time once it is
 * dead, and LOSSES times although it lives (it was stopped, or only slow). The word of a rank to another is there at
 * once (the sequence locks of clean.c make each word whole). But between one other and the next it may be
 * stopped, or die.
 *
 * Checked where nothing goes on any more, for each two that live, r and q. If q is in the view of r, one of these
 * holds:
 *   - q has come to a decision in the clean in which r has taken it, and is not in a clean that r does not come to.
 *     And r is in q's view of that decision and both go on from the same generation.
 *   - q has masked r since, and r finds that out.
 *
 *   spin -a OPTIONS clean.pml && cc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan -E -n -m100000
 *
 * Options (-DNAME=VALUE)
 *   N        ranks                                                           (default 3)
 *   CLEANS   generations                                                     (default 1)
 *   LOSSES   of ranks that live                                              (default 1)
 *   DEATHS   ranks that may die at any time                                  (default 0)
 *   TAKEOVER 1: a decision with this rank is taken over at any time of the clean, and by ranks in the view alone; 0: in
 *            steps alone, for the attempt that was taken of the rank that has decided              (default 1)
 *   VECTORS  1: views tell of each rank which attempt was taken, and have to be the same in that, too; 0: who is seen
 *            alone                                                           (default 1)
 *   ERAS     1: 'masked by me' carries the generation of who says it; 0: the number of its attempt  (default 0)
 */
#ifndef N
#define N 3
#endif
#ifndef CLEANS
#define CLEANS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef TAKEOVER
#define TAKEOVER 1
#endif
#ifndef VECTORS
#define VECTORS 1
#endif
#ifndef ERAS
#define ERAS 0
#endif
#define ALL ((1 << N) - 1)

/* At rank r, said by rank s. */
#define AT(r, s) ((r) * N + (s))
byte attempt[N * N];  /* of s, and the step of it: 1 it has come, from 2 on the number of its view */
byte step[N * N];
byte said[N * N];     /* its generation before */
byte views[N * N * N]; /* [r][s][m] the attempt of m that s has taken; 0: it does not see m */
#define VIEW(r, s, m) views[((r) * N + (s)) * N + (m)]
byte decided[N * N];  /* the attempt of s that has come to a decision; 0: none */
byte outcome[N * N];  /* generation of that */
byte members[N * N * N]; /* [r][s][m] the attempt of m in it; 0: m is not */
#define MEMBER(r, s, m) members[((r) * N + (s)) * N + (m)]
byte masker[N * N];

/* One for each rank, read by the others for checks alone. */
byte own[N];       /* view it goes on with */
byte with[N * N];  /* [r][m] the attempt of m in r's decision */
byte generation[N];
byte beginning[N]; /* attempt with which r's last clean has begun */
bit inside[N];     /* r is in a clean */
bit dead[N];
byte losses, deaths;

#define IN(set, r)   (((set) >> (r)) & 1)
#define A(r)         attempt[AT(_pid, r)]
#define S(r)         step[AT(_pid, r)]
#define D(r)         decided[AT(_pid, r)]
#define HAS_RESTARTED(r) (A(r) != taken[r])
#define ENDED(r)     (D(r) == A(r))
#if TAKEOVER
#define COMING(r)    (A(r) > seen[r] && S(r) >= 1 && !ENDED(r))
#else
#define COMING(r)    (A(r) > seen[r] && S(r) >= 1 && !(ENDED(r) && !MEMBER(_pid, r, _pid)))
#endif
#define CAME(r)      (!IN(iv, r) || (r) == _pid || taken[r] || COMING(r))
/* A decision in which this rank is, in this clean. */
#if TAKEOVER
#define FORME(r)     ((r) != _pid && IN(iv, r) && D(r) != 0 && MEMBER(_pid, r, _pid) >= beginning[_pid])
#else
#define FORME(r)     ((r) != _pid && IN(iv, r) && now >= 2 && taken[r] && D(r) == taken[r] && MEMBER(_pid, r, _pid))
#endif
#if TAKEOVER
#define AT_ONCE(r)   FORME(r)
#else
#define AT_ONCE(r)   false
#endif
#define HAS_DECIDED(r) (taken[r] && D(r) == taken[r])
#define VIEWED(r)    (!IN(iv, r) || (r) == _pid || S(r) >= now || HAS_RESTARTED(r) || HAS_DECIDED(r))
#define AHEAD(r)     ((r) != _pid && IN(iv, r) && (FORME(r) || HAS_DECIDED(r) || (!HAS_RESTARTED(r) && S(r) > now)))
#if N == 3
#define ANY(X) (X(0) || X(1) || X(2))
#define EACH(X) (X(0) && X(1) && X(2))
#else
#define ANY(X) (X(0) || X(1) || X(2) || X(3))
#define EACH(X) (X(0) && X(1) && X(2) && X(3))
#endif

inline take(r) {
    taken[r] = A(r);
    kept[r] = said[AT(_pid, r)];
    printf("rank %d takes attempt %d of %d\n", _pid, taken[r], r)
}

#define MAY_LOSE(r) ((r) != _pid && IN(iv, r) && (dead[r] || losses < LOSSES))
inline be_left_out(r) {
    again = 1;
    seen[r] = taken[r];
    printf("rank %d is left out by %d\n", _pid, r)
}

inline lose(r) {
    if
    :: !dead[r] -> losses++
    :: else
    fi;
    iv = iv & ~(1 << r);
    printf("rank %d loses %d\n", _pid, r)
}

inline take_decision(r) {
    now = 100;
    iv = 0;
    m = 0;
    do
    :: m < N ->
        with[AT(_pid, m)] = MEMBER(_pid, r, m);
        if
        :: MEMBER(_pid, r, m) -> iv = iv | (1 << m)
        :: else
        fi;
        m++
    :: m == N -> break
    od;
    gen = outcome[AT(_pid, r)];
    printf("rank %d takes over the decision of %d for %d, generation %d\n", _pid, r, iv, gen);
    m = 0
}

active [N] proctype rank() {
    byte iv, now, r, m, gen, mine, old;
    byte taken[N], kept[N], seen[N]; /* kept: the generation said with the attempt that was taken */
    bit again, same;

    do
    :: generation[_pid] >= CLEANS -> break
    :: else ->
        atomic { inside[_pid] = 1; mine = attempt[AT(_pid, _pid)]; beginning[_pid] = mine + 1; now = 0 }
        /* ---- attempts */
        do
        :: now == 100 -> break
        :: else ->
            d_step {
                mine++; now = 1; printf("rank %d comes, attempt %d\n", _pid, mine); again = 0; iv = ALL; r = 0;
                do
                :: r < N -> taken[r] = 0; kept[r] = 0; r++
                :: r == N -> break
                od;
                r = 0
            }
            do
            :: atomic {
                r < N ->
                attempt[AT(r, _pid)] = mine; step[AT(r, _pid)] = 1; said[AT(r, _pid)] = generation[_pid]; r++ }
            :: atomic { deaths < DEATHS -> deaths++; dead[_pid] = 1 }; goto over
            :: atomic { r == N -> r = 0; take(_pid); break }
            od;
            /* ---- steps */
            do
            :: now == 100 || again -> break
            :: else ->
                do
                :: atomic { ANY(AT_ONCE) ->
                    r = 0;
                    do
                    :: AT_ONCE(r) -> break
                    :: else -> r++
                    od;
                    take_decision(r); r = 0; break }
                :: atomic { !ANY(AT_ONCE) && EACH(CAME) ->
                    r = 0;
                    do
                    :: r < N ->
                        if
                        :: IN(iv, r) && r != _pid && !taken[r] -> take(r)
                        :: else
                        fi;
                        r++
                    :: r == N -> break
                    od;
                    r = 0; break }
                :: atomic { !taken[0] && COMING(0) && !EACH(CAME) -> take(0) }
                :: atomic { !taken[1] && COMING(1) && !EACH(CAME) -> take(1) }
                :: atomic { !taken[2] && COMING(2) && !EACH(CAME) -> take(2) }
#if N > 3
                :: atomic { !taken[3] && COMING(3) && !EACH(CAME) -> take(3) }
                :: atomic { !CAME(3) && MAY_LOSE(3) -> lose(3) }
#endif
                :: atomic { !CAME(0) && MAY_LOSE(0) -> lose(0) }
                :: atomic { !CAME(1) && MAY_LOSE(1) -> lose(1) }
                :: atomic { !CAME(2) && MAY_LOSE(2) -> lose(2) }
                od;
                if
                :: now == 100 -> break
                :: else
                fi;
                /* ---- this rank's view */
                atomic { now++; old = iv; r = 0; printf("rank %d sees %d in step %d\n", _pid, old, now) }
                do
                :: atomic {
                    r < N ->
                    m = 0;
                    do
                    :: m < N -> VIEW(r, _pid, m) = (IN(old, m) -> taken[m] : 0); m++
                    :: m == N -> break
                    od;
                    m = 0; step[AT(r, _pid)] = now; r++ }
                :: atomic { deaths < DEATHS -> deaths++; dead[_pid] = 1 }; goto over
                :: atomic { r == N -> r = 0; break }
                od;
                /* ---- those of others */
                do
                :: atomic { ANY(AHEAD) || EACH(VIEWED) -> break }
                :: atomic { !VIEWED(0) && MAY_LOSE(0) -> lose(0) }
                :: atomic { !VIEWED(1) && MAY_LOSE(1) -> lose(1) }
                :: atomic { !VIEWED(2) && MAY_LOSE(2) -> lose(2) }
#if N > 3
                :: atomic { !VIEWED(3) && MAY_LOSE(3) -> lose(3) }
#endif
                od;
                same = 1;
                do
                :: atomic { r < N && now != 100 && !again ->
                    if
                    :: FORME(r) -> take_decision(r)
                    :: else ->
                        if
                        :: r != _pid && IN(iv, r) && HAS_DECIDED(r) && !FORME(r) -> be_left_out(r)
                        :: else
                        fi
                    fi;
                    r++ }
                :: atomic { r == N || now == 100 || again -> r = 0; break }
                od;
                do
                :: atomic { r < N && now != 100 && !again ->
                    if
                    :: r == _pid || !IN(old, r)
                    :: r != _pid && IN(old, r) && !IN(iv, r) -> same = 0
                    :: r != _pid && IN(old, r) && IN(iv, r) ->
                        if
                        :: HAS_RESTARTED(r) || S(r) < now -> same = 0
                        :: !HAS_RESTARTED(r) && S(r) >= now ->
                            if
                            :: VIEW(_pid, r, _pid) == 0 -> be_left_out(r)
                            :: else ->
                                m = 0;
                                do
                                :: m < N ->
                                    if
                                    :: VIEW(_pid, r, m) == 0 -> iv = iv & ~(1 << m)
                                    :: else
                                    fi;
                                    same = same && (VECTORS -> VIEW(_pid, r, m) == (IN(old, m) -> taken[m] : 0)
                                                             : (VIEW(_pid, r, m) != 0) == IN(old, m));
                                    m++
                                :: m == N -> break
                                od;
                                m = 0; same = same && S(r) == now
                            fi
                        fi
                    fi;
                    r++ }
                :: atomic { r == N || now == 100 || again -> r = 0; break }
                od;
                atomic {
                    if
                    :: now != 100 && !again && same ->
                        now = 100; gen = 0; r = 0;
                        do
                        :: r < N ->
                            with[AT(_pid, r)] = (IN(iv, r) -> taken[r] : 0);
                            if
                            :: IN(iv, r) && kept[r] >= gen -> gen = kept[r] + 1
                            :: else
                            fi;
                            r++
                        :: r == N -> break
                        od
                    :: now != 100 && !again && !same ->
                        r = 0;
                        do
                        :: r < N ->
                            if
                            :: r != _pid && IN(iv, r) && HAS_RESTARTED(r) && D(r) != taken[r] -> taken[r] = 0
                            :: else
                            fi;
                            r++
                        :: r == N -> break
                        od
                    :: else
                    fi;
                    r = 0; same = 0
                }
            od
        od;
        printf("rank %d decides for %d, generation %d\n", _pid, iv, gen);
        /* ---- the decision */
        do
        :: atomic {
            r < N ->
            m = 0;
            do
            :: m < N -> MEMBER(r, _pid, m) = with[AT(_pid, m)]; m++
            :: m == N -> break
            od;
            m = 0; outcome[AT(r, _pid)] = gen; decided[AT(r, _pid)] = mine;
            printf("rank %d tells %d\n", _pid, r);
            r++ }
        :: atomic { deaths < DEATHS -> deaths++; dead[_pid] = 1 }; goto over
        :: atomic { r == N -> r = 0; break }
        od;
        atomic {
            own[_pid] = iv; generation[_pid] = gen; gen = 0; now = 0; old = 0; inside[_pid] = 0; again = 0;
            do
            :: r < N ->
                if
                :: IN(iv, r) ->
                    seen[r] = (TAKEOVER -> (with[AT(_pid, r)] > seen[r] -> with[AT(_pid, r)] : seen[r]) : taken[r])
                :: else ->
                    masker[AT(r, _pid)] = (ERAS -> generation[_pid] : mine) + 1
                fi;
                taken[r] = 0; kept[r] = 0; r++
            :: r == N -> break
            od;
            r = 0; iv = 0
        }
    od;
over:
    skip
}

#define TELLS(r, q) (ERAS -> masker[AT(r, q)] > generation[r] : masker[AT(r, q)] > with[AT(r, q)])

/* Nothing goes on any more. */
active proctype judge() {
    byte r, q;
    timeout ->
    atomic {
        do
        :: r == N -> break
        :: r < N && (dead[r] || inside[r]) -> r++; q = 0
        :: r < N && !dead[r] && !inside[r] ->
            q = 0;
            do
            :: q == N -> break
            :: q < N ->
                if
                :: q != r && !dead[q] && IN(own[r], q) ->
                    if
                    :: TELLS(r, q)
                    :: else ->
                        assert(!inside[q]);
                        assert(IN(own[q], r));
                        assert(generation[q] == generation[r])
                    fi
                :: else
                fi;
                q++
            od;
            r++
        od;
#if LOSSES == 0 && DEATHS == 0
        r = 0;
        do
        :: r < N -> assert(!inside[r] && own[r] == ALL && generation[r] == CLEANS); r++
        :: r == N -> break
        od
#endif
    }
}
