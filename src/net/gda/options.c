/* SPDX-License-Identifier: Apache-2.0 */
/* The variables EXPAR_GDA_*. */
#include "net/gda/options.h"

#include "base/shown.h"
#include "net/gda/space.h"

#include <stddef.h>
#include <string.h>

/* ---- numbers and words ------------------------------------------------------------------------------------------- */

static expar_status read_power(const char *name, int64_t least, int64_t most, uint32_t *value)
{
    int64_t number = *value;
    expar_status status = env_int(name, least, most, &number);
    if (status != EXPAR_OK) return status;
    if (number & (number - 1))
        return error_set(EXPAR_ERR_ARGUMENT, "%s=%lld: expected a power of two", name, (long long)number);
    *value = (uint32_t)number;
    return EXPAR_OK;
}

static expar_status read_nic(gda_options *o)
{
    const char *kind = env_string("EXPAR_GDA_NIC");
    o->process = kind && strcmp(kind, "process") == 0;
    o->software = o->process || (kind && strcmp(kind, "software") == 0);
    o->device = kind && strcmp(kind, "device") == 0;
    if (!kind || o->software || o->device) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "EXPAR_GDA_NIC=%s: expected software, process or device", SHOWN(kind));
}

/* `auto` leaves it to the threads that post, where they can. */
static expar_status read_ringer(gda_options *o)
{
    const char *word = env_string("EXPAR_GDA_RINGER");
    o->ringer = GDA_RINGER_GPU;
    o->ringer_is_free = !word || strcmp(word, "auto") == 0;
    if (o->ringer_is_free || strcmp(word, "gpu") == 0) return EXPAR_OK;
    if (strcmp(word, "cpu") != 0)
        return error_set(EXPAR_ERR_ARGUMENT, "EXPAR_GDA_RINGER=%s: expected gpu, cpu or auto", SHOWN(word));
    o->ringer = GDA_RINGER_CPU;
    return EXPAR_OK;
}

static expar_status read_place(gda_options *o)
{
    const char *word = env_string("EXPAR_GDA_QUEUE_MEMORY");
    o->place = GDA_PLACE_HOST;
    o->serves_kernels = word != NULL;
    for (int p = GDA_PLACE_HOST; word && p <= GDA_PLACE_DEVICE; p++) {
        o->place = (gda_place)p;
        if (strcmp(word, gda_place_name(o->place)) == 0) return EXPAR_OK;
    }
    if (!word) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "EXPAR_GDA_QUEUE_MEMORY=%s: expected host, pinned or device", SHOWN(word));
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static expar_status read_small(const char *name, int64_t most, uint8_t *value)
{
    int64_t number = *value;
    expar_status status = env_int(name, 0, most, &number);
    if (status == EXPAR_OK) *value = (uint8_t)number;
    return status;
}

/* 256 to 4096 become 1 to 5. */
static expar_status read_mtu(uint8_t *mtu)
{
    uint32_t bytes = 0;
    expar_status status = read_power("EXPAR_GDA_MTU", 256, 4096, &bytes);
    if (status == EXPAR_OK && bytes) *mtu = (uint8_t)(__builtin_ctz(bytes) - 7);
    return status;
}

/* The defaults are values that are known to work. */
static expar_status read_connection(gda_options *o)
{
    uint32_t reads = 16;
    o->hop_limit = 255;
    o->retries = o->rnr_retries = 7;
    o->rnr_timer = 12;
    o->ack_timeout = 20;
    expar_status status = read_mtu(&o->mtu);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_HOP_LIMIT", 255, &o->hop_limit);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_TRAFFIC_CLASS", 255, &o->traffic_class);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_SERVICE_LEVEL", 15, &o->service_level);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_RETRIES", 7, &o->retries);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_RNR_RETRIES", 7, &o->rnr_retries);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_RNR_TIMER", 31, &o->rnr_timer);
    if (status == EXPAR_OK) status = read_small("EXPAR_GDA_ACK_TIMEOUT", 31, &o->ack_timeout);
    if (status == EXPAR_OK) status = read_power("EXPAR_GDA_READS", 1, 128, &reads);
    o->reads = (uint8_t)reads;
    return status;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* The faults that do no harm to a program. Those that break a queue are for tests of the device alone. */
