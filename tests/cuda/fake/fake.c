/* SPDX-License-Identifier: Apache-2.0 */
/* A driver without GPUs, for tests on machines that have none. Memory is real: files in memory, mapped on request, and
 * passed by descriptors and by IPC. Streams complete at once, or by themselves (streams.c, queue.c). Few kernels can be
 * launched (kernels.c). They run in the launching thread, on the default stream one at a time, and keep modules out
 * meanwhile (modules.c). Missing calls fail as "not supported" (stubs made from the table in cuda/driver.h). Its
 * environment variables are in tests/environment.md. */
#include "fake.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS       4096
#define SETTINGS    32 /* more than there are */
#define TOTAL_BYTES ((size_t)4 << 30)
#define TAKEN_BYTES ((size_t)512 << 20) /* by others, as a context takes some */
#define PAGE        ((size_t)2 << 20)

/* Physical memory, and memory of MemAlloc. */
typedef struct slot {
    int fd;
    size_t bytes;
    void *at;   /* of MemAlloc */
    int device; /* its GPU */
    bool used;
    bool shared;               /* of cuMemCreate: other processes may have it */
    int holders, mappings;     /* of physical memory: references, and ranges where it is mapped */
    bool lent;                 /* in the order of a stream: it has no handle */
    unsigned long long number; /* of MemAlloc: no other allocation has it */
} slot;

/* Where physical memory is mapped, also once it has been released. */
typedef struct range {
    cu_address begin;
    size_t bytes; /* 0: no range */
    int device;
    cu_address copied; /* where copies reach it; 0: at the same place */
    int memory;        /* its slot; 0: it has none */
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot slots[SLOTS];              /* guarded by lock */
static range ranges[SLOTS];            /* guarded by lock */
static range opened[SLOTS];            /* guarded by lock: what IpcOpenMemHandle has mapped */
static size_t used_bytes;              /* guarded by lock */
static unsigned long long allocations; /* so far; guarded by lock */

/* With FAKE_HELD=1 the settings are those that the process began with. A program of Python's changes its environment
 * while work of streams reads settings here, and getenv may then read memory that setenv has freed. */
static char *held[SETTINGS + 1]; /* "NAME=value", up to a NULL; written before main */
static bool holds;

extern char **environ;
__attribute__((constructor)) static void hold_settings(void)
{
    const char *wanted = getenv("FAKE_HELD");
    int count = 0;
    for (char **one = environ; *one && count < SETTINGS; one++)
        if (!strncmp(*one, "FAKE_", 5) && !(held[count++] = strdup(*one))) abort();
    holds = wanted && atoi(wanted);
}

static const char *find_setting(const char *name)
{
    const size_t length = strlen(name);
    if (!holds) return getenv(name);
    for (char **one = held; *one; one++)
        if (!strncmp(*one, name, length) && (*one)[length] == '=') return *one + length + 1;
    return NULL;
}

int setting(const char *name, int fallback)
{
    const char *text = find_setting(name);
    return text ? atoi(text) : fallback;
}

bool context_is_lost(void)
{
    return setting("FAKE_LOST", 0) != 0;
}

/* ---- driver and devices ------------------------------------------------------------------------------------------ */

cu_result cuInit(unsigned int flags)
{
    return flags ? INVALID_VALUE : setting("FAKE_INIT", CU_OK);
}
cu_result cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_DRIVER", 13000);
    return CU_OK;
}
cu_result cuGetErrorName(cu_result result, const char **name)
{
    *name = result == CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return CU_OK;
}
cu_result cuGetErrorString(cu_result result, const char **text)
{
    *text = result == NOT_SUPPORTED ? "operation not supported" : "of the fake driver";
    return CU_OK;
}
cu_result cuDeviceGetCount(int *count)
{
    const int wanted = setting("FAKE_GPU_COUNT", FAKE_GPUS);
    *count = wanted < FAKE_MOST_GPUS ? wanted : FAKE_MOST_GPUS;
    return CU_OK;
}
cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    *device = ordinal;
    return CU_OK;
}
cu_result cuDeviceGetName(char *name, int bytes, cu_device device)
{
    snprintf(name, (size_t)bytes, "Fake %d", device);
    return CU_OK;
}
cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    int cc = setting("FAKE_CC", 90);
    (void)device;
    switch (attribute) {
    case CU_ATTRIBUTE_NUM_SMS:
        *value = setting("FAKE_SMS", 132);
        break;
    case CU_ATTRIBUTE_CC_MAJOR:
        *value = cc / 10;
        break;
    case CU_ATTRIBUTE_CC_MINOR:
        *value = cc % 10;
        break;
    case CU_ATTRIBUTE_SHARED_BYTES_OPTIN:
        *value = 232448;
        break;
    case CU_ATTRIBUTE_HOST_ATOMICS:
        *value = setting("FAKE_HOST_ATOMICS", 1);
        break;
    case CU_ATTRIBUTE_DIRECT_RDMA:
        *value = setting("FAKE_RDMA", 1);
        break;
    default:
        *value = 1;
    }
    return CU_OK;
}
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    (void)device;
    *bytes = TOTAL_BYTES;
    return CU_OK;
}
cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device)
{
    memset(uuid->bytes, 'a' + device, sizeof uuid->bytes);
    return CU_OK;
}
cu_result cuDeviceGetPCIBusId(char *id, int bytes, cu_device device)
{
    snprintf(id, (size_t)bytes, "0000:0%d:00.0", device + 1);
    return CU_OK;
}
cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
    *can = device == peer || setting("FAKE_PEERS", 1);
    return CU_OK;
}
cu_result cuDeviceGetP2PAttribute(int *value, int attribute, cu_device from, cu_device to)
{
    if (from == to) return INVALID_VALUE;
    *value = attribute == CU_P2P_PERFORMANCE_RANK ? 3 + to : from < to || setting("FAKE_ATOMICS", 0);
    return CU_OK;
}

