/* SPDX-License-Identifier: Apache-2.0 */
/* The set-up of devices, on libraries that are simulated (fake.h): each call that fails is named, each bit of each
 * command counts, and what was set up carries requests out. */
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const devx_place nowhere = {.numa_node = -1};
static const gda_plan collapsed = {.depth = 256,
                                   .cq_entries = 256,
                                   .batch = 16,
                                   .most = 64,
                                   .num_results = 4,
                                   .scope = GDA_SCOPE_SYSTEM,
                                   .ringer = GDA_RINGER_GPU,
                                   .collapsed = true};

static gda_options options_of_device(void)
{
    gda_options options;
    setenv("EXPAR_GDA_NIC", "device", 1);
    assert_int_equal(gda_options_read(&options), EXPAR_OK);
    return options;
}

/* A device with one queue, whose other end it is itself. */
typedef struct setting {
    gda_device *device;
    gda_parts parts;
    gda_address address;
} setting;

static void setting_end(setting *s)
{
    if (s->device) s->device->ops->close(s->device);
    *s = (setting){0};
}

/* Returns the status of the first call that fails; the device is closed then. */
static expar_status setting_begin(setting *s, const gda_plan *plan)
{
    const gda_options options = options_of_device();
    *s = (setting){0};
    expar_status status = gda_devx_open(&options, &nowhere, 1, &s->device);
    if (status == EXPAR_OK) status = s->device->ops->add_queue(s->device, plan, 0, 0, &s->parts, &s->address);
    if (status == EXPAR_OK) status = s->device->ops->connect(s->device, 0, 0, &s->address);
    if (status != EXPAR_OK) setting_end(s);
    return status;
}

static void assert_text(const char *text)
{
    if (!strstr(expar_last_error(), text)) fail_msg("'%s' without '%s'", expar_last_error(), text);
}

/* ---- trouble ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *call, *text;
    expar_status status;
} trouble[] = {
    {"alloc_pd", "gda: mlx5_7: ibv_alloc_pd failed for a protection domain (No space left on device)",
     EXPAR_ERR_UNSUPPORTED},
    {"init_obj", "gda: mlx5_7: mlx5dv_init_obj failed for the number of the protection domain (Invalid argument)",
     EXPAR_ERR_UNSUPPORTED},
    {"query_eqn", "gda: mlx5_7: mlx5dv_devx_query_eqn failed for event queue 0 (No such device)",
     EXPAR_ERR_UNSUPPORTED},
    {"alloc_uar",
     "gda: mlx5_7: mlx5dv_devx_alloc_uar failed for a page of doorbells (Operation not supported); the kernel's mlx5 "
     "driver or the firmware is too old",
     EXPAR_ERR_UNSUPPORTED},
    {"umem_reg",
     "gda: mlx5_7: mlx5dv_devx_umem_reg failed for queue 0, to PE 0 (Cannot allocate memory); locked memory is limited "
     "to ",
     EXPAR_ERR_MEMORY},
    {"memlock",
     "gda: mlx5_7: ibv_reg_mr failed for queue 0, to PE 0 (Cannot allocate memory); locked memory is limited",
     EXPAR_ERR_MEMORY},
    {"create_cq",
     "gda: mlx5_7: CREATE_CQ failed for queue 0, to PE 0 (Remote I/O error, status 0x3: bad parameter, syndrome "
     "0x5678); the firmware "
     "rejects the command",
     EXPAR_ERR_UNSUPPORTED},
    {"create_qp",
     "gda: mlx5_7: CREATE_QP failed for queue 0, to PE 0 (Remote I/O error, status 0x3: bad parameter, syndrome "
     "0x5678)",
     EXPAR_ERR_UNSUPPORTED},
    {"exhausted",
     "gda: mlx5_7: CREATE_QP failed for queue 0, to PE 0 (Remote I/O error, status 0x8: limit exceeded, syndrome "
     "0x5678); the device has no more queues, or no memory for them: EXPAR_GDA_QPS_PER_PEER is 1, "
     "EXPAR_GDA_QUEUE_DEPTH "
     "is 1024",
     EXPAR_ERR_UNSUPPORTED},
    {"create_ah", "gda: mlx5_7: ibv_create_ah failed for queue 0, to PE 0 (Network is unreachable)",
     EXPAR_ERR_UNSUPPORTED},
    {"init_ah", "gda: mlx5_7: mlx5dv_init_obj failed for queue 0, to PE 0 (Invalid argument)", EXPAR_ERR_UNSUPPORTED},
    {"rst2init", "gda: mlx5_7: RST2INIT_QP failed for queue 0, to PE 0 (Remote I/O error, status 0x3",
     EXPAR_ERR_UNSUPPORTED},
    {"init2rtr", "gda: mlx5_7: INIT2RTR_QP failed for queue 0, to PE 0 (Remote I/O error, status 0x3",
     EXPAR_ERR_UNSUPPORTED},
    {"rtr2rts", "gda: mlx5_7: RTR2RTS_QP failed for queue 0, to PE 0 (Remote I/O error, status 0x3",
     EXPAR_ERR_UNSUPPORTED},
};

/* The simulated device aborts if what was made before the failure is not given back in the right order. */
static void test_calls_that_fail(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(trouble); i++) {
        setting s;
        setenv("FAKE_VERBS", trouble[i].call, 1);
        assert_int_equal(setting_begin(&s, &collapsed), trouble[i].status);
        assert_text(trouble[i].text);
    }
    setenv("FAKE_VERBS", "open", 1);
}

