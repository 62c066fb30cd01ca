/* SPDX-License-Identifier: Apache-2.0 */
/* Reading arguments by argp, with the common options, and with support for -np. */
#include "arguments.h"
#include "base/shown.h"
#include "colour.h"
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { KEY_COLOR = 1 };

const struct argp_option arguments_common[] = {
    {"color", KEY_COLOR, "WHEN", 0, "Colour: auto (default: on a terminal, unless NO_COLOR is set), always, or never",
     -1},
    {0},
};

static error_t read_common(int key, char *value, struct argp_state *state)
{
    if (key != KEY_COLOR) return ARGP_ERR_UNKNOWN;
    if (!colour_choose(value)) argp_error(state, "--color '%s': one of auto|always|never is expected", SHOWN(value));
    return 0;
}

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
    static const struct argp common = {.options = arguments_common, .parser = read_common};
    static const struct argp_child children[] = {{.argp = &common}, {0}};
    struct reading reading = {.parser = argp->parser, .input = input};
    struct argp with_np = *argp;
    with_np.parser = read_one;
    with_np.children = children;
    return argp_parse(&with_np, argc, argv, flags, NULL, &reading);
}