/* ---- contexts: one a device; memory of MemAlloc belongs to the current one --------------------------------------- */

#define DEEPEST 8

static char contexts[FAKE_MOST_GPUS];
static _Atomic int32_t retains[FAKE_MOST_GPUS];
static _Atomic uint32_t lives[FAKE_MOST_GPUS];   /* contexts that have gone */
static _Thread_local int pushed[DEEPEST], depth; /* GPUs whose contexts this thread has pushed */

bool has_context(void)
{
    return depth > 0;
}

int current_device(void)
{
    return depth ? pushed[depth - 1] : 0;
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    *context = (cu_context)(void *)&contexts[device];
    retains[device]++;
    return CU_OK;
}
/* With the last one goes the context, and with that its events; the next one has the same address. */
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    if (--retains[device] == 0) lives[device]++;
    return CU_OK;
}
unsigned long long context_number(int device)
{
    return lives[device] * (unsigned long long)FAKE_MOST_GPUS + (unsigned long long)device + 1;
}
bool context_lives(unsigned long long number)
{
    return number && context_number((int)((number - 1) % FAKE_MOST_GPUS)) == number;
}
cu_result cuCtxGetId(cu_context context, unsigned long long *number)
{
    if (!context || !setting("FAKE_CONTEXT", 1)) return INVALID_CONTEXT;
    *number = context_number((int)((char *)(void *)context - contexts));
    return CU_OK;
}
cu_result cuCtxPushCurrent_v2(cu_context context)
{
    if (!context || depth == DEEPEST) return INVALID_CONTEXT;
    pushed[depth++] = (int)((char *)(void *)context - contexts);
    return CU_OK;
}
void enter_device(int device)
{
    pushed[depth++] = device;
}
cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    *context = NULL;
    if (!depth) return INVALID_CONTEXT;
    depth--;
    return CU_OK;
}
cu_result cuCtxGetCurrent(cu_context *context)
{
    *context = depth ? (cu_context)(void *)&contexts[current_device()] : NULL;
    return CU_OK;
}
cu_result cuCtxGetDevice(cu_device *device)
{
    if (!depth) return INVALID_CONTEXT;
    *device = current_device();
    return CU_OK;
}
/* All streams are of the GPU that is current, or of the first. */
cu_result cuStreamGetCtx(cu_stream stream, cu_context *context)
{
    if ((uintptr_t)stream <= (uintptr_t)CU_THREADS_STREAM && !depth) return INVALID_CONTEXT;
    *context = (cu_context)(void *)&contexts[current_device()];
    return CU_OK;
}
/* All memory of the process is open to all of its GPUs. */
cu_result cuCtxEnablePeerAccess(cu_context peer, unsigned int flags)
{
    if (!has_context() || !peer) return INVALID_CONTEXT;
    if (flags || peer == (cu_context)(void *)&contexts[current_device()]) return INVALID_VALUE;
    return setting("FAKE_PEERS", 1) ? CU_OK : NOT_SUPPORTED;
}
cu_result cuCtxSynchronize(void)
{
    if (!has_context()) return INVALID_CONTEXT;
    queue_await_all(current_device());
    return CU_OK;
}