/* A device that is busy for a while is asked again, and one that is busy for good is given up. */
static void test_busy(void **state)
{
    setting s;
    gda_memory memory;
    static uint64_t word;
    const gda_source source = {.base = &word, .bytes = sizeof word};
    (void)state;
    setenv("FAKE_VERBS", "firmware_busy", 1);
    if (setting_begin(&s, &collapsed) != EXPAR_OK) fail_msg("%s", expar_last_error());
    setting_end(&s);
    setenv("FAKE_VERBS", "again", 1);
    if (setting_begin(&s, &collapsed) != EXPAR_OK) fail_msg("%s", expar_last_error());
    assert_int_equal(s.device->ops->add_memory(s.device, &source, &memory), EXPAR_OK);
    setenv("FAKE_VERBS", "busy", 1);
    gda_memory none = {0};
    assert_int_equal(s.device->ops->add_memory(s.device, &source, &none), EXPAR_ERR_UNSUPPORTED);
    assert_text("gda: mlx5_7: ibv_reg_mr failed for 8 bytes of memory at ");
    assert_text("(Resource temporarily unavailable); the device was busy for a second");
    assert_null(none.handle);
    s.device->ops->remove_memory(s.device, &memory);
    setting_end(&s);
    setenv("FAKE_VERBS", "open", 1);
}

/* Queues share the pages of doorbells that there are. */
static void test_few_doorbells(void **state)
{
    const gda_options options = options_of_device();
    gda_device *device;
    gda_parts parts[2];
    gda_address addresses[2];
    (void)state;
    setenv("FAKE_VERBS", "one_page", 1);
    assert_int_equal(gda_devx_open(&options, &nowhere, 2, &device), EXPAR_OK);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(device->ops->add_queue(device, &collapsed, i, 0, &parts[i], &addresses[i]), EXPAR_OK);
    assert_ptr_equal(parts[0].doorbell, parts[1].doorbell);
    assert_int_not_equal(addresses[0].qpn, addresses[1].qpn);
    device->ops->close(device);
    setenv("FAKE_VERBS", "open", 1);
}

/* One bit of a command is wrong: the device notices, so no bit is left to chance. */
static void flip_all(const char *kind, unsigned opcode, size_t command_bytes)
{
    setenv("FAKE_VERBS", kind, 1);
    for (size_t bit = 0; bit < command_bytes * 8; bit++) {
        char flip[32];
        setting s;
        snprintf(flip, sizeof flip, "%x:%zu", opcode, bit);
        setenv("FAKE_FLIP", flip, 1);
        if (setting_begin(&s, &collapsed) == EXPAR_OK) fail_msg("bit %zu of command 0x%x may be wrong", bit, opcode);
    }
    unsetenv("FAKE_FLIP");
    setenv("FAKE_VERBS", "open", 1);
}

static void test_each_bit(void **state)
{
    static const unsigned opcodes[] = {0x400, 0x500, 0x502, 0x503, 0x504};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(opcodes); i++)
        flip_all("open", opcodes[i], 272);
    flip_all("infiniband", 0x503, 272);
}

/* ---- what was set up --------------------------------------------------------------------------------------------- */

