/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, connects and closes channels. A channel has an endpoint, a completion queue, staging memory, and the addresses
 * of the peers' endpoints. */
#include "base/knobs.h"
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The addresses of a rank's endpoints, which all ranks exchange. */
typedef struct introduction {
    uint8_t names[FABRIC_MAX_CHANNELS][FABRIC_NAME_BYTES];
} introduction;

static expar_status open_queue(fabric *f, fabric_channel *c)
{
    struct fi_cq_attr attr = {
        .size = 2 * knob_count(KNOB_FABRIC_IN_FLIGHT), .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
    int code = fi_cq_open(f->domain, &attr, &c->cq, NULL);
    if (code != 0)
        return fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "a completion queue with a wait object (FI_WAIT_FD)");
    code = fi_control(&c->cq->fid, FI_GETWAIT, &c->wait_fd);
    return code == 0 ? EXPAR_OK : fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "a queue's wait object");
}

static expar_status open_endpoint(fabric *f, fabric_channel *c)
{
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = (size_t)f->size};
    int code = fi_av_open(f->domain, &attr, &c->av, NULL);
    if (code == 0) code = fi_endpoint(f->domain, f->info, &c->ep, NULL);
    if (code == 0) code = fi_ep_bind(c->ep, &c->av->fid, 0);
    if (code == 0) code = fi_ep_bind(c->ep, &c->cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0) code = fi_enable(c->ep);
    if (code != 0) return fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "opening an endpoint");
    fabric_admission_find(f, c);
    fabric_admission_drop(c);
    return EXPAR_OK;
}

/* Returns how many operations a channel may have under way: half of what the provider's queue holds, so that the
   provider rejects none for lack of space. It is 16 at least, and the knob's number at most. */
static uint32_t count_ops(const fabric *f)
{
    const uint32_t wanted = knob_count(KNOB_FABRIC_IN_FLIGHT);
    size_t most = f->info->tx_attr->size / 2;
    return most < 16 ? 16 : most < wanted ? (uint32_t)most : wanted;
}

static expar_status make_ops(fabric *f, fabric_channel *c)
{
    c->num_ops = count_ops(f);
    f->most_in_flight = f->size > 2 ? c->num_ops / 4 : c->num_ops / 2;
    size_t bytes = (size_t)c->num_ops * FABRIC_STAGE_BYTES;
    c->ops = calloc(c->num_ops, sizeof *c->ops);
    c->addresses = calloc((size_t)f->size, sizeof *c->addresses);
    c->in_flight = calloc((size_t)f->size, sizeof *c->in_flight);
    if (!c->ops || !c->addresses || !c->in_flight ||
        posix_memalign((void **)&c->staging, FABRIC_STAGE_BYTES, bytes) != 0)
        return error_set(EXPAR_ERR_MEMORY, "no memory for %u operations", c->num_ops);
    for (uint32_t i = 0; i < c->num_ops; i++) {
        c->ops[i].stage = c->staging + (size_t)i * FABRIC_STAGE_BYTES;
        c->ops[i].next = c->unused;
        c->unused = &c->ops[i];
    }
    if (!(f->info->domain_attr->mr_mode & FI_MR_LOCAL)) return EXPAR_OK;
    int code = fabric_register(f, c->staging, bytes, FI_READ | FI_WRITE, &c->staging_mr);
    return code == 0 ? EXPAR_OK : fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "registering staging memory");
}

expar_status fabric_channels_open(fabric *f)
{
    expar_status status = EXPAR_OK;
    f->channels = calloc((size_t)f->num_channels, sizeof *f->channels);
    if (!f->channels) return error_set(EXPAR_ERR_MEMORY, "no memory for %d channels", f->num_channels);
    for (int32_t i = 0; i < f->num_channels; i++)
        pthread_mutex_init(&f->channels[i].lock, NULL);
    for (int32_t i = 0; i < f->num_channels && status == EXPAR_OK; i++) {
        status = open_queue(f, &f->channels[i]);
        if (status == EXPAR_OK) status = open_endpoint(f, &f->channels[i]);
        if (status == EXPAR_OK) status = make_ops(f, &f->channels[i]);
    }
    return status;
}