/* ---- physical memory --------------------------------------------------------------------------------------------- */

/* A place in the table; -1: full, or more memory than there is. */
static int slot_take(int fd, size_t bytes, bool own)
{
    int found = -1;
    pthread_mutex_lock(&lock);
    if (!own || used_bytes + bytes <= TOTAL_BYTES - TAKEN_BYTES)
        for (int i = 1; i < SLOTS && found < 0; i++)
            if (!slots[i].used) found = i;
    if (found >= 0) {
        slots[found] = (slot){.fd = fd, .bytes = own ? bytes : 0, .holders = 1, .used = true};
        used_bytes += slots[found].bytes;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void slot_give(int i)
{
    pthread_mutex_lock(&lock);
    close(slots[i].fd);
    used_bytes -= slots[i].bytes;
    slots[i].used = false;
    pthread_mutex_unlock(&lock);
}

static int slot_make(size_t bytes)
{
    int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) return -1;
    int i = slot_take(fd, bytes, true);
    if (i < 0) close(fd);
    return i;
}

static bool chunk_fails(void)
{
    int left = atomic_load(&fake_controls_of()->few_chunks);
    while (left > 0 && !atomic_compare_exchange_weak(&fake_controls_of()->few_chunks, &left, left - 1))
        continue;
    return left > 0;
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    pthread_mutex_lock(&lock);
    *free_bytes = TOTAL_BYTES - TAKEN_BYTES - used_bytes;
    pthread_mutex_unlock(&lock);
    *total_bytes = TOTAL_BYTES;
    return CU_OK;
}
cu_result cuMemGetAllocationGranularity(size_t *bytes, const cu_allocation *allocation, int option)
{
    (void)allocation, (void)option;
    *bytes = PAGE;
    return CU_OK;
}
cu_result cuMemCreate(cu_memory *memory, size_t bytes, const cu_allocation *allocation, unsigned long long flags)
{
    (void)flags;
    if (allocation->flags.direct_rdma && setting("FAKE_RDMA_REJECTED", 0)) return NOT_SUPPORTED;
    int i = atomic_load(&fake_controls_of()->no_chunks) || chunk_fails() ? -1 : slot_make(bytes);
    if (i < 0) return CU_ERROR_OUT_OF_MEMORY;
    slots[i].device = allocation->location.id;
    slots[i].shared = allocation->handle_types & CU_HANDLE_POSIX_FD;
    if (!allocation->flags.direct_rdma) atomic_fetch_add(&fake_controls_of()->plain, 1);
    *memory = (cu_memory)i;
    return CU_OK;
}
/* The last one gives the memory back. Memory that is still mapped is not counted any more: the tests ask for far more,
   or far less, than there is. */
static cu_result hold(cu_memory memory, int holders, int mappings)
{
    slot *one = &slots[memory];
    pthread_mutex_lock(&lock);
    const bool valid = memory < SLOTS && one->used && one->holders + holders >= 0;
    bool ends = false;
    if (valid) {
        one->holders += holders;
        one->mappings += mappings;
        ends = one->holders + one->mappings == 0;
        if (one->holders == 0) {
            used_bytes -= one->bytes;
            one->bytes = 0;
        }
    }
    pthread_mutex_unlock(&lock);
    if (ends) slot_give((int)memory);
    return valid ? CU_OK : INVALID_VALUE;
}
cu_result cuMemRelease(cu_memory memory)
{
    return hold(memory, -1, 0);
}
cu_result cuMemExportToShareableHandle(void *handle, cu_memory memory, int type, unsigned long long flags)
{
    (void)type, (void)flags;
    if (!setting("FAKE_EXPORT", 1)) return NOT_SUPPORTED;
    if (!slots[memory].shared) return INVALID_VALUE;
    int fd = dup(slots[memory].fd);
    memcpy(handle, &fd, sizeof fd);
    return fd < 0 ? INVALID_VALUE : CU_OK;
}
cu_result cuMemImportFromShareableHandle(cu_memory *memory, void *handle, int type)
{
    (void)type;
    int i = slot_take(dup((int)(intptr_t)handle), 0, false);
    if (i < 0) return INVALID_VALUE;
    *memory = (cu_memory)i;
    return CU_OK;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static cu_result map_at(void *at, size_t bytes, int protection, int flags, int fd, cu_address *out)
{
    void *got = mmap(at, bytes, protection, flags, fd, 0);
    if (got == MAP_FAILED) return INVALID_VALUE;
    if (out) *out = (cu_address)(uintptr_t)got;
    return CU_OK;
}

#define NOWHERE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

/* Aligned as the driver's: memory mapped there keeps its alignment. */
cu_result cuMemAddressReserve(cu_address *address, size_t bytes, size_t alignment, cu_address hint,
                              unsigned long long flags)
{
    (void)alignment, (void)hint, (void)flags;
    cu_address all;
    if (map_at(NULL, bytes + PAGE, PROT_NONE, NOWHERE, -1, &all) != CU_OK) return CU_ERROR_OUT_OF_MEMORY;
    cu_address at = (all + PAGE - 1) / PAGE * PAGE;
    if (at > all) munmap((void *)(uintptr_t)all, at - all);
    munmap((void *)(uintptr_t)(at + bytes), all + PAGE - at);
    *address = at;
    return CU_OK;
}
cu_result cuMemAddressFree(cu_address address, size_t bytes)
{
    return munmap((void *)(uintptr_t)address, bytes) ? INVALID_VALUE : CU_OK;
}
static void replace_in(range table[SLOTS], range from, range to)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < SLOTS && (table[i].begin != from.begin || table[i].bytes != from.bytes))
        i++;
    if (i < SLOTS) table[i] = to;
    pthread_mutex_unlock(&lock);
}
static void replace_range(range from, range to)
{
    replace_in(ranges, from, to);
}
/* With FAKE_GUARD, CPUs that touch the memory fault; copies go to a second place of it. */
cu_result cuMemMap(cu_address address, size_t bytes, size_t offset, cu_memory memory, unsigned long long flags)
{
    (void)offset, (void)flags;
    range mapped = {.begin = address, .bytes = bytes, .device = slots[memory].device, .memory = (int)memory};
    if (hold(memory, 0, 1) != CU_OK) return INVALID_VALUE;
    const bool guards = setting("FAKE_GUARD", 0) != 0;
    if (guards && map_at(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slots[memory].fd, &mapped.copied) != CU_OK)
        return INVALID_VALUE;
    replace_range((range){0}, mapped);
    atomic_fetch_add(&fake_controls_of()->mapped, 1);
    return map_at((void *)(uintptr_t)address, bytes, guards ? PROT_NONE : PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED, slots[memory].fd, NULL);
}
/* The range that the address is in; bytes 0: it is in none. */
static range range_of(cu_address address)
{
    range found = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && !found.bytes; i++)
        if (address >= ranges[i].begin && address - ranges[i].begin < ranges[i].bytes) found = ranges[i];
    pthread_mutex_unlock(&lock);
    return found;
}
void *fake_reach(const void *at, size_t *bytes)
{
    const cu_address address = (cu_address)(uintptr_t)at;
    const range found = range_of(address);
    if (!found.copied) return (void *)(uintptr_t)at;
    const size_t left = found.bytes - (address - found.begin);
    if (*bytes > left) *bytes = left;
    return (void *)(uintptr_t)(found.copied + (address - found.begin));
}
cu_result cuMemUnmap(cu_address address, size_t bytes)
{
    const range mapped = range_of(address);
    if (mapped.copied) munmap((void *)(uintptr_t)mapped.copied, bytes);
    replace_range((range){.begin = address, .bytes = bytes, .copied = mapped.copied}, (range){0});
    atomic_fetch_sub(&fake_controls_of()->mapped, 1);
    if (mapped.memory) hold((cu_memory)mapped.memory, 0, -1);
    return map_at((void *)(uintptr_t)address, bytes, PROT_NONE, NOWHERE | MAP_FIXED, -1, NULL);
}
cu_result cuMemRetainAllocationHandle(cu_memory *memory, void *address)
{
    const range mapped = range_of((cu_address)(uintptr_t)address);
    if (!mapped.memory) return INVALID_VALUE;
    *memory = (cu_memory)mapped.memory;
    return hold(*memory, 1, 0);
}
cu_result cuMemSetAccess(cu_address address, size_t bytes, const cu_access *access, size_t count)
{
    (void)address, (void)bytes;
    return access && count ? CU_OK : INVALID_VALUE;
}