/* Puts, gets and adds through the queue, to memory that is registered as that of the peer. */
static void carry_out(const gda_plan *plan)
{
    enum { WORDS = 512 };
    static uint64_t words[WORDS];
    setting s;
    gda_queue queue;
    gda_memory memory;
    uint64_t end = 0;
    assert_int_equal(setting_begin(&s, plan), EXPAR_OK);
    memset(words, 0, sizeof words);
    const gda_source source = {.base = words, .bytes = sizeof words, .shared = true};
    assert_int_equal(s.device->ops->add_memory(s.device, &source, &memory), EXPAR_OK);
    gda_queue_start(&queue, plan, &s.parts, s.address.qpn, 0);
    for (uint64_t i = 0; i < 3 * (uint64_t)plan->depth; i++) {
        words[0] = i + 1;
        gda_request put = {.form = GDA_WRITE,
                           .remote = memory.remote + 8,
                           .rkey = memory.rkey,
                           .local = (uintptr_t)words,
                           .lkey = memory.lkey,
                           .bytes = 8};
        gda_request add = {.form = GDA_ADD_64, .remote = memory.remote + 16, .rkey = memory.rkey, .operand = 2};
        gda_to_sink(&queue, &add);
        assert_true(gda_post(&queue, &put, &end));
        assert_true(gda_post(&queue, &add, &end));
        assert_true(gda_quiet(&queue));
        assert_int_equal(words[1], i + 1);
        assert_int_equal(words[2], 2 * (i + 1));
    }
    s.device->ops->remove_memory(s.device, &memory);
    setting_end(&s);
}

static void test_requests(void **state)
{
    gda_plan plain = collapsed;
    (void)state;
    carry_out(&collapsed);
    plain.collapsed = false;
    carry_out(&plain);
}

/* A stopped queue carries nothing out, and it may be closed. */
static void test_stop(void **state)
{
    setting s;
    gda_queue queue;
    uint64_t end = 0;
    (void)state;
    assert_int_equal(setting_begin(&s, &collapsed), EXPAR_OK);
    gda_queue_start(&queue, &collapsed, &s.parts, s.address.qpn, 0);
    const gda_request nop = {.form = GDA_NOP};
    assert_true(gda_post(&queue, &nop, &end));
    assert_true(gda_quiet(&queue));
    s.device->ops->stop(s.device, 0);
    assert_true(gda_post(&queue, &nop, &end));
    assert_int_equal(gda_look(&queue, end), GDA_NOT_YET);
    setting_end(&s);
}

/* Options reach the commands: the simulated device expects what they say, and nothing else. */
static void test_options(void **state)
{
    static const char *const settings[][2] = {
        {"EXPAR_GDA_MTU", "1024"},         {"EXPAR_GDA_HOP_LIMIT", "3"},    {"EXPAR_GDA_TRAFFIC_CLASS", "106"},
        {"EXPAR_GDA_SERVICE_LEVEL", "13"}, {"EXPAR_GDA_RETRIES", "2"},      {"EXPAR_GDA_RNR_RETRIES", "1"},
        {"EXPAR_GDA_RNR_TIMER", "22"},     {"EXPAR_GDA_ACK_TIMEOUT", "17"}, {"EXPAR_GDA_READS", "2"},
    };
    static const char *const kinds[] = {"open", "infiniband", "subnets", "ports", "routable"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++)
        setenv(settings[i][0], settings[i][1], 1);
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        setting s;
        setenv("FAKE_VERBS", kinds[k], 1);
        if (setting_begin(&s, &collapsed) != EXPAR_OK) fail_msg("%s: %s", kinds[k], expar_last_error());
        setting_end(&s);
    }
    for (size_t i = 0; i < ARRAY_LENGTH(settings); i++)
        unsetenv(settings[i][0]);
    setenv("FAKE_VERBS", "open", 1);
}

/* ---- memory of GPUs ---------------------------------------------------------------------------------------------- */

static void test_gpu_memory(void **state)
{
    static uint8_t bytes[4096];
    setting s;
    gda_memory memory = {0};
    gda_source source = {.base = bytes, .bytes = sizeof bytes, .is_device = true, .is_dmabuf = true, .offset = 4096};
    (void)state;
    assert_int_equal(setting_begin(&s, &collapsed), EXPAR_OK);
    source.fd = 77; /* the one that the simulated library takes */
    const struct {
        const char *kind;
        bool is_dmabuf;
    } ways[] = {{"reg_mr", true}, {"no_dmabuf", true}, {"open", false}};
    for (size_t i = 0; i < ARRAY_LENGTH(ways); i++) {
        setenv("FAKE_VERBS", ways[i].kind, 1);
        source.is_dmabuf = ways[i].is_dmabuf;
        assert_int_equal(s.device->ops->add_memory(s.device, &source, &memory), EXPAR_OK);
        s.device->ops->remove_memory(s.device, &memory);
        assert_null(memory.handle);
    }
    setenv("FAKE_VERBS", "no_way", 1);
    source.is_dmabuf = true;
    assert_int_equal(s.device->ops->add_memory(s.device, &source, &memory), EXPAR_ERR_UNSUPPORTED);
    assert_text("cannot be registered: by dma-buf (ibv_reg_dmabuf_mr: Operation not supported), which needs");
    assert_text("nor as peer memory (ibv_reg_mr: Bad address), which needs the module nvidia-peermem");
    setenv("FAKE_VERBS", "open", 1);
    setting_end(&s);
}

