/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the fabric transport, its creation and its end. */
#include "net/fabric/fabric.h"
#include "base/knobs.h"
#include "base/shown.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES 4096u

expar_status fabric_error(const fabric *f, expar_status status, int code, const char *what)
{
    return error_set(status, "%s: %s", what, f->library->strerror(-code));
}

expar_status fabric_peer_error(const fabric *f, int32_t pe, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    f->site->told(f->site->context, pe);
    return error_set(EXPAR_ERR_PEER, "%s", text);
}

expar_status fabric_explain(const fabric *f, int32_t pe, const char *what)
{
    return f->opened ? f->site->explain(f->site->context, pe, what) : EXPAR_OK;
}

static fabric *fabric_of(const transport *self)
{
    return (fabric *)(uintptr_t)self;
}

/* ---- making and end ---------------------------------------------------------------------------------------------- */

static void fabric_close(transport *self)
{
    fabric *f = fabric_of(self);
    fabric_thread_stop(f);
    fabric_segments_free(f);
    fabric_owns_free(f->owns);
    if (f->page) free(f->page->base);
    fabric_extent_close(f->page);
    fabric_channels_close(f);
    if (f->domain) fi_close(&f->domain->fid);
    if (f->fabric) fi_close(&f->fabric->fid);
    if (f->info) f->library->freeinfo(f->info);
    free(f->lost);
    free(f->answers);
    free(f);
}

static fabric *fabric_new(const transport_site *site)
{
    fabric *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->base.ops = &transport_fabric;
    f->site = site;
    f->rank = site->boot->rank;
    f->size = site->boot->size;
    f->wake_event = f->nudge_event = -1;
    f->spins = site->crowded ? 0 : knob_count(KNOB_FABRIC_SPINS);
    f->lost = calloc((size_t)f->size, sizeof *f->lost);
    f->answers = calloc((size_t)f->size, sizeof *f->answers);
    f->owns = fabric_owns_new();
    if (fabric_segments_make(f) && f->lost && f->answers && f->owns) return f;
    fabric_segments_free(f);
    fabric_owns_free(f->owns);
    free(f->lost);
    free(f->answers);
    free(f);
    return NULL;
}

static expar_status read_channels(fabric *f)
{
    int64_t channels = 1;
    expar_status status = env_int("EXPAR_FABRIC_CHANNELS", 1, FABRIC_MAX_CHANNELS, &channels);
    /* Memory that is registered for one endpoint cannot be reached through another. */
    bool one = f->info->domain_attr->mr_mode & FI_MR_ENDPOINT;
    f->num_channels = one ? 1 : (int32_t)channels;
    if (one && channels > 1 && f->rank == 0)
        LOG(LOG_WARN,
            "EXPAR_FABRIC_CHANNELS=%d: provider %s registers memory for one endpoint (FI_MR_ENDPOINT), so there is one",
            (int)channels, f->info->fabric_attr->prov_name);
    return status;
}

static expar_status open_domain(fabric *f)
{
    expar_status status = fabric_library_open(&f->library);
    if (status == EXPAR_OK) status = fabric_choose(f);
    if (status == EXPAR_OK) status = read_channels(f);
    if (status != EXPAR_OK) return status;
    int code = f->library->fabric(f->info->fabric_attr, &f->fabric, NULL);
    if (code == 0) code = fi_domain(f->fabric, f->info, &f->domain, NULL);
    if (code != 0) return fabric_error(f, EXPAR_ERR_UNSUPPORTED, code, "opening a domain of libfabric");
    status = fabric_keys_open(f);
    return status == EXPAR_OK ? fabric_channels_open(f) : status;
}

/* Opens everything that needs no peer. */
static expar_status open_locally(fabric *f)
{
    const char *interface = env_string("EXPAR_FABRIC_INTERFACE");
    expar_status status = open_domain(f);
    return status == EXPAR_OK || !interface ? status
                                            : error_prefix(status, "EXPAR_FABRIC_INTERFACE=%s", SHOWN(interface));
}

static expar_status open_page(fabric *f)
{
    void *page = NULL;
    if (posix_memalign(&page, PAGE_BYTES, PAGE_BYTES) != 0)
        return error_set(EXPAR_ERR_MEMORY, "no memory for the self-test's page");
    memset(page, 0, PAGE_BYTES);
    expar_status status =
        fabric_extent_open(f, f->site->segments[TRANSPORT_HOST].region->bytes, PAGE_BYTES, page, &f->page);
    if (status != EXPAR_OK) free(page);
    return status;
}