/* ---- memory of MemAlloc, and IPC --------------------------------------------------------------------------------- */

/* A copy of the slot of that memory; returns its place, -1: none. forget: its memory goes, and is nobody's place any
   more. */
static int slot_at(const void *at, bool forget, slot *out)
{
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 1; i < SLOTS && found < 0; i++)
        if (slots[i].used && slots[i].at == at) found = i;
    if (found >= 0) *out = slots[found];
    if (found >= 0 && forget) slots[found].at = NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

cu_result cuMemAlloc_v2(cu_address *address, size_t bytes)
{
    if (!has_context()) return INVALID_CONTEXT;
    int i = slot_make(bytes);
    if (i < 0) return CU_ERROR_OUT_OF_MEMORY;
    cu_result result = map_at(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slots[i].fd, address);
    pthread_mutex_lock(&lock);
    if (result == CU_OK) slots[i].at = (void *)(uintptr_t)*address;
    slots[i].device = current_device();
    slots[i].number = ++allocations;
    pthread_mutex_unlock(&lock);
    return result;
}
int fake_device_at(cu_address address)
{
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && found < 0; i++) {
        cu_address begin = (cu_address)(uintptr_t)slots[i].at;
        if (slots[i].used && begin && address >= begin && address - begin < slots[i].bytes) found = slots[i].device;
        if (address >= ranges[i].begin && address - ranges[i].begin < ranges[i].bytes) found = ranges[i].device;
    }
    pthread_mutex_unlock(&lock);
    return found < 0 && setting("FAKE_ANYWHERE", 0) ? 0 : found;
}
/* The allocation of MemAlloc that the address is in; number 0: none. */
static slot allocation_of(cu_address address)
{
    slot found = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && !found.number; i++) {
        cu_address begin = (cu_address)(uintptr_t)slots[i].at;
        if (slots[i].used && begin && address >= begin && address - begin < slots[i].bytes) found = slots[i];
    }
    pthread_mutex_unlock(&lock);
    return found;
}
static bool has_handles(void)
{
    return setting("FAKE_IPC", 1) && !atomic_load(&fake_controls_of()->no_handles);
}
cu_result cuMemGetAddressRange_v2(cu_address *base, size_t *bytes, cu_address address)
{
    const slot found = allocation_of(address);
    const range mapped = range_of(address);
    if (!has_context()) return INVALID_CONTEXT;
    if (mapped.bytes) {
        *base = mapped.begin;
        *bytes = mapped.bytes;
        return CU_OK;
    }
    if (!found.number) return INVALID_VALUE;
    *base = (cu_address)(uintptr_t)found.at;
    *bytes = found.bytes;
    return CU_OK;
}
/* For memory that MemAlloc has given alone. */
static cu_result allocation_attribute(void *value, int attribute, cu_address address)
{
    const slot found = allocation_of(address);
    const uint32_t capable = has_handles() && found.number && !found.lent;
    if (attribute == CU_POINTER_LEGACY_IPC) memcpy(value, &capable, sizeof capable);
    if (attribute == CU_POINTER_BUFFER_ID) memcpy(value, &found.number, sizeof found.number);
    return CU_OK;
}
static cu_result attribute_of(void *value, int attribute, cu_address address)
{
    int32_t device = fake_device_at(address);
    uint32_t type = CU_MEMORY_DEVICE, managed = 0;
    if (device < 0 && attribute == CU_POINTER_MEMORY_TYPE && fake_knows_host((const void *)(uintptr_t)address)) {
        type = CU_MEMORY_HOST;
        memcpy(value, &type, sizeof type);
        return CU_OK;
    }
    if (device < 0) return INVALID_VALUE;
    if (attribute == CU_POINTER_LEGACY_IPC || attribute == CU_POINTER_BUFFER_ID)
        return allocation_attribute(value, attribute, address);
    memcpy(value,
           attribute == CU_POINTER_MEMORY_TYPE  ? (const void *)&type
           : attribute == CU_POINTER_IS_MANAGED ? (const void *)&managed
                                                : (const void *)&device,
           sizeof type);
    return CU_OK;
}
cu_result cuPointerGetAttribute(void *value, int attribute, cu_address address)
{
    return attribute_of(value, attribute, address);
}
/* All attributes of an address outside of GPU memory are 0, which is no error. */
cu_result cuPointerGetAttributes(unsigned number, int *attributes, void **values, cu_address address)
{
    atomic_fetch_add(&fake_controls_of()->asks, 1);
    for (unsigned i = 0; i < number; i++)
        if (attribute_of(values[i], attributes[i], address) != CU_OK) memset(values[i], 0, sizeof(uint32_t));
    return CU_OK;
}
cu_result cuMemFree_v2(cu_address address)
{
    if (!has_context()) return INVALID_CONTEXT;
    void *at = (void *)(uintptr_t)address;
    slot found;
    const int i = slot_at(at, true, &found);
    if (i < 0) return INVALID_VALUE;
    munmap(at, found.bytes);
    slot_give(i);
    return CU_OK;
}

