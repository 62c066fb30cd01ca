/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the provider: the one that EXPAR_FABRIC_PROVIDER names, else the first of the table that is there and has all
 * that is needed. */
#include "base/shown.h"
#include "net/fabric/fabric.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The version of the interface for which this code was written. */
#define INTERFACE FI_VERSION(1, 15)

/* In the order of preference. The code does not rely on any provider's order: an operation that must come after another
 * is posted when that one has been delivered. Yet TCP keeps order, since its data is read from a stream. */
static const fabric_quirks table[] = {
    {.provider = "cxi", .place = FABRIC_OWN_DEVICES, .note = "the NIC does the atomics"},
    {.provider = "efa", .place = FABRIC_OWN_DEVICES, .note = "orders nothing"},
    {.provider = "verbs;ofi_rxm",
     .coherent = true,
     .early = true,
     .place = FABRIC_NAMED,
     .note = "atomics run on the target's processor; a read confirms each put"},
    {.provider = "tcp;ofi_rxm",
     .coherent = true,
     .ascends = true,
     .place = FABRIC_OVER_IP,
     .note = "atomics run on the target's processor; the target must make progress"},
};
static const fabric_quirks unknown = {
    .provider = "", .place = FABRIC_OVER_IP, .note = "not known to the table of quirks"};

static const fabric_quirks *quirks_of(const char *provider)
{
    for (size_t i = 0; i < ARRAY_LENGTH(table); i++)
        if (strcmp(table[i].provider, provider) == 0) return &table[i];
    return &unknown;
}

static bool is_address(const char *text)
{
    unsigned char bytes[16];
    return inet_pton(AF_INET, text, bytes) == 1 || inet_pton(AF_INET6, text, bytes) == 1;
}

/* Where the endpoints shall be. "": the provider's first choice. */
typedef struct source {
    char address[BOOT_IP_TEXT];
    const char *domain; /* libfabric's own name of a device, or NULL */
} source;

/* Finds the local address. For an interface, libfabric's tcp takes the first address that the system lists. That may be
 * a link-local one, which is useless to a peer, so the address is looked up here. Without a setting it is the address
 * at which the ranks met, because there the others reach this host. If the user sets libfabric's own variable, the
 * choice is left to libfabric. */
static source find_source(const transport_site *site, fabric_place place)
{
    source from = {0};
    const char *named = env_string("EXPAR_FABRIC_INTERFACE");
    const char *ip = site->boot->ip[0] ? site->boot->ip : "127.0.0.1";
    if (place == FABRIC_OWN_DEVICES) return from;
    if (named && is_address(named))
        snprintf(from.address, sizeof from.address, "%s", named);
    else if (named && !boot_interface_ip(named, from.address))
        from.domain = named;
    else if (!named && place == FABRIC_OVER_IP && !env_foreign("FI_TCP_IFACE"))
        snprintf(from.address, sizeof from.address, "%s", ip);
    return from;
}

static void set_hints(struct fi_info *hints, uint32_t traffic_class)
{
    hints->caps = FI_RMA | FI_ATOMIC;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->tclass = hints->domain_attr->tclass = traffic_class;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->av_type = FI_AV_TABLE;
}

/* Keeps only the results of the device. A provider that knows no device of that name may give all it has. */
static struct fi_info *only(const fabric_library *library, struct fi_info *found, const char *device)
{
    struct fi_info *one = found;
    while (one && strcmp(one->domain_attr->name, device) != 0)
        one = one->next;
    struct fi_info *copy = one ? library->dupinfo(one) : NULL;
    library->freeinfo(found);
    return copy;
}

/* Returns NULL if the provider is not there. libfabric frees the names with the hints. */
static struct fi_info *ask(const fabric_library *library, const char *provider, const source *from,
                           uint32_t traffic_class)
{
    struct fi_info *found = NULL, *hints = library->dupinfo(NULL);
    if (!hints) return NULL;
    set_hints(hints, traffic_class);
    hints->fabric_attr->prov_name = strdup(provider);
    if (from->domain) hints->domain_attr->name = strdup(from->domain);
    bool fixed = from->address[0] != 0;
    int code = library->getinfo(INTERFACE, fixed ? from->address : NULL, NULL, fixed ? FI_SOURCE : 0, hints, &found);
    library->freeinfo(hints);
    if (code != 0) return NULL;
    return from->domain ? only(library, found, from->domain) : found;
}

static expar_status report_none(const char *named, const source *from)
{
    const char *where = from->address[0] ? from->address : from->domain;
    if (named && !from->domain)
        return error_set(
            EXPAR_ERR_UNSUPPORTED,
            "EXPAR_FABRIC_PROVIDER: libfabric has no provider %s with remote reads, writes and "
            "atomics%s%s: expected one that fi_info -l lists, such as tcp;ofi_rxm (Debian: apt-get install "
            "libfabric1 libfabric-bin)",
            SHOWN(named), where ? " on " : "", where ? where : "");
    if (from->domain)
        return error_set(EXPAR_ERR_ARGUMENT,
                         "'%s' is no interface that is up and has an address which other hosts could reach, and no "
                         "device of libfabric's: `ip address` and `fi_info` list them",
                         SHOWN(from->domain));
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "libfabric has no provider of cxi, efa, verbs;ofi_rxm, tcp;ofi_rxm with remote reads, writes and "
                     "atomics%s%s: see fi_info -l (Debian: apt-get install libfabric1 libfabric-bin)",
                     where ? " on " : "", where ? where : "");
}

/* A class that a provider does not have is no reason to take another provider. */
static struct fi_info *ask_all(const fabric_library *library, const char *provider, const source *from,
                               uint32_t traffic_class)
{
    struct fi_info *found = ask(library, provider, from, traffic_class);
    return found || traffic_class == FI_TC_UNSPEC ? found : ask(library, provider, from, FI_TC_UNSPEC);
}

expar_status fabric_choose(fabric *f)
{
    const char *named = env_string("EXPAR_FABRIC_PROVIDER");
    source from = {0};
    expar_status status = fabric_traffic_read(&f->traffic_class);
    if (status != EXPAR_OK) return status;
    size_t candidates = named ? 1 : ARRAY_LENGTH(table);
    for (size_t i = 0; i < candidates && !f->info; i++) {
        f->quirks = named ? quirks_of(named) : &table[i];
        from = find_source(f->site, f->quirks->place);
        f->info = ask_all(f->library, named ? named : f->quirks->provider, &from, f->traffic_class);
    }
    if (!f->info) return report_none(named, &from);
    f->ascends = f->quirks->ascends && !env_foreign("FI_TCP_IO_URING");
    fabric_traffic_judge(f);
    return EXPAR_OK;
}
