/* SPDX-License-Identifier: Apache-2.0 */
/* Reading arguments by argp, with support for -np. */
#include "arguments.h"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct reading {
    argp_parser_t parser; /* the subcommand's */
    void *input;
};

/* getopt reads -np as -n with the value "p". `-n p` is two arguments, and is not changed. */
static bool is_np(const struct argp_state *state, int key, const char *value)
{
    return key == 'n' && !strcmp(value, "p") && !strcmp(state->argv[state->next - 1], "-np");
}

/* Calls the subcommand's parser, after looking up the value of -np among the arguments. */
static error_t read_one(int key, char *value, struct argp_state *state)
{
    const struct reading *reading = state->input;
    if (is_np(state, key, value)) {
        if (state->next >= state->argc) argp_error(state, "option requires an argument -- 'np'");
        value = state->argv[state->next++];
    }
    state->input = reading->input; /* argp sets it anew before each call */
    return reading->parser(key, value, state);
}

error_t arguments_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input)
{
    struct reading reading = {.parser = argp->parser, .input = input};
    struct argp with_np = *argp;
    with_np.parser = read_one;
    return argp_parse(&with_np, argc, argv, flags, NULL, &reading);
}