/* ---- which device, which port ------------------------------------------------------------------------------------ */

static void test_choice(void **state)
{
    static const int32_t some[] = {2, 3, 3, 0}, none[] = {0, 0};
    (void)state;
    assert_int_equal(devx_pick(some, 4, 0), 1);
    assert_int_equal(devx_pick(some, 4, 1), 2);
    assert_int_equal(devx_pick(some, 4, 2), 1);
    assert_int_equal(devx_pick(none, 2, 3), 1);
}

/* Makes a folder, or a link to `to`, below `root`. */
static void make_path(const char *root, const char *path, const char *to)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s/%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(whole, 0700);
        *slash = '/';
    }
    if (to)
        assert_int_equal(symlink(to, whole), 0);
    else
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
}

static void write_node(const char *root, const char *device, const char *node)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s/numa_node", root, device);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(node, file);
    fclose(file);
}

/* Two devices and a GPU. mlx5_1 is at the GPU's own switch, and mlx5_0 on the NUMA node 1. */
static void test_near(void **state)
{
    static const char gpu[] = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0";
    static const char near[] = "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3e:00.0";
    static const char far[] = "devices/pci0000:3a/0000:3a:01.0/0000:5e:00.0";
    char root[] = "/tmp/expar_sys_XXXXXX", command[64];
    (void)state;
    assert_non_null(mkdtemp(root));
    make_path(root, gpu, NULL);
    make_path(root, near, NULL);
    make_path(root, far, NULL);
    make_path(root, "bus/pci/devices/0000:3d:00.0",
              "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3d:00.0");
    make_path(root, "class/infiniband/mlx5_0/device", "../../../devices/pci0000:3a/0000:3a:01.0/0000:5e:00.0");
    make_path(root, "class/infiniband/mlx5_1/device",
              "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3e:00.0");
    write_node(root, far, "1\n");
    write_node(root, near, "0\n");
    const devx_place by_gpu = {.gpu = "0000:3D:00.0", .numa_node = 1}, by_cores = {.numa_node = 1},
                     unknown = {.gpu = "0000:99:00.0", .numa_node = -1};
    assert_int_equal(devx_nearness(root, "mlx5_1", &by_gpu) - devx_nearness(root, "mlx5_0", &by_gpu), 2);
    assert_int_equal(devx_nearness(root, "mlx5_0", &by_cores), 1);
    assert_int_equal(devx_nearness(root, "mlx5_1", &by_cores), 0);
    assert_int_equal(devx_nearness(root, "mlx5_0", &unknown), 0);
    assert_int_equal(devx_nearness(root, "mlx5_9", &by_cores), 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_ports(void **state)
{
    const devx_port ports[2] = {{.number = 1}, {.number = 2}};
    devx here = {.num_ports = 2, .options.queues_per_peer = 3, .place.rank = 2}, there = here;
    (void)state;
    memcpy(here.ports, ports, sizeof ports);
    memcpy(there.ports, ports, sizeof ports);
    there.place.rank = 5;
    uint32_t second = 0;
    for (uint32_t i = 0; i < 3; i++) {
        const uint8_t own = devx_port_of(&here, 5 * 3 + i, 5)->number;
        assert_int_equal(devx_port_of(&there, 2 * 3 + i, 2)->number, own);
        second += own == 2;
    }
    assert_in_range(second, 1, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests), cmocka_unit_test(test_stop),          cmocka_unit_test(test_calls_that_fail),
        cmocka_unit_test(test_busy),     cmocka_unit_test(test_few_doorbells), cmocka_unit_test(test_each_bit),
        cmocka_unit_test(test_options),  cmocka_unit_test(test_gpu_memory),    cmocka_unit_test(test_choice),
        cmocka_unit_test(test_near),     cmocka_unit_test(test_ports),
    };
    setenv("FAKE_VERBS", "open", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
