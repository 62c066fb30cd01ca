/* SPDX-License-Identifier: Apache-2.0 */
/* The class of the network's traffic. The user asks for a class, and this file checks whether the provider takes it.
 * Classes of libfabric also stand for service levels; a provider maps them to those of its network. */
#include "base/shown.h"
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <string.h>

#define VARIABLE "EXPAR_FABRIC_TRAFFIC_CLASS"

/* In the order of libfabric's labels. */
static const char *const labels[] = {"best-effort", "low-latency", "dedicated", "bulk", "scavenger", "control"};

expar_status fabric_traffic_read(uint32_t *traffic_class)
{
    const char *text = env_string(VARIABLE);
    int64_t number = 0;
    *traffic_class = FI_TC_UNSPEC;
    if (!text) return EXPAR_OK;
    for (uint32_t i = 0; i < ARRAY_LENGTH(labels); i++) {
        if (strcmp(labels[i], text) != 0) continue;
        *traffic_class = FI_TC_LABEL + i;
        return EXPAR_OK;
    }
    expar_status status = env_int(VARIABLE, 0, 63, &number);
    if (status != EXPAR_OK)
        return error_set(status,
                         VARIABLE "=%s: expected best-effort, low-latency, dedicated, bulk, scavenger, control, or a "
                                  "number from 0 to 63",
                         SHOWN(text));
    *traffic_class = fi_tc_dscp_set((uint8_t)number);
    return EXPAR_OK;
}

/* An endpoint without a class has the class of its domain. */
static bool is_taken(const fabric *f)
{
    uint32_t own = f->info->tx_attr->tclass;
    return (own == FI_TC_UNSPEC ? f->info->domain_attr->tclass : own) == f->traffic_class;
}

void fabric_traffic_text(const fabric *f, char text[FABRIC_TRAFFIC_TEXT])
{
    char name[16];
    text[0] = '\0';
    if (f->traffic_class == FI_TC_UNSPEC) return;
    if (f->traffic_class & FI_TC_LABEL)
        snprintf(name, sizeof name, "%s", labels[f->traffic_class - FI_TC_LABEL]);
    else
        snprintf(name, sizeof name, "%u", fi_tc_dscp_get(f->traffic_class));
    snprintf(text, FABRIC_TRAFFIC_TEXT, is_taken(f) ? ", traffic class %s" : ", without traffic classes (%s dropped)",
             name);
}

void fabric_traffic_judge(const fabric *f)
{
    if (f->rank != 0 || f->traffic_class == FI_TC_UNSPEC || is_taken(f)) return;
    LOG(LOG_WARN, VARIABLE "=%s is dropped: provider %s takes no such traffic class", SHOWN(env_string(VARIABLE)),
        f->info->fabric_attr->prov_name);
}