/* The self-test is over; what it sent does not count as traffic. */
static void forget_traffic(fabric *f)
{
    for (int32_t i = 0; i < f->num_channels; i++) {
        pthread_mutex_lock(&f->channels[i].lock);
        f->channels[i].traffic = (transport_traffic){0};
        pthread_mutex_unlock(&f->channels[i].lock);
    }
}

static expar_status fabric_open(const transport_site *site, transport **out)
{
    fabric *f = fabric_new(site);
    if (!f) return error_set(EXPAR_ERR_MEMORY, "no memory for the fabric transport of %d ranks", site->boot->size);
    expar_status status = fabric_channels_connect(f, open_locally(f));
    /* No rank connects before the keys of the page are exchanged, and so not before all ranks accept connections. */
    if (status == EXPAR_OK) fabric_admission_open(f);
    if (status == EXPAR_OK) status = open_page(f);
    if (status == EXPAR_OK) status = fabric_thread_start(f);
    if (status == EXPAR_OK) status = fabric_selftest(f);
    if (status == EXPAR_OK) fabric_admission_shut(f);
    if (status == EXPAR_OK) status = fabric_end_strangers(f);
    if (status != EXPAR_OK) {
        fabric_close(&f->base);
        return status;
    }
    forget_traffic(f);
    f->opened = true;
    *out = &f->base;
    return EXPAR_OK;
}

static expar_status fabric_add(transport *self, transport_memory memory)
{
    if (fabric_segment_make(fabric_of(self), memory)) return EXPAR_OK;
    return error_set(EXPAR_ERR_MEMORY, "no memory for the records of extents");
}

