/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA devices: ports and GIDs; and the counters of errors of ports and interfaces. */
#include "base/shown.h"
#include "check.h"
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

/* Counters that stay 0 on a sound link. */
static const char *const port_counters[] = {"symbol_error",
                                            "link_error_recovery",
                                            "link_downed",
                                            "port_rcv_errors",
                                            "port_rcv_remote_physical_errors",
                                            "excessive_buffer_overrun_errors",
                                            "local_link_integrity_errors"};
static const char *const interface_counters[] = {"rx_errors", "tx_errors", "rx_crc_errors", "rx_fifo_errors"};

/* The state of the ports of all devices. */
struct ports {
    struct check_text down, nameless, text;
    size_t count, active;
};

size_t check_count_rdma(const struct check_site *site)
{
    struct check_names devices;
    check_names_read(&devices, "%s/class/infiniband", site->sys);
    const size_t count = devices.count;
    check_names_free(&devices);
    return count;
}

/* Calls `visit` for each port of each RDMA device. */
static void ports_visit(const struct check_site *site,
                        void (*visit)(const struct check_site *site, const char *device, const char *port,
                                      void *context),
                        void *context)
{
    struct check_names devices, ports;
    check_names_read(&devices, "%s/class/infiniband", site->sys);
    for (size_t i = 0; i < devices.count; i++) {
        check_names_read(&ports, "%s/class/infiniband/%s/ports", site->sys, devices.names[i]);
        for (size_t k = 0; k < ports.count; k++)
            visit(site, devices.names[i], ports.names[k], context);
        check_names_free(&ports);
    }
    check_names_free(&devices);
}

/* True if a GID is set. All empty ones are zeros; one that is made from the port's number alone begins with fe80. */
static bool gid_is_set(const char *text)
{
    return text[strspn(text, "0:")] != 0;
}

static size_t gids_count(const struct check_site *site, const char *device, const char *port)
{
    struct check_names gids;
    char gid[64];
    size_t count = 0;
    check_names_read(&gids, "%s/class/infiniband/%s/ports/%s/gids", site->sys, device, port);
    for (size_t i = 0; i < gids.count; i++)
        if (check_read(gid, sizeof gid, "%s/class/infiniband/%s/ports/%s/gids/%s", site->sys, device, port,
                       gids.names[i]) &&
            gid_is_set(gid))
            count++;
    check_names_free(&gids);
    return count;
}

static void port_look(const struct check_site *site, const char *device, const char *port, void *context)
{
    struct ports *ports = context;
    char state[64] = "unknown", rate[64] = "";
    check_read(state, sizeof state, "%s/class/infiniband/%s/ports/%s/state", site->sys, device, port);
    check_read(rate, sizeof rate, "%s/class/infiniband/%s/ports/%s/rate", site->sys, device, port);
    ports->count++;
    if (!strstr(state, "ACTIVE")) {
        check_text_add(&ports->down, "%s%s/%s %s", ports->down.used ? ", " : "", SHOWN(device), SHOWN(port),
                       SHOWN(state));
        return;
    }
    ports->active++;
    check_text_add(&ports->text, "%s%s/%s %s", ports->text.used ? ", " : "", SHOWN(device), SHOWN(port), SHOWN(rate));
    if (gids_count(site, device, port) == 0)
        check_text_add(&ports->nameless, "%s%s/%s", ports->nameless.used ? ", " : "", SHOWN(device), SHOWN(port));
}

static void add_ports(const struct ports *ports, json_t *rows)
{
    struct check_row row = {"network", "rdma_ports", CHECK_OK, "all ports active",
                            "ibstat   (then check cable, switch and "
                            "subnet manager)"};
    if (ports->count == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "no RDMA device");
    } else if (ports->down.used) {
        row.status = ports->active ? CHECK_WARNING : CHECK_FAILURE;
        check_add(rows, &row, "not active: %s", ports->down.text);
    } else {
        check_add(rows, &row, "%s", ports->text.text);
    }
}

static void add_gids(const struct ports *ports, json_t *rows)
{
    struct check_row row = {"network", "gid", CHECK_OK, "a GID on each active port",
                            "show_gids   (an Ethernet port needs an IP address on its interface)"};
    if (ports->active == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, ports->count ? "no active port" : "no RDMA device");
    } else if (ports->nameless.used) {
        row.status = CHECK_FAILURE;
        check_add(rows, &row, "none on %s", ports->nameless.text);
    } else {
        check_add(rows, &row, "on all %zu active ports", ports->active);
    }
}

/* ---- error counters ---------------------------------------------------------------------------------------------- */

struct errors {
    int64_t sum;
    size_t read;
    struct check_text *first;
};

static void counter_add(struct errors *errors, int64_t value, const char *device, const char *name)
{
    errors->read++;
    errors->sum += value;
    if (value > 0)
        check_text_add(errors->first, "%s%s %s %" PRId64, errors->first->used ? ", " : "", SHOWN(device), name, value);
}

static void port_count(const struct check_site *site, const char *device, const char *port, void *context)
{
    int64_t value;
    for (size_t i = 0; i < sizeof port_counters / sizeof *port_counters; i++)
        if (check_read_number(&value, "%s/class/infiniband/%s/ports/%s/counters/%s", site->sys, device, port,
                              port_counters[i]))
            counter_add(context, value, device, port_counters[i]);
}

/* The folder may show the interfaces of another network namespace. Its files are absent or of no use then. */
static void interfaces_count(const struct check_site *site, struct errors *errors)
{
    struct check_names names;
    check_names_read(&names, "%s/class/net", site->sys);
    for (size_t k = 0; k < names.count; k++)
        for (size_t i = 0; i < sizeof interface_counters / sizeof *interface_counters; i++) {
            int64_t value;
            if (check_read_number(&value, "%s/class/net/%s/statistics/%s", site->sys, names.names[k],
                                  interface_counters[i]))
                counter_add(errors, value, names.names[k], interface_counters[i]);
        }
    check_names_free(&names);
}

bool check_count_errors(const struct check_site *site, int64_t *sum, struct check_text *first)
{
    struct errors errors = {.first = first};
    ports_visit(site, port_count, &errors);
    interfaces_count(site, &errors);
    *sum = errors.sum;
    return errors.read > 0;
}

static void add_errors(const struct check_site *site, json_t *rows)
{
    struct check_text first = {0};
    int64_t sum = 0;
    struct check_row row = {"network", "error_counters", CHECK_OK, "0 on all ports and interfaces",
                            "expar check --long   (tells whether they still rise; then change cable or port)"};
    if (!check_count_errors(site, &sum, &first)) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "there are no counters");
        return;
    }
    if (sum > 0) row.status = CHECK_WARNING;
    check_add(rows, &row, "%s", sum > 0 ? first.text : "0");
}

void check_rdma(const struct check_site *site, json_t *rows)
{
    struct ports ports = {0};
    ports_visit(site, port_look, &ports);
    add_ports(&ports, rows);
    add_gids(&ports, rows);
    add_errors(site, rows);
}
