/* SPDX-License-Identifier: Apache-2.0 */
/* expar check over hosts whose network is sound, and then has one fault after the other. */
#include "netns/netns.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Runs a check of one rank on each host. `before`: what a rank's shell does first. */
static json_t *check_network_of(int ranks, const char *before)
{
    char command[1024];
    snprintf(command, sizeof command,
             EXPAR_PROGRAM " run -n %d --no-prefix -- " NETNS_RUN " --rank sh -c '%s exec " EXPAR_PROGRAM
                           " check --json'",
             ranks, before);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    json_error_t error;
    json_t *value = json_loadf(pipe, 0, &error);
    pclose(pipe);
    if (!value) fail_msg("`%s` prints no JSON: %s", command, error.text);
    return value;
}

static const json_t *row_of(const json_t *value, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(value, "checks"), i, row)
    {
        if (!strcmp(json_string_value(json_object_get(row, "name")), name)) return row;
    }
    fail_msg("there is no row '%s'", name);
    return NULL;
}

static void expect_row(const json_t *value, const char *name, const char *status, const char *part)
{
    const json_t *row = row_of(value, name);
    const char *found = json_string_value(json_object_get(row, "status"));
    const char *text = json_string_value(json_object_get(row, "value"));
    if (strcmp(found, status) != 0 || !strstr(text, part))
        fail_msg("%s: %s, '%s' instead of %s, '%s'", name, found, text, status, part);
}

static void on_host(void **state, int host, const char *command)
{
    if (!netns_command(*state, host, "%s", command)) fail_msg("'%s' failed", command);
}

/* ---- two hosts --------------------------------------------------------------------------------------------------- */

static void a_sound_network_passes(void **state)
{
    (void)state;
    json_t *value = check_network_of(2, "");
    assert_int_equal(json_integer_value(json_object_get(value, "hosts")), 2);
    expect_row(value, "mtu", "ok", "1500 on all 2 hosts");
    expect_row(value, "mtu_path", "ok", "between all 2 hosts");
    expect_row(value, "clocks", "ok", "at most");
    expect_row(value, "interfaces", "ok", "net0 (IPv4");
    expect_row(value, "providers", "ok", "provider ");
    expect_row(value, "pair_rate", "ok", "between nodes");
    expect_row(value, "selftest_fabric", "ok", "right");
    json_decref(value);
}

static void unequal_mtus_are_found(void **state)
{
    on_host(state, 1, "ip link set net0 mtu 1400");
    json_t *value = check_network_of(2, "");
    expect_row(value, "mtu", "failure", " 1500, ");
    expect_row(value, "mtu", "failure", " 1400");
    expect_row(value, "mtu_path", "failure", "(1500 bytes)");
    on_host(state, 1, "ip link set net0 mtu 1500");
    json_decref(value);
}

static void filtered_udp_is_skipped(void **state)
{
    on_host(state, 1,
            "nft add table ip t && nft add chain ip t c \"{ type filter hook input priority 0; }\" && "
            "nft add rule ip t c udp dport 1-65535 drop");
    json_t *value = check_network_of(2, "");
    expect_row(value, "mtu_path", "skipped", "no UDP arrives from ");
    on_host(state, 1, "nft delete table ip t");
    json_decref(value);
}

static void a_late_clock_is_found(void **state)
{
    (void)state;
    json_t *value = check_network_of(2, "test $EXPAR_RANK = 0 || export LD_PRELOAD=" CLOCK_50_MS_BACK ";");
    expect_row(value, "clocks", "warning", " -5");
    json_decref(value);
}

/* Interfaces may have any name without a blank or a slash. */
static void hostile_interfaces_are_shown_harmless(void **state)
{
    on_host(
        state, 0,
        "ip link add \"$(printf 'n\\033[7m')\" type veth peer name other && ip link set \"$(printf 'n\\033[7m')\" up");
    json_t *value = check_network_of(2, "");
    expect_row(value, "interfaces", "ok", "n\\x1b[7m (");
    on_host(state, 0, "ip link del \"$(printf 'n\\033[7m')\"");
    json_decref(value);
}

