/* SPDX-License-Identifier: Apache-2.0 */
/* Histories on which weaker protocols break. All but one were found by spin in a weakened model of the protocol of
 * headers, acknowledgements and slots; the weakening stands above each. The calls that follow the crucial one show its
 * harm. Each is run with the ranks that stop doing so at every step in turn. */
#include "ep/low_latency/history.h"
#include "oracle/unit.h"

/* Steps of a call's send, and more. */
#define MOST_STEPS 16

static const history histories[] = {
    /* Headers are kept twice, not four times: rank 1's third comes over its first, which rank 0 has not read. */
    {"two copies of units", 2, "D0:.. D0:.. D0:..", "1s0h 0s0h 1e0 1s1h 1s2h+ 0e0 0s1h 0e1 0s2h 0e2 1e1 1e2"},
    /* Headers are kept three times: after a rejection, which waits for nobody, the fourth comes over the first. */
    {"three copies of units, and a refusal", 2, "D0:.. D0:.. D0:RA D0:..",
     "1s0h 0s0h 1e0 1s1h 0s1h 1e1 1s2 1s3h+ 0e0 0e1 0s2 0s3h 0e3 1e3"},
    /* Headers are kept three times: the same after a third call. */
    {"three copies of units, and a third call", 2, "D0:.. D0:.. D0:RS D0:..",
     "1s0h 1s1h 1e1+ 0s0h 0s1h 1s2 1s3h+ 0e0 0e1 0s2 0s3h 1e0 1e3 0e3"},
    /* One acknowledgement a kind, in which each receive stores its epoch: rank 0 reads its second call before its
       first. Rank 1 then takes the first one's slot for free. */
    {"one read word a kind", 2, "D0:.. D0:.. D0:..", "1s0h 0s0h 1e0 1s1h 1s2h+ 0s1h 0e1 1w 0e0 0s2h 0e2 1e1 1e2"},
    /* One acknowledgement a kind, stored once all calls before have been read. A rejected call never is, so rank 1 says
       of no later slot that it is free. Rank 0's last send waits for rank 1 to come, which comes after it. Nothing is
       lost by that: spin, too, finds neither a lost row nor a deadlock of ranks that make all their calls. */
    {"one read word a kind, in the order of calls", 2, "D0:.. D0:RA D0:.. D0:.. D0:..",
     "1s0h 0s0h 1e0 0e0 1s1 0s1 1s2h 0s2h 1e2 0e2 1s3h 0s3h 1e3 0e3 0s4h 1s4h 0e4 1e4"},
    /* A send after a call that was not read waits for nobody: third calls run ahead of four copies. */
    {"no waiting behind third calls", 2, "D0:.. D0:.. D0:RS D0:RS D0:RS D0:..",
     "1s0h 1s1h 1s2+ 1s3+ 1s4+ 0s0h 0s1h 0e0 0e1 0s2 0s3 0s4 1e0 1e1 0s5h+ 1s5h 0e5 1e5"},
    /* Likewise after a rejection: rank 1's fifth header comes over its first. */
    {"no waiting behind a refusal", 2, "D0:.. D0:.. D0:RA D0:.. D0:..",
     "1s0h 0s0h 1e0 1s1h 0s1h 1e1 1s2 1s3h+ 0e1 1w 1s4h+ 0e0 0s2 0s3h 0s4h 0e3 0e4 1e3 1e4"},
    /* Likewise after a mismatch: rank 0's stray row of the first combine comes over the third one's, whose rows rank 1
       puts into the same places. */
    {"no waiting behind a mismatch", 2, "D1:.. D2:.. C0:MM C1:.. C1:..",
     "0s0+ 1s0 0s1+ 1s1 1s2h 0s2h+@ 1e2+ 1s3h+ 1s4h+ 1w 0e2 0s3h 0s4h 0e3 0e4 1e3 1e4"},
    /* After a rejection a send waits for the headers of the rejected call, and not of the next one. Rank 0 has said
       that it is in the first combine, but its rows are still to come. */
    {"waiting for too little behind a refusal", 2, "D1:.. D2:.. C0:RA C1:.. C1:..",
     "0s0+ 1s0 0s1+ 1s1 1s2 1s3h 1s4h+ 0s2h+@ 1w 0e2 0s3h 0s4h 0e3 0e4 1e3 1e4"},
    /* A rejected call stores its acknowledgements at once: rank 0 takes rank 1's places for free, while rank 2's rows
       of the first combine are still to come there. */
    {"a refused call reads", 3, "D1:... D2:... C0:RAR C1:... C1:...",
     "0s0+ 1s0+ 2s0 0s1+ 1s1+ 2s1 2s2h+@ 1s2 1s3h+ 1s4h+ 0s2h+ 0e2+ 0s3h+ 0s4h+ 0w 1w 2e2 2s3h 2s4h 0e3 0e4 1e3 1e4 "
     "2e3 "
     "2e4"},
    /* Data wait for the acknowledgement alone, which a rejected call does not store: both wait for ever. */
    {"units that tell nothing of a half, and a refusal", 2, "D0:RA D0:.. D0:..",
     "1s0 1s1h 1s2h+ 0s0 0s1h 0s2h+ 0e2+ 1e2 0e1 1e1"},
    /* Likewise after a mismatch. */
    {"units that tell nothing of a half, and a mismatch", 2, "D0:MM D0:.. D0:..",
     "1s0h 0s0h 1e0 1s1h 1s2h+ 0e0 0s1h 0s2h+ 1e1 1e2 0e1 0e2"},
    /* Likewise after third calls. */
    {"units that tell nothing of a half, and third calls", 2, "D0:.. D0:.. D0:SS D0:SS D0:..",
     "1s0h 1s1h 1s2+ 0s0h 0s1h 1s3+ 0s2 1e0+ 1s4h+ 0s3 0e0 0s4h+ 0e4 1e4 0e1 1e1"},
};

static void test_history(void **state)
{
    const history *h = *state;
    for (int32_t stop = 1; stop <= MOST_STEPS; stop++)
        assert_true(history_trial(h, stop));
}

int main(void)
{
    enum { COUNT = sizeof histories / sizeof *histories };
    struct CMUnitTest tests[COUNT];
    for (int i = 0; i < COUNT; i++)
        tests[i] = (struct CMUnitTest){
            .name = histories[i].name, .test_func = test_history, .initial_state = (void *)(uintptr_t)&histories[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