static expar_status introduce(const fabric *f, introduction *mine)
{
    for (int32_t i = 0; i < f->num_channels; i++) {
        size_t bytes = FABRIC_NAME_BYTES;
        int code = fi_getname(&f->channels[i].ep->fid, mine->names[i], &bytes);
        if (code != 0) return fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "an endpoint's address");
    }
    return EXPAR_OK;
}

/* Inserts one address for each peer. It is that of the endpoint by which the peer sends to this rank. */
static expar_status insert(fabric *f, const introduction *all)
{
    int32_t theirs = f->rank % f->num_channels;
    for (int32_t pe = 0; pe < f->size; pe++) {
        fabric_channel *c = fabric_channel_of(f, pe);
        if (fi_av_insert(c->av, all[pe].names[theirs], 1, &c->addresses[pe], 0, NULL) != 1)
            return error_set(EXPAR_ERR_SYSTEM, "provider %s does not accept the address of rank %d",
                             f->info->fabric_attr->prov_name, pe);
    }
    return EXPAR_OK;
}

/* Exchanges addresses. If one rank cannot open the network, no rank uses it. Such a rank has no provider to compare. */
static expar_status channel_exchange(const fabric *f, const introduction *own, expar_status mine, introduction *all)
{
    const bool known = mine == EXPAR_OK;
    const boot_field fields[] = {
        {.name = "the provider", .text = known ? f->info->fabric_attr->prov_name : ""},
        {.name = "the number of channels", .value = known ? (uint64_t)f->num_channels : BOOT_UNKNOWN}};
    const boot_matter matter = {.rejected = "cannot open it",
                                .common = EXPAR_ERR_UNSUPPORTED,
                                .lacks = "cannot open it",
                                .fields = fields,
                                .num_fields = ARRAY_LENGTH(fields),
                                .mine = own,
                                .all = all,
                                .bytes = sizeof *own};
    return boot_agree(f->site->boot, &matter, mine, NULL);
}

expar_status fabric_channels_connect(fabric *f, expar_status mine)
{
    introduction own = {{{0}}};
    if (mine == EXPAR_OK) mine = introduce(f, &own);
    introduction *all = calloc((size_t)f->size, sizeof *all);
    if (!all) return error_set(EXPAR_ERR_MEMORY, "no memory for the addresses of %d ranks", f->size);
    expar_status status = channel_exchange(f, &own, mine, all);
    if (status == EXPAR_OK) status = insert(f, all);
    free(all);
    return status;
}

void fabric_address_text(const fabric *f, int32_t pe, char text[FABRIC_ADDRESS_TEXT])
{
    const fabric_channel *c = fabric_channel_of(f, pe);
    uint8_t name[FABRIC_NAME_BYTES];
    size_t name_bytes = sizeof name, text_bytes = FABRIC_ADDRESS_TEXT;
    snprintf(text, FABRIC_ADDRESS_TEXT, "?");
    if (fi_av_lookup(c->av, c->addresses[pe], name, &name_bytes) != 0) return;
    fi_av_straddr(c->av, name, text, &text_bytes);
    text[FABRIC_ADDRESS_TEXT - 1] = 0;
}

static void close_fid(struct fid *fid)
{
    if (fid) fi_close(fid);
}

void fabric_channels_close(fabric *f)
{
    for (int32_t i = 0; f->channels && i < f->num_channels; i++) {
        fabric_channel *c = &f->channels[i];
        close_fid(c->ep ? &c->ep->fid : NULL);
        close_fid(c->av ? &c->av->fid : NULL);
        close_fid(c->cq ? &c->cq->fid : NULL);
        close_fid(c->staging_mr ? &c->staging_mr->fid : NULL);
        free(c->staging);
        free(c->ops);
        free(c->in_flight);
        free(c->addresses);
        pthread_mutex_destroy(&c->lock);
    }
    free(f->channels);
    f->channels = NULL;
}