static const struct {
    const char *name;
    size_t place;
} faults[] = {
    {"delay", offsetof(nic_faults, delay_turns)},       {"drop", offsetof(nic_faults, drop_one_in)},
    {"lose", offsetof(nic_faults, lose_answer_one_in)}, {"coalesce", offsetof(nic_faults, coalesce_one_in)},
    {"shuffle", offsetof(nic_faults, shuffle_one_in)},  {"late", offsetof(nic_faults, late_reads_one_in)},
    {"fail", offsetof(nic_faults, fail_one_in)},        {"reroute", offsetof(nic_faults, reroute_one_in)},
};

static bool parse_count(const char *text, size_t length, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *value = *value * 10 + (uint64_t)(text[i] - '0');
    }
    return length > 0 && length <= 9;
}

/* Takes one word of `length` letters, as "drop=10". Returns false if it is none. */
static bool take_fault(const char *word, size_t length, nic_faults *out)
{
    const char *equals = memchr(word, '=', length);
    uint64_t value;
    if (!equals || !parse_count(equals + 1, length - (size_t)(equals + 1 - word), &value)) return false;
    const size_t name_length = (size_t)(equals - word);
    if (name_length == 4 && memcmp(word, "seed", 4) == 0) {
        out->seed = value;
        return true;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(faults); i++) {
        const uint32_t number = (uint32_t)value;
        if (strlen(faults[i].name) != name_length || memcmp(word, faults[i].name, name_length) != 0) continue;
        memcpy((char *)out + faults[i].place, &number, sizeof number);
        return true;
    }
    return false;
}

static expar_status read_faults(nic_faults *out)
{
    const char *text = env_string("EXPAR_GDA_NIC_FAULTS");
    *out = (nic_faults){.rnr_retries = 7};
    for (const char *at = text; at && *at;) {
        const size_t length = strcspn(at, ",");
        if (!take_fault(at, length, out))
            return error_set(EXPAR_ERR_ARGUMENT,
                             "EXPAR_GDA_NIC_FAULTS=%s: expected words such as drop=10, with commas between them; the "
                             "names are seed, delay, drop, lose, coalesce, shuffle, late, fail, reroute",
                             SHOWN(text));
        at += length + (at[length] == ',');
    }
    return EXPAR_OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

expar_status gda_options_read(gda_options *out)
{
    gda_options o = {.depth = 1024, .batch = 16};
    int64_t queues = 1, gid_index = -1, adaptive = 0;
    expar_status status = read_nic(&o);
    if (status == EXPAR_OK) status = read_faults(&o.faults);
    if (status == EXPAR_OK) status = env_int("EXPAR_GDA_QPS_PER_PEER", 1, GDA_MOST_QUEUES, &queues);
    if (status == EXPAR_OK) status = read_power("EXPAR_GDA_QUEUE_DEPTH", GDA_LEAST_DEPTH, GDA_MOST_BLOCKS, &o.depth);
    if (status == EXPAR_OK) status = read_power("EXPAR_GDA_BATCH", 1, GDA_MOST_BATCH, &o.batch);
    if (status == EXPAR_OK) status = read_ringer(&o);
    if (status == EXPAR_OK) status = read_place(&o);
    if (status == EXPAR_OK && o.process && o.serves_kernels)
        status =
            error_set(EXPAR_ERR_ARGUMENT,
                      "EXPAR_GDA_QUEUE_MEMORY=%s: expected no value with EXPAR_GDA_NIC=process, where kernels have "
                      "no queues",
                      gda_place_name(o.place));
    if (status == EXPAR_OK) status = env_int("EXPAR_GDA_ADAPTIVE_ROUTING", 0, 1, &adaptive);
    if (status == EXPAR_OK) status = env_int("EXPAR_GDA_GID_INDEX", 0, 255, &gid_index);
    if (status == EXPAR_OK) status = read_connection(&o);
    if (status != EXPAR_OK) return status;
    o.queues_per_peer = (uint32_t)queues;
    o.gid_index = (int32_t)gid_index;
    o.reorders = adaptive != 0;
    o.devices = env_string("EXPAR_GDA_DEVICES");
    *out = o;
    return EXPAR_OK;
}
