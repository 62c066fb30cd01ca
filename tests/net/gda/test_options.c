/* SPDX-License-Identifier: Apache-2.0 */
/* The variables EXPAR_GDA_*: bounds, words, and the text of each rejection. */
#include "net/gda/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static gda_options with(const char *name, const char *text)
{
    gda_options o = {0};
    setenv(name, text, 1);
    if (gda_options_read(&o) != EXPAR_OK) fail_msg("%s", expar_last_error());
    unsetenv(name);
    return o;
}

static void test_defaults(void **state)
{
    (void)state;
    gda_options o;
    assert_int_equal(gda_options_read(&o), EXPAR_OK);
    assert_false(o.software);
    assert_int_equal(o.queues_per_peer, 1);
    assert_int_equal(o.depth, 1024);
    assert_int_equal(o.batch, 16);
    assert_int_equal(o.ringer, GDA_RINGER_GPU);
    assert_null(o.devices);
    assert_int_equal(o.gid_index, -1);
    assert_false(o.device);
    assert_int_equal(o.mtu, 0);
    assert_int_equal(o.hop_limit, 255);
    assert_int_equal(o.traffic_class | o.service_level, 0);
    assert_int_equal(o.retries, 7);
    assert_int_equal(o.rnr_retries, 7);
    assert_int_equal(o.rnr_timer, 12);
    assert_int_equal(o.ack_timeout, 20);
    assert_int_equal(o.reads, 16);
    const nic_faults none = {.rnr_retries = 7};
    assert_memory_equal(&o.faults, &none, sizeof none);
}

static void test_values(void **state)
{
    (void)state;
    assert_true(with("EXPAR_GDA_NIC", "software").software);
    assert_true(with("EXPAR_GDA_NIC", "process").software);
    assert_true(with("EXPAR_GDA_NIC", "process").process);
    assert_false(with("EXPAR_GDA_NIC", "software").process);
    assert_true(with("EXPAR_GDA_NIC", "device").device);
    assert_int_equal(with("EXPAR_GDA_MTU", "256").mtu, 1);
    assert_int_equal(with("EXPAR_GDA_MTU", "4096").mtu, 5);
    assert_int_equal(with("EXPAR_GDA_READS", "128").reads, 128);
    assert_int_equal(with("EXPAR_GDA_QPS_PER_PEER", "64").queues_per_peer, 64);
    assert_int_equal(with("EXPAR_GDA_QUEUE_DEPTH", "256").depth, 256);
    assert_int_equal(with("EXPAR_GDA_QUEUE_DEPTH", "32768").depth, 32768);
    assert_int_equal(with("EXPAR_GDA_BATCH", "1").batch, 1);
    assert_int_equal(with("EXPAR_GDA_BATCH", "128").batch, 128);
    assert_int_equal(with("EXPAR_GDA_RINGER", "gpu").ringer, GDA_RINGER_GPU);
    assert_int_equal(with("EXPAR_GDA_RINGER", "cpu").ringer, GDA_RINGER_CPU);
    assert_int_equal(with("EXPAR_GDA_RINGER", "auto").ringer, GDA_RINGER_GPU);
    assert_false(with("EXPAR_GDA_ADAPTIVE_ROUTING", "0").reorders);
    assert_true(with("EXPAR_GDA_ADAPTIVE_ROUTING", "1").reorders);
    assert_true(with("EXPAR_GDA_RINGER", "auto").ringer_is_free);
    assert_false(with("EXPAR_GDA_RINGER", "gpu").ringer_is_free);
    assert_int_equal(with("EXPAR_GDA_QUEUE_MEMORY", "host").place, GDA_PLACE_HOST);
    assert_int_equal(with("EXPAR_GDA_QUEUE_MEMORY", "pinned").place, GDA_PLACE_PINNED);
    assert_int_equal(with("EXPAR_GDA_QUEUE_MEMORY", "device").place, GDA_PLACE_DEVICE);
    assert_int_equal(with("EXPAR_GDA_GID_INDEX", "3").gid_index, 3);
    setenv("EXPAR_GDA_DEVICES", "mlx5_0,mlx5_3", 1);
    gda_options named;
    assert_int_equal(gda_options_read(&named), EXPAR_OK);
    assert_string_equal(named.devices, "mlx5_0,mlx5_3");
    unsetenv("EXPAR_GDA_DEVICES");
    const nic_faults faults = with("EXPAR_GDA_NIC_FAULTS", "seed=7,delay=1,drop=2,lose=3,coalesce=4,shuffle=5,late=6,"
                                                           "fail=999999999,reroute=9")
                                  .faults;
    const nic_faults expected = {.seed = 7,
                                 .delay_turns = 1,
                                 .drop_one_in = 2,
                                 .lose_answer_one_in = 3,
                                 .coalesce_one_in = 4,
                                 .shuffle_one_in = 5,
                                 .late_reads_one_in = 6,
                                 .fail_one_in = 999999999,
                                 .reroute_one_in = 9,
                                 .rnr_retries = 7};
    assert_memory_equal(&faults, &expected, sizeof expected);
}

