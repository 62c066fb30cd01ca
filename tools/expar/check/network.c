/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces, the place where ranks meet, and the network's transport. */
#include "base/shown.h"
#include "check.h"
#include "group/tools.h"
#include "info/info.h"
#include <errno.h>
#include <expar/info.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- interfaces -------------------------------------------------------------------------------------------------- */

static bool has_family(const struct ifaddrs *all, const char *name, int family)
{
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == family && strcmp(one->ifa_name, name) == 0) return true;
    return false;
}

static bool is_outward(const struct ifaddrs *one)
{
    return one->ifa_addr && one->ifa_addr->sa_family == AF_PACKET && one->ifa_flags & IFF_UP &&
           !(one->ifa_flags & IFF_LOOPBACK);
}

/* Adds an interface to the text. The library's own rule says whether other hosts may reach it. */
static bool interface_add(const struct ifaddrs *all, const char *name, struct check_text *text)
{
    char ip[BOOT_IP_TEXT];
    const bool usable = boot_interface_ip(name, ip), v4 = has_family(all, name, AF_INET);
    check_text_add(text, "%s%s (%s)", text->used ? ", " : "", SHOWN(name),
                   !usable                           ? "no address for others"
                   : !v4                             ? "IPv6 alone"
                   : has_family(all, name, AF_INET6) ? "IPv4, IPv6"
                                                     : "IPv4");
    return usable;
}

void check_interfaces(json_t *rows)
{
    struct ifaddrs *all = NULL;
    struct check_text text = {0};
    bool usable = false;
    struct check_row row = {"network", "interfaces", CHECK_OK,
                            "an interface that is up, with an address of IPv4 or IPv6",
                            "sudo ip link set DEV up; sudo ip address add ADDRESS/24 dev DEV"};
    if (getifaddrs(&all) != 0) {
        row.status = CHECK_SKIPPED;
        check_add(rows, &row, "cannot list the interfaces: %s", strerror(errno));
        return;
    }
    for (const struct ifaddrs *one = all; one; one = one->ifa_next)
        if (is_outward(one)) usable |= interface_add(all, one->ifa_name, &text);
    freeifaddrs(all);
    if (!usable) row.status = CHECK_WARNING;
    check_add(rows, &row, "%s", text.used ? text.text : "only the loopback");
}

/* ---- the rendezvous ---------------------------------------------------------------------------------------------- */

void check_rendezvous(json_t *rows)
{
    expar_unique_id id;
    char text[BOOT_PLACE_TEXT];
    bool loopback = true;
    struct check_row row = {"network", "rendezvous", CHECK_OK, "ranks can connect to the place where they meet",
                            "EXPAR_BOOTSTRAP_INTERFACE=DEV   (`ip address` lists the interfaces)"};
    if (expar_unique_id_create(&id) != EXPAR_OK) {
        row.status = CHECK_FAILURE;
        check_add(rows, &row, "%s", expar_last_error());
        return;
    }
    const int error = boot_id_reach(&id, text, &loopback);
    expar_unique_id_retire(&id);
    if (error) row.status = CHECK_FAILURE;
    check_add(rows, &row, "%s%s%s", text,
              error      ? ": "
              : loopback ? ", for ranks of this host"
                         : "",
              error ? strerror(error) : "");
}

/* ---- providers --------------------------------------------------------------------------------------------------- */

/* Finds the transport that reaches other hosts. Its note begins with the provider, and goes on with a device, an
   address and figures, which differ between ranks. */
static bool network_find(const expar_group *group, char note[512])
{
    const char *name;
    for (int32_t i = 0; expar_transport_describe(group, i, &name, note, 512); i++) {
        if (strcmp(name, "fabric") != 0) continue;
        char *rest = strstr(note, " on ");
        if (rest) *rest = 0;
        return true;
    }
    return false;
}

void check_providers(const struct check_site *site, const expar_group *group, bool needed, json_t *rows)
{
    char note[512] = "";
    const char *missing = expar_transport_missing(group);
    struct check_row row = {"network", "providers", CHECK_OK, "a provider of libfabric that reaches other hosts",
                            INFO_NETWORK_REMEDY};
    if (!network_find(group, note)) {
        const char *chosen = getenv("EXPAR_TRANSPORTS");
        row.status = needed ? CHECK_FAILURE : CHECK_WARNING;
        if (!missing && chosen && *chosen) row.remedy = "unset EXPAR_TRANSPORTS   (it leaves the network out)";
        check_add(rows, &row, "%s", missing ? missing : "no network among the transports");
        return;
    }
    if (check_count_rdma(site) > 0 && strstr(note, "tcp")) {
        row.status = CHECK_WARNING;
        row.expected = "the RDMA devices are used";
        row.remedy = "sudo apt-get install libibverbs1 ibverbs-providers   (fi_info -l lists the providers)";
    }
    check_add(rows, &row, "%s", note);
}