static void an_interface_without_address_is_found(void **state)
{
    on_host(state, 0, "ip link set net1 down && ip address flush dev net0 scope global");
    setenv("EXPAR_BOOTSTRAP_INTERFACE", "127.0.0.1", 1);
    json_t *value = check_network_of(1, "");
    expect_row(value, "interfaces", "warning", "net0 (no address for others)");
    setenv("EXPAR_BOOTSTRAP_INTERFACE", NETNS_INTERFACE, 1);
    on_host(state, 0, "ip link set net1 up && ip address add 198.18.0.1/24 dev net0");
    json_decref(value);
}

static void ipv6_alone_is_enough(void **state)
{
    for (int host = 0; host < 2; host++) {
        on_host(state, host, "ip -4 address flush dev net0; ip -4 address flush dev net1");
        if (!netns_command(*state, host, "ip -6 address add fd00::%d/64 dev net0 nodad", host + 1)) fail();
    }
    json_t *value = check_network_of(2, "");
    expect_row(value, "interfaces", "ok", "net0 (IPv6 alone)");
    expect_row(value, "mtu_path", "ok", "between all 2 hosts");
    expect_row(value, "selftest_fabric", "ok", "right");
    json_decref(value);
}

static int make_two(void **state)
{
    static netns net;
    *state = &net;
    return netns_make(&net) ? 0 : -1;
}

/* ---- four hosts -------------------------------------------------------------------------------------------------- */

/* Hosts use jumbo frames. A switch, which is host 0's bridge, drops them on the way to host 2. */
static void an_untrue_path_is_found(void **state)
{
    for (int host = 1; host < 4; host++) {
        on_host(state, host, "ip link set net0 mtu 9000");
        if (!netns_command(*state, 0, "ip link set to%d mtu %d", host, host == 2 ? 1500 : 9000)) fail();
    }
    on_host(state, 0, "ip link set net0 mtu 9000");
    json_t *value = check_network_of(4, "");
    expect_row(value, "mtu", "ok", "9000 on all 4 hosts");
    expect_row(value, "mtu_path", "failure", "full packets are lost from ");
    expect_row(value, "pair_rate", "skipped", "mend mtu_path first");
    json_decref(value);
    for (int host = 1; host < 4; host++)
        if (!netns_command(*state, 0, "ip link set to%d mtu 9000", host)) fail();
}

/* The cable of host 3 carries a fraction of the others' rate. */
static void a_slow_link_is_named(void **state)
{
    on_host(state, 3, "tc qdisc add dev net0 root tbf rate 100mbit burst 64kb latency 50ms");
    on_host(state, 0, "tc qdisc add dev to3 root tbf rate 100mbit burst 64kb latency 50ms");
    json_t *value = check_network_of(4, "");
    expect_row(value, "pair_rate", "warning", "0-3 (");
    expect_row(value, "pair_rate", "warning", "2-3 (");
    on_host(state, 3, "tc qdisc del dev net0 root");
    on_host(state, 0, "tc qdisc del dev to3 root");
    json_decref(value);
}

static int make_four(void **state)
{
    static netns net;
    *state = &net;
    return netns_make_hosts(&net, 4) ? 0 : -1;
}

static int drop(void **state)
{
    netns_drop(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest two[] = {
        cmocka_unit_test(a_sound_network_passes),
        cmocka_unit_test(unequal_mtus_are_found),
        cmocka_unit_test(filtered_udp_is_skipped),
        cmocka_unit_test(a_late_clock_is_found),
        cmocka_unit_test(hostile_interfaces_are_shown_harmless),
        cmocka_unit_test(an_interface_without_address_is_found),
        cmocka_unit_test(ipv6_alone_is_enough),
    };
    const struct CMUnitTest four[] = {
        cmocka_unit_test(an_untrue_path_is_found),
        cmocka_unit_test(a_slow_link_is_named),
    };
    netns probe;
    if (!netns_make(&probe)) return netns_skip();
    netns_drop(&probe);
    const int failed = cmocka_run_group_tests(two, make_two, drop);
    return failed ? failed : cmocka_run_group_tests(four, make_four, drop);
}