static const struct {
    const char *name, *text, *error;
} rejections[] = {
    {"EXPAR_GDA_NIC", "hardware", "EXPAR_GDA_NIC=hardware: expected software, process or device"},
    {"EXPAR_GDA_NIC", "Process", "EXPAR_GDA_NIC=Process: expected software, process or device"},
    {"EXPAR_GDA_QPS_PER_PEER", "0", "EXPAR_GDA_QPS_PER_PEER=0: expected a whole number from 1 to 64"},
    {"EXPAR_GDA_QPS_PER_PEER", "65", "EXPAR_GDA_QPS_PER_PEER=65: expected a whole number from 1 to 64"},
    {"EXPAR_GDA_QUEUE_DEPTH", "128", "EXPAR_GDA_QUEUE_DEPTH=128: expected a whole number from 256 to 32768"},
    {"EXPAR_GDA_QUEUE_DEPTH", "65536", "EXPAR_GDA_QUEUE_DEPTH=65536: expected a whole number from 256 to 32768"},
    {"EXPAR_GDA_QUEUE_DEPTH", "257", "EXPAR_GDA_QUEUE_DEPTH=257: expected a power of two"},
    {"EXPAR_GDA_BATCH", "0", "EXPAR_GDA_BATCH=0: expected a whole number from 1 to 128"},
    {"EXPAR_GDA_BATCH", "12", "EXPAR_GDA_BATCH=12: expected a power of two"},
    {"EXPAR_GDA_GID_INDEX", "256", "EXPAR_GDA_GID_INDEX=256: expected a whole number from 0 to 255"},
    {"EXPAR_GDA_MTU", "8192", "EXPAR_GDA_MTU=8192: expected a whole number from 256 to 4096"},
    {"EXPAR_GDA_MTU", "1500", "EXPAR_GDA_MTU=1500: expected a power of two"},
    {"EXPAR_GDA_HOP_LIMIT", "256", "EXPAR_GDA_HOP_LIMIT=256: expected a whole number from 0 to 255"},
    {"EXPAR_GDA_TRAFFIC_CLASS", "256", "EXPAR_GDA_TRAFFIC_CLASS=256: expected a whole number from 0 to 255"},
    {"EXPAR_GDA_SERVICE_LEVEL", "16", "EXPAR_GDA_SERVICE_LEVEL=16: expected a whole number from 0 to 15"},
    {"EXPAR_GDA_RETRIES", "8", "EXPAR_GDA_RETRIES=8: expected a whole number from 0 to 7"},
    {"EXPAR_GDA_RNR_RETRIES", "8", "EXPAR_GDA_RNR_RETRIES=8: expected a whole number from 0 to 7"},
    {"EXPAR_GDA_RNR_TIMER", "32", "EXPAR_GDA_RNR_TIMER=32: expected a whole number from 0 to 31"},
    {"EXPAR_GDA_ACK_TIMEOUT", "32", "EXPAR_GDA_ACK_TIMEOUT=32: expected a whole number from 0 to 31"},
    {"EXPAR_GDA_READS", "3", "EXPAR_GDA_READS=3: expected a power of two"},
    {"EXPAR_GDA_RINGER", "nic", "EXPAR_GDA_RINGER=nic: expected gpu, cpu or auto"},
    {"EXPAR_GDA_ADAPTIVE_ROUTING", "2", "EXPAR_GDA_ADAPTIVE_ROUTING=2: expected a whole number from 0 to 1"},
    {"EXPAR_GDA_QUEUE_MEMORY", "gpu", "EXPAR_GDA_QUEUE_MEMORY=gpu: expected host, pinned or device"},
    {"EXPAR_GDA_QUEUE_MEMORY", "Device", "EXPAR_GDA_QUEUE_MEMORY=Device: expected host, pinned or device"},
    {"EXPAR_GDA_NIC_FAULTS", "drop", "EXPAR_GDA_NIC_FAULTS=drop: expected words such as drop=10"},
    {"EXPAR_GDA_NIC_FAULTS", "drop=", "EXPAR_GDA_NIC_FAULTS=drop=: expected words"},
    {"EXPAR_GDA_NIC_FAULTS", "drop=-1", "EXPAR_GDA_NIC_FAULTS=drop=-1: expected words"},
    {"EXPAR_GDA_NIC_FAULTS", "drop=1000000000", "expected words"},
    {"EXPAR_GDA_NIC_FAULTS", "dropp=1", "expected words"},
    {"EXPAR_GDA_NIC_FAULTS", "drop=1,,late=1", "expected words"},
};

static void test_rejections(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(rejections); i++) {
        gda_options o, before;
        memset(&o, 0x55, sizeof o);
        before = o;
        setenv(rejections[i].name, rejections[i].text, 1);
        assert_int_equal(gda_options_read(&o), EXPAR_ERR_ARGUMENT);
        if (!strstr(expar_last_error(), rejections[i].error))
            fail_msg("'%s' without '%s'", expar_last_error(), rejections[i].error);
        assert_memory_equal(&o, &before, sizeof o);
        unsetenv(rejections[i].name);
    }
}

/* Kernels have no queues on a NIC that is a process. */
static void test_queues_of_kernels(void **state)
{
    gda_options o;
    (void)state;
    setenv("EXPAR_GDA_NIC", "process", 1);
    setenv("EXPAR_GDA_QUEUE_MEMORY", "host", 1);
    assert_int_equal(gda_options_read(&o), EXPAR_ERR_ARGUMENT);
    assert_non_null(
        strstr(expar_last_error(), "EXPAR_GDA_QUEUE_MEMORY=host: expected no value with EXPAR_GDA_NIC=process"));
    unsetenv("EXPAR_GDA_QUEUE_MEMORY");
    assert_int_equal(gda_options_read(&o), EXPAR_OK);
    assert_false(o.serves_kernels);
    unsetenv("EXPAR_GDA_NIC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_rejections),
        cmocka_unit_test(test_queues_of_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
