/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: rank 1 of 3 makes one call with one wrong argument, the others make it right.
 *
 * Asserted each time: rank 1 gets the status, and a text with the words. The others get EXPAR_ERR_REMOTE with the rank,
 * the status and the argument. Nothing was written. After it a dispatch with its combine, and a combine with a handle
 * from before, give the oracle's bytes on the same buffer. */
#ifndef TESTS_EP_HARNESS_REJECTION_H
#define TESTS_EP_HARNESS_REJECTION_H

#include "ep/harness/setting.h"
#include "ep/harness/stage.h"
#include "oracle/unit.h"

#define REJECTION_RANK  1
#define REJECTION_WORDS 6

/* The means of a spoiler. */
typedef struct rejection_scene {
    const stage *stage;
    const traffic *traffic;
    const expar_ep_handle *handle; /* of an earlier dispatch of the same traffic */
} rejection_scene;

typedef struct rejection_case {
    const char *name;
    expar_status status;
    const char *words[REJECTION_WORDS]; /* in the text; the first names the argument */
    /* One of: a member of the arguments gets a value; changes the arguments of the call; or makes the whole call. */
    arg_setting set;
    void (*spoil_dispatch)(expar_ep_dispatch_args *args, const rejection_scene *scene);
    void (*spoil_combine)(expar_ep_combine_args *args, const rejection_scene *scene);
    void (*spoil_route)(expar_ep_route_args *args, const rejection_scene *scene);
    expar_status (*call)(const rejection_scene *scene);
    bool is_combine, is_route; /* of `set` and `call`: what the other ranks call, if no dispatch */
} rejection_case;

/* A case named for the function that spoils its call; words follow the status. */
#define REJECTION_DISPATCH(function, expected, ...)                                                                    \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_dispatch = function                      \
    }
#define REJECTION_COMBINE(function, expected, ...)                                                                     \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_combine = function                       \
    }
#define REJECTION_ROUTE(function, expected, ...)                                                                       \
    {                                                                                                                  \
        .name = #function, .status = expected, .words = {__VA_ARGS__}, .spoil_route = function                         \
    }

/* A case of that name: one member of the arguments gets the value (setting.h). */
#define REJECTION_SET_DISPATCH(test, member, value, expected, ...)                                                     \
    {                                                                                                                  \
        .name = #test, .status = expected, .words = {__VA_ARGS__},                                                     \
        .set = SETTING(expar_ep_dispatch_args, member, value)                                                          \
    }
#define REJECTION_SET_COMBINE(test, member, value, expected, ...)                                                      \
    {                                                                                                                  \
        .name = #test, .status = expected, .words = {__VA_ARGS__},                                                     \
        .set = SETTING(expar_ep_combine_args, member, value), .is_combine = true                                       \
    }
#define REJECTION_SET_ROUTE(test, member, value, expected, ...)                                                        \
    {                                                                                                                  \
        .name = #test, .status = expected, .words = {__VA_ARGS__}, .set = SETTING(expar_ep_route_args, member, value), \
        .is_route = true                                                                                               \
    }

/* An event that has been destroyed. */
expar_event *rejection_event_gone(void);
/* The body of a test whose initial state is the case. */
void rejection_test(void **state);
/* Runs all cases as tests of their names. */
int rejection_run(const char *program, const rejection_case *cases, size_t count);

#endif