static expar_status fabric_grow(transport *self, transport_memory memory, uint64_t offset, uint64_t bytes)
{
    return fabric_segment_grow(fabric_of(self), memory, offset, bytes);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static unsigned fabric_reach(const transport *self, int32_t pe, transport_memory memory)
{
    const fabric *f = fabric_of(self);
    (void)pe;
    if (!fabric_serves(f, memory)) return 0;
    return TRANSPORT_PUT | TRANSPORT_GET | TRANSPORT_ATOMIC | (f->quirks->coherent ? TRANSPORT_COHERENT : 0);
}

static void *fabric_map(const transport *self, int32_t pe, transport_memory memory, uint64_t offset)
{
    (void)self;
    (void)pe;
    (void)memory;
    (void)offset;
    return NULL;
}

/* Small sources are copied, so that many puts are in progress at once; the call waits for large ones. */
static expar_status fabric_run_request(transport *self, const transport_request *request)
{
    fabric *f = fabric_of(self);
    const char *what = request->kind == TRANSPORT_KIND_PUT   ? "put"
                       : request->kind == TRANSPORT_KIND_GET ? "get"
                                                             : "atomic";
    const bool waits =
        request->kind == TRANSPORT_KIND_PUT ? request->bytes > FABRIC_STAGE_BYTES : request->dest != NULL;
    return waits ? fabric_run(f, what, request)
                 : fabric_post_soon(f, what, &(fabric_sending){.request = request}, NULL);
}

/* For puts whose signal cannot be left to the op's record: sends the data first, and the signal when it is there. */
static expar_status put_then_signal(fabric *f, const transport_request *request, transport_batch *batch)
{
    transport_request data = *request, signal = fabric_signal_of(request);
    data.signals = false;
    expar_status status = data.bytes > 0 ? fabric_run(f, "put", &data) : EXPAR_OK;
    if (status != EXPAR_OK) return status;
    return fabric_post_soon(f, "signal", &(fabric_sending){.request = &signal}, batch);
}

static expar_status fabric_post_request(transport *self, const transport_request *request, transport_batch *batch)
{
    fabric *f = fabric_of(self);
    fabric_sending sending = {.request = request};
    if (request->flagged && !fabric_comes_in_order(f, request)) {
        const transport_request apart = transport_flag_apart(request);
        return fabric_post_request(self, &apart, batch);
    }
    bool too_large = request->copies && request->bytes > FABRIC_STAGE_BYTES;
    if (request->signals && (too_large || request->bytes == 0)) return put_then_signal(f, request, batch);
    if (too_large) return fabric_run(f, "put", request);
    expar_status status = fabric_post(f, &sending, batch);
    if (status == EXPAR_ERR_BUSY && (sending.done > 0 || sending.after))
        status = fabric_post_soon(f, "post", &sending, batch);
    fabric_sending_end(f, &sending, status);
    return status;
}

static bool fabric_joins_all(const transport *self, const transport_request *put)
{
    return fabric_joins(fabric_of((transport *)self), put);
}

static void fabric_give_up(transport *self, int32_t pe, transport_batch *batch)
{
    fabric_drop(fabric_of(self), pe, batch, EXPAR_ERR_PEER);
}

static expar_status fabric_fence_all(transport *self)
{
    fabric *f = fabric_of(self);
    return fabric_settle(f, "fence", &f->plain);
}

static expar_status fabric_quiet_all(transport *self)
{
    fabric *f = fabric_of(self);
    return fabric_settle(f, "quiet", &f->plain);
}

static expar_status fabric_settle_batch(transport *self, transport_batch *batch)
{
    return fabric_settle(fabric_of(self), "quiet", batch);
}

static bool fabric_move(transport *self)
{
    return fabric_progress(fabric_of(self));
}

static void fabric_see(transport *self)
{
    fabric_behold(fabric_of(self));
}

static void fabric_attend_to(transport *self, int change)
{
    fabric_attend(fabric_of(self), change);
}

static bool fabric_arm_sleep(transport *self)
{
    return fabric_arm(fabric_of(self));
}

static bool fabric_rest(transport *self, int64_t limit_ns)
{
    return fabric_sleep(fabric_of(self), limit_ns, -1);
}

static void fabric_describe(const transport *self, char *text, size_t text_bytes)
{
    const fabric *f = fabric_of(self);
    char here[FABRIC_ADDRESS_TEXT], traffic[FABRIC_TRAFFIC_TEXT];
    fabric_address_text(f, f->rank, here);
    fabric_traffic_text(f, traffic);
    snprintf(text, text_bytes, "provider %s on %s at %s (%s), %d channel%s%s; self-test: %s",
             f->info->fabric_attr->prov_name, f->info->domain_attr->name, here, f->quirks->note, f->num_channels,
             f->num_channels == 1 ? "" : "s", traffic, f->verdict);
}

static void count_add(transport_count *sum, const transport_count *one)
{
    sum->operations += one->operations;
    sum->bytes += one->bytes;
}

static void fabric_add_traffic(const transport *self, transport_traffic *sum)
{
    const fabric *f = fabric_of(self);
    for (int32_t i = 0; i < f->num_channels; i++) {
        fabric_channel *c = &f->channels[i];
        pthread_mutex_lock(&c->lock);
        count_add(&sum->puts, &c->traffic.puts);
        count_add(&sum->gets, &c->traffic.gets);
        count_add(&sum->atomics, &c->traffic.atomics);
        pthread_mutex_unlock(&c->lock);
    }
}

static expar_status fabric_register_memory(transport *self, void *address, uint64_t bytes)
{
    return fabric_register_own(fabric_of(self), address, bytes);
}

static void fabric_unregister_memory(transport *self, const void *address)
{
    fabric_unregister_own(fabric_of(self), address);
}

const transport_ops transport_fabric = {
    .name = "fabric",
    .summary = "all ranks, by libfabric",
    .open = fabric_open,
    .add = fabric_add,
    .grow = fabric_grow,
    .register_own = fabric_register_memory,
    .unregister_own = fabric_unregister_memory,
    .reach = fabric_reach,
    .map = fabric_map,
    .run = fabric_run_request,
    .post = fabric_post_request,
    .joins = fabric_joins_all,
    .drop = fabric_give_up,
    .fence = fabric_fence_all,
    .quiet = fabric_quiet_all,
    .settle = fabric_settle_batch,
    .progress = fabric_move,
    .behold = fabric_see,
    .attend = fabric_attend_to,
    .arm = fabric_arm_sleep,
    .sleep = fabric_rest,
    .describe = fabric_describe,
    .add_traffic = fabric_add_traffic,
    .close = fabric_close,
};
