/* SPDX-License-Identifier: Apache-2.0 */
/* expar_device_get. */
#include "pgas/device/parts.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(expar_device_handle) <= 128, "a handle is passed by value");
static_assert(KINDS_SYNC_ROWS >= TEAM_SLOTS, "each team has a row of words");

static const char what[] = "expar_device_get";

#define HOURS_MS(hours) ((int64_t)(hours)*3600 * 1000)

/* The request of a call. */
typedef struct handle_request {
    expar_device_options options;
    expar_team *team; /* whose numbers the handle has */
    int32_t gpu;      /* -1: the CPU */
    int64_t orphan_ms;
    kernel_ways ways;
} handle_request;

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static expar_status options_check(const expar_device_options *options)
{
    if (options->version != EXPAR_DEVICE_VERSION)
        return error_set(
            EXPAR_ERR_VERSION, "%s: options.version %u: the kernels' expar/device.h is too %s, expected version %d",
            what, options->version, options->version < EXPAR_DEVICE_VERSION ? "old" : "new", EXPAR_DEVICE_VERSION);
    if (options->target != EXPAR_DEVICE_GPU && options->target != EXPAR_DEVICE_CPU)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.target %d, expected EXPAR_DEVICE_GPU (0) or _CPU (1)", what,
                         (int)options->target);
    if (options->team && options->ctx)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: options.team and options.ctx are both set, expected at most one",
                         what);
    return EXPAR_OK;
}

static expar_status options_copy(const expar_device_options *given, expar_device_options *out)
{
    expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
    if (given && (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof options))
        return error_set(EXPAR_ERR_ARGUMENT,
                         "%s: options.struct_size %zu, expected %zu to %zu (EXPAR_DEVICE_OPTIONS_INIT)", what,
                         given->struct_size, sizeof given->struct_size, sizeof options);
    if (given) memcpy(&options, given, given->struct_size);
    *out = options;
    return options_check(out);
}

static expar_status check_owner(const char *name, const expar_group *of, const expar_group *group)
{
    if (!of) return error_set(EXPAR_ERR_HANDLE, "%s: options.%s was destroyed", what, name);
    if (of != group) return error_set(EXPAR_ERR_HANDLE, "%s: options.%s is of another group", what, name);
    return EXPAR_OK;
}

/* The first use of teams makes their table, with the words of barriers; that is collective. */
static expar_status find_world(expar_group *group, expar_team **out)
{
    team_table *table;
    expar_status status = team_table_of(group) ? EXPAR_OK : sym_check_come(group->sym, what);
    if (status == EXPAR_OK) status = team_table_open(what, group, &table);
    if (status == EXPAR_OK) *out = &table->teams[TEAM_WORLD_SLOT];
    return status;
}

static expar_status find_team(expar_group *group, handle_request *request)
{
    const expar_ctx *ctx = request->options.ctx;
    expar_status status = EXPAR_OK;
    request->team = ctx ? ctx->team : request->options.team;
    if (ctx)
        status = check_owner("ctx", request->team ? ctx->group : NULL, group);
    else if (request->team)
        status = check_owner("team", request->team->group, group);
    else
        status = find_world(group, &request->team);
    return status == EXPAR_OK ? team_check(what, request->team) : status;
}

static expar_status find_target(const expar_group *group, handle_request *request)
{
    request->gpu = -1;
    if (request->options.target == EXPAR_DEVICE_CPU) return EXPAR_OK;
    request->gpu = kinds_device(group->sym, TRANSPORT_DEVICE);
    if (request->gpu >= 0) return EXPAR_OK;
    return error_set(EXPAR_ERR_STATE,
                     "%s: this group has no device memory yet: allocate some before (expar_memory_alloc), or set "
                     "options.target to EXPAR_DEVICE_CPU",
                     what);
}

static expar_status request_read(expar_group *group, const expar_device_options *options, handle_request *out)
{
    out->orphan_ms = HOURS_MS(1);
    expar_status status = options_copy(options, &out->options);
    if (status == EXPAR_OK) status = sym_check_self(group->sym, what);
    if (status == EXPAR_OK) status = find_target(group, out);
    if (status == EXPAR_OK) status = env_seconds_ms("EXPAR_CUDA_ORPHAN_TIMEOUT", &out->orphan_ms);
    if (status == EXPAR_OK) {
        status = kernel_ways_read(&out->ways);
        if (status != EXPAR_OK) error_prefix(status, "%s", what);
    }
    return status == EXPAR_OK ? find_team(group, out) : status;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void fill_handle(const expar_group *group, const handle_request *request, handle_slot *slot)
{
    const expar_team *team = request->team;
    slot->handle = (expar_device_handle){
        .mark = (uint64_t)slot->generation << 32,
        .state = (expar_dev_state *)(uintptr_t)slot->state,
        .report = (expar_dev_report *)(uintptr_t)slot->report_address,
        .orphan_ns = (uint64_t)request->orphan_ms * 1000000,
        .version = EXPAR_DEVICE_VERSION,
        .number = slot->number,
        .me = team->me,
        .size = team->size,
        .start = team->start,
        .stride = team->stride,
        .rank = group->rank,
        .ranks = group->size,
    };
    slot->team = request->options.team || request->options.ctx ? team : NULL;
    slot->ctx = request->options.ctx;
    slot->ways = request->ways;
    slot->symmetric = group->sym;
}

static expar_status handle_make(expar_group *group, const handle_request *request, expar_device_handle *out)
{
    handles *all = NULL;
    handle_slot *slot = NULL;
    expar_status status = handles_open(what, group, &all);
    if (status == EXPAR_OK) status = slot_take(what, request->gpu, group->size, &slot);
    if (status != EXPAR_OK) return status;
    fill_handle(group, request, slot);
    status = ways_open_rings(request->team, slot);
    if (status == EXPAR_OK) status = queues_fill(group->sym, slot);
    table_fill(group, slot);
    table_fill_sync(request->team, slot);
    if (status == EXPAR_OK) status = slot_publish(slot, slot->image, slot->state_bytes);
    if (status != EXPAR_OK) {
        slot_end(slot);
        return error_prefix(status, "%s", what);
    }
    handles_add(all, slot);
    *out = slot->handle;
    return EXPAR_OK;
}

expar_status expar_device_get(expar_group *group, const expar_device_options *options, expar_device_handle *handle)
{
    handle_request request;
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    if (!handle) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: handle is NULL", what));
    if (!group_enter(group, what)) return group_ended(group, EXPAR_ERR_STATE);
    expar_status status = request_read(group, options, &request);
    if (status == EXPAR_OK) status = handle_make(group, &request, handle);
    group_leave(group);
    return group_ended(group, status);
}
