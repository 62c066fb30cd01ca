/* SPDX-License-Identifier: Apache-2.0 */
/* What is typed wrong: it is named, nothing is done, and the exit code is 64. And -np, which is right. */
#include "shell.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void unknown_words_are_corrected(void **state)
{
    (void)state;
    shell_expect("$EXPAR bnech", 64, "", "did you mean 'bench'?");
    shell_expect("$EXPAR inf", 64, "", "did you mean 'info'?");
    shell_expect("$EXPAR dmeo", 64, "", "did you mean 'demo'?");
    shell_expect("$EXPAR runn", 64, "", "did you mean 'run'?");
    shell_expect("$EXPAR quantum", 64, "", "`expar --help` lists them");
    shell_expect("$EXPAR", 64, "", "which subcommand?");
    shell_expect("$EXPAR info surplus", 64, "", "'surplus' is not expected");
}

static void other_words_are_not_corrected(void **state)
{
    (void)state;
    static const char *const words[] = {
        "bin", "to", "in", "x", "mend", "fun-and-games", "beech-tree", "a-word-that-is-longer-than-any-subcommand"};
    char command[64];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(command, sizeof command, "$EXPAR %s", words[i]);
        shell_expect(command, 64, "", "`expar --help` lists them");
    }
}

/* As users of MPI's launchers type it, wherever ranks are counted, and wherever it stands. */
static void np_is_taken_as_n(void **state)
{
    (void)state;
    shell_expect("$EXPAR run -np 3 -- echo rank", 0, "[2] rank\n", "");
    shell_expect("$EXPAR run --no-prefix -np 2 echo -np 7", 0, "-np 7\n-np 7\n", "");
    shell_expect("$EXPAR info --json -np 6 --nodes 3", 0, "\"ranks\": 6", "");
    shell_expect("$EXPAR demo -np 2 --bytes 5 --json", 0, "\"ranks\": 2", "");
    shell_expect("$EXPAR bench dispatch -np 2 layout --tokens 4 --hidden 64 --topk 2 --experts 4 --iters 2 --json", 0,
                 "\"ranks\": 2", NULL);
    /* A value that only looks like it. */
    shell_expect("$EXPAR demo -n 1 --bytes 5 --json --prompt -np", 0, "\"text\": \"-np", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_words_are_corrected),
        cmocka_unit_test(other_words_are_not_corrected),
        cmocka_unit_test(np_is_taken_as_n),
    };
    return cmocka_run_group_tests(tests, shell_setup, shell_teardown);
}