/* Memory is there at once, and goes when the stream has come there. */
cu_result cuMemAllocAsync(cu_address *address, size_t bytes, cu_stream stream)
{
    fake_controls *controls = fake_controls_of();
    if (capture_of(stream)) return CU_ERROR_CAPTURE_UNSUPPORTED;
    if (atomic_load(&controls->no_lending)) return CU_ERROR_OUT_OF_MEMORY;
    cu_result result = cuMemAlloc_v2(address, bytes);
    slot made;
    const int i = result == CU_OK ? slot_at((void *)(uintptr_t)*address, false, &made) : -1;
    if (i < 0) return result;
    slots[i].lent = true;
    atomic_fetch_add(&controls->lent, 1);
    return CU_OK;
}
static void free_lent(void *of)
{
    cu_address address;
    memcpy(&address, of, sizeof address);
    if (cuMemFree_v2(address) == CU_OK) atomic_fetch_sub(&fake_controls_of()->lent, 1);
}
cu_result cuMemFreeAsync(cu_address address, cu_stream stream)
{
    slot found;
    if (!has_context()) return INVALID_CONTEXT;
    const stream_lane lane = lane_of(stream);
    if (slot_at((void *)(uintptr_t)address, false, &found) < 0) return INVALID_VALUE;
    if (!queue_put(&lane, QUEUE_APART, free_lent, &address, sizeof address)) free_lent(&address);
    return CU_OK;
}

