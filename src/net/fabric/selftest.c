/* SPDX-License-Identifier: Apache-2.0 */
/* The self-test at the start, since a provider may not do what it reports. Every rank puts into a page of the next one,
 * gets it back, and performs every kind of atomic there. Then it accesses all other ranks, so that connections exist
 * before calls need them. */
#include "net/fabric/fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_BYTES 2048u
#define WORD_AT    DATA_BYTES

static expar_status run_at(fabric *f, int32_t pe, transport_request request)
{
    request.pe = pe;
    request.offset += f->page->offset;
    return fabric_run(f, "self-test", &request);
}

static expar_status differs(const fabric *f, const char *what)
{
    return error_set(EXPAR_ERR_UNSUPPORTED, "the self-test of provider %s failed: %s", f->info->fabric_attr->prov_name,
                     what);
}

static expar_status try_data(fabric *f, int32_t pe)
{
    uint8_t sent[DATA_BYTES], back[DATA_BYTES] = {0};
    for (size_t i = 0; i < sizeof sent; i++)
        sent[i] = (uint8_t)(i * 7 + (size_t)f->rank * 13 + 1);
    expar_status status =
        run_at(f, pe, (transport_request){.kind = TRANSPORT_KIND_PUT, .source = sent, .bytes = sizeof sent});
    if (status == EXPAR_OK)
        status = run_at(f, pe, (transport_request){.kind = TRANSPORT_KIND_GET, .dest = back, .bytes = sizeof back});
    if (status == EXPAR_OK && memcmp(sent, back, sizeof sent) != 0)
        status = differs(f, "what was put and had been delivered was not there to be got");
    return status;
}

static expar_status try_atomics(fabric *f, int32_t pe, size_t bytes)
{
    static const struct {
        transport_atomic_op op;
        uint64_t operand, compare, before; /* before: the word's value until then */
    } steps[] = {
        {TRANSPORT_SET, 12, 0, 0},          {TRANSPORT_ADD, 30, 0, 12}, {TRANSPORT_COMPARE_SWAP, 15, 42, 42},
        {TRANSPORT_COMPARE_SWAP, 1, 2, 15}, {TRANSPORT_AND, 7, 0, 15},  {TRANSPORT_OR, 24, 0, 7},
        {TRANSPORT_XOR, 1, 0, 31},          {TRANSPORT_SWAP, 5, 0, 30}, {TRANSPORT_FETCH, 0, 0, 5},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(steps); i++) {
        uint64_t old64 = 0;
        uint32_t old32 = 0;
        expar_status status = run_at(f, pe,
                                     (transport_request){.kind = TRANSPORT_KIND_ATOMIC,
                                                         .offset = WORD_AT + 8 * bytes,
                                                         .dest = bytes == 8 ? (void *)&old64 : (void *)&old32,
                                                         .bytes = bytes,
                                                         .op = steps[i].op,
                                                         .operand = steps[i].operand,
                                                         .compare = steps[i].compare});
        if (status != EXPAR_OK) return status;
        if (i > 0 && (bytes == 8 ? old64 : old32) != steps[i].before)
            return differs(f, "an atomic operation gave a wrong value");
    }
    return EXPAR_OK;
}

static expar_status touch_all(fabric *f)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 1; i <= f->size && status == EXPAR_OK; i++) {
        uint64_t word;
        status = run_at(f, (f->rank + i) % f->size,
                        (transport_request){.kind = TRANSPORT_KIND_GET, .dest = &word, .bytes = sizeof word});
    }
    return status;
}

/* All ranks get the same result, so that none uses a transport that another has given up. */
static expar_status selftest_agree(const fabric *f, expar_status mine)
{
    const boot_matter matter = {.rejected = "failed", .common = EXPAR_ERR_UNSUPPORTED, .lacks = "failed the self-test"};
    return boot_agree(f->site->boot, &matter, mine == EXPAR_OK ? EXPAR_OK : EXPAR_ERR_UNSUPPORTED, NULL);
}

expar_status fabric_selftest(fabric *f)
{
    int32_t next = (f->rank + 1) % f->size;
    int64_t start_ns = clock_ns();
    expar_status status = try_data(f, next);
    if (status == EXPAR_OK) status = try_atomics(f, next, 4);
    if (status == EXPAR_OK) status = try_atomics(f, next, 8);
    if (status == EXPAR_OK) status = touch_all(f);
    status = selftest_agree(f, status);
    snprintf(f->verdict, sizeof f->verdict, "puts, gets and atomics %s in %.1f ms",
             status == EXPAR_OK ? "right" : "WRONG", (double)(clock_ns() - start_ns) * 1e-6);
    return status;
}
