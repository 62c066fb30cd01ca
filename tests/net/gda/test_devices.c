/* SPDX-License-Identifier: Apache-2.0 */
/* Why no device can be used: each reason has its text. The libraries are those of LD_LIBRARY_PATH (fake_verbs.c).
 * usage: test_gda_devices CASE */
#include "net/gda/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *asked;

static const struct {
    const char *name, *text;
} cases[] = {
    {"none", "gda: this host has no RDMA device; EXPAR_GDA_NIC=software runs gda on a software NIC"},
    {"other", "gda: none of 1 RDMA devices is an mlx5 device (ConnectX, BlueField)"},
    {"locked",
     "gda: device mlx5_7 cannot be opened with devx (Operation not permitted); the kernel's mlx5 driver needs "
     "devx, and the user needs the right to it"},
    {"open", "gda: device mlx5_7 is there, but this version sets up no queues on devices; EXPAR_GDA_NIC=software runs "
             "gda on a software NIC"},
    {"old", "gda: libmlx5 has no mlx5dv_open_device; rdma-core 27 or later is expected"},
    {"no_verbs", "gda: cannot open libibverbs.so.1 ("},
    {"no_mlx5", "gda: cannot open libmlx5.so.1 ("},
};

static void test_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        if (strcmp(cases[i].name, asked) != 0) continue;
        for (int turn = 0; turn < 2; turn++) {
            assert_int_equal(gda_devices_reject(), EXPAR_ERR_UNSUPPORTED);
            if (!strstr(expar_last_error(), cases[i].text))
                fail_msg("'%s' without '%s'", expar_last_error(), cases[i].text);
        }
        return;
    }
    fail_msg("no case is called '%s'", asked);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reason)};
    asked = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
