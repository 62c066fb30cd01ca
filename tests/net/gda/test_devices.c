/* SPDX-License-Identifier: Apache-2.0 */
/* Why no device can be used: each reason has its text. The libraries are those of LD_LIBRARY_PATH (fake_verbs.c).
 * usage: test_gda_devices CASE */
#include "net/gda/devx/devx.h"

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
    {"command", "gda: mlx5_7: mlx5dv_devx_general_cmd failed (Remote I/O error, syndrome 0x1234) when it was asked for "
                "its capabilities"},
    {"cqe_version", "gda: mlx5_7: cqe_version is 0, expected 1: its firmware is too old"},
    {"overrun", "gda: mlx5_7: completion queues cannot ignore overruns (cq_oi): its firmware is too old"},
    {"no_atomics", "gda: mlx5_7: it has no atomics"},
    {"shallow", "gda: mlx5_7: queues have at most 2^9 blocks and 2^15 completions; EXPAR_GDA_QUEUE_DEPTH is 1024"},
    {"extended", "gda: mlx5_7: it has no masked atomics of 4 and 8 bytes (operations 0x3, sizes 0xc)"},
    {"sizes", "gda: mlx5_7: it has no masked atomics of 4 and 8 bytes (operations 0xf, sizes 0x8)"},
    {"port", "gda: mlx5_7: ibv_query_port failed for port 1 (Invalid argument)"},
    {"down", "gda: mlx5_7: port 1 is down (state 1, expected 4, active)"},
    {"no_gid", "gda: mlx5_7: port 1 has not a GID of RoCE v2 among its 4"},
    {"roce_v1", "gda: mlx5_7: port 1 has not a GID of RoCE v2 among its 4"},
    {"infiniband", "gda: mlx5_7: it is fit, and EXPAR_GDA_NIC=device uses it"},
    {"two",
     "gda: mlx5_7: port 1 is down (state 1, expected 4, active); mlx5_8: it is fit, and EXPAR_GDA_NIC=device uses it"},
    {"other", "gda: none of 1 RDMA devices is an mlx5 device (ConnectX, BlueField)"},
    {"locked", "gda: mlx5_7: it cannot be opened with devx (Operation not permitted); the kernel's mlx5 driver needs "
               "devx, and the user needs the right to it"},
    {"open", "gda: mlx5_7: it is fit, and EXPAR_GDA_NIC=device uses it; that has not run on a real device yet"},
    {"old", "gda: libmlx5 has no mlx5dv_open_device; rdma-core 34 or later is expected"},
    {"no_verbs", "gda: cannot open libibverbs.so.1 ("},
    {"no_mlx5", "gda: cannot open libmlx5.so.1 ("},
};

/* Without EXPAR_GDA_NIC=device no device is used. */
static expar_status reject(const gda_options *options)
{
    const devx_place place = {.numa_node = -1};
    gda_device *device = NULL;
    expar_status status = gda_devx_open(options, &place, 1, &device);
    assert_null(device);
    return status;
}

/* With the libraries of this host, if it has them: all functions are there. */
static void test_real(void **state)
{
    (void)state;
    const gda_options options = {.depth = 1024, .gid_index = -1};
    if (strcmp(asked, "real") != 0) return;
    assert_int_equal(reject(&options), EXPAR_ERR_UNSUPPORTED);
    if (strstr(expar_last_error(), " has no ibv_") || strstr(expar_last_error(), " has no mlx5dv_") ||
        strstr(expar_last_error(), " has no _ibv_"))
        fail_msg("%s", expar_last_error());
}

static void test_reason(void **state)
{
    (void)state;
    if (strcmp(asked, "real") == 0) return;
    for (size_t i = 0; i < ARRAY_LENGTH(cases); i++) {
        if (strcmp(cases[i].name, asked) != 0) continue;
        for (int turn = 0; turn < 2; turn++) {
            const gda_options options = {.depth = 1024, .gid_index = -1};
            assert_int_equal(reject(&options), EXPAR_ERR_UNSUPPORTED);
            if (!strstr(expar_last_error(), cases[i].text))
                fail_msg("'%s' without '%s'", expar_last_error(), cases[i].text);
        }
        return;
    }
    fail_msg("no case is called '%s'", asked);
}

/* Options name a device that is not there, and GIDs that are not. */
static void test_options(void **state)
{
    static const struct {
        gda_options options;
        const char *text;
    } wrong[] = {
        {{.depth = 1024, .gid_index = -1, .devices = "mlx5_70,mlx5_"},
         "gda: EXPAR_GDA_DEVICES=mlx5_70,mlx5_ names none of the 1 mlx5 devices here"},
        {{.depth = 1024, .gid_index = 0},
         "gda: mlx5_7: port 1 has not a GID of RoCE v2 at index 0 (EXPAR_GDA_GID_INDEX)"},
        {{.depth = 1024, .gid_index = 4}, "gda: mlx5_7: port 1 has not a GID of RoCE v2 at index 4"},
        {{.depth = 1024, .gid_index = 3, .devices = "mlx5_0,mlx5_7"},
         "gda: mlx5_7: it is fit, and EXPAR_GDA_NIC=device uses it"},
    };
    (void)state;
    if (strcmp(asked, "open") != 0) return;
    for (size_t i = 0; i < ARRAY_LENGTH(wrong); i++) {
        assert_int_equal(reject(&wrong[i].options), EXPAR_ERR_UNSUPPORTED);
        if (!strstr(expar_last_error(), wrong[i].text))
            fail_msg("'%s' without '%s'", expar_last_error(), wrong[i].text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reason), cmocka_unit_test(test_options),
                                       cmocka_unit_test(test_real)};
    asked = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