/* Another process opens the memory's file by way of /proc. */
typedef struct ipc_name {
    int pid, fd;
    size_t bytes;
} ipc_name;

cu_result cuIpcGetMemHandle(cu_ipc_memory *handle, cu_address address)
{
    if (!has_context()) return INVALID_CONTEXT;
    slot found;
    if (slot_at((void *)(uintptr_t)address, false, &found) < 0) return INVALID_VALUE;
    ipc_name name = {.pid = getpid(), .fd = found.fd, .bytes = found.bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &name, sizeof name);
    return CU_OK;
}
cu_result cuIpcOpenMemHandle_v2(cu_address *address, cu_ipc_memory handle, unsigned int flags)
{
    if (!has_context()) return INVALID_CONTEXT;
    char path[64];
    ipc_name name;
    memcpy(&name, &handle, sizeof name);
    if (name.pid == getpid() || flags != CU_IPC_PEER_ACCESS) return INVALID_CONTEXT;
    if (atomic_load(&fake_controls_of()->no_opening)) return INVALID_VALUE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    FILE *file = fopen(path, "r+");
    if (!file) return INVALID_VALUE;
    cu_result result = map_at(NULL, name.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), address);
    fclose(file);
    if (result != CU_OK) return result;
    replace_in(opened, (range){0}, (range){.begin = *address, .bytes = name.bytes});
    atomic_fetch_add(&fake_controls_of()->opened, 1);
    return CU_OK;
}
cu_result cuIpcCloseMemHandle(cu_address address)
{
    range found = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SLOTS && !found.bytes; i++)
        if (opened[i].begin == address) found = opened[i];
    pthread_mutex_unlock(&lock);
    if (!found.bytes) return INVALID_VALUE;
    replace_in(opened, found, (range){0});
    atomic_fetch_sub(&fake_controls_of()->opened, 1);
    return munmap((void *)(uintptr_t)address, found.bytes) ? INVALID_VALUE : CU_OK;
}
